"""Which programs draw random numbers when they train: losses of the others are compared with those of one process."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from placewise.readers.torch.training_stages import TrainedProgram  # noqa: E402


class Dropping(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A layer before something that drops a share of its values."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share, self.first = share, torch.nn.Linear(8, 8)
        self.dropout = torch.nn.Dropout(share)
        self.encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=share, batch_first=True)
        self.lstm = torch.nn.LSTM(8, 8, 2, dropout=share, batch_first=True)

    def forward(self, x: Any, what: str) -> Any:
        x = self.first(x)
        if what == "dropout":
            return self.dropout(x)
        if what == "attention":
            share = self.share if self.training else 0.0
            return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=share)
        return self.encoder(x) if what == "encoder" else self.lstm(x)[0]


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("what", ["dropout", "attention", "encoder", "lstm"])
@pytest.mark.parametrize(("share", "trains"), [(0.0, True), (0.3, False), (0.3, True)])
def test_dropout_that_drops_nothing_is_not_random(what: str, share: float, trains: bool) -> None:
    """With a share of zero, or exported in evaluation mode; with a share in training mode it is."""
    program = torch.export.export(Dropping(share).train(trains), (torch.randn(2, 4, 8), what))
    assert TrainedProgram(program).is_random == (share > 0 and trains)


def test_random_numbers_are_random() -> None:
    """Where they are no dropout."""

    class Noisy(Dropping):
        def forward(self, x: Any) -> Any:  # type: ignore[override]
            return self.first(x) + torch.rand_like(x)

    assert TrainedProgram(torch.export.export(Noisy(0.0), (torch.randn(2, 4, 8),))).is_random

"""Where a process of a job finds its GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from placewise.readers.torch.local_device import find_device, take_device  # noqa: E402

DEVICES = ["cuda:0", "cuda:1", "cpu", "cuda:2", "cuda:3"]


@pytest.mark.parametrize(("here", "found"), [(5, DEVICES), (3, ["cuda:0", "cuda:1", "cpu", "cuda:0", "cuda:1"])])
def test_processes_take_the_gpus_of_their_machine(monkeypatch: pytest.MonkeyPatch, here: int, found: list[str]) -> None:
    """On the second of two machines, GPUs are counted from 0; a process on cores between them has none."""
    devices = []
    for rank in range(len(DEVICES)):
        monkeypatch.setenv("LOCAL_RANK", str(rank if here == len(DEVICES) or rank < 2 else rank - 2))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
        devices.append(find_device(DEVICES, rank))
    assert devices == found


def test_a_gpu_that_is_not_here_is_an_error() -> None:
    """Cores are always here."""
    assert take_device(DEVICES, 2) == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="it is on cuda:1, and PyTorch sees no GPU here"):
            take_device(DEVICES, 1)

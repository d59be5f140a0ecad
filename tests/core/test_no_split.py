"""`--no-split` by the class of a module, as Accelerate has it, wherever a reader knows classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run
from locations import DATA

import placewise as pw
from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.errors import InputError
from placewise.model.problem import scopes_together

torch = pytest.importorskip("torch")
COMMITTED = DATA / "torch" / "layered.pt2"


class Pair(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two products and what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(x)))


def stacked() -> Any:
    """Eleven of them, so that the path of one is the beginning of another's."""
    return torch.nn.Sequential(*(Pair() for _ in range(11)))


@pytest.mark.parametrize("exported", [False, True])
def test_modules_of_a_class_stay_whole(exported: bool) -> None:
    """A set per module with all of its ops, of a live module and of an exported program; a pattern of paths agrees."""
    inputs = (torch.zeros(2, 8),)
    net: Any = torch.export.export(stacked(), inputs) if exported else stacked()
    reading = open_model(net, ProblemOptions(), None if exported else inputs)
    assert reading.modules["10"] == "Pair" and reading.modules["10.up"] == "Linear"
    sets = scopes_together(reading.graph, ["Pair"], reading.modules)
    assert len(sets) == 11 and sorted(sum(sets, ())) == sorted(reading.graph.ops.name)
    assert set(sets) == set(scopes_together(reading.graph, [r"^\d+"]))


def test_blocks_of_a_class_share_a_device_in_the_plan() -> None:
    """Every placement keeps them whole; a class that is not there is told of as a pattern that finds nothing."""
    given: dict[str, Any] = {"example_inputs": (torch.zeros(2, 8),), "placer": "random"}
    plan = pw.place(stacked(), "2xL4,cpu", together="Pair", **given)
    homes = {name: plan.assignment[name] for name in plan.assignment}
    for names in plan.problem.constraints.together:
        assert len({homes[name] for name in names}) == 1
    assert len(set(homes.values())) > 1
    with pytest.raises(InputError, match="no op's name or scope matches 'BertLayer'"):
        pw.build(stacked(), "2xL4", ProblemOptions(together="BertLayer"), example_inputs=given["example_inputs"])  # type: ignore[arg-type]


def test_classes_of_an_archive_from_the_command_line(tmp_path: Path) -> None:
    """The archive says them, without PyTorch; the plan has the sets."""
    assert open_model(COMMITTED, ProblemOptions(dims={"ids:0": 2})).modules["block"] == "Sequential"
    plan = tmp_path / "plan.json"
    arguments = (COMMITTED, "-d", "2xL4,cpu", "--dim", "ids:0=2", "--no-split", "Sequential")
    run("place", *arguments, "--placer", "random", "-o", plan)
    assert "keeps every rule" in run("check", COMMITTED, plan).stdout
    assert '"together": [' in plan.read_text()


def test_classes_of_a_hugging_face_configuration(tmp_path: Path) -> None:
    """The names that `_no_split_modules` has: a set per layer."""
    pytest.importorskip("transformers")
    config = tmp_path / "config.json"
    sizes = {"n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 20}
    config.write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes}))
    reading = open_model(str(config), ProblemOptions(dims={"prompt": 4, "tokens": 0}))
    sets = scopes_together(reading.graph, ["GPT2Block"], reading.modules)
    assert set(sets) == set(scopes_together(reading.graph, [r"^transformer\.h\.\d+"])) and len(sets) == 2

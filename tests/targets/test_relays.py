"""Stages that pass on what later ones read: what that costs is told, and avoided where it can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import placewise as pw
from placewise.exporters.writing import export_placement
from placewise.targets.fastest_split import describe_execution
from placewise.targets.kept import list_kept
from placewise.targets.relays import judge_on_target
from placewise.transform.stream_time import StageTime, steady_seconds, stream_seconds

torch = pytest.importorskip("torch")


class Late(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A chain whose last op reads a large input; with `skips`, a large value from the beginning instead."""

    def __init__(self, skips: bool, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(6))
        self.wide = torch.nn.Linear(width, 1 << 15) if skips else None

    def forward(self, x: torch.Tensor, late: torch.Tensor) -> torch.Tensor:
        kept = late if self.wide is None else self.wide(x)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x + kept.mean(dim=-1, keepdim=True)


def saved_program(folder: Path, skips: bool, width: int = 512) -> Path:
    """A program of that, and an input of 4 MiB."""
    path, inputs = folder / "late.pt2", (torch.zeros(32, width), torch.zeros(32, 1 << 15))
    torch.export.save(torch.export.export(Late(skips, width), inputs), path)
    return path


def stages_of(plan: pw.Plan) -> list[StageTime]:
    """The stages as the exported program is told that they run."""
    assert plan.placement is not None
    made = export_placement(plan.problem, plan.placement, "pipelining")
    return [StageTime(*row) for row in json.loads(str(made.exported.files["stages.json"]))["stage_seconds"]]


@pytest.mark.parametrize("objective", ["throughput", "latency"])
@pytest.mark.parametrize("skips", [False, True], ids=["input", "skip"])
def test_a_plan_for_pipelining_says_what_relays_cost(tmp_path: Path, skips: bool, objective: str) -> None:
    """Either it takes what it says, or a note names the seconds of the program and it is not called optimal."""
    model = saved_program(tmp_path, skips)
    plan = pw.place(model, "3xRTX-3060", objective=objective, target="pipelining")  # type: ignore[arg-type]
    stages = stages_of(plan)
    took = steady_seconds(stages) if objective == "throughput" else stream_seconds(stages, 1)
    told = [note for note in plan.result.notes if "skip a stage" in note]
    if took > plan.value * (1 + 1e-6):
        assert told and plan.status != "optimal"
    else:
        assert not told and took == pytest.approx(plan.value)


def test_readers_of_an_input_are_tried_in_one_stage(tmp_path: Path) -> None:
    """The mean of the late input is taken at once, and one number per row goes on; the bound is that without relays."""
    model = saved_program(tmp_path, skips=False, width=2048)
    plan = pw.place(model, "2xRTX-3060", objective="throughput", target="pipelining")
    free = pw.place(model, "2xRTX-3060", objective="throughput", communication="blocking")
    assert steady_seconds(stages_of(plan)) == pytest.approx(plan.value) and len(set(plan.assignment.values())) == 2
    assert free.value < plan.value < 0.9 * steady_seconds(stages_of(free))
    assert plan.lower_bound == pytest.approx(free.value)


def test_a_plan_for_no_target_says_what_its_export_takes(tmp_path: Path) -> None:
    """The list of targets, and the export itself, price relays; a plan without relays is as fast as planned."""
    problem = pw.build(saved_program(tmp_path, skips=False), "2xRTX-3060", pw.ProblemOptions(objective="throughput"))
    names = problem.graph.ops.name
    late = [number for number, name in enumerate(names) if "mean" in name or name == names[-1]]
    half = problem.n_ops // 2
    device = [1 if op in late or op >= half else 0 for op in range(problem.n_ops)]
    placement = pw.Placement(device)
    value, relayed = pw.judge(problem, placement).value, judge_on_target(problem, placement, "pipelining").value
    assert relayed > value * 1.1
    single = pw.place(problem, placer="single")
    assert {one.target: one.loss for one in list_kept(single.result)}["pipelining"] == pytest.approx(0, abs=1e-9)
    made = export_placement(problem, placement, "pipelining")
    assert "run so, the plan takes" in describe_execution(made)
    assert "run so, the plan takes" in describe_execution(made, searched=True)

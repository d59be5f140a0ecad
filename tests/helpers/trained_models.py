"""Small models that train, placements of them over cores, and training runs of both."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import placewise as pw
from placewise.analysis.train_plan import TrainedPlan, TrainingRunSetting, train_placement
from placewise.exporters.writing import export_placement
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.runtimes.torch.training import TrainingOptions
from placewise.simulate.step.orders import count_stages
from placewise.simulate.step.pipelines import placement_of_pipeline
from placewise.simulate.step.stage_costs import Pipeline


class TiedBlocks(torch.nn.Module):
    """An embedding that is also the last layer, residual blocks, a normalization with buffers, and whole numbers that
    pass through every stage.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 16)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))
        self.norm = torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + torch.relu(block(x).transpose(1, 2)).transpose(1, 2)
        return self.head(self.norm(x)) / 8, ids


class OwnLoss(torch.nn.Module):
    """A model whose output is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return (self.second(torch.tanh(self.first(x))) - x).square().mean()


def save_program(module: Any, args: tuple[Any, ...], path: Path) -> Path:
    """The program of a module in training mode, in a file."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module().train(), args), path)
    return path


def cut_evenly(problem: Problem, pattern: Sequence[int]) -> Placement:
    """As many equal runs of calls as the pattern is long, each on the device that it says."""
    own = np.array([origin[0] for origin in problem.graph.ops.origin])
    share = np.argsort(np.argsort(own, kind="stable"), kind="stable") * len(pattern) // len(own)
    return Placement(np.array(pattern, np.int32)[share])


def build_forward(path: Path, devices: str) -> Problem:
    """The problem of a program's forward ops."""
    return pw.build(path, devices, pw.ProblemOptions(objective="throughput"))


def place_training_graph(path: Path, pattern: Sequence[int]) -> tuple[Problem, Placement]:
    """The training graph of a program over two cores: forward ops cut evenly, all others where they belong."""
    problem = pw.build(path, "2xcore", pw.ProblemOptions(graph="training", objective="throughput"))
    return problem, Placement(_follow_forward(path, problem, pattern))


def place_step(path: Path, schedule: str, microbatches: int, copies: int = 1) -> tuple[Problem, Placement]:
    """The same as a plan for the objective `step` under a schedule, with stages of equal runs of calls."""
    options: dict[str, Any] = {"schedule": schedule, "microbatches": microbatches, "replicas": copies}
    problem = pw.build(path, "2xcore", pw.ProblemOptions(graph="training", objective="step", **options))
    devices = 2 // copies
    count = count_stages(schedule, devices)
    stage = _follow_forward(path, problem, range(count))
    lines = tuple(tuple(range(copy * devices, (copy + 1) * devices)) for copy in range(copies))
    return problem, placement_of_pipeline(Pipeline(schedule, lines, stage, count))


def _follow_forward(path: Path, problem: Problem, pattern: Sequence[int]) -> Ints:
    """Forward ops in runs of calls with these numbers, backward ops and updates with them, others with the last."""
    forward = build_forward(path, "2xcore")
    where = dict(zip(forward.graph.ops.name, cut_evenly(forward, pattern).device.tolist(), strict=True))
    names, groups = problem.graph.ops.name, problem.graph.ops.group.tolist()
    group: dict[int, int] = {}
    for name, number in zip(names, groups, strict=True):
        if name in where and number >= 0:
            group.setdefault(number, where[name])
    rest = zip(names, groups, strict=True)
    own = [where.get(n, where.get(n.rpartition("/grad:")[0], group.get(number, pattern[-1]))) for n, number in rest]
    return np.array(own, np.int32)


def write_training_files(path: Path, pattern: Sequence[int], folder: Path) -> None:
    """Write the files of the target `pipelining` for such a placement."""
    made = export_placement(*place_training_graph(path, pattern), "pipelining")
    for name, text in made.exported.files.items():
        (folder / name).write_text(str(text))


def train(
    problem: Problem, placement: Placement, setting: TrainingRunSetting | None = None, **options: Any
) -> TrainedPlan:
    """Train a placement with these fields of `TrainingOptions`."""
    return train_placement(problem, placement, TrainingOptions(**options), setting or TrainingRunSetting())

"""Calls that use memory which one of them writes in place share a device, and no others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import placewise as pw
from placewise.model.problem import Problem
from placewise.readers.torch.cutting import assign_steps, check_writes, make_pure, steps_of


class Writer(torch.nn.Module):
    """Writes into a view, into rows of what is read again, into a buffer, and twice where nobody sees it."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        x = self.layers[0](x).relu_()
        x[:, 0].add_(1.0)
        y = self.layers[1](x.exp())
        y += x.sin()
        self.count.add_(y.sum(0))
        z = self.layers[2](y).tanh()
        z.view(-1)[0].zero_()
        return z.mul_(2.0) + self.count


def in_sets(problem: Problem) -> list[set[str]]:
    """The names of the ops of each group."""
    group = problem.graph.ops.group
    names = np.array(problem.graph.ops.name)
    return [set(names[group == number].tolist()) for number in np.unique(group[group >= 0])]


@pytest.mark.parametrize("saved", [True, False])
def test_a_memory_that_is_written_binds_its_users(tmp_path: Path, saved: bool) -> None:
    """The view, the buffer and the rows; the sum and the ReLU bind nothing, though they are written in place."""
    model, example = Writer().eval(), (torch.randn(2, 4),)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, example), path)
    problem = pw.build(path, "2xcore") if saved else pw.build(model, "2xcore", example_inputs=example)
    assert in_sets(problem) == [
        {"relu_", "select", "add_", "exp", "sin"},
        {"add__2", "add"},
        {"tanh", "view", "select_1", "zero_", "mul_"},
    ]


def test_plans_that_keep_the_sets_can_run() -> None:
    """What PyTorch's runtimes refuse is exactly what breaks one of them."""
    model, example = Writer().eval(), (torch.randn(2, 4),)
    problem = pw.build(model, "2xcore", example_inputs=example)
    program = torch.export.export(model, example)
    steps = steps_of(program)
    make_pure(steps)

    def refused(device: list[int]) -> bool:
        calls = {origin[0]: home for origin, home in zip(problem.graph.ops.origin, device, strict=True)}
        try:
            check_writes(steps, assign_steps(program, steps, calls))
        except ValueError:
            return True
        return False

    rng = np.random.default_rng(0)
    assert not any(refused(rng.integers(0, 2, problem.n_blocks)[problem.block].tolist()) for _ in range(50))
    for op in np.flatnonzero(problem.graph.ops.group >= 0).tolist():
        assert refused((np.arange(problem.n_ops) == op).astype(int).tolist()), problem.graph.ops.name[op]

"""The Python interface: a model file and devices in, a plan out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from placewise.building import Devices, Model, Wishes, build
from placewise.files.plan_file import save_plan
from placewise.model.placement import Placement
from placewise.model.problem import Problem, Rule
from placewise.model.result import Result
from placewise.placers.base import Budget, OnProgress, ignore
from placewise.placing import place as place_problem
from placewise.report.console import plain, result_view


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The answer of `place`: the result, and what people do with it."""

    result: Result

    @property
    def problem(self) -> Problem:
        return self.result.problem

    @property
    def placement(self) -> Placement | None:
        return self.result.placement

    @property
    def assignment(self) -> dict[str, str]:
        """Op name → device name; empty if there is no placement."""
        result = self.result
        if result.placement is None:
            return {}
        return result.placement.assignment(result.problem.graph, result.problem.cluster)

    @property
    def value(self) -> float:
        """Seconds: latency, or time per sample."""
        return self.result.value

    @property
    def lower_bound(self) -> float:
        """Seconds that no placement can beat."""
        return self.result.lower_bound

    @property
    def gap(self) -> float:
        """(value − lower_bound) / value."""
        return self.result.gap

    @property
    def status(self) -> str:
        """``optimal``, ``feasible``, ``infeasible`` or ``unknown``."""
        return str(self.result.status.outcome)

    def summary(self) -> str:
        """What `placewise place` prints, as text."""
        return plain(result_view(self.result))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan file (docs/formats.md), atomically. Raises OutputError."""
        save_plan(self.result, path)

    def __repr__(self) -> str:
        return f"Plan({self.status}, {self.value:.6g} s, gap {self.gap:.2%}, {self.result.placer})"


Rules = Mapping[str, str] | Iterable[tuple[str, str]]
"""Regular expressions and devices: a mapping, or pairs where one expression has several devices."""


def _rules(pairs: Rules | None) -> tuple[Rule, ...] | None:
    if pairs is None:
        return None
    return tuple(Rule(*pair) for pair in (pairs.items() if isinstance(pairs, Mapping) else pairs))


def place(
    model: Model,
    devices: Devices | None = None,
    *,
    placer: str = "auto",
    objective: str | None = None,
    execution: str | None = None,
    communication: str | None = None,
    memory: str | None = None,
    contiguous: bool | None = None,
    headroom: float | None = None,
    pins: Rules | None = None,
    forbidden: Rules | None = None,
    dims: Mapping[str, int] | None = None,
    costs: str = "",
    graph: str | None = None,
    convex: bool | None = None,
    schedule: str | None = None,
    replicas: int | str | None = None,
    step_samples: int | None = None,
    budget: Budget | None = None,
    options: Mapping[str, Any] | None = None,
    on_progress: OnProgress = ignore,
) -> Plan:
    """Place a model on devices.

    `model` is a path (ONNX, a published workload, a PipeDream profile, a graph or problem file), a Graph or a
    Problem; `devices` a line such as ``"2xA100-80GB,cpu"``, ``"this"``, a TOML path, a mapping of device to memory,
    or a Cluster. The other wishes are those of `placewise.building.Wishes`. Raises PlacewiseError; an infeasible
    problem is a plan whose status says so.
    """
    wishes = Wishes(
        objective, execution, communication, memory, contiguous, headroom,
        _rules(pins), _rules(forbidden), dims or {}, costs=costs, graph=graph, convex=convex, schedule=schedule,
        replicas=replicas, step_samples=step_samples,
    )  # fmt: skip
    problem = build(model, devices, wishes)
    return Plan(place_problem(problem, placer, budget, options=options, on_progress=on_progress))

"""Placewise decides which device runs each operation of a neural network, and proves how good the answer is.

    import placewise as pw

    plan = pw.place("model.onnx", devices="2xA100-80GB,cpu", objective="latency")
    print(plan.summary())
    plan.save("plan.json")

The names below are the public interface. They are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Budget": "placewise.placers.base",
    "Cluster": "placewise.model.cluster",
    "Constraints": "placewise.model.problem",
    "CostTable": "placewise.model.costs",
    "Device": "placewise.model.cluster",
    "Graph": "placewise.model.graph",
    "GraphBuilder": "placewise.model.builder",
    "Leaderboard": "placewise.api",
    "Measured": "placewise.api",
    "Link": "placewise.model.cluster",
    "Objective": "placewise.model.problem",
    "Placement": "placewise.model.placement",
    "PlacewiseError": "placewise.errors",
    "Plan": "placewise.api",
    "Problem": "placewise.model.problem",
    "Result": "placewise.model.result",
    "Training": "placewise.api",
    "ProblemOptions": "placewise.core.options",
    "build": "placewise.core.build",
    "compare": "placewise.api",
    "device_map": "placewise.analysis.device_map",
    "diff": "placewise.api",
    "explain": "placewise.api",
    "export_plan": "placewise.api",
    "judge": "placewise.simulate:judge_placement",
    "lower_bound": "placewise.simulate",
    "place": "placewise.api",
    "pretrain": "placewise.api",
    "profile": "placewise.api",
    "read_cluster": "placewise.catalog",
    "report_plan": "placewise.api",
    "run": "placewise.api",
    "train": "placewise.api",
}

__all__ = [
    "Budget",
    "Cluster",
    "Constraints",
    "CostTable",
    "Device",
    "Graph",
    "GraphBuilder",
    "Leaderboard",
    "Link",
    "Measured",
    "Objective",
    "Placement",
    "PlacewiseError",
    "Plan",
    "Problem",
    "ProblemOptions",
    "Result",
    "Training",
    "build",
    "compare",
    "device_map",
    "diff",
    "explain",
    "export_plan",
    "judge",
    "lower_bound",
    "place",
    "pretrain",
    "profile",
    "read_cluster",
    "report_plan",
    "run",
    "train",
]

if TYPE_CHECKING:
    from placewise.analysis.device_map import device_map
    from placewise.api import (
        Leaderboard,
        Measured,
        Plan,
        Training,
        compare,
        diff,
        explain,
        export_plan,
        place,
        pretrain,
        profile,
        report_plan,
        run,
        train,
    )
    from placewise.catalog import read_cluster
    from placewise.core.build import build
    from placewise.core.options import ProblemOptions
    from placewise.errors import PlacewiseError
    from placewise.model.builder import GraphBuilder
    from placewise.model.cluster import Cluster, Device, Link
    from placewise.model.costs import CostTable
    from placewise.model.graph import Graph
    from placewise.model.placement import Placement
    from placewise.model.problem import Constraints, Objective, Problem
    from placewise.model.result import Result
    from placewise.placers.base import Budget
    from placewise.simulate import lower_bound
    from placewise.simulate.judge.judge import judge_placement as judge


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(import_module(module), attribute or name)
    raise AttributeError(f"module 'placewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

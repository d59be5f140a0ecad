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
    "Link": "placewise.model.cluster",
    "Objective": "placewise.model.problem",
    "Explanation": "placewise.api",
    "Fit": "placewise.api",
    "Placement": "placewise.model.placement",
    "PlacewiseError": "placewise.errors",
    "Plan": "placewise.api",
    "PlanDiff": "placewise.api",
    "Problem": "placewise.model.problem",
    "ProblemOptions": "placewise.core.options",
    "Result": "placewise.model.result",
    "RunResult": "placewise.api",
    "Sweep": "placewise.api",
    "TrainingRun": "placewise.api",
    "Training": "placewise.api",
    "build": "placewise.core.build",
    "cache_info": "placewise.api",
    "check": "placewise.api",
    "clear_cache": "placewise.api",
    "compare": "placewise.api",
    "device_map": "placewise.analysis.device_map",
    "diff": "placewise.api",
    "doctor": "placewise.api",
    "explain": "placewise.api",
    "export": "placewise.api",
    "fit": "placewise.api",
    "inspect": "placewise.api",
    "judge": "placewise.api",
    "lower_bound": "placewise.simulate",
    "place": "placewise.api",
    "list_placers": "placewise.api",
    "pretrain": "placewise.api",
    "profile": "placewise.api",
    "read_cluster": "placewise.catalog",
    "read_model": "placewise.api",
    "report": "placewise.api",
    "run": "placewise.api",
    "sweep": "placewise.api",
    "train": "placewise.api",
}

__all__ = [
    "Budget",
    "Cluster",
    "Constraints",
    "CostTable",
    "Device",
    "Explanation",
    "Fit",
    "Graph",
    "GraphBuilder",
    "Leaderboard",
    "Link",
    "Objective",
    "Placement",
    "PlacewiseError",
    "Plan",
    "PlanDiff",
    "Problem",
    "ProblemOptions",
    "Result",
    "RunResult",
    "Sweep",
    "Training",
    "TrainingRun",
    "build",
    "cache_info",
    "check",
    "clear_cache",
    "compare",
    "device_map",
    "diff",
    "doctor",
    "explain",
    "export",
    "fit",
    "inspect",
    "judge",
    "list_placers",
    "lower_bound",
    "place",
    "pretrain",
    "profile",
    "read_cluster",
    "read_model",
    "report",
    "run",
    "sweep",
    "train",
]

if TYPE_CHECKING:
    from placewise.analysis.device_map import device_map
    from placewise.api import (
        Explanation,
        Fit,
        Leaderboard,
        Plan,
        PlanDiff,
        RunResult,
        Sweep,
        Training,
        TrainingRun,
        cache_info,
        check,
        clear_cache,
        compare,
        diff,
        doctor,
        explain,
        export,
        fit,
        inspect,
        judge,
        list_placers,
        place,
        pretrain,
        profile,
        read_model,
        report,
        run,
        sweep,
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


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'placewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

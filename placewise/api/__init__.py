"""The Python interface: a model and devices in, a plan out, and everything that is asked of either."""

from placewise.api.learning import pretrain, train
from placewise.api.machine import cache_info, clear_cache, doctor
from placewise.api.models import inspect, list_placers, profile, read_model
from placewise.api.placing import compare, fit, place
from placewise.api.plans import check, diff, explain, export, judge, report, run
from placewise.api.results import Explanation, Fit, Leaderboard, Plan, PlanDiff, RunResult, Training, TrainingRun
from placewise.api.sweeping import Sweep, sweep

__all__ = [
    "Explanation",
    "Fit",
    "Leaderboard",
    "Plan",
    "PlanDiff",
    "RunResult",
    "Sweep",
    "Training",
    "TrainingRun",
    "cache_info",
    "check",
    "clear_cache",
    "compare",
    "diff",
    "doctor",
    "explain",
    "export",
    "fit",
    "inspect",
    "judge",
    "list_placers",
    "place",
    "pretrain",
    "profile",
    "read_model",
    "report",
    "run",
    "sweep",
    "train",
]

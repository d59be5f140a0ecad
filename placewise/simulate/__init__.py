"""The only judge of placements: it prices them, checks them, and bounds the value of every placement."""

from placewise.simulate.bounds.bounds import bound_soon, lower_bound
from placewise.simulate.bounds.infeasible import why_infeasible
from placewise.simulate.judge.judge import Evaluator, evaluate, judge_placement
from placewise.simulate.judge.memory import device_memory, memory_while
from placewise.simulate.judge.peaks import MemoryPeak, memory_peaks

__all__ = [
    "Evaluator",
    "MemoryPeak",
    "bound_soon",
    "device_memory",
    "evaluate",
    "judge_placement",
    "lower_bound",
    "memory_peaks",
    "memory_while",
    "why_infeasible",
]

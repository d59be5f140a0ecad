"""The only judge: it prices placements, checks them, and bounds what any placement can reach."""

from placewise.simulate.bounds.bounds import lower_bound
from placewise.simulate.bounds.infeasible import why_infeasible
from placewise.simulate.judge.judge import Evaluator, evaluate, judge_placement
from placewise.simulate.judge.memory import device_memory, memory_while
from placewise.simulate.judge.peaks import MemoryPeak, memory_peaks

__all__ = [
    "Evaluator",
    "MemoryPeak",
    "device_memory",
    "evaluate",
    "judge_placement",
    "lower_bound",
    "memory_peaks",
    "memory_while",
    "why_infeasible",
]

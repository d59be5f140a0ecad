"""The only judge: it prices placements, checks them, and bounds what any placement can reach."""

from placewise.simulate.bounds.bounds import lower_bound
from placewise.simulate.bounds.infeasible import why_infeasible
from placewise.simulate.judge.judge import Evaluator, evaluate, simulate
from placewise.simulate.judge.memory import device_memory, memory_while
from placewise.simulate.judge.peaks import MemoryPeak, memory_peaks

judge = simulate
"""The public name: `placewise.simulate` is this room."""

__all__ = [
    "Evaluator",
    "MemoryPeak",
    "device_memory",
    "evaluate",
    "judge",
    "lower_bound",
    "memory_peaks",
    "memory_while",
    "simulate",
    "why_infeasible",
]

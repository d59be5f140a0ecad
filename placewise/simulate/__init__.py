"""The only judge: it prices placements, checks them, and bounds what any placement can reach."""

from placewise.simulate.bounds import lower_bound
from placewise.simulate.infeasible import why_infeasible
from placewise.simulate.judge import Evaluator, evaluate, simulate
from placewise.simulate.memory import device_memory, memory_while
from placewise.simulate.peaks import MemoryPeak, memory_peaks

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

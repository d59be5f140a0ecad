"""Plain-Python twins of the judge: dicts, lists and heapq, written from the definitions and not from the kernels."""

from twins.check import check
from twins.memory import peak_memory
from twins.operator import Operator, operator_makespan
from twins.plain import Plain
from twins.replicas import replicated_value
from twins.sequential import sequential_makespan
from twins.subgraph import subgraph_makespan
from twins.throughput import MaxLoad, throughput_value
from twins.waits import longest_waits

__all__ = [
    "MaxLoad",
    "Operator",
    "Plain",
    "check",
    "longest_waits",
    "operator_makespan",
    "peak_memory",
    "replicated_value",
    "sequential_makespan",
    "subgraph_makespan",
    "throughput_value",
]

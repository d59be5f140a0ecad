"""Operators of PyTorch in the order in which they ran → ops of a graph in theirs.

Operators match ops by kind or by name; both sequences are aligned with the fewest elements left out (E. W. Myers, An
O(ND) Difference Algorithm and Its Variations, Algorithmica 1986).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from placewise.costing.measured.match import Owners
from placewise.costing.measured.table import TimingRow
from placewise.errors import CostError
from placewise.model.graph import Graph

MAX_DIFFERENCES = 1_000
RUN_CALLS, RUN_OPS = 0.9, 0.75
"""Fractions of a trace's calls and of all ops that must match if several repetitions are one run of the model."""
_KINDS: Mapping[str, str] = {
    "linear": "Gemm MatMul", "addmm": "Gemm MatMul", "mm": "MatMul Gemm", "bmm": "MatMul", "baddbmm": "Gemm MatMul",
    "conv1d": "Conv", "conv2d": "Conv", "conv3d": "Conv", "convolution": "Conv ConvTranspose",
    "conv_transpose1d": "ConvTranspose", "conv_transpose2d": "ConvTranspose", "conv_transpose3d": "ConvTranspose",
    "batch_norm": "BatchNormalization", "layer_norm": "LayerNormalization", "native_layer_norm": "LayerNormalization",
    "group_norm": "GroupNormalization", "instance_norm": "InstanceNormalization", "rms_norm": "RMSNormalization",
    "scaled_dot_product_attention": "Attention", "embedding": "Gather", "index_select": "Gather", "select": "Gather",
    "max_pool1d": "MaxPool", "max_pool2d": "MaxPool", "max_pool3d": "MaxPool", "avg_pool1d": "AveragePool",
    "avg_pool2d": "AveragePool", "avg_pool3d": "AveragePool",
    "adaptive_avg_pool1d": "GlobalAveragePool ReduceMean", "adaptive_avg_pool2d": "GlobalAveragePool ReduceMean",
    "mean": "ReduceMean GlobalAveragePool", "sum": "ReduceSum", "amax": "ReduceMax", "max": "ReduceMax Max",
    "view": "Reshape Flatten", "reshape": "Reshape Flatten", "flatten": "Flatten Reshape", "contiguous": "Reshape",
    "permute": "Transpose", "transpose": "Transpose", "t": "Transpose", "cat": "Concat", "stack": "Concat",
    "chunk": "Split", "split": "Split", "silu": "Swish", "hardswish": "HardSwish", "to": "Cast", "clamp": "Clip",
    "rsub": "Sub", "masked_fill": "Where", "log_softmax": "LogSoftmax", "lstm": "LSTM", "gru": "GRU",
}  # fmt: skip
_NUMBER = re.compile(r"_\d+$")


def operator_of(event: str) -> str:
    """``aten::add_`` → ``add``; "" if the event is not an operator."""
    namespace, _, name = event.partition("::")
    return name.strip("_") if namespace == "aten" and "::" not in name else ""


class Candidates:
    """The names that the ops of a graph may have in a trace."""

    def __init__(self, graph: Graph) -> None:
        self.names = [
            _NUMBER.sub("", name.rpartition("/")[2].removeprefix("node_")).strip("_") for name in graph.ops.name
        ]
        self.kinds = [kind.rpartition("::")[2] for kind in graph.ops.kind]
        self._known = set(self.names) | {kind.lower() for kind in self.kinds}
        self._known |= {name for name, kinds in _KINDS.items() if set(kinds.split()) & set(self.kinds)}

    def has(self, operator: str) -> bool:
        """Whether any op may be this operator."""
        return bool(operator) and (operator in self._known or operator.replace("_", "") in self._known)

    def fits(self, operator: str, op: int) -> bool:
        """Whether an op may be this operator."""
        kind = self.kinds[op]
        same = operator == self.names[op] or operator.replace("_", "") == kind.lower()
        return same or kind in _KINDS.get(operator, "").split()


def match_in_order(rows: Sequence[TimingRow], graph: Graph) -> Owners:
    """Match rows to ops by their order. Raises CostError."""
    pairs = _align_calls([row.name for row in rows], Candidates(graph))
    if pairs is None:
        raise CostError("its operators do not match this model", remedy="record one step of this model")
    owners: Owners = [[] for _ in rows]
    for op, row in pairs:
        owners[row].append(op)
    return owners


def _align_calls(calls: Sequence[str], candidates: Candidates) -> list[tuple[int, int]] | None:
    """Pairs of ops and calls, both in order; None if the sequences have little in common."""
    names = [operator_of(call) for call in calls]
    return align_sequences(len(candidates.names), len(names), lambda op, call: candidates.fits(names[call], op))


def is_run(calls: Sequence[str], candidates: Candidates) -> bool:
    """Whether nearly all calls belong to the model, and most of the model is among them."""
    n_ops = len(candidates.names)
    least = max(RUN_CALLS * len(calls), RUN_OPS * n_ops)
    if least > min(n_ops, len(calls)):
        return False
    pairs = _align_calls(calls, candidates)
    return pairs is not None and len(pairs) >= least


def align_sequences(n: int, m: int, equal: Callable[[int, int], bool]) -> list[tuple[int, int]] | None:
    """The most pairs (i, j), both ascending, with ``equal(i, j)``; None if too many elements differ."""
    reach, history = {1: 0}, list[dict[int, int]]()
    for differences in range(min(n + m, MAX_DIFFERENCES) + 1):
        history.append(dict(reach))
        for diagonal in range(-differences, differences + 1, 2):
            down = diagonal == -differences or (
                diagonal != differences and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
            )
            i = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            j = i - diagonal
            while i < n and j < m and equal(i, j):
                i, j = i + 1, j + 1
            reach[diagonal] = i
            if i >= n and j >= m:
                return _trace_back(n, m, history)
    return None


def _trace_back(n: int, m: int, history: list[dict[int, int]]) -> list[tuple[int, int]]:
    pairs, i, j = [], n, m
    for differences in range(len(history) - 1, -1, -1):
        reach, diagonal = history[differences], i - j
        down = diagonal == -differences or (
            diagonal != differences and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
        )
        before = diagonal + 1 if down else diagonal - 1
        start = reach.get(before, 0)
        stop = start if down else start + 1
        while i > max(stop, 0) and j > 0 and i - 1 >= stop:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        if differences:
            i, j = start, start - before
    return pairs[::-1]

"""Rows of a measurement → the ops that they stand for: by name first, then by kind, then by who fuses with whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from placewise.costing.measured.table import TimingRow
from placewise.costing.rules import attention, linear, recurrent
from placewise.model.columns import Bools, Longs
from placewise.model.graph import Graph

_HEAVY = frozenset((*linear.RULES, *attention.RULES, *recurrent.RULES))
_WITH_SUM = ("Bias", "Skip")
"""Kernels whose type begins like this add something first: BiasGelu, SkipLayerNormalization."""
MOST_STEPS = 8
"""How far before the op that a fused kernel is called after its main op is looked for."""

Owners = list[list[int]]
"""The ops of every row."""


def match_by_name(rows: Sequence[TimingRow], graph: Graph) -> Owners:
    """Ops called as the row says, or that make a tensor called so."""
    ops = {name: op for op, name in enumerate(graph.ops.name)}
    makers = dict(zip(graph.tensors.name, graph.tensors.producer.tolist(), strict=True))
    names = {name: op for name, op in makers.items() if op >= 0} | ops
    owners: Owners = []
    for row in rows:
        matches = [names[name] for name in row.ops if name in names]
        if not matches:
            matches = [names[name] for name in (row.name, *row.aliases) if name in names][:1]
        owners.append(list(dict.fromkeys(matches)))
    return owners


def match_by_kind(rows: Sequence[TimingRow], owners: Owners, graph: Graph, idle: Bools) -> None:
    """Pair what is left over of one kind, rows and ops in their orders, where there are as many of both."""
    matched = {op for ops in owners for op in ops}
    ops_left: dict[str, list[int]] = defaultdict(list)
    for op, kind in enumerate(graph.ops.kind):
        if op not in matched and not idle[op]:
            ops_left[kind].append(op)
    rows_left: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if not owners[number]:
            kind = max((kind for kind in ops_left if is_of_kind(row.kind, kind)), key=len, default="")
            rows_left[kind].append(number)
    for kind, numbers in rows_left.items():
        if kind and len(numbers) == len(ops_left[kind]):
            for number, op in zip(numbers, ops_left[kind], strict=True):
                owners[number].append(op)


def absorb_unmatched(rows: Sequence[TimingRow], owners: Owners, graph: Graph, idle: Bools) -> set[int]:
    """Give ops without a row to the kernel that they ran inside of; returns these ops.

    A kernel called after its last op (the activation behind a convolution) takes the ops from its main op, which its
    kind names, down to that one. All others ran inside the kernel before them, or else after them.
    """
    row_of = np.full(graph.n_ops, -1, np.int64)
    for number, ops in enumerate(owners):
        row_of[ops] = np.where(row_of[ops] < 0, number, row_of[ops])
    for number, row in enumerate(rows):
        if owners[number] and not any(is_of_kind(row.kind, graph.ops.kind[op]) for op in owners[number]):
            for op in _find_path_to(row.kind, owners[number][0], graph, row_of):
                row_of[op] = number
        if owners[number] and row.kind.startswith(_WITH_SUM):
            for maker in _find_makers(graph, owners[number][0]):
                if row_of[maker] < 0 and graph.ops.kind[maker] == "Add":
                    row_of[maker] = number
    _propagate_rows(graph, row_of, idle)
    inside = set(np.flatnonzero(row_of >= 0).tolist()) - {op for ops in owners for op in ops}
    for op in sorted(inside):
        owners[int(row_of[op])].append(op)
    return inside


def is_of_kind(kernel: str, kind: str) -> bool:
    """Whether a kernel's type names a kind of op: FusedConv and Convolution are Conv; Gemm also computes MatMul."""
    if kernel == kind:
        return True
    plain = kind.rpartition("::")[2].lower()
    if plain == "matmul" and ("gemm" in kernel.lower() or kernel == "FullyConnected"):
        return True
    return len(plain) > 3 and plain in kernel.lower()


def _find_path_to(kernel: str, op: int, graph: Graph, row_of: Longs) -> list[int]:
    """Ops without a row from the nearest one of the kernel's kind down to `op`, which is left out; empty if none."""
    paths = [[op]]
    for _ in range(MOST_STEPS):
        longer = []
        for path in paths:
            for maker in _find_makers(graph, path[-1]):
                if row_of[maker] < 0:
                    if is_of_kind(kernel, graph.ops.kind[maker]):
                        return [*path[1:], maker]
                    longer.append([*path, maker])
        paths = longer[:MOST_STEPS]
    return []


def _find_makers(graph: Graph, op: int) -> list[int]:
    """The ops that make what `op` reads, by argument position."""
    return [maker for maker in graph.tensors.producer[graph.inputs_of(op)].tolist() if maker >= 0]


def _propagate_rows(graph: Graph, row_of: Longs, idle: Bools) -> None:
    """Rows down from argument to result, through views too; then up, for what stands before the first kernel.

    Not into products, convolutions, attention and recurrent layers, which no kernel runs beside its own work, and not
    from one phase, or from forward to backward, into the other.
    """
    heavy = np.array([kind in _HEAVY for kind in graph.ops.kind], np.bool_)
    part = (2 * graph.ops.phase.astype(np.int64) + graph.ops.backward).tolist()
    passed = row_of.copy()
    stays = (heavy & (row_of < 0)).tolist()
    for op in range(graph.n_ops):
        if passed[op] < 0 and not stays[op]:
            near = (maker for maker in _find_makers(graph, op) if part[maker] == part[op])
            passed[op] = next((passed[maker] for maker in near if passed[maker] >= 0), -1)
    for op in reversed(range(graph.n_ops)):
        if passed[op] < 0 and not stays[op]:
            users = (int(user) for tensor in graph.outputs_of(op) for user in graph.consumers_of(tensor))
            near = (user for user in users if part[user] == part[op])
            passed[op] = next((passed[user] for user in near if passed[user] >= 0), -1)
    row_of[:] = np.where((row_of < 0) & ~idle, passed, row_of)

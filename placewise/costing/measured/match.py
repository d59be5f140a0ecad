"""Match rows of a measurement to ops: by name, then by kind, then by fusion with neighbours."""

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
"""Kernels with this prefix begin with an addition: BiasGelu, SkipLayerNormalization."""
MAX_STEPS = 8
"""Distance to search backwards for the main op of a fused kernel."""

Owners = list[list[int]]
"""The ops of every row."""


def match_by_name(rows: Sequence[TimingRow], graph: Graph) -> Owners:
    """Ops with the row's name, or that produce a tensor of that name."""
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
    """Pair the remaining rows and ops of one kind, in order, if their numbers are equal."""
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
    """Assign ops without a row to the kernel that they ran in; return these ops.

    A kernel named after its last op (the activation after a convolution) takes the ops from its main op, which its kind
    names, up to that one. Other ops ran inside the kernel before them, or else after them.
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
    """Ops without a row from the nearest one of the kernel's kind to `op`, exclusive; empty if there is none."""
    paths = [[op]]
    for _ in range(MAX_STEPS):
        longer = []
        for path in paths:
            for maker in _find_makers(graph, path[-1]):
                if row_of[maker] < 0:
                    if is_of_kind(kernel, graph.ops.kind[maker]):
                        return [*path[1:], maker]
                    longer.append([*path, maker])
        paths = longer[:MAX_STEPS]
    return []


def _find_makers(graph: Graph, op: int) -> list[int]:
    """The ops that produce the arguments of `op`, by position."""
    return [maker for maker in graph.tensors.producer[graph.inputs_of(op)].tolist() if maker >= 0]


def _propagate_rows(graph: Graph, row_of: Longs, idle: Bools) -> None:
    """Propagate rows from arguments to results, through views too; then backwards, for ops before the first kernel.

    Rows enter no products, convolutions, attention or recurrent layers, which always have their own kernels, and do not
    cross between phases, or between forward and backward.
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

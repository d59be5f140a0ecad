"""Inspects a model: its ops, tensors, FLOPs and weights, by kind and by scope."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.units import format_bytes, format_count, format_flops
from placewise.core.build import Devices, build_read
from placewise.core.open_model import Model
from placewise.core.options import ProblemOptions
from placewise.costing.work import work_of
from placewise.errors import InputError
from placewise.model.columns import Floats
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.readers.base import ImportedModel
from placewise.reporting.console import rows_table
from placewise.reporting.notebook import render_html
from placewise.reporting.plain import plain, shown_text
from placewise.reporting.slowest import SlowModule, SlowOp, slowest_modules, slowest_ops, slowest_view

MAX_SCOPES = 30
"""How many scopes are shown."""


@dataclass(frozen=True, slots=True)
class InspectionRow:
    """One kind or one scope: its ops, FLOPs, bytes of weights, and bytes of the tensors that it produces."""

    name: str
    ops: int
    flops: float
    weight_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase: how often it runs per sample, and the ops and FLOPs of one run."""

    name: str
    repeats: int
    ops: int
    flops: float


@dataclass(frozen=True, slots=True)
class Inspection:
    """Totals and tables. FLOPs are per sample, repeats of phases included; a multiply-add counts as 2.

    They are None if the file has times instead of shapes. `known_ops_share` is the share of ops whose FLOPs are known.
    `weights` counts storages, so tied weights count once; `parameters` are their elements, buffers included.
    `slowest_ops` and `slowest_modules` are the ten that take longest, if devices are given.
    """

    ops: int
    backward_ops: int
    tensors: int
    edges: int
    groups: int
    weights: int
    parameters: int
    weight_bytes: int
    state_bytes: int
    activation_bytes: int
    flops: float | None
    known_ops_share: float | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    by_kind: tuple[InspectionRow, ...]
    by_scope: tuple[InspectionRow, ...]
    warnings: tuple[str, ...]
    graph_hash: str
    phases: tuple[PhaseRow, ...] = ()
    slowest_ops: tuple[SlowOp, ...] = ()
    slowest_modules: tuple[SlowModule, ...] = ()

    def summary(self) -> str:
        """What `placewise inspect` prints, as text."""
        return plain(inspection_view(self))

    def _repr_html_(self) -> str:
        return render_html(inspection_view(self))

    def __repr__(self) -> str:
        return f"Inspection({self.ops} ops, {self.weights} weights, {format_bytes(self.weight_bytes)})"


def inspect(imported: ImportedModel, *, depth: int = 2, problem: Problem | None = None) -> Inspection:
    """Inspect a model; scopes are cut to `depth` parts, and `problem` prices its ops. Raises InputError."""
    if isinstance(depth, bool) or not isinstance(depth, Integral) or depth < 0:
        raise InputError(f"the depth is {reprlib.repr(depth)}", remedy="give a whole number, 0 or more")
    graph = imported.graph
    work = work_of(graph) if imported.problem is None and imported.op_seconds is None else None
    flops = np.zeros(graph.n_ops) if work is None else work.flops * graph.op_repeats
    _, first = np.unique(graph.weights.storage, return_index=True)
    shapes = graph.weights.shape.take(first)
    scopes = [".".join(scope.split(".")[:depth]) for scope in graph.ops.scope.values]
    return Inspection(
        ops=graph.n_ops,
        backward_ops=int(graph.ops.backward.sum()),
        tensors=graph.n_tensors,
        edges=graph.n_edges,
        groups=len(np.unique(graph.ops.group[graph.ops.group >= 0])),
        weights=len(first),
        parameters=sum(int(np.prod(shape)) for shape in shapes) if len(first) else 0,
        weight_bytes=_sum_bytes(graph.weights.bytes[first]),
        state_bytes=_sum_bytes(graph.ops.state_bytes),
        activation_bytes=_sum_bytes(graph.tensors.bytes),
        flops=None if work is None else float(flops.sum()),
        known_ops_share=None if work is None else float(work.known.mean()) if len(work.known) else 1.0,
        inputs=_describe_tensors(graph, np.flatnonzero(graph.tensors.producer < 0)),
        outputs=_describe_tensors(graph, np.flatnonzero(graph.tensors.output)),
        by_kind=_total_by_label(graph, flops, list(graph.ops.kind.values), graph.ops.kind.codes),
        by_scope=_total_by_label(graph, flops, scopes, graph.ops.scope.codes),
        warnings=(*imported.warnings, *(work.warnings if work else ())),
        graph_hash=graph.digest(),
        phases=tuple(_list_phases(graph, flops)),
        slowest_ops=() if problem is None else slowest_ops(problem),
        slowest_modules=() if problem is None else slowest_modules(problem),
    )


def inspection_view(found: Inspection) -> RenderableType:
    """Totals, ops by kind and by scope, and what takes longest, as tables."""
    flops = "unknown: the file gives times" if found.flops is None else format_flops(found.flops)
    backward = f" ({found.backward_ops} backward)" if found.backward_ops else ""
    parameters = f"{format_count(found.parameters)} parameters in {found.weights} weights"
    lines = [
        ("ops", f"{found.ops}{backward}, {found.tensors} tensors, {found.edges} edges"),
        ("work", flops),
        *(
            ("phase", f"{phase.name}, {phase.ops} ops, {format_flops(phase.flops)}, ×{phase.repeats}")
            for phase in found.phases
        ),
        ("weights", f"{format_bytes(found.weight_bytes)}, {parameters}"),
        ("state", format_bytes(found.state_bytes)),
        ("activations", f"{format_bytes(found.activation_bytes)} in all tensors together"),
        ("groups", str(found.groups)),
        *(("input", text) for text in found.inputs),
        *(("output", text) for text in found.outputs),
    ]
    parts: list[RenderableType] = [rows_table(("", ""), lines), Text(), _rows_view("kind", found.by_kind), Text()]
    parts += [_rows_view("scope", found.by_scope[:MAX_SCOPES])]
    if len(found.by_scope) > MAX_SCOPES:
        parts += [shown_text(f"… and {len(found.by_scope) - MAX_SCOPES} more scopes: --json shows all")]
    if found.slowest_ops:
        parts += [Text(), slowest_view(found.slowest_ops, found.slowest_modules)]
    return Group(*parts)


def _rows_view(what: str, rows: Iterable[InspectionRow]) -> RenderableType:
    cells = [
        (r.name, str(r.ops), format_count(r.flops), format_bytes(r.weight_bytes), format_bytes(r.output_bytes))
        for r in rows
    ]
    return rows_table((what, "ops ", "FLOPs ", "weights ", "outputs "), cells)


def price_model(
    imported: ImportedModel, model: Model, devices: Devices | None, options: ProblemOptions
) -> Problem | None:
    """The problem that prices a model on devices; None without any. Raises InputError for costs without devices."""
    if devices is None and imported.problem is None:
        if options.costs or options.supported or options.unsupported:
            raise InputError(
                "costs, supported and unsupported kinds are those of devices", remedy="give the devices too"
            )
        return None
    return build_read(imported, model, devices, options)


def _list_phases(graph: Graph, flops: Floats) -> Iterable[PhaseRow]:
    for number, phase in enumerate(graph.phases):
        ops = graph.ops.phase == number
        yield PhaseRow(phase.name, phase.repeats, int(ops.sum()), float(flops[ops].sum()) / phase.repeats)


def _sum_bytes(sizes: np.ndarray) -> int:
    """The sum of the known sizes, added as floats so that nothing overflows."""
    return int(np.maximum(sizes, 0).sum(dtype=np.float64))


def _describe_tensors(graph: Graph, tensors: Iterable[int]) -> tuple[str, ...]:
    lines = []
    for tensor in map(int, tensors):
        shape = "×".join("?" if dim < 0 else str(dim) for dim in graph.tensors.shape[tensor]) or "scalar"
        lines.append(f"{graph.tensors.name[tensor]}: {shape} {graph.tensors.dtype_name(tensor)}")
    return tuple(lines)


def _total_by_label(graph: Graph, flops: Floats, labels: list[str], codes: np.ndarray) -> tuple[InspectionRow, ...]:
    """Totals per label, most FLOPs first; a weight counts for the first op that uses it."""
    names = sorted(set(labels))
    index = {name: place for place, name in enumerate(names)}
    of_code = np.array([index[label] for label in labels], np.int64)
    row = of_code[codes] if len(labels) else np.zeros(0, np.int64)
    count = len(names)
    weight_bytes, output_bytes = np.zeros(count), np.zeros(count)
    storages, first = np.unique(graph.weights.storage[graph.weight_edges.value], return_index=True)
    if len(storages):
        users = graph.weight_edges.consumer[first]
        size = np.maximum(graph.weights.bytes[graph.weight_edges.value[first]], 0)
        weight_bytes += np.bincount(row[users], weights=size, minlength=count)
    produced = graph.tensors.producer >= 0
    makers = row[graph.tensors.producer[produced]]
    output_bytes += np.bincount(makers, weights=np.maximum(graph.tensors.bytes[produced], 0), minlength=count)
    ops, work = np.bincount(row, minlength=count), np.bincount(row, weights=flops, minlength=count)
    order = sorted(range(count), key=lambda r: (-work[r], -ops[r], names[r]))
    return tuple(
        InspectionRow(names[r] or "(none)", int(ops[r]), float(work[r]), int(weight_bytes[r]), int(output_bytes[r]))
        for r in order
    )

"""load_measured: the steps from a file of times to a cost table."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from placewise._util.units import format_seconds
from placewise.costing.measured.attribute import Attribution, assign_by_name, distribute_times
from placewise.costing.measured.content import read_head
from placewise.costing.measured.devices import find_only_kind, have_equal_speeds, match_devices
from placewise.costing.measured.match import Owners, absorb_unmatched, match_by_kind, match_by_name
from placewise.costing.measured.match_order import Candidates, is_run, match_in_order, operator_of
from placewise.costing.measured.onnxruntime import read_onnxruntime
from placewise.costing.measured.openvino import read_counters_csv, read_counters_json, read_execution_graph
from placewise.costing.measured.pairs import read_csv, read_json
from placewise.costing.measured.table import Timings, clipped
from placewise.costing.measured.torch import read_torch
from placewise.errors import CostError, InputError
from placewise.model.cluster import Cluster
from placewise.model.columns import Bools
from placewise.model.costs import CostTable
from placewise.model.graph import Graph

MEASURED = "measured"
_PLAIN_JSON = re.compile(rb'(null|true|false|-?\d[\d.eE+-]*|"[^"]*")\s*')
MIN_TIME, MIN_OPS = 0.5, 0.25
"""Fractions of a profile's time and of the ops that compute; a profile that matches less is of another model."""
FEW_TIME, FEW_OPS = 0.6, 0.5
"""A profile that matches less is reported as doubtful."""


def load_measured(path: str, graph: Graph, cluster: Cluster, base: CostTable) -> tuple[CostTable, tuple[str, ...]]:
    """Override `base` with the times of a file; return the table and notes on the coverage.

    `path` may begin with a device, ``cpu=profile.json``: all its times then belong to that device (a name, a kind, or
    ``*``). Formats: op, device and seconds in CSV or JSON, ONNX Runtime's profile, OpenVINO's counters and execution
    graph, torch.profiler's trace; all may be gzipped. Raises CostError, naming the file.
    """
    device, file = split_device(path)
    try:
        base.validate(graph, cluster)
        timings = read_timings(Path(file), graph)
        table, notes = apply_measured(base, graph, cluster, timings, device=device)
    except InputError as error:
        raise error.at(file) from None
    return table, tuple(f"{file}: {note}" for note in (*timings.notes, *notes))


def read_timings(path: Path, graph: Graph) -> Timings:
    """Read the rows of a file of any supported format. Raises CostError."""
    start = read_head(path)
    if not start:
        raise CostError("the file is empty", remedy="record it again")
    if start[:1] == b"<":
        return read_execution_graph(path)
    if start.startswith(b"layerName;"):
        return read_counters_csv(path)
    if start[:1] not in (b"{", b"[") and not _PLAIN_JSON.fullmatch(start):
        return read_csv(path)
    if b'"op_name"' in start or (b'"cat"' in start and start[:1] == b"["):
        return read_onnxruntime(path)
    if b'"schemaVersion"' in start or b'"traceEvents"' in start:
        known = Candidates(graph)
        return read_torch(path, lambda name: known.has(operator_of(name)), lambda names: is_run(names, known))
    if b'"report_type"' in start or b'"detailed_performance"' in start:
        return read_counters_json(path)
    return read_json(path)


def apply_measured(
    base: CostTable, graph: Graph, cluster: Cluster, timings: Timings, *, device: str = ""
) -> tuple[CostTable, tuple[str, ...]]:
    """Override `base` with `timings`; `device` replaces the devices of the rows. Raises CostError."""
    seconds, source = base.op_seconds.copy(), base.op_source.copy()
    sources = base.sources if MEASURED in base.sources else (*base.sources, MEASURED)
    repeats = np.ones(graph.n_ops) if timings.by_op else graph.op_repeats.astype(np.float64)
    groups = _group_by_device(timings, device)
    columns = {word: _require_devices(word, cluster, skip=timings.by_op and not device) for word in groups}
    runs = np.asarray((base.op_seconds > 0).any(axis=1))  # the others are views and constants, which run in no kernel
    owners, inside = ([], set()) if timings.by_op else match_rows(timings, graph, ~runs)
    notes: list[str] = []
    shares: list[Attribution] = []
    for word, numbers in groups.items():
        if not columns[word]:
            continue
        rows = [timings.rows[number] for number in numbers]
        if timings.by_op:
            share = assign_by_name(rows, graph)
        else:
            share = distribute_times(rows, [owners[number] for number in numbers], base.op_seconds[:, columns[word][0]])
        shares.append(share)
        for column in columns[word]:
            seconds[share.measured, column] = (share.seconds * repeats)[share.measured]
            source[share.measured, column] = sources.index(MEASURED)
        notes.append(_describe_match(timings, share, inside, runs, [cluster.names[column] for column in columns[word]]))
        if not timings.by_op and not have_equal_speeds(columns[word], cluster):
            notes.append(f"the devices {clipped(word)!r} differ, but all receive these times: name one, NAME=FILE")
    if not notes:
        remedy = f"the cluster has {', '.join(cluster.names)}; name one of them, NAME=FILE"
        raise CostError("has no times for any device of this cluster", remedy=remedy)
    if not timings.by_op:
        notes += _check_match(timings, shares, graph, runs)
    others = sum(len(numbers) for word, numbers in groups.items() if not columns[word])
    if others:
        notes.append(f"{others} of its {len(timings.rows)} times belong to devices that the cluster does not have")
    spread = max(base.spread, timings.spread)
    table = CostTable(seconds, base.transfer_seconds, source, sources, base.transfer_source, spread, base.runs)
    table.validate(graph, cluster)
    return table, tuple(notes)


def split_device(path: str) -> tuple[str, str]:
    """Split ``device=file``. Raises CostError if the file is missing."""
    device, sign, file = path.partition("=")
    if not device or not sign or os.path.exists(path):
        return "", path
    if not file:
        raise CostError("the file is missing after '='", where=path, remedy=f"write {device}=FILE")
    return device, file


def _group_by_device(timings: Timings, device: str) -> dict[str, list[int]]:
    """Row numbers by device."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(timings.rows):
        groups[device or row.device].append(number)
    return groups


def _require_devices(word: str, cluster: Cluster, *, skip: bool) -> tuple[int, ...]:
    """The devices that `word` means; may be empty only if such rows can be skipped. Raises CostError."""
    columns = match_devices(word or find_only_kind(cluster), cluster)
    if not columns and not (skip and word):
        problem = (
            f"times belong to {clipped(word)!r}, which is not a device of this cluster"
            if word
            else "it names no device"
        )
        raise CostError(problem, remedy=f"name one: {cluster.names[0]}=FILE, or another of {', '.join(cluster.names)}")
    return columns


def match_rows(timings: Timings, graph: Graph, idle: Bools) -> tuple[Owners, set[int]]:
    """Match rows to ops; return the ops of every row, and the ops without a row of their own.

    `idle` ops [n_ops] run in no kernel. Raises CostError if no row matches.
    """
    rows = timings.rows
    owners = match_in_order(rows, graph) if timings.in_order else match_by_name(rows, graph)
    if not timings.in_order:
        match_by_kind(rows, owners, graph, idle)
    if not any(owners):
        raise CostError("none of its times belongs to an op of this model", remedy="measure this model")
    return owners, absorb_unmatched(rows, owners, graph, idle)


def _check_match(timings: Timings, shares: Sequence[Attribution], graph: Graph, runs: Bools) -> list[str]:
    """Report a profile that fits the model poorly; raise CostError if it hardly fits.

    A profile without backward ops is of inference: only the forward ops need to match.
    """
    matched, total = sum(share.given for share in shares), sum(share.given + share.lost for share in shares)
    measured = np.logical_or.reduce([share.measured for share in shares]) & runs
    computing = runs if (measured & graph.ops.backward).any() else runs & ~graph.ops.backward
    covered, ops = int(measured.sum()), int(computing.sum())
    time_share, op_share = _format_percent(matched, total), _format_percent(covered, ops)
    fits = f"{time_share} of its time, and {op_share} of the ops that compute, match"
    if matched < MIN_TIME * total or covered < MIN_OPS * ops:
        steps = ", with profiler.step() after every step" if timings.in_order else ""
        raise CostError(f"this profile is of another model: {fits}", remedy=f"measure this one{steps}")
    if matched < FEW_TIME * total or covered < FEW_OPS * ops:
        return [f"is this a profile of this model? Only {fits}: costs may be wrong"]
    return []


def _describe_match(timings: Timings, share: Attribution, inside: set[int], runs: Bools, devices: list[str]) -> str:
    """Describe how the file's time was attributed."""
    shown = devices if len(devices) <= 4 else [*devices[:3], f"{len(devices) - 3} more"]
    if timings.by_op:
        return f"{timings.form}, for {int(share.measured.sum())} of {len(runs)} ops on {', '.join(shown)}"
    total = share.given + share.lost
    measured, ops = int((share.measured & runs).sum()), int(runs.sum())
    text = f"{timings.form}, assigned to {', '.join(shown)}: {_format_percent(share.given, total)} of "
    text += f"{format_seconds(total)} to {_format_percent(measured, ops)} of the ops that compute"
    text += ", matched by order" if timings.in_order else ""
    absorbed = int(share.measured[sorted(inside)].sum())
    text += f", {absorbed} of which ran inside other kernels" if absorbed else ""
    if share.unmatched:
        worst = max(share.unmatched, key=lambda row: row.seconds)
        count = len(share.unmatched)
        rows = f"{count} row belongs" if count == 1 else f"{count} rows belong"
        text += f"; {rows} to no op ({format_seconds(share.lost)}, most in {clipped(worst.name)!r})"
    return text


def _format_percent(part: float, total: float) -> str:
    return f"{100 * part / total:.3g} %" if total else "100 %"

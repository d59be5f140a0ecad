"""The ops and modules that take longest, on every device or where a placement has them, as data and as tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from placewise._util.units import format_bytes, format_seconds
from placewise.coarsen.module_parts import count_ops, parts_of
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.reporting.console import rows_table

TOP = 10
"""How many are listed."""
MAX_COLUMNS = 4
"""How many kinds of device get a column of times."""
NO_MODULE = "(no module)"
_NUMBER = re.compile(r"(?<![^./])\d+(?=[./]|$)")


@dataclass(frozen=True, slots=True)
class SlowOp:
    """One op: its seconds per sample and their share of those of all ops.

    `seconds` are on `device`, where a placement has it; without one `device` is the fastest. `by_device` has the
    seconds on each device, None where it cannot run.
    """

    op: str
    kind: str
    module: str
    device: str
    seconds: float
    share: float
    by_device: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class SlowModule:
    """The ops of all `modules` whose names differ in their numbers only: ``model.layers.*.mlp.down_proj``.

    `seconds` per sample are on the devices where a placement has the ops, else on the fastest for each; `share` is
    that of all ops. `by_device` has the seconds that the placement spends on each device; without one, those of all
    these ops on it, None where it cannot run them all.
    """

    module: str
    modules: int
    ops: int
    seconds: float
    share: float
    by_device: dict[str, float | None]


def slowest_ops(problem: Problem, placement: Placement | None = None, count: int = TOP) -> tuple[SlowOp, ...]:
    """The ops that take longest, the slowest first; equal ones in the order of the graph."""
    ops, names, table = problem.graph.ops, problem.cluster.names, problem.costs.op_seconds
    device = _best_device(problem) if placement is None else placement.device
    seconds = problem.costs.seconds_on(device)
    whole = float(seconds.sum())
    return tuple(
        SlowOp(
            op=ops.name[op],
            kind=ops.kind[op],
            module=ops.scope[op],
            device=names[device[op]] if device[op] >= 0 else "",
            seconds=float(seconds[op]),
            share=float(seconds[op]) / whole if whole else 0.0,
            by_device=_by_name(names, table[op]),
        )
        for op in np.argsort(-seconds, kind="stable")[:count].tolist()
    )


def slowest_modules(problem: Problem, placement: Placement | None = None, count: int = TOP) -> tuple[SlowModule, ...]:
    """The modules that take longest, those that differ in numbers only as one; the slowest first."""
    scope, names = problem.graph.ops.scope, problem.cluster.names
    known: dict[str, int] = {}
    code = np.array([known.setdefault(_NUMBER.sub("*", text), len(known)) for text in scope.values], np.int64)
    used = np.unique(scope.codes)
    modules = np.bincount(code[used], minlength=len(known)) if len(used) else np.zeros(len(known), np.int64)
    module = code[scope.codes] if len(used) else np.zeros(0, np.int64)
    device = _best_device(problem) if placement is None else placement.device
    seconds = problem.costs.seconds_on(device)
    total, ops = np.bincount(module, seconds, len(known)), np.bincount(module, minlength=len(known))
    spent = _spend(problem, module, device, len(known), planned=placement is not None)
    whole, words = float(seconds.sum()), list(known)
    order = [row for row in np.lexsort((-ops, -total)).tolist() if ops[row]]
    return tuple(
        SlowModule(
            module=words[row] or NO_MODULE,
            modules=int(modules[row]) if words[row] else 0,
            ops=int(ops[row]),
            seconds=float(total[row]),
            share=float(total[row]) / whole if whole else 0.0,
            by_device=_by_name(names, spent[row]),
        )
        for row in order[:count]
    )


def _best_device(problem: Problem) -> Ints:
    """The fastest device of each op [n_ops]; −1 for an op that none can run."""
    table = problem.costs.op_seconds
    best = table.argmin(axis=1).astype(np.int32) if table.size else np.zeros(len(table), np.int32)
    return np.where(np.isfinite(table.min(axis=1, initial=np.inf)), best, -1).astype(np.int32)


def _spend(problem: Problem, module: np.ndarray, device: Ints, count: int, *, planned: bool) -> Floats:
    """Seconds [count, n_devices] of each module on each device: as `planned` by `device`, or of all of its ops."""
    spent = np.zeros((count, problem.n_devices))
    for number in range(problem.n_devices):
        on = (device == number) if planned else np.ones(len(module), np.bool_)
        seconds = problem.costs.seconds_on(device) if planned else problem.costs.op_seconds[:, number]
        spent[:, number] = np.bincount(module[on], seconds[on], count)
    return spent


def _by_name(names: Sequence[str], seconds: Floats) -> dict[str, float | None]:
    return {
        name: float(value) if np.isfinite(value) else None for name, value in zip(names, seconds.tolist(), strict=True)
    }


def slowest_view(ops: Sequence[SlowOp], modules: Sequence[SlowModule]) -> RenderableType:
    """What `inspect` prints for devices: the slowest ops and modules, with a column per kind of device."""
    kinds = _group_devices([*(row.by_device for row in ops), *(row.by_device for row in modules)])
    heads = tuple(f"{heading} " for heading, _ in kinds)
    rows = [(row.op, row.kind, row.module, f"{row.share:.1%}", *_times(row.by_device, kinds)) for row in ops]
    more = [(row.module, _times_many(row), f"{row.share:.1%}", *_times(row.by_device, kinds)) for row in modules]
    return Group(
        rows_table(("slowest ops", "kind", "module", "share ", *heads), rows),
        Text(),
        rows_table(("slowest modules", "", "share ", *heads), more),
    )


def details_view(problem: Problem, placement: Placement) -> RenderableType:
    """What `place --details` adds: the parts of every device, and the slowest ops and modules where they are."""
    ops = [
        (row.op, row.kind, row.module, row.device, format_seconds(row.seconds), f"{row.share:.1%}")
        for row in slowest_ops(problem, placement)
    ]
    modules = [
        (row.module, _times_many(row), _shares(row), format_seconds(row.seconds), f"{row.share:.1%}")
        for row in slowest_modules(problem, placement)
    ]
    return Group(
        _parts_table(problem, placement),
        Text(),
        rows_table(("slowest ops", "kind", "module", "on", "seconds ", "share "), ops),
        Text(),
        rows_table(("slowest modules", "", "on", "seconds ", "share "), modules),
    )


def _parts_table(problem: Problem, placement: Placement) -> RenderableType:
    """The largest parts of each device, and one line for its others."""
    parts, rows = parts_of(problem, placement), []
    for device, name in enumerate(problem.cluster.names):
        device_parts = parts.on(device)
        for number, part in enumerate(device_parts[:TOP]):
            figures = f"{part.ops:,}", format_bytes(part.bytes), format_seconds(part.seconds)
            rows.append(("" if number else name, part.short, *figures))
        if left := device_parts[TOP:]:
            count, ops = sum(part.parts for part in left), sum(part.ops for part in left)
            rows.append(("", f"{count:,} smaller parts", f"{ops:,}", "", format_seconds(sum(p.seconds for p in left))))
    return rows_table(("device", "holds", "ops ", "weights and state ", "seconds "), rows)


def _times_many(row: SlowModule) -> str:
    times = f"×{row.modules}, " if row.modules > 1 else ""
    return f"{times}{count_ops(row.ops)}"


def _shares(row: SlowModule) -> str:
    """The devices that a module runs on, those with most of its seconds first."""
    spent = sorted(
        ((-(seconds or 0.0), name) for name, seconds in row.by_device.items() if seconds), key=lambda s: s[0]
    )
    if len(spent) < 2:
        return "".join(name for _, name in spent)
    names = [f"{name} {-seconds / row.seconds:.0%}" for seconds, name in spent[:MAX_COLUMNS]]
    return ", ".join([*names, f"{len(spent) - MAX_COLUMNS} more"] if len(spent) > MAX_COLUMNS else names)


def _group_devices(times: Sequence[Mapping[str, float | None]]) -> list[tuple[str, str]]:
    """(heading, one device) for devices with the same times, at most `MAX_COLUMNS`."""
    alike: dict[tuple[float | None, ...], list[str]] = {}
    for name in times[0] if times else ():
        alike.setdefault(tuple(row[name] for row in times), []).append(name)
    groups = list(alike.values())[:MAX_COLUMNS]
    return [(names[0] if len(names) == 1 else f"{names[0]} – {names[-1]}", names[0]) for names in groups]


def _times(times: Mapping[str, float | None], kinds: Sequence[tuple[str, str]]) -> list[str]:
    seconds = [times[name] for _, name in kinds]
    return ["cannot" if value is None else format_seconds(value) for value in seconds]

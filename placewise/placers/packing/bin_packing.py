"""Bin packing as a CP-SAT model: equal blocks are counted and, of very many, small blocks are fractional items.

The model with fractional items is a relaxation: small blocks may be split at any byte, and storages that they share
with others are not counted. So bytes that are missing in it prove infeasibility. If none are missing, its solution says
where the large blocks go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.placers.shared.repair import PackingInstance

MAX_VARIABLES = 40_000


@dataclass(frozen=True, slots=True, eq=False)
class BlockKinds:
    """Kinds of blocks that differ in name only, largest first: `of` [n_blocks], `example` and `count` [n_kinds].

    Kinds from `n_counted` on are fractional items: too many and too small to be counted.
    """

    of: Longs
    example: Longs
    count: Longs
    n_counted: int


def group_blocks(instance: PackingInstance) -> BlockKinds:
    """Group blocks of equal bytes that may run on the same devices and share no storage with others."""
    n, count = instance.runs.shape
    alone = np.diff(instance.offsets) == 0
    bits = np.packbits(instance.runs, axis=1).astype(np.int64)
    keys = np.column_stack((-instance.own, np.where(alone, -1, np.arange(n)), bits))
    _, example, of, number = np.unique(keys, axis=0, return_index=True, return_inverse=True, return_counts=True)
    most = max(MAX_VARIABLES // max(count, 1), 1)
    return BlockKinds(of.reshape(-1), example, number, min(most, len(example)))


@dataclass(slots=True)
class PackingProgram:
    """The model, the number of blocks of each kind per device, and the bytes that each limited device lacks."""

    model: cp_model.CpModel
    chosen: dict[tuple[int, int], Any]
    missing: dict[int, Any]


def build_program(instance: PackingInstance, kinds: BlockKinds, room: Floats, device_class: Ints) -> PackingProgram:
    """Minimize the missing bytes; of the devices of one class [n_devices] an earlier one holds at least as much."""
    model = cp_model.CpModel()
    chosen: dict[tuple[int, int], Any] = {}
    terms: dict[int, list[Any]] = {d: [] for d in range(len(room))}
    users: dict[tuple[int, int], list[Any]] = {}
    for kind in range(kinds.n_counted):
        block, count = int(kinds.example[kind]), int(kinds.count[kind])
        for d in np.flatnonzero(instance.runs[block]).tolist():
            chosen[kind, d] = model.new_int_var(0, count, "")
            terms[d].append(int(instance.own[block]) * chosen[kind, d])
            for storage in instance.storage[instance.offsets[block] : instance.offsets[block + 1]].tolist():
                users.setdefault((storage, d), []).append(chosen[kind, d])
        model.add(sum(chosen[kind, d] for d in np.flatnonzero(instance.runs[block]).tolist()) == count)
    for (storage, d), variables in users.items():
        present = variables[0] if len(variables) == 1 else model.new_bool_var("")
        if len(variables) > 1:
            model.add_max_equality(present, variables)
        terms[d].append(int(instance.stored[storage]) * present)
    for runs, total in _list_fractional_items(instance, kinds):
        parts = {d: model.new_int_var(0, total, "") for d in np.flatnonzero(runs).tolist()}
        model.add(sum(parts.values()) == total)
        for d, part in parts.items():
            terms[d].append(part)
    everything = int(instance.own.sum() + instance.stored[np.unique(instance.storage)].sum() * len(room))
    missing, last = {}, dict[int, int]()
    for d in np.flatnonzero(np.isfinite(room)).tolist():
        missing[d] = model.new_int_var(0, everything, "")
        load = sum(terms[d])
        model.add(load <= min(int(room[d]), everything) + missing[d])
        kind = int(device_class[d])
        if kind in last:
            model.add(sum(terms[last[kind]]) >= load)
        last[kind] = d
    model.minimize(sum(missing.values()))
    return PackingProgram(model, chosen, missing)


def _list_fractional_items(instance: PackingInstance, kinds: BlockKinds) -> list[tuple[Bools, int]]:
    """Where fractional items may be [n_devices], and their total bytes."""
    blocks = np.flatnonzero(kinds.of >= kinds.n_counted)
    if not len(blocks):
        return []
    rows, which = np.unique(instance.runs[blocks], axis=0, return_inverse=True)
    total = np.zeros(len(rows), np.int64)
    np.add.at(total, which.reshape(-1), instance.own[blocks])
    return [(row, int(amount)) for row, amount in zip(rows, total.tolist(), strict=True)]


def assign_blocks(kinds: BlockKinds, chosen: dict[tuple[int, int], int], n_blocks: int) -> Ints:
    """The device [n_blocks] of every block of a counted kind; −1 for fractional items."""
    assignment = np.full(n_blocks, -1, np.int32)
    order = np.argsort(kinds.of, kind="stable")
    starts = np.concatenate(([0], np.cumsum(kinds.count)))
    taken = starts.copy()
    for (kind, d), count in chosen.items():
        assignment[order[taken[kind] : taken[kind] + count]] = d
        taken[kind] += count
    return assignment

"""Blocks moved between devices until their bytes fit: eviction, then a local search over shifts and exchanges."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placewise import _native
from placewise.model.columns import Bools, Floats, Ints, Longs

WORK = 40_000_000
"""Blocks that the local search may look at: some tenths of a second."""
_UNLIMITED = 1 << 60


class PackingInstance(NamedTuple):
    """What blocks weigh and where they may be, as kernels read it; bytes are whole.

    A storage that several blocks use is held once per device.
    """

    own: Longs  # [n_blocks] state, and weights that no other block uses
    offsets: Longs  # [n_blocks + 1] into `storage`
    storage: Ints  # shared storages of each block
    stored: Longs  # [n_storages] bytes
    runs: Bools  # [n_blocks, n_devices]
    damage: Floats  # [n_blocks, n_devices] seconds of each block
    near: Longs  # [n_blocks + 1] into `other`
    other: Ints  # blocks that exchange a tensor with each block
    pull: Floats  # seconds of that tensor


def settle(cargo: PackingInstance, home: Ints, room: Floats, *, seed: int = 0, work: int = WORK) -> bool:
    """Move blocks [n_blocks], in place, until every device's bytes stay within `room` [n_devices]; whether they do.

    Every block may run somewhere.
    """
    return bool(_native.MemoryRepair(*cargo, _limits(room)).run(home, seed, work))


def fill(cargo: PackingInstance, room: Floats, *, even: bool) -> Ints:
    """The device [n_blocks] of every block, largest first: where most room is left if `even`, else the least enough.

    Where none has room, the one that has most. Every block may run somewhere.
    """
    size = cargo.own.copy()
    np.add.at(size, np.repeat(np.arange(len(size)), np.diff(cargo.offsets)), cargo.stored[cargo.storage])
    order = np.lexsort((cargo.runs.sum(axis=1), -size))
    home: Ints = _native.MemoryRepair(*cargo, _limits(room)).fill(order, even)
    return home


def _limits(room: Floats) -> Longs:
    """Bytes [n_devices] as whole numbers; many where there is no limit."""
    return np.where(np.isfinite(room), np.minimum(room, _UNLIMITED), _UNLIMITED).astype(np.int64)

"""Where the processes of one attempt meet, while those of an earlier one have left their keys in the same store.

torchrun restarts all processes with the store of the attempt that failed, and its count of restarts is not the same on
every machine. So the first process offers a name that was never used, and the others join it.

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]

POLL = 0.02
"""Seconds between looks at the store."""


def join_attempt(store: Any, rank: int, world: int, seconds: float) -> Any:
    """The part of a store that belongs to this attempt of so many processes.

    Raises TimeoutError, or an error of PyTorch, if they have not all come within `seconds`.
    """
    own = uuid.uuid4().hex
    if rank == 0:
        store.set("attempt", own)
        members = [store.get(f"{own} process {other}").decode() for other in range(1, world)]
        store.set(f"{own} members", json.dumps(members))
        return PrefixStore(own, store)
    until, joined = time.monotonic() + seconds, ""
    while time.monotonic() < until:
        offered = store.get("attempt").decode()
        if offered != joined:
            store.set(f"{offered} process {rank}", own)
            joined = offered
        if store.check([f"{joined} members"]) and own in json.loads(store.get(f"{joined} members")):
            return PrefixStore(joined, store)
        time.sleep(POLL)
    raise TimeoutError(f"process {rank} waited for {seconds:g} s")

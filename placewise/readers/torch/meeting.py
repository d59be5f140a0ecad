"""Where the processes of one attempt meet, while those of an earlier one have left their keys in the same store.

torchrun restarts all processes with the store of the attempt that failed, and its count of restarts is not the same on
every machine. So the first process offers a name that was never used, and the others join it. Those that wait say for
whom: a process that was killed before it came is like one that begins late.

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from torch.distributed import DistError, DistStoreError, PrefixStore, TCPStore  # type: ignore[attr-defined]

from placewise.readers.torch.rank_watch import say

POLL, PATIENCE = 0.02, 3.0
"""Seconds between looks at the store, and after which a process says for whom it waits."""


class MeetingError(Exception):
    """Why processes did not meet, as a sentence."""


class Meeting(NamedTuple):
    """The part of a store that belongs to this attempt, and the process and the machine of every rank."""

    store: Any
    processes: tuple[tuple[int, str], ...]


def meet(rank: int, names: Sequence[str], seconds: float) -> Meeting:
    """Join the other processes, one for each of `names`, at MASTER_ADDR and MASTER_PORT.

    Raises MeetingError if the port is taken or is none, there is no such rank, or they have not all come within
    `seconds`.
    """
    if not 0 <= rank < len(names):
        raise MeetingError(f"RANK is {rank}, and the ranks are 0 to {len(names) - 1}")
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    missing = [0] if rank else list(range(1, len(names)))

    def absent() -> str:
        return " and ".join(names[other] for other in missing)

    impatient = threading.Timer(PATIENCE, lambda: say(f"{names[rank]} waits at {where} for {absent()}"))
    impatient.daemon = True
    impatient.start()
    until, store = time.monotonic() + seconds, None
    try:
        if rank:
            _await_first(until)
        store = _open_store(rank, len(names), seconds)
        return _join_attempt(store, rank, len(names), until, missing)
    except (ValueError, TypeError):
        raise MeetingError(f"{where} has no port: set MASTER_PORT to a free one") from None
    except (DistError, RuntimeError, TimeoutError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise MeetingError(f"the port of {where} is taken: set MASTER_PORT to a free one") from None
        if store is not None and not isinstance(error, (DistStoreError, TimeoutError)):
            raise MeetingError(f"{names[0]} ended while {names[rank]} waited at {where} for {absent()}") from None
        raise MeetingError(f"{absent()} did not come to {where} within {seconds:g} s") from None
    finally:
        impatient.cancel()


def _await_first(until: float) -> None:
    """Wait until somebody listens where all meet: a store that finds nobody takes a multiple of its own limit.

    Raises TimeoutError, and ValueError where the port is none.
    """
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if not 0 < where[1] < 1 << 16:
        raise ValueError("no port")
    while True:
        try:
            socket.create_connection(where, timeout=max(min(until - time.monotonic(), 1.0), POLL)).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise TimeoutError from None
            time.sleep(POLL)


def _open_store(rank: int, count: int, seconds: float) -> Any:
    """The store of torchrun, or else of the first process; it waits for nobody."""
    own = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        count,
        is_master=own and rank == 0,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
    )


def _join_attempt(store: Any, rank: int, count: int, until: float, missing: list[int]) -> Meeting:
    """The part of a store that belongs to this attempt; `missing` becomes those that have not come yet.

    Raises TimeoutError, or an error of PyTorch.
    """
    own = json.dumps([uuid.uuid4().hex, os.getpid(), socket.gethostname()])
    attempt, others = own if rank == 0 else "", range(1, count)
    if rank == 0:
        store.set("attempt", own)
    while True:
        if rank and (offered := store.get("attempt").decode()) != attempt:
            attempt = offered
            store.set(f"{attempt} process {rank}", own)
        missing[:] = [other for other in others if not store.check([f"{attempt} process {other}"])]
        if rank == 0 and not missing:
            members = [own, *(store.get(f"{attempt} process {other}").decode() for other in others)]
            store.set(f"{attempt} members", json.dumps(members))
        if store.check([f"{attempt} members"]):
            members = json.loads(store.get(f"{attempt} members"))
            if own in members:
                return Meeting(PrefixStore(attempt, store), tuple(tuple(json.loads(one)[1:]) for one in members))
        if time.monotonic() > until:
            raise TimeoutError
        missing[:] = missing or [0]
        time.sleep(POLL)

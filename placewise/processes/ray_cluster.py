"""Joining a Ray cluster, or starting one of this machine alone."""

from __future__ import annotations

import os
import socket
from importlib import import_module
from typing import Any

from placewise.errors import MissingExtraError, RunError

CONNECT = 10.0
"""Seconds until a cluster must answer."""
LOCAL = "local"
"""The address of a cluster that is started on this machine, and ends with this process."""
_STORE = 256 << 20
"""Bytes of the object store of such a cluster."""


def join_cluster(address: str, what: str, *, may_start: bool = False) -> Any:
    """Join the cluster at `address` unless this process is part of one; the module `ray`.

    `address` is ``HOST:PORT``, ``auto`` for the cluster that runs on this machine or, if it `may_start`, ``local``.
    Raises RunError where there is none, and MissingExtraError, for `what`, without Ray.

    Ray would print what becomes of workers on stdout, among results; no public option prevents it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        ray = import_module("ray")
    except ModuleNotFoundError:
        raise MissingExtraError(what, "ray") from None
    if not ray.is_initialized():
        quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        try:
            if may_start and address == LOCAL:
                ray.init(address=LOCAL, include_dashboard=False, object_store_memory=_STORE, **quiet)
            else:
                require_listener(address)
                ray.init(address=address, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            raise RunError(f"there is no Ray cluster at {address!r}: {error}") from None
        printing: Any = import_module("ray._private.worker")
        printing._worker_logs_enabled = False  # noqa: SLF001
    return ray


def require_listener(address: str) -> None:
    """Raise OSError or ValueError if no process listens at the address: Ray itself would retry for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("an address is HOST:PORT, or auto")
    socket.create_connection((host, int(port)), CONNECT).close()

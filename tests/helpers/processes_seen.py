"""Whether processes end, and where they listen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

LISTENS = "0A"
LOOPBACK = {"0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F"}
"""As /proc/net writes 127.0.0.1, ::1 and ::ffff:127.0.0.1 on little-endian machines."""


def gone(pid: int, within: float = 60.0) -> bool:
    """Whether a process ends within so many seconds (one that is dead and not yet waited for counts as gone)."""
    until = time.monotonic() + within
    while _runs(pid):
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listening_addresses(pids: Iterable[int]) -> set[str]:
    """The addresses on which processes listen, as /proc writes them, without the port."""
    listening = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                listening[f"socket:[{fields[9]}]"] = fields[1].partition(":")[0]
    addresses = set()
    for pid in pids:
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:  # it has ended, or has closed the file
            continue
        addresses |= {listening[link] for link in links if link in listening}
    return addresses

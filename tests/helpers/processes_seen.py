"""Whether processes end."""

from __future__ import annotations

import time
from pathlib import Path


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

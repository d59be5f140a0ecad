"""Whether processes end."""

from __future__ import annotations

import time
from pathlib import Path


def gone(pid: int, within: float = 5.0) -> bool:
    """Whether a process ends in time (one that is dead and not yet waited for counts as gone)."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False

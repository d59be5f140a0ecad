"""What a killed process was making is found by its lock, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from placewise.files.atomic import atomic_write
from placewise.processes.abandoned import lock_path, remove_abandoned, unlock

pytestmark = pytest.mark.skipif(os.name == "nt", reason="nothing is locked on Windows")


def test_only_what_nobody_locks_is_removed(tmp_path: Path) -> None:
    """Files and folders of that name go, locked ones and others stay; links are not followed."""
    for name in ("x-file.tmp", "x-held.tmp", "other.tmp", "x-other"):
        (tmp_path / name).touch()
    (tmp_path / "x-folder.tmp" / "inner").mkdir(parents=True)
    (tmp_path / "x-link.tmp").symlink_to(tmp_path / "other.tmp")
    held = lock_path(tmp_path / "x-held.tmp")
    remove_abandoned(tmp_path, "x-", ".tmp")
    unlock(held)
    assert {path.name for path in tmp_path.iterdir()} == {"x-held.tmp", "other.tmp", "x-other", "x-link.tmp"}
    assert lock_path(tmp_path / "nothing") == -1


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    """kill −9 in the middle of a file: the next file in that folder clears up, and one still being written stays."""
    code = (
        "import os, sys\nfrom placewise.files.atomic import atomic_write\n"
        "with atomic_write(sys.argv[1]) as file:\n os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=False)
    assert killed.returncode == -signal.SIGKILL and len([*tmp_path.iterdir()]) == 1
    with atomic_write(tmp_path / "b") as slow:
        with atomic_write(tmp_path / "c") as fast:
            fast.write("fast")
        slow.write("slow")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"b": "slow", "c": "fast"}

"""Ctrl-C and kill −9 at any moment leave files whole: every kind that the tool writes, written over and over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from locations import HELPERS
from soak import FACTOR, SOAKS

pytest.importorskip("safetensors")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

WRITERS = HELPERS.joinpath("interrupted_writers.py")


def test_files_are_whole_whenever_their_writer_ends(tmp_path: Path) -> None:
    """Of every kind, each time, a whole version is there, and after Ctrl-C nothing else; torn ones would be noticed."""
    rounds = 6 * FACTOR if SOAKS else 2
    command = [sys.executable, str(WRITERS), str(tmp_path), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300 * FACTOR)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts.pop("noticed") is True
    assert len(counts) == 12 and set(counts.values()) == {rounds}

"""The cluster that the benchmarks place on: two cores of this machine, their links measured."""

from __future__ import annotations

import subprocess
import sys

from common import SCRATCH, calm


def cluster_file(*, afresh: bool) -> str:
    """The path of the cluster as `placewise devices 2xcore --measure` has it: measured now, or the last one."""
    path = SCRATCH / "cores.toml"
    if afresh or not path.exists():
        SCRATCH.mkdir(exist_ok=True)
        calm()
        subprocess.run(
            [sys.executable, "-m", "placewise", "devices", "2xcore", "--measure", "-o", str(path)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return str(path)

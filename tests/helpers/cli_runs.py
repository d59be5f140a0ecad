"""The command line, run in this process, and a small workload for it."""

from __future__ import annotations

import io
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from placewise.cli import main


def run(*arguments: object, code: int | tuple[int, ...] = 0) -> subprocess.CompletedProcess[str]:
    """What the installed command runs, in this process: what it wrote, its exit code checked."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in "12"]
    log, keys = logging.getLogger("placewise"), signal.getsignal(signal.SIGINT)
    before = log.handlers, log.level, log.propagate
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setenv("NO_COLOR", "1")
        patch.setattr(sys, "argv", ["placewise", *map(str, arguments)])
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        try:
            main()
        finally:
            signal.signal(signal.SIGINT, keys)
            log.handlers, log.propagate = before[0], before[2]
            log.setLevel(before[1])
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    ended = end.value.code or 0
    assert ended == code or (isinstance(code, tuple) and ended in code), out + err
    return subprocess.CompletedProcess(sys.argv, ended, out, err)


def workload(path: Path, **changes: Any) -> Path:
    """A published-style workload: a → b → c and a → c on two accelerators and a CPU, in milliseconds."""
    document = {
        "maxSizePerFPGA": 100.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            {"id": i, "name": f"n{i}", "cpuLatency": 40.0, "fpgaLatency": 4.0, "size": 40.0, "supportedOnFpga": 1,
             "isBackwardNode": 0}
            for i in range(3)
        ],
        "edges": [{"sourceId": s, "destId": d, "cost": 1.0} for s, d in ((0, 1), (1, 2), (0, 2))],
        **changes,
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path

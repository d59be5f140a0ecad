"""How long a person waits: `placewise --help`, and placing BERT-base cold and warm. `python benchmarks/cli.py`.

Cold means an empty kernel cache (NUMBA_CACHE_DIR points at a new folder). Medians of `--repeat` runs (cold
runs: one third of them, at least one). Targets: help 0.4 s, warm 3 s, cold 25 s. Writes results/cli.json;
exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "cli.json"
PLACE = ["place", "examples/models/bert_base.onnx", "--dim", "batch=8", "--dim", "seq=128", "-q"]
COMMANDS = {
    "help": (["--help"], 0.4),
    "throughput, warm": ([*PLACE, "-d", "2xL4,cpu", "--objective", "throughput"], 3.0),
    "latency, warm": ([*PLACE, "-d", "2xA100-80GB,cpu", "--objective", "latency"], 3.0),
    "throughput, cold": ([*PLACE, "-d", "2xL4,cpu", "--objective", "throughput"], 25.0),
    "latency, cold": ([*PLACE, "-d", "2xA100-80GB,cpu", "--objective", "latency"], 25.0),
}


def main() -> int:
    """Run every command, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9)
    options = parser.parse_args()
    measured, missed = {}, False
    for name, (arguments, target) in COMMANDS.items():
        cold = name.endswith("cold")
        _seconds(arguments, cold=False)
        runs = [_seconds(arguments, cold=cold) for _ in range(max(options.repeat // 3, 1) if cold else options.repeat)]
        median = statistics.median(runs)
        missed |= median > target
        measured[name] = {"median": median, "runs": runs, "target": target, "arguments": arguments}
        print(
            f"{name:18} {median:6.2f} s (target {target:g} s; {min(runs):.2f} to {max(runs):.2f} in {len(runs)} runs)"
        )
    command = f"python benchmarks/cli.py --repeat {options.repeat}"
    RESULTS.write_text(json.dumps({"command": command, "measured": measured}, indent=1) + "\n")
    return int(missed)


def _seconds(arguments: list[str], *, cold: bool) -> float:
    command = [sys.executable, "-c", "from placewise.cli import main; main()", *arguments]
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "NUMBA_CACHE_DIR": empty} if cold else dict(os.environ)
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started


if __name__ == "__main__":
    raise SystemExit(main())

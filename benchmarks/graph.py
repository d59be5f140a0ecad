"""A graph of 1,000,000 ops and 2,000,000 edges: built, saved and loaded. `python benchmarks/graph.py`.

Targets: build under 20 s within 1 GiB, load under 5 s. Each step runs in a process of its own, so that peak
memory is its own; medians of `--repeat` runs. Writes results/graph.json; exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from placewise.files.graph_file import load_graph, save_graph
from placewise.model.builder import GraphBuilder

RESULTS = Path(__file__).parent / "results" / "graph.json"
TARGETS = {"build": (20.0, 2**30), "load": (5.0, None)}
N_OPS, SEED = 1_000_000, 0


def build(path: Path) -> float:
    """Build through the public builder, two edges per op; seconds. Saves the graph to `path`."""
    rng = random.Random(SEED)
    started = time.perf_counter()
    builder = GraphBuilder()
    for i in range(N_OPS):
        op = builder.add_op(f"op{i}", "MatMul" if i % 3 else "Add", scope=f"layer.{i // 1000}", dtype="float32")
        builder.add_tensor(op, shape=(8, 128), dtype="float32")
        if i > 1:
            builder.add_edge(i - 1, op)
            builder.add_edge(rng.randrange(max(0, i - 100), i - 1), op)
    graph = builder.build()
    seconds = time.perf_counter() - started
    assert graph.n_edges >= 2 * N_OPS - 10
    save_graph(graph, path)
    return seconds


def load(path: Path) -> float:
    """Load the columnar file; seconds."""
    started = time.perf_counter()
    graph = load_graph(path)
    assert graph.n_ops == N_OPS
    return time.perf_counter() - started


def main() -> int:
    """Run every step, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--step", nargs=2, metavar=("STEP", "FILE"), help="used by the script itself")
    options = parser.parse_args()
    if options.step:
        seconds = {"build": build, "load": load}[options.step[0]](Path(options.step[1]))
        print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
        return 0
    measured: dict[str, dict[str, object]] = {}
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "million.npz"
        for step, (limit, memory) in TARGETS.items():
            runs = [_run(step, path) for _ in range(options.repeat)]
            seconds, peak = statistics.median(r[0] for r in runs), max(r[1] for r in runs)
            missed |= seconds > limit or (memory is not None and peak > memory)
            measured[step] = {"median_seconds": seconds, "peak_bytes": peak, "runs": runs, "target_seconds": limit}
            print(f"{step:6} {seconds:6.2f} s (target {limit:g} s), peak {peak / 2**20:.0f} MiB")
        measured["file"] = {"bytes": path.stat().st_size}
    command = f"python benchmarks/graph.py --repeat {options.repeat}"
    RESULTS.write_text(json.dumps({"command": command, "seed": SEED, **measured}, indent=1) + "\n")
    return int(missed)


def _run(step: str, path: Path) -> tuple[float, int]:
    command = [sys.executable, __file__, "--step", step, str(path)]
    seconds, peak = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return seconds, peak


if __name__ == "__main__":
    raise SystemExit(main())

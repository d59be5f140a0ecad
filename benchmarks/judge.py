"""How fast the judge is, beside honest plain twins: `python benchmarks/judge.py`.

Every comparison is interleaved in one run: a round waits for a calm moment, times each contender once or a few
times, and medians of all rounds are compared. The twins are those of the tests (`tests/twins`); values must agree
before anything is timed.

- `operator`: 50,000 ops, 120,000 edges, 8 unequal devices; kernel against a heapq twin, one placement at a time.
- `batch`: 32 placements on two threads against one.
- `max-load`: kernel against vectorized numpy, one placement at a time.

Raw seconds go to benchmarks/results/judge.json. The exit code is 1 if a twin has become much slower than in the
results that lie there: a weaker baseline is no progress.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from twins import MaxLoad, Operator  # noqa: E402

from placewise.model.builder import GraphBuilder  # noqa: E402
from placewise.model.cluster import HOST, Cluster, Device, Link, Transfers  # noqa: E402
from placewise.model.columns import Ints  # noqa: E402
from placewise.model.costs import CostTable  # noqa: E402
from placewise.model.graph import Graph  # noqa: E402
from placewise.model.problem import Objective, Problem  # noqa: E402
from placewise.simulate import Evaluator  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "judge.json"
SEED, N_OPS, N_EDGES, N_DEVICES, ROUNDS = 0, 50_000, 120_000, 8, 9
SPANS = {"wide": 500, "deep": 50}
"""Mean distance, in topological order, between the ends of an edge: how much can run at the same time."""


def random_graph(span: int) -> Graph:
    """One tensor per op, read by ops a geometrically distributed distance later."""
    rng = np.random.default_rng(SEED)
    pairs: set[tuple[int, int]] = set()
    while len(pairs) < N_EDGES:
        tail = rng.integers(0, N_OPS, N_EDGES)
        head = tail + rng.geometric(1 / span, N_EDGES)
        inside = head < N_OPS
        fresh = zip(tail[inside].tolist(), head[inside].tolist(), strict=True)
        pairs.update(list(fresh)[: N_EDGES - len(pairs)])
    builder = GraphBuilder()
    for op in range(N_OPS):
        builder.add_op(f"op{op}", "Op")
        builder.add_tensor(op, nbytes=1)
    for tensor, reader in sorted(pairs):
        builder.add_edge(tensor, reader)
    return builder.build()


def random_problem(graph: Graph, transfers: Transfers, objective: Objective) -> Problem:
    """Eight accelerators that differ by up to a fifth per op; ops of 10-100 µs, transfers of 1-10 µs."""
    rng = np.random.default_rng(SEED + 1)
    names = [f"acc{i}" for i in range(N_DEVICES)]
    ends = [pair for name in names for pair in ((name, HOST), (HOST, name))]
    if transfers == "direct":
        ends += [(a, b) for a in names for b in names if a != b]
    cluster = Cluster(tuple(map(Device, names)), tuple(Link(*pair, 1.0) for pair in ends), transfers)
    seconds = rng.uniform(1e-5, 1e-4, (N_OPS, 1)) * rng.uniform(0.8, 1.2, (N_OPS, N_DEVICES))
    transfer = np.zeros((N_OPS, 2))
    transfer[:, 1] = rng.uniform(1e-6, 1e-5, N_OPS)
    return Problem(graph, cluster, CostTable.given(seconds, transfer), objective)


def placements() -> dict[str, Ints]:
    """Every op anywhere, and eight equal stretches of the topological order."""
    anywhere = np.random.default_rng(SEED + 2).integers(0, N_DEVICES, N_OPS)
    return {"random": anywhere.astype(np.int32), "contiguous": (np.arange(N_OPS) * N_DEVICES // N_OPS).astype(np.int32)}


def calm() -> float:
    """Wait up to 5 s for other programs to leave the machine alone; the share of its cores that was busy last."""
    stat, busy = Path("/proc/stat"), 0.0
    for _ in range(50 if stat.exists() else 0):
        ticks = []
        for pause in (0.1, 0.0):
            ticks.append([int(word) for word in stat.read_text().splitlines()[0].split()[1:]])
            time.sleep(pause)
        before, after = ticks
        busy = 1 - (sum(after[3:5]) - sum(before[3:5])) / max(sum(after) - sum(before), 1)
        if busy < 0.1:
            break
    return busy


def interleaved(contenders: dict[str, tuple[Callable[[], Any], int]]) -> dict[str, list[float]]:
    """Seconds of every call; each round calls each contender its number of times, at a calm moment if there is one."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders} | {"busy": []}
    for call, _ in contenders.values():
        call()
    for _ in range(ROUNDS):
        seconds["busy"].append(calm())
        for name, (call, times) in contenders.items():
            for _ in range(times):
                begin = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def operator_cases() -> list[dict[str, Any]]:
    """The schedule kernel and the heapq twin on both shapes of graph, both transfers, both placements."""
    found = []
    for shape, span in SPANS.items():
        graph = random_graph(span)
        for transfers in ("direct", "staged"):
            problem = random_problem(graph, transfers, Objective("latency", execution="operator"))
            kernel, twin = Evaluator(problem, threads=1), Operator(problem)
            for where, device in placements().items():
                plain = device.tolist()
                value = float(kernel(device)[0])
                assert value == twin(plain)[0], "the kernel and its twin disagree"
                seconds = interleaved(
                    {"kernel": (lambda k=kernel, d=device: k(d), 5), "twin": (lambda t=twin, d=plain: t(d), 1)}
                )
                found.append({"case": f"{shape}, {transfers}, {where}", "value": value, "seconds": seconds})
    return found


def batch_cases() -> list[dict[str, Any]]:
    """Thirty-two random placements on one thread and on two."""
    rng, graph = np.random.default_rng(SEED + 3), random_graph(SPANS["wide"])
    rows = rng.integers(0, N_DEVICES, (32, N_OPS)).astype(np.int32)
    found = []
    for objective in (
        Objective("latency", execution="operator"),
        Objective("latency", execution="subgraph"),
        Objective("throughput"),
    ):
        problem = random_problem(graph, "direct", objective)
        one, two = Evaluator(problem, threads=1), Evaluator(problem, threads=2)
        assert (one(rows) == two(rows)).all(), "two threads give other values"
        seconds = interleaved({"one thread": (lambda e=one: e(rows), 1), "two threads": (lambda e=two: e(rows), 1)})
        found.append({"case": str(objective), "seconds": seconds})
    return found


def max_load_cases() -> list[dict[str, Any]]:
    """The max-load kernel and vectorized numpy, one placement at a time."""
    found, graph = [], random_graph(SPANS["wide"])
    for transfers in ("direct", "staged"):
        problem = random_problem(graph, transfers, Objective("throughput"))
        kernel, twin = Evaluator(problem, threads=1), MaxLoad(problem)
        for where, device in placements().items():
            assert np.isclose(kernel(device)[0], twin(device), rtol=1e-12, atol=0)
            seconds = interleaved(
                {"kernel": (lambda k=kernel, d=device: k(d), 20), "numpy": (lambda t=twin, d=device: t(d), 5)}
            )
            found.append({"case": f"{transfers}, {where}", "seconds": seconds})
    return found


def report(results: dict[str, Any]) -> None:
    """A line per case: medians, ratios and the targets."""
    rate = N_OPS / 1e6
    print(f"\noperator: {N_OPS:,} ops, {N_EDGES:,} edges, {N_DEVICES} devices; million ops per second (median, best)")
    print(f"  {'':28}{'kernel':>16}{'twin':>18}{'ratio':>8}   targets: kernel ≥ 3, ratio ≥ 8 over a twin ≥ 0.25")
    for row in results["operator"]:
        kernel, twin = row["seconds"]["kernel"], row["seconds"]["twin"]
        fast, slow = statistics.median(kernel), statistics.median(twin)
        print(
            f"  {row['case']:28}{rate / fast:8.2f}{rate / min(kernel):8.2f}"
            f"{rate / slow:10.3f}{rate / min(twin):8.3f}{slow / fast:8.1f}"
        )
    print("\nbatch: 32 placements, two threads over one; milliseconds (median)")
    print(f"  {'':28}{'one':>8}{'two':>8}{'ratio':>8}   target: ≥ 1.8")
    for row in results["batch"]:
        one, two = (statistics.median(row["seconds"][name]) for name in ("one thread", "two threads"))
        best = min(row["seconds"]["one thread"]) / min(row["seconds"]["two threads"])
        print(f"  {row['case']:28}{one * 1e3:8.1f}{two * 1e3:8.1f}{one / two:8.2f}   best over best {best:.2f}")
    print("\nmax-load: one placement; milliseconds (median)")
    print(f"  {'':28}{'kernel':>8}{'numpy':>8}{'ratio':>8}   target: ≥ 10")
    for row in results["max-load"]:
        kernel, twin = (statistics.median(row["seconds"][name]) for name in ("kernel", "numpy"))
        print(f"  {row['case']:28}{kernel * 1e3:8.3f}{twin * 1e3:8.2f}{twin / kernel:8.1f}")


def weaker(results: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """The cases whose twin needs, at best, more than 1.3 times what it needed before on such a machine."""
    if before.get("machine") != results["machine"]:
        return []
    found = []
    for part, name in (("operator", "twin"), ("max-load", "numpy")):
        known = {row["case"]: min(row["seconds"][name]) for row in before[part]}
        for row in results[part]:
            if min(row["seconds"][name]) > 1.3 * known.get(row["case"], np.inf):
                found.append(f"{part}: {row['case']}")
    return found


def processor() -> str:
    """The processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def main() -> int:
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results: dict[str, Any] = {
        "command": "python benchmarks/judge.py",
        "seed": SEED,
        "rounds": ROUNDS,
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "numpy": np.__version__,
        "operator": operator_cases(),
        "batch": batch_cases(),
        "max-load": max_load_cases(),
    }
    report(results)
    slower = weaker(results, before)
    if slower:
        print("\nthe baseline got weaker (results not saved): " + "; ".join(slower), file=sys.stderr)
        return 1
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results) + "\n")
    rounds = [
        busy for part in ("operator", "batch", "max-load") for row in results[part] for busy in row["seconds"]["busy"]
    ]
    calm_rounds = sum(busy < 0.1 for busy in rounds)
    print(f"\n{calm_rounds} of {len(rounds)} rounds began on a calm machine")
    print(f"raw seconds: {RESULTS.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

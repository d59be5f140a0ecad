"""Does placing keep its time limit? From a thousand ops to a million, on an idle machine or on a busy one.

    python benchmarks/limits.py [--load 4] [--sizes 1000,30000] [--limits 5] [--objective latency] [--placer auto]

Graphs are zoo:random-layered (seed 0) on 16 V100s, made once and kept in a temporary folder; every row runs in a fresh
process that reads the problem and calls `place()` with the limit. The seconds are those of the whole call: bounds,
baselines, placer, judge and checks; reading is not counted, loading libraries on the way is. `--load` starts so many
busy processes beside. Writes results/limits.json and limits.md. The exit code is 1 if a row that was run, now or
before, took more than 1.10 times its limit.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.files.problem_file import load_problem, save_problem
from placewise.placers import registry
from placewise.placers.base import Budget

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "limits"
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
MODEL, DEVICES = "random-layered", "16xV100-16GB"
OBJECTIVES = ("throughput", "latency")
PLACERS = ("auto", "dp")
LIMITS = (5.0, 20.0)
MAX_RATIO, MAX_GIB = 1.10, 2.0

Row = dict[str, Any]


def main() -> int:
    """Run what is asked for, write the results; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=_numbers(int), default=SIZES)
    parser.add_argument("--limits", type=_numbers(float), default=LIMITS)
    parser.add_argument("--objective", choices=OBJECTIVES)
    parser.add_argument("--placer", choices=PLACERS)
    parser.add_argument("--load", type=int, default=0, help="busy processes beside")
    parser.add_argument("--folder", type=Path, help="where problems are kept, to be read again another time")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_child(*options.child)))
        return 0
    done: Row = json.loads(RESULTS.with_suffix(".json").read_text()) if RESULTS.with_suffix(".json").exists() else {}
    done["machine"] = {"cores": os.cpu_count(), "python": platform.python_version()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for size in options.sizes:
            for objective in [options.objective] if options.objective else OBJECTIVES:
                problem = _saved(folder, objective, size)
                for placer in [options.placer] if options.placer else _takers(objective):
                    for limit in options.limits:
                        with _busy(options.load):
                            row = {"load": os.getloadavg()[0], "beside": options.load, **_fresh(problem, placer, limit)}
                        key = f"{objective} {placer} {limit:g} s {size}"
                        done.setdefault("rows", {})[key] = row
                        print(key, json.dumps(row), flush=True)
                        _write(done)
    return _missed(done)


def _numbers(kind: type) -> Any:
    return lambda text: tuple(kind(part) for part in text.split(","))


def _takers(objective: str) -> list[str]:
    return [name for name in PLACERS if objective in registry.create(name).info.objectives]


def _saved(folder: Path, objective: str, size: int) -> Path:
    """The file of a problem, made unless it is there."""
    path = folder / f"{objective}-{size}.pwp"
    if not path.exists():
        save_problem(build(f"zoo:{MODEL}", DEVICES, ProblemOptions(objective=objective, dims={"n_ops": size})), path)
    return path


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """So many processes that only compute, beside what runs inside."""
    beside = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in beside:
        process.start()
    try:
        yield
    finally:
        for process in beside:
            process.terminate()
            process.join()


def _spin() -> None:
    while True:
        sum(range(100_000))


def _fresh(problem: Path, placer: str, limit: float) -> Row:
    """What a new process measures."""
    command = [sys.executable, __file__, "--child", str(problem), placer, str(limit)]
    # An installed package has its byte code: none need be made within the limit.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables)
    row: Row = json.loads(run.stdout)
    return row


def _child(path: str, placer: str, limit: str) -> Row:
    problem = load_problem(path)
    started, used = time.perf_counter(), time.process_time()
    result = place(problem, placer, Budget(float(limit)))
    seconds, cores = time.perf_counter() - started, time.process_time() - used
    return {
        "seconds": seconds,
        "ratio": seconds / float(limit),
        "processor seconds": cores,
        "value": None if result.judgement is None else result.judgement.value,
        "status": str(result.status.outcome.value),
        "by": result.notes[0] if result.notes else "",
        "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _write(done: Row) -> None:
    RESULTS.with_suffix(".json").write_text(json.dumps(done, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(_page(done))


def _page(done: Row) -> str:
    rows = done["rows"]
    loads = [row["load"] for row in rows.values()]
    text = [
        "# Time limits that are kept\n",
        f"{done['machine']['cores']} cores, load {min(loads):.1f} to {max(loads):.1f} at the start of a row.",
        "`python benchmarks/limits.py --load 4`; what was not run stays blank. At most "
        f"{MAX_RATIO:.2f} times the limit is allowed.\n",
    ]
    for objective in OBJECTIVES:
        for placer in _takers(objective):
            for limit in LIMITS:
                found = {size: rows.get(f"{objective} {placer} {limit:g} s {size}") for size in SIZES}
                if any(found.values()):
                    text += [f"## {objective}, {placer}, {limit:g} s on {DEVICES}\n", *_table(found), ""]
    return "\n".join(text)


def _table(found: dict[int, Row | None]) -> list[str]:
    head = ("ops", "busy beside", "seconds", "of the limit", "value in s", "peak GiB", "answer")
    lines = [f"| {' | '.join(head)} |", "|--:|--:|--:|--:|--:|--:|---|"]
    for size, row in found.items():
        cells = [""] * 6
        if row is not None:
            value = "" if row["value"] is None else f"{row['value']:.6g}"
            seconds, ratio, peak = (f"{row[key]:.2f}" for key in ("seconds", "ratio", "peak GiB"))
            cells = [str(row["beside"]), seconds, ratio, value, peak, row["by"] or row["status"]]
        lines.append(f"| {size:,} | {' | '.join(cells)} |")
    return lines


def _missed(done: Row) -> int:
    """1, and words, if a goal is missed."""
    words = []
    for key, row in done.get("rows", {}).items():
        if row["ratio"] > MAX_RATIO:
            words.append(f"{key}: {row['seconds']:.2f} s, {row['ratio']:.2f} times the limit")
        if row["peak GiB"] > MAX_GIB:
            words.append(f"{key}: {row['peak GiB']:.2f} GiB")
    for word in words:
        print(f"missed: {word}", file=sys.stderr)
    return 1 if words else 0


if __name__ == "__main__":
    raise SystemExit(main())

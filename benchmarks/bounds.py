"""How close the lower bounds come to the best known values.

    PLACEWISE_WORKLOADS=... python benchmarks/bounds.py [--only NAME] [--seconds 1]

For every latency problem of the zoo, in `operator` execution, each bound as a share of the best value in
best_known.json: the best of the quick ones, then intervals of a path, ops that must share a device, and load between
heads and tails, whose work takes about so many seconds together. In `sequential` execution, shares of the seconds of
the whole model on one accelerator. In `subgraph` execution, the published workloads. For throughput, all problems with
stages of any shape: without transfers, then each bound that counts them; the last one is 0 where it is below another.
Writes results/bounds.md; exits with 1 if a bound is above a known value.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import numpy as np
from instances import problem, rows

from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.placers.base import Budget, Stopwatch
from placewise.simulate import judge_placement, lower_bound
from placewise.simulate.blocks import device_classes, unshared_bytes
from placewise.simulate.bounds.assignment import block_prices_bound
from placewise.simulate.bounds.bounds import operator_bounds, possible_seconds
from placewise.simulate.bounds.crossings import alone_bound, parting_bound
from placewise.simulate.bounds.host_cut import cut_bound
from placewise.simulate.bounds.parallel_chains import chains_bound
from placewise.simulate.bounds.paths import WORK, hop_bound, path_bound
from placewise.simulate.bounds.sharing import sharing_bound
from placewise.simulate.bounds.spreading import WORK as TRANSFER_WORK
from placewise.simulate.bounds.spreading import transfer_bound
from placewise.simulate.bounds.windows import bound_paths

HERE = Path(__file__).parent


def main() -> int:
    """Bound every row; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only problems whose name contains this")
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    best = json.loads((HERE / "best_known.json").read_text())
    command = f"python benchmarks/bounds.py --seconds {options.seconds:g}"
    lines = [f"Made by `{command}`; load {os.getloadavg()[0]:.1f}. Bounds as shares of the best known value.", ""]
    lines += ["| problem | quick bounds | intervals | shared devices | load | best | took, s |", "|---|" + "--:|" * 6]
    turns = ["", "In `sequential` execution, as shares of the whole model on one accelerator:", ""]
    turns += ["| problem | path with hops | sum of best times | minimum cut to the host |", "|---|" + "--:|" * 3]
    gaps, wrong = list[float](), False
    for name in (name for name in rows(options.only) if name.startswith("zoo-latency/")):
        posed, value = problem(name), best[name]["value"]
        quick = lower_bound(posed, work=0.0).value
        watch = Stopwatch(Budget())
        slow = [bound.value for bound in operator_bounds(posed, quick, work=options.seconds * WORK)]
        took = watch.elapsed
        gaps.append(1 - max(quick, *slow) / value)
        cells = [f"{bound / value:.2%}" if bound else "–" for bound in (quick, *slow, max(quick, *slow))]
        lines.append(f"| {name} | {' | '.join(cells)} | {took:.1f} |")
        print(lines[-1], flush=True)
        shares = bound_turns(posed.with_(objective=Objective("latency", execution="sequential")))
        turns.append(f"| {name} | {' | '.join(f'{share:.2%}' if share else '–' for share in shares)} |")
        wrong |= max(1 - gaps[-1], *shares) > 1 + 1e-9
    if gaps:
        lines += [
            "",
            f"What is missing to 100%: median {statistics.median(gaps):.1%}, at most {max(gaps):.1%}.",
            *turns,
        ]
    calls = ["", "In `subgraph` execution, with ten times the default work for paths:", ""]
    calls += ["| problem | path of minimum cuts | path with parallel chains | shared calls |", "|---|--:|--:|--:|"]
    loads = ["", "Throughput, stages of any shape:", ""]
    loads += [
        "| problem | without transfers | cannot part | largest group | and transfers | missing before | missing now |"
    ]
    loads += ["|---|" + "--:|" * 6]
    for name in (name for name in rows(options.only) if name.startswith(("latency/", "free/", "zoo-free/"))):
        posed, value = problem(name), best[name]["value"]
        shares = [
            bound / value for bound in (bound_calls if "latency/" in name else bound_loads)(posed, options.seconds)
        ]
        cells = [f"{share:.2%}" if share else "–" for share in shares]
        if "latency/" not in name:
            cells += [f"{1 - shares[0]:.2%}", f"{1 - max(shares):.2%}"]
        (calls if "latency/" in name else loads).append(f"| {name} | {' | '.join(cells)} |")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        wrong |= max(shares) > 1 + 1e-9
    lines += [*calls, *loads]
    print("\n".join(lines))
    if not options.only:
        (HERE / "results" / "bounds.md").write_text("\n".join(lines) + "\n")
    return int(wrong)


def bound_turns(problem_: Problem) -> list[float]:
    """Bounds of `sequential` execution as shares of the whole model on the first device; 0 where it does not fit."""
    judged = judge_placement(problem_, Placement.on(0, problem_.n_ops))
    classes = device_classes(problem_)
    times = possible_seconds(problem_, classes)
    bounds = (hop_bound(problem_).value, float(times.min(axis=1).sum()), cut_bound(problem_, classes, times).value)
    return [bound / judged.value if judged.valid else 0.0 for bound in bounds]


def bound_calls(problem_: Problem, seconds: float) -> list[float]:
    """Bounds of `subgraph` execution in seconds."""
    classes = device_classes(problem_)
    shared = problem_, classes, possible_seconds(problem_, classes), bound_paths(problem_)
    work = 10 * WORK * seconds
    paths = [find(problem_, work=work).value for find in (path_bound, chains_bound)]
    return [*paths, sharing_bound(*shared, above=1e-9).value]


def bound_loads(problem_: Problem, seconds: float) -> list[float]:
    """Bounds of max-loads in seconds: the largest one without transfers, and those with them."""
    classes = device_classes(problem_)
    times = possible_seconds(problem_, classes)
    room, usable = problem_.capacity[classes.example] * classes.count, np.isfinite(times)
    plain = block_prices_bound(times, usable, unshared_bytes(problem_), room, classes.count)
    found = [max(plain, float(times.min(axis=1).max()))]
    found += [find(problem_, classes, times, above=found[0]).value for find in (parting_bound, alone_bound)]
    work = seconds * TRANSFER_WORK
    return [*found, transfer_bound(problem_, classes, times, above=max(found), work=work).value]


if __name__ == "__main__":
    sys.exit(main())

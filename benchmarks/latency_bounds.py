"""What intervals of a path add to the lower bounds for latency in `operator` execution.

    python benchmarks/latency_bounds.py [--only NAME] [--seconds 1]

For every latency problem of the zoo: the best bound without intervals and with those of so many seconds, as shares of
the best value in best_known.json. Writes results/latency_bounds.md; exits with 1 if a bound is above a known value.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path

from instances import problem, rows

from placewise.placers.base import Budget, Stopwatch
from placewise.simulate import lower_bound
from placewise.simulate.bounds.intervals import interval_bound

HERE = Path(__file__).parent


def main() -> int:
    """Bound every row; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only problems whose name contains this")
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    best = json.loads((HERE / "best_known.json").read_text())
    command = f"python benchmarks/latency_bounds.py --seconds {options.seconds:g}"
    lines = [f"Made by `{command}`; load {os.getloadavg()[0]:.1f}. Bounds as shares of the best known value.", ""]
    lines += ["| problem | without intervals | with | took, s |", "|---|--:|--:|--:|"]
    wrong = False
    for name in (name for name in rows(options.only) if name.startswith("zoo-latency/")):
        posed, value = problem(name), best[name]["value"]
        before = lower_bound(posed, work=0.0, go_on=lambda: False).value
        watch = Stopwatch(Budget(options.seconds))
        after = interval_bound(posed, work=1e9, go_on=partial(_has_time, watch)).value
        wrong |= max(before, after) > value * (1 + 1e-9)
        lines.append(f"| {name} | {before / value:.2%} | {max(before, after) / value:.2%} | {watch.elapsed:.1f} |")
        print(lines[-1], flush=True)
    if not options.only:
        (HERE / "results" / "latency_bounds.md").write_text("\n".join(lines) + "\n")
    return int(wrong)


def _has_time(watch: Stopwatch) -> bool:
    return not watch.out


if __name__ == "__main__":
    sys.exit(main())

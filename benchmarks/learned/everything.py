"""All tables of learned placers, the most important rows first.

    python benchmarks/learned/everything.py [--minutes 30] [--jobs 2] [--seeds 3] [--only TEXT] [--afresh]

Goes on where it or a single table's command stopped (options: rows.py).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import colocrl
import hsdag
import hsdag_ablation
import small
from rows import RESULTS, SEEDS, arguments, run

ORDER = (
    (hsdag, 1),
    (small, 1),
    (hsdag, 3),
    (colocrl, 1),
    (hsdag_ablation, 1),
    (small, 3),
    (hsdag_ablation, 3),
    (colocrl, 3),
)


def main() -> int:
    """Every table, seed by seed; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most")
    parser.add_argument("--only", default="")
    parser.add_argument("--afresh", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    until, codes = time.monotonic() + 60 * asked.minutes, {}
    for place, (module, seeds) in enumerate(ORDER):
        options = arguments(module.__doc__ or "", evaluations=module.EVALUATIONS).parse_args([])
        left = max(until - time.monotonic(), 0.0) / 60
        vars(options).update(vars(asked) | {"seeds": min(seeds, asked.seeds), "minutes": left})
        options.afresh = asked.afresh and module not in [earlier for earlier, _ in ORDER[:place]]
        codes[module] = run(module.table(options), options)
    return max(codes.values())


if __name__ == "__main__":
    sys.exit(main())

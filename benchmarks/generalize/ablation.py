"""What GDP's parts are worth: `python benchmarks/generalize/ablation.py` (options: benchmarks/learned/rows.py).

Three problems of gdp.py with one part left out at a time, one seed. Each prices 2,000 placements; *50 updates* and
*untrained* are everything after fewer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from harness import (
    EVALUATIONS,
    FOLDER,
    SECONDS,
    Found,
    Method,
    Row,
    Table,
    arguments,
    best_known,
    main_of,
    milliseconds,
    rows_of,
    values,
)

WORKLOADS = ("inception-v3 2xP100", "rnnlm-4 4xP100", "transformer-xl-4 4xP100")
VARIANTS: dict[str, dict[str, Any]] = {
    "everything": {},
    "no device features": {"device_features": False},
    "no prior": {"prior": 0.0},
    "no advice": {"advice": False},
    "no moves": {"moving": 0.0},
    "nothing of ours": {"prior": 0.0, "advice": False, "moving": 0.0},
    "50 updates": {"updates": 50},
    "untrained": {"updates": 0},
}
"""Prior, advice of list schedulers, and moves of regions are no part of the paper's policy: without them it is as told.

`prior`: what scores are before anything is learned; `moves`: drawing around the best placement so far.
"""
BASELINES = ("expert", "metis")


def table(options: argparse.Namespace) -> Table:
    """Variant by variant."""
    rows = [Row("problems", name, Method(one, "placer", one)) for one in BASELINES for name in WORKLOADS]
    for variant, changed in VARIANTS.items():
        method = Method(variant, "policy", "gdp", options=changed, evaluations=options.evaluations, seconds=SECONDS)
        rows += [Row("problems", name, method) for name in WORKLOADS]
    return Table("ablation", "GDP without one of its parts", tuple(rows), text, folder=FOLDER)


def text(found: Found, command: str) -> str:
    """The table."""
    heads = " | ".join(f"{name}, ms | above best here" for name in WORKLOADS)
    lines = [
        "# GDP without one of its parts",
        "",
        f"`{command}`; training graphs, `operator`; milliseconds of a step (medians over seeds), and how far above the "
        "best of this table.",
        "",
        f"| variant | {heads} | evaluations, seconds |",
        "|---|" + "--:|" * (2 * len(WORKLOADS) + 1),
    ]
    for variant in (*BASELINES, *VARIANTS):
        cells = []
        for name in WORKLOADS:
            seen = values(found, name, variant)
            above = f"{statistics.median(seen) / best_known(found, name) - 1:+.1%}" if seen else ""
            cells += [milliseconds(found, name, variant, 1), above]
        rows = rows_of(found, method=variant)
        priced = sum(row.get("evaluations", 0) for row in rows)
        spent = f"{priced:,}, {sum(row['seconds'] for row in rows):.0f}" if rows else ""
        lines.append(f"| {variant} | {' | '.join(cells)} | {spent} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main_of(table, arguments(__doc__ or "", evaluations=EVALUATIONS)))

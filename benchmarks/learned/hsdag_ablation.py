"""What HSDAG's parts are worth: `python benchmarks/learned/hsdag_ablation.py` (options: rows.py).

The folded problems of hsdag.py, under `sequential` execution, with one part left out at a time: all of them are ours.
They are chains that may be cut, nodes that may stay alone, exploration, moves from the best placement so far instead of
new ones, the best samples of an update alone, and features of cost. Rows without single features of the paper, which
changed less than chance does, are of a time when these were options.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from hsdag import MODELS
from methods import Method
from rows import SEEDS, Row, Table, arguments, main_of
from tables import Found, milliseconds, values

from placewise.placers.learned.hsdag import HsdagOptions

VARIANTS: dict[str, dict[str, Any]] = {
    "everything": {},
    "chains kept whole": {"chains": "always"},
    "chains never": {"chains": "never"},
    "nobody alone": {"alone": "never"},
    "no exploration": {"explore": 0.0, "jitter": 0.0},
    "every group anew": {"moves": 0},
    "all samples count": {"elite": 1.0},
    "no seconds": {"seconds": False},
    "the paper's letter": {name: value for name, value in HsdagOptions.paper.items() if name != "updates"},
}
PRINTED = {"everything": 17.9}
"""Inception-V3, per cent less time than CPU-only (Duan et al. 2024, table 3)."""
WORKLOADS = tuple(f"{model} folded sequential" for model in MODELS)
EVALUATIONS = 2000
CPU, OPTIMUM = Method("CPU only", "alone", device="cpu"), Method("optimum", "placer", "two_way")


def table(options: argparse.Namespace) -> Table:
    """Inception-V3 first, with several seeds; the others have one."""
    rows = [Row("hsdag", name, method) for name in WORKLOADS for method in (CPU, OPTIMUM)]
    for name in WORKLOADS:
        for seed in range(SEEDS if name == WORKLOADS[0] else 1):
            for variant, changed in VARIANTS.items():
                method = Method(
                    f"hsdag, {variant}", "policy", "hsdag", options=changed, evaluations=options.evaluations
                )
                rows.append(Row("hsdag", name, method, seed))
    return Table("hsdag_ablation", "HSDAG without one of its parts", tuple(rows), text)


def text(found: Found, command: str) -> str:
    """The table."""
    lines = [
        "# HSDAG without one of its parts",
        "",
        f"`{command}`; folded graphs, `sequential`, the calibrated simulator of "
        f"learned_hsdag.md; milliseconds, of Inception-V3 medians over {SEEDS} seeds (smallest–largest), and per cent "
        "less time than CPU-only.",
        "",
        f"| variant | {' | '.join(f'{name} | saved' for name in WORKLOADS)} | printed, Inception-V3 |",
        "|---|" + "--:|" * (2 * len(WORKLOADS) + 1),
    ]
    for title in ("optimum", *VARIANTS):
        method = title if title == "optimum" else f"hsdag, {title}"
        cells = []
        for name in WORKLOADS:
            seen, cpu = values(found, name, method), values(found, name, "CPU only")
            saved = f"{100 * (1 - statistics.median(seen) / cpu[0]):.1f}" if seen and cpu else ""
            cells += [milliseconds(found, name, method), saved]
        lines.append(f"| {title} | {' | '.join(cells)} | {PRINTED.get(title, '')} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main_of(table, arguments(__doc__ or "", evaluations=EVALUATIONS)))

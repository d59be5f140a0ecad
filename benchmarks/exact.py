"""Throughput solved with proofs: values, bounds, gaps and seconds of the exact placers beside what was published.

    PLACEWISE_WORKLOADS=... python benchmarks/exact.py [--time-limit 120] [--only NAME]

One row per workload of Tarnawski et al. 2020: `cover` and `cpsat` without contiguity, `dp` with it, beside the
published dynamic program and local search (benchmarks/published.json) and the best known values from elsewhere
(its `best_known`; see its note). A row is saved as soon as it is done and not run again with the same limit, so
that an interrupted run goes on where it stopped; `--afresh` begins anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from placewise.model.problem import Constraints
from placewise.placers.base import Budget
from placewise.placing import place
from placewise.readers.workload import read_workload

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "exact.json"
PLACERS = {"cover": False, "cpsat": False, "dp": True}
"""Each placer, and whether its stages are contiguous."""


def main() -> int:
    """Run the rows that are missing, save the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=120.0)
    parser.add_argument("--only", default="", help="only workloads whose name contains this")
    parser.add_argument("--afresh", action="store_true", help="forget saved rows")
    options = parser.parse_args()
    folder = Path(os.environ.get("PLACEWISE_WORKLOADS", "")) / "dnn-partitioning" / "throughput"
    if not folder.is_dir():
        print("set PLACEWISE_WORKLOADS to the folder that holds dnn-partitioning/", file=sys.stderr)
        return 2
    published = json.loads((HERE / "published.json").read_text())["throughput"]
    saved = {} if options.afresh or not RESULTS.exists() else json.loads(RESULTS.read_text())["rows"]
    for name, known in published.items():
        if options.only not in name:
            continue
        row = saved.setdefault(name, {})
        for placer, contiguous in PLACERS.items():
            if row.get(placer, {}).get("limit") != options.time_limit:
                row[placer] = _figures(folder / f"{name}.json", placer, contiguous, options.time_limit)
                _save(published, saved)
        print(_line(name, known, row), flush=True)
    print(_summary(saved))
    return 0


def _figures(path: Path, placer: str, contiguous: bool, limit: float) -> dict[str, Any]:
    problem = read_workload(path).problem
    assert problem is not None
    started = time.perf_counter()
    result = place(problem.with_(constraints=Constraints(contiguous=contiguous)), placer, Budget(limit))
    found = result.placement is not None
    return {
        "value": result.value * 1e3 if found else None,
        "bound": result.lower_bound * 1e3,
        "method": result.bound.method,
        "gap": result.gap,
        "seconds": round(time.perf_counter() - started, 2),
        "status": str(result.status),
        "limit": limit,
        "load": round(os.getloadavg()[0], 1),
    }


def _save(published: dict[str, Any], saved: dict[str, Any]) -> None:
    about = "milliseconds; seconds of wall time; load: what all programs of the machine asked for at the end of a run"
    order = {name: saved[name] for name in published if name in saved}
    RESULTS.write_text(json.dumps({"about": about, "seed": 0, "rows": order}, indent=1) + "\n")
    lines = [_line(name, published[name], row) for name, row in order.items() if set(PLACERS) <= set(row)]
    text = "Made by `python benchmarks/exact.py`; milliseconds (gap to the bound of the same run, wall seconds).\n"
    text += "dp is contiguous, the others are free.\n"
    RESULTS.with_suffix(".md").write_text("\n".join([text, _HEAD, *lines, "", _summary(saved), ""]))


_HEAD = (
    "| workload | published dp | local search (no memory) | best known | cover | bound | cpsat | bound | dp |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def _line(name: str, known: dict[str, Any], row: dict[str, Any]) -> str:
    cells = [name, *(_plain(known.get(key)) for key in ("dp", "local_search", "best_known"))]
    for placer in ("cover", "cpsat"):
        cells += [_own(row[placer]), f"{row[placer]['bound']:.4f}"]
    return "| " + " | ".join([*cells, _own(row["dp"])]) + " |"


def _plain(figures: dict[str, Any] | None) -> str:
    return "–" if not figures or figures.get("value") is None else f"{figures['value']:.4f}"


def _own(figures: dict[str, Any]) -> str:
    if figures["value"] is None:
        return "–"
    return f"{figures['value']:.4f} ({figures['gap']:.3%}, {figures['seconds']:.1f} s)"


def _summary(saved: dict[str, Any]) -> str:
    gaps = [row["cover"]["gap"] for row in saved.values() if "cover" in row]
    counts = ", ".join(f"{sum(gap <= most for gap in gaps)} within {most:.1%}" for most in (0.001, 0.01, 0.05))
    return f"cover's gaps on {len(gaps)} workloads: {counts}."


if __name__ == "__main__":
    raise SystemExit(main())

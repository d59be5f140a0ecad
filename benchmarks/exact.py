"""Optimal placements of the published workloads: values, bounds, gaps and seconds beside what was published.

    PLACEWISE_WORKLOADS=... python benchmarks/exact.py [--only NAME] [--afresh]

Three tables (Tarnawski et al. 2020): contiguous pipelines by `dp`; free pipelines by `cover`,
120 s each at most; latency (`subgraph`) by `auto`, 60 s each at most. A search ends early once nothing better can
exist. Beside them stand the published programs' figures and the best values known from elsewhere
(benchmarks/published.json; see its note). A row is saved as soon as it is done and not run again with the same
limit, so that an interrupted run goes on where it stopped; `--afresh` begins anew. Exits with 1 if a value is worse
than a published method's that keeps the rules, or worse than the best known by more than 0.1 %, or if fewer gaps are
closed than `GAPS` says.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewise.core.place import place
from placewise.model.problem import Constraints, Problem
from placewise.placers.base import Budget
from placewise.readers.workload import read_workload

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "exact.json"
GAPS = ((0.001, 6), (0.01, 10), (0.05, 13))
"""Of the 13 free pipelines, how many at least must be within each gap."""
SLACK = 1 + 1e-6
"""Published latencies are printed with so many digits."""


@dataclass(frozen=True, slots=True)
class Table:
    """One kind of problem: who solves it, for how long, and which published figures bind it, with what slack."""

    name: str
    placer: str
    limit: float
    contiguous: bool
    beside: dict[str, float]


TABLES = (
    Table("contiguous", "dp", 120.0, True, {"dp": SLACK, "dpl": SLACK, "pipedream": SLACK}),
    Table("free", "cover", 120.0, False, {"dp": SLACK, "best_known": 1.001}),
    Table("latency", "auto", 60.0, False, {"greedy": SLACK, "max_load_dp": SLACK}),
)


def main() -> int:
    """Run the rows that are missing, save the tables; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only rows whose table and name, as free/..., contain this")
    parser.add_argument("--afresh", action="store_true", help="run saved rows again")
    options = parser.parse_args()
    folder = Path(os.environ.get("PLACEWISE_WORKLOADS", "")) / "dnn-partitioning"
    if not folder.is_dir():
        print("set PLACEWISE_WORKLOADS to the folder that holds dnn-partitioning/", file=sys.stderr)
        return 2
    published = json.loads((HERE / "published.json").read_text())
    rows: dict[str, Any] = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else {}
    for table in TABLES:
        part = "latency" if table.name == "latency" else "throughput"
        saved = rows.setdefault(table.name, {})
        for name in published[part]:
            if options.only not in f"{table.name}/{name}":
                continue
            if options.afresh or saved.get(name, {}).get("limit") != table.limit:
                saved[name] = _figures(folder / part / f"{name}.json", table)
                _save(rows, published)
                print(table.name, _line(name, published[part][name], saved[name]), flush=True)
    faults = list(_faults(rows, published))
    print("\n".join([_text(rows, published), *faults]))
    return 1 if faults else 0


def _problem(path: Path, table: Table) -> Problem:
    problem = read_workload(path, objective="latency" if table.name == "latency" else "throughput").problem
    assert problem is not None
    return problem.with_(constraints=Constraints(contiguous=table.contiguous))


def _figures(path: Path, table: Table) -> dict[str, Any]:
    problem = _problem(path, table)
    started = time.perf_counter()
    result = place(problem, table.placer, Budget(table.limit))
    return {
        "value": result.value * 1e3 if result.placement is not None else None,
        "bound": result.lower_bound * 1e3,
        "method": result.bound.method,
        "gap": result.gap,
        "seconds": round(time.perf_counter() - started, 3),
        "status": str(result.status),
        "placer": table.placer,
        "limit": table.limit,
        "load": round(os.getloadavg()[0], 1),
    }


def _faults(rows: dict[str, Any], published: dict[str, Any]) -> Iterator[str]:
    for table in TABLES:
        known = published["latency" if table.name == "latency" else "throughput"]
        for name, row in rows[table.name].items():
            for method, slack in table.beside.items():
                other = known[name].get(method, {}).get("value")
                if other is not None and (row["value"] is None or row["value"] > other * slack):
                    yield f"{table.name}/{name}: {table.placer} reaches {row['value']}, {method} {other}"
    free = rows["free"]
    if len(free) == len(published["throughput"]):
        for gap, least in GAPS:
            if (count := sum(row["gap"] <= gap for row in free.values())) < least:
                yield f"free: {count} gaps within {gap:.1%}, and not {least}"


def _save(rows: dict[str, Any], published: dict[str, Any]) -> None:
    about = "milliseconds; seconds of wall time; load: what all programs of the machine asked for at the end of a row"
    RESULTS.write_text(json.dumps({"about": about, "seed": 0, "rows": rows}, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(_text(rows, published))


def _text(rows: dict[str, Any], published: dict[str, Any]) -> str:
    parts = ["Made by `python benchmarks/exact.py`; milliseconds, and seconds of wall time on 2 shared cores.\n"]
    for table in TABLES:
        known = published["latency" if table.name == "latency" else "throughput"]
        done = {name: rows[table.name][name] for name in known if name in rows.get(table.name, {})}
        lines = [_line(name, known[name], row) for name, row in done.items()]
        parts += [f"## {table.name}: `{table.placer}`, {table.limit:g} s at most\n", _HEAD, *lines, ""]
        parts += [_sum(table, done, known), ""]
    return "\n".join(parts)


_HEAD = (
    "| workload | published dp | other published | best known | value | bound | gap | seconds | status |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
_OTHERS = ("dpl", "pipedream", "local_search", "greedy", "max_load_dp", "expert")


def _line(name: str, known: dict[str, Any], row: dict[str, Any]) -> str:
    others = [f"{key} {known[key]['value']:.4f}" for key in _OTHERS if known.get(key, {}).get("value") is not None]
    value = "–" if row["value"] is None else f"{row['value']:.4f}"
    cells = [name, _plain(known.get("dp")), ", ".join(others), _plain(known.get("best_known")), value]
    cells += [f"{row['bound']:.4f} ({row['method']})", f"{row['gap']:.3%}", f"{row['seconds']:.2f}", row["status"]]
    return "| " + " | ".join(cells) + " |"


def _plain(figures: dict[str, Any] | None) -> str:
    return "–" if not figures or figures.get("value") is None else f"{figures['value']:.4f}"


def _sum(table: Table, done: dict[str, Any], known: dict[str, Any]) -> str:
    if table.name == "contiguous":
        both = [(row["seconds"], known[name]["dp"]["seconds"]) for name, row in done.items()]
        own, theirs = (sum(pair[i] for pair in both if pair[1] is not None) for i in (0, 1))
        return (
            f"Where the published program finished: {own:.2f} s against its {theirs:.2f} s, taken on another day on "
            f"a loaded machine ({theirs / max(own, 1e-9):.0f} times as long); it did not finish Inception-V3 in 540 s."
        )
    counts = ", ".join(f"{sum(row['gap'] <= gap for row in done.values())} within {gap:.1%}" for gap, _ in GAPS)
    proved = sum(row["status"].startswith("optimal") for row in done.values())
    return f"Gaps of {len(done)}: {counts}; {proved} proved optimal. local_search and expert may break memory."


if __name__ == "__main__":
    raise SystemExit(main())

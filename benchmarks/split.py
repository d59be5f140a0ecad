"""Pipelines of split, repeated and recomputed stages beside published results: `python benchmarks/split.py`.

`--only piper`: the instance published with Piper (Tarnawski et al., NeurIPS 2021) under every number of devices and
memory of `reference.json`, which says what the published program reaches, and in how many CPU seconds. Reads both from
PLACEWISE_WORKLOADS (the folder that holds `piper/`). Prints a Markdown table, writes every figure to
`results/split.json` and the table to `results/split.md`. Exits with 1 if a value is worse than the published one, if
the gap is more than 1 %, if nothing is found or proved where the published program finds nothing, or if a value got
worse than in the committed results. `--time-limit` (seconds, default 60) holds for each row.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from placewise.core.place import place
from placewise.model.problem import Problem
from placewise.model.result import Outcome
from placewise.model.verdict import BEST_UNIFORM, MEGATRON
from placewise.placers.base import Budget
from placewise.readers.piper import read_piper

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "split.json"
FAMILIES = ("piper",)
GIB = 2**30
TOLERANCE, LARGEST_GAP = 1e-9, 0.01


def main() -> int:
    """Run everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--only", default="", choices=("", *FAMILIES), help="only rows of this family")
    options = parser.parse_args()
    folder = Path(os.environ.get("PLACEWISE_WORKLOADS", "")) / "piper"
    if not folder.is_dir():
        print("set PLACEWISE_WORKLOADS to the folder that holds piper/", file=sys.stderr)
        return 2
    committed = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    before = {_name(row): row for row in committed.get("piper", {}).get("rows", [])}
    rows, faults = [], []
    print(_HEAD)
    for row in run_piper(folder, options.time_limit):
        rows.append(row)
        faults += _faults(row, before.get(_name(row)))
        print(_line(row), flush=True)
    command = f"python benchmarks/split.py --only piper --time-limit {options.time_limit:g}"
    document = {
        "command": command,
        "seed": 0,
        "unit": "seconds per micro-batch; seconds of wall time",
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}",
        "rows": rows,
    }
    RESULTS.write_text(json.dumps({**committed, "piper": document}, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(_page(document))
    print("\n".join(["", *faults]) if faults else f"\n{_summary(rows)}")
    return 1 if faults else 0


def run_piper(folder: Path, limit: float) -> Iterator[dict[str, Any]]:
    """A row per published one."""
    instance = json.loads((folder / "bert32a100.json").read_text())
    for known in json.loads((folder / "reference.json").read_text())["rows"]:
        problem = _problem(instance, known)
        started = time.perf_counter()
        result = place(problem, "auto", Budget(limit))
        seconds = time.perf_counter() - started
        found = result.placement is not None
        uniform = {name: baseline.value for name, baseline in result.compared.items()}
        yield {
            "devices": known["devices"],
            "memory_GiB": known["memory_GiB"],
            "published": {"value": known["value_s"], "seconds": known["seconds"]},
            "value": result.value if found else None,
            "lower_bound": result.lower_bound if found else None,
            "gap": result.gap if found else None,
            "status": str(result.status),
            "outcome": str(result.status.outcome),
            "seconds": round(seconds, 3),
            "stages": len(result.placement.stages) if result.placement is not None else 0,
            "uniform": finite_or_none(uniform[BEST_UNIFORM]),
            "megatron": finite_or_none(uniform[MEGATRON]),
            "notes": list(result.notes),
        }


def _problem(instance: dict[str, Any], known: dict[str, Any]) -> Problem:
    changes = {
        "maxDevices": known["devices"],
        "maxMemoryPerDevice": known["memory_GiB"] * GIB,
        "bandwidth": known["bandwidth_GiB_per_s"] * GIB,
        "mbsInBatch": known["microbatches"],
    }
    with tempfile.TemporaryDirectory() as place_:
        path = Path(place_) / "piper.json"
        path.write_text(json.dumps(instance | changes))
        problem = read_piper(path).problem
    assert problem is not None
    return problem


def _faults(row: dict[str, Any], before: dict[str, Any] | None) -> Iterator[str]:
    name, theirs, ours = _name(row), row["published"]["value"], row["value"]
    if theirs is not None and (ours is None or ours > theirs * (1 + TOLERANCE)):
        yield f"{name}: {ours} s, the published program {theirs} s"
    if ours is None and row["outcome"] != Outcome.INFEASIBLE:
        yield f"{name}: neither a plan nor a proof that there is none"
    if row["gap"] is not None and row["gap"] > LARGEST_GAP:
        yield f"{name}: a gap of {row['gap']:.2%}"
    if ours is not None and row["uniform"] is not None and ours > row["uniform"] * (1 + TOLERANCE):
        yield f"{name}: {ours} s, the best uniform plan {row['uniform']} s"
    was = (before or {}).get("value")
    if was is not None and (ours is None or ours > was * (1 + 1e-6)):
        yield f"{name}: got worse, {ours} after {was}"


def _name(row: dict[str, Any]) -> str:
    return f"{row['devices']} devices of {row['memory_GiB']} GiB"


def finite_or_none(value: float) -> float | None:
    """A value for JSON, which has no infinity."""
    return value if value < float("inf") else None


def _summary(rows: list[dict[str, Any]]) -> str:
    optimal = sum(row["outcome"] == Outcome.OPTIMAL for row in rows)
    infeasible = sum(row["outcome"] == Outcome.INFEASIBLE for row in rows)
    known = [row for row in rows if row["value"] is not None and row["published"]["value"] is not None]
    best = max((row["published"]["value"] / row["value"] for row in known), default=1.0)
    uniform = [row["uniform"] / row["value"] for row in rows if row["value"] is not None and row["uniform"] is not None]
    seconds = [row["seconds"] for row in rows]
    return (
        f"{len(rows)} rows: {optimal} proved optimal, {infeasible} proved infeasible; the published plans take up to "
        f"{best:.3f}× as long, the best uniform plans up to {max(uniform, default=1.0):.2f}×; "
        f"at most {max(seconds):.1f} s per row, {sum(seconds):.1f} s in all"
    )


_COLUMNS = (
    "devices", "GiB each", "published, ms", "its CPU seconds", "own, ms", "lower bound, ms", "status", "seconds",
    "published / own", "best uniform plan, ms", "uniform / own", "Megatron's rule, ms",
)  # fmt: skip
_HEAD = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|"


def _line(row: dict[str, Any]) -> str:
    theirs, ours = row["published"]["value"], row["value"]
    cells = [
        str(row["devices"]), str(row["memory_GiB"]), format_ms(theirs), f"{row['published']['seconds']:.2f}",
        format_ms(ours), format_ms(row["lower_bound"]), row["outcome"], f"{row['seconds']:.2f}",
        format_ratio(theirs, ours), format_ms(row["uniform"]), format_ratio(row["uniform"], ours),
        format_ms(row["megatron"]),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def format_ms(seconds: float | None) -> str:
    """Milliseconds with five digits; a dash for none."""
    return "–" if seconds is None else f"{seconds * 1e3:.5g}"


def format_ratio(other: float | None, own: float | None) -> str:
    """How many times as long another plan takes."""
    return f"{other / own:.3f}" if other is not None and own is not None else "–"


def _page(document: dict[str, Any]) -> str:
    table = "\n".join([_HEAD, *map(_line, document["rows"])])
    about = (
        f"Made by `{document['command']}` on {document['machine']}.\n\n"
        "BERT-32 profiled on A100s, published with Piper (Tarnawski et al., NeurIPS 2021): milliseconds per "
        "micro-batch of the slowest stage, 1,920 micro-batches per step, links of 25 GiB/s. The seconds are those of "
        "the whole call: baselines, search, proof and check. –: nothing fits, or nothing was found."
    )
    return f"{about}\n\n{_summary(document['rows'])}.\n\n{table}\n"


if __name__ == "__main__":
    raise SystemExit(main())

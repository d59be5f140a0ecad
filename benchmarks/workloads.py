"""Published and own values side by side, on the published workloads: `python benchmarks/workloads.py`.

Reads the workloads from PLACEWISE_WORKLOADS (the folder that holds `dnn-partitioning/`) and the published
values from `published.json` beside this file. Prints a Markdown table, writes every figure to
`results/workloads.json` and the table to `results/workloads.md`. Exits with 1 if a published value is not
reproduced by the judge, if `dp` is worse than the published dynamic program, or if an own value got worse
than in the committed results. `--time-limit` (seconds, default 120) holds for each placer on each workload.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from placewise.core.place import place
from placewise.files.split_file import read_placement
from placewise.model.problem import Problem
from placewise.model.result import Result
from placewise.placers import registry
from placewise.placers.base import Budget
from placewise.readers.workload import read_workload
from placewise.simulate import judge_placement

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "workloads.json"
OWN = ("dp", "etf", "balanced", "greedy", "auto")
TOLERANCE = 1e-9
EXPERT_TOLERANCE = 1e-5  # six printed digits


def main() -> int:
    """Run everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=120.0)
    parser.add_argument("--only", default="", help="only workloads whose name contains this")
    options = parser.parse_args()
    folder = Path(os.environ.get("PLACEWISE_WORKLOADS", "")) / "dnn-partitioning"
    if not folder.is_dir():
        print("set PLACEWISE_WORKLOADS to the folder that holds dnn-partitioning/", file=sys.stderr)
        return 2
    published = json.loads((HERE / "published.json").read_text())
    before = {row["workload"]: row for row in json.loads(RESULTS.read_text())["rows"]} if RESULTS.exists() else {}
    rows, faults = [], []
    for kind in ("throughput", "latency"):
        for name, known in published[kind].items():
            if options.only in f"{kind}/{name}":
                row = _row(folder, kind, name, known, options.time_limit)
                rows.append(row)
                faults += _faults(row, before.get(row["workload"]))
                print(_line(row), flush=True)
    table = "\n".join([_HEAD, *map(_line, rows)])
    if not options.only:
        command = f"python benchmarks/workloads.py --time-limit {options.time_limit:g}"
        document = {"command": command, "seed": 0, "unit": "ms; seconds of wall time", "rows": rows}
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(f"Made by `{command}`; milliseconds (wall seconds).\n\n{table}\n")
    print(
        "\n".join(["", *faults]) if faults else "\nthe judge gives every recorded value, and dp every recorded optimum"
    )
    return 1 if faults else 0


def _row(folder: Path, kind: str, name: str, known: dict[str, Any], limit: float) -> dict[str, Any]:
    path = folder / kind / f"{name}.json"
    problem = read_workload(path, objective=kind).problem
    assert problem is not None
    judged = dict(_judged(folder, kind, name, problem))
    own: dict[str, Any] = {}
    bound = 0.0
    for placer in OWN:
        if registry.create(placer).supports(problem) is None:
            started = time.perf_counter()
            result = place(problem, placer, Budget(limit))
            own[placer] = _figures(result, time.perf_counter() - started)
            bound = max(bound, result.lower_bound * 1e3)
    return {"workload": f"{kind}/{name}", "published": known, "judged": judged, "own": own, "lower_bound": bound}


def _figures(result: Result, seconds: float) -> dict[str, Any]:
    found = result.placement is not None
    value = result.value * 1e3 if found else None
    return {"value": value, "seconds": round(seconds, 3), "status": str(result.status), "notes": list(result.notes)}


def _judged(folder: Path, kind: str, name: str, problem: Problem) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the judge says of the published placements of this workload."""
    group, model = name.split("/")
    places = {method: folder / "splits" / f"{kind}_{group}_{model}_{method}.json" for method in ("dp", "greedy")}
    places["expert"] = folder / "human-experts" / f"{model.replace('training', 'inference')}_expert.json"
    for method, path in places.items():
        if path.exists() and (group == "LayerGraphs" or method != "expert"):
            extended, placement = read_placement(path, problem)
            judgement = judge_placement(extended, placement)
            broken = sorted({violation.kind for violation in judgement.violations})
            yield method, {"value": judgement.value * 1e3, "breaks": broken}


def _faults(row: dict[str, Any], before: dict[str, Any] | None) -> Iterator[str]:
    for method, judged in row["judged"].items():
        recorded = row["published"].get(method, {}).get("value")
        allowed = EXPERT_TOLERANCE if method == "expert" else TOLERANCE
        if recorded is not None and abs(judged["value"] / recorded - 1) > allowed:
            yield f"{row['workload']}: the judge says {judged['value']} of {method}, published is {recorded}"
    theirs, ours = row["published"].get("dp", {}).get("value"), row["own"].get("dp", {}).get("value")
    if theirs is not None and (ours is None or ours > theirs * (1 + TOLERANCE)):
        yield f"{row['workload']}: dp reaches {ours}, the published program {theirs}"
    for placer, figures in row["own"].items():
        was = (before or {}).get("own", {}).get(placer, {}).get("value")
        if was is not None and (figures["value"] is None or figures["value"] > was * (1 + 1e-6)):
            yield f"{row['workload']}: {placer} got worse, {figures['value']} after {was}"


_PUBLISHED = ("dp", "dpl", "pipedream", "local_search", "max_load_dp", "greedy", "expert", "one_accelerator")
_LOOSE = {"local_search": ["memory", "contiguity"], "best_known": ["contiguity"]}
_HEAD = (
    "| workload | "
    + " | ".join(f"published {method.replace('_', ' ')}" for method in _PUBLISHED)
    + " | "
    + " | ".join(f"own {placer}" for placer in OWN)
    + " | lower bound | auto's gap | published value below auto's |\n"
    + "|---" * (len(_PUBLISHED) + len(OWN) + 4)
    + "|"
)


def _line(row: dict[str, Any]) -> str:
    own, bound = row["own"], row["lower_bound"]
    auto = own.get("auto", {}).get("value")
    cells = [row["workload"]]
    cells += [_published_cell(row, method) for method in _PUBLISHED]
    cells += [_cell(own.get(placer)) for placer in OWN]
    cells += [f"{bound:.4f}", f"{(auto - bound) / auto:.2%}" if auto else "", _beaten_by(row, auto)]
    return "| " + " | ".join(cells) + " |"


def _beaten_by(row: dict[str, Any], auto: float | None) -> str:
    """The published methods with a smaller value than auto's, and what they do not keep where that is known."""
    better = []
    for method, figures in row["published"].items():
        value = figures.get("value")
        if value is not None and auto is not None and value < auto * (1 - 1e-5):
            breaks = row["judged"].get(method, {}).get("breaks", [])
            loose = _LOOSE.get(method, breaks) if row["workload"].startswith("throughput") else breaks
            better.append(method + (f" (breaks {', '.join(loose)})" if loose else ""))
    return ", ".join(better) or "–"


def _cell(figures: dict[str, Any] | None) -> str:
    if not figures or figures.get("value") is None:
        return "–" if not figures else figures.get("status", "not finished")
    seconds = figures.get("seconds")
    return f"{figures['value']:.4f}" + (f" ({seconds:.2f} s)" if seconds is not None else "")


def _published_cell(row: dict[str, Any], method: str) -> str:
    """The recorded value, and the rules that the placement breaks where the judge has it."""
    cell, judged = _cell(row["published"].get(method)), row["judged"].get(method)
    return f"{cell} (breaks {', '.join(judged['breaks'])})" if judged and judged["breaks"] else cell


if __name__ == "__main__":
    raise SystemExit(main())

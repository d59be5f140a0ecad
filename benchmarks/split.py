"""Pipelines of split, repeated and recomputed stages beside published results: `python benchmarks/split.py`.

`--only piper`: the instance published with Piper (Tarnawski et al., NeurIPS 2021) under every number of devices and
memory of `reference.json`, which says what the published program reaches, and in how many CPU seconds. Reads both from
PLACEWISE_WORKLOADS (the folder that holds `piper/`). Prints a Markdown table, writes every figure to
`results/split.json` and the table to `results/split.md`.

`--only gnmt`: the layers of a GNMT (Tarnawski et al., NeurIPS 2020; 17,914 ideals) with ways that `split_layers` makes
up, since the instance of Piper's paper, whose program took 180 s for 17,900 ideals, was not published.

Exits with 1 if a value is worse than the published one, if the gap is more than 1 %, if nothing is found or proved
where the published program finds nothing, or if a value got worse than in the committed results. `--time-limit`
(seconds, default 60) holds for each row.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
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
FAMILIES = ("piper", "gnmt")
GIB = 2**30
TOLERANCE, LARGEST_GAP = 1e-9, 0.01
SPEED = {1: 1.0, 2: 0.613, 4: 0.391, 8: 0.308}
"""What a layer takes over t devices, by one device, in the published profile of BERT-32."""


def main() -> int:
    """Run everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--only", default="", choices=("", *FAMILIES), help="only rows of this family")
    options = parser.parse_args()
    folder = Path(os.environ.get("PLACEWISE_WORKLOADS", ""))
    if not (folder / "piper").is_dir():
        print("set PLACEWISE_WORKLOADS to the folder that holds piper/", file=sys.stderr)
        return 2
    committed = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    faults: list[str] = []
    for family, run in {"piper": run_piper, "gnmt": run_gnmt}.items():
        if options.only not in ("", family):
            continue
        before = {_name(row): row for row in committed.get(family, {}).get("rows", [])}
        rows = []
        print(_HEAD)
        for row in run(folder, options.time_limit):
            rows.append(row)
            faults += _faults(row, before.get(_name(row)))
            print(_line(row), flush=True)
        print(f"\n{_summary(rows)}\n")
        committed[family] = {
            "command": f"python benchmarks/split.py --only {family} --time-limit {options.time_limit:g}",
            "seed": 0,
            "unit": "seconds per micro-batch; seconds of wall time",
            "machine": f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}",
            "rows": rows,
        }
    RESULTS.write_text(json.dumps(committed, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(_page(committed))
    print("\n".join(faults))
    return 1 if faults else 0


def run_piper(folder: Path, limit: float) -> Iterator[dict[str, Any]]:
    """A row per published one."""
    instance = json.loads((folder / "piper" / "bert32a100.json").read_text())
    for known in json.loads((folder / "piper" / "reference.json").read_text())["rows"]:
        yield _run_row(instance, known, {"value": known["value_s"], "seconds": known["seconds"]}, limit)


def run_gnmt(folder: Path, limit: float) -> Iterator[dict[str, Any]]:
    """A row per memory and number of devices."""
    graph = folder / "dnn-partitioning" / "throughput" / "LayerGraphs" / "gnmt_inference.json"
    instance = split_layers(json.loads(graph.read_text()))
    for memory, devices in product((2, 8, 16), (8, 16, 32, 64)):
        known = {"devices": devices, "memory_GiB": memory, "bandwidth_GiB_per_s": 25, "microbatches": 1920}
        yield _run_row(instance, known, {"value": None, "seconds": None}, limit)


def split_layers(graph: dict[str, Any]) -> dict[str, Any]:
    """An instance in Piper's format from a graph of layers: what BERT-32's layers take over t devices, for each layer.

    Training takes three times the forward pass, four times with recomputation. Weights and what is kept of a
    micro-batch, twice the output, are split in t parts; gradients and Adam take three times the weights. Each neighbour
    on other devices costs an exchange of the output. Layers that take no time and have one neighbour join it.
    """
    nodes = {node["id"]: dict(node) for node in graph["nodes"]}
    edges = [(edge["sourceId"], edge["destId"], edge["size"]) for edge in graph["edges"]]
    while leaves := [
        (i, own[0])
        for i, node in nodes.items()
        if not node["fpgaLatency"] and len(own := [edge for edge in edges if i in edge[:2]]) == 1
    ]:
        leaf, edge = leaves[0]
        nodes[edge[0] + edge[1] - leaf]["size"] += nodes.pop(leaf)["size"]
        edges.remove(edge)
    made = {i: max((size for source, _, size in edges if source == i), default=0.0) for i in nodes}
    return {
        "nodes": [
            {"id": i, "name": node["name"], "TMPCs": {str(t): _ways(node, edges, made[i], t) for t in SPEED}}
            for i, node in nodes.items()
        ],
        "edges": [{"sourceId": source, "destId": target, "communicationCost": size} for source, target, size in edges],
    }


def _ways(node: dict[str, Any], edges: list[tuple[int, int, float]], made: float, t: int) -> list[dict[str, Any]]:
    size, seconds, sync = node["size"] / t, 1e-3 * node["fpgaLatency"] * SPEED[t], made if t > 1 else 0.0
    shared = {
        "parameterSize": size,
        "syncTimeFw": {str(source): sync for source, target, _ in edges if target == node["id"]},
        "syncTimeBw": {str(target): sync for source, target, _ in edges if source == node["id"]},
    }
    kept = 2 * made / t
    return [
        {"id": "vanilla", "timePerSample": 3 * seconds, "memoryUsageA": kept, "memoryUsageB": 4 * size, **shared},
        {"id": "activation recomp", "timePerSample": 4 * seconds, "memoryUsageA": 0.05 * kept,
         "memoryUsageB": 4 * size + kept, **shared},
    ]  # fmt: skip


def _run_row(
    instance: dict[str, Any], known: dict[str, Any], published: dict[str, float | None], limit: float
) -> dict[str, Any]:
    problem = _problem(instance, known)
    started = time.perf_counter()
    result = place(problem, "auto", Budget(limit))
    seconds = time.perf_counter() - started
    found = result.placement is not None
    uniform = {name: baseline.value for name, baseline in result.compared.items()}
    return {
        "devices": known["devices"],
        "memory_GiB": known["memory_GiB"],
        "published": published,
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
    best = max((row["published"]["value"] / row["value"] for row in known), default=math.nan)
    theirs = "" if math.isnan(best) else f"the published plans take up to {best:.3f}× as long, "
    uniform = [row["uniform"] / row["value"] for row in rows if row["value"] is not None and row["uniform"] is not None]
    seconds = [row["seconds"] for row in rows]
    return (
        f"{len(rows)} rows: {optimal} proved optimal, {infeasible} proved infeasible; {theirs}"
        f"the best uniform plans up to {max(uniform, default=1.0):.2f}×; "
        f"at most {max(seconds):.1f} s per row, {sum(seconds):.1f} s in all"
    )


_COLUMNS = (
    "devices", "GiB each", "published, ms", "its CPU seconds", "own, ms", "lower bound, ms", "status", "seconds",
    "published / own", "best uniform plan, ms", "uniform / own", "Megatron's rule, ms",
)  # fmt: skip
_HEAD = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|"


def _line(row: dict[str, Any]) -> str:
    theirs, ours, seconds = row["published"]["value"], row["value"], row["published"]["seconds"]
    cells = [
        str(row["devices"]), str(row["memory_GiB"]), format_ms(theirs), "–" if seconds is None else f"{seconds:.2f}",
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


_ABOUT = {
    "piper": "BERT-32 profiled on A100s, published with Piper (Tarnawski et al., NeurIPS 2021): milliseconds per "
    "micro-batch of the slowest stage, 1,920 micro-batches per step, links of 25 GiB/s. The seconds are those of "
    "the whole call: baselines, search, proof and check. –: nothing fits, or nothing was found.",
    "gnmt": "The layers of a GNMT published by Tarnawski et al. (NeurIPS 2020), with ways that `split_layers` in "
    "benchmarks/split.py makes up. Piper's paper gives 180 s for a graph of as many ideals, 17,900.",
}


def _page(documents: dict[str, Any]) -> str:
    parts = []
    for family, about in _ABOUT.items():
        if family in documents:
            document = documents[family]
            table = "\n".join([_HEAD, *map(_line, document["rows"])])
            made = f"Made by `{document['command']}` on {document['machine']}."
            parts.append(f"{made}\n\n{about}\n\n{_summary(document['rows'])}.\n\n{table}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    raise SystemExit(main())

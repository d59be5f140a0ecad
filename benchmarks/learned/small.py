"""Every policy on small graphs whose optimum is known: `python benchmarks/learned/small.py` (options: rows.py).

Fourteen ops, an i9-12900K and a Flex 170 as in the catalogue. The random ones are the zoo's (batch 1, 56 × 56): of the
seeds 900, 901, … the first where the optimum is a split at least 5 % better than one device. `exhaustive` prices every
placement. Beside the policies stand `random` and `temper`, which may price as many distinct placements.
The goal is 2 %. Chains are one unit for the policies whose papers merge them: what such a policy cannot say, it cannot
find; the table shows how many units each decides.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from methods import LEARNED, Method, policies
from rows import SEEDS, Row, Table, arguments, main_of
from tables import EFFORT, effort, values

sys.path.append(str(Path(__file__).parents[1]))
from pinned_devices import read_pinned

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.model.builder import GraphBuilder
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.graph import Graph
from placewise.model.problem import Objective, Problem

DEVICES = "Flex-170,i9-12900K"
OPS, GOAL, EVALUATIONS = 14, 0.02, 3000
RANDOM = {
    "operator": ("layered-900", "branchy-901", "series-parallel-901", "erdos-renyi-900"),
    "sequential": ("layered-900", "erdos-renyi-901"),
    "throughput": ("layered-900", "branchy-900", "series-parallel-900", "erdos-renyi-900"),
}
MADE = {"two-branches": ("operator", "throughput"), "chain": ("sequential", "throughput")}
WORKLOADS = tuple(
    f"{graph} {execution}"
    for kinds in (RANDOM, {how: [name for name, hows in MADE.items() if how in hows] for how in RANDOM})
    for execution, graphs in kinds.items()
    for graph in graphs
)


def problem(workload: str) -> Problem:
    """The problem of a name like ``branchy-901 operator``."""
    graph, _, execution = workload.rpartition(" ")
    if graph in MADE:
        return _made(graph, _objective(execution))
    family, _, seed = graph.rpartition("-")
    wished = {"objective": "throughput", "contiguous": False} if execution == "throughput" else {"execution": execution}
    dims = {"n_ops": OPS, "seed": int(seed), "batch": 1, "size": 56}
    return build(f"zoo:random-{family}", read_pinned(DEVICES), ProblemOptions(dims=dims, **wished))


def _objective(execution: Any) -> Objective:
    return Objective("throughput") if execution == "throughput" else Objective("latency", execution=execution)


def _made(name: str, objective: Objective) -> Problem:
    """A hand-made graph with times of its own: 1 ms per op, three times that on the device that suits it less."""
    cluster = read_pinned(DEVICES)
    graph = _chain() if name == "chain" else _branches()
    place = np.arange(graph.n_ops)
    on_gpu = place // 4 % 2 == 0 if name == "chain" else place % 2 == 0
    slow = 3.0 if name == "chain" else 1.5
    seconds = 1e-3 * np.stack((np.where(on_gpu, 1.0, slow), np.where(on_gpu, slow, 1.0)), axis=1)
    return Problem(graph, cluster, CostTable.given(seconds, transfer_seconds_of(graph, cluster)), objective)


def _op(builder: GraphBuilder, number: int, reads: list[int], last: bool = False) -> int:
    """Add an op that reads these tensors and makes one of a mebibyte; the tensor's id."""
    op = builder.add_op(f"op{number}", "Work")
    for tensor in reads:
        builder.add_edge(tensor, op)
    return builder.add_tensor(op, shape=(1 << 18,), dtype="float32", output=last)


def _chain() -> Graph:
    builder = GraphBuilder()
    value: list[int] = []
    for number in range(OPS):
        value = [_op(builder, number, value, number == OPS - 1)]
    return builder.build()


def _branches() -> Graph:
    """A first op, two branches of six, and a last op."""
    builder = GraphBuilder()
    first = _op(builder, 0, [])
    ends = [first, first]
    for number in range(1, OPS - 1):
        ends[number % 2] = _op(builder, number, [ends[number % 2]])
    _op(builder, OPS - 1, ends, True)
    return builder.build()


def table(options: argparse.Namespace) -> Table:
    """Baselines first, then every policy with the first seed, then the other seeds."""
    count = options.evaluations
    rows = [Row("small", name, Method("exhaustive", "placer", "exhaustive")) for name in WORKLOADS]
    for seed in range(SEEDS):
        rows += [Row("small", name, method, seed) for name in WORKLOADS for method in policies(count)]
        if not seed:
            rows += [Row("small", name, method) for name in WORKLOADS for method in searches(count, name)]
    return Table("small", "small graphs with known optimum", tuple(rows), text, faults)


def searches(count: int, workload: str) -> list[Method]:
    """Methods that do not learn, with as many placements; `temper` is for latency."""
    found = [Method("random", "search", "random", options={"samples": count}, evaluations=count)]
    if not workload.endswith("throughput"):
        found.append(Method("temper", "search", "temper", evaluations=count))
    return found


def gaps(found: Mapping[str, Any], workload: str, method: str) -> list[float]:
    """How far each seed's value is above the optimum, as shares."""
    best = found[f"{workload}/exhaustive/0"]["value"]
    return [value / best - 1 for value in values(found, workload, method)]


def text(found: Mapping[str, Any], command: str) -> str:
    """The table."""
    columns = (*LEARNED, "random", "temper")
    lines = [
        "# Small graphs with known optimum",
        "",
        f"`{command}`; each cell is the median gap to the optimum over seeds, and the largest "
        "behind it where it differs; `·n` is how many units the policy decides of 14 ops. Goal: 2 %.",
        "",
        f"| workload | optimum, ms | best device | {' | '.join(columns)} |",
        "|---|" + "--:|" * (2 + len(columns)),
    ]
    for name in WORKLOADS:
        exact = found.get(f"{name}/exhaustive/0")
        if exact is None:
            continue
        begun = [row["begun"] for row in found.values() if row["workload"] == name and row.get("begun")]
        single = f"{begun[0] / exact['value'] - 1:+.1%}" if begun else ""
        cells = [_cell(found, name, method) for method in columns]
        lines.append(f"| {name} | {exact['value'] * 1e3:.4f} | {single} | {' | '.join(cells)} |")
    lines += ["", "| method | within 2 % | median gap | largest |", "|---|--:|--:|--:|"]
    for method in columns:
        every = [gap for name in WORKLOADS if f"{name}/exhaustive/0" in found for gap in gaps(found, name, method)]
        if every:
            close = sum(gap <= GOAL for gap in every)
            figures = f"{close} of {len(every)} | {statistics.median(every):.2%} | {max(every):.2%}"
            lines.append(f"| {method} | {figures} |")
    lines += ["", EFFORT, "", *effort(found, columns)]
    return "\n".join(lines)


def _cell(found: Mapping[str, Any], workload: str, method: str) -> str:
    seen = gaps(found, workload, method)
    if not seen:
        return ""
    middle, most = statistics.median(seen), max(seen)
    units = next((r.get("units") for r in found.values() if (r["workload"], r["method"]) == (workload, method)), None)
    spread = f" ({most:.1%})" if most > middle + 5e-4 else ""
    return f"{middle:.1%}{spread}{f' ·{units}' if units else ''}"


def faults(found: Mapping[str, Any]) -> Iterator[str]:
    """The medians that miss the goal."""
    for name in WORKLOADS:
        for method in LEARNED:
            if f"{name}/exhaustive/0" in found and (seen := gaps(found, name, method)):
                middle = statistics.median(seen)
                if middle > GOAL:
                    yield f"{name}: {method} ends {middle:.1%} above the optimum"


if __name__ == "__main__":
    sys.exit(main_of(table, arguments(__doc__ or "", evaluations=EVALUATIONS)))

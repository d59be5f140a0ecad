"""From a thousand ops to a million: what every step costs, and GNMT-8's training step in its first seconds.

    python benchmarks/scale.py [--largest 1000000] [--only sizes|command|gnmt] [--objective throughput]

Graphs are zoo:random-layered (seed 0) on 16 V100s; every size runs in a fresh process. `sizes` times each step and each
quick placer (20 s are the most, none of them needs as long), the moves of local search per second, and those that
search for 10 s. `command` is the whole `placewise place … -o plan.json`, from the start of the process to its end, with
its largest resident memory. `gnmt` places zoo:gnmt-8 --graph training on 8 P100s: the first valid placement after
reading, and the value after 30 s beside metis, expert and sct in the same seconds. Writes results/scale.json, scale.md
and scale.svg. The exit code is 1 if a command takes more than 120 s or 4 GiB, or more than its limit, a tenth of it, a
second and the seconds of reading; if GNMT-8 has no valid placement a second after reading; or if one of the three beats
auto there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plot import log_log

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.errors import PlacewiseError
from placewise.model.problem import Constraints, Problem
from placewise.model.result import Result
from placewise.placers import registry
from placewise.placers.base import Budget, Hints, run_placer
from placewise.simulate import judge_placement, lower_bound, why_infeasible

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "scale"
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
MODEL, DEVICES = "random-layered", "16xV100-16GB"
OBJECTIVES = ("throughput", "latency")
QUICK = (
    "single", "balanced", "topo", "etf", "sct", "heft", "critical_path", "greedy", "round_robin", "expert", "dpl",
    "pipedream",
)  # fmt: skip
SEARCHERS = ("metis", "mincut", "multilevel")
"""Those that use the seconds that they get."""
LIMIT, SEARCH, COMMAND_LIMIT = 20.0, 10.0, 60
"""Seconds for a quick placer, for one that searches, and for the command."""
MAX_SECONDS, MAX_GIB, OVER = 120.0, 4.0, 1.1
GNMT, GNMT_DEVICES, GNMT_SECONDS, RIVALS = "zoo:gnmt-8", "8xP100", 30.0, ("metis", "expert", "sct")
LINES = ("read and price", "bound and proofs", "judge", "balanced", "dpl", "etf", "heft")
"""What the plot shows, where it was measured."""
PARTS = ("sizes", "command", "gnmt")

Row = dict[str, Any]


def main() -> int:
    """Run what is asked for, write the results; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--objective", choices=OBJECTIVES)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_child(*options.child)))
        return 0
    done: Row = json.loads(RESULTS.with_suffix(".json").read_text()) if RESULTS.with_suffix(".json").exists() else {}
    done["machine"] = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
    sizes = [size for size in SIZES if size <= options.largest]
    objectives = [options.objective] if options.objective else OBJECTIVES
    jobs = [(part, [str(size)]) for part in PARTS[:2] for size in sizes] + [("gnmt", [""])]
    for part, arguments in jobs:
        for objective in objectives if options.only in (None, part) else ():
            key = f"{objective} {arguments[0]}".strip()
            done.setdefault(part, {})[key] = row = _fresh(part, objective, *arguments)
            print(part, key, json.dumps(row), flush=True)
            _write(done)
    return _missed(done)


def _fresh(*arguments: str) -> Row:
    """What a new process measures."""
    command = [sys.executable, __file__, "--child", *arguments]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    row: Row = json.loads(output.splitlines()[-1])
    return row


def _child(part: str, objective: str, size: str) -> Row:
    if part == "command":
        return _command(int(size), objective)
    if part == "gnmt":
        return _gnmt(objective)
    return _sizes(int(size), objective)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def _sizes(size: int, objective: str) -> Row:
    """Every step at one size."""
    read, problem = _timed(
        lambda: build(f"zoo:{MODEL}", DEVICES, ProblemOptions(objective=objective, dims={"n_ops": size}))
    )
    steps, placers = _steps(problem)
    return {
        "ops": size,
        "edges": problem.graph.n_edges,
        "seconds": {"read and price": read, **steps},
        "placers": placers,
        "moves per second": _moves_per_second(problem) if objective == "throughput" else None,
        "searchers": {name: row for name in SEARCHERS if (row := _figures(problem, name, SEARCH))},
        "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _steps(problem: Problem) -> tuple[dict[str, float], dict[str, Row]]:
    proofs, _ = _timed(lambda: (why_infeasible(problem), lower_bound(problem)))
    placers = {name: row for name in QUICK if (row := _figures(problem, name, LIMIT))}
    naive = run_placer(registry.create("balanced"), problem, Budget(LIMIT)).placement
    judge = _timed(lambda: judge_placement(problem, naive))[0] if naive is not None else math.nan
    return {"bound and proofs": proofs, "judge": judge}, placers


def _figures(problem: Problem, name: str, limit: float) -> Row | None:
    """Seconds and value of one placer, or why it takes no such problem; None if there is no such placer."""
    if name not in registry.known_names():
        return None
    try:
        placer = registry.create(name)
        refusal = placer.supports(problem)
        if refusal is not None:
            return {"refuses": refusal}
        seconds, found = _timed(lambda: run_placer(placer, problem, Budget(limit)))
    except PlacewiseError as error:
        return {"refuses": str(error)}
    if found.placement is None:
        return {"seconds": seconds, "notes": found.notes[:1]}
    judged = judge_placement(problem, found.placement)
    return {"seconds": seconds, "value": judged.value, "valid": judged.valid}


def _moves_per_second(problem: Problem) -> float | None:
    """Of local search over any placements, by the seconds of a round and of half a round from one of them."""
    problem = problem.with_(constraints=Constraints())
    start = run_placer(registry.create("dpl"), problem, Budget(LIMIT)).placement
    if "local" not in registry.known_names() or start is None:
        return None
    local, hints = registry.create("local"), Hints((start,))
    moves, spent = max(600_000, 4 * problem.n_ops), []
    for share in (2, 1):
        budget = Budget(iterations=1, evaluations=moves // share)
        spent.append(_timed(lambda budget=budget: run_placer(local, problem, budget, hints=hints))[0])
    return moves / 2 / (spent[1] - spent[0]) if spent[1] > spent[0] else None


def _command(size: int, objective: str) -> Row:
    """The command line as users run it, in a process of its own."""
    limit = COMMAND_LIMIT if size >= 100_000 else 10
    read, _ = _timed(lambda: build(f"zoo:{MODEL}", DEVICES, ProblemOptions(objective=objective, dims={"n_ops": size})))
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        words = ["place", f"zoo:{MODEL}", "--dim", f"n_ops={size}", "-d", DEVICES, "--objective", objective]
        words += ["--time-limit", f"{limit}s", "--quiet", "-o", str(plan)]
        seconds, _ = _timed(
            lambda: subprocess.run(
                [sys.executable, "-m", "placewise", *words], check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr
            )
        )
        made = json.loads(plan.read_bytes())
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    kept = {key: made[key] for key in ("value", "lower_bound", "gap")}
    return {
        "command": " ".join(("placewise", *words[:-2], "-o plan.json")),
        "limit": limit,
        "reading": read,
        "seconds": seconds,
        "peak GiB": peak,
        **kept,
    }


def _gnmt(objective: str) -> Row:
    """GNMT-8's training step: the first valid placement after reading, and auto against its rivals."""
    problem = build(GNMT, GNMT_DEVICES, ProblemOptions(objective=objective, graph="training"))
    auto = place(problem, "auto", Budget(GNMT_SECONDS))
    rows = {"auto": _outcome(auto)}
    for name in RIVALS:
        try:
            rows[name] = _outcome(place(problem, name, Budget(GNMT_SECONDS)))
        except PlacewiseError as error:
            rows[name] = {"refuses": str(error)}
    first = auto.history[0].seconds if auto.history else math.inf
    return {"ops": problem.n_ops, "first valid": first, "placers": rows, "bound": auto.bound.value}


def _outcome(result: Result) -> Row:
    value = None if result.judgement is None else result.judgement.value
    return {"seconds": result.seconds, "value": value, "notes": result.notes[:1]}


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """The exponent of y ≈ c · x^slope, by least squares on logarithms."""
    logs = [(math.log(x), math.log(y)) for x, y in points if y > 0]
    if len(logs) < 2:
        return math.nan
    x_mean, y_mean = (sum(each) / len(logs) for each in zip(*logs, strict=True))
    return sum((x - x_mean) * (y - y_mean) for x, y in logs) / sum((x - x_mean) ** 2 for x, _ in logs)


def _series(rows: Row, objective: str) -> dict[str, list[tuple[float, float]]]:
    """(ops, seconds) of every step and placer."""
    found: dict[str, list[tuple[float, float]]] = {}
    for key, row in rows.items():
        if key.startswith(objective):
            placed = {name: each["seconds"] for name, each in row["placers"].items() if "value" in each}
            for name, seconds in {**row["seconds"], **placed}.items():
                found.setdefault(name, []).append((row["ops"], seconds))
    return {name: sorted(points) for name, points in found.items()}


def _write(done: Row) -> None:
    RESULTS.with_suffix(".json").write_text(json.dumps(done, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(_page(done))
    rows = done.get("sizes", {})
    series = {objective: _series(rows, objective) for objective in OBJECTIVES}
    lines = {name: next((s[name] for s in series.values() if len(s.get(name, ())) > 1), []) for name in LINES}
    lines = {name: points for name, points in lines.items() if points}
    if lines:
        plot = log_log(f"zoo:{MODEL} on {DEVICES}", "ops", "seconds", lines, guide="in proportion")
        RESULTS.with_suffix(".svg").write_text(plot)


def _page(done: Row) -> str:
    machine = done["machine"]
    text = [f"# From a thousand ops to a million\n\n{machine['cores']} cores, load {machine['load']:.1f} at the start."]
    text.append("`python benchmarks/scale.py`; what was not run stays blank.\n\n![seconds by ops](scale.svg)\n")
    for objective in OBJECTIVES:
        series = _series(done.get("sizes", {}), objective)
        sizes = sorted({x for points in series.values() for x, _ in points})
        if sizes:
            text.append(f"## {objective}: seconds on {DEVICES}\n")
            head = ["step or placer", *(f"{size:,.0f}" for size in sizes), "µs per op", "slope from 10⁴"]
            text += [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
            text += [_line(name, dict(points), sizes) for name, points in series.items()]
            text += [*_searches(done["sizes"], objective, sizes), ""]
    if "command" in done:
        text += [
            "## The whole command\n",
            "| command | seconds | peak | value | lower bound |",
            "|---|--:|--:|--:|--:|",
        ]
        for row in done["command"].values():
            figures = (
                f"{row['seconds']:.1f} | {row['peak GiB']:.2f} GiB | {row['value']:.6g} | {row['lower_bound']:.6g}"
            )
            text.append(f"| `{row['command']}` | {figures} |")
        text.append("")
    for objective, row in done.get("gnmt", {}).items():
        text.append(f"## GNMT-8, a training step of {row['ops']:,} ops on {GNMT_DEVICES}: {objective}\n")
        text.append(f"First valid placement {row['first valid']:.2f} s after reading; bound {row['bound']:.6g} s.\n")
        text += ["| placer | seconds | value | |", "|---|--:|--:|---|"]
        for name, each in row["placers"].items():
            value = f"{each['value']:.6g}" if each.get("value") is not None else ""
            seconds = f"{each['seconds']:.1f}" if "seconds" in each else ""
            said = "" if value else "; ".join([each["refuses"]] if "refuses" in each else each["notes"])
            text.append(f"| {name} | {seconds} | {value} | {said} |")
        text.append("")
    return "\n".join(text)


def _line(name: str, points: dict[float, float], sizes: Sequence[float]) -> str:
    cells = [f"{points[size]:.3f}" if size in points else "" for size in sizes]
    large = [(x, y) for x, y in points.items() if x >= 10_000]
    per_op = f"{1e6 * points[sizes[-1]] / sizes[-1]:.2f}" if sizes[-1] in points else ""
    slope = f"{_slope(large):.2f}" if len(large) > 1 else ""
    return f"| {name} | {' | '.join(cells)} | {per_op} | {slope} |"


def _searches(rows: Row, objective: str, sizes: Sequence[float]) -> list[str]:
    """Moves per second, memory, and the value of multilevel beside the best quick one."""
    columns = [rows[f"{objective} {int(size)}"] for size in sizes]

    def line(name: str, figure: Callable[[Row], Any], form: str) -> str:
        cells = [figure(row) for row in columns]
        return f"| {name} | {' | '.join('' if cell is None else format(cell, form) for cell in cells)} | | |"

    def best(row: Row) -> float | None:
        return min((p["value"] for p in row.get("placers", {}).values() if p.get("valid")), default=None)

    return [
        line("best quick value", best, ".6g"),
        *(
            line(f"{name}, {SEARCH:.0f} s", lambda row, name=name: row["searchers"].get(name, {}).get("value"), ".6g")
            for name in SEARCHERS
        ),
        line("local, any placement: moves per second", lambda row: row.get("moves per second"), ",.0f"),
        line("peak GiB of all that", lambda row: row.get("peak GiB"), ".2f"),
    ]


def _missed(done: Row) -> int:
    """1, and words, if a goal is missed."""
    words = []
    for row in done.get("command", {}).values():
        late = row["seconds"] > OVER * row["limit"] + 1 + row.get("reading", 0.0)
        if late or row["seconds"] > MAX_SECONDS or row["peak GiB"] > MAX_GIB:
            words.append(f"{row['command']} took {row['seconds']:.1f} s and {row['peak GiB']:.2f} GiB")
    for objective, row in done.get("gnmt", {}).items():
        if row["first valid"] > 1:
            words.append(f"gnmt-8, {objective}: a valid placement only after {row['first valid']:.2f} s")
        auto = row["placers"]["auto"]["value"]
        for name in RIVALS:
            value = row["placers"][name].get("value")
            if value is not None and (auto is None or value < auto):
                words.append(f"gnmt-8, {objective}: {name} reaches {value:.6g} s and auto {auto}")
    for word in words:
        print(f"missed: {word}", file=sys.stderr)
    return 1 if words else 0


if __name__ == "__main__":
    raise SystemExit(main())

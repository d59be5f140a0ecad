"""Predicted and measured times of many plans on emulated clusters: six models, four clusters, three objectives.

    python benchmarks/real/emulated.py [--plans 20] [--seconds 1] [--only two-nodes] [--realtime] [--resume]

Nothing is computed: a process per device sleeps as long as its ops take, and tensors move as paced bytes (see
docs/runtimes.md,
"An emulated cluster"). What is tested is the judge's idea of order, waiting, queues and shared wires, not the costs.
The plans of a cell (a model on a cluster, for latency, throughput or a training step of eight micro-batches): auto, an
even split by work in the order of the ops, expert, heft, the best single device, random contiguous splits, and, but for
steps, runs of ops on random devices. Reported: errors
of the predictions; per cell the rank correlation of predicted and measured times, and whether auto's plan is measured
best or within 3 %; auto against the even split. A cell that is finished is kept in scratch/emulated.jsonl, and
`--resume` goes on after them, in several processes if each has its own cells. Writes results/real_emulated.json and
.md. Exits with 1 if a goal is missed: median error 3 %, 95 % of cases within 8 %, rank correlation 0.95 in each cell,
auto best or within 3 % in 90 % of cells, 1.3 times the even split over unequal clusters.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import SCRATCH, command, report

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.errors import PlacewiseError, RunError
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.placers.base import Budget
from placewise.profiling.calibrate import rank_correlation
from placewise.runtimes.base import Job
from placewise.runtimes.emulated.runtime import Emulated, PreparedEmulation
from placewise.simulate import judge_placement
from placewise.simulate.contiguity import contract

MODELS = ("transformer-xl-2", "resnet-50", "wavenet-2x18", "inception-v3", "bert-base", "rnnlm-2")
CLUSTERS: dict[str, tuple[str, str, str, bool]] = {
    "two-nodes": (
        "operator",
        "blocking",
        """
transfers = "direct"
default_link = { bandwidth = "12GB/s", latency = "10us" }
[[nodes]]
count = 2
devices = [{ model = "P100", count = 2 }]
link = { bandwidth = "12GB/s", latency = "10us" }
[node_link]
bandwidth = "1GB/s"
latency = "30us"
""",
        False,
    ),
    "unequal": (
        "sequential",
        "overlap",
        """
transfers = "direct"
devices = [{ model = "A100-80GB" }, { model = "V100-16GB" }, { model = "P100" }, { model = "T4" }]
default_link = { bandwidth = "8GB/s", latency = "10us" }
""",
        True,
    ),
    "staged": (
        "subgraph",
        "blocking",
        """
transfers = "staged"
devices = [{ model = "cpu" }, { model = "V100-16GB" }, { model = "P100" }, { model = "T4" }]
default_link = { bandwidth = "10GB/s", latency = "10us" }
""",
        True,
    ),
    "switch": (
        "operator",
        "duplex",
        """
transfers = "direct"
devices = [{ model = "V100-16GB", count = 8 }]
default_link = { bandwidth = "20GB/s", latency = "10us", shared = "switch" }
""",
        False,
    ),
}
"""Execution, communication, cluster file, and whether its devices are unequal."""
FINISHED = SCRATCH / "emulated.jsonl"
KINDS = ("latency", "throughput", "step")
MEDIAN, WITHIN, RANK, BEST, SHARE, GAIN = 0.03, 0.08, 0.95, 0.03, 0.90, 1.3
LATE, ATTEMPTS = 0.04, 4
"""A measurement in which a process was later than this, in seconds, is repeated, up to so many in all; the least
disturbed one counts, whatever it says."""


def even_split(problem: Problem) -> Placement:
    """Contiguous stages of equal work, at the mean seconds of every op."""
    return contiguous(problem, np.arange(1, problem.n_devices) / problem.n_devices, np.arange(problem.n_devices))


def contiguous(problem: Problem, cuts: np.ndarray, devices: np.ndarray) -> Placement:
    """Stages along the order of the ops, cut at shares of the work.

    Of a training step, what must be together, as an op and its gradient, is cut as one.
    """
    part = contract(problem).component if problem.objective.kind == "step" else np.arange(problem.n_ops)
    seconds = problem.costs.op_seconds
    work = np.bincount(part, weights=np.where(np.isfinite(seconds), seconds, 0.0).mean(axis=1))
    share = (np.cumsum(work) - work / 2) / work.sum()
    return Placement(devices[np.searchsorted(cuts, share)][part].astype(np.int32))


def scattered(problem: Problem, rng: np.random.Generator) -> Placement:
    """Runs of neighbouring ops on random devices."""
    cuts = np.sort(rng.uniform(size=int(rng.integers(problem.n_devices, 4 * problem.n_devices))))
    return contiguous(problem, cuts, rng.integers(0, problem.n_devices, len(cuts) + 1))


def draw_plans(problem: Problem, count: int, seconds: float, seed: int) -> dict[str, Placement]:
    """So many plans that can run, auto's first."""
    rng, plans = np.random.default_rng(seed), {}
    for placer in ("auto", "single", "heft", "expert"):
        try:
            found = place(problem, placer, Budget(seconds=seconds)).placement
        except PlacewiseError:
            continue
        if found is not None:
            plans[placer] = found
    plans["even split"] = even_split(problem)
    step = problem.objective.kind == "step"
    for number in range(0, 400, 1 + step):
        if len(plans) >= count:
            break
        cuts = np.sort(rng.uniform(size=problem.n_devices - 1))
        plan = scattered(problem, rng) if number % 2 else contiguous(problem, cuts, rng.permutation(problem.n_devices))
        if math.isfinite(judge_placement(problem, plan).value):
            plans[f"{'scattered' if number % 2 else 'random split'} {number // 2}"] = plan
    return plans


FILLED = 48
"""The most samples in flight; as many as a plan has stages, transfers among them, fill its pipeline."""


def measure_once(prepared: PreparedEmulation, problem: Problem) -> tuple[float, float]:
    """Seconds of one sample alone, or of one in a full pipeline, and by how much a process was late at worst."""
    if problem.objective.kind != "throughput":
        (seconds,) = prepared.time([{}])
    else:
        least = 2 * (problem.n_devices + len(problem.cluster.wires)) + 4
        in_flight = max(least, min(prepared.programs[0].stages, FILLED))
        (seconds,) = prepared.time([{}] * (6 * in_flight), in_flight=in_flight)
    return max(report.late for report in prepared.reports), seconds


def measure_case(prepared: PreparedEmulation, job: Job) -> dict[str, Any]:
    """A plan's seconds, predicted and measured, and what was seen; again while others disturb the machine."""
    predicted = judge_placement(job.problem, job.placement)
    prepared.take(job)
    runs = [measure_once(prepared, job.problem)]
    while min(runs)[0] > LATE and len(runs) < ATTEMPTS:
        runs.append(measure_once(prepared, job.problem))
    late, seconds = min(runs)
    held = [[held, use.peak] for held, use in zip(prepared.peaks(), predicted.devices, strict=True) if use.ops]
    return {
        "predicted": predicted.value, "measured": seconds, "error": seconds / predicted.value - 1,
        "scale": prepared.scale, "late": late, "attempts": len(runs), "held_of_predicted": held,
    }  # fmt: skip


def run_cells(
    wanted: Sequence[tuple[str, str, str]], count: int, budget: float, until: float, *, realtime: bool
) -> Iterator[dict[str, Any]]:
    """These cells (model, cluster, kind), a cluster in the same processes throughout; none begins after `until`. With
    `realtime`, other processes of the machine let those of the cluster go first.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        emulations: dict[str, PreparedEmulation] = {}
        for model, name, kind in wanted:
            if time.monotonic() > until:
                return
            execution, communication, text, _ = CLUSTERS[name]
            path = Path(folder) / f"{name}.toml"
            path.write_text(text)
            problem = build_problem(model, str(path), Objective(kind, communication, execution=execution))
            cases = []
            for plan, placement in draw_plans(problem, count, budget, MODELS.index(model)).items():
                job = Job(problem, placement, ())
                if name not in emulations:
                    emulations[name] = stack.enter_context(Emulated().prepare(job))
                    for pid in emulations[name].pids.values() if realtime else ():
                        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))
                cases.append({"plan": plan, **measure_case(emulations[name], job)})
            yield {"cluster": name, "model": model, "objective": str(problem.objective), "cases": cases}


def build_problem(model: str, cluster: str, objective: Objective) -> Problem:
    """A model of the zoo for an objective; a step has eight micro-batches and chooses its schedule."""
    if objective.kind == "step":
        options = ProblemOptions(graph="training", objective="step", schedule="auto", microbatches=8)
        return build(f"zoo:{model}", cluster, options)
    return build(f"zoo:{model}", cluster, ProblemOptions(graph="inference")).with_(objective=objective)


def summarize(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell's figures."""
    cases = cell["cases"]
    predicted, measured = (np.array([case[key] for case in cases]) for key in ("predicted", "measured"))
    by_name = {case["plan"]: case["measured"] for case in cases}
    errors = np.abs(measured / predicted - 1)
    return {
        "rank": rank_correlation(predicted, measured),
        "median": float(np.median(errors)),
        "largest": float(errors.max()),
        "auto_of_best": float(by_name["auto"] / measured.min()),
        "gain": by_name["even split"] / by_name["auto"],
    }


def describe_far(cell: dict[str, Any]) -> str:
    """The cases of a cell that are off by more than 5 %; "" if none is."""
    far = [case for case in cell["cases"] if abs(case["error"]) > 0.05]
    each = ", ".join(f"{c['plan']} {c['error']:+.1%} (late by {1000 * c['late']:.0f} ms)" for c in far)
    return f"- above 5 %: {cell['cluster']}, {cell['model']}, {cell['objective']}: {each}" if far else ""


def table(cells: Sequence[dict[str, Any]]) -> tuple[str, list[str]]:
    """The lines of the page, and what missed a goal."""
    errors = np.abs([case["error"] for cell in cells for case in cell["cases"]])
    calm = np.array([case["late"] <= LATE for cell in cells for case in cell["cases"]])
    sums = [summarize(cell) for cell in cells]
    unequal = [s["gain"] for cell, s in zip(cells, sums, strict=True) if CLUSTERS[cell["cluster"]][3]]
    gain = float(np.exp(np.mean(np.log(unequal)))) if unequal else math.nan
    best = float(np.mean([s["auto_of_best"] <= 1 + BEST for s in sums]))
    ranks = [s["rank"] for s in sums]
    quantile = float(np.quantile(errors, 0.95))
    checks = {
        f"median error {np.median(errors):.2%} (goal: at most {MEDIAN:.0%})": np.median(errors) <= MEDIAN,
        f"95 % of cases within {quantile:.2%} (goal: {WITHIN:.0%})": quantile <= WITHIN,
        f"least rank correlation of a cell {min(ranks):.3f} (goal: at least {RANK})": min(ranks) >= RANK,
        f"auto measured best, or within 3 %, in {best:.0%} of cells (goal: at least {SHARE:.0%})": best >= SHARE,
        f"auto {gain:.2f} times the even split over unequal clusters, geometric mean (goal: {GAIN})": gain >= GAIN,
    }
    counts = sorted({len(cell["cases"]) for cell in cells})
    lines = [
        "# Plans on emulated clusters", "",
        f"{len(errors)} cases: {' or '.join(map(str, counts))} plans in each of {len(cells)} cells. `{command()}`", "",
        *(f"- {text}{'' if met else ': missed'}" for text, met in checks.items()),
        f"- largest error {errors.max():.2%}; {int((errors > 0.05).sum())} cases above 5 %; of the cases in which no "
        f"process was later than {1000 * LATE:.0f} ms, {int((errors[calm] > 0.05).sum())} of {int(calm.sum())}", "",
        "Over the models of a cluster and an objective: errors; the least rank correlation of a model; the seconds of "
        "auto's plan over those of the best measured one, at worst; the even split over auto, geometric mean.", "",
        "| cluster | objective | median error | 95 % | largest | least rank | auto / best | even split / auto |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for pair in dict.fromkeys((cell["cluster"], cell["objective"]) for cell in cells):
        here = [k for k, cell in enumerate(cells) if (cell["cluster"], cell["objective"]) == pair]
        own = np.abs([case["error"] for k in here for case in cells[k]["cases"]])
        gains = np.log([sums[k]["gain"] for k in here])
        lines.append(
            f"| {pair[0]} | {pair[1]} | {np.median(own):.2%} | {np.quantile(own, 0.95):.2%} | {own.max():.2%} "
            f"| {min(sums[k]['rank'] for k in here):.3f} | {max(sums[k]['auto_of_best'] for k in here):.3f} "
            f"| {np.exp(gains.mean()):.2f} |"
        )
    lines += ["", *(describe_far(cell) for cell in cells if describe_far(cell))]
    return "\n".join(lines), [text for text, met in checks.items() if not met]


def key_of(cell: dict[str, Any]) -> tuple[str, str, str]:
    """Model, cluster and kind of a cell."""
    return cell["model"], cell["cluster"], cell["objective"].split(" ")[0]


def finished() -> dict[tuple[str, str, str], dict[str, Any]]:
    """The cells that are finished, each as it was measured last; a line is added for each, so that none is lost."""
    lines = FINISHED.read_text().splitlines() if FINISHED.exists() else []
    return {key_of(cell): cell for cell in map(json.loads, lines)}


def published() -> dict[tuple[str, str, str], dict[str, Any]]:
    """The cells on the page."""
    path = Path(__file__).parents[1] / "results" / "real_emulated.json"
    return {key_of(cell): cell for cell in json.loads(path.read_text())["rows"]} if path.exists() else {}


def show_cell(cell: dict[str, Any]) -> None:
    """Print a cell's figures, and every case that is off by more than 5 %."""
    figures = {key: round(value, 4) for key, value in summarize(cell).items()}
    print(time.strftime("%H:%M:%S"), cell["cluster"], cell["model"], cell["objective"], figures, flush=True)
    for case in cell["cases"]:
        if abs(case["error"]) > 0.05:
            print("   ", case["plan"], f"{case['error']:+.1%}", f"late {case['late']:.3f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each placer")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no cell begins after them")
    parser.add_argument("--only", choices=CLUSTERS, nargs="+", default=list(CLUSTERS))
    parser.add_argument("--model", choices=MODELS, nargs="+", default=MODELS)
    parser.add_argument("--objective", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--realtime", action="store_true", help="run the cluster before all else (Linux, as root)")
    parser.add_argument("--resume", action="store_true", help="leave out cells that are finished")
    options = parser.parse_args()
    wanted = list(product(options.model, options.only, options.objective))
    if options.resume:
        wanted = [cell for cell in wanted if len(finished().get(cell, {"cases": []})["cases"]) < options.plans]
    until, stopped = time.monotonic() + 60 * options.minutes, []
    SCRATCH.mkdir(exist_ok=True)
    try:
        for cell in run_cells(wanted, options.plans, options.seconds, until, realtime=options.realtime):
            with FINISHED.open("a") as file:
                file.write(json.dumps(cell) + "\n")
            show_cell(cell)
    except RunError as error:
        stopped = [f"stopped early: {error}"]
    found = published() | finished()
    cells = [found[key] for key in product(MODELS, CLUSTERS, KINDS) if key in found]
    text, missed = table(cells)
    return report("emulated", cells, stopped + missed, text, ("numpy", "placewise"))


if __name__ == "__main__":
    sys.exit(main())

"""Training steps under five schedules: our search beside even splits, on equal and on unequal devices.

    python benchmarks/step.py        (some minutes, no network)

Three training graphs, 8 micro-batches, on 4 equal devices (4xV100-16GB) and on 4 unequal ones (2xV100-16GB,2xP100).
For every schedule: the best step that the search finds with seed 0 and 1,500 simulated steps, its lower bound, and the
even split that one writes by hand for `torch.distributed.pipelining`, as many forward ops in every stage, under the
same schedule and judge. `auto` chooses the schedule too. The last columns say how long one simulation takes for 16
devices and 128 micro-batches. Writes results/step.json and results/step.md; exits with 1 where the search is slower
than the even split, or `auto` slower than 1.5 % above the best schedule.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import placewise as pw
from placewise.core.place import place
from placewise.model.problem import Objective, Problem
from placewise.placers.base import Budget
from placewise.simulate.contiguity import contract
from placewise.simulate.step.judge import price_pipeline
from placewise.simulate.step.orders import SCHEDULES, count_stages
from placewise.simulate.step.program import make_program, run_through
from placewise.simulate.step.stage_costs import Hop, Pipeline

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MODELS = {
    "bert-base": ("zoo:bert-base", {}),
    "resnet50": (str(ROOT / "examples" / "models" / "resnet50.onnx"), {"batch": 16}),
    "gpt2": (str(ROOT / "examples" / "models" / "gpt2.onnx"), {"batch": 2, "seq": 256}),
}
DEVICES = {"equal": "4xV100-16GB", "unequal": "2xV100-16GB,2xP100"}
MICROBATCHES, EVALUATIONS, SEED = 8, 1500, 0
NEAR = 1.015


def even_split(problem: Problem, schedule: str) -> float:
    """Seconds of a step with as many forward ops in every stage, on the devices in order; inf where it does not fit."""
    graph, stages = contract(problem), count_stages(schedule, problem.n_devices)
    forward = np.bincount(graph.component[~problem.graph.ops.backward], minlength=graph.n)
    before = np.cumsum(forward) - forward / 2
    stage = np.minimum(before / forward.sum() * stages, stages - 1).astype(np.int32)
    line = tuple(range(problem.n_devices))
    short, run = price_pipeline(problem, Pipeline(schedule, (line,), stage[graph.component], stages))
    return math.inf if short else run.value


def measure(problem: Problem, schedule: str) -> dict[str, Any]:
    """The row of one schedule."""
    asked = problem.with_(objective=Objective("step", schedule=schedule))  # type: ignore[arg-type]
    started = time.monotonic()
    result = place(asked, budget=Budget(evaluations=EVALUATIONS, seed=SEED))
    took = time.monotonic() - started
    use = result.judgement.pipeline if result.judgement else None
    return {
        "schedule": schedule,
        "seconds": result.value if use else None,
        "bound": result.lower_bound,
        "chosen": use.schedule if use else "",
        "stages": len(use.stages) if use else 0,
        "bubble": use.bubble if use else None,
        "most_bytes": max(device.peak for device in result.judgement.devices) if result.judgement else None,
        "even": None if schedule == "auto" or math.isinf(even := even_split(asked, schedule)) else even,
        "took": took,
    }


def time_simulation(n_devices: int = 16, microbatches: int = 128) -> dict[str, float]:
    """Milliseconds of one simulation with a transfer each way between neighbours, the median of nine."""
    found = {}
    for schedule in SCHEDULES:
        stages = count_stages(schedule, n_devices)
        hops = tuple(
            Hop(a + kind * stages, -1, b + kind * stages, (a, b), False)
            for s in range(stages - 1)
            for kind, a, b in ((0, s, s + 1), (1, s + 1, s))
        )
        program = make_program(schedule, n_devices, microbatches, hops)
        duration = np.random.default_rng(SEED).random(3 * stages + len(hops))
        times = []
        for _ in range(9):
            started = time.perf_counter()
            run_through(duration[program.type].tolist(), program.resource, program.before)
            times.append(1e3 * (time.perf_counter() - started))
        found[schedule] = statistics.median(times)
    return found


def row_text(row: dict[str, Any]) -> str:
    """One row of the table."""
    seconds, even = row["seconds"], row["even"]
    name = row["schedule"] if row["schedule"] != "auto" else f"auto: {row['chosen']}"
    if seconds is None:
        return f"| {name} | none fits | | | {f'{1e3 * even:.1f}' if even else 'does not fit'} | | | {row['took']:.0f} |"
    beside = "" if row["schedule"] == "auto" else f"{1e3 * even:.1f}" if even else "does not fit"
    ratio = f"{even / seconds:.2f}" if even else ""
    return (
        f"| {name} | {1e3 * seconds:.1f} | {1e3 * row['bound']:.1f} | {row['bubble']:.1%} | {beside} | {ratio} | "
        f"{row['most_bytes'] / 2**30:.1f} | {row['took']:.0f} |"
    )


def main() -> int:
    """Run everything, write both files, and say whether the search kept its word."""
    results: dict[str, Any] = {"microbatches": MICROBATCHES, "evaluations": EVALUATIONS, "seed": SEED, "rows": {}}
    about = __doc__.split("\n\n")[2].replace("\n", " ")
    lines = [
        "# Training steps under five schedules", "", f"`python benchmarks/step.py`: {about}", "",
        "Times of steps are the roofline's, in milliseconds; the memory is that of the fullest device.", "",
    ]  # fmt: skip
    failed = []
    for kind, devices in DEVICES.items():
        for name, (model, dims) in MODELS.items():
            built = pw.build(
                model,
                devices,
                pw.ProblemOptions(graph="training", objective="step", microbatches=MICROBATCHES, dims=dims),
            )
            rows = [measure(built, schedule) for schedule in (*SCHEDULES, "auto")]
            results["rows"][f"{name}, {kind}"] = rows
            lines += [f"## {name} on {devices}", ""]
            lines += ["| schedule | step | bound | bubble | even split | even / ours | GiB | took, s |"]
            lines += ["|---|--:|--:|--:|--:|--:|--:|--:|", *map(row_text, rows), ""]
            best = min((row["seconds"] for row in rows if row["seconds"]), default=math.inf)
            beaten = [r for r in rows if r["even"] and not (r["seconds"] or math.inf) <= r["even"] * (1 + 1e-9)]
            failed += [f"{name} {kind} {row['schedule']}" for row in beaten]
            failed += [f"{name} {kind} auto"] if not (rows[-1]["seconds"] or math.inf) <= NEAR * best else []
            print("\n".join(lines[-len(rows) - 5 :]), flush=True)
    results["simulation_ms"] = time_simulation()
    lines += ["## One simulation of 16 devices and 128 micro-batches", ""]
    lines += [f"- {name}: {milliseconds:.1f} ms" for name, milliseconds in results["simulation_ms"].items()]
    (RESULTS / "step.json").write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS / "step.md").write_text("\n".join(lines) + "\n")
    print("\n".join(failed) or "every row keeps its word")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

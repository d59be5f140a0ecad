"""Training steps under five schedules: our search beside even splits, on equal and on unequal devices.

    python benchmarks/step.py [--peers]        (some minutes, no network)

Three training graphs, 8 micro-batches, on 4 equal devices (4xV100-16GB) and on 4 unequal ones (2xV100-16GB,2xP100).
For every schedule: the best step that the search finds with seed 0 and 1,500 simulated steps, its lower bound, and the
even split that one writes by hand for `torch.distributed.pipelining`, as many forward ops in every stage, under the
same schedule and judge. `auto` chooses the schedule too. *Equal weights* are stages of as many parameters each: so cuts
`split_into_equal_size` of PiPPy, which became `torch.distributed.pipelining`; PyTorch 2.13 itself has no policy. The
bubbles of the published scheduler are those of ZB-H1's authors, on their costs. The last lines say how long one
simulation takes for 16 devices and 128 micro-batches. Writes results/step.json and results/step.md; exits with 1 where
the search is slower than either split, `auto` slower than 1.5 % above the best schedule, or a bubble not the published
one. `--peers` takes the searches from results/step.json.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import placewise as pw
from placewise.core.place import place
from placewise.model.columns import Ints
from placewise.model.problem import Objective, Problem
from placewise.placers.base import Budget
from placewise.simulate.contiguity import contract
from placewise.simulate.step.judge import price_pipeline
from placewise.simulate.step.orders import SCHEDULES, SPLITS_BACKWARD, count_stages, device_of_stage
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
NEAR, SAME_BUBBLE = 1.015, 1e-4
PUBLISHED = (
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.1585, 0.0433),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674, 0.0674, 0.0026),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.1323, 0.0029),
    (8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554, 0.0554, 0.0010),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397, 0.1397, 0.0066),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0576, 0.0576, 0.0028),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1421, 0.1421, 0.0038),
    (32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0594, 0.0594, 0.0018),
)
"""Devices, micro-batches, milliseconds of F, B, W and a transfer, and the bubbles of 1F1B, ZB-H1, ZB-1p and ZB-2p.

Of GPT models of 1.5, 6.2, 14.6 and 28.3 billion parameters on A100s: Qi et al., Zero Bubble Pipeline Parallelism (ICLR
2024), and github.com/sail-sg/zero-bubble-pipeline-parallelism. ZB-2p holds twice the activations of 1F1B.
"""


def even_split(problem: Problem, schedule: str) -> float:
    """Seconds of a step with as many forward ops in every stage, on the devices in order; inf where it does not fit."""
    graph, stages = contract(problem), count_stages(schedule, problem.n_devices)
    forward = np.bincount(graph.component[~problem.graph.ops.backward], minlength=graph.n)
    before = np.cumsum(forward) - forward / 2
    stage = np.minimum(before / forward.sum() * stages, stages - 1).astype(np.int32)
    return price_stages(problem, schedule, stage[graph.component])


def equal_weights(problem: Problem, schedule: str) -> float:
    """Seconds of a step with as many parameters in every stage, each used first there; inf where it does not fit.

    A stage ends before the op whose parameters it has no room for.
    """
    graph, stages, weights = contract(problem), count_stages(schedule, problem.n_devices), problem.graph.weights
    own, seen = np.zeros(graph.n), set[int]()
    for op in np.flatnonzero(~problem.graph.ops.backward).tolist():
        for weight in problem.graph.weights_of(op).tolist():
            if weights.trainable[weight] and weights.storage[weight] not in seen:
                seen.add(int(weights.storage[weight]))
                own[graph.component[op]] += weights.bytes[weight]
    most, held, at = own.sum() / stages, 0.0, 0
    stage = np.zeros(graph.n, np.int32)
    for component, size in enumerate(own.tolist()):
        if held and held + size > most and at < stages - 1:
            at, held = at + 1, 0.0
        held += size
        stage[component] = at
    return price_stages(problem, schedule, stage[graph.component])


def price_stages(problem: Problem, schedule: str, stage: Ints) -> float:
    """Seconds of a step with these stages [n_ops], on the devices in order; inf where it does not fit."""
    line, stages = tuple(range(problem.n_devices)), count_stages(schedule, problem.n_devices)
    short, run = price_pipeline(problem, Pipeline(schedule, (line,), stage, stages))
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
        "took": took,
    }


def price_splits(problem: Problem, schedule: str) -> dict[str, float | None]:
    """Seconds of the splits that need no search; None for one that does not fit, and without a schedule."""
    if schedule == "auto":
        return {"even": None, "weights": None}
    asked = problem.with_(objective=Objective("step", schedule=schedule))  # type: ignore[arg-type]
    found = {"even": even_split(asked, schedule), "weights": equal_weights(asked, schedule)}
    return {name: seconds if math.isfinite(seconds) else None for name, seconds in found.items()}


def list_hops(schedule: str, n_devices: int) -> tuple[Hop, ...]:
    """A transfer each way between stages that follow each other on two devices."""
    stages = count_stages(schedule, n_devices)
    place = [device_of_stage(schedule, stage, n_devices) for stage in range(stages)]
    return tuple(
        Hop(a + kind * stages, -1, b + kind * stages, (a, b), False)
        for s in range(stages - 1)
        for kind, a, b in ((0, s, s + 1), (1, s + 1, s))
        if place[a] != place[b]
    )


def simulate_bubble(schedule: str, costs: Sequence[float]) -> float:
    """The share of a step in which devices wait, with equal stages of such `PUBLISHED` costs."""
    n_devices, microbatches, forward, backward, weight, transfer = costs
    stages, hops = count_stages(schedule, int(n_devices)), list_hops(schedule, int(n_devices))
    tasks = [forward, backward, weight] if schedule in SPLITS_BACKWARD else [forward, backward + weight, 0.0]
    share = stages / n_devices
    duration = np.array([seconds / share for seconds in tasks for _ in range(stages)] + [transfer] * len(hops))
    program = make_program(schedule, int(n_devices), int(microbatches), hops)
    _, ends = run_through(duration[program.type].tolist(), program.resource, program.before)
    return 1 - microbatches * (forward + backward + weight) / float(ends.max())


def compare_published() -> list[dict[str, Any]]:
    """Our bubbles beside the published ones."""
    names = ("devices", "microbatches", "forward", "backward", "weight", "transfer", "1f1b", "zb-h1", "zb-1p", "zb-2p")
    return [
        dict(zip(names, row, strict=True))
        | {f"our {schedule}": simulate_bubble(schedule, row[:6]) for schedule in ("1f1b", "zb-h1", "zb-v")}
        for row in PUBLISHED
    ]


def time_simulation(n_devices: int = 16, microbatches: int = 128) -> dict[str, float]:
    """Milliseconds of one simulation with a transfer each way between neighbours, the median of nine."""
    found = {}
    for schedule in SCHEDULES:
        stages = count_stages(schedule, n_devices)
        hops = list_hops(schedule, n_devices)
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
    seconds, splits = row["seconds"], [row["even"], row["weights"]]
    known = row["schedule"] != "auto"
    name = row["schedule"] if known else f"auto: {row['chosen']}"
    cells = [f"{1e3 * other:.1f}" if other else "does not fit" if known else "" for other in splits]
    if seconds is None:
        return f"| {name} | none fits | | | {' | '.join(cells)} | | | | {row['took']:.0f} |"
    ratios = [f"{other / seconds:.2f}" if other else "" for other in splits]
    return (
        f"| {name} | {1e3 * seconds:.1f} | {1e3 * row['bound']:.1f} | {row['bubble']:.1%} | {' | '.join(cells)} | "
        f"{' | '.join(ratios)} | {row['most_bytes'] / 2**30:.1f} | {row['took']:.0f} |"
    )


def published_text(rows: list[dict[str, Any]]) -> list[str]:
    """The table of published bubbles."""
    columns = ("1f1b", "our 1f1b", "zb-h1", "our zb-h1", "zb-1p", "zb-2p", "our zb-v")
    head = " | ".join(column if column.startswith("our ") else f"published {column}" for column in columns)
    lines = [
        "## Bubbles of the published scheduler", "",
        "On its own costs; ZB-V has half a stage in each of its own, and the memory of 1F1B.", "",
        f"| devices | micro-batches | F, B, W, transfer (ms) | {head} |", f"|--:|--:|---|{'--:|' * len(columns)}",
    ]  # fmt: skip
    for row in rows:
        costs = ", ".join(f"{row[name]:.3f}" for name in ("forward", "backward", "weight", "transfer"))
        cells = " | ".join(f"{row[column]:.2%}" for column in columns)
        lines.append(f"| {row['devices']} | {row['microbatches']} | {costs} | {cells} |")
    return [*lines, ""]


def main() -> int:
    """Run everything, write both files, and say whether the search kept its word."""
    only_peers = "--peers" in sys.argv[1:]
    kept = json.loads((RESULTS / "step.json").read_text()) if only_peers else {}
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
            rows = kept["rows"][f"{name}, {kind}"] if only_peers else [measure(built, s) for s in (*SCHEDULES, "auto")]
            rows = [row | price_splits(built, row["schedule"]) for row in rows]
            results["rows"][f"{name}, {kind}"] = rows
            lines += [f"## {name} on {devices}", ""]
            columns = (
                "step | bound | bubble | even split | equal weights | even / ours | weights / ours | GiB | took, s"
            )
            lines += [f"| schedule | {columns} |"]
            lines += [f"|---|{'--:|' * 9}", *map(row_text, rows), ""]
            best = min((row["seconds"] for row in rows if row["seconds"]), default=math.inf)
            beaten = [
                row for row in rows for split in ("even", "weights")
                if row[split] and not (row["seconds"] or math.inf) <= row[split] * (1 + 1e-9)
            ]  # fmt: skip
            failed += [f"{name} {kind} {row['schedule']}" for row in beaten]
            failed += [f"{name} {kind} auto"] if not (rows[-1]["seconds"] or math.inf) <= NEAR * best else []
            print("\n".join(lines[-len(rows) - 5 :]), flush=True)
    results["published"] = compare_published()
    lines += published_text(results["published"])
    for row in results["published"]:
        far = [name for name in ("1f1b", "zb-h1") if abs(row[name] - row[f"our {name}"]) > SAME_BUBBLE]
        failed += [f"published {name} on {row['devices']} devices" for name in far]
    results["simulation_ms"] = kept.get("simulation_ms") or time_simulation()
    lines += ["## One simulation of 16 devices and 128 micro-batches", ""]
    lines += [f"- {name}: {milliseconds:.1f} ms" for name, milliseconds in results["simulation_ms"].items()]
    (RESULTS / "step.json").write_text(json.dumps(results, indent=1) + "\n")
    (RESULTS / "step.md").write_text("\n".join(lines) + "\n")
    print("\n".join(failed) or "every row keeps its word")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

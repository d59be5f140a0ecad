"""Predicted and measured training steps of plans with tensor, pipeline and data parallelism, over gloo on two cores.

    python benchmarks/real/split.py [--rounds 7] [--only llama,bert]
    python benchmarks/real/split.py --check    # results only; the published seconds stay

Three models, five plans each: on two processes, one per core, and on four, two per core. What the judge needs is
measured in the same processes, in turns with the plans: the mean seconds of the parts of a model (what comes before the
layers, a layer or block, what comes after them) while all processes compute, and of all-reduces between pairs. No plan
is part of it. The value is that of a full pipeline; a step of N micro-batches takes N times the value and, once,
all other stages.
Outputs and gradients of every plan are compared with those of one process, in float64 and in float32. Reported: the
error of every prediction; the rank correlation of prediction and measurement, beside that of the halves of the rounds;
and how much longer the plan that is predicted best takes than the one that is measured best. Writes
results/real_split.json and .md; other models keep their rows. Exits with 1 if a prediction is off by more than 5 %, if
the best predicted plan takes over 5 % longer than the best measured one, or if the order of the plans is not the
predicted one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from common import HERE, RESULTS, calm, command, report
from parallel_group import ParallelGroup
from split_parts import BUILDERS, list_parts, part

from placewise.catalog.detect import this_core
from placewise.coarsen.units import group_units
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.parallel_plan import describe_modules
from placewise.core.split_ways import add_ways
from placewise.costing.sharding.backward import OPTIMIZER
from placewise.model.cluster import HOST, Cluster, Link
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.ways import StageGroup
from placewise.profiling.calibrate import rank_correlation
from placewise.simulate import judge_placement

MODELS = HERE.parents[1] / "examples" / "parallel" / "models.py"
WORDS = {"words": 1000, "width": 384, "layers": 8, "batch": 4, "length": 128}
SIZES = {"llama": WORDS, "bert": WORDS, "resnet": {"width": 64, "blocks": (2, 2, 2, 2), "batch": 8, "size": 112}}
MICROBATCHES, CORES, MAX_ERROR, TOLERANCE = 16, 2, 0.05, 1e-4
CHECKED, PART_STEPS, EXCHANGE_STEPS = 4, 4, 25
EXCHANGES = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
"""Bytes of the all-reduces that are measured."""


LIMITS = (
    "What the costs leave out: in a split layer, PyTorch's DTensor spends time in Python for every op, and both "
    "processes wait at each all-reduce until the slower one is there; alone and back to back, as measured, all-reduces "
    "take less. Four stages on two cores fill and drain faster than predicted, presumably because a stage has its core "
    "for itself meanwhile. In float32, a rounded value on the other side of a ReLU's zero changes the gradients of the "
    "ResNet more than rounding does, also in one process.",
)


class Shape(NamedTuple):
    """Stages, replicas, devices of a split."""

    stages: int
    replicas: int
    degree: int

    @property
    def world(self) -> int:
        return self.stages * self.replicas * self.degree

    def __str__(self) -> str:
        sizes = {"pp": self.stages, "dp": self.replicas, "tp": self.degree}
        return " × ".join(f"{name}{size}" for name, size in sizes.items() if size > 1)


SHAPES = (Shape(1, 1, 2), Shape(2, 1, 1), Shape(1, 2, 1), Shape(2, 1, 2), Shape(4, 1, 1))
WORLDS = sorted({shape.world for shape in SHAPES})


def parts_of(name: str) -> list[str]:
    """The parts that are measured: each once, and the cost of measuring."""
    return [*dict.fromkeys(list_parts(name, SIZES[name])), "nothing"]


def draw(name: str, count: int, which: str = "start") -> list[np.ndarray]:
    """The input of so many micro-batches, or of a part of the model: words, pictures or hidden values."""
    (value,), rng = part(name, which, SIZES[name])[1], np.random.default_rng(0)
    shape = count, *value.shape
    if not value.is_floating_point():
        return [rng.integers(0, SIZES[name]["words"], shape)]
    return [rng.standard_normal(shape, np.float32)]


def base_problem(name: str, world: int, latency: float, bandwidth: float) -> Problem:
    """The training step on as many processes, with the measured link between any two, and the roofline's costs."""
    devices = tuple(replace(this_core(), name=f"core:{number}") for number in range(world))
    names = [device.name for device in devices]
    links = [Link(a, b, bandwidth, latency) for a in names for b in names if a != b]
    links += [Link(*pair, 1e15) for a in names for pair in ((a, HOST), (HOST, a))]
    model, args = BUILDERS[name](**SIZES[name])
    options = ProblemOptions(graph="training", objective="throughput")
    return build(model, Cluster(devices, tuple(links), "direct"), options, example_inputs=args)


def with_measured(problem: Problem, name: str, seconds: Mapping[str, tuple[float, float]]) -> Problem:
    """The problem whose units take the measured seconds (forward, both passes), and no optimizer; with ways."""
    graph, costs = problem.graph, problem.costs.op_seconds.copy()
    unit = group_units(graph).unit
    updates = np.array([kind.startswith(OPTIMIZER) for kind in graph.ops.kind.values])[graph.ops.kind.codes]
    costs[updates] = 0.0
    parts = list_parts(name, SIZES[name])
    assert len(parts) == unit.max() + 1
    for number, which in enumerate(parts):
        forward, both = seconds[which]
        for ops, target in (
            ((unit == number) & ~graph.ops.backward, forward),
            ((unit == number) & graph.ops.backward & ~updates, both - forward),
        ):
            costs[ops] *= max(target, 0.0) / costs[ops, 0].sum()
    made = problem.with_(costs=replace(problem.costs, op_seconds=costs))
    options = ProblemOptions(
        graph="training", objective="throughput", tensor_parallel=2, recompute="never", microbatches=MICROBATCHES
    )
    return add_ways(made, None, options)


def make_placement(problem: Problem, shape: Shape) -> Placement:
    """Stages of equally many layers."""
    ways, width = problem.require_ways(), shape.replicas * shape.degree
    groups = [
        StageGroup(tuple(range(first, first + width)), shape.replicas, shape.degree)
        for first in range(0, shape.world, width)
    ]
    layers = ways.n_units - 2
    layer = np.clip(np.arange(ways.n_units) - 1, 0, layers - 1)
    stage = (layer * shape.stages // layers).astype(np.int32)
    way = [int(ways.ways_of(unit, shape.degree)[0]) for unit in range(ways.n_units)]
    return Placement.of_stages(ways, tuple(groups), stage, np.array(way, np.int32))


def predict_step(problem: Problem, placement: Placement) -> tuple[float, float]:
    """The judge's seconds per micro-batch of a full pipeline, and those of a step that fills and drains it."""
    judged = judge_placement(problem, placement)
    if not judged.valid:
        raise SystemExit(f"a plan breaks rules: {judged.violations}")
    once = [
        (stage.seconds - stage.gradients) * group.data_parallel
        for stage, group in zip(judged.stages, placement.stages, strict=True)
    ]
    return judged.value, MICROBATCHES * judged.value + sum(once) - max(once)


def measure_parts(group: ParallelGroup, name: str) -> dict[str, tuple[float, float]]:
    """Seconds of a forward pass, and of both passes, per micro-batch of each part, in all processes at once."""
    found = {}
    for which in parts_of(name):
        inputs = draw(name, PART_STEPS, which)
        found[which] = tuple(
            statistics.fmean(group.time_whole(f"{name} {which}", inputs, 3, train=train, everywhere=True)) / PART_STEPS
            for train in (False, True)
        )
    return found


def fit_link(times: Mapping[int, float]) -> tuple[float, float]:
    """Latency and bandwidth with which seconds of all-reduces by their bytes agree best, relatively."""
    sizes, seconds = np.array(list(times)), np.array(list(times.values()))
    rows = np.stack([1 / seconds, sizes / seconds], axis=1)
    latency, pace = np.linalg.lstsq(rows, np.ones(len(sizes)), rcond=None)[0].tolist()
    return max(latency, 0.0), 1 / max(pace, 1e-15)


def compare(group: ParallelGroup, name: str, key: str) -> dict[str, float]:
    """The largest errors of outputs, and of gradients as a share of the largest one, beside one process.

    In float64, and in the float32 in which the plans are timed (`float32_…`); `rounding` is by how much the gradients
    of one process in float32 differ from those in float64.
    """
    errors, whole = {}, []
    for prefix, dtype in (("", np.float64), ("float32_", np.float32)):
        inputs = [value.astype(dtype) if value.dtype == np.float32 else value for value in draw(name, CHECKED)]
        own, other = f"{prefix}check {key}", f"{prefix}check {name}"
        outputs = zip(group.outputs(own, inputs), group.whole_outputs(other, inputs), strict=True)
        errors[f"{prefix}output_error"] = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in outputs)
        wanted = group.whole_gradients(other, inputs)
        scale = max(float(np.abs(value).max()) for value in wanted.values())
        held = group.gradients(own, inputs)
        found = [float(np.abs(value - wanted[n]).max()) / scale for part in held for n, value in part.items()]
        errors[f"{prefix}gradient_error"] = max(found)
        whole.append(wanted)
    exact, rounded = whole
    scale = max(float(np.abs(value).max()) for value in exact.values())
    errors["rounding"] = max(float(np.abs(rounded[n] - value).max()) / scale for n, value in exact.items())
    return errors


def add_checked(group: ParallelGroup, name: str, shape: Shape, document: Mapping[str, Any]) -> None:
    """Prepare a plan, and the whole model, for a comparison in float64 and in float32."""
    file, document = MODELS, {**document, "microbatches": CHECKED}
    for prefix, model, sizes in (
        ("", f"{file}:in_float64", {"name": name, **SIZES[name]}),
        ("float32_", f"{file}:{name}", SIZES[name]),
    ):
        group.add(f"{prefix}check {name} {shape}", model, document, sizes)
        group.add_whole(f"{prefix}check {name}", model, sizes)


def check_model(name: str, groups: Mapping[int, ParallelGroup]) -> dict[Shape, dict[str, float]]:
    """What every plan of a model differs by from one process."""
    errors = {}
    for shape in SHAPES:
        group = groups[shape.world]
        add_checked(group, name, shape, describe_shape(name, shape))
        errors[shape] = compare(group, name, f"{name} {shape}")
        print(name, shape, errors[shape], flush=True)
    return errors


def describe_shape(name: str, shape: Shape) -> dict[str, Any]:
    """The document of a plan: no cost decides anything in it."""
    guess = dict.fromkeys(parts_of(name), (1e-3, 3e-3))
    problem = with_measured(base_problem(name, shape.world, 1e-4, 1e9), name, guess)
    return describe_modules(problem, make_placement(problem, shape))[0]


def run_model(name: str, groups: Mapping[int, ParallelGroup], rounds: int) -> dict[str, Any]:
    """Costs, predictions and measurements of one model."""
    model, inputs = f"{MODELS}:{name}", draw(name, MICROBATCHES)
    parts = f"{HERE / 'split_parts.py'}:part"
    errors = check_model(name, groups)
    for group in groups.values():
        for which in parts_of(name):
            group.add_whole(f"{name} {which}", parts, {"name": name, "which": which, "sizes": SIZES[name]})
        group.add_whole(name, model, SIZES[name])
    for shape in SHAPES:
        groups[shape.world].add(f"{name} {shape}", model, describe_shape(name, shape), SIZES[name])
    steps: dict[Shape, list[float]] = {shape: [] for shape in SHAPES}
    costs: dict[int, list[dict[str, tuple[float, float]]]] = {world: [] for world in groups}
    exchanges: dict[int, list[dict[int, float]]] = {world: [] for world in groups}
    whole: list[float] = []
    for number in range(rounds + 1):
        for world, group in groups.items():
            costs[world].append(measure_parts(group, name))
            found = {size: statistics.fmean(group.exchange_seconds(size, EXCHANGE_STEPS, 2)) for size in EXCHANGES}
            exchanges[world].append(found)
        for shape in SHAPES[number % len(SHAPES) :] + SHAPES[: number % len(SHAPES)]:
            steps[shape] += groups[shape.world].time(f"{name} {shape}", inputs)
        whole += groups[WORLDS[0]].time_whole(name, inputs)
        print(name, number, {str(shape): round(times[-1], 3) for shape, times in steps.items()}, flush=True)
    for column in (*steps.values(), *costs.values(), *exchanges.values(), whole):
        del column[0]  # the round that warms up
    return summarize(name, steps, costs, exchanges, whole, errors)


def summarize(
    name: str,
    steps: Mapping[Shape, list[float]],
    costs: Mapping[int, list[dict[str, tuple[float, float]]]],
    exchanges: Mapping[int, list[dict[int, float]]],
    whole: list[float],
    errors: Mapping[Shape, dict[str, float]],
) -> dict[str, Any]:
    """The predictions from the medians over rounds of what was measured, beside the plans."""
    problems, measured = {}, {}
    for world, rounds in costs.items():
        seconds = {
            which: tuple(statistics.median(one[which][k] - one["nothing"][k] for one in rounds) for k in (0, 1))
            for which in parts_of(name)
        }
        times = {size: statistics.median(one[size] for one in exchanges[world]) for size in EXCHANGES}
        latency, bandwidth = fit_link(times)
        problems[world] = with_measured(base_problem(name, world, latency, bandwidth), name, seconds)
        measured[world] = {"parts": seconds, "all_reduces": times, "latency": latency, "bandwidth": bandwidth}
    plans = []
    for shape, times in steps.items():
        problem = problems[shape.world]
        value, predicted = predict_step(problem, make_placement(problem, shape))
        plans.append(
            {
                "plan": str(shape), "processes": shape.world, "value": value, "predicted": predicted,
                "measured": statistics.median(times), "rounds": times,
                "error": predicted / statistics.median(times) - 1, **errors[shape],
            }
        )  # fmt: skip
    halves = [[statistics.median(plan["rounds"][start::2]) for plan in plans] for start in (0, 1)]
    predicted, seen = [np.array([plan[key] for plan in plans]) for key in ("predicted", "measured")]
    return {
        "model": name, "sizes": SIZES[name], "microbatches": MICROBATCHES, "one_process": statistics.median(whole),
        "plans": plans, "measured": {str(world): figures for world, figures in measured.items()},
        "rank": rank_correlation(predicted, seen), "halves": rank_correlation(*map(np.array, halves)),
        "same_order": bool((np.argsort(predicted) == np.argsort(seen)).all()), "command": command(),
    }  # fmt: skip


def measure_choice(row: dict[str, Any]) -> float:
    """Seconds of the plan that is predicted best over those of the plan that is measured best."""
    chosen = min(row["plans"], key=lambda plan: plan["predicted"])
    return chosen["measured"] / min(plan["measured"] for plan in row["plans"])


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What misses the goals."""
    found = []
    for row in rows:
        for plan in row["plans"]:
            if abs(plan["error"]) > MAX_ERROR:
                found.append(f"{row['model']}, {plan['plan']}: the prediction is off by {plan['error']:+.1%}")
            if max(plan["output_error"], plan["gradient_error"]) > TOLERANCE:
                found.append(f"{row['model']}, {plan['plan']}: results differ from those of one process")
        if measure_choice(row) > 1 + MAX_ERROR:
            found.append(f"{row['model']}: the plan predicted best takes {measure_choice(row):.3f}× the best measured")
        if not row["same_order"]:
            found.append(f"{row['model']}: the order of the plans is not the predicted one")
    return found


def text(rows: list[dict[str, Any]]) -> str:
    """The page."""
    made_by = "`, `".join(dict.fromkeys(row["command"] for row in rows))
    lines = [
        "# Plans with stages over gloo, predicted and measured",
        "",
        f"`{made_by}`; a training step of {MICROBATCHES} micro-batches in seconds, medians of rounds in turns; raw "
        f"figures in real_split.json. The machine has {CORES} cores and was not idle: other programs used them too, as "
        "the spread shows. Two processes have a core each, four share them. Op times (of layers, with all processes at "
        "work) and all-reduces were measured in turns with the plans; nothing is fitted to a plan. Predicted: "
        f"{MICROBATCHES} times the judge's value, and the other stages once. Spread: (largest − smallest) / median. "
        "Differences: the largest of outputs, and of gradients, from those of one process, relative to the largest "
        "entry; in float64, and in the float32 of the timed runs. Of one process: its gradients in float32 beside "
        "those in float64. `--check` makes these two columns alone.",
        "",
        "| model | plan | processes | measured | spread | predicted | error | differences | in float32 |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        rounding = f"{row['plans'][0]['rounding']:.0e}"
        lines.append(f"| {row['model']} | whole | 1 | {row['one_process']:.3f} | | | | | {rounding} |")
        for plan in row["plans"]:
            spread = (max(plan["rounds"]) - min(plan["rounds"])) / plan["measured"]
            lines.append(
                f"| {row['model']} | {plan['plan']} | {plan['processes']} | {plan['measured']:.3f} | {spread:.0%} | "
                f"{plan['predicted']:.3f} | {plan['error']:+.1%} | "
                f"{plan['output_error']:.0e}, {plan['gradient_error']:.0e} | "
                f"{plan['float32_output_error']:.0e}, {plan['float32_gradient_error']:.0e} |"
            )
    lines += [
        "",
        "| model | best predicted / best measured | rank correlation | of halves of the rounds | predicted order |",
        "|---|--:|--:|--:|---|",
    ]
    for row in rows:
        order = "yes" if row["same_order"] else "no"
        lines.append(
            f"| {row['model']} | {measure_choice(row):.3f} | {row['rank']:.3f} | {row['halves']:.3f} | {order} |"
        )
    lines += ["", *LIMITS, "", f"Beyond {MAX_ERROR:.0%}, or out of order:"]
    return "\n".join(lines)


def start_groups(stack: ExitStack) -> dict[int, ParallelGroup]:
    """Processes for every size of plan, until the stack closes."""
    return {
        world: stack.enter_context(ParallelGroup(world, cores=[[rank % CORES] for rank in range(world)]))
        for world in WORLDS
    }


def check_again(names: Sequence[str]) -> int:
    """Compare the results of plans again, beside the published seconds; the exit code."""
    path = RESULTS / "real_split.json"
    published = json.loads(path.read_text())
    rows = published["rows"]
    for row in (row for row in rows if row["model"] in names):
        with ExitStack() as stack:
            found = check_model(row["model"], start_groups(stack))
        for plan in row["plans"]:
            plan.update(next(errors for shape, errors in found.items() if str(shape) == plan["plan"]))
    missed = faults(rows)
    path.write_text(json.dumps({**published, "faults": missed}, indent=1) + "\n")
    lines = [text(rows), "", *(f"- {fault}" for fault in missed)]
    path.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n")
    return int(any("results differ" in fault for fault in missed))


def main() -> int:
    """Every model; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(BUILDERS), help="models, with commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--check", action="store_true", help="compare results only, and keep the published seconds")
    options = parser.parse_args()
    if options.check:
        return check_again(options.only.split(","))
    calm()
    path = RESULTS / "real_split.json"
    kept = {row["model"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    for name in options.only.split(","):
        with ExitStack() as stack:
            kept[name] = run_model(name, start_groups(stack), options.rounds)
    rows = [kept[name] for name in BUILDERS if name in kept]
    return report("split", rows, faults(rows), text(rows), libraries=("torch", "numpy", "placewise"))


if __name__ == "__main__":
    sys.exit(main())

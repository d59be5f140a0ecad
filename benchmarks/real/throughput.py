"""Throughput on two pinned cores, ONNX Runtime: the planned pipeline against what people do without one.

    python benchmarks/real/throughput.py [--only inception_v3] [--seconds 10] [--rounds 15] [--afresh]

Compared, samples in flight all the time: the plan; the even split (two stages of equal work); one replica of the whole
model per core, samples dealt in turn; the whole model with two threads; one core. Then once more on unequal cores: a
program that computes all the time is pinned to the second core, which leaves it about half; op times are measured with
it running. Weight bytes are those of the initializers that a process holds. Writes results/real_throughput.json and
.md. Exits with 1 below 0.95× two replicas on equal cores, or 1.3× the even split on unequal ones.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from common import (
    MODELS,
    calm,
    command,
    even_split,
    model_of,
    placed,
    problem_of,
    profiled,
    protocol_record,
    ratio,
    report,
)
from machine import cluster_file

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.model.placement import Placement
from placewise.profiling.profile import Profiling
from placewise.runtimes.base import Job
from placewise.runtimes.binding import bind
from placewise.runtimes.measure import Protocol, check_outputs, input_source, measure
from placewise.runtimes.onnxruntime.runtime import OnnxRuntime

HOW = Profiling(runtime="onnxruntime", repeats=40, loaded=True)
MIN_OF_REPLICAS, MIN_OVER_EVEN = 0.95, 1.3
_BURN = "import os\nos.sched_setaffinity(0, {%d})\nwhile True:\n    sum(range(100000))\n"


@contextmanager
def busy_core(core: int | None) -> Iterator[None]:
    """Somebody else's program on a core; nobody if there is None."""
    if core is None:
        yield
        return
    program = subprocess.Popen([sys.executable, "-c", _BURN % core])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def replicas(job: Job) -> Job:
    """The whole model on every device, with samples dealt in turn."""
    ops, devices = job.problem.n_ops, job.problem.n_devices
    everywhere = Placement(np.zeros(ops, np.int32), replicas=np.zeros(devices, np.int32))
    return replace(job.on(everywhere), options={"pieces": "few"})


def row(name: str, options: argparse.Namespace, *, unequal: bool) -> dict[str, Any]:
    """One model on equal or unequal cores."""
    devices = cluster_file(afresh=False)
    how = replace(HOW, loaded=not unequal)
    busy = calm()
    with busy_core(sorted(os.sched_getaffinity(0))[1] if unequal else None):
        path = profiled(name, devices, how, afresh=options.afresh, state="unequal" if unequal else "equal")
        problem = problem_of(name, devices, path, objective="throughput")
        result = placed(problem, "auto", options.seconds)
        assert result.placement is not None and result.judgement is not None
        model, dims = model_of(name)
        whole = build(model, "this", ProblemOptions(dims=dims))
        runtime, places = OnnxRuntime(), bind(problem.cluster)
        job = Job(problem, result.placement, places)
        fresh = input_source(problem.graph)
        protocol = Protocol(rounds=options.rounds, samples=24, in_flight=4, warm_up=8)
        with ExitStack() as stack:
            ready = {
                "one core": runtime.prepare(job.alone(0)),
                "plan": runtime.prepare(job),
                "even split": runtime.prepare(job.on(even_split(problem))),
                "two replicas": runtime.prepare(replicas(job)),
                "two threads": runtime.prepare(Job(whole, Placement.on(0, whole.n_ops), bind(whole.cluster))),
            }
            for prepared in ready.values():
                stack.callback(prepared.close)
            for other, prepared in ready.items():
                check_outputs(ready["one core"], prepared, fresh, who=other)
            found = measure(ready, fresh, protocol)
            lines = [
                {
                    "name": one.name,
                    "measured": one.seconds,
                    "spread": one.spread,
                    "rounds": list(one.rounds),
                    "failure": one.failure,
                    "resident": dict(ready[one.name].resident),
                }
                for one in found
            ]
    return {
        "model": name,
        "unequal": unequal,
        "busy": busy,
        "protocol": protocol_record(protocol),
        "predicted": result.value,
        "bound": result.lower_bound,
        "weights": [use.resident for use in result.judgement.devices],
        "of_replicas": ratio(lines, "two replicas", "plan"),
        "over_even": ratio(lines, "even split", "plan"),
        "over_one": ratio(lines, "one core", "plan"),
        "lines": lines,
    }


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What is below the goals."""
    found = []
    for one in rows:
        if not one["unequal"] and one["of_replicas"] < MIN_OF_REPLICAS:
            found.append(f"{one['model']}: {one['of_replicas']:.2f}× two replicas on equal cores")
        if one["unequal"] and one["over_even"] < MIN_OVER_EVEN:
            found.append(f"{one['model']}: {one['over_even']:.2f}× the even split on unequal cores")
    return found


def text(rows: list[dict[str, Any]], made_by: str) -> str:
    """The table."""
    lines = [
        "# Throughput on two cores, ONNX Runtime",
        "",
        f"`{made_by}`; milliseconds per sample, medians of rounds in turns, four samples in "
        "flight; raw figures in real_throughput.json. Unequal: another program computes on the second core. Weights: "
        "MiB that the two processes of the plan hold, of the model's.",
        "",
        "| model | cores | one core | two threads | two replicas | even split | plan | predicted | bound | over even | "
        "of replicas | weights |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in rows:
        by = {line["name"]: line for line in one["lines"]}
        cells = [
            f"{by[name]['measured'] * 1e3:.2f}" for name in ("one core", "two threads", "two replicas", "even split")
        ]
        held = " + ".join(f"{held / 2**20:.0f}" for held in one["weights"])
        lines.append(
            f"| {one['model']} | {'unequal' if one['unequal'] else 'equal'} | {' | '.join(cells)} | "
            f"**{by['plan']['measured'] * 1e3:.2f}** ({by['plan']['spread']:.1%}) | {one['predicted'] * 1e3:.2f} | "
            f"{one['bound'] * 1e3:.2f} | {one['over_even']:.2f}× | {one['of_replicas']:.2f}× | {held} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Every model, on equal and on unequal cores; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--seconds", type=float, default=10.0, help="for the placer")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--afresh", action="store_true", help="measure op times again")
    options = parser.parse_args()
    cluster_file(afresh=options.afresh)
    rows = [row(name, options, unequal=unequal) for unequal in (False, True) for name in MODELS if options.only in name]
    wrong = faults(rows)
    return report("throughput", rows, wrong, text(rows, command()))


if __name__ == "__main__":
    sys.exit(main())

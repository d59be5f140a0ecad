"""What the benchmarks on this machine share: models, profiles, a calm machine, and where results go."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from placewise.analysis.measure_placements import MeasuredPlacements
from placewise.catalog.detect import processor_title
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.files.profile_file import save_profile
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.model.result import Result
from placewise.placers.base import Budget
from placewise.profiling.profile import Profiling, profile
from placewise.runtimes.measure import Protocol

HERE = Path(__file__).parent
RESULTS, SCRATCH = HERE.parent / "results", HERE / "scratch"
EXAMPLES = HERE.parents[1] / "examples" / "models"
MODELS = {
    "inception_v3": ("inception_v3.onnx", {"batch": 1}),
    "resnet50": ("resnet50.onnx", {"batch": 1}),
    "bert_base": ("bert_base.onnx", {"batch": 1, "seq": 128}),
}
CALM, PATIENCE = 0.1, 15.0
"""A machine is calm while others use less than this share of it; how many seconds to wait for that."""


def model_of(name: str) -> tuple[str, dict[str, int]]:
    """The file of a model and its dimensions."""
    file, dims = MODELS[name]
    return str(EXAMPLES / file), dict(dims)


def profiled(name: str, devices: str, how: Profiling, *, afresh: bool, state: str = "equal") -> Path:
    """The profile of a model on these devices: measured now, or the one in the scratch folder for this `state`."""
    model, dims = model_of(name)
    path = SCRATCH / f"{name}-{how.runtime}-{state}.json"
    if afresh or not path.exists():
        SCRATCH.mkdir(exist_ok=True)
        calm()
        save_profile(profile(build(model, devices, ProblemOptions(dims=dims)), how), path)
    return path


def problem_of(name: str, devices: str, profile_path: Path, **options: Any) -> Problem:
    """The problem with measured costs."""
    model, dims = model_of(name)
    return build(model, devices, ProblemOptions(dims=dims, costs=(str(profile_path),), **options))


def placed(problem: Problem, placer: str, seconds: float) -> Result:
    """What a placer makes of it in so many seconds."""
    return place(problem, placer, Budget(seconds))


def even_split(problem: Problem) -> Placement:
    """Two stages of equal work, as for two equal cores: the best contiguous pipeline if both ran as core 0 does."""
    costs = problem.costs
    equal = replace(costs, op_seconds=np.repeat(costs.op_seconds[:, :1], problem.n_devices, axis=1))
    shaped = replace(problem.constraints, contiguous=True, convex=False)
    twin = problem.with_(costs=equal, constraints=shaped, objective=Objective("throughput"))
    found = place(twin, "dp", Budget(20.0)).placement
    assert found is not None
    return found


def calm() -> float:
    """Wait until others leave the machine alone, or patience ends; the share of it that they use now."""
    until = time.monotonic() + PATIENCE
    while True:
        before = _busy()
        time.sleep(0.5)
        busy, total = (b - a for a, b in zip(before, _busy(), strict=True))
        share = busy / max(total, 1)
        if share < CALM or time.monotonic() > until:
            return share


def _busy() -> tuple[int, int]:
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def command() -> str:
    """The command that is running; in real-time order it goes before everything else on the machine."""
    real_time = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    return " ".join([*(("chrt -f 10",) if real_time else ()), "python", *sys.argv])


def lines_of(race: MeasuredPlacements) -> list[dict[str, Any]]:
    """Every placement of a race as plain values."""
    return [
        {
            "name": timed.name,
            "predicted": timed.predicted,
            "measured": timed.seconds,
            "spread": timed.measurement.spread,
            "rounds": list(timed.measurement.rounds),
            "pieces": list(timed.realised.pieces) if timed.realised else [],
            "failure": timed.measurement.failure,
        }
        for timed in race.placements
    ]


def measured(lines: Sequence[dict[str, Any]], name: str) -> float:
    """The median of one placement."""
    return next(line["measured"] for line in lines if line["name"] == name)


def ratio(lines: Sequence[dict[str, Any]], slow: str, fast: str) -> float:
    """How many times as fast `fast` was: the median over rounds of the ratio in each."""
    one, other = (next(line["rounds"] for line in lines if line["name"] == name) for name in (slow, fast))
    return statistics.median(a / b for a, b in zip(one, other, strict=False))


LIBRARIES = ("onnxruntime", "openvino", "numpy", "placewise")


def report(
    name: str, rows: list[dict[str, Any]], wrong: list[str], text: str, libraries: Sequence[str] = LIBRARIES
) -> int:
    """Write raw results, with the machine and the command that they are from, and the table; the exit code."""
    about = {
        "processor": processor_title(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "libraries": {library: version(library) for library in libraries},
    }
    document = {"machine": about, "command": command(), "rows": rows, "faults": wrong}
    (RESULTS / f"real_{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    table = "\n".join([text, "", *(f"- {fault}" for fault in wrong)]).rstrip() + "\n"
    (RESULTS / f"real_{name}.md").write_text(table)
    print(table)
    return 1 if wrong else 0


def protocol_record(protocol: Protocol) -> dict[str, Any]:
    """How it was measured."""
    return {key: value for key, value in asdict(protocol).items() if value != float("inf")}

"""Policies that learn from really measured time, on this machine, against the plan and a plain search.

    python benchmarks/learned/measured.py [--only dataflow] [--seeds 1] [--minutes 25] [--evaluations 200]

Two workloads: Inception-V3 on two pinned cores, whose pieces start when their inputs arrive (ONNX Runtime), and
ResNet-50 on OpenVINO HETERO with two logical devices, the fast one of which may not run every kind (as in
benchmarks/real/hetero.py). HSDAG, ColocRL and `climb`, a search that changes a few blocks of the best placement so far,
may each measure so many placements, from nothing but the single devices. `auto` places on measured costs and measures
nothing; `auto, measured` chooses among its plans under several guesses of what a cut costs, by measuring them.
Finally all winners of a workload run side by side, in turns, with the best single device and HETERO's own split: only
these figures compare. They are raced again when a winner is new.

Needs a calm machine; two minutes or so per row. Options and files are those of rows.py; races are in
results/learned/measured_races.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "real"))

import hetero
from common import calm, command, lines_of, profiled, ratio
from common import problem_of as core_problem
from latency import HOW
from machine import cluster_file
from methods import Found, Method
from rows import SEEDS, Row, Table, arguments, fits, run

from placewise.analysis.measure_placements import SINGLE, Setting, measure_placements
from placewise.core.place import place
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers import registry
from placewise.placers.base import Budget
from placewise.placers.learned.placer import build_proposal
from placewise.placers.learned.pricing import Pricing
from placewise.runtimes.base import Job
from placewise.runtimes.binding import bind
from placewise.runtimes.measure import Protocol
from placewise.runtimes.openvino.runtime import own_split
from placewise.simulate import judge_placement
from placewise.training.measured_reward import MeasuredReward, MeasuringEffort, reward_of

TASKS = {"dataflow": "inception_v3", "hetero": "resnet50"}
RUNTIMES = {"dataflow": "onnxruntime", "hetero": "openvino"}
CARE = MeasuringEffort(side_by_side=8)
LAST = Protocol(rounds=15, samples=4)
MAX_SECONDS = 600.0
"""A policy that is not done by then ends with what it has."""
BATCH, MAX_MOVED = 8, 6
"""Of `climb`: neighbours that are measured at a time, and blocks that one of them moves at most."""


def problem(workload: str) -> Problem:
    """The problem of a workload, on measured costs."""
    name = TASKS[workload]
    if workload == "hetero":
        return hetero.priced(name)[0]
    devices = cluster_file(afresh=False)
    return core_problem(name, devices, profiled(name, devices, HOW, afresh=False))


def setting(workload: str) -> Setting:
    """Where its devices are."""
    return Setting(RUNTIMES[workload], hetero.BINDING if workload == "hetero" else {}, protocol=LAST)


def reward(workload: str, problem: Problem) -> MeasuredReward:
    """What measures its placements."""
    made = reward_of(RUNTIMES[workload], problem, setting(workload), CARE)
    assert made is not None
    return made()


@dataclass(frozen=True, slots=True)
class Measured(Method):
    """A method that finds its placement by running placements of `workload`, or without."""

    workload: str = ""
    placed_in: float = field(default=20.0)

    def run(self, problem: Problem, seed: int) -> Found:
        """The placement, and what it took when it was found."""
        busy, started = calm(), time.perf_counter()
        if self.placer == "auto" and not self.evaluations:
            result = place(problem, "auto", Budget(self.placed_in, seed=seed))
            placement, found = result.placement, {"value": result.value, "status": str(result.status), "evaluations": 0}
        else:
            with reward(self.workload, problem) as evaluate:
                price = Noted(problem, evaluate)
                placement, status = self._search(problem, seed, price)
                found = {
                    "value": price.value if np.isfinite(price.value) else None,
                    "status": status,
                    "evaluations": price.evaluations,
                    "failed": price.failed,
                    "failure": price.failure,
                    "single": evaluate.single,
                    "curve": price.curve,
                }
        device = None if placement is None else placement.device.tolist()
        seconds = round(time.perf_counter() - started, 1)
        return {**found, "measured": bool(found["evaluations"]), "seconds": seconds, "busy": busy, "device": device}

    def _search(self, problem: Problem, seed: int, price: Noted) -> tuple[Placement | None, str]:
        if self.placer == "auto":
            plans = hetero.candidates(TASKS[self.workload], hetero.priced(TASKS[self.workload])[1], 4.0)
            price(np.array([placement.device for placement in plans.values()]))
            return price.placement, "the best of its plans"
        if self.placer == "climb":
            return climb(problem, price, self.evaluations, seed), "finished"
        trainer: Any = registry.create(self.placer, self.options).trainer(problem, price, seed)  # type: ignore[attr-defined]
        trainer.begin()
        reason = trainer.run(Budget(self.seconds, evaluations=self.evaluations, seed=seed))
        return build_proposal(problem, trainer, self.placer, reason).placement, str(reason)


class Noted(Pricing):
    """Pricing by measurement that notes every improvement, and how many placements failed."""

    def __init__(self, problem: Problem, evaluate: MeasuredReward) -> None:
        super().__init__(problem, evaluate)
        self.failed, self.curve, self._began = 0, list[tuple[int, float, float]](), time.perf_counter()

    def __call__(self, placements: Ints) -> Floats:
        before, evaluations = self.value, self.evaluations
        seconds = super().__call__(placements)
        if self.evaluations > evaluations:
            self.failed += int(np.isnan(seconds).sum())
        if self.value < before:
            self.curve.append((self.evaluations, round(time.perf_counter() - self._began, 1), self.value))
        return seconds

    @property
    def placement(self) -> Placement | None:
        return None if self.best is None else Placement(self.best)


def climb(problem: Problem, price: Noted, evaluations: int, seed: int) -> Placement | None:
    """From the best single device: of a few placements that differ from the best in some blocks, the best is next."""
    rng, able = np.random.default_rng(seed), np.flatnonzero(problem.allowed.all(axis=0))
    barred = np.zeros((problem.n_blocks, problem.n_devices), np.bool_)
    np.logical_or.at(barred, problem.block, ~problem.allowed)
    price(np.repeat(able.astype(np.int32)[:, None], problem.n_ops, axis=1))
    while price.best is not None and price.evaluations < evaluations:
        home = np.zeros(problem.n_blocks, np.int32)
        home[problem.block] = price.best
        rows = []
        for _ in range(min(BATCH, evaluations - price.evaluations)):
            moved, first = home.copy(), int(rng.integers(problem.n_blocks))
            some = slice(first, first + int(rng.integers(1, MAX_MOVED + 1)))  # neighbours in the order of the graph
            device = int(rng.integers(problem.n_devices))
            moved[some] = np.where(barred[some, device], moved[some], device)
            rows.append(moved[problem.block])
        price(np.array(rows, np.int32))
    return price.placement


def table(options: argparse.Namespace) -> Table:
    """The rows in order of importance: every workload and method once, then more seeds."""
    rows = []
    for seed in range(SEEDS):
        for workload in TASKS:
            named = [(name, name, options.evaluations) for name in ("hsdag", "colocrl", "climb")]
            if not seed:
                named = [
                    ("auto", "auto", 0),
                    *([("auto, measured", "auto", 10)] if workload == "hetero" else []),
                    *named,
                ]
            for name, placer, count in named:
                kind = "placer" if placer == "auto" else "search" if placer == "climb" else "policy"
                method = Measured(name, kind, placer, evaluations=count, seconds=MAX_SECONDS, workload=workload)
                rows.append(Row("measured", workload, method, seed))
    about = "rewards measured on this machine"
    return Table("measured", about, tuple(rows), partial(text, rows=tuple(rows), options=options))


def raced(done: Mapping[str, Found], known: Mapping[str, Found], workloads: Iterable[str]) -> dict[str, Found]:
    """All winners of each of these workloads side by side; what is `known` already is not run again."""
    races = {}
    for workload in workloads:
        devices = {key: found["device"] for key, found in done.items() if found["workload"] == workload}
        winners = {key: Placement(np.array(device, np.int32)) for key, device in devices.items() if device is not None}
        if not winners:
            continue
        digest = hashlib.blake2b(json.dumps(devices, sort_keys=True).encode(), digest_size=8).hexdigest()
        races[workload] = known.get(workload, {})
        if races[workload].get("digest") == digest:
            continue
        made = problem(workload)
        if workload == "hetero":
            single = Placement.on(1, made.n_ops)
            winners[hetero.OWN] = own_split(Job(made, single, bind(made.cluster, hetero.BINDING)))
        busy = calm()
        lines = lines_of(measure_placements(made, winners, setting(workload)))
        predicted = {name: judge_placement(made, placement).value for name, placement in winners.items()}
        races[workload] = {"digest": digest, "busy": busy, "command": command(), "predicted": predicted, "lines": lines}
    return races


def text(done: Mapping[str, Found], command: str, *, rows: Sequence[Row], options: argparse.Namespace) -> str:
    """The table, one per workload."""
    path = races_path(options)
    races = json.loads(path.read_text()) if path.exists() else {}
    parts = [
        "# Rewards measured on this machine",
        "",
        f"`{command}`. ms: all winners side by side in turns, medians of rounds; over "
        "single, over auto: medians over rounds of the ratio. Found as: what the method itself measured for it. Within "
        "5 %: after how many measured placements a method had something within 5 % of what it ended with. Rows that "
        "are not run lacked the time, or were not asked for.",
    ]
    for workload, name in TASKS.items():
        lines = {line["name"]: line for line in races.get(workload, {}).get("lines", [])}
        parts += ["", f"## {workload}: {name}", ""]
        parts += ["| method | seed | measured | failed | within 5 % | minutes | found as | ms | spread | over single "
                  "| over auto | pieces |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
        for key in (SINGLE, hetero.OWN):
            if key in lines:
                parts.append(_line(key, "", {}, lines, key, workload))
        for row in rows:
            if row.workload == workload:
                found = done.get(row.key, {"evaluations": "not run"})
                ran = lines if row.key in done else {}
                parts.append(_line(row.method.name, str(row.seed), found, ran, row.key, workload))
        parts += _verdict(done, lines, workload)
    return "\n".join(parts)


def _line(method: str, seed: str, found: Found, lines: Mapping[str, Found], key: str, workload: str) -> str:
    line = lines.get(key)
    taken = ["", "", "", "", ""]
    if line is not None and not line["failure"]:
        every = list(lines.values())
        auto = f"{workload}/auto/0"
        taken = [
            f"**{line['measured'] * 1e3:.2f}**",
            f"{line['spread']:.1%}",
            f"{ratio(every, SINGLE, key):.2f}×",
            f"{ratio(every, auto, key):.2f}×" if auto in lines else "",
            "+".join(map(str, line["pieces"])),
        ]
    elif line is not None:
        taken[0] = "failed"
    soon, minutes, seen = "", "", ""
    if found.get("curve"):
        soon = str(next(count for count, _, value in found["curve"] if value <= 1.05 * found["curve"][-1][2]))
    if "seconds" in found:
        minutes = f"{found['seconds'] / 60:.1f}"
        seen = f"{found['value'] * 1e3:.2f}" if found["measured"] and found["value"] else ""
    counts = [str(found.get("evaluations", "")), str(found.get("failed", ""))]
    return f"| {' | '.join([method, seed, *counts, soon, minutes, seen, *taken])} |"


def _verdict(done: Mapping[str, Found], lines: Mapping[str, Found], workload: str) -> list[str]:
    """Medians over seeds, against auto and the search, in words."""
    medians = {}
    for method in ("hsdag", "colocrl", "climb", "auto", "auto, measured"):
        keys = [key for key, found in done.items() if found["method"] == method and found["workload"] == workload]
        ran = [lines[key]["measured"] for key in keys if key in lines and not lines[key]["failure"]]
        if ran:
            medians[method] = float(np.median(ran))
    said = [
        f"{learned} is slower than {other}: {medians[learned] / medians[other]:.2f}× its time (medians over seeds)."
        for learned in ("hsdag", "colocrl")
        for other in ("auto", "auto, measured", "climb")
        if learned in medians and other in medians and medians[learned] > medians[other]
    ]
    return ["", *said] if said else []


def races_path(options: argparse.Namespace) -> Path:
    """Where the races are kept."""
    found: Path = options.results / "learned" / "measured_races.json"
    return found


def main() -> int:
    """Rows, then races, then the table; the exit code."""
    parser = arguments(__doc__ or "", evaluations=200)
    options = parser.parse_args()
    made = table(options)
    if options.table:
        return run(made, options)
    run(made, options)
    rows = json.loads((options.results / "learned" / "measured.json").read_text())["rows"]
    current = {row.key: rows[row.key] for row in made.rows if row.key in rows and fits(row, rows[row.key])}
    workloads = {row.workload for row in made.rows if options.only in row.key}
    path = races_path(options)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **raced(current, known, workloads)}, indent=1) + "\n")
    options.table = True
    return run(made, options)


if __name__ == "__main__":
    sys.exit(main())

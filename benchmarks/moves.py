"""How many moves local search looks at per second: `python benchmarks/moves.py`.

A random layered graph of 2,000 ops (`zoo:random-layered`) on 8 P100s, from the even split
along the order of the ops. An evaluated move is one that was proposed, whose new max-load and energy were computed,
and that was taken or refused; proposals that move nothing do not count. Each run is one round of annealing from hot to
cold. Runs of all cases are interleaved, each waits for a calm moment, and medians count:

- direct and staged transfers, free placements: walks on one core and on two (target: 1,000,000 per second on two);
- chains of stages.

After every run the kept sums are compared with the judge. Raw figures go to benchmarks/results/moves.json.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from judge import calm, processor

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.model.problem import Problem
from placewise.placers.base import Budget, run_placer
from placewise.placers.local_search.throughput_annealing import chain_order
from placewise.placers.registry import create
from placewise.placers.shared.throughput_search.annealing import Annealer, AnnealingRound, clusters
from placewise.placers.shared.throughput_search.pipeline_costs import costs_of, native_costs
from placewise.simulate import evaluate
from placewise.simulate.contiguity import contract

RESULTS = Path(__file__).parent / "results" / "moves.json"
MODEL, DEVICES, N_OPS = "zoo:random-layered", "8xP100", 2000
STEPS, ROUNDS = 300_000, 5
HOT, COLD = 0.02, 2e-5
TARGET = 1e6


def problem_of(transfers: str, *, contiguous: bool) -> Problem:
    """The problem, with links between the devices or through host memory only."""
    made = build(MODEL, DEVICES, ProblemOptions("throughput", contiguous=contiguous, dims={"n_ops": N_OPS}))
    if transfers == made.cluster.transfers:
        return made
    cluster = replace(made.cluster, transfers=transfers)
    seconds = cluster.class_latency + made.graph.tensors.bytes[:, None] / cluster.class_bandwidth
    seconds[:, 0] = 0.0
    return made.with_(cluster=cluster, costs=replace(made.costs, transfer_seconds=seconds))


def case(name: str, transfers: str, walks: int, *, contiguous: bool = False) -> dict[str, Any]:
    """Everything that one case needs, warm."""
    problem = problem_of(transfers, contiguous=contiguous)
    start = run_placer(create("balanced"), problem, Budget()).placement
    assert start is not None, "the even split fits"
    chain = contract(problem) if contiguous else None
    group, n = (chain.component, chain.n) if chain is not None else (problem.block, problem.n_blocks)
    costs, scale = costs_of(problem, group, n, chain)
    home = np.zeros(n, np.int32)
    home[group] = start.device
    found = {"case": name, "problem": problem, "group": group, "scale": scale, "walks": walks, "home": home}
    found["annealer"] = Annealer(native_costs(costs), clusters(costs), time.monotonic)
    found["order"] = chain_order(costs, home, np.random.default_rng(0))
    run(found, 1000, 0)
    return found | {"rows": []}


def run(this: dict[str, Any], steps: int, seed: int) -> dict[str, float]:
    """One round of annealing; wall seconds, processor seconds, moves evaluated, and the best value in seconds."""
    annealer, before = this["annealer"], this["annealer"].moves
    starts = [(this["home"], this["order"])] * this["walks"]
    begun, worked = time.perf_counter(), time.process_time()
    walks = annealer.run(starts, AnnealingRound(HOT, COLD, steps), range(seed, seed + this["walks"]), lambda _: None)
    seconds, worked = time.perf_counter() - begun, time.process_time() - worked
    for walk in walks:
        judged = evaluate(this["problem"], walk.incumbent[this["group"]][None])[0]
        assert abs(walk.quality[1] / this["scale"] / judged - 1) < 1e-12, "the sums kept are not the judge's"
    value = min(walk.quality[1] for walk in walks) / this["scale"]
    return {"seconds": seconds, "processor": worked, "moves": annealer.moves - before, "value": value}


def main() -> int:
    cases = [
        case("direct, one core", "direct", 1),
        case("direct, two cores", "direct", 2),
        case("staged, two cores", "staged", 2),
        case("chain of stages, two cores", "direct", 2, contiguous=True),
    ]
    for round_ in range(ROUNDS):
        for this in cases:
            busy = calm()
            this["rows"].append({"busy": busy, **run(this, STEPS, 10 * round_)})
    print(f"{MODEL} with {N_OPS:,} ops on {DEVICES}: evaluated moves per second, medians of {ROUNDS} runs")
    missed = False
    for this in cases:
        rate = statistics.median(row["moves"] / row["seconds"] for row in this["rows"])
        best = max(row["moves"] / row["seconds"] for row in this["rows"])
        own = statistics.median(row["moves"] / row["processor"] for row in this["rows"])
        print(f"  {this['case']:28}{rate:12,.0f}  best {best:12,.0f}  per processor second {own:12,.0f}")
        missed |= this["walks"] == 2 and not this["problem"].constraints.contiguous and rate < TARGET
    quiet = sum(row["busy"] < 0.1 for this in cases for row in this["rows"])
    print(f"{quiet} of {ROUNDS * len(cases)} runs began on a calm machine; target on two cores: {TARGET:,.0f}")
    document = {
        "command": "python benchmarks/moves.py",
        "machine": {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()},
        "steps": STEPS,
        "cases": [{"case": this["case"], "rows": this["rows"]} for this in cases],
    }
    RESULTS.write_text(json.dumps(document) + "\n")
    print(f"raw figures: benchmarks/results/{RESULTS.name}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

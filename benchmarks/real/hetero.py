"""OpenVINO HETERO where the fast device may not run every kind of op: Placewise's plan against HETERO's own split.

    python benchmarks/real/hetero.py [--only resnet50] [--rounds 12] [--afresh]

Two logical devices on the same cores, so that one of them is busy at a time: `fast` computes in bfloat16, `slow` in
float32, and `fast` may not run some kinds. No profile says what a cut costs, so plans are made under several guesses,
and the one that runs fastest is taken; it is measured again for the table. Compared: the plan on measured costs
(`sequential`), what HETERO does by itself (the fast device takes all that it may run), and the slow device alone, which
is the only one that runs all.
Writes results/real_hetero.json and .md. Exits with 1 if the plan is slower than one of them by more than the spread.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from common import (
    MODELS,
    SCRATCH,
    calm,
    command,
    lines_of,
    measured,
    model_of,
    placed,
    protocol_record,
    ratio,
    report,
)

from placewise.analysis.measure_placements import SINGLE, Setting, measure_placements
from placewise.catalog import read_cluster
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.files.profile_file import save_profile
from placewise.model.cluster import Cluster, Link
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.profiling.profile import Profiling, profile
from placewise.runtimes.base import Job
from placewise.runtimes.binding import bind
from placewise.runtimes.measure import Protocol
from placewise.runtimes.openvino.runtime import own_split

UNSUPPORTED = {
    "inception_v3": frozenset({"Concat", "AveragePool", "MaxPool"}),
    "resnet50": frozenset({"Add", "MaxPool"}),
    "bert_base": frozenset({"Softmax", "LayerNormalization", "Gelu", "Erf"}),
}
CALLS = (0.0, 5e-5, 1e-4, 2e-4, 4e-4)
OWN = "HETERO's own"
BINDING = {
    "fast": "cores:0-1;INFERENCE_PRECISION_HINT=bf16",
    "slow": "cores:0-1;INFERENCE_PRECISION_HINT=f32",
}


def cluster(unsupported: frozenset[str], call: float = 0.0) -> Cluster:
    """The two logical devices; a tensor between them is copied in memory, and a piece costs `call` seconds."""
    core = read_cluster("2xcore").devices[0]
    fast = replace(core, name="fast", unsupported=unsupported, call_overhead=call)
    slow = replace(core, name="slow", call_overhead=call)
    pairs = [("fast", "slow"), ("slow", "fast")]
    ends = [(name, "host") for name in BINDING] + [("host", name) for name in BINDING]
    links = [Link(*pair, 1e10, 2e-5) for pair in pairs] + [Link(*pair, float("inf")) for pair in ends]
    return Cluster((fast, slow), tuple(links), "direct")


def candidates(name: str, problem_options: ProblemOptions, seconds: float) -> dict[str, Placement]:
    """Plans under several guesses of what a cut costs (lost fusion, other layouts), with fused kernels kept or not."""
    model, _ = model_of(name)
    found: dict[str, Placement] = {}
    for call in CALLS:
        problem = build(model, cluster(UNSUPPORTED[name], call), problem_options)
        for kept in (True, False):
            rules = problem.constraints if kept else replace(problem.constraints, together=())
            placement = placed(problem.with_(constraints=rules), "auto", seconds).placement
            if placement is not None and placement not in found.values():
                found[f"{call * 1e6:.0f} µs per piece, kernels {'kept' if kept else 'cut'}"] = placement
    return found


def priced(name: str, *, afresh: bool = False) -> tuple[Problem, ProblemOptions]:
    """The problem of a model, profiled in both precisions, and the problem_options that it was built by."""
    model, dims = model_of(name)
    path = SCRATCH / f"{name}-hetero.json"
    if afresh or not path.exists():
        SCRATCH.mkdir(exist_ok=True)
        how = Profiling(runtime="openvino", repeats=30, binding=BINDING)
        save_profile(profile(build(model, cluster(frozenset()), ProblemOptions(dims=dims)), how), path)
    problem_options = ProblemOptions(dims=dims, costs=(str(path),), execution="sequential")
    return build(model, cluster(UNSUPPORTED[name]), problem_options), problem_options


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model: profiled in both precisions, placed, and run."""
    problem, problem_options = priced(name, afresh=options.afresh)
    own = own_split(Job(problem, Placement.on(1, problem.n_ops), bind(problem.cluster, BINDING)))
    busy, protocol = calm(), Protocol(rounds=options.rounds, samples=4)
    setting = Setting("openvino", BINDING, protocol=protocol)
    plans = candidates(name, problem_options, options.seconds)
    tried = lines_of(measure_placements(problem, {**plans, OWN: own}, setting))
    chosen = min((line for line in tried if not line["failure"]), key=lambda line: line["measured"])["name"]
    best = {**plans, OWN: own}.get(chosen, Placement.on(1, problem.n_ops))
    calm()
    lines = lines_of(measure_placements(problem, {"plan": best, OWN: own}, setting))
    return {
        "model": name,
        "unsupported": sorted(UNSUPPORTED[name]),
        "busy": busy,
        "protocol": protocol_record(protocol),
        "chosen": chosen,
        "tried": [{key: line[key] for key in ("name", "predicted", "measured", "spread", "pieces")} for line in tried],
        "spread": max(line["spread"] for line in lines if line["rounds"]),
        "over_own": ratio(lines, OWN, "plan"),
        "over_single": ratio(lines, SINGLE, "plan"),
        "single": measured(lines, SINGLE),
        "lines": lines,
    }


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """Where the plan is slower than what people do without one."""
    return [
        f"{one['model']}: {one[field]:.3f}× {word}"
        for one in rows
        for field, word in (("over_own", "HETERO's own split"), ("over_single", "the slow device alone"))
        if one[field] < 1 - one["spread"]
    ]


def text(rows: list[dict[str, Any]], made_by: str) -> str:
    """The table."""
    lines = [
        "# OpenVINO HETERO, where the fast device may not run every kind",
        "",
        f"`{made_by}`; milliseconds, medians of rounds in turns; raw figures in "
        "real_hetero.json. Pieces: on fast + on slow.",
        "",
        "| model | fast may not run | slow alone | HETERO's own | pieces | plan | predicted | pieces | spread "
        "| over own | over slow |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in rows:
        by = {line["name"]: line for line in one["lines"]}
        plan, own, single = by["plan"], by[OWN], by[SINGLE]
        lines.append(
            f"| {one['model']} | {', '.join(one['unsupported'])} | {single['measured'] * 1e3:.2f} | "
            f"{own['measured'] * 1e3:.2f} | {'+'.join(map(str, own['pieces']))} | **{plan['measured'] * 1e3:.2f}** | "
            f"{plan['predicted'] * 1e3:.2f} | {'+'.join(map(str, plan['pieces']))} | {one['spread']:.1%} | "
            f"{one['over_own']:.2f}× | {one['over_single']:.2f}× |"
        )
    return "\n".join(lines)


def main() -> int:
    """Every model; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--seconds", type=float, default=4.0, help="for the placer, per guess")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--afresh", action="store_true", help="measure op times again")
    options = parser.parse_args()
    rows = [row(name, options) for name in MODELS if options.only in name]
    wrong = faults(rows)
    return report("hetero", rows, wrong, text(rows, command()))


if __name__ == "__main__":
    sys.exit(main())

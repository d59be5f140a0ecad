"""Latency on two pinned cores, ONNX Runtime: Placewise's plan, the even split and one core, predicted and measured.

The even split is two stages of equal work, one core after the other.

    python benchmarks/real/latency.py [--only inception_v3] [--seconds 20] [--rounds 30] [--afresh]

Op times are measured first (`--afresh`, else those of the last run), and the cluster's links are those of
`placewise devices 2xcore --measure`. Eleven placements are run to fit what pieces and hand-overs cost
(`fit_tuning`); the model is placed again with these figures, and of both plans and one core the one is taken
that is predicted to be the fastest; one core, if a split would gain less than three times the spread of the runs so
far: the right answer is then not to split. Beside every row: the lower bound on any placement under the measured costs.
Writes results/real_latency.json and .md. Exits with 1 if a plan is slower than one core by more than the spread, or if
one core was taken and the split turns out to be faster by three times the spread.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
from common import (
    MODELS,
    calm,
    command,
    even_split,
    lines_of,
    placed,
    problem_of,
    profiled,
    protocol_record,
    ratio,
    report,
)
from machine import cluster_file
from predict import Predictor, fit_tuning, with_tuning
from prediction import cases, drawn

from placewise.analysis.measure_placements import SINGLE, Setting, measure_placements
from placewise.core.split_model import cut
from placewise.files.profile_file import load_profile
from placewise.profiling.profile import Profiling
from placewise.runtimes.measure import Measurement, Protocol
from placewise.runtimes.onnxruntime.runtime import CALL, HAND_OVER

WORTH = 3.0
"""A predicted gain is taken if it is at least this many times the spread of the runs."""
UNCHOSEN = "best split"
"""The split that is predicted to be the fastest, whether it is taken or not."""
HOW = Profiling(runtime="onnxruntime", repeats=40, loaded=True)


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model: placed on measured costs, and run."""
    devices = cluster_file(afresh=False)
    path = profiled(name, devices, HOW, afresh=options.afresh)
    problem = problem_of(name, devices, path)
    predictor = Predictor(problem, load_profile(path))
    first = placed(problem, "auto", options.seconds)
    assert first.placement is not None
    known = cases(problem, [first.placement, *drawn(problem, first.placement, 10, 4, 1)], 4)
    tuning = fit_tuning(predictor, [case for case, _ in known])
    result = placed(with_tuning(problem, tuning), "auto", options.seconds)
    assert result.placement is not None
    single = result.baselines[SINGLE][0]
    foreseen = {
        word: predictor(placement, cut(problem, placement, hand_over=HAND_OVER, overhead=CALL), tuning).seconds
        for word, placement in (("one core", single), ("untuned", first.placement), ("tuned", result.placement))
    }
    noise = float(np.median([Measurement("", rounds).spread for _, rounds in known]))
    chosen = min(foreseen, key=foreseen.__getitem__)
    if foreseen["one core"] / foreseen[chosen] - 1 < WORTH * noise:
        chosen = "one core"
    plan = {"one core": single, "untuned": first.placement, "tuned": result.placement}[chosen]
    best = min(("untuned", "tuned"), key=foreseen.__getitem__)
    split = first.placement if best == "untuned" else result.placement
    entered = {"plan": plan, UNCHOSEN: split, "even split": even_split(problem)}
    protocol = Protocol(rounds=options.rounds, samples=5)
    busy = calm()
    found = measure_placements(problem, entered, Setting("onnxruntime", protocol=protocol))
    lines = lines_of(found)
    spread = max(line["spread"] for line in lines if line["rounds"])
    headroom = foreseen["one core"] / min(foreseen.values()) - 1
    return {
        "model": name,
        "busy": busy,
        "protocol": protocol_record(protocol),
        "bound": first.lower_bound,
        "tuning": {field: getattr(tuning, field) for field in ("call", "hand_over", "per_byte", "load")},
        "foreseen": foreseen,
        "chosen": chosen,
        "headroom": headroom,
        "noise": noise,
        "spread": spread,
        "split": len(set(plan.device.tolist())) > 1,
        "speedup": ratio(lines, SINGLE, "plan"),
        "over_even": ratio(lines, "even split", "plan"),
        "lines": lines,
    }


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What did not come out as it should."""
    found = []
    for one in rows:
        if one["speedup"] < 1 - one["spread"]:
            found.append(f"{one['model']}: the plan is {1 / one['speedup']:.3f}× slower than one core")
        gained = ratio(one["lines"], SINGLE, UNCHOSEN)
        if not one["split"] and gained > 1 + WORTH * one["spread"]:
            found.append(f"{one['model']}: one core is chosen, and a split is {gained:.2f}× as fast")
    return found


def text(rows: list[dict[str, Any]], made_by: str) -> str:
    """The table."""
    lines = [
        "# Latency on two cores, ONNX Runtime",
        "",
        f"`{made_by}`; milliseconds, medians of rounds in turns; raw figures in "
        "real_latency.json. Predicted: by measured op times and fitted hand-overs. Bound: no placement is below it, if "
        "hand-overs cost no more than the links say. Over one, over even: medians over rounds of the ratio.",
        "",
        "| model | one core | predicted | even split | best split | predicted | bound | pieces | plan | spread "
        "| over one | over even |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|--:|",
    ]
    for one in rows:
        by = {line["name"]: line for line in one["lines"]}
        plan, split, single, even = by["plan"], by[UNCHOSEN], by[SINGLE], by["even split"]
        lines.append(
            f"| {one['model']} | {_ms(single['measured'])} | {_ms(one['foreseen']['one core'])} | "
            f"{_ms(even['measured'])} | **{_ms(split['measured'])}** | "
            f"{_ms(min(one['foreseen']['tuned'], one['foreseen']['untuned']))} | {_ms(one['bound'])} | "
            f"{'+'.join(map(str, split['pieces']))} | {'split' if one['split'] else 'one core'}: "
            f"{_ms(plan['measured'])} | {one['spread']:.1%} | {one['speedup']:.2f}× | {one['over_even']:.2f}× |"
        )
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def main() -> int:
    """Every model; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the placer")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--afresh", action="store_true", help="measure op times again")
    options = parser.parse_args()
    cluster_file(afresh=options.afresh)
    rows = [row(name, options) for name in MODELS if options.only in name]
    wrong = faults(rows)
    return report("latency", rows, wrong, text(rows, command()))


if __name__ == "__main__":
    sys.exit(main())

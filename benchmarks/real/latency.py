"""Latency on two pinned cores, ONNX Runtime: Placewise's plan, the even split and one core, predicted and measured.

The even split is two stages of equal work, one core after the other.

    python benchmarks/real/latency.py [--only inception_v3] [--seconds 20] [--rounds 30] [--afresh]

Op times are measured first (`--afresh`, else those of the last run), and the cluster's links are those of
`placewise devices 2xcore --measure`. Headroom stands beside every row: the best single core, the lower bound on any
placement under the measured costs, and the spread of the runs. Where the bound leaves less than three times the spread,
the right answer is not to split. Writes results/real_latency.json and .md. Exits with 1 if a plan is slower than one
core by more than the spread, or if a model with headroom is not split.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from common import (
    MODELS,
    RESULTS,
    calm,
    command,
    even_split,
    lines_of,
    measured,
    placed,
    problem_of,
    profiled,
    protocol_record,
    ratio,
    save,
)
from machine import cluster_file

from placewise.runtimes.measure import Protocol
from placewise.studies.profile import Profiling
from placewise.studies.race import SINGLE, WORTH, Setting, race

HOW = Profiling(runtime="onnxruntime", repeats=40)


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model: placed on measured costs, and run."""
    devices = cluster_file(afresh=False)
    problem = problem_of(name, devices, profiled(name, devices, HOW, afresh=options.afresh))
    result = placed(problem, "auto", options.seconds)
    assert result.placement is not None
    entered = {"plan": result.placement, "even split": even_split(problem)}
    protocol = Protocol(rounds=options.rounds, samples=5)
    busy = calm()
    found = race(problem, entered, Setting("onnxruntime", protocol=protocol))
    lines = lines_of(found)
    spread = max(line["spread"] for line in lines if line["rounds"])
    single = measured(lines, SINGLE)
    headroom = found.single.predicted / result.lower_bound - 1
    return {
        "model": name,
        "busy": busy,
        "protocol": protocol_record(protocol),
        "bound": result.lower_bound,
        "gap": result.gap,
        "headroom": headroom,
        "spread": spread,
        "split": len(set(result.placement.device.tolist())) > 1,
        "speedup": ratio(lines, SINGLE, "plan"),
        "over_even": ratio(lines, "even split", "plan"),
        "single": single,
        "lines": lines,
    }


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What did not come out as it should."""
    found = []
    for one in rows:
        if one["speedup"] < 1 - one["spread"]:
            found.append(f"{one['model']}: the plan is {1 / one['speedup']:.3f}× slower than one core")
        if one["headroom"] > WORTH * one["spread"] and not one["split"]:
            found.append(f"{one['model']}: {one['headroom']:.0%} of headroom, and the plan uses one core")
    return found


def text(rows: list[dict[str, Any]], wrong: list[str]) -> str:
    """The table."""
    lines = [
        "# Latency on two cores, ONNX Runtime",
        "",
        "`python benchmarks/real/latency.py`; milliseconds, medians of rounds in turns; raw figures in "
        "real_latency.json. Predicted: the judge's value on measured op times. Bound: no placement is below it, by the "
        "same costs. Over one, over even: medians over rounds of the ratio.",
        "",
        "| model | one core | predicted | even split | plan | predicted | bound | pieces | spread | over one "
        "| over even |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in rows:
        by = {line["name"]: line for line in one["lines"]}
        plan, single, even = by["plan"], by[SINGLE], by["even split"]
        lines.append(
            f"| {one['model']} | {_ms(single['measured'])} | {_ms(single['predicted'])} | "
            f"{_ms(even['measured'])} | **{_ms(plan['measured'])}** | {_ms(plan['predicted'])} | "
            f"{_ms(one['bound'])} | {'+'.join(map(str, plan['pieces']))} | {one['spread']:.1%} | "
            f"{one['speedup']:.2f}× | {one['over_even']:.2f}× |"
        )
    return "\n".join([*lines, "", *(f"- {fault}" for fault in wrong)]).rstrip() + "\n"


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
    save("latency", {"command": command(), "rows": rows, "faults": wrong})
    (RESULTS / "real_latency.md").write_text(text(rows, wrong))
    print(text(rows, wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

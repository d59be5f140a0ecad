"""Predicted and measured latency of placements drawn by a fixed seed, two cores, ONNX Runtime.

    python benchmarks/real/prediction.py [--only inception_v3] [--rounds 8] [--afresh]

Per model: op times are measured, the four figures of `predict.Tuning` are fitted on one set of placements
(seed 1), and 36 others are drawn afterwards (seed 2), a third of them near the best plan. All are measured, a few at a
time, in turns. Reported: the median error; the rank correlation of prediction and measurement, beside that of one half
of the measurement's rounds with the other, which no prediction can be asked to beat; and how many are within 10 % of
the best. Also what the plain judge says (no tuning). Writes results/real_prediction.json and .md. Exits with 1 if the
median error is above 15 % or the correlation below 0.9 of what the halves reach.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import numpy as np
from common import MODELS, calm, command, lines_of, placed, problem_of, profiled, report
from machine import cluster_file
from predict import Predictor, TuningCase, fit_tuning

from placewise.analysis.measure_placements import SINGLE, Setting, measure_placements
from placewise.core.split_model import cut
from placewise.files.profile_file import load_profile
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.profiling.calibrate import rank_correlation
from placewise.profiling.profile import Profiling
from placewise.runtimes.measure import Protocol
from placewise.runtimes.onnxruntime.runtime import CALL, HAND_OVER
from placewise.simulate import judge_placement

HOW = Profiling(runtime="onnxruntime", repeats=40, loaded=True)
CALIBRATION, TEST, NEAR, BATCH = 12, 36, 12, 6
MAX_ERROR, MIN_RANK, WITHIN = 0.15, 0.9, 1.1


def drawn(problem: Problem, best: Placement, count: int, near: int, seed: int) -> list[Placement]:
    """`near` placements that move a few blocks of the best one, and others made of stretches of random length."""
    rng = np.random.default_rng(seed)
    found: list[Ints] = []
    home = np.zeros(problem.n_blocks, np.int32)
    home[problem.block] = best.device
    while len(found) < near:
        moved = home.copy()
        moved[rng.choice(problem.n_blocks, rng.integers(1, 6), replace=False)] ^= 1
        found.append(moved[problem.block])
    while len(found) < count:
        length = int(rng.integers(2, 60))
        stretch = np.arange(problem.n_blocks) // length
        found.append(rng.integers(0, 2, stretch.max() + 1).astype(np.int32)[stretch][problem.block])
    return [Placement(device) for device in found]


def cases(problem: Problem, placements: list[Placement], rounds: int) -> list[tuple[TuningCase, tuple[float, ...]]]:
    """Every placement that ran, as it was cut, with its median and its rounds."""
    found = []
    for first in range(0, len(placements), BATCH):
        some = {str(first + place): placement for place, placement in enumerate(placements[first : first + BATCH])}
        calm()
        for line in lines_of(
            measure_placements(problem, some, Setting("onnxruntime", protocol=Protocol(rounds=rounds, samples=3)))
        ):
            if line["name"] != SINGLE and line["rounds"]:
                placement = some[line["name"]]
                pieces = cut(problem, placement, hand_over=HAND_OVER, overhead=CALL)
                found.append((TuningCase(placement, pieces, line["measured"]), tuple(line["rounds"])))
    return found


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model: calibrated, then tested."""
    devices = cluster_file(afresh=False)
    path = profiled(name, devices, HOW, afresh=options.afresh)
    problem = problem_of(name, devices, path)
    best = placed(problem, "auto", 10.0).placement
    assert best is not None
    predictor = Predictor(problem, load_profile(path))
    known = cases(problem, [best, *drawn(problem, best, CALIBRATION, CALIBRATION // 3, 1)], options.rounds)
    tuning = fit_tuning(predictor, [case for case, _ in known])
    tested = cases(problem, drawn(problem, best, TEST, NEAR, 2), options.rounds)
    measured = np.array([case.seconds for case, _ in tested])
    predicted = np.array([predictor(case.placement, case.pieces, tuning).seconds for case, _ in tested])
    judged = np.array([judge_placement(problem, case.placement).value for case, _ in tested])
    halves = [np.array([np.median(rounds[start::2]) for _, rounds in tested]) for start in (0, 1)]
    lowest = min(measured.min(), known[0][0].seconds)
    return {
        "model": name,
        "tuning": {field: getattr(tuning, field) for field in ("call", "hand_over", "per_byte", "load")},
        "tested": len(tested),
        "failed": TEST - len(tested),
        "near": int((measured <= WITHIN * lowest).sum()),
        "best": lowest,
        "error": statistics.median(np.abs(predicted / measured - 1).tolist()),
        "judge_error": statistics.median(np.abs(judged / measured - 1).tolist()),
        "rank": rank_correlation(predicted, measured),
        "judge_rank": rank_correlation(judged, measured),
        "halves": rank_correlation(*halves),
        "measured": measured.tolist(),
        "predicted": predicted.tolist(),
        "judged": judged.tolist(),
    }


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What misses the goals."""
    found = []
    for one in rows:
        if one["error"] > MAX_ERROR:
            found.append(f"{one['model']}: median error {one['error']:.1%}")
        if one["rank"] < MIN_RANK * one["halves"]:
            found.append(f"{one['model']}: rank correlation {one['rank']:.3f}, halves {one['halves']:.3f}")
    return found


def text(rows: list[dict[str, Any]], made_by: str) -> str:
    """The table."""
    lines = [
        "# Predicted and measured latency, two cores, ONNX Runtime",
        "",
        f"`{made_by}`; placements drawn after the fit, by a fixed seed; raw figures in "
        "real_prediction.json. Judge: op times and links as measured, nothing fitted. Halves: the rank correlation of "
        "one half of the rounds with the other.",
        "",
        "| model | tested | within 10 % of the best | median error | rank | halves | judge: error | judge: rank |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {one['model']} | {one['tested']} | {one['near']} | **{one['error']:.1%}** | **{one['rank']:.3f}** | "
        f"{one['halves']:.3f} | {one['judge_error']:.1%} | {one['judge_rank']:.3f} |"
        for one in rows
    ]
    return "\n".join(lines)


def main() -> int:
    """Every model; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--afresh", action="store_true", help="measure op times again")
    options = parser.parse_args()
    cluster_file(afresh=options.afresh)
    rows = [row(name, options) for name in MODELS if options.only in name]
    wrong = faults(rows)
    return report("prediction", rows, wrong, text(rows, command()))


if __name__ == "__main__":
    sys.exit(main())

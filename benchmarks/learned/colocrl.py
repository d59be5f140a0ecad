"""ColocRL's table: RNNLM, NMT and Inception-V3 in training on K80s: `python benchmarks/learned/colocrl.py` (rows.py).

The zoo's training graphs (batch 64, 64 and 32 as in Mirhoseini et al., ICML 2017; plain SGD, with which RNNLM fits on
one die) on two and four dies of K80s and a Haswell CPU (clusters/2xK80.toml, 4xK80.toml: catalogue figures, not
calibrated), under `operator` execution: seconds of one training step. Policies and searches may price as many distinct
placements; `auto` has 60 seconds. The paper's own times were not at hand. The goal is 5 % above the best known, and the
single GPU where it is best, which every policy is shown first.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from methods import Method, policies
from rows import SEEDS, Row, Table, arguments, main_of
from tables import EFFORT, Found, best_known, bound, effort, milliseconds, rows_of, values

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.model.problem import Problem

CLUSTERS = Path(__file__).parent / "clusters"
MODELS = {"rnnlm-2": {"batch": 64}, "nmt": {"batch": 64}, "inception-v3": {"batch": 32}}
WORKLOADS = tuple(f"{model} {dies}xK80" for model in ("inception-v3", "rnnlm-2", "nmt") for dies in (2, 4))
ALONE = {"cpu": "CPU only", "cuda:0": "one GPU"}
PARTITIONS = ("metis", "mincut", "expert")
AUTO_SECONDS, GOAL, EVALUATIONS = 60.0, 0.05, 10_000


def problem(workload: str) -> Problem:
    """The problem of a name like ``nmt 4xK80``."""
    model, dies = workload.split()
    problem_options = ProblemOptions(graph="training", optimizer="sgd", execution="operator", dims=MODELS[model])
    return build(f"zoo:{model}", CLUSTERS / f"{dies}.toml", problem_options)


def table(options: argparse.Namespace) -> Table:
    """Baselines first, then ColocRL, of which there are several seeds, then the others."""
    count = options.evaluations
    baselines = [
        *(Method(title, "alone", device=device) for device, title in ALONE.items()),
        *(Method(name, "placer", name, seconds=AUTO_SECONDS) for name in PARTITIONS),
        Method("auto", "placer", "auto", seconds=AUTO_SECONDS),
        Method("temper", "search", "temper", evaluations=count),
        Method("random", "search", "random", options={"samples": count}, evaluations=count, seconds=AUTO_SECONDS),
    ]
    rows = [Row("colocrl", name, method) for name in WORKLOADS for method in baselines]
    order = ("colocrl", "hdp", "placeto", "hsdag")
    for seed in range(SEEDS):
        rows += [Row("colocrl", name, method, seed) for name in WORKLOADS for method in policies(count, order[:1])]
    rows += [Row("colocrl", name, method) for method in policies(count, order[1:]) for name in WORKLOADS]
    return Table("colocrl", "training graphs on K80s", tuple(rows), text, faults)


def text(found: Found, command: str) -> str:
    """The tables: milliseconds, and effort."""
    columns = (*ALONE.values(), *PARTITIONS, "random", "temper", "colocrl", "hdp", "placeto", "hsdag", "auto")
    lines = [
        "# ColocRL's table, on K80s as in the catalogue",
        "",
        f"`{command}`; milliseconds of one training step, medians over seeds (smallest–largest).",
        "",
        f"| workload | {' | '.join(columns)} | bound | colocrl above best known |",
        "|---|" + "--:|" * (len(columns) + 2),
    ]
    for name in WORKLOADS:
        if rows_of(found, name):
            cells = [milliseconds(found, name, method, 1) for method in columns]
            seen = values(found, name, "colocrl")
            above = f"{statistics.median(seen) / best_known(found, name) - 1:.1%}" if seen else ""
            lines.append(f"| {name} | {' | '.join(cells)} | ≥ {bound(found, name) * 1e3:.1f} | {above} |")
    best = [name for name in WORKLOADS if (one := values(found, name, "one GPU")) and one[0] <= best_known(found, name)]
    said = ", ".join(best) if best else "none of these problems"
    lines += ["", f"One GPU is the best known of {said}."]
    lines += ["", EFFORT, "", *effort(found, ("colocrl", "hdp", "placeto", "hsdag", "random", "temper", "auto"))]
    return "\n".join(lines)


def faults(found: Found) -> Iterator[str]:
    """Where ColocRL misses its goal."""
    for name in WORKLOADS:
        seen = values(found, name, "colocrl")
        if seen and statistics.median(seen) > best_known(found, name) * (1 + GOAL):
            above = statistics.median(seen) / best_known(found, name) - 1
            yield f"{name}: colocrl ends {above:.1%} above the best known"


if __name__ == "__main__":
    sys.exit(main_of(table, arguments(__doc__ or "", evaluations=EVALUATIONS)))

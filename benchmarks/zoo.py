"""The zoo's workloads: ops, FLOPs, parameters, and the seconds to generate, train and cost them.

    python benchmarks/zoo.py [--only NAME] [--repeat N]

Every row generates the forward graph, the forward graph as it is trained, its training graph (Adam), and the cost
table of the training graph on 8 devices; seconds are the median of the repeats. Writes results/zoo.json and
results/zoo.md when all workloads run; docs/zoo.md explains the letters of the table. The exit code is 1 if GNMT-8 has
50,000 ops or fewer in training, or takes 10 s or more to generate, train and cost.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pinned_devices import read_pinned

from placewise.costing.roofline import cost_table
from placewise.costing.work import work_of
from placewise.model.graph import Graph
from placewise.transform.training import to_training
from placewise.zoo import describe, generate, names

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "zoo"
DEVICES = "8xP100"
MAX_SECONDS, MIN_OPS = 10.0, 50_000

PUBLISHED = {
    "rnnlm-2": "8,943 ᵐ",
    "nmt": "22,097 ᵐ",
    "inception-v3": "31,180 ᵐ; 728 ᵒ",
    "gnmt-8": "over 50,000 ᵃ",
    "resnet-50": "396 ᵒ; 604 and 1,243 ᵗ",
    "bert-base": "1,009 ᵒ; 783 and 2,012 ᵗ",
}
"""What papers say of graphs of the same name; docs/zoo.md explains the letters."""


def timed(make: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    made = make()
    return time.perf_counter() - started, made


def row_of(name: str, repeat: int) -> dict[str, Any]:
    """One workload: counts, and the median seconds of each step."""
    seconds: dict[str, list[float]] = {"generate": [], "train": [], "cost": []}
    cluster = read_pinned(DEVICES)
    for _ in range(repeat):
        spent, forward = timed(lambda: generate(name, training=True))
        seconds["generate"].append(spent)
        spent, training = timed(lambda graph=forward: to_training(graph))
        seconds["train"].append(spent)
        spent, _ = timed(lambda graph=training: cost_table(graph, cluster))
        seconds["cost"].append(spent)
    return {
        "name": name,
        "dims": dict(describe(name).dims),
        **counts(generate(name), forward, training),
        "seconds": {step: statistics.median(each) for step, each in seconds.items()},
        "published": PUBLISHED.get(name, ""),
    }


def counts(plain: Graph, forward: Graph, training: Graph) -> dict[str, Any]:
    """Ops, FLOPs and weights, for the default batch."""
    return {
        "forward_ops": plain.n_ops,
        "trained_forward_ops": forward.n_ops,
        "training_ops": training.n_ops,
        "forward_flops": float(work_of(plain).flops.sum()),
        "training_flops": float(work_of(training).flops.sum()),
        "weight_bytes": int(plain.weights.bytes.sum()),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table, with the seconds of each step."""
    head = ["workload", "ops forward", "as trained", "training", "published", "GFLOPs forward", "training", "weights"]
    head += ["generate", "train", "cost on 8"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * 3 + "---|" + "--:|" * (len(head) - 5)]
    for row in rows:
        cells = [f"`{row['name']}`"]
        cells += [f"{row[key]:,}" for key in ("forward_ops", "trained_forward_ops", "training_ops")]
        cells += [row["published"]]
        cells += [f"{row[key] / 1e9:,.0f}" for key in ("forward_flops", "training_flops")]
        cells += [f"{row['weight_bytes'] / 1e6:,.1f} MB"]
        cells += [f"{row['seconds'][step]:.3f} s" for step in ("generate", "train", "cost")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run every workload, write the results; 1 if GNMT-8 misses its targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=names())
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = []
    for name in [options.only] if options.only else names():
        rows.append(row_of(name, options.repeat))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    if not options.only:
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "load": load}
        note = f"{machine['cores']} cores, load {load:.1f} at the start, Python {platform.python_version()}"
        RESULTS.with_suffix(".json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
        text = f"Training graphs with Adam; costs of the training graph on {DEVICES}; {note}.\n\n"
        RESULTS.with_suffix(".md").write_text(f"# The zoo\n\n{text}{table(rows)}\n")
    return missed(rows)


def missed(rows: list[dict[str, Any]]) -> int:
    """Say what GNMT-8 misses."""
    for row in rows:
        total = sum(row["seconds"].values())
        if row["name"] == "gnmt-8" and (row["training_ops"] <= MIN_OPS or total >= MAX_SECONDS):
            print(
                f"missed: gnmt-8 has {row['training_ops']:,} ops in training and takes {total:.1f} s", file=sys.stderr
            )
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

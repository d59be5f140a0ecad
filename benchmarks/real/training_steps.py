"""Training steps that are really computed, beside their predictions: two processes on two cores, three models.

    python benchmarks/real/training_steps.py [--rounds 5] [--steps 12] [--memory]

In every round, each model is profiled (`placewise profile --graph training --runtime pipelining --loaded`), and its
plan, 1F1B with eight micro-batches, trained with these costs; models take turns, so that a busy machine disturbs all of
them alike. Steps in which threads waited for a processor for longer than in the calmest step, by 5 % of it, do not
count, and a round without enough calm steps is repeated. Reported are the medians over rounds of measured and predicted
seconds per step and of their ratio, and the largest difference of losses from those of one process. Writes
results/real_training_steps.json and .md; exits with 1 if the median ratio of a model is off by more than 10 %.

With --memory, models are trained only, once as they are and once with a C library that returns every block of 64 KiB
or more when it is freed. Writes the peaks of memory into results/real_training_memory.json and .md; exits with 1 if one
of the latter is off by more than 8 MiB.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import command, report
from torch import Tensor, nn

import placewise as pw
from placewise._util.units import format_bytes, format_seconds
from placewise.analysis.train_plan import tabulate_training

MICROBATCHES, WORST, CALM = 8, 0.1, 0.2
"""CALM: the share of its steps that a round must keep; threads that transfer wait for those that compute anyway."""
ATTEMPTS = 3
RETURNING, FAR = {"MALLOC_MMAP_THRESHOLD_": "65536"}, 8 << 20


class Layers(nn.Module):
    """Eight layers with residuals, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return (x - 1).square().mean()


class Convolutions(nn.Module):
    """Seven convolutions with normalization, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(32) for _ in range(6))

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return (x.mean((2, 3)) - 1).square().mean()


class Encoder(nn.Module):
    """Four layers of an encoder without dropout, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(4))
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x - 1).square().mean()


MODELS = {
    "linear layers": (Layers, (64, 512)),
    "convolutions": (Convolutions, (4, 3, 32, 32)),
    "encoder": (Encoder, (4, 64, 128)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--memory", action="store_true", help="measure peaks of memory instead")
    options = parser.parse_args()
    if options.memory:
        return _report_memory(options.steps)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in MODELS}
    with tempfile.TemporaryDirectory() as scratch:
        plans = {name: _plan(name, Path(scratch)) for name in MODELS}
        dropped = 0
        for _ in range(options.rounds):
            for name, (model, plan) in plans.items():
                found = [_measure(model, plan, options.steps)]
                while found[-1]["calm"] < CALM and len(found) < ATTEMPTS:
                    found.append(_measure(model, plan, options.steps))
                dropped += len(found) - 1
                rows[name].append(max(found, key=lambda row: row["calm"]))
                print(name, rows[name][-1], flush=True)
    wrong = []
    for name, own in rows.items():
        ratio = median(row["predicted"] / row["measured"] for row in own)
        if abs(ratio - 1) > WORST:
            wrong.append(f"{name}: predictions are off by {ratio - 1:+.0%}")
    document = [{"model": name, **row} for name, own in rows.items() for row in own]
    return report("training_steps", document, wrong, _describe(rows, options.rounds, dropped), ("torch", "placewise"))


def _plan(name: str, folder: Path) -> tuple[Path, Path]:
    """The program of a model, and the file of its plan."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    path, plan = folder / f"{name}.pt2", folder / f"{name}.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(make().train(), (torch.randn(shape),)), path)
    options: dict[str, Any] = {"graph": "training", "objective": "step", "schedule": "1f1b"}
    pw.place(path, "2xcore", **options, microbatches=MICROBATCHES, time_limit=5.0).save(plan)
    return path, plan


def _measure(model: Path, plan: Path, steps: int) -> dict[str, Any]:
    costs = plan.with_suffix(".profile")
    options: dict[str, Any] = {"graph": "training", "cache": False}
    pw.profile(model, "2xcore", costs, runtime="pipelining", loaded=True, **options)
    run = pw.run(plan, train=True, steps=steps, costs=[str(costs)])
    table, steps_run = tabulate_training(run.trained), len(run.trained.record.seconds) - 1
    return {
        "calm": len(run.trained.calm_steps) / steps_run,
        "measured": table.seconds,
        "spread": table.spread,
        "predicted": float(table.predicted),
        "losses differ by": table.loss_difference,
        "load": os.getloadavg()[0],
    }


def _report_memory(steps: int) -> int:
    """Train every model twice, and write what its processes took."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in MODELS:
            _, plan = _plan(name, Path(scratch))
            as_it_is = _measure_memory(plan, steps)
            os.environ.update(RETURNING)
            returning = _measure_memory(plan, steps)
            for key in RETURNING:
                del os.environ[key]
            rows += [
                {"model": name, "process": process, **one, "returning": other["memory"] - other["predicted"]}
                for process, (one, other) in enumerate(zip(as_it_is, returning, strict=True))
            ]
    wrong = [f"{row['model']}, process {row['process']}" for row in rows if abs(row["returning"]) > FAR]
    lines = [
        "# Peaks of memory in training", "",
        f"`{command()}`; two processes, 1F1B with {MICROBATCHES} micro-batches, Adam, PyTorch {torch.__version__}. "
        "Predicted: the simulated step, room for the messages of all micro-batches, and the runtime (libraries, gloo, "
        "threads, code). Off by: the measured peak less the prediction; in the last column with "
        f"{' '.join('='.join(pair) for pair in RETURNING.items())}, where the C library returns what is freed.", "",
        "| model | process | peak | predicted | step | messages | runtime | off by | off by, freed blocks returned |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for row in rows:
        sizes = [format_bytes(row[key]) for key in ("memory", "predicted", "step", "messages", "runtime")]
        off = [f"{off / 2**20:+.1f} MiB" for off in (row["memory"] - row["predicted"], row["returning"])]
        lines.append(f"| {' | '.join([row['model'], str(row['process']), *sizes, *off])} |")
    return report("training_memory", rows, wrong, "\n".join(lines), ("torch", "placewise"))


def _measure_memory(plan: Path, steps: int) -> list[dict[str, float]]:
    """The peak of every process, and what makes up its prediction."""
    trained = pw.run(plan, train=True, steps=steps).trained
    found, runtime = trained.prediction, trained.record.runtime
    return [
        {
            "memory": row.memory, "predicted": row.predicted, "step": found.memory[k], "messages": found.buffers[k],
            "runtime": runtime[k],
        }
        for k, row in enumerate(tabulate_training(trained).rows)
    ]  # fmt: skip


def _describe(rows: dict[str, list[dict[str, Any]]], rounds: int, dropped: int) -> str:
    loads = [row["load"] for own in rows.values() for row in own]
    calm = sum(row["calm"] for own in rows.values() for row in own) / len(loads)
    lines = [
        "# Training steps, predicted and measured",
        "",
        f"`{command()}`; two processes on {os.cpu_count()} shared processors (load {min(loads):.0f} to "
        f"{max(loads):.0f}, with this), 1F1B with {MICROBATCHES} micro-batches, Adam. Medians of {rounds} rounds; the "
        f"profile of a round is up to a minute older than its run. Of the steps, {1 - calm:.0%} do not count, in which "
        f"threads waited for a processor, and {dropped} rounds with too few calm steps were repeated.",
        "",
        "| model | per step | predicted | off by | in rounds | losses differ by |",
        "|---|--:|--:|--:|---|--:|",
    ]
    for name, own in rows.items():
        ratios = sorted(row["predicted"] / row["measured"] - 1 for row in own)
        worst = max(row["losses differ by"] for row in own)
        lines.append(
            f"| {name} | {format_seconds(median(row['measured'] for row in own))} | "
            f"{format_seconds(median(row['predicted'] for row in own))} | {median(ratios):+.0%} | "
            f"{ratios[0]:+.0%} … {ratios[-1]:+.0%} | {worst:.1e} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

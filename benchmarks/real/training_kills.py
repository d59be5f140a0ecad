"""Training under torchrun with processes killed at random moments: no step may be lost or repeated beyond a checkpoint.

    python benchmarks/real/training_kills.py [--kills 20] [--seed 0] [--steps 24000]

Two processes train the stages of a small program with the files of `placewise export --to pipelining`, a checkpoint
every five steps. In every attempt one of them, drawn at random, is killed (SIGKILL) up to 25 s after they exist: while
they import, connect, load a checkpoint, train or write one. `torchrun --max-restarts` starts them again. Every printed
loss must be the same digits as in a run without kills. Writes results/real_training_kills.json and .md; exits with 1
if a step is lost, repeated or different, or a process outlives the run.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

import torch
from common import command, report

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tests" / "helpers")]

from torchrun_kills import KilledRun, check_attempts, living, losses_of, run_and_kill, torchrun  # noqa: E402
from trained_models import TiedBlocks, save_program, write_training_files  # noqa: E402

EVERY = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=24000)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    moments = [(draw.randint(0, 1), draw.uniform(0.0, 25.0), 0) for _ in range(options.kills)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = save_program(TiedBlocks, (torch.arange(12).reshape(2, 6),), folder / "model.pt2")
        write_training_files(path, (0, 1), folder)
        arguments = ["train_pipeline.py", "model.pt2", "--compare", "0", "--checkpoint-every", str(EVERY)]
        arguments += ["--steps", str(options.steps)]
        losses = losses_of(torchrun(folder, *arguments, seconds=900).stdout)
        run = run_and_kill(folder, moments, [*arguments, "--checkpoint", "kept"], seconds=3600)
    fault = ""
    try:
        check_attempts(run, losses, EVERY)
    except AssertionError as error:
        fault = str(error)
    left = living(run)
    wrong = [fault] if fault else []
    wrong += [f"{len(left)} processes outlived the run"] if left else []
    wrong += [f"only {len(run.kills)} kills happened"] if len(run.kills) < options.kills else []
    rows = [{"rank": rank, "second": second, "after step": step} for rank, second, step in run.kills]
    return report("training_kills", rows, wrong, _describe(run, options.steps), ("torch", "placewise"))


def _describe(run: KilledRun, steps: int) -> str:
    shown = sum(map(len, run.attempts))
    load, started = os.getloadavg()[0], [rows for rows in run.attempts if rows]
    lines = [
        "# Training under torchrun, with processes killed at random moments",
        "",
        f"`{command()}`; two processes on {os.cpu_count()} shared processors, load {load:.1f} at the end; "
        f"{steps} steps, a checkpoint every {EVERY}. Every printed loss is compared with a run without kills, digit "
        "for digit; faults would be listed below.",
        "",
        f"- {len(run.kills)} kills in {run.seconds:.0f} s: {len(run.attempts) - 1} after the processes "
        "had connected, the others before.",
        f"- {len(started)} attempts ran steps; {shown - steps} steps ran twice, those after the last "
        "checkpoint of each.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

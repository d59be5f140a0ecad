"""A training plan for torch.distributed.pipelining: the stages of its calls, and a script that trains with torchrun."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from placewise.errors import ExportError
from placewise.exporters.torch_sources import read_copy
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.transform.stages import stage_order
from placewise.transform.training import planned_optimizer

STAGES, SCRIPT = "stages.json", "train_pipeline.py"
COPIES = ("cutting", "loading", "gradient_exchange", "training_stages", "pipeline_trainer", "stage_values")
_SCRIPT = f'''\
"""Train the stages of {STAGES} side by side: torchrun --nproc-per-node STAGES {SCRIPT} [MODEL.pt2] [--steps 20]

Inputs are drawn at random, or are the arrays of --inputs FILE.npz by name: rows of one micro-batch after the other, and
those of `target`. The loss is the program's own output of one element, else the mean square of its outputs' difference
from the target (default: zeros), or for whole numbers the cross-entropy. --compare repeats as many steps with the whole
program in the last process. With --checkpoint FOLDER, a killed run goes on from the last one when it is started again,
as `torchrun --max-restarts 3` does. Nothing that the model's file holds is run; --trust-model loads it with
torch.export.load, which may run code of the file.
"""

import argparse
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from loading import load_program
from pipeline_trainer import PipelineTrainer, WholeTrainer

SAID = json.loads((Path(__file__).resolve().parent / "{STAGES}").read_text())


def connect(devices, seconds):
    """Join the other processes; SystemExit where the port is taken, or some of them are missing."""
    if not all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        raise SystemExit(f"this process has no RANK: torchrun --nproc-per-node {{len(devices)}} {SCRIPT}")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world != len(devices):
        raise SystemExit(f"{STAGES} has {{len(devices)}} processes: torchrun --nproc-per-node {{len(devices)}}")
    if devices[rank].startswith("cuda"):
        if not torch.cuda.is_available():
            raise SystemExit(f"process {{rank}} is on {{devices[rank]}}, and PyTorch sees no GPU here")
        torch.cuda.set_device(torch.device(devices[rank]))
    backend = "nccl" if all(name.startswith("cuda") for name in devices) else "gloo"
    address = f"{{os.environ['MASTER_ADDR']}}:{{os.environ['MASTER_PORT']}}"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
    except (dist.DistError, RuntimeError) as error:
        if "EADDRINUSE" in str(error) or "in use" in str(error):
            raise SystemExit(f"the port of {{address}} is taken: set MASTER_PORT, as torchrun --master-port does")
        raise SystemExit(f"process {{rank}} found not all of {{world}} processes at {{address}} in {{seconds}} s")
    return rank


def read_inputs(path):
    """The arrays of a .npz file as tensors."""
    if not path:
        return {{}}
    import numpy

    with numpy.load(path, allow_pickle=False) as file:
        return {{name: torch.from_numpy(file[name]) for name in file.files}}


def save(trainer, folder, step, rank):
    """Write the state of every stage, and then that all of them are written; keep the last two."""
    path = folder / f"step-{{step:08d}}"
    if rank < trainer.ranks:
        path.mkdir(parents=True, exist_ok=True)
        torch.save(trainer.state(), path / f"rank-{{rank}}.part")
        (path / f"rank-{{rank}}.part").replace(path / f"rank-{{rank}}.pt")
    dist.barrier()
    if rank == 0:
        (folder / "last.part").write_text(str(step))
        (folder / "last.part").replace(folder / "last")


def load(trainer, folder):
    """Take over the last checkpoint; the number of its step."""
    if folder is None or not (folder / "last").exists():
        return 0
    step = int((folder / "last").read_text())
    path = folder / f"step-{{step:08d}}" / f"rank-{{trainer.rank}}.pt"
    trainer.load_state(torch.load(path, map_location=trainer.device, weights_only=True))
    return step


def main(options):
    plan = SAID | {{"seed": options.seed, "learning_rate": options.learning_rate}}
    plan["microbatches"] = options.microbatches or plan["microbatches"]
    plan["schedule"] = options.schedule or plan["schedule"]
    plan["optimizer"] = options.optimizer or plan["optimizer"]
    rank = connect(plan["devices"], options.wait)
    program = load_program(options.model, trust_model=options.trust_model)
    data = read_inputs(options.inputs)
    try:
        trainer = PipelineTrainer(program, plan, data=data)
    except ValueError as error:
        raise SystemExit(f"{{options.model}} cannot train with {STAGES}: {{error}}")
    done = load(trainer, options.checkpoint)
    steps = []
    for number in range(done + 1, options.steps + 1):
        steps.append(trainer.step(number))
        if rank == 0:
            print(f"step {{number}}: loss {{steps[-1].loss:.8g}}, {{steps[-1].seconds:.4f}} s", flush=True)
        if options.checkpoint and (number % options.checkpoint_every == 0 or number == options.steps):
            save(trainer, options.checkpoint, number, rank)
    if rank == dist.get_world_size() - 1 and options.compare and not done:
        program = load_program(options.model, trust_model=options.trust_model)
        whole = WholeTrainer(program, plan, device="cpu", data=data)
        for step in steps[: options.compare]:
            loss = whole.step(step.number).loss
            if abs(loss - step.loss) > 1e-5 * max(abs(loss), 1e-12):
                raise SystemExit(f"step {{step.number}} has the loss {{step.loss}}, and {{loss}} in one process")
        count = min(options.compare, len(steps))
        print(f"{{len(plan['stage_ranks'])}} stages, losses of {{count}} steps as those of one process", flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo and of autograd may outlive the interpreter, whose end then aborts the process


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=SAID["model"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--microbatches", type=int, default=0)
    parser.add_argument("--schedule", choices=["gpipe", "1f1b", "interleaved", "zero-bubble"], default="")
    parser.add_argument("--optimizer", choices=["sgd", "momentum", "adam"], default="")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--inputs", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", type=int, default=2, help="steps that one process repeats")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--wait", type=int, default=300, help="seconds to wait for the other processes")
    parser.add_argument("--trust-model", action="store_true", help="run code that the model's file may hold")
    main(parser.parse_args())
'''


def place_training(problem: Problem, placement: Placement) -> Placement:
    """The placement that processes train: backward ops and updates with their forward op, the loss on the last stage.

    Raises ExportError where the devices of the forward ops are no line of stages.
    """
    graph, names = problem.graph, problem.cluster.names
    device_of: dict[int, int] = {}
    for origin, backward, home in zip(
        graph.ops.origin, graph.ops.backward.tolist(), placement.device.tolist(), strict=True
    ):
        if origin and not backward:
            device_of.setdefault(origin[0], home)
    device = np.array([device_of.get(origin[0], -1) if origin else -1 for origin in graph.ops.origin], np.int32)
    known = np.where(device < 0, placement.device, device)
    order, back = stage_order(graph, np.asarray(known, np.int32), forward=True)
    if back is not None:
        raise ExportError(
            f"{graph.ops.name[back[0]]!r} on {names[known[back[0]]]} feeds {graph.ops.name[back[1]]!r} on "
            f"{names[known[back[1]]]}, which comes before it, and the stages of a training run are a line",
            remedy="place with --contiguous, or train it with placewise run --train --schedule interleaved",
        )
    used = [home for home in order if home in set(device_of.values())]
    return Placement(np.asarray(np.where(device < 0, used[-1], device), np.int32))


def write_training(
    problem: Problem, placement: Placement, model: str, devices: Mapping[int, str]
) -> dict[str, str | bytes]:
    """The files of a training plan placed as `place_training` does; `devices` are PyTorch's names of devices."""
    graph = problem.graph
    optimizer = planned_optimizer(graph.source) or "adam"
    schedule = problem.objective.schedule if problem.objective.kind == "throughput" else "1f1b"
    order, _ = stage_order(graph, placement.device, forward=True)
    stage = {home: number for number, home in enumerate(order)}
    calls: dict[int, dict[str, object]] = {}
    for name, origin, backward, home in zip(
        graph.ops.name, graph.ops.origin, graph.ops.backward.tolist(), placement.device.tolist(), strict=True
    ):
        if origin and not backward:
            own = name.partition(".")[0].partition("#")[0]
            calls.setdefault(origin[0], {"number": origin[0], "name": own, "stage": stage[home]})
    said = {
        "model": model,
        "devices": [devices[home] for home in order],
        "names": [problem.cluster.names[home] for home in order],
        "calls": [calls[number] for number in sorted(calls)],
        "stage_ranks": list(range(len(order))),
        "replicas": 1,
        "schedule": schedule,
        "optimizer": optimizer,
        "microbatches": 2 * len(order),
        "frozen": list(graph.source.options.get("frozen", ())) if graph.source is not None else [],
        "shapes": _input_shapes(problem),
    }
    files: dict[str, str | bytes] = {STAGES: json.dumps(said, indent=1) + "\n", SCRIPT: _SCRIPT}
    return files | {f"{name}.py": read_copy(f"placewise.readers.torch.{name}") for name in COPIES}


def _input_shapes(problem: Problem) -> dict[str, list[int]]:
    """The shapes of the model's inputs."""
    tensors = problem.graph.tensors
    names = (t for t in range(problem.graph.n_tensors) if tensors.producer[t] < 0)
    return {tensors.name[t]: list(map(int, tensors.shape[t])) for t in names}

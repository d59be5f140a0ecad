"""A training plan for torch.distributed.pipelining: the stages of its calls, and a script that trains with torchrun."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from placewise.core.parallel_plan import call_name
from placewise.core.precision import TRAINING_TOLERANCES, find_tf32, product_precision
from placewise.errors import ExportError
from placewise.exporters.torch_sources import read_copy
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Violation
from placewise.readers.torch.backends import choose_backend
from placewise.simulate.step.judge import find_schedule
from placewise.simulate.step.orders import SPLITS_BACKWARD
from placewise.simulate.step.pipelines import pipeline_of, placement_of_pipeline
from placewise.simulate.step.stage_costs import Pipeline
from placewise.transform.stages import stage_order
from placewise.transform.training import planned_optimizer

STAGES, SCRIPT = "stages.json", "train_pipeline.py"
COPIES = (
    "cutting",
    "loading",
    "local_device",
    "meeting",
    "gradient_exchange",
    "split_backward",
    "training_stages",
    "pipeline_trainer",
    "rank_watch",
)
_SCRIPT = f'''\
"""Train the stages of {STAGES} side by side: torchrun --nproc-per-node PROCESSES {SCRIPT} [MODEL.pt2] [--steps 20]

Inputs are drawn at random, or are the arrays of --inputs FILE.npz by name: rows of one micro-batch after the other, and
those of `target`. The loss is the program's own output of one element, else the mean square of its outputs' difference
from the target (default: zeros), or for whole numbers the cross-entropy. --compare repeats as many steps with the whole
program in the last process. With --checkpoint FOLDER, a killed run goes on from the last one when it is started again,
as `torchrun --max-restarts 3` does. Nothing that the model's file holds is run; --trust-model loads it with
torch.export.load, which may run code of the file.
"""

import argparse
import hashlib
import json
import os
import pickle
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # broken connections are reported once, in a sentence

import torch
import torch.distributed as dist

from cutting import calls_of
from loading import load_program
from local_device import take_device
from meeting import MeetingError, meet
from pipeline_trainer import PipelineTrainer, WholeTrainer
from rank_watch import GRACE, RankWatch, say

SAID = json.loads((Path(__file__).resolve().parent / "{STAGES}").read_text())
COUNT = len(SAID["devices"])
NAMES = [f"process {{number}} on {{name}}" for number, name in enumerate(SAID["names"])]


class Refusal(Exception):
    """What every process finds wrong alike, so that one of them says it."""


def connect(seconds):
    """Join the other processes; SystemExit where the port is taken, or some of them are missing."""
    start = f"torchrun --nproc-per-node {{COUNT}} {SCRIPT}"
    if not all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        raise SystemExit(f"this process has no RANK: start {{COUNT}} of them with {{start}}")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world != COUNT:
        wrong = f"{STAGES} needs {{COUNT}} processes, not {{world}}: start them with {{start}}"
        raise SystemExit(wrong if rank == 0 else 1)
    try:
        store, processes = meet(rank, NAMES, seconds)
    except MeetingError as error:
        raise SystemExit(f"{{error}} ({{start}} starts all of them)")
    watch = RankWatch(processes, rank, NAMES)
    dist.init_process_group(
        SAID["backend"], store=dist.PrefixStore("group", store), rank=rank, world_size=world,
        timeout=timedelta(seconds=seconds),
    )
    return rank, watch


def read_inputs(path):
    """The arrays of a .npz file as tensors."""
    if not path:
        return {{}}
    import numpy

    try:
        with numpy.load(path, allow_pickle=False) as file:
            return {{name: torch.from_numpy(file[name]) for name in file.files}}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Refusal(f"{{path}} holds no arrays of inputs ({{type(error).__name__}})")


def read_program(options):
    """The program of the model's file."""
    try:
        return load_program(options.model, trust_model=options.trust_model)
    except OSError as error:
        raise Refusal(f"{{options.model}} cannot be read ({{error.strerror or error}})")


def state_file(folder, step, rank):
    """Where a process of the first replica keeps its state after a step."""
    return folder / f"step-{{step:08d}}" / f"rank-{{rank}}.pt"


def write(path, give):
    """Write a file whole or not at all."""
    part = path.with_name(f"{{path.name}}.part")
    with part.open("wb") as file:
        give(file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def save(trainer, folder, step, rank, losses, run):
    """Write the state of every stage, and then that all of them are written; keep the last two."""
    path = state_file(folder, step, rank)
    if rank < trainer.ranks:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = trainer.state() | {{"losses": losses}}
        write(path, lambda file: torch.save(state, file))
    dist.barrier()
    if rank == 0:
        write(folder / "last.json", lambda file: file.write(json.dumps({{"step": step, "run": run}}).encode()))
    older = sorted(folder.glob(f"step-*/rank-{{rank}}.pt"))
    for file in [file for file in older if file < path][:-1]:
        file.unlink(missing_ok=True)
        with suppress(OSError):  # others have files there still, or have removed it
            file.parent.rmdir()


def find_last(folder, rank, run):
    """The step of the last checkpoint, which the first process reads for all; 0 if there is none."""
    said = [0, ""]
    if rank == 0 and folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / "probe", lambda file: None)
            (folder / "probe").unlink()
        except OSError as error:
            said = [0, f"the checkpoint {{folder}} cannot be written ({{error.strerror or error}})"]
    if rank == 0 and folder is not None and not said[1] and (folder / "last.json").exists():
        try:
            last = json.loads((folder / "last.json").read_text())
            said = [int(last["step"]), "" if last["run"] == run else f"{{folder}} is of another run: name another one"]
        except (OSError, ValueError, TypeError, KeyError):
            said = [0, f"{{folder}}/last.json cannot be read: name another folder"]
    dist.broadcast_object_list(said)
    if said[1]:
        raise Refusal(said[1])
    return said[0]


def load(trainer, folder, step):
    """Take over the checkpoint of a step: the losses up to it."""
    if not step:
        return []
    path = state_file(folder, step, trainer.rank)
    try:
        state = torch.load(path, map_location=trainer.device, weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise SystemExit(f"the checkpoint {{path}} cannot be read ({{type(error).__name__}})")
    trainer.load_state(state)
    return state["losses"]


def compare(options, plan, data, losses):
    """Repeat the first steps with the whole program; SystemExit where losses differ."""
    count = min(options.compare, len(losses))
    whole = WholeTrainer(read_program(options), plan, device="cpu", data=data)
    if whole.is_random:
        print("the program draws random numbers, so its losses are not compared with those of one process", flush=True)
        return
    for number, loss in enumerate(losses[:count], 1):
        wanted = whole.step(number).loss
        if abs(loss - wanted) > plan["tolerance"] * max(abs(wanted), 1e-12):
            raise SystemExit(f"step {{number}} has the loss {{loss}}, and {{wanted}} in one process")
    print(f"{{len(plan['stage_ranks'])}} stages, losses of {{count}} steps as those of one process", flush=True)


def train(rank, options):
    device = take_device(SAID["devices"], rank)
    plan = SAID | {{"seed": options.seed, "learning_rate": options.learning_rate}}
    plan["microbatches"] = options.microbatches or plan["microbatches"]
    plan["schedule"] = options.schedule or plan["schedule"]
    plan["optimizer"] = options.optimizer or plan["optimizer"]
    program, data = read_program(options), read_inputs(options.inputs)
    names = [call.name for call in calls_of(program)]
    if any(call["number"] >= len(names) or names[call["number"]] != call["name"] for call in plan["calls"]):
        raise Refusal(f"{{options.model}} is not the program that {STAGES} is for")
    try:
        trainer = PipelineTrainer(program, plan, device=device, data=data)
    except ValueError as error:
        raise Refusal(f"{{options.model}} cannot train with {STAGES}: {{error}}")
    run = hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
    done = find_last(options.checkpoint, rank, run)
    losses = load(trainer, options.checkpoint, done)
    if rank == 0 and done:
        print(f"training goes on after step {{done}}", flush=True)
    for number in range(done + 1, options.steps + 1):
        step = trainer.step(number)
        losses.append(step.loss)
        if rank == 0:
            print(f"step {{number}}: loss {{step.loss:.8g}}, {{step.seconds:.4f}} s", flush=True)
        if options.checkpoint and (number % options.checkpoint_every == 0 or number == options.steps):
            save(trainer, options.checkpoint, number, rank, losses, run)
    if options.compare:
        patient = dist.new_group(timeout=timedelta(days=7))  # the others wait for as long as one repeats the steps
        if rank == COUNT - 1:
            compare(options, plan, data, losses)
        dist.barrier(patient)


def main(options):
    torch.backends.cuda.matmul.allow_tf32 = SAID["tf32"] == "products"
    torch.backends.cudnn.allow_tf32 = SAID["tf32"] != "nothing"
    rank, watch = connect(options.wait)
    try:
        train(rank, options)
        watch.finish()
        dist.barrier()
    except Refusal as error:
        watch.finish()
        if rank == 0:
            say(str(error))
        time.sleep(GRACE / 2)  # until all of them have stopped watching the others
        os._exit(1)
    except BaseException as error:
        watch.fail(error.__cause__ or error)
    sys.stdout.flush()
    os._exit(0)  # threads of gloo and of autograd may outlive the interpreter, whose end then aborts the process


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("give a whole number from 1")
    return number


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=SAID["model"])
    parser.add_argument("--steps", type=positive, default=20)
    parser.add_argument("--microbatches", type=positive, default=0)
    parser.add_argument("--schedule", choices=["gpipe", "1f1b", "interleaved", "zero-bubble"], default="")
    parser.add_argument("--optimizer", choices=["sgd", "momentum", "adam"], default="")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--inputs", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", type=int, default=2, help="steps that one process repeats")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--checkpoint-every", type=positive, default=10)
    parser.add_argument("--wait", type=positive, default=300, help="seconds to wait for the other processes")
    parser.add_argument("--trust-model", action="store_true", help="run code that the model's file may hold")
    main(parser.parse_args())
'''


def plan_pipeline(problem: Problem, placement: Placement) -> Pipeline:
    """The pipeline that processes train: all ops of a call in its stage, with backward ops and updates; ops of no call,
    as those of the loss, in the last one.

    That of a plan for the objective `step` is its own, with its schedule. Raises ExportError where the forward ops are
    no chain of stages.
    """
    graph = problem.graph
    if problem.objective.kind == "step":
        found = pipeline_of(problem, placement, find_schedule(problem, placement))
        if isinstance(found, Violation):
            raise ExportError(found.message, remedy="place it again, or with --contiguous")
    else:
        found = _line_up(problem, placement)
    stage_of_call: dict[int, int] = {}
    for origin, backward, stage in zip(graph.ops.origin, graph.ops.backward, found.stage.tolist(), strict=True):
        if origin and not backward:
            stage_of_call[origin[0]] = max(stage, stage_of_call.get(origin[0], 0))
    last = found.n_stages - 1
    stage = [stage_of_call.get(origin[0], last) if origin else last for origin in graph.ops.origin]
    return replace(found, stage=np.array(stage, np.int32))


def place_pipeline(problem: Problem, placement: Placement, pipeline: Pipeline) -> Placement:
    """The placement of a pipeline: the given one, if it is that already."""
    made = placement_of_pipeline(pipeline)
    if problem.objective.kind != "step":
        return Placement(made.device)
    if not placement.stages:
        same = len(pipeline.replicas) == 1 and np.array_equal(made.device, placement.device)
        return placement if same else made
    same = made.stages == placement.stages and _listed(made.stage) == _listed(placement.stage)
    return placement if same else made


def write_training(
    problem: Problem, pipeline: Pipeline, model: str, devices: Mapping[int, str]
) -> dict[str, str | bytes]:
    """The files of a pipeline of `plan_pipeline`; `devices` are PyTorch's names of devices.

    A plan for the objective `step` has a number of micro-batches; others get two per process.
    """
    graph = problem.graph
    used = [device for line in pipeline.replicas for device in line]
    on_gpus = any(devices[device].startswith("cuda") for device in used)
    calls: dict[int, dict[str, object]] = {}
    for name, origin, backward, stage in zip(
        graph.ops.name, graph.ops.origin, graph.ops.backward.tolist(), pipeline.stage.tolist(), strict=True
    ):
        if origin and not backward:
            own = call_name(name)
            calls.setdefault(origin[0], {"number": origin[0], "name": own, "stage": stage})
    said = {
        "model": model,
        "devices": [devices[device] for device in used],
        "backend": choose_backend([devices[device] for device in used]),
        "tf32": find_tf32(graph),
        "tolerance": TRAINING_TOLERANCES[product_precision(graph, on_gpus=on_gpus)],
        "names": [problem.cluster.names[device] for device in used],
        "calls": [calls[number] for number in sorted(calls)],
        "stage_ranks": pipeline.stage_places(),
        "replicas": len(pipeline.replicas),
        "schedule": "zero-bubble" if pipeline.schedule in SPLITS_BACKWARD else pipeline.schedule,
        "optimizer": planned_optimizer(graph.source) or "adam",
        "microbatches": problem.constraints.microbatches or 2 * len(used),
        "frozen": list(graph.source.options.get("frozen", ())) if graph.source is not None else [],
        "shapes": _input_shapes(problem),
    }
    files: dict[str, str | bytes] = {STAGES: json.dumps(said, indent=1) + "\n", SCRIPT: _SCRIPT}
    return files | {f"{name}.py": read_copy(f"placewise.readers.torch.{name}") for name in COPIES}


def _line_up(problem: Problem, placement: Placement) -> Pipeline:
    """A stage per device, in the order in which the forward ops need each other."""
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
            remedy="place with --contiguous or --objective step, or train it with placewise run --train --schedule "
            "interleaved",
        )
    order = tuple(home for home in order if home in set(device_of.values()))
    place = {home: number for number, home in enumerate(order)}
    stage = np.array([place.get(home, len(order) - 1) for home in known.tolist()], np.int32)
    schedule = problem.objective.schedule if problem.objective.kind == "throughput" else "1f1b"
    return Pipeline(schedule, (order,), stage, len(order))


def _listed(column: Ints | None) -> list[int] | None:
    return None if column is None else column.tolist()


def _input_shapes(problem: Problem) -> dict[str, list[int]]:
    """The shapes of the model's inputs."""
    tensors = problem.graph.tensors
    names = (t for t in range(problem.graph.n_tensors) if tensors.producer[t] < 0)
    return {tensors.name[t]: list(map(int, tensors.shape[t])) for t in names}

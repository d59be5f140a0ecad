"""torch.distributed.pipelining: the stage of every call of an exported program, and a script for torchrun."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from placewise._util.units import format_seconds
from placewise.core.parallel_plan import call_name
from placewise.core.precision import TOLERANCES, find_tf32, product_precision
from placewise.errors import ExportError
from placewise.exporters.base import Exported, ExportInfo, OptionValues
from placewise.exporters.module_units import list_prefixes
from placewise.exporters.projection import cut_into_stages, order_devices, stage_devices
from placewise.exporters.space import Space, sets_of, sharing
from placewise.exporters.torch_sources import read_copy
from placewise.exporters.training_pipeline import place_pipeline, plan_pipeline, write_training
from placewise.model.columns import Ints
from placewise.model.graph import Source
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.readers.torch.backends import choose_backend
from placewise.simulate import judge_placement
from placewise.transform.stage_times import stage_times
from placewise.transform.stages import stage_order
from placewise.transform.training import is_training

STAGES, SCRIPT = "stages.json", "run_pipeline.py"
COPIES = {
    "cutting.py": "placewise.readers.torch.cutting",
    "loading.py": "placewise.readers.torch.loading",
    "local_device.py": "placewise.readers.torch.local_device",
    "meeting.py": "placewise.readers.torch.meeting",
    "prefetch.py": "placewise.readers.torch.prefetch",
    "rank_watch.py": "placewise.readers.torch.rank_watch",
    "stream_time.py": "placewise.transform.stream_time",
}
"""The modules that the script needs, which depend on PyTorch alone, by the names of their copies."""
MAX_UNITS = 500
_SCRIPT = f'''\
"""Run the stages of {STAGES} side by side.

torchrun --standalone --nproc-per-node STAGES {SCRIPT} [MODEL.pt2] [MICRO-BATCHES]

A micro-batch is a whole sample of the program. Inputs are drawn at random; the last stage compares its outputs with the
whole program. Nothing that the model's file holds is run; --trust-model loads it with torch.export.load, which may run
code of the file.
"""

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # broken connections are reported once, in a sentence

import torch
import torch.distributed as dist
from torch.distributed.pipelining import ScheduleGPipe

from cutting import HostStage, MicrobatchStage, build_stage, calls_of
from loading import load_program, sample_inputs
from local_device import take_device
from meeting import MeetingError, meet
from prefetch import PrefetchingStage
from rank_watch import RankWatch, say
from stream_time import StageTime, steady_seconds, stream_seconds

SAID = json.loads((Path(__file__).resolve().parent / "{STAGES}").read_text())
COUNT = len(SAID["devices"])
NAMES = [f"stage {{number}} on {{name}}" for number, name in enumerate(SAID["names"])]


class BadStart(Exception):
    """The processes were not started as the stages need it."""


def refuse(text, rank=0):
    """End this process; the first one says why."""
    if rank == 0:
        say(f"error: {{text}}")
    os._exit(2)


def connect(seconds):
    """The rank of this process, the store in which all of them have met, and who watches the others."""
    start = f"torchrun --standalone --nproc-per-node {{COUNT}} {SCRIPT}"
    if any(name not in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        refuse(f"{STAGES} has {{COUNT}} stages, one process each: start them with {{start}}")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world != COUNT:
        refuse(f"{STAGES} has {{COUNT}} stages, and there are {{world}} processes: start them with {{start}}", rank)
    try:
        store, processes = meet(rank, NAMES, seconds)
    except MeetingError as error:
        refuse(f"{{error}} ({{start}} starts all of them)")
    return rank, store, RankWatch(processes, rank, NAMES)


def example(program, names):
    """Empty tensors with the shapes and types of these values."""
    values = {{node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}}
    return [torch.empty([int(size) for size in values[name].shape], dtype=values[name].dtype) for name in names]


def make_stage(program, rank, device, exchange):
    """The part of the program in this rank, as a stage that computes on a device and exchanges values on another."""
    piece = build_stage(program, {{call["number"]: call["stage"] for call in SAID["calls"]}}, rank, device=device)
    first, last = rank == 0, rank == COUNT - 1
    taken = [value.to(exchange) for value in example(program, piece.reads)]
    made = [value.to(exchange) for value in example(program, piece.makes)]
    module = piece.module if exchange == device else HostStage(piece.module, device)
    stage = PrefetchingStage(
        MicrobatchStage(module, first=first, last=last), rank, COUNT, exchange,
        tuple(value[None] if first else value for value in taken),
        tuple(value[None] if last else value for value in made),
    )
    return piece, stage


def compare(program, inputs, piece, outputs):
    """Raise an error if the outputs of the last stage are not those of the whole program."""
    error = SAID["tolerance"]
    whole = build_stage(program, {{}}, 0, device="cpu")
    wanted = dict(zip(whole.makes, whole.module(*inputs)))
    for name, value in zip(piece.makes, outputs if isinstance(outputs, (tuple, list)) else [outputs]):
        torch.testing.assert_close(value[0].cpu(), wanted[name].cpu(), rtol=error, atol=error / 10)


def run(rank, store, watch, model, micro_batches, trust_model, timeout):
    device = take_device(SAID["devices"], rank)
    dist.init_process_group(
        SAID["backend"], store=store, rank=rank, world_size=COUNT, timeout=timedelta(seconds=timeout)
    )
    exchange = torch.device("cpu") if SAID["backend"] == "gloo" else device
    program = load_program(model, trust_model=trust_model)
    names = [call.name for call in calls_of(program)]
    if any(call["number"] >= len(names) or names[call["number"]] != call["name"] for call in SAID["calls"]):
        raise BadStart(f"{{model}} is not the program that {STAGES} is for")
    piece, stage = make_stage(program, rank, device, exchange)
    schedule = ScheduleGPipe(stage, micro_batches)
    inputs = sample_inputs(program)
    given = [torch.stack([value] * micro_batches).to(exchange) for value in inputs] if rank == 0 else []
    schedule.step(*given)
    dist.barrier()
    begin = time.perf_counter()
    outputs = schedule.step(*given)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.barrier()
    took = (time.perf_counter() - begin) / micro_batches * 1e3
    if rank == COUNT - 1:
        compare(program, inputs, piece, outputs)
        times = [StageTime(*row) for row in SAID["stage_seconds"]]
        finite, full = stream_seconds(times, micro_batches) / micro_batches * 1e3, steady_seconds(times) * 1e3
        print(f"{{COUNT}} stages, outputs as those of the whole program, {{took:.3f}} ms per micro-batch")
        print(f"predicted: {{finite:.3f}} ms in a run of {{micro_batches}}, {{full:.3f}} ms when the pipeline is full")
    watch.finish()
    dist.barrier()


def main(model, micro_batches, trust_model, timeout):
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = SAID["tf32"] == "products"
    torch.backends.cudnn.allow_tf32 = SAID["tf32"] != "nothing"
    rank, store, watch = connect(min(timeout, 60))
    try:
        run(rank, store, watch, model, micro_batches, trust_model, timeout)
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
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default=SAID["model"])
    parser.add_argument("micro_batches", nargs="?", type=positive, default=4)
    parser.add_argument("--trust-model", action="store_true", help="run code that the model's file may hold")
    parser.add_argument("--timeout", type=positive, default=300, help="seconds that a stage may wait for another one")
    main(**vars(parser.parse_args()))
'''


class PipeliningExporter:
    """A stage per device, one after the other; other placements are projected."""

    info = ExportInfo(
        "pipelining",
        writes=f"{STAGES} (call → stage), {SCRIPT} (for torchrun) and the modules that it needs",
        loaded_by="PyTorch 2.13 (torch.distributed.pipelining)",
        verified="executed",
        cannot_say="devices that feed each other in a circle, or replicas, except in training pipelines",
        takes="programs of torch.export and modules that it can take",
        library="torch",
        extra="torch",
        pipelines=True,
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        source = _require_program(problem)
        pipeline = plan_pipeline(problem, placement) if is_training(problem.graph) else None
        placement = self.project(problem, placement)
        path = source.path if source.format == "torch-export" else "model.pt2"
        notes = () if source.format == "torch-export" else ("save the program with torch.export.save as model.pt2",)
        if pipeline is not None:
            used = [device for line in pipeline.replicas for device in line]
            names = {device: _torch_device(problem, device) for device in used}
            return Exported(write_training(problem, pipeline, path, names), placement, notes)
        order, _ = stage_order(problem.graph, placement.device)
        devices = [_torch_device(problem, device) for device in order]
        on_gpus = any(device.startswith("cuda") for device in devices)
        document = {
            "model": path,
            "devices": devices,
            "backend": choose_backend(devices),
            "tf32": find_tf32(problem.graph),
            "tolerance": TOLERANCES[product_precision(problem.graph, on_gpus=on_gpus)],
            "names": [problem.cluster.names[device] for device in order],
            "stage_seconds": [list(stage) for stage in stage_times(problem, placement, order)],
            "split_points": _find_split_points(problem, placement.device, order),
            "calls": _list_calls(problem, placement.device, order),
        }
        said = json.dumps(document, indent=1) + "\n"
        files = {STAGES: said, SCRIPT: _SCRIPT, **{name: read_copy(module) for name, module in COPIES.items()}}
        return Exported(files, placement, (*notes, *_note_transfers(problem, placement)))

    def space(self, problem: Problem) -> Space:
        """See `RunningExporter`: a chain of stages, and the ops of a call in one of them."""
        _require_program(problem)
        for device in np.flatnonzero(problem.allowed.any(axis=0)).tolist():
            _torch_device(problem, device)
        calls = np.array([origin[0] if origin else -1 for origin in problem.graph.ops.origin], np.int32)
        shared = sharing(problem, sets_of(calls))
        chain = replace(shared.constraints, contiguous=True, convex=False)
        return Space(problems=(shared.with_(constraints=chain),))

    def project(self, problem: Problem, placement: Placement) -> Placement:
        _require_program(problem)
        if is_training(problem.graph):
            return place_pipeline(problem, placement, plan_pipeline(problem, placement))
        _, back = stage_order(problem.graph, placement.device)
        return placement if back is None else _project_to_line(problem, placement)

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        document = json.loads(str(exported.files[STAGES]))
        names, ranks = document["names"], document.get("stage_ranks")
        device = [problem.cluster.index(name) for name in (names if ranks is None else [names[r] for r in ranks])]
        stage: dict[int, int] = {}
        for call in document["calls"]:
            if call["number"] in stage:
                raise ExportError(f"the call {call['name']!r} is in {STAGES} twice")
            stage[call["number"]] = call["stage"]
        own = [origin[0] if origin else -1 for origin in problem.graph.ops.origin]
        rest = device[-1] if is_training(problem.graph) else -1
        return np.array([device[stage[number]] if number in stage else rest for number in own], np.int32)


def _note_transfers(problem: Problem, placement: Placement) -> tuple[str, ...]:
    """A note for a plan that prices transfers as free beside compute: its value with those that the target has."""
    objective = problem.objective
    if objective.kind != "throughput" or objective.communication == "blocking":
        return ()
    blocking = judge_placement(problem.with_(objective=replace(objective, communication="blocking")), placement).value
    return (
        f"the plan lets transfers overlap with compute ({objective.communication}), which they hardly do here: with "
        f"blocking transfers it takes {format_seconds(blocking)} per sample; place it --for pipelining",
    )


def _require_program(problem: Problem) -> Source:
    source = problem.graph.source
    if source is None or source.format not in ("torch-export", "torch-module"):
        raise ExportError("the model is no program of torch.export", remedy="export it with torch.export.save")
    return source


def _project_to_line(problem: Problem, placement: Placement) -> Placement:
    """The nearest placement with one stage per device, cut between the ops in their order."""
    count = problem.n_ops
    unit = np.arange(count) * min(count, MAX_UNITS) // max(count, 1)
    low, high = (np.full(problem.n_blocks, bound) for bound in (count, -1))
    np.minimum.at(low, problem.block, unit)
    np.maximum.at(high, problem.block, unit)
    joined = np.zeros(int(unit.max(initial=0)) + 2, np.int64)
    np.add.at(joined, low, 1)
    np.add.at(joined, high, -1)
    starts = np.concatenate(([True], np.cumsum(joined)[:-2] == 0))
    line_unit: Ints = np.asarray((np.cumsum(starts) - 1)[unit], np.int32)
    line = order_devices(problem, placement, line_unit, np.ones(problem.n_devices, np.bool_))
    cuts = cut_into_stages(problem, placement, line_unit, line)
    if not cuts:
        raise ExportError("no cut of the ops in their order lets every device run its stage")
    return Placement(stage_devices(cuts, line)[line_unit])


def _list_calls(problem: Problem, device: Ints, order: Sequence[int]) -> list[dict[str, Any]]:
    """The stage of every call of the program."""
    stage = {home: place for place, home in enumerate(order)}
    calls: dict[int, dict[str, Any]] = {}
    for name, origin, home in zip(problem.graph.ops.name, problem.graph.ops.origin, device.tolist(), strict=True):
        if not origin:
            raise ExportError(f"the op {name!r} stands for no call of the program")
        entry = {"number": origin[0], "name": call_name(name), "stage": stage[home]}
        if calls.setdefault(origin[0], entry)["stage"] != entry["stage"]:
            raise ExportError(f"the call {entry['name']!r} would be in two stages", remedy="keep it --together")
    return [calls[number] for number in sorted(calls)]


def _find_split_points(problem: Problem, device: Ints, order: Sequence[int]) -> list[str]:
    """The first module of each stage but the first, as `pipeline(split_spec=…)` takes them.

    Empty if a stage starts inside a module, or has calls that precede those of an earlier stage in the program.
    """
    place = {home: stage for stage, home in enumerate(order)}
    own = np.array([origin[0] if origin else -1 for origin in problem.graph.ops.origin])
    ops = np.argsort(own, kind="stable")
    stages = [place[home] for home in device[ops].tolist()]
    if any(later < earlier for earlier, later in pairwise(stages)):
        return []
    scopes = [problem.graph.ops.scope[int(op)] for op in ops]
    points = []
    for stage in range(1, len(order)):
        start = stages.index(stage)
        before = {prefix for scope in scopes[:start] for prefix in list_prefixes(scope)}
        point = next((prefix for prefix in list_prefixes(scopes[start]) if prefix not in before), None)
        if point is None:
            return []
        points.append(point)
    return points


def _torch_device(problem: Problem, device: int) -> str:
    one = problem.cluster.devices[device]
    if one.kind in ("cpu", "core"):
        return "cpu"
    if not one.name.startswith("cuda"):
        raise ExportError(f"PyTorch knows no device {one.name!r}", remedy="name accelerators cuda:0, cuda:1, …")
    return one.name

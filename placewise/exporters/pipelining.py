"""torch.distributed.pipelining: the stage of every call of an exported program, and a script for torchrun."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from placewise.errors import ExportError
from placewise.exporters.base import Exported, ExportInfo, OptionValues
from placewise.exporters.module_units import list_prefixes
from placewise.exporters.projection import cut_into_stages, order_devices, stage_devices
from placewise.exporters.space import Space, sets_of, sharing
from placewise.exporters.training_pipeline import is_training, place_training, write_training
from placewise.model.columns import Ints
from placewise.model.graph import Source
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.transform.stages import stage_order

STAGES, SCRIPT, CUTTING, LOADING = "stages.json", "run_pipeline.py", "cutting.py", "loading.py"
MAX_UNITS = 500
_SCRIPT = f'''\
"""Run the stages of {STAGES} side by side: torchrun --nproc-per-node STAGES {SCRIPT} [MODEL.pt2] [MICRO-BATCHES]

Inputs are drawn at random; the last stage compares its outputs with the whole program. Nothing that the model's file
holds is run; --trust-model loads it with torch.export.load, which may run code of the file.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from {Path(CUTTING).stem} import MicrobatchStage, build_stage, calls_of
from {Path(LOADING).stem} import load_program, sample_inputs

SAID = json.loads((Path(__file__).resolve().parent / "{STAGES}").read_text())


def example(program, names):
    """Empty tensors with the shapes and types of these values."""
    values = {{node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}}
    return [torch.empty([int(size) for size in values[name].shape], dtype=values[name].dtype) for name in names]


def main(model, micro_batches, trust_model):
    torch.set_grad_enabled(False)
    rank, count, device = int(os.environ["RANK"]), len(SAID["devices"]), torch.device("cpu")
    if int(os.environ["WORLD_SIZE"]) != count:
        raise SystemExit(f"{STAGES} has {{count}} stages: torchrun --nproc-per-node {{count}}")
    if SAID["devices"][rank].startswith("cuda"):
        if not torch.cuda.is_available():
            raise SystemExit(f"stage {{rank}} is on {{SAID['devices'][rank]}}, and PyTorch sees no GPU here")
        device = torch.device(SAID["devices"][rank])
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if all(name.startswith("cuda") for name in SAID["devices"]) else "gloo")
    program = load_program(model, trust_model=trust_model)
    names = [call.name for call in calls_of(program)]
    if any(names[call["number"]] != call["name"] for call in SAID["calls"]):
        raise SystemExit(f"{{model}} is not the program that {STAGES} is for")
    piece = build_stage(program, {{call["number"]: call["stage"] for call in SAID["calls"]}}, rank, device=device)
    first, last = rank == 0, rank == count - 1
    taken = [value.to(device) for value in example(program, piece.reads)]
    made = [value.to(device) for value in example(program, piece.makes)]
    stage = PipelineStage(
        MicrobatchStage(piece.module, first=first, last=last), rank, count, device,
        tuple(value[None] if first else value for value in taken),
        tuple(value[None] if last else value for value in made),
    )
    schedule = ScheduleGPipe(stage, micro_batches)
    inputs = sample_inputs(program)
    given = [torch.stack([value] * micro_batches).to(device) for value in inputs] if first else []
    schedule.step(*given)
    dist.barrier()
    begin = time.perf_counter()
    outputs = schedule.step(*given)
    dist.barrier()
    seconds = (time.perf_counter() - begin) / micro_batches
    if last:
        whole = build_stage(program, {{}}, 0, device="cpu")
        wanted = dict(zip(whole.makes, whole.module(*inputs)))
        for name, value in zip(piece.makes, outputs if isinstance(outputs, (tuple, list)) else [outputs]):
            torch.testing.assert_close(value[0].cpu(), wanted[name].cpu(), rtol=1e-3, atol=1e-4)
        print(f"{{count}} stages, outputs as those of the whole program, {{seconds * 1e3:.3f}} ms per micro-batch")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo and of autograd may outlive the interpreter, whose end then aborts the process


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default=SAID["model"])
    parser.add_argument("micro_batches", nargs="?", type=int, default=4)
    parser.add_argument("--trust-model", action="store_true", help="run code that the model's file may hold")
    main(**vars(parser.parse_args()))
'''


class PipeliningExporter:
    """A stage per device, one after the other; other placements are projected."""

    info = ExportInfo(
        "pipelining",
        writes=f"{STAGES} (call → stage), {CUTTING} and {LOADING} (cut and load a program), {SCRIPT} (for torchrun)",
        loaded_by="PyTorch 2.13 (torch.distributed.pipelining)",
        verified="executed",
        cannot_say="devices that feed each other in a circle; replicas",
        takes="programs of torch.export and modules that it can take",
        library="torch",
        extra="torch",
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`."""
        source = _require_program(problem)
        placement = self.project(problem, placement)
        path = source.path if source.format == "torch-export" else "model.pt2"
        notes = () if source.format == "torch-export" else ("save the program with torch.export.save as model.pt2",)
        if is_training(problem):
            names = {device: _torch_device(problem, device) for device in np.unique(placement.device).tolist()}
            return Exported(write_training(problem, placement, path, names), placement, notes)
        order, _ = stage_order(problem.graph, placement.device)
        document = {
            "model": path,
            "devices": [_torch_device(problem, device) for device in order],
            "names": [problem.cluster.names[device] for device in order],
            "split_points": _find_split_points(problem, placement.device, order),
            "calls": _list_calls(problem, placement.device, order),
        }
        said = json.dumps(document, indent=1) + "\n"
        files = {STAGES: said, SCRIPT: _SCRIPT, **{name: _read_copy(name) for name in (CUTTING, LOADING)}}
        return Exported(files, placement, notes)

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
        """See `RunningExporter`."""
        _require_program(problem)
        if is_training(problem):
            return place_training(problem, placement)
        _, back = stage_order(problem.graph, placement.device)
        return placement if back is None else _project_to_line(problem, placement)

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`."""
        document = json.loads(str(exported.files[STAGES]))
        device = [problem.cluster.index(name) for name in document["names"]]
        stage: dict[int, int] = {}
        for call in document["calls"]:
            if call["number"] in stage:
                raise ExportError(f"the call {call['name']!r} is in {STAGES} twice")
            stage[call["number"]] = call["stage"]
        own = [origin[0] if origin else -1 for origin in problem.graph.ops.origin]
        rest = device[-1] if is_training(problem) else -1
        return np.array([device[stage[number]] if number in stage else rest for number in own], np.int32)


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
        entry = {"number": origin[0], "name": name.partition(".")[0].partition("#")[0], "stage": stage[home]}
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


def _read_copy(name: str) -> str:
    """The source of a module that needs PyTorch only."""
    spec = find_spec(f"placewise.readers.torch.{Path(name).stem}")
    if spec is None or spec.origin is None:
        raise ExportError(f"the module {name} is not installed")
    return Path(spec.origin).read_text(encoding="utf-8")

"""The program of a job in a file, and the payload that its worker receives for a placement."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

import numpy as np

from placewise.core.precision import find_tf32
from placewise.errors import InputError, MissingExtraError, RunError
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.processes.scratch import ScratchFolder
from placewise.runtimes.base import Job, warn_of_trust
from placewise.runtimes.torch.payload import Payload
from placewise.simulate import judge_placement
from placewise.transform.fold import fold


class ProgramFile:
    """A program in a file: the file of the job, or an archive of its live model, which exists until `close`."""

    def __init__(self, job: Job) -> None:
        self._archive: ModelArchive | None = None
        source = job.problem.graph.source
        if source is None or source.format not in ("torch-export", "torch-module"):
            raise RunError(_refuse_format(source.format if source else ""))
        if job.problem.graph.ops.backward.any():
            raise RunError("a training graph does not run here, only the forward pass that it was made from")
        self.shown, self.trusted = source.path or "the program", True
        if job.model is None:
            if source.format != "torch-export" or not os.path.isfile(source.path):
                raise InputError(f"the model of {self.shown} is not at hand", remedy="give the .pt2 file or the module")
            self.path, self.trusted = source.path, job.trust_model
            if job.trust_model:
                warn_of_trust(source.path)
            return
        self._archive = share_archive(job)
        self.path = self._archive.path

    def payload(self, problem: Problem, placement: Placement) -> Payload:
        """What a worker needs to run a placement."""
        device, names = assign_calls(problem, placement), dict[int, str]()
        for name, origin in zip(problem.graph.ops.name, problem.graph.ops.origin, strict=True):
            if origin and "." not in name:
                names[origin[0]] = name.partition("#")[0]
        start, tf32 = _start_times(problem, placement), find_tf32(problem.graph)
        return Payload(self.path, self.shown, device, names, start, self.trusted, tf32)

    def close(self) -> None:
        self._archive = None


class ModelArchive:
    """A live model in a file, which is removed with the last reference to this object."""

    def __init__(self, job: Job) -> None:
        folder = ScratchFolder()
        self.model, self.path = job.model, str(folder.path / "model.pt2")
        weakref.finalize(self, folder.close)
        _export_model(job, self.path)


def share_archive(job: Job) -> ModelArchive:
    """The archive of a job's model, shared by all placements of it that are prepared at the same time.

    torch.export takes seconds and must not run in two threads at once.
    """
    key = (id(job.model), job.problem.graph.digest())
    with _EXPORTING:
        archive = _ARCHIVES.get(key)
        if archive is None:
            archive = _ARCHIVES[key] = ModelArchive(job)
        return archive


_ARCHIVES: weakref.WeakValueDictionary[tuple[int, str], ModelArchive] = weakref.WeakValueDictionary()
_EXPORTING = threading.Lock()


def assign_calls(problem: Problem, placement: Placement) -> dict[int, int]:
    """The device of each call, by its number. A call of several ops goes where most of their seconds are."""
    graph = problem.graph
    seconds = problem.costs.op_seconds[np.arange(graph.n_ops), placement.device].tolist()
    votes: dict[int, dict[int, float]] = {}
    devices: dict[int, int] = {}
    for op, device in enumerate(placement.device.tolist()):
        own, *others = graph.ops.origin[op] or (-1,)
        votes.setdefault(own, {}).setdefault(device, 0.0)
        votes[own][device] += seconds[op]
        for number in others:
            devices.setdefault(number, device)
    votes.pop(-1, None)
    return devices | {number: max(shares, key=lambda device: shares[device]) for number, shares in votes.items()}


def _start_times(problem: Problem, placement: Placement) -> dict[int, float]:
    """When each call starts in the judge's schedule of one sample; empty if there is no schedule."""
    alone = problem.with_(objective=Objective("latency", execution="operator"))
    timeline = judge_placement(alone, placement).timeline
    if timeline is None:
        return {}
    origins, starts = problem.graph.ops.origin, timeline.start.tolist()
    return {origin[0]: start for origin, start in zip(origins, starts, strict=True) if origin}


def _refuse_format(source_format: str) -> str:
    if source_format == "torch-modules":
        return "torch.export cannot take this module, and PyTorch runs here what torch.export makes"
    return (
        f"PyTorch runs here programs of torch.export, not {source_format or 'a graph without a file'}; "
        "save the model with torch.export.save, and place that file"
    )


def _export_model(job: Job, path: str) -> None:
    """Save the live model of a job as an archive. Raises RunError, and InputError for another model than the plan's."""
    try:
        import torch

        from placewise.readers.torch.example import prepare_example, unwrap_module
        from placewise.readers.torch.export import export_program
        from placewise.readers.torch.program import graph_of_program
    except ImportError:
        raise MissingExtraError("running PyTorch models", "torch") from None
    graph = job.problem.graph
    program: Any = job.model
    dims = dict(graph.source.options.get("dims", {})) if graph.source else {}
    if not isinstance(program, torch.export.ExportedProgram):
        example = job.example if isinstance(job.example, (tuple, list, dict)) else (job.example,)
        args, kwargs = ((), example) if isinstance(example, dict) else (tuple(example), {})
        case = prepare_example(unwrap_module(job.model), args, kwargs, dims)
        if not case.has_data:
            raise InputError("the model has no weights (it is on the meta device)", remedy="give it data to run it")
        program, reason = export_program(case)
        if program is None:
            raise RunError(f"torch.export cannot take this module ({reason})")
    _require_same_graph(graph, graph_of_program(program, dims=dims, source=graph.source))
    torch.export.save(program, path)


def _require_same_graph(graph: Graph, exported: Graph) -> None:
    viewed = exported if graph.source is not None and graph.source.view == "raw" else fold(exported)
    if viewed.digest() != graph.digest():
        raise InputError(
            "this plan was made for another model", remedy="give the model and inputs that it was made for"
        )

"""The profiling server of each runtime, and how it is started."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from placewise.core.precision import find_tf32
from placewise.errors import InputError, MissingExtraError
from placewise.model.graph import Graph, Source
from placewise.processes.worker import Worker
from placewise.profiling.servers.trained_ops import TrainedOps
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import input_tensors
from placewise.runtimes.onnxruntime.installed import installed_release
from placewise.runtimes.onnxruntime.worker_specs import with_tf32
from placewise.transform.training import is_training, planned_optimizer

_ROOM = "placewise.profiling.servers"
_SERVERS = {
    "onnxruntime": f"{_ROOM}.onnxruntime:OnnxRuntimeServer",
    "openvino": f"{_ROOM}.openvino:OpenVinoServer",
    "torch": f"{_ROOM}.torch:TorchServer",
}
_TRAINING = f"{_ROOM}.torch_training:TorchTrainingServer"
OPS_OF = {"pipelining": "torch"}
"""Runtimes whose ops are those of another one, which is profiled in their place."""


def installed_version(runtime: str) -> str:
    """The installed version of a runtime. Raises InputError for an unknown one, MissingExtraError."""
    package = OPS_OF.get(runtime, runtime)
    if package not in _SERVERS:
        remedy = f"choose from {', '.join((*_SERVERS, *OPS_OF))}"
        raise InputError(f"the runtime {runtime!r} cannot be profiled", remedy=remedy)
    if package == "onnxruntime":
        release = installed_release()
    else:
        try:
            release = version(package)
        except PackageNotFoundError:
            release = ""
    if not release:
        raise MissingExtraError(f"profiling with {runtime}", package)
    return release


def start_profiler(
    runtime: str, graph: Graph, source: Source, place: Place, *, start: float, trust_model: bool = False
) -> Worker:
    """A worker at `place` that holds the model `source` of `graph`; it may take `start` seconds to load it.

    With `trust_model`, loading it may run code that the file holds.

    Raises RunError, InputError.
    """
    args: tuple[Any, ...]
    if runtime == "onnxruntime":
        args = source.path, dict(source.options.get("dims", {})), with_tf32(place, find_tf32(graph))
    elif runtime == "openvino":
        args = source.path, source.format, graph, place
    elif is_training(graph):
        args = source.path, list_trained_ops(graph), place, trust_model, find_tf32(graph)
        return Worker(_TRAINING, *args, name=str(place), cores=place.cores, quota=place.quota, start=start)
    else:
        args = source.path, _ops_of_calls(graph), place, trust_model, find_tf32(graph)
    return Worker(_SERVERS[runtime], *args, name=str(place), cores=place.cores, quota=place.quota, start=start)


def list_trained_ops(graph: Graph) -> TrainedOps:
    """The ops of a training graph by what a step computes at once."""
    forward: dict[int, tuple[str, ...]] = {}
    backward: dict[int, tuple[str, ...]] = {}
    loss: dict[bool, tuple[str, ...]] = {False: (), True: ()}
    updates: dict[str, tuple[str, ...]] = {}
    ops = graph.ops
    for name, kind, origin, back in zip(ops.name, ops.kind, ops.origin, ops.backward.tolist(), strict=True):
        if str(kind).startswith("optimizer::"):
            if name.endswith("/update"):
                updates[name.removesuffix("/update")] = (name,)
        elif origin:
            calls = backward if back else forward
            calls[int(origin[0])] = (*calls.get(int(origin[0]), ()), name)
        else:
            loss[back] = (*loss[back], name)
    source, tensors = graph.source, graph.tensors
    shapes = {tensors.name[t]: tuple(map(int, tensors.shape[t])) for t in input_tensors(graph)}
    frozen = tuple(source.options.get("frozen", ())) if source is not None else ()
    optimizer = planned_optimizer(source) or "adam"
    return TrainedOps(forward, backward, loss[False], loss[True], updates, optimizer, frozen, shapes)


def _ops_of_calls(graph: Graph) -> dict[int, tuple[str, ...]]:
    """The names of the ops that stand for each call of a program, by the number of the call."""
    ops: dict[int, tuple[str, ...]] = {}
    for name, origin in zip(graph.ops.name, graph.ops.origin, strict=True):
        if origin:
            ops[int(origin[0])] = (*ops.get(int(origin[0]), ()), name)
    return ops

"""Which server profiles for which runtime, and what it is told of a place."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from placewise.errors import InputError, MissingExtraError
from placewise.model.graph import Graph, Source
from placewise.processes.worker import Worker
from placewise.runtimes.binding import Place

_ROOM = "placewise.profiling.servers"
_SERVED = {
    "onnxruntime": f"{_ROOM}.onnxruntime:OnnxRuntimeServer",
    "openvino": f"{_ROOM}.openvino:OpenVinoServer",
    "torch": f"{_ROOM}.torch:TorchServer",
}


def names() -> tuple[str, ...]:
    """The runtimes that can be profiled."""
    return tuple(_SERVED)


def installed(runtime: str) -> str:
    """The version of a runtime here. Raises InputError for one that is not known, MissingExtraError."""
    if runtime not in _SERVED:
        raise InputError(f"the runtime {runtime!r} cannot be profiled", remedy=f"choose from {', '.join(_SERVED)}")
    try:
        return version(runtime)
    except PackageNotFoundError:
        raise MissingExtraError(f"profiling with {runtime}", runtime) from None


def profiler(runtime: str, graph: Graph, source: Source, place: Place, *, start: float) -> Worker:
    """A worker at `place` that holds the model `source` of `graph`; `start`: how many seconds it may take to load it.

    Raises RunError, InputError.
    """
    told: tuple[Any, ...]
    if runtime == "onnxruntime":
        told = source.path, dict(source.options.get("dims", {})), place
    elif runtime == "openvino":
        told = source.path, source.format, graph, place
    else:
        told = source.path, _calls(graph), place
    return Worker(_SERVED[runtime], *told, name=str(place), cores=place.cores, start=start)


def _calls(graph: Graph) -> dict[int, tuple[str, ...]]:
    """The ops that stand for each call of a program, by its number in the file."""
    found: dict[int, tuple[str, ...]] = {}
    for name, origin in zip(graph.ops.name, graph.ops.origin, strict=True):
        if origin:
            found[int(origin[0])] = (*found.get(int(origin[0]), ()), name)
    return found

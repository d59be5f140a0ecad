"""From sub-models and the devices that run them to the tasks and specifications of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from placewise.errors import InputError, RunError
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Graph
from placewise.readers.onnx.submodels import Submodel
from placewise.readers.onnx.types import element_type
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import numpy_dtype
from placewise.runtimes.onnxruntime.sessions import HOST
from placewise.runtimes.onnxruntime.wiring import PieceTask, Role, TensorSpec, WorkerSpec

_PROVIDERS = {"cores": HOST, "cuda": "CUDAExecutionProvider", "openvino": "OpenVINOExecutionProvider"}
_DEVICE_OPTION = {"cuda": "device_id", "openvino": "device_type"}

Tasks = tuple[tuple[PieceTask, ...], ...]
"""The tasks of every worker."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How many seconds workers with cores of their own poll before they sleep, unless they have a quota of them, and
    whether they get real-time priority (`first`).
    """

    spin: float = 5e-3
    first: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class DataflowSpec:
    """Everything that is needed to start, and restart, the workers.

    `devices` are the device numbers of the workers, `places` where they are. `tasks` are the pieces of each worker
    without their models, which `load_models` adds. `needs` are the most bytes that each
    worker is predicted to hold. `tensors` are those in shared memory. `last` are the counters of the pieces that
    end a sample, in groups of members.
    """

    devices: tuple[int, ...]
    places: tuple[Place, ...]
    tasks: Tasks
    load_models: Callable[[Tasks], AbstractContextManager[Tasks]]
    needs: tuple[int, ...]
    tensors: Mapping[str, TensorSpec]
    n_counters: int
    last: tuple[tuple[int, ...], ...]
    options: WorkerOptions

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(place.device for place in self.places)

    def worker(self, row: int, counters_fd: int, tensors_fd: int, eventfds: tuple[int, ...]) -> WorkerSpec:
        """The specification of one worker, given the descriptors that all of them share."""
        place = self.places[row]
        provider, options, settings = session_settings(place)
        own = bool(place.cores) and place.quota == 1 and not shares_cores(self.places, row)
        return WorkerSpec(
            row, counters_fd, self.n_counters, tensors_fd, eventfds, self.last, place.device, provider, options,
            settings, thread_count(place), self.options.spin if own else 0.0, self.options.first,
        )  # fmt: skip


def session_settings(place: Place) -> tuple[str, dict[str, str], dict[str, str]]:
    """The execution provider of a place, its options, and the session settings there. Raises InputError."""
    settings = {key: value for key, value in place.options.items() if key.startswith(("session.", "ep."))}
    options = {key: value for key, value in place.options.items() if key not in settings and key != "threads"}
    if place.kind == "cores" and options:
        remedy = "on cores it has threads, and settings of a session by their full names (session.…)"
        raise InputError(f"{place.device} has no option {next(iter(options))!r} in ONNX Runtime", remedy=remedy)
    if place.kind in _DEVICE_OPTION:
        options = {_DEVICE_OPTION[place.kind]: place.name, **options}
    return _PROVIDERS[place.kind], options, settings


def with_tf32(place: Place, what: str) -> Place:
    """The place with `what` its session may compute in TF32 (`core.precision.find_tf32`), unless its options say so."""
    if place.kind != "cuda":
        return place
    return replace(place, options={"use_tf32": str(int(what != "nothing")), **place.options})


def specify_workers(
    graph: Graph,
    parts: Sequence[Submodel],
    members: Sequence[Sequence[int]],
    places: Sequence[Place],
    load_models: Callable[[Tasks], AbstractContextManager[Tasks]],
    options: WorkerOptions,
    needs: Sequence[int],
) -> DataflowSpec:
    """The workers that run each part on each of its `members` (device numbers), which take turns with the samples.

    `needs` [n_devices] are the bytes that each device is predicted to hold. Raises RunError for tensors of an open
    shape, InputError for a wrong option of a place.
    """
    devices = sorted({device for part, own in zip(parts, members, strict=True) if part.makes for device in own})
    rows = [[devices.index(device) for device in own if device in devices] for own in members]
    tasks, last, n_counters = _assign_tasks(parts, rows, len(devices))
    used = tuple(places[device] for device in devices)
    for place in used:
        thread_count(place)
    return DataflowSpec(
        tuple(devices), used, tasks, load_models, tuple(needs[device] for device in devices),
        _specify_tensors(graph, parts), n_counters, last, options,
    )  # fmt: skip


def thread_count(place: Place) -> int:
    """The threads of a place: one per core, unless its option `threads` gives another number. Raises InputError."""
    threads = place.options.get("threads", str(max(len(place.cores), 1)))
    if not threads.isdecimal() or not int(threads):
        raise InputError(f"{place.device} has {threads!r} threads", remedy="give a number from 1")
    return int(threads)


def shares_cores(places: Sequence[Place], row: int) -> bool:
    """Whether another place uses cores of this one."""
    others = {core for other, place in enumerate(places) if other != row for core in place.cores}
    return bool(others & set(places[row].cores))


def _specify_tensors(graph: Graph, parts: Sequence[Submodel]) -> dict[str, TensorSpec]:
    """The tensors that parts exchange, and the inputs and outputs of the model. Raises RunError for an open shape."""
    tensors = graph.tensors
    row = {name: tensor for tensor, name in enumerate(tensors.name)}
    outputs = {tensors.name[tensor] for tensor in np.flatnonzero(tensors.output)}
    inputs = {name for name in row if tensors.producer[row[name]] < 0}
    names = [*(name for part in parts for name in (*part.reads, *part.makes)), *sorted(outputs & inputs)]
    specs = {}
    for name in dict.fromkeys(names):
        shape = tuple(map(int, tensors.shape[row[name]])) if name in row else (-1,)
        dtype = DTYPES[int(tensors.dtype[row[name]])] if name in row else "unknown"
        if min(shape, default=0) < 0 or dtype in ("unknown", "string"):
            raise RunError(
                f"{name!r} passes between pieces, and its shape is known only at run time; keep the "
                "ops that make and read it on one device, or give dimensions with --dim"
            )
        role = Role.INPUT if name in inputs else Role.OUTPUT if name in outputs else Role.INNER
        numpy_type = numpy_dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * numpy_type.itemsize
        specs[name] = TensorSpec(role, element_type(dtype), numpy_type, shape, nbytes)
    return specs


def _assign_tasks(
    parts: Sequence[Submodel], members: Sequence[Sequence[int]], n_workers: int
) -> tuple[Tasks, tuple[tuple[int, ...], ...], int]:
    """The tasks of every worker without their models, the counters of what ends a sample, and the number of counters.

    `members` are the workers that run each part.
    """
    maker = {name: number for number, part in enumerate(parts) for name in part.makes}
    n_counters, counters = 1 + n_workers, []
    for own in members:
        counters.append(tuple(range(n_counters, n_counters + len(own))))
        n_counters += len(own)
    sources = [sorted({maker[name] for name in part.reads if name in maker}) for part in parts]
    readers: list[set[int]] = [set() for _ in parts]
    for number, others in enumerate(sources):
        for other in others:
            readers[other].add(number)
    live = [number for number, part in enumerate(parts) if part.makes]
    last = tuple(counters[number] for number in live if not readers[number])
    starting = {row for number in live if not sources[number] for row in members[number]}
    tasks: list[list[PieceTask]] = [[] for _ in range(n_workers)]
    for number in live:
        part, ends, waits = parts[number], not readers[number], tuple(counters[other] for other in sources[number])
        waiting = {row for reader in readers[number] for row in members[reader]} | (starting if ends else set())
        for first, row in enumerate(members[number]):
            task = PieceTask(
                number, f"piece {number}", b"", part.reads, part.makes, counters[number][first], first,
                len(members[number]), waits, tuple(sorted(waiting - {row})), ends,
            )  # fmt: skip
            tasks[row].append(task)
    return tuple(map(tuple, tasks)), last, n_counters

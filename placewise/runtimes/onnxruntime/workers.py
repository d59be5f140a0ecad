"""Who runs what: from sub-models and the devices of each to the works and the seats of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from placewise.errors import InputError, RunError
from placewise.model.dtypes import DTYPES
from placewise.model.graph import Graph
from placewise.readers.onnx.submodels import Submodel
from placewise.readers.onnx.types import element_type
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import numpy_dtype
from placewise.runtimes.onnxruntime.sessions import HOST
from placewise.runtimes.onnxruntime.wiring import Kind, Role, Seat, Work, nbytes_of

_PROVIDERS = {"cores": HOST, "cuda": "CUDAExecutionProvider", "openvino": "OpenVINOExecutionProvider"}
_DEVICE_OPTION = {"cuda": "device_id", "openvino": "device_type"}

Works = tuple[tuple[Work, ...], ...]
"""The works of every worker."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How workers work: for how many seconds they look out for work before they sleep, if they have cores of their own;
    whether they go before other programs.
    """

    spin: float = 5e-3
    first: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Crew:
    """Everything that is needed to start the workers, and to start them again.

    `devices` are the workers' devices, by number, and `places` where they are. `works` are the pieces of each worker,
    without their models, which `loaded` puts in; `weights` the bytes of its weights, `needs` the most that it is
    predicted to hold; `kinds` the tensors that are handed over. There are `cells` on the board, and `last` are those of
    the pieces that end a sample, in groups of members.
    """

    devices: tuple[int, ...]
    places: tuple[Place, ...]
    works: Works
    loaded: Callable[[Works], AbstractContextManager[Works]]
    weights: tuple[int, ...]
    needs: tuple[int, ...]
    kinds: Mapping[str, Kind]
    cells: int
    last: tuple[tuple[int, ...], ...]
    habits: Habits

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(place.device for place in self.places)

    def seat(self, row: int, board: int, data: int, doors: tuple[int, ...]) -> Seat:
        """The seat of a worker, given the descriptors of the board, of the tensors and of everybody's door."""
        place = self.places[row]
        provider, options, settings = asked_of(place)
        own = bool(place.cores) and not crowded(self.places, row)
        return Seat(
            row, board, self.cells, data, doors, self.last, place.device, provider, options, settings,
            threads_of(place), self.habits.spin if own else 0.0, self.habits.first,
        )  # fmt: skip


def asked_of(place: Place) -> tuple[str, dict[str, str], dict[str, str]]:
    """The execution provider of a place, its options, and the settings of a session there. Raises InputError."""
    settings = {key: value for key, value in place.options.items() if key.startswith(("session.", "ep."))}
    options = {key: value for key, value in place.options.items() if key not in settings and key != "threads"}
    if place.kind == "cores" and options:
        remedy = "on cores it has threads, and settings of a session by their full names (session.…)"
        raise InputError(f"{place.device} has no option {next(iter(options))!r} in ONNX Runtime", remedy=remedy)
    if place.kind in _DEVICE_OPTION:
        options = {_DEVICE_OPTION[place.kind]: place.name, **options}
    return _PROVIDERS[place.kind], options, settings


def crew_of(
    graph: Graph,
    parts: Sequence[Submodel],
    members: Sequence[Sequence[int]],
    places: Sequence[Place],
    loaded: Callable[[Works], AbstractContextManager[Works]],
    habits: Habits,
    needs: Sequence[int],
) -> Crew:
    """The crew that runs each part at each of its `members` (devices), which take samples in turn.

    `needs` are the bytes that each device is predicted to hold [n_devices]. Raises RunError for tensors of an open
    shape, InputError for a wrong option of a place.
    """
    devices = sorted({device for part, own in zip(parts, members, strict=True) if part.makes for device in own})
    rows = [[devices.index(device) for device in own if device in devices] for own in members]
    works, last, cells = _works(parts, rows, len(devices))
    weights = tuple(sum(parts[work.number].weight_bytes for work in own) for own in works)
    for device in devices:
        threads_of(places[device])
    used, held = tuple(places[device] for device in devices), tuple(needs[device] for device in devices)
    return Crew(tuple(devices), used, works, loaded, weights, held, _kinds(graph, parts), cells, last, habits)


def threads_of(place: Place) -> int:
    """The threads of a place: as many as it has cores, unless it says otherwise. Raises InputError."""
    said = place.options.get("threads", str(max(len(place.cores), 1)))
    if not said.isdecimal() or not int(said):
        raise InputError(f"{place.device} has {said!r} threads", remedy="give a number from 1")
    return int(said)


def crowded(places: Sequence[Place], row: int) -> bool:
    """Whether others are on the cores of a place."""
    others = {core for other, place in enumerate(places) if other != row for core in place.cores}
    return bool(others & set(places[row].cores))


def _kinds(graph: Graph, parts: Sequence[Submodel]) -> dict[str, Kind]:
    """Every tensor that the parts hand over, are given or give back. Raises RunError for one of an open shape."""
    tensors = graph.tensors
    row = {name: tensor for tensor, name in enumerate(tensors.name)}
    outputs = {tensors.name[tensor] for tensor in np.flatnonzero(tensors.output)}
    given = {name for name in row if tensors.producer[row[name]] < 0}
    kinds = {}
    for name in dict.fromkeys([*(n for part in parts for n in (*part.reads, *part.makes)), *sorted(outputs & given)]):
        shape = tuple(map(int, tensors.shape[row[name]])) if name in row else (-1,)
        dtype = DTYPES[int(tensors.dtype[row[name]])] if name in row else "unknown"
        if min(shape, default=0) < 0 or dtype in ("unknown", "string"):
            raise RunError(
                f"{name!r} is handed over between pieces, and its shape is only known when it is there; keep the "
                "ops that make and read it on one device, or give dimensions with --dim"
            )
        role = Role.INPUT if name in given else Role.OUTPUT if name in outputs else Role.INNER
        kind = numpy_dtype(dtype)
        kinds[name] = Kind(role, element_type(dtype), kind, shape, nbytes_of(shape, kind.itemsize))
    return kinds


def _works(
    parts: Sequence[Submodel], members: Sequence[Sequence[int]], n_workers: int
) -> tuple[Works, tuple[tuple[int, ...], ...], int]:
    """The works of every worker, without their models; the cells of what ends a sample, and the number of cells."""
    maker = {name: number for number, part in enumerate(parts) for name in part.makes}
    cells, group = 1 + n_workers, {}
    for number, own in enumerate(members):
        group[number] = tuple(range(cells, cells + len(own)))
        cells += len(own)
    needs = [sorted({maker[name] for name in part.reads if name in maker}) for part in parts]
    readers: list[set[int]] = [set() for _ in parts]
    for number, others in enumerate(needs):
        for other in others:
            readers[other].add(number)
    live = [number for number, part in enumerate(parts) if part.makes]
    last = tuple(group[number] for number in live if not readers[number])
    sources = {row for number in live if not needs[number] for row in members[number]}
    works: list[list[Work]] = [[] for _ in range(n_workers)]
    for number in live:
        ends, waits = not readers[number], tuple(group[other] for other in needs[number])
        heard = {row for reader in readers[number] for row in members[reader]} | (sources if ends else set())
        for first, row in enumerate(members[number]):
            part, rings = parts[number], tuple(sorted(heard - {row}))
            works[row].append(
                Work(
                    number, f"piece {number}", b"", part.reads, part.makes, group[number][first], first,
                    len(members[number]), waits, rings, ends,
                )
            )  # fmt: skip
    return tuple(map(tuple, works)), last, cells

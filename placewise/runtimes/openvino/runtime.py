"""The runtime `openvino`: a placement as affinities of a model that is static and folded, on HETERO."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from placewise.errors import InputError, MissingExtraError, RunError
from placewise.model.columns import Ints
from placewise.model.graph import Graph, Source
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.processes.worker import Worker
from placewise.readers.openvino.counterparts import device_affinities, find_open_cut, match_ops
from placewise.readers.openvino.folded_model import FORMATS, FoldedModel, input_shapes
from placewise.runtimes.base import Job, Realised, RuntimeInfo, share_of_time
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.openvino.devices import Logical, cores_of, logical_devices
from placewise.runtimes.openvino.kernels import Attributed, attributed
from placewise.runtimes.openvino.server import Split

_SERVER = "placewise.runtimes.openvino.server:Server"
_OPTIONS: Mapping[str, tuple[str, ...]] = {"affinity": ("placement", "automatic"), "perf_count": ("no", "yes")}
_SHOWN = 3


class OpenVino:
    """HETERO runs the pieces of one sample one after another; samples in flight overlap on devices of several kinds.

    Options: `affinity` automatic lets HETERO split by itself, the first device taking all that it supports and may run
    (the placement is then ignored); `perf_count` yes counts the seconds of kernels, for `kernels`.
    """

    info: ClassVar[RuntimeInfo] = RuntimeInfo(
        "openvino", "OpenVINO's HETERO on the devices that it sees", "sequential", FORMATS, "openvino"
    )

    def prepare(self, job: Job) -> Compiled:
        """As `Runtime.prepare` says. Raises RunError, ClusterError, InputError, MissingExtraError."""
        options, source = _options(job.options), _source(job.problem.graph)
        automatic = options["affinity"] == "automatic"
        if job.placement.device.min(initial=0) < 0 and not automatic:
            raise RunError("some ops have no device, so the placement cannot run")
        used = range(job.problem.n_devices) if automatic else sorted(set(job.placement.device.tolist()))
        if find_spec("openvino") is None:
            raise MissingExtraError("the runtime 'openvino'", "openvino")
        path = str(Path(source.path).resolve())
        shapes = input_shapes(job.problem.graph)
        cores = cores_of(job.places, used)
        worker = Worker(_SERVER, path, source.format, shapes, name="OpenVINO", cores=cores, start=job.seconds)
        try:
            return _compiled(job, worker, list(used), automatic, options["perf_count"] == "yes")
        except BaseException:
            worker.kill()
            raise


def own_split(job: Job) -> Placement:
    """The placement that HETERO makes by itself, on the devices in the order of the cluster; that of `job` is ignored.

    Each device takes all that it supports and the problem allows, in turn. Raises what `prepare` raises.
    """
    options = {**job.options, "affinity": "automatic"}
    with OpenVino().prepare(replace(job, options=options)) as prepared:
        return prepared.placement


class Compiled:
    """A compiled placement. `placement` is what really ran, `devices` OpenVINO's name of each device that is used,
    `compile_seconds` how long compiling took.
    """

    def __init__(
        self,
        job: Job,
        worker: Worker,
        listing: FoldedModel,
        belongs: Ints,
        devices: Mapping[int, Logical],
        split: Split,
        asked: Ints,
        notes: Sequence[str],
    ) -> None:
        self._job, self._worker, self._seconds = job, worker, job.seconds
        self._listing, self._belongs, self._logical, self._said = listing, belongs, devices, tuple(notes)
        graph = job.problem.graph
        self._outputs = [graph.tensors.name[row] for row in np.flatnonzero(graph.tensors.output)]
        self.devices = {device: logical.name for device, logical in devices.items()}
        self._settle(split, asked)

    def move(self, placement: Placement) -> None:
        """As `Movable.move` says: the model is read and folded already."""
        options, asked = _options(self._job.options), placement.device
        if options["affinity"] == "automatic":
            return
        if set(asked.tolist()) != set(self.devices):
            raise InputError("this placement uses other devices", remedy="prepare it anew")
        affinity = _affinity(self._listing, self._belongs, self.devices, asked)
        devices, profiled = list(self._logical.values()), options["perf_count"] == "yes"
        self._settle(self._worker.ask("compile", devices, affinity, profiled, timeout=self._seconds), asked)

    def _settle(self, split: Split, asked: Ints) -> None:
        """Take note of what was compiled."""
        problem = self._job.problem
        self.compile_seconds = split.seconds
        self.placement = Placement(_ran_on(problem, split, self._belongs, self.devices, asked))
        self.realised = _realised(problem, split, self.devices, asked, self.placement.device)
        self.notes = (*self._said, *_warnings(self.realised))

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        """As `Prepared.run` says."""
        found: dict[str, npt.NDArray[Any]] = self._worker.ask("run", dict(inputs), self._outputs, timeout=self._seconds)
        return found

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        """As `Prepared.time` says."""
        given = [dict(sample) for sample in samples]
        found: list[float] = self._worker.ask("time", given, in_flight, timeout=self._seconds)
        return found

    def kernels(self, samples: Sequence[Arrays]) -> tuple[list[Attributed], list[float]]:
        """The mean seconds of every kernel and the ops behind it, and the seconds of each whole sample.

        Only where `perf_count` is yes.
        """
        found, wholes = self._worker.ask("kernels", [dict(sample) for sample in samples], timeout=self._seconds)
        return attributed(found, self._listing, self._belongs), wholes

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _options(given: Mapping[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if value not in _OPTIONS.get(name, ()):
            known = "; ".join(f"{option}: {' or '.join(values)}" for option, values in _OPTIONS.items())
            raise InputError(f"the runtime 'openvino' has no option {name}={value}", remedy=f"it has {known}")
    return {name: given.get(name, values[0]) for name, values in _OPTIONS.items()}


def _source(graph: Graph) -> Source:
    source = graph.source
    if source is None or source.format not in FORMATS:
        found = "no file" if source is None else f"of the format {source.format!r}"
        remedy = "give an ONNX file or OpenVINO IR, or another runtime"
        raise InputError(f"the runtime 'openvino' cannot run this model: it is {found}", remedy=remedy)
    if graph.ops.backward.any() or graph.phases:
        raise InputError("the runtime 'openvino' runs inference of one pass", remedy="place the inference graph")
    if not os.path.isfile(source.path):
        raise InputError("the model of this plan is not there", where=source.path, remedy="say where it is")
    return source


def _compiled(job: Job, worker: Worker, used: list[int], automatic: bool, profiled: bool) -> Compiled:
    available = worker.ask("devices", timeout=job.seconds)
    devices = logical_devices(job.places, used, available)
    listing, notes = worker.ask("open", timeout=job.seconds)
    belongs = match_ops(job.problem.graph, listing)
    names = {device: logical.name for device, logical in devices.items()}
    asked: Ints | None = job.placement.device
    if automatic:
        asked = _automatic(job, worker, devices, belongs)
    affinity = None if asked is None else _affinity(listing, belongs, names, asked)
    split = worker.ask("compile", list(devices.values()), affinity, profiled, timeout=job.seconds)
    if asked is None:
        asked = _ran_on(job.problem, split, belongs, names, np.full(job.problem.n_ops, used[0], np.int32))
    return Compiled(job, worker, listing, belongs, devices, split, asked, (*notes, *_serial(job.problem, devices)))


def _serial(problem: Problem, devices: Mapping[int, Logical]) -> list[str]:
    """What to say where samples in flight are to overlap and cannot (seen with OpenVINO 2026.4)."""
    processors = sum(logical.real == "CPU" for logical in devices.values())
    if processors < 2 or problem.objective.kind != "throughput":
        return []
    return [f"HETERO runs its {processors} CPUs on one thread: samples in flight do not overlap on them"]


def _automatic(job: Job, worker: Worker, devices: Mapping[int, Logical], belongs: Ints) -> Ints | None:
    """HETERO's rule under what the problem forbids: every op on the first device that supports it and may run it.

    None where nothing is forbidden: HETERO then decides. The order of the devices is that of the cluster.
    """
    problem = job.problem
    if problem.allowed.all():
        return None
    device = np.full(problem.n_ops, -1, np.int32)
    for number, logical in devices.items():
        supported = problem.allowed[:, number].copy()
        said = np.array(worker.ask("supported", logical, timeout=job.seconds))
        supported[belongs[~said & (belongs >= 0)]] = False
        device[(device < 0) & supported] = number
    if (device < 0).any():
        name = problem.graph.ops.name[int(np.argmax(device < 0))]
        raise RunError(f"no device both supports the op {name!r} and may run it")
    return device


def _affinity(listing: FoldedModel, belongs: Ints, names: Mapping[int, str], asked: Ints) -> Sequence[str]:
    """The device of every op of OpenVINO, by name. Raises RunError for a cut that HETERO cannot make."""
    found = device_affinities(asked, belongs, names)
    _refuse_open_cuts(listing, found)
    return found


def _refuse_open_cuts(listing: FoldedModel, affinity: Sequence[str]) -> None:
    found = find_open_cut(listing, affinity)
    if found is not None:
        made, read = found
        raise RunError(
            f"the shape that {listing.name[made]!r} makes depends on values, and HETERO cannot hand it from "
            f"{affinity[made]} to {affinity[read]}; keep both on one device (--together)"
        )


def _ran_on(problem: Problem, split: Split, belongs: Ints, names: Mapping[int, str], asked: Ints) -> Ints:
    """The device that each op of the graph ran on: another than asked if any part of it did."""
    number = {name: device for device, name in names.items()}
    ran = np.array(asked, np.int32)
    for row, op in enumerate(belongs.tolist()):
        device = number.get(split.device[row], -1)
        if op >= 0 and device >= 0 and device != asked[op]:
            ran[op] = device
    return ran


def _realised(problem: Problem, split: Split, names: Mapping[int, str], asked: Ints, ran: Ints) -> Realised:
    pieces = {(device, piece) for device, piece in zip(split.device, split.piece, strict=True) if device}
    count = [sum(device == names.get(number) for device, _ in pieces) for number in range(problem.n_devices)]
    wanted = set(asked.tolist())
    return Realised(
        tuple(count),
        share_of_time(problem, asked, np.asarray(ran == asked)),
        tuple(problem.cluster.names[d] for d, name in names.items() if d in wanted and name not in split.busy),
        tuple(problem.graph.ops.name[op] for op in np.flatnonzero(ran != asked)),
    )


def _warnings(realised: Realised) -> list[str]:
    said = [f"nothing ran on {device}, which the placement uses" for device in realised.idle]
    if realised.elsewhere:
        shown = ", ".join(realised.elsewhere[:_SHOWN])
        said.append(f"{len(realised.elsewhere)} ops ran on another device than asked ({shown}…)")
    return said

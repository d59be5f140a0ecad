"""The runtime `openvino`: a placement as affinities of a static, folded model on HETERO."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from placewise.core.precision import computing_dtype
from placewise.errors import InputError, MissingExtraError, RunError
from placewise.model.columns import Ints
from placewise.model.graph import Graph, Source
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.processes.worker import Worker
from placewise.readers.openvino.counterparts import device_affinities, find_open_cut, match_ops
from placewise.readers.openvino.folded_model import FORMATS, FoldedModel, input_shapes
from placewise.runtimes.base import Closing, Job, Realised, RuntimeInfo, share_of_time
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.openvino.devices import LogicalDevice, confine_cores, logical_devices
from placewise.runtimes.openvino.kernels import ProfiledKernel, attribute_kernels
from placewise.runtimes.openvino.server import HeteroSplit

_SERVER = "placewise.runtimes.openvino.server:HeteroServer"
_OPTIONS: Mapping[str, tuple[str, ...]] = {"affinity": ("placement", "automatic"), "perf_count": ("no", "yes")}
_SHOWN = 3


class OpenVino:
    """HETERO runs the pieces of one sample one after another; samples in flight overlap on devices of several kinds.

    Options: `affinity` automatic ignores the placement and lets HETERO split by itself, so that the first device takes
    all that it supports and may run; `perf_count` yes counts the seconds of kernels, for `CompiledPlacement.kernels`.
    """

    info: ClassVar[RuntimeInfo] = RuntimeInfo(
        "openvino", "OpenVINO's HETERO on the devices that it sees", "sequential", FORMATS, "openvino"
    )

    def prepare(self, job: Job) -> CompiledPlacement:
        """As `Runtime.prepare`. Raises RunError, ClusterError, InputError, MissingExtraError."""
        options, source = _parse_options(job.options), _require_source(job.problem.graph)
        automatic = options["affinity"] == "automatic"
        if job.placement.device.min(initial=0) < 0 and not automatic:
            raise RunError("some ops have no device, so the placement cannot run")
        used = list(range(job.problem.n_devices)) if automatic else sorted(set(job.placement.device.tolist()))
        if find_spec("openvino") is None:
            raise MissingExtraError("the runtime 'openvino'", "openvino")
        path, shapes = str(Path(source.path).resolve()), input_shapes(job.problem.graph)
        cores = confine_cores(job.places, used, overlapping=job.problem.objective.kind == "throughput")
        worker = Worker(_SERVER, path, source.format, shapes, name="OpenVINO", cores=cores, start=job.seconds)
        try:
            return CompiledPlacement(job, worker, used, automatic)
        except BaseException:
            worker.kill()
            raise


def own_split(job: Job) -> Placement:
    """The placement that HETERO chooses by itself for the cluster's devices in their order; that of `job` is ignored.

    Each device in turn takes all that it supports and the problem allows. Raises as `OpenVino.prepare`.
    """
    options = {**job.options, "affinity": "automatic"}
    with OpenVino().prepare(replace(job, options=options)) as prepared:
        return prepared.placement


class CompiledPlacement(Closing):
    """A compiled placement.

    `placement` is what really ran, and `devices` are OpenVINO's names of the used devices.
    """

    def __init__(self, job: Job, worker: Worker, used: list[int], automatic: bool) -> None:
        self._job, self._worker, self._seconds = job, worker, job.seconds
        self._automatic, self._profiled = automatic, job.options.get("perf_count") == "yes"
        problem, graph = job.problem, job.problem.graph
        available = worker.ask("devices", timeout=job.seconds)
        self._logical = logical_devices(job.places, used, available, computing_dtype(graph))
        self.devices = {device: logical.name for device, logical in self._logical.items()}
        self._listing, notes = worker.ask("open", timeout=job.seconds)
        self._belongs = match_ops(graph, self._listing)
        self._open_notes = (*notes, *_pipeline_warnings(problem, self._logical))
        self._outputs = [graph.tensors.name[row] for row in np.flatnonzero(graph.tensors.output)]
        self._compile(self._choose_devices() if automatic else job.placement.device)

    def move(self, placement: Placement) -> None:
        """As `Movable.move`; the model stays read and folded."""
        if self._automatic:
            return
        if set(placement.device.tolist()) != set(self.devices):
            raise InputError("this placement uses other devices", remedy="prepare it anew")
        self._compile(placement.device)

    def run(self, inputs: Arrays) -> dict[str, npt.NDArray[Any]]:
        outputs: dict[str, npt.NDArray[Any]] = self._ask("run", dict(inputs), self._outputs)
        return outputs

    def time(self, samples: Sequence[Arrays], *, in_flight: int = 1) -> list[float]:
        seconds: list[float] = self._ask("time", [dict(sample) for sample in samples], in_flight)
        return seconds

    def kernels(self, samples: Sequence[Arrays]) -> tuple[list[ProfiledKernel], list[float]]:
        """The mean seconds of every kernel with its ops of the graph, and the seconds of each whole sample.

        Needs the option `perf_count` yes.
        """
        kernels, wholes = self._ask("kernels", [dict(sample) for sample in samples])
        return attribute_kernels(kernels, self._listing, self._belongs), wholes

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def _ask(self, method: str, *args: Any) -> Any:
        return self._worker.ask(method, *args, timeout=self._seconds)

    def _compile(self, device: Ints | None) -> None:
        """Compile for these devices of the ops [n_ops] (None: HETERO decides), and read back what runs where."""
        problem, affinity = self._job.problem, None
        if device is not None:
            affinity = device_affinities(device, self._belongs, self.devices)
            _refuse_open_cuts(self._listing, affinity)
        split: HeteroSplit = self._ask("compile", list(self._logical.values()), affinity, self._profiled)
        if device is None:
            first = np.full(problem.n_ops, min(self.devices), np.int32)
            device = _devices_run_on(split, self._belongs, self.devices, first)
        ran = _devices_run_on(split, self._belongs, self.devices, device)
        self.placement = Placement(ran)
        self.realised = _realise(problem, split, self.devices, device, ran)
        self.notes = (*self._open_notes, *_warnings(self.realised))

    def _choose_devices(self) -> Ints | None:
        """HETERO's rule within the problem's constraints: the first device that supports an op and may run it [n_ops].

        None without constraints: HETERO then decides. The devices have the order of the cluster.
        """
        problem, belongs = self._job.problem, self._belongs
        if problem.allowed.all():
            return None
        device = np.full(problem.n_ops, -1, np.int32)
        for number, logical in self._logical.items():
            candidates = problem.allowed[:, number].copy()
            supported = np.array(self._ask("supported", logical))
            candidates[belongs[~supported & (belongs >= 0)]] = False
            device[(device < 0) & candidates] = number
        if (device < 0).any():
            name = problem.graph.ops.name[int(np.argmax(device < 0))]
            raise RunError(f"no device both supports the op {name!r} and may run it")
        return device


def _parse_options(options: Mapping[str, str]) -> dict[str, str]:
    for name, value in options.items():
        if value not in _OPTIONS.get(name, ()):
            known = "; ".join(f"{option}: {' or '.join(values)}" for option, values in _OPTIONS.items())
            raise InputError(f"the runtime 'openvino' has no option {name}={value}", remedy=f"it has {known}")
    return {name: options.get(name, values[0]) for name, values in _OPTIONS.items()}


def _require_source(graph: Graph) -> Source:
    source = graph.source
    if source is None or source.format not in FORMATS:
        kind = "no file" if source is None else f"of the format {source.format!r}"
        remedy = "give an ONNX file or OpenVINO IR, or another runtime"
        raise InputError(f"the runtime 'openvino' cannot run this model: it is {kind}", remedy=remedy)
    if graph.ops.backward.any() or graph.phases:
        raise InputError("the runtime 'openvino' runs inference of one pass", remedy="place the inference graph")
    if not os.path.isfile(source.path):
        raise InputError("the model of this plan is not there", where=source.path, remedy="give its path")
    return source


def _pipeline_warnings(problem: Problem, devices: Mapping[int, LogicalDevice]) -> list[str]:
    """A note if samples in flight should overlap and cannot (observed with OpenVINO 2026.4)."""
    processors = sum(logical.real == "CPU" for logical in devices.values())
    if processors < 2 or problem.objective.kind != "throughput":
        return []
    return [f"HETERO runs its {processors} CPUs on one thread: samples in flight do not overlap on them"]


def _refuse_open_cuts(listing: FoldedModel, affinity: Sequence[str]) -> None:
    """Raise RunError for a cut that HETERO cannot make."""
    cut = find_open_cut(listing, affinity)
    if cut is not None:
        maker, reader = cut
        raise RunError(
            f"the shape that {listing.name[maker]!r} makes depends on values, and HETERO cannot hand it from "
            f"{affinity[maker]} to {affinity[reader]}; keep both on one device (--together)"
        )


def _devices_run_on(split: HeteroSplit, belongs: Ints, names: Mapping[int, str], device: Ints) -> Ints:
    """The device that each op of the graph ran on: another than `device` if any part of the op did."""
    number = {name: device for device, name in names.items()}
    ran = np.array(device, np.int32)
    for row, op in enumerate(belongs.tolist()):
        actual = number.get(split.device[row], -1)
        if op >= 0 and actual >= 0 and actual != device[op]:
            ran[op] = actual
    return ran


def _realise(problem: Problem, split: HeteroSplit, names: Mapping[int, str], device: Ints, ran: Ints) -> Realised:
    pieces = {(name, piece) for name, piece in zip(split.device, split.piece, strict=True) if name}
    used = set(device.tolist())
    return Realised(
        tuple(sum(name == names.get(number) for name, _ in pieces) for number in range(problem.n_devices)),
        share_of_time(problem, device, np.asarray(ran == device)),
        tuple(problem.cluster.names[d] for d, name in names.items() if d in used and name not in split.busy),
        tuple(problem.graph.ops.name[op] for op in np.flatnonzero(ran != device)),
    )


def _warnings(realised: Realised) -> list[str]:
    warnings = [f"nothing ran on {device}, which the placement uses" for device in realised.idle]
    if realised.elsewhere:
        shown = ", ".join(realised.elsewhere[:_SHOWN])
        warnings.append(f"{len(realised.elsewhere)} ops ran on another device than the placement names ({shown}…)")
    return warnings

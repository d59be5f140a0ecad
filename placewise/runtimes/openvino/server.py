"""What the worker holds: a model, compiled for a split; it runs, times and profiles it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from placewise.errors import RunError
from placewise.processes.scratch import scratch
from placewise.readers.openvino.folded_model import (
    FoldedModel,
    Shapes,
    import_openvino,
    input_names,
    load_folded,
    output_names,
    summarize_error,
)
from placewise.runtimes.inputs import Arrays, numpy_dtype
from placewise.runtimes.openvino.devices import Logical
from placewise.runtimes.openvino.dot import code, ops_in, read_split

T = TypeVar("T")
_DRAW = "OPENVINO_HETERO_VISUALIZE"
_CPU_PLUGIN = "openvino_intel_cpu_plugin"
_MODEL = "placewise"
_NO_WORK = frozenset({"Const", "Constant", "Input", "Output", "Parameter", "Result"})


@dataclass(frozen=True, slots=True)
class Split:
    """What HETERO made of the ops: the device ("" where it does not say) and the piece (−1) of each; devices on which
    kernels stand; and how long compiling took.
    """

    device: tuple[str, ...]
    piece: tuple[int, ...]
    busy: frozenset[str]
    seconds: float


@dataclass(frozen=True, slots=True)
class Kernel:
    """What ran as one: its name and type, the ops that it names, its device, and its mean seconds."""

    name: str
    type: str
    ops: tuple[int, ...]
    device: str
    seconds: float


class Server:
    """One model in one process."""

    def __init__(self, path: str, file_format: str, shapes: Shapes) -> None:
        os.environ[_DRAW] = "1"
        self._core = import_openvino().Core()
        self._file = Path(path).resolve(), file_format, shapes
        self._model: Any = None
        self._compiled: Any = None

    def devices(self) -> list[str]:
        """The devices that OpenVINO sees here."""
        return list(self._core.available_devices)

    def open(self) -> tuple[FoldedModel, tuple[str, ...]]:
        """Read the model and fold it: its ops, and notes."""
        self._model, listing, notes = load_folded(*self._file)
        self._ops = self._model.get_ordered_ops()
        self._inputs, self._outputs = input_names(self._model), output_names(self._model)
        for row, op in enumerate(self._ops):
            op.set_friendly_name(code(row))
        self._model.set_friendly_name(_MODEL)
        return listing, notes

    def supported(self, device: Logical) -> list[bool]:
        """Which ops a device says that it can run."""
        self._set_up(device)
        said = _guard(lambda: self._core.query_model(self._model, device.name), f"query {device.name}")
        return [code(row) in said for row in range(len(self._ops))]

    def compile(self, devices: Sequence[Logical], affinity: Sequence[str] | None, profiled: bool) -> Split:
        """Compile for these devices, one of them by the name in `affinity` for each op (None: HETERO decides)."""
        for device in devices:
            self._set_up(device, {"PERF_COUNT": "YES"} if profiled else {})
        names = [device.name for device in devices]
        target = names[0] if len(names) == 1 else "HETERO:" + ",".join(names)
        if affinity is not None and len(names) > 1:
            for op, name in zip(self._ops, affinity, strict=True):
                op.get_rt_info()["affinity"] = name
        self._devices = names
        began = time.perf_counter()
        with scratch() as folder, chdir(folder):
            compile_ = self._core.compile_model
            self._compiled = _guard(lambda: compile_(self._model, target), f"compile for {target}")
            seconds = time.perf_counter() - began
            drawn = Path(f"hetero_subgraphs_{_MODEL}.dot")
            said = read_split(drawn.read_text()) if drawn.exists() else {}
        self._request = self._compiled.create_infer_request()
        self._runs = 0
        return self._split(said, seconds)

    def run(self, inputs: Arrays, wanted: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """The outputs by name: one of those that are `wanted`, where it has one of them."""
        _guard(lambda: self._request.infer(self._by_port(inputs)), "run")
        self._runs += 1
        found = {}
        for row, names in enumerate(self._outputs):
            name = next((name for name in wanted if name in names), min(names))
            found[name] = _array(self._request.get_output_tensor(row))
        return found

    def time(self, samples: Sequence[Arrays], in_flight: int) -> list[float]:
        """As `Prepared.time` says."""
        ready = [self._by_port(sample) for sample in samples]
        self._runs += len(samples)
        if in_flight > 1:
            return [_guard(lambda: self._stream(ready, in_flight), "run")]
        found = []
        for sample in ready:
            began = time.perf_counter()
            _guard(partial(self._request.infer, sample, share_outputs=True), "run")
            found.append(time.perf_counter() - began)
        return found

    def kernels(self, samples: Sequence[Arrays]) -> tuple[list[Kernel], list[float]]:
        """What every kernel took, the mean of these samples; and the seconds of each whole sample.

        OpenVINO counts the mean of all runs so far: those before are taken off again.
        """
        before, runs = self._counted(), self._runs
        wholes = self.time(samples, 1)
        listed, made = self._listed_kernels(), []
        home: dict[str, str] = {}  # a piece's device, by its name in front of those of kernels
        for label, mean in self._counted().items():
            piece, _, name = label.rpartition(": ")
            kind, ops = listed.get(name, ("", ()))
            home[piece] = home.get(piece) or self._device_of(ops)
            seconds = (mean * self._runs - before.get(label, 0.0) * runs) / len(samples)
            made.append((piece, Kernel(name, kind, ops, "", max(seconds, 0.0))))
        return [replace(kernel, device=home[piece]) for piece, kernel in made if kernel.seconds > 0], wholes

    def _counted(self) -> dict[str, float]:
        """Mean seconds of each kernel over all runs."""
        if not self._runs:
            return {}
        return {entry.node_name: entry.real_time.total_seconds() for entry in self._request.profiling_info}

    def _stream(self, ready: Sequence[Mapping[int, Any]], in_flight: int) -> float:
        queue = import_openvino().AsyncInferQueue(self._compiled, in_flight)
        began = time.perf_counter()
        for sample in ready:
            queue.start_async(sample)
        queue.wait_all()
        return (time.perf_counter() - began) / len(ready)

    def _by_port(self, inputs: Arrays) -> dict[int, Any]:
        found = {}
        for row, names in enumerate(self._inputs):
            name = next((name for name in sorted(names) if name in inputs), None)
            if name is None:
                raise RunError(f"the model's input {min(names)!r} is not given")
            found[row] = _tensor(np.asarray(inputs[name], order="C"), self._model.input(row).element_type)
        return found

    def _set_up(self, device: Logical, more: Mapping[str, str] | None = None) -> None:
        if device.name != device.real and device.name not in self._core.available_devices:
            self._core.register_plugin(_CPU_PLUGIN, device.name)
            self._core.get_property(device.name, "FULL_DEVICE_NAME")  # loads it: it then refuses what it does not know
        for key, value in {**device.properties, **(more or {})}.items():
            _guard(partial(self._core.set_property, device.name, {key: value}), f"set {device.name}")

    def _split(self, said: Mapping[int, tuple[int, str]], seconds: float) -> Split:
        count = range(len(self._ops))
        if len(self._devices) == 1:
            name = self._devices[0]
            self._said = [name for _ in count]
            return Split(tuple(self._said), tuple(0 for _ in count), frozenset({name}), seconds)
        self._said = [said[row][1] if row in said else "" for row in count]
        pieces = tuple(said[row][0] if row in said else -1 for row in count)
        working = [ops for kind, ops in self._listed_kernels().values() if kind not in _NO_WORK]
        return Split(tuple(self._said), pieces, frozenset(map(self._device_of, working)) - {""}, seconds)

    def _listed_kernels(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Type and ops of every kernel by its name, as the compiled model lists them."""
        listed = {}
        for node in self._compiled.get_runtime_model().get_ops():
            info = node.get_rt_info()
            kind, names = (str(info[key].value) if key in info else "" for key in ("layerType", "originalLayersNames"))
            listed[node.get_friendly_name()] = kind, ops_in(names)
        return listed

    def _device_of(self, ops: Sequence[int]) -> str:
        return next((self._said[op] for op in ops if self._said[op]), "")


def _tensor(array: npt.NDArray[Any], element_type: Any) -> Any:
    """What OpenVINO takes: types that numpy does not have itself go in as their bits."""
    if array.dtype.kind != "V":
        return array
    bits = array.view(np.dtype(f"u{array.itemsize}"))
    return import_openvino().Tensor(bits, import_openvino().Shape(array.shape), element_type)


def _array(tensor: Any) -> npt.NDArray[Any]:
    """A copy of what is in a tensor."""
    is_brain = tensor.element_type == import_openvino().Type.bf16  # handed out as float16
    return np.array(tensor.data.view(numpy_dtype("bfloat16")) if is_brain else tensor.data)


def _guard(action: Callable[[], T], what: str) -> T:
    """What an action returns. Raises RunError with OpenVINO's reason."""
    try:
        return action()
    except RuntimeError as error:
        raise RunError(f"OpenVINO cannot {what}: {summarize_error(error)}") from None

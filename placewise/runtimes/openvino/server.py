"""The object in the worker: a model that is compiled for a split, run, timed and profiled."""

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
from placewise.processes.scratch import scratch_folder
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
from placewise.runtimes.openvino.devices import LogicalDevice
from placewise.runtimes.openvino.kernels import ProfiledKernel, list_kernels, op_code, parse_split

T = TypeVar("T")
_DRAW_SPLIT = "OPENVINO_HETERO_VISUALIZE"
_CPU_PLUGIN = "openvino_intel_cpu_plugin"
_MODEL = "placewise"
_NO_WORK = frozenset({"Const", "Constant", "Input", "Output", "Parameter", "Result"})


@dataclass(frozen=True, slots=True)
class HeteroSplit:
    """What HETERO did with the ops: the device ("" if unknown) and the piece (−1 if unknown) of each.

    `busy` are the devices on which kernels run.
    """

    device: tuple[str, ...]
    piece: tuple[int, ...]
    busy: frozenset[str]


class HeteroServer:
    """One model in one process."""

    def __init__(self, path: str, file_format: str, shapes: Shapes) -> None:
        os.environ[_DRAW_SPLIT] = "1"
        self._core = import_openvino().Core()
        self._file = Path(path).resolve(), file_format, shapes
        self._model: Any = None
        self._compiled: Any = None

    def devices(self) -> list[str]:
        """The devices that OpenVINO sees here."""
        return list(self._core.available_devices)

    def open(self) -> tuple[FoldedModel, tuple[str, ...]]:
        """Read and fold the model: its ops, and notes."""
        self._model, listing, notes = load_folded(*self._file)
        self._ops = self._model.get_ordered_ops()
        self._inputs, self._outputs = input_names(self._model), output_names(self._model)
        for row, op in enumerate(self._ops):
            op.set_friendly_name(op_code(row))
        self._model.set_friendly_name(_MODEL)
        return listing, notes

    def supported(self, device: LogicalDevice) -> list[bool]:
        """Which ops a device supports by its own account."""
        self._set_up(device)
        names = call_openvino(lambda: self._core.query_model(self._model, device.name), f"query {device.name}")
        return [op_code(row) in names for row in range(len(self._ops))]

    def compile(self, devices: Sequence[LogicalDevice], affinity: Sequence[str] | None, profiled: bool) -> HeteroSplit:
        """Compile for these devices; `affinity` names the device of each op (None: HETERO decides)."""
        for device in devices:
            self._set_up(device, {"PERF_COUNT": "YES"} if profiled else {})
        names = [device.name for device in devices]
        target = names[0] if len(names) == 1 else "HETERO:" + ",".join(names)
        if affinity is not None and len(names) > 1:
            for op, name in zip(self._ops, affinity, strict=True):
                op.get_rt_info()["affinity"] = name
        with scratch_folder() as folder, chdir(folder):
            compile_model = partial(self._core.compile_model, self._model, target)
            self._compiled = call_openvino(compile_model, f"compile for {target}")
            drawing = Path(f"hetero_subgraphs_{_MODEL}.dot")
            split = parse_split(drawing.read_text()) if drawing.exists() else {}
        self._request = self._compiled.create_infer_request()
        self._runs = 0
        return self._read_back(names, split)

    def run(self, inputs: Arrays, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """The outputs by name: under one of `names` if the output has it."""
        call_openvino(lambda: self._request.infer(self._by_port(inputs)), "run")
        self._runs += 1
        outputs = {}
        for row, own in enumerate(self._outputs):
            name = next((name for name in names if name in own), min(own))
            outputs[name] = _to_array(self._request.get_output_tensor(row))
        return outputs

    def time(self, samples: Sequence[Arrays], in_flight: int) -> list[float]:
        tensors = [self._by_port(sample) for sample in samples]
        self._runs += len(samples)
        if in_flight > 1:
            return [call_openvino(lambda: self._stream(tensors, in_flight), "run")]
        seconds = []
        for sample in tensors:
            began = time.perf_counter()
            call_openvino(partial(self._request.infer, sample, share_outputs=True), "run")
            seconds.append(time.perf_counter() - began)
        return seconds

    def kernels(self, samples: Sequence[Arrays]) -> tuple[list[ProfiledKernel], list[float]]:
        """The mean seconds of every kernel over these samples, and the seconds of each whole sample.

        OpenVINO reports the mean of all runs so far; the earlier runs are subtracted.
        """
        earlier, runs = self._mean_seconds(), self._runs
        wholes = self.time(samples, 1)
        listed, kernels = list_kernels(self._compiled.get_runtime_model()), []
        device: dict[str, str] = {}  # by piece, which prefixes the names of its kernels
        for label, mean in self._mean_seconds().items():
            piece, _, name = label.rpartition(": ")
            kind, ops = listed.get(name, ("", ()))
            device[piece] = device.get(piece) or self._device_of(ops)
            seconds = (mean * self._runs - earlier.get(label, 0.0) * runs) / len(samples)
            kernels.append((piece, ProfiledKernel(name, kind, ops, "", max(seconds, 0.0))))
        return [replace(kernel, device=device[piece]) for piece, kernel in kernels if kernel.seconds > 0], wholes

    def _mean_seconds(self) -> dict[str, float]:
        """Mean seconds of each kernel over all runs."""
        if not self._runs:
            return {}
        return {entry.node_name: entry.real_time.total_seconds() for entry in self._request.profiling_info}

    def _stream(self, tensors: Sequence[Mapping[int, Any]], in_flight: int) -> float:
        queue = import_openvino().AsyncInferQueue(self._compiled, in_flight)
        began = time.perf_counter()
        for sample in tensors:
            queue.start_async(sample)
        queue.wait_all()
        return (time.perf_counter() - began) / len(tensors)

    def _by_port(self, inputs: Arrays) -> dict[int, Any]:
        """Tensors by the number of the model's input; any values for one that no op reads, which is not given."""
        tensors = {}
        for row, (port, names) in enumerate(zip(self._model.inputs, self._inputs, strict=True)):
            name = next((name for name in sorted(names) if name in inputs), None)
            if name is not None:
                tensors[row] = _to_tensor(np.asarray(inputs[name], order="C"), port.element_type)
            elif port.get_target_inputs():
                raise RunError(f"the model's input {min(names)!r} is not given")
            else:
                tensors[row] = import_openvino().Tensor(port.element_type, port.partial_shape.get_min_shape())
        return tensors

    def _set_up(self, device: LogicalDevice, properties: Mapping[str, str] | None = None) -> None:
        if device.name != device.real and device.name not in self._core.available_devices:
            self._core.register_plugin(_CPU_PLUGIN, device.name)
            self._core.get_property(device.name, "FULL_DEVICE_NAME")  # loads it, so that it rejects unknown properties
        for key, value in {**device.properties, **(properties or {})}.items():
            call_openvino(partial(self._core.set_property, device.name, {key: value}), f"set {device.name}")

    def _read_back(self, devices: Sequence[str], split: Mapping[int, tuple[int, str]]) -> HeteroSplit:
        count = len(self._ops)
        if len(devices) == 1:
            self._op_device = [devices[0]] * count
            return HeteroSplit(tuple(self._op_device), (0,) * count, frozenset(devices))
        unknown = -1, ""
        self._op_device = [split.get(row, unknown)[1] for row in range(count)]
        pieces = tuple(split.get(row, unknown)[0] for row in range(count))
        listed = list_kernels(self._compiled.get_runtime_model()).values()
        busy = {self._device_of(ops) for kind, ops in listed if kind not in _NO_WORK}
        return HeteroSplit(tuple(self._op_device), pieces, frozenset(busy - {""}))

    def _device_of(self, ops: Sequence[int]) -> str:
        return next((self._op_device[op] for op in ops if self._op_device[op]), "")


def _to_tensor(array: npt.NDArray[Any], element_type: Any) -> Any:
    """An array as OpenVINO takes it; types that numpy itself lacks are passed as bits."""
    if array.dtype.kind != "V":
        return array
    bits = array.view(np.dtype(f"u{array.itemsize}"))
    return import_openvino().Tensor(bits, import_openvino().Shape(array.shape), element_type)


def _to_array(tensor: Any) -> npt.NDArray[Any]:
    """A copy of the values of a tensor."""
    is_bfloat16 = tensor.element_type == import_openvino().Type.bf16  # its data has the type float16
    return np.array(tensor.data.view(numpy_dtype("bfloat16")) if is_bfloat16 else tensor.data)


def call_openvino(action: Callable[[], T], what: str) -> T:
    """The result of an action. Raises RunError with OpenVINO's reason: "OpenVINO cannot `what`"."""
    try:
        return action()
    except RuntimeError as error:
        raise RunError(f"OpenVINO cannot {what}: {summarize_error(error)}") from None

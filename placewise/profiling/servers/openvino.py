"""Profile a whole model with OpenVINO's performance counters, and find the ops behind each kernel."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from placewise.core.precision import computing_dtype
from placewise.costing.measured.table import TimingRow
from placewise.model.graph import Graph
from placewise.profiling.servers.window import ProfiledRuns, TimeWindow, time_in_turns
from placewise.readers.openvino.counterparts import match_ops
from placewise.readers.openvino.folded_model import import_openvino, input_names, input_shapes, load_folded
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.openvino.devices import logical_devices
from placewise.runtimes.openvino.kernels import ProfiledKernel, attribute_kernels, list_kernels, op_code
from placewise.runtimes.openvino.server import call_openvino

_EXECUTED = "EXECUTED"


class OpenVinoServer:
    """Times the static, folded model of a graph on one of OpenVINO's devices, with the properties of the runtime."""

    def __init__(self, path: str, file_format: str, graph: Graph, place: Place) -> None:
        self._library, self._graph = import_openvino(), graph
        self._core = self._library.Core()
        (device,) = logical_devices([place], [0], self._core.available_devices, computing_dtype(graph)).values()
        self._device, self._properties = device.real, dict(device.properties)
        self._model, self._listing, self.notes = load_folded(Path(path).resolve(), file_format, input_shapes(graph))
        self._names = input_names(self._model)
        for row, op in enumerate(self._model.get_ordered_ops()):
            op.set_friendly_name(op_code(row))
        self._plain = self._compile(self._model).create_infer_request()

    def about(self) -> tuple[str, ...]:
        """Notes on the model."""
        return self.notes

    def measure(self, inputs: Arrays, window: TimeWindow) -> ProfiledRuns:
        """Time the whole model without and with counters, in turns; the median of every kernel's counter."""
        compiled = self._compile(self._model, PERF_COUNT=True)
        counted, arrays = compiled.create_infer_request(), self._by_port(inputs)
        times: dict[str, list[float]] = {}
        besides: list[float] = []

        def count() -> None:
            begin = time.perf_counter()
            counted.infer(arrays)
            besides.append(time.perf_counter() - begin)
            for counter in counted.profiling_info:
                if counter.status.name == _EXECUTED:
                    seconds = counter.real_time.total_seconds()
                    times.setdefault(counter.node_name, []).append(seconds)
                    besides[-1] -= seconds

        runs = [partial(call_openvino, run, "run it") for run in (lambda: self._plain.infer(arrays), count)]
        whole, _ = time_in_turns(runs, window)
        return ProfiledRuns(tuple(whole), self._rows(times, compiled.get_runtime_model()), max(median(besides), 0.0))

    def call_seconds(self, least: int) -> tuple[float, ...]:
        """Seconds of calls of a tiny model: the overhead of every call."""
        parameter = self._library.opset13.parameter([1, 1], np.float32)
        model = self._library.Model([self._library.opset13.relu(parameter)], [parameter], "tiny")
        tiny = self._compile(model).create_infer_request()
        arrays = [np.zeros((1, 1), np.float32)]
        (times,) = time_in_turns([lambda: tiny.infer(arrays)], TimeWindow(least))
        return tuple(times)

    def _compile(self, model: Any, **more: Any) -> Any:
        properties = {**self._properties, **more}
        return call_openvino(lambda: self._core.compile_model(model, self._device, properties), "run it")

    def _by_port(self, inputs: Arrays) -> dict[int, Any]:
        """Arrays by the number of the model's input; zeros for an input that no op reads, which is not given."""
        arrays: dict[int, Any] = {}
        for number, (port, names) in enumerate(zip(self._model.inputs, self._names, strict=True)):
            name = next((name for name in sorted(names) if name in inputs), None)
            if name is None:
                arrays[number] = np.zeros(port.get_partial_shape().get_min_shape(), port.get_element_type().to_dtype())
            else:
                arrays[number] = inputs[name]
        return arrays

    def _rows(self, times: Mapping[str, list[float]], model: Any) -> tuple[TimingRow, ...]:
        """A row per kernel, with the names of the graph's ops that it computes: none for a change of layout."""
        listed, ops = list_kernels(model), self._graph.ops.name
        kernels = [
            ProfiledKernel(name, *listed.get(name, ("", ())), "", float(median(seconds)))
            for name, seconds in times.items()
        ]
        return tuple(
            TimingRow(kernel.name, kernel.seconds, kind=kernel.type, ops=tuple(ops[op] for op in kernel.ops))
            for kernel in attribute_kernels(kernels, self._listing, match_ops(self._graph, self._listing))
        )

"""OpenVINO's performance counters around a whole model, and the ops that each kernel stands for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from placewise.costing.measured.table import TimingRow
from placewise.errors import RunError
from placewise.model.graph import Graph
from placewise.profiling.servers.window import Measured, Window, in_turns
from placewise.readers.openvino.counterparts import counterparts
from placewise.readers.openvino.live import input_names, input_shapes, library, open_live, reason
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.openvino.devices import logical_devices
from placewise.runtimes.openvino.dot import code, ops_in
from placewise.runtimes.openvino.kernels import attributed
from placewise.runtimes.openvino.server import Kernel

_RAN = "EXECUTED"


class OpenVinoServer:
    """Times the model of a graph, static and folded, on one of OpenVINO's devices, set as the runtime sets it."""

    def __init__(self, path: str, file_format: str, graph: Graph, place: Place) -> None:
        self._library, self._graph = library(), graph
        self._core = self._library.Core()
        (device,) = logical_devices([place], [0], self._core.available_devices).values()
        self._device, self._properties = device.real, dict(device.properties)
        self._model, self._listing, self.notes = open_live(Path(path).resolve(), file_format, input_shapes(graph))
        self._names = input_names(self._model)
        for row, op in enumerate(self._model.get_ordered_ops()):
            op.set_friendly_name(code(row))
        self._plain = self._compiled(self._model).create_infer_request()

    def about(self) -> tuple[str, ...]:
        """What to say of the model."""
        return self.notes

    def measure(self, inputs: Arrays, window: Window) -> Measured:
        """The whole model without and with counters, in turns, and the median of every kernel's counter."""
        compiled = self._compiled(self._model, PERF_COUNT=True)
        counted, fed = compiled.create_infer_request(), self._fed(inputs)
        found: dict[str, list[float]] = {}
        besides: list[float] = []

        def count() -> None:
            begin = time.perf_counter()
            counted.infer(fed)
            besides.append(time.perf_counter() - begin)
            for counter in counted.profiling_info:
                if counter.status.name == _RAN:
                    seconds = counter.real_time.total_seconds()
                    found.setdefault(counter.node_name, []).append(seconds)
                    besides[-1] -= seconds

        whole, _ = in_turns([_guarded(lambda: self._plain.infer(fed)), _guarded(count)], window)
        return Measured(tuple(whole), self._rows(found, compiled.get_runtime_model()), max(median(besides), 0.0))

    def call_seconds(self, least: int) -> tuple[float, ...]:
        """Seconds of calls that do next to nothing: what every call costs."""
        given = self._library.opset13.parameter([1, 1], np.float32)
        model = self._library.Model([self._library.opset13.relu(given)], [given], "tiny")
        tiny = self._compiled(model).create_infer_request()
        fed = [np.zeros((1, 1), np.float32)]
        (times,) = in_turns([lambda: tiny.infer(fed)], Window(least))
        return tuple(times)

    def _compiled(self, model: Any, **more: Any) -> Any:
        return _guarded(lambda: self._core.compile_model(model, self._device, {**self._properties, **more}))()

    def _fed(self, inputs: Arrays) -> dict[int, Any]:
        """Arrays by the number of the model's input; one that no op reads, and is therefore not given, is zeros."""
        fed: dict[int, Any] = {}
        for number, (port, names) in enumerate(zip(self._model.inputs, self._names, strict=True)):
            name = next((name for name in sorted(names) if name in inputs), None)
            if name is None:
                fed[number] = np.zeros(port.get_partial_shape().get_min_shape(), port.get_element_type().to_dtype())
            else:
                fed[number] = inputs[name]
        return fed

    def _rows(self, found: Mapping[str, list[float]], model: Any) -> tuple[TimingRow, ...]:
        """A row per kernel, with the names of the graph's ops that it computes: none for a change of layout."""
        listed = {}
        for node in model.get_ops():
            info = node.get_rt_info()
            kind, names = (str(info[key].value) if key in info else "" for key in ("layerType", "originalLayersNames"))
            listed[node.get_friendly_name()] = kind, ops_in(names)
        kernels = [Kernel(name, *listed.get(name, ("", ())), "", float(median(times))) for name, times in found.items()]
        ops = self._graph.ops.name
        belongs = counterparts(self._graph, self._listing)
        return tuple(
            TimingRow(kernel.name, kernel.seconds, kind=kernel.type, ops=tuple(ops[op] for op in kernel.ops))
            for kernel in attributed(kernels, self._listing, belongs)
        )


def _guarded(action: Callable[[], Any]) -> Callable[[], Any]:
    """The action, with OpenVINO's errors as RunError."""

    def run() -> Any:
        try:
            return action()
        except RuntimeError as error:
            raise RunError(f"OpenVINO cannot run it: {reason(error)}") from None

    return run

"""Profile a whole model with ONNX Runtime's own profiler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from placewise.costing.measured.onnxruntime import read_trace, seconds_besides, timings_of
from placewise.errors import RunError
from placewise.processes.scratch import scratch_folder
from placewise.profiling.servers.window import ProfiledRuns, TimeWindow, time_in_turns
from placewise.readers.onnx.model import load_with_weights
from placewise.readers.onnx.names import op_names
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.onnxruntime.sessions import preload_libraries
from placewise.runtimes.onnxruntime.worker_specs import session_settings, thread_count

LARGEST_MESSAGE = 1 << 31
"""Bytes of a protobuf message."""
_TINY = (1, 1)


class OnnxRuntimeServer:
    """Times a model at one place, in sessions with the settings of the runtime."""

    def __init__(self, path: str, dims: Mapping[str, int], place: Place) -> None:
        import onnxruntime

        self._runtime, self._threads = onnxruntime, thread_count(place)
        provider, options, self._settings = session_settings(place)
        self._providers = [(provider, options)]
        if provider not in onnxruntime.get_available_providers():
            raise RunError(f"the ONNX Runtime that is installed has no {provider}")
        preload_libraries(provider)
        model, self.notes = load_with_weights(Path(path), dims)
        for node, name in zip(model.graph.node, op_names(model.graph.node), strict=True):
            node.name = name
        if model.ByteSize() >= LARGEST_MESSAGE:
            raise RunError(f"{path} is larger than 2 GiB with its weights, which cannot be profiled")
        self._model = model.SerializeToString()
        self._plain = self._session(self._model)

    def about(self) -> tuple[str, ...]:
        """Notes on the model."""
        return self.notes

    def measure(self, inputs: Arrays, window: TimeWindow) -> ProfiledRuns:
        """Time the whole model without and with the profiler, in turns; the kernels as the profiler reports them."""
        arrays = self._to_arrays(inputs)
        with scratch_folder() as folder:
            profiled = self._session(self._model, str(folder))
            runs = [lambda: self._plain.run(None, arrays), lambda: profiled.run(None, arrays)]
            whole, _ = time_in_turns(runs, window)
            trace = read_trace(Path(profiled.end_profiling()))
            timings = timings_of(trace)
            return ProfiledRuns(tuple(whole), timings.rows, seconds_besides(trace), timings.notes)

    def call_seconds(self, least: int) -> tuple[float, ...]:
        """Seconds of calls of a tiny model: the overhead of every call."""
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, _TINY) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "tiny", ends[:1], ends[1:])
        opset = helper.make_opsetid("", 17)
        tiny = self._session(helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString())
        arrays = {"x": np.zeros(_TINY, np.float32)}
        (times,) = time_in_turns([lambda: tiny.run(None, arrays)], TimeWindow(least))
        return tuple(times)

    def _session(self, model: bytes, profile: str = "") -> Any:
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "1")
        # Sessions run in turns, and threads of one that spin would slow the next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        for key, value in self._settings.items():
            options.add_session_config_entry(key, value)
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, str(Path(profile, "run"))
        try:
            return self._runtime.InferenceSession(model, options, providers=self._providers)
        except Exception as error:  # ONNX Runtime's error types share no base class
            raise RunError(f"ONNX Runtime cannot load it: {(str(error).splitlines() or [''])[0][:300]}") from None

    def _to_arrays(self, inputs: Arrays) -> dict[str, Any]:
        """The inputs of the session; zeros for an input that no op reads, which is not given."""
        arrays: dict[str, Any] = {}
        for port in self._plain.get_inputs():
            if port.name in inputs:
                arrays[port.name] = inputs[port.name]
            else:
                shape = [size if isinstance(size, int) else 1 for size in port.shape]
                kind = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}
                arrays[port.name] = np.zeros(shape, kind.get(port.type, np.float32))
        return arrays

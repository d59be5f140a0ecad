"""ONNX Runtime's own profiler around a whole model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewise.costing.measured.onnxruntime import read_onnxruntime
from placewise.errors import MissingExtraError, RunError
from placewise.readers.onnx.whole import load_whole
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.profiling.window import Measured, Window, in_turns

_TINY = (1, 1)


class OnnxRuntimeServer:
    """Times a model in sessions with one thread per core, on an execution provider."""

    def __init__(self, path: str, dims: Mapping[str, int], threads: int, provider: str) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("profiling with ONNX Runtime", "onnxruntime") from None
        self._runtime, self._threads = onnxruntime, threads
        self._providers = [provider]
        if provider not in onnxruntime.get_available_providers():
            raise RunError(f"the ONNX Runtime that is installed has no {provider}")
        model, self.notes = load_whole(Path(path), dims)
        self._model = model.SerializeToString()
        self._plain = self._session(self._model)

    def about(self) -> tuple[str, ...]:
        """What to say of the model."""
        return self.notes

    def measure(self, inputs: Arrays, window: Window) -> Measured:
        """The whole model without and with the profiler, in turns, and what the profiler says of its kernels."""
        fed = self._fed(inputs)
        with tempfile.TemporaryDirectory(prefix="placewise-") as folder:
            profiled = self._session(self._model, folder)
            runs = [lambda: self._plain.run(None, fed), lambda: profiled.run(None, fed)]
            whole, _ = in_turns(runs, window)
            rows = read_onnxruntime(Path(profiled.end_profiling())).rows
        return Measured(tuple(whole), rows)

    def call_seconds(self, least: int) -> tuple[float, ...]:
        """Seconds of calls that do next to nothing: what every call costs."""
        import numpy as np
        from onnx import TensorProto, helper

        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, _TINY) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "tiny", ends[:1], ends[1:])
        opset = helper.make_opsetid("", 17)
        tiny = self._session(helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString())
        fed = {"x": np.zeros(_TINY, np.float32)}
        (times,) = in_turns([lambda: tiny.run(None, fed)], Window(least))
        return tuple(times)

    def _session(self, model: bytes, profile: str = "") -> Any:
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.log_severity_level = 3
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, str(Path(profile, "run"))
        return self._runtime.InferenceSession(model, options, providers=self._providers)

    def _fed(self, inputs: Arrays) -> dict[str, Any]:
        """What the session takes; an input that no op reads, and that therefore is not given, is zeros."""
        import numpy as np

        fed: dict[str, Any] = {}
        for wanted in self._plain.get_inputs():
            if wanted.name in inputs:
                fed[wanted.name] = inputs[wanted.name]
            else:
                shape = [size if isinstance(size, int) else 1 for size in wanted.shape]
                kind = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}
                fed[wanted.name] = np.zeros(shape, kind.get(wanted.type, np.float32))
        return fed

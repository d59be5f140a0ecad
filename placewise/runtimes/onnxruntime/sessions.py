"""Sessions of ONNX Runtime, on the requested provider or not at all, bound to memory of the caller."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from placewise.errors import RunError
from placewise.runtimes.onnxruntime.wiring import WorkerSpec

HOST = "CPUExecutionProvider"
CUDA = ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")
_SOURCE_PLACES = re.compile(r"/onnxruntime_src/\S+ .*?\) |\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_OTHER_SIZE = re.compile(r"output '(.+?)' of node .* has shape (\{.*?\}) but the computed output shape .* is (\{.*?\})")
BoundTensor = tuple[str, int, tuple[int, ...], int]
"""A tensor in memory: name, ONNX element type, shape, address."""


class PieceSession:
    """A session of one piece.

    `elsewhere` names the nodes that run on another provider; `on_host`: it computes in host memory.
    """

    def __init__(self, session: Any, name: str, spec: WorkerSpec) -> None:
        self._session, self._name = session, name
        self.on_host = spec.provider == HOST
        self.elsewhere = _nodes_elsewhere(session, spec.provider)

    def bind(self, reads: Sequence[BoundTensor], makes: Sequence[BoundTensor]) -> Any:
        """Bind all inputs and outputs to memory, so that the session copies nothing."""
        binding = self._session.io_binding()
        for name, element, shape, address in reads:
            binding.bind_input(name, "cpu", 0, element, shape, address)
        for name, element, shape, address in makes:
            binding.bind_output(name, "cpu", 0, element, shape, address)
        return binding

    def run(self, binding: Any) -> None:
        """Run once. Raises RunError with ONNX Runtime's reason."""
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's error types share no base class
            raise RunError(f"{self._name} does not run: {_reason(error)}") from None


def describe_missing_provider(spec: WorkerSpec) -> str:
    """A sentence that names the provider that the installed ONNX Runtime lacks; "" if it has the provider."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    if spec.provider in available:
        return ""
    return f"{spec.device} needs {spec.provider}, and the installed onnxruntime has {', '.join(available)}"


def open_session(model: bytes | str, name: str, spec: WorkerSpec, *, shared: bool = False) -> PieceSession:
    """Open a session of a model (serialized, or a path) with all of ONNX Runtime's optimizations.

    With `shared` it uses the threads of the process (`share_threads`). Raises RunError if the provider does not start
    or the model cannot be loaded.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = spec.threads
    options.inter_op_num_threads = 1
    # With memory patterns, the second run allocates one block on top of the chunks that the arena keeps.
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spec.spin else "0")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in spec.session_options.items():
        options.add_session_config_entry(key, value)
    options.use_per_session_threads = not shared
    preload_libraries(spec.provider)
    try:
        with _open_as_file(model) as path:
            providers = [(spec.provider, dict(spec.provider_options))]
            session = onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:  # ONNX Runtime's error types share no base class
        raise RunError(f"{name} cannot be loaded on {spec.device}: {_reason(error)}") from None
    if spec.provider not in session.get_providers():
        raise RunError(f"{spec.provider} does not start for {spec.device}: ONNX Runtime fell back to another provider")
    return PieceSession(session, name, spec)


@cache
def preload_libraries(provider: str) -> None:
    """Load the libraries of CUDA that were installed as Python packages, where ONNX Runtime itself does not look."""
    import onnxruntime

    if provider in CUDA and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()


@contextmanager
def _open_as_file(model: bytes | str) -> Iterator[str]:
    """The path of a model; a session that is created from bytes would keep them for as long as it lives."""
    if isinstance(model, str):
        yield model
        return
    file = os.memfd_create("model")
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(model)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


def trim_heap() -> None:
    """Return freed memory to the system, if its C library can."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def raise_priority(name: str) -> None:
    """Give all threads of this process real-time priority. Raises RunError if that is not permitted."""
    try:
        for task in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(task), os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        raise RunError(f"{name} cannot get real-time priority, which takes root or CAP_SYS_NICE") from None


def share_threads(spec: WorkerSpec) -> None:
    """Use one thread pool for all sessions of this process: several polling pools would slow each other down."""
    import onnxruntime

    onnxruntime.set_global_thread_pool_sizes(spec.threads, 1)


def _nodes_elsewhere(session: Any, provider: str) -> tuple[str, ...]:
    """Nodes that the session assigned to another provider, if this version of ONNX Runtime reports them."""
    if provider == HOST or not hasattr(session, "get_provider_graph_assignment_info"):
        return ()
    parts = (part for part in session.get_provider_graph_assignment_info() if part.ep_name != provider)
    return tuple(node.name or node.op_type for part in parts for node in part.get_nodes())


def _reason(error: Exception) -> str:
    """ONNX Runtime's message without places in its source; for sizes that depend on data, with a remedy."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = _SOURCE_PLACES.sub("", lines[0]) if lines else type(error).__name__
    other = _OTHER_SIZE.search(message)
    if other is None:
        return message[:300]
    return (
        f"{other[1]!r} has the shape {other[2]} in the plan, and is {other[3]} for these inputs; give the sizes "
        "that depend on data as they are (--dim NAME:AXIS=SIZE), here or when you place"
    )

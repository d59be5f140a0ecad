"""Sessions of ONNX Runtime: on the provider that is asked for or not at all, and bound to memory that is given."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from placewise.errors import RunError
from placewise.runtimes.onnxruntime.wiring import Seat

HOST = "CPUExecutionProvider"
_PLACES = re.compile(r"/onnxruntime_src/\S+ .*?\) |\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_OTHER_SIZE = re.compile(r"output '(.+?)' of node .* has shape (\{.*?\}) but the computed output shape .* is (\{.*?\})")
Bound = tuple[str, int, tuple[int, ...], int]
"""A tensor in memory: name, ONNX element type, shape, address."""


class Opened:
    """A session; `elsewhere` names its nodes that run on another provider, `on_host` says that it computes in host
    memory.
    """

    def __init__(self, session: Any, name: str, seat: Seat) -> None:
        self._session, self._name = session, name
        self.on_host = seat.provider == HOST
        self.elsewhere = _elsewhere(session, seat.provider)

    def bind(self, reads: Sequence[Bound], makes: Sequence[Bound]) -> Any:
        """A binding of all inputs and outputs to memory; the session then copies nothing."""
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
        except Exception as error:  # its own error types, which share no base
            raise RunError(f"{self._name} does not run: {_reason(error)}") from None


def lacking(seat: Seat) -> str:
    """What a seat needs and the installed ONNX Runtime does not have, in words; "" if there is nothing."""
    import onnxruntime

    there = onnxruntime.get_available_providers()
    if seat.provider in there:
        return ""
    return f"{seat.device} needs {seat.provider}, and the installed onnxruntime has {', '.join(there)}"


def open_session(model: bytes | str, name: str, seat: Seat, *, shared: bool = False) -> Opened:
    """A session of a model (serialized, or a path) as its seat says, with all of ONNX Runtime's optimizations.

    With `shared` it uses the process's threads (`share_threads`). Raises RunError where the provider does not start,
    or the model cannot be loaded.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = seat.threads
    options.inter_op_num_threads = 1
    # A pattern of the first run becomes one block of the second, on top of the chunks that the arena keeps.
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if seat.spin else "0")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in seat.session_options.items():
        options.add_session_config_entry(key, value)
    options.use_per_session_threads = not shared
    try:
        with _as_file(model) as path:
            providers = [(seat.provider, dict(seat.provider_options))]
            session = onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:  # its own error types, which share no base
        raise RunError(f"{name} cannot be loaded on {seat.device}: {_reason(error)}") from None
    if seat.provider not in session.get_providers():
        raise RunError(f"{seat.provider} does not start for {seat.device}: ONNX Runtime fell back to another provider")
    return Opened(session, name, seat)


@contextmanager
def _as_file(model: bytes | str) -> Iterator[str]:
    """The path of a model: a session made from bytes would keep them for as long as it lives."""
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


def trim() -> None:
    """Give memory that was freed back to the system, where its C library can."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def before_others(name: str) -> None:
    """Let all threads of this process go before those of other programs. Raises RunError where that is not allowed."""
    try:
        for task in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(task), os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        raise RunError(f"{name} may not go before other programs: that takes root, or CAP_SYS_NICE") from None


def share_threads(seat: Seat) -> None:
    """One set of threads for all sessions of this process: several sets that look out for work disturb each other."""
    import onnxruntime

    onnxruntime.set_global_thread_pool_sizes(seat.threads, 1)


def _elsewhere(session: Any, provider: str) -> tuple[str, ...]:
    """Nodes that the session gave to another provider, as far as this version of ONNX Runtime says it."""
    if provider == HOST or not hasattr(session, "get_provider_graph_assignment_info"):
        return ()
    parts = (part for part in session.get_provider_graph_assignment_info() if part.ep_name != provider)
    return tuple(node.name or node.op_type for part in parts for node in part.get_nodes())


def _reason(error: Exception) -> str:
    """What ONNX Runtime says, without places in its own source; of sizes that depend on data, what to do."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = _PLACES.sub("", lines[0]) if lines else type(error).__name__
    other = _OTHER_SIZE.search(said)
    if other is None:
        return said[:300]
    return (
        f"{other[1]!r} has the shape {other[2]} in the plan, and is {other[3]} for these inputs; give the sizes "
        "that depend on data as they are (--dim NAME:AXIS=SIZE), here or when you place"
    )

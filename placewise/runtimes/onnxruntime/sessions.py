"""Sessions of ONNX Runtime: on the provider that is asked for or not at all, and bound to memory that is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placewise.errors import RunError
from placewise.runtimes.onnxruntime.wiring import Seat

HOST = "CPUExecutionProvider"
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


def open_session(model: bytes | str, name: str, seat: Seat, *, shared: bool = False) -> Opened:
    """A session of a model (serialized, or a path) as its seat says, with all of ONNX Runtime's optimizations.

    With `shared` it uses the process's threads (`share_threads`). Raises RunError where the provider is missing or
    does not start, or the model cannot be loaded.
    """
    import onnxruntime

    there = onnxruntime.get_available_providers()
    if seat.provider not in there:
        raise RunError(f"{seat.device} needs {seat.provider}, and the installed onnxruntime has {', '.join(there)}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = seat.threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if seat.spin else "0")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in seat.session_options.items():
        options.add_session_config_entry(key, value)
    options.use_per_session_threads = not shared
    try:
        providers = [(seat.provider, dict(seat.provider_options))]
        session = onnxruntime.InferenceSession(model, options, providers=providers)
    except Exception as error:  # its own error types, which share no base
        raise RunError(f"{name} cannot be loaded on {seat.device}: {_reason(error)}") from None
    if seat.provider not in session.get_providers():
        raise RunError(f"{seat.provider} does not start for {seat.device}: ONNX Runtime fell back to another provider")
    return Opened(session, name, seat)


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
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__

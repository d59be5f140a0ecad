"""Time every call of a torch.export program while the whole program runs."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from torch import fx

from placewise.costing.measured.table import TimingRow
from placewise.errors import RunError
from placewise.profiling.servers.clocks import Clock, GpuClock, HostClock
from placewise.profiling.servers.window import ProfiledRuns, TimeWindow, time_in_turns
from placewise.readers.torch.cutting import build_piece, calls_of, inputs_of, outputs_of, steps_of, weights_of
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.torch.arrays import tensor_of
from placewise.runtimes.torch.payload import Payload
from placewise.runtimes.torch.runtime import torch_device
from placewise.runtimes.torch.split_program import load_program, set_tf32, take_gpu


class ProgramServer:
    """One place, and the clock there."""

    def __init__(self, place: Place, tf32: str) -> None:
        torch.set_num_threads(max(len(place.cores), 1))
        self._device = torch_device(place)
        self._clock: Clock = HostClock()
        if self._device != "cpu":
            take_gpu(self._device)
            set_tf32(tf32)
            self._clock = GpuClock(self._device)

    def about(self) -> tuple[str, ...]:
        """Notes on the model."""
        return ()

    def call_seconds(self, least: int) -> tuple[float, ...]:
        """Seconds of calls of a tiny model: the overhead of every call."""
        graph = fx.Graph()
        graph.output((graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),)),))
        tiny, tensors = fx.GraphModule(torch.nn.Module(), graph), torch.zeros(1, device=self._device)

        def call() -> None:
            tiny(tensors)
            self._clock.wait()

        with torch.no_grad():
            (times,) = time_in_turns([call], TimeWindow(least))
        return tuple(times)


class TorchServer(ProgramServer):
    """Times a program at one place; `ops` are the names of the graph's ops behind each call, by number.

    There is no fusion: a call is one kernel, or several that cannot be separated.
    """

    def __init__(
        self, path: str, ops: Mapping[int, tuple[str, ...]], place: Place, trusted: bool = False, tf32: str = "nothing"
    ) -> None:
        super().__init__(place, tf32)
        program = load_program(Payload(path, path, {}, {}, {}, trusted))
        self._names = {node.name: ops.get(number, ()) for number, node in enumerate(calls_of(program))}
        piece = build_piece(
            program, steps_of(program), outputs_of(program), weights_of(program),
            device=self._device, reads=inputs_of(program),
        )  # fmt: skip
        self._module, self._reads = piece.module, piece.reads

    def measure(self, inputs: Arrays, window: TimeWindow) -> ProfiledRuns:
        """Time the whole program, and every call in an interpreter, in turns; the median of every call."""
        tensors = [tensor_of(inputs[name]).to(self._device) for name in self._reads]
        interpreter = TimingInterpreter(self._module, self._clock)

        def whole() -> None:
            self._module(*tensors)
            self._clock.wait()

        with torch.no_grad():
            try:
                seconds, _ = time_in_turns([whole, lambda: interpreter.time_run(*tensors)], window)
            except RuntimeError as error:
                raise RunError(f"PyTorch cannot run it: {str(error).splitlines()[0][:300]}") from None
        rows = tuple(
            TimingRow(name, float(median(times[1:])), kind=interpreter.kinds[name], ops=self._names.get(name, ()))
            for name, times in interpreter.seconds.items()
        )
        return ProfiledRuns(tuple(seconds), rows, 0.0)


class TimingInterpreter(fx.Interpreter):
    """Runs a module call by call and records the seconds of each, by name."""

    def __init__(self, module: fx.GraphModule, clock: Clock) -> None:
        super().__init__(module)
        self._clock = clock
        self.marks: list[tuple[str, Any, Any]] = []
        self.seconds: dict[str, list[float]] = {}
        self.kinds: dict[str, str] = {}

    def time_run(self, *args: Any) -> None:
        """Run once. Calls follow each other as they do without a clock, which is read after the last one."""
        self.run(*args)
        self._clock.wait()
        for name, begin, end in self.marks:
            self.seconds.setdefault(name, []).append(self._clock.seconds(begin, end))
        self.marks.clear()

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        begin = self._clock.mark()
        result = n.target(*args, **kwargs)  # type: ignore[operator]
        self.marks.append((n.name, begin, self._clock.mark()))
        self.kinds[n.name] = getattr(n.target, "__name__", str(n.target))
        return result

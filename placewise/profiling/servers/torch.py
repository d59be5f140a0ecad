"""Every call of a torch.export program timed, while the whole program runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from torch import fx

from placewise.costing.measured.table import TimingRow
from placewise.errors import RunError
from placewise.profiling.servers.window import Measured, Window, in_turns
from placewise.readers.torch.cutting import calls_of, inputs_of, outputs_of, piece_of, steps_of, weights_of
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.torch.arrays import tensor_of
from placewise.runtimes.torch.loading import load
from placewise.runtimes.torch.payload import Payload
from placewise.runtimes.torch.runtime import device_of


class TorchServer:
    """Times a program at one place; `ops` are the names of the graph's ops that each call stands for, by number.

    There is no fusion: a call is a kernel, or several that nothing can come between.
    """

    def __init__(self, path: str, ops: Mapping[int, tuple[str, ...]], place: Place) -> None:
        torch.set_num_threads(max(len(place.cores), 1))
        self._device, self._ops, self._names = device_of(place), ops, dict[str, tuple[str, ...]]()
        program = load(Payload(path, path, {}, {}, {}))
        for number, node in enumerate(calls_of(program)):
            self._names[node.name] = ops.get(number, ())
        piece = piece_of(
            program, steps_of(program), outputs_of(program), weights_of(program),
            device=self._device, reads=inputs_of(program),
        )  # fmt: skip
        self._module, self._reads = piece.module, piece.reads

    def about(self) -> tuple[str, ...]:
        """What to say of the model."""
        return ()

    def measure(self, inputs: Arrays, window: Window) -> Measured:
        """The whole program, and the median of every call in an interpreter, in turns."""
        fed = [tensor_of(inputs[name]).to(self._device) for name in self._reads]
        timed = _Timed(self._module, self._wait)

        def whole() -> None:
            self._module(*fed)
            self._wait()

        with torch.no_grad():
            try:
                seconds, _ = in_turns([whole, lambda: timed.run(*fed)], window)
            except RuntimeError as error:
                raise RunError(f"PyTorch cannot run it: {str(error).splitlines()[0][:300]}") from None
        rows = tuple(
            TimingRow(name, float(median(times[1:])), kind=timed.kinds[name], ops=self._names.get(name, ()))
            for name, times in timed.seconds.items()
        )
        return Measured(tuple(seconds), rows, 0.0)

    def call_seconds(self, least: int) -> tuple[float, ...]:
        """Seconds of calls that do next to nothing: what every call costs."""
        graph = fx.Graph()
        graph.output((graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),)),))
        tiny, fed = fx.GraphModule(torch.nn.Module(), graph), torch.zeros(1, device=self._device)

        def call() -> None:
            tiny(fed)
            self._wait()

        with torch.no_grad():
            (times,) = in_turns([call], Window(least))
        return tuple(times)

    def _wait(self) -> None:
        """Until a GPU is done; its calls return at once."""
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)


class _Timed(fx.Interpreter):
    """Runs a module call by call and writes down the seconds of each, by name."""

    def __init__(self, module: fx.GraphModule, wait: Any) -> None:
        super().__init__(module)
        self._wait = wait
        self.seconds: dict[str, list[float]] = {}
        self.kinds: dict[str, str] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        begin = time.perf_counter()
        made = n.target(*args, **kwargs)  # type: ignore[operator]
        self._wait()
        self.seconds.setdefault(n.name, []).append(time.perf_counter() - begin)
        self.kinds[n.name] = getattr(n.target, "__name__", str(n.target))
        return made

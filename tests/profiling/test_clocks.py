"""Times of calls by a clock that, as that of a GPU, knows them only when all calls have been computed."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


class LateClock:
    """A device that computes nothing before it is waited for, and then takes a second more for each call."""

    def __init__(self) -> None:
        self.marks, self.waits, self.known = 0, 0, -1

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def wait(self) -> None:
        self.waits, self.known = self.waits + 1, self.marks

    def seconds(self, begin: int, end: int) -> float:
        assert end <= self.known, "read before the device has computed"
        return float(end)


def test_a_run_waits_once_and_reads_the_clock_then() -> None:
    """One wait per run and not one per call, which would leave the device idle between calls."""
    from placewise.profiling.servers.torch import TimingInterpreter

    graph = torch.fx.Graph()
    value: Any = graph.placeholder("x")
    for target in (torch.ops.aten.relu.default, torch.ops.aten.neg.default, torch.ops.aten.abs.default):
        value = graph.call_function(target, (value,))
    graph.output((value,))
    clock = LateClock()
    interpreter = TimingInterpreter(torch.fx.GraphModule(torch.nn.Module(), graph), clock)
    for _ in range(2):
        interpreter.time_run(torch.ones(2))
    assert clock.waits == 2 and clock.marks == 12
    assert list(interpreter.seconds.values()) == [[2.0, 8.0], [4.0, 10.0], [6.0, 12.0]]
    assert len(set(interpreter.kinds.values())) == 3

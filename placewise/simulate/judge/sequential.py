"""`sequential` latency (OpenVINO HETERO, one request): one piece at a time over all devices.

A piece is what one device runs without interruption. The number of an op's piece is how often the paths to it change
device, so that pieces never wait for each other in a circle. Pieces run by number, then by device. Before a piece, the
tensors that it needs and that its device has never had are moved, one after another. The value is Σ ops + Σ transfers +
overhead per piece; model outputs move to the host at the end.
"""

from __future__ import annotations

from placewise import _native
from placewise.model.columns import Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.model.result import Timeline
from placewise.simulate.judge.hops import logged_timeline
from placewise.simulate.problem_arrays import native_problem


def cut_pieces(problem: Problem, device: Ints) -> Ints:
    """The number of each op's piece [n_ops]; ops of one number and one device form a piece."""
    return _native.sequential_pieces(native_problem(problem), device)


def makespans(
    problem: _native.Problem, placements: Ints, edges: tuple[Longs, Ints], first: int, last: int, values: Floats
) -> None:
    """Write the seconds of placements [K, n_ops], rows first to last, into `values` [K]; `edges` are by consumer."""
    _native.sequential_makespans(problem, *edges, placements, first, last, values)


def timeline(problem: Problem, device: Ints) -> tuple[float, Timeline]:
    """The makespan of one placement, and its timeline."""
    edges = (problem.graph.in_offsets, problem.graph.edges.value)
    value, start, finish, hops = _native.sequential_timeline(native_problem(problem), *edges, device)
    return value, logged_timeline(start, finish, hops)

"""`sequential` latency: one piece after another, each fetching what its device has never had."""

from __future__ import annotations

from placewise.model.problem import Problem
from twins.plain import Plain, Run, Transfer


def piece_numbers(plain: Plain, device: list[int]) -> list[int]:
    """The most changes of device on any path to each op."""
    number = [0] * plain.n_ops
    for op in range(plain.n_ops):
        for tensor in plain.reads[op]:
            maker = plain.maker[tensor]
            if maker >= 0:
                number[op] = max(number[op], number[maker] + (device[maker] != device[op]))
    return number


def sequential_makespan(problem: Problem, device: list[int]) -> Run:
    """The makespan of one placement, when each op starts, and every hop of a tensor."""
    plain = Plain(problem)
    pieces: dict[tuple[int, int], list[int]] = {}
    for op, number in enumerate(piece_numbers(plain, device)):
        pieces.setdefault((number, device[op]), []).append(op)
    held = {(tensor, plain.home(tensor, device)) for tensor in range(len(plain.maker))}
    start, transfers, clock = [0.0] * plain.n_ops, list[Transfer](), 0.0

    def fetch(tensor: int, target: int) -> None:
        nonlocal clock
        if (tensor, target) in held:
            return
        source = plain.home(tensor, device)
        if plain.staged and target != plain.host:
            fetch(tensor, plain.host)
            source = plain.host
        seconds = plain.hop(tensor, source, target)
        transfers.append((tensor, source, target, clock, clock + seconds))
        clock += seconds
        held.add((tensor, target))

    for (_, d), ops in sorted(pieces.items()):
        for op in ops:
            for tensor in plain.reads[op]:
                fetch(tensor, plain.location[d])
        clock += plain.overhead[d]
        for op in ops:
            start[op] = clock
            clock += plain.seconds[op][d]
    for tensor, output in enumerate(plain.output):
        if output:
            fetch(tensor, plain.host)
    return Run(clock, start, transfers)

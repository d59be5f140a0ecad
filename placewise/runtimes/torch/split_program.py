"""A program cut into pieces: each waits for other lanes only before its first call, and feeds them by its last."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.export import ExportedProgram

from placewise.errors import RunError
from placewise.readers.torch.cutting import (
    assign_steps,
    build_piece,
    calls_of,
    check_writes,
    make_pure,
    outputs_of,
    steps_of,
    writes_of,
)
from placewise.runtimes.torch.payload import Payload


@dataclass(frozen=True, slots=True)
class CutUp:
    """Pieces in an order that respects what they read: lane, calls, and the values that others read of them.

    `writes` says that something writes in place: then the pieces of a lane must run in this order.
    """

    pieces: tuple[tuple[int, tuple[fx.Node, ...], tuple[str, ...]], ...]
    writes: bool


def cut_up(program: ExportedProgram, handed: Payload, held: dict[str, torch.Tensor]) -> CutUp:
    """The pieces of a program; what follows from its weights alone is computed now, and put into `held`.

    Raises RunError where a call writes in place to what another lane uses as well.
    """
    steps, numbers = steps_of(program), {node: number for number, node in enumerate(calls_of(program))}
    make_pure(steps)
    writes = any(writes_of(node) for node in steps)
    if not writes:
        steps = _without_known(program, steps, {node for node in steps if numbers.get(node) in handed.names}, held)
    lane = assign_steps(program, steps, handed.device)
    if writes:
        try:
            check_writes(steps, lane)
        except ValueError as error:
            raise RunError(str(error)) from None
        ordered = list(steps)
    else:
        ordered = _in_order(steps, {node: handed.start[n] for node, n in numbers.items() if n in handed.start})
    return CutUp(tuple(_cut(ordered, lane, set(outputs_of(program)))), writes)


def _without_known(
    program: ExportedProgram, steps: Sequence[fx.Node], kept: set[fx.Node], held: dict[str, torch.Tensor]
) -> list[fx.Node]:
    """The steps but for those that read weights alone and that no op stands for."""
    known: list[fx.Node] = []
    for node in steps:
        reads = [read for read in node.all_input_nodes if read.name not in held and read not in known]
        if not reads and node not in kept and _is_pure(node):
            known.append(node)
    rest = [node for node in steps if node not in set(known)]
    read = {read for node in rest for read in node.all_input_nodes} | {
        node for node in known if node.name in outputs_of(program)
    }
    makes = [node.name for node in known if node in read]
    piece = build_piece(program, known, makes, held, device="cpu")
    with torch.no_grad():
        held.update(zip(makes, piece.module(), strict=True))
    return rest


def _is_pure(node: fx.Node) -> bool:
    """Whether a call gives one tensor, always the same one for the same arguments."""
    tags = getattr(node.target, "tags", None)
    return (
        isinstance(node.target, torch._ops.OpOverload)  # noqa: SLF001
        and isinstance(node.meta.get("val"), torch.Tensor)
        and torch.Tag.nondeterministic_seeded not in (tags or ())
    )


def _in_order(steps: Sequence[fx.Node], start: Mapping[fx.Node, float]) -> list[fx.Node]:
    """Every step after what it reads, and otherwise by when it is to start."""
    place = {node: number for number, node in enumerate(steps)}
    missing = {node: sum(read in place for read in node.all_input_nodes) for node in steps}
    when: dict[fx.Node, float] = {}
    ready: list[tuple[float, int]] = []

    def push(node: fx.Node) -> None:
        when[node] = start.get(node, max((when.get(read, 0.0) for read in node.all_input_nodes), default=0.0))
        heapq.heappush(ready, (when[node], place[node]))

    for node in steps:
        if not missing[node]:
            push(node)
    ordered = []
    while ready:
        node = steps[heapq.heappop(ready)[1]]
        ordered.append(node)
        for user in node.users:
            if user in missing:
                missing[user] -= 1
                if not missing[user]:
                    push(user)
    return ordered


@dataclass(slots=True)
class _Lane:
    """The pieces of a lane while they are cut: `seen` are the values of others that it has waited for."""

    pieces: list[list[fx.Node]] = field(default_factory=lambda: [[]])
    seen: set[fx.Node] = field(default_factory=set)


def _cut(
    steps: Sequence[fx.Node], lane: Mapping[fx.Node, int], outputs: set[str]
) -> list[tuple[int, tuple[fx.Node, ...], tuple[str, ...]]]:
    lanes: dict[int, _Lane] = {}
    place = {node: number for number, node in enumerate(steps)}
    for node in steps:
        here = lanes.setdefault(lane[node], _Lane())
        far = {read for read in node.all_input_nodes if lane.get(read, lane[node]) != lane[node]}
        if not far <= here.seen and here.pieces[-1]:
            here.pieces.append([])
        here.seen |= far
        here.pieces[-1].append(node)
        if any(lane.get(user, lane[node]) != lane[node] for user in node.users):
            here.pieces.append([])
    cut = [(number, piece) for number, here in lanes.items() for piece in here.pieces if piece]
    cut.sort(key=lambda item: place[item[1][0]])
    return [(number, tuple(piece), tuple(_made_for_others(piece, outputs))) for number, piece in cut]


def _made_for_others(piece: Sequence[fx.Node], outputs: set[str]) -> list[str]:
    inside = set(piece)
    return [
        node.name
        for node in piece
        if node.name in outputs or any(user not in inside and user.op != "output" for user in node.users)
    ]

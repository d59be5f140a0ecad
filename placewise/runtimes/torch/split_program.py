"""Load a program and split it into pieces; a piece waits for other lanes before its first call only."""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx
from torch.export import ExportedProgram

from placewise.errors import RunError
from placewise.readers.torch import loading
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
class SplitProgram:
    """Pieces in an order that respects what they read: lane, calls, and the values that others read.

    `writes`: some call writes in place, so that the pieces of a lane must run in this order.
    """

    pieces: tuple[tuple[int, tuple[fx.Node, ...], tuple[str, ...]], ...]
    writes: bool


def load_program(payload: Payload) -> ExportedProgram:
    """Load the program of a payload. Raises RunError if that fails, or if its calls are not those of the plan."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = loading.load_program(payload.path, trust_model=payload.trusted)
        except loading.UnsafeProgram as error:
            raise RunError(
                f"{payload.shown} is not loaded, because {error}; give --trust-model if you trust who made the file"
            ) from None
        except Exception as error:
            raise RunError(f"{payload.shown} cannot be loaded by torch.export ({type(error).__name__})") from None
    names = [node.name for node in calls_of(program)]
    for number, name in payload.names.items():
        if number >= len(names) or name != names[number]:
            raise RunError(f"{payload.shown} is not the program that this plan is for: it has no call {name!r} there")
    return program


def require_gpu(device: str) -> None:
    """Raise RunError for a GPU that PyTorch does not see here."""
    count = torch.cuda.device_count()
    if (torch.device(device).index or 0) >= count:
        raise RunError(f"PyTorch sees {count} GPU{'s' if count != 1 else ''} here, and {device} is none of them")


def take_gpu(device: str) -> None:
    """Make a GPU the current one of this process. Raises RunError as `require_gpu`."""
    require_gpu(device)
    torch.cuda.set_device(device)


def set_tf32(what: str) -> None:
    """Let the GPUs of this process compute float32 "products", "convolutions" or "nothing" in TF32."""
    torch.backends.cuda.matmul.allow_tf32 = what == "products"
    torch.backends.cudnn.allow_tf32 = what != "nothing"


def split_program(program: ExportedProgram, payload: Payload, values: dict[str, torch.Tensor]) -> SplitProgram:
    """Split a program into pieces. What follows from its weights alone is computed now and added to `values`.

    Raises RunError if a call writes in place to memory that another lane uses.
    """
    steps, numbers = steps_of(program), {node: number for number, node in enumerate(calls_of(program))}
    make_pure(steps)
    writes = any(writes_of(node) for node in steps)
    if not writes:
        steps = _fold_constants(program, steps, {node for node in steps if numbers.get(node) in payload.names}, values)
    lane = assign_steps(program, steps, payload.device)
    if writes:
        try:
            check_writes(steps, lane)
        except ValueError as error:
            raise RunError(str(error)) from None
        ordered = list(steps)
    else:
        start = {node: payload.start[number] for node, number in numbers.items() if number in payload.start}
        ordered = _order_by_start(steps, start)
    return SplitProgram(tuple(_cut_pieces(ordered, lane, set(outputs_of(program)))), writes)


def _fold_constants(
    program: ExportedProgram, steps: Sequence[fx.Node], placed: set[fx.Node], values: dict[str, torch.Tensor]
) -> list[fx.Node]:
    """Compute the calls that read weights alone and that no op stands for; the remaining steps."""
    constant: dict[fx.Node, None] = {}
    for node in steps:
        variable = any(read.name not in values and read not in constant for read in node.all_input_nodes)
        if not variable and node not in placed and _is_pure(node):
            constant[node] = None
    rest = [node for node in steps if node not in constant]
    read = {read for node in rest for read in node.all_input_nodes}
    outputs = outputs_of(program)
    makes = [node.name for node in constant if node in read or node.name in outputs]
    piece = build_piece(program, list(constant), makes, values, device="cpu")
    with torch.no_grad():
        values.update(zip(makes, piece.module(), strict=True))
    return rest


def _is_pure(node: fx.Node) -> bool:
    """Whether a call gives one tensor, always the same one for the same arguments."""
    tags = getattr(node.target, "tags", None)
    return (
        isinstance(node.target, torch._ops.OpOverload)  # noqa: SLF001
        and isinstance(node.meta.get("val"), torch.Tensor)
        and torch.Tag.nondeterministic_seeded not in (tags or ())
    )


def _order_by_start(steps: Sequence[fx.Node], start: Mapping[fx.Node, float]) -> list[fx.Node]:
    """A topological order of the steps, by start time."""
    position = {node: number for number, node in enumerate(steps)}
    missing = {node: sum(read in position for read in node.all_input_nodes) for node in steps}
    when: dict[fx.Node, float] = {}
    ready: list[tuple[float, int]] = []

    def push(node: fx.Node) -> None:
        when[node] = start.get(node, max((when.get(read, 0.0) for read in node.all_input_nodes), default=0.0))
        heapq.heappush(ready, (when[node], position[node]))

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
class _LanePieces:
    """The pieces of a lane so far; `seen` are the values of other lanes that it has waited for."""

    pieces: list[list[fx.Node]] = field(default_factory=lambda: [[]])
    seen: set[fx.Node] = field(default_factory=set)


def _cut_pieces(
    steps: Sequence[fx.Node], lane: Mapping[fx.Node, int], outputs: set[str]
) -> list[tuple[int, tuple[fx.Node, ...], tuple[str, ...]]]:
    lanes: dict[int, _LanePieces] = {}
    position = {node: number for number, node in enumerate(steps)}
    for node in steps:
        here = lanes.setdefault(lane[node], _LanePieces())
        remote = {read for read in node.all_input_nodes if lane.get(read, lane[node]) != lane[node]}
        if not remote <= here.seen and here.pieces[-1]:
            here.pieces.append([])
        here.seen |= remote
        here.pieces[-1].append(node)
        if any(lane.get(user, lane[node]) != lane[node] for user in node.users):
            here.pieces.append([])
    cut = [(number, piece) for number, here in lanes.items() for piece in here.pieces if piece]
    cut.sort(key=lambda item: position[item[1][0]])
    return [(number, tuple(piece), tuple(_read_by_others(piece, outputs))) for number, piece in cut]


def _read_by_others(piece: Sequence[fx.Node], outputs: set[str]) -> list[str]:
    inside = set(piece)
    return [
        node.name
        for node in piece
        if node.name in outputs or any(user not in inside and user.op != "output" for user in node.users)
    ]

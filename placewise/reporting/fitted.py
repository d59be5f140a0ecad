"""What `fit` answers, as plain data and as text: the command, the speed, what limits it, and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich.console import Group, RenderableType

from placewise._util.llama_defaults import MICRO_BATCH
from placewise._util.units import format_bytes, format_number, format_seconds
from placewise.model.result import Result
from placewise.readers.run_dims import RunDims, find_run_dims
from placewise.reporting.console import rows_table
from placewise.reporting.plain import shown_text
from placewise.reporting.sentences import assumption_lines, free_line, speed_line

TWICE = 2.0
"""How much faster "twice as fast" is."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The device that takes most of the time of a token, and what it spends it on.

    `share` of the seconds of a token; `reason` is "memory bandwidth", "arithmetic", "starting ops" or "copies of its
    weights to a card"; `read` are the bytes that its ops move per token, at `bandwidth` bytes/s at best.
    """

    device: str
    share: float
    reason: str
    read: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Departure:
    """What would have to leave a device for twice the speed: the first `layers` there, `nbytes` of weights and cache.

    `layers` is 0 where even all of them are not enough.
    """

    device: str
    layers: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class Change:
    """One thing changed, and the speed that follows: `words` say what, `faster` is the ratio of the speeds.

    `tokens_per_second` is None, and `why` says why, where nothing is found then either: `impossible` is a proof.
    """

    words: str
    tokens_per_second: float | None
    faster: float
    why: str = ""
    impossible: bool = False


@dataclass(frozen=True, slots=True)
class TimedCommand:
    """A command that ran here: seconds of the prompt and of each generated token, by round; or why it did not run.

    `name` says whose it is, `prompt` and `tokens` what it read and generated, and `layers` where llama.cpp put them.
    """

    name: str
    command: str
    prompt: int
    tokens: int
    rounds: tuple[tuple[float, float], ...] = ()
    layers: str = ""
    failure: str = ""

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of the prompt and all tokens together, by round."""
        return tuple(prompt + self.tokens * token for prompt, token in self.rounds)

    @property
    def prompt_speed(self) -> float:
        """Tokens of the prompt per second: by the median round, as everything below."""
        return self.prompt / find_middle([prompt for prompt, _ in self.rounds])[0]

    @property
    def token_speed(self) -> float:
        """Generated tokens per second."""
        return 1 / find_middle([token for _, token in self.rounds])[0]


def find_middle(values: Sequence[float]) -> tuple[float, float]:
    """The median, and half the distance between the quartiles: the spread on either side. inf and 0 of nothing."""
    if not values:
        return float("inf"), 0.0
    low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
    return middle, (high - low) / 2


def is_tie(one: TimedCommand, other: TimedCommand) -> bool:
    """Whether two commands differ by no more than their spreads."""
    (ours, here), (theirs, there) = find_middle(one.seconds), find_middle(other.seconds)
    return abs(ours - theirs) <= here + there


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """The answer: `result` is the placement for `target`, "" where that has none for a host alone; `command` runs it
    ("": nothing fits).

    `precision` is the one chosen, "" for that of the file; `tried` are the other precisions. `changes` are ordered by
    speed, the fastest first. `room` are the bytes of each accelerator that are kept for the target's compute buffer,
    `sizes` those that the plan's take on each device, and `notes` what there is to say of the command. `measured` are
    the command of the plan and that of the target's own placement, if they were run: then `command` is the faster one,
    which the figures of `result` may not be of.
    """

    result: Result
    target: str
    command: str
    precision: str
    tried: tuple[Change, ...]
    room: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    limit: Limit | None = None
    departure: Departure | None = None
    changes: tuple[Change, ...] = ()
    measured: tuple[TimedCommand, ...] = ()

    @property
    def tokens_per_second(self) -> float | None:
        """Expected of the plan: generated tokens per second of the whole batch; None where nothing fits."""
        return self.result.tokens_per_second


def fitted_view(found: Fitted) -> RenderableType:
    """The whole answer; the command stands alone on its lines, to be copied."""
    parts: list[RenderableType] = []
    result = found.result
    if result.judgement is None:
        narrow = f" with precision {found.precision}" if found.precision else ""
        parts.append(f"{result.status.outcome}{narrow}: {result.unmet or 'no placement was found in the time'}")
    else:
        parts += [found.command, "", *_measured_parts(found), *(shown_text(line) for line in _list_facts(found))]
    parts += [shown_text(line) for line in assumption_lines(result.problem.cluster)]
    rows = [_row(change, found) for change in (*found.tried, *found.changes)]
    if rows:
        parts += ["", rows_table(("instead", "tokens per second ", "faster "), rows)]
    return Group(*(shown_text(part) if isinstance(part, str) else part for part in parts))


def _measured_parts(found: Fitted) -> list[RenderableType]:
    """What was measured, beside what is expected; and where the command is not the plan's, what the plan's is."""
    if not found.measured:
        return []
    plan, ran = found.measured[0], [one for one in found.measured if one.rounds]
    head = ("measured here", "prompt, tokens/s ", "generation, tokens/s ", "together ", "layers")
    rows = [_measured_row(one) for one in ran] + [_expected_row(found, plan)]
    lines = [f"{one.name} did not run: {one.failure}" for one in found.measured if one.failure]
    if len(ran) > 1:
        lines.append(_say_choice(ran))
    if plan.command != found.command:
        lines.append(f"what follows is about the plan: {plan.command}")
    return [rows_table(head, rows), "", *(shown_text(line) for line in lines)]


def _measured_row(one: TimedCommand) -> tuple[str, ...]:
    def speed(value: float, seconds: list[float]) -> str:
        middle, spread = find_middle(seconds)
        return f"{format_number(value, 3)} ± {spread / middle:.0%}"

    middle, spread = find_middle(one.seconds)
    return (
        one.name, speed(one.prompt_speed, [prompt for prompt, _ in one.rounds]),
        speed(one.token_speed, [token for _, token in one.rounds]),
        f"{format_seconds(middle)} ± {spread / middle:.0%}", one.layers,
    )  # fmt: skip


def _expected_row(found: Fitted, plan: TimedCommand) -> tuple[str, ...]:
    judged = found.result.judgement
    assert judged is not None
    speeds = [plan.prompt / judged.phases[0].seconds, found.tokens_per_second or 0.0]
    return f"expected of {plan.name}", *(format_number(speed, 3) for speed in speeds), format_seconds(judged.value), ""


def _say_choice(ran: Sequence[TimedCommand]) -> str:
    fast, slow = sorted(ran, key=lambda one: find_middle(one.seconds)[0])
    faster = find_middle(slow.seconds)[0] / find_middle(fast.seconds)[0]
    tie = ", which is within the spread: a tie" if is_tie(fast, slow) else ""
    return f"chosen: {fast.name}, {faster:.2f} times as fast as {slow.name}{tie}"


def _list_facts(found: Fitted) -> list[str]:
    judged = found.result.judgement
    assert judged is not None
    lines = [speed_line(found.result.problem, judged), free_line(judged, found.result.problem, found.sizes)]
    lines += found.notes
    if dims := find_run_dims(found.result.problem.graph.source):
        lines.append(_say_context(dims))
        if dims.ubatch != MICRO_BATCH:
            lines.append(f"micro-batch: {dims.ubatch} tokens of a prompt at a time (-ub), and not {MICRO_BATCH}")
    if found.precision and found.tried:
        lines.append(f"precision: {found.precision}, the widest that is fast enough to read along, or the fastest")
    if found.limit is not None:
        lines.append(_say_limit(found.limit))
    if found.departure is not None:
        lines.append(_say_departure(found.departure))
    return lines


def _say_context(dims: RunDims) -> str:
    """How long a conversation may be, and how to ask for a longer one."""
    more = "" if dims.length else "; --dim context=32k asks for more"
    return f"context: {dims.capacity} tokens, of which the prompt has {dims.prompt}{more}"


def _say_limit(limit: Limit) -> str:
    line = f"limited by: {limit.device}, {limit.share:.0%} of the time of a token"
    if limit.reason == "memory bandwidth":
        return f"{line}, where {format_bytes(limit.read)} per token are read at {format_bytes(limit.bandwidth)}/s"
    return f"{line}, most of it for {limit.reason}"


def _say_departure(departure: Departure) -> str:
    size = format_bytes(departure.nbytes)
    if not departure.layers:
        return f"twice as fast: not even with all layers that are on {departure.device} ({size}) on a faster device"
    return f"twice as fast: if {departure.layers} layers ({size}) on {departure.device} were on the fastest device"


def _row(change: Change, found: Fitted) -> tuple[str, str, str]:
    if change.tokens_per_second is None:
        return change.words, "does not fit" if change.impossible else "none found", ""
    faster = f"{change.faster:.2f}×" if found.tokens_per_second else ""
    return change.words, format_number(change.tokens_per_second, 3), f"{faster} ✓" if change.faster >= TWICE else faster


def fitted_document(found: Fitted) -> dict[str, Any]:
    """The answer as JSON: seconds, bytes and tokens per second."""
    judged, dims = found.result.judgement, find_run_dims(found.result.problem.graph.source)
    return {
        "status": str(found.result.status.outcome),
        "command": found.command,
        "target": found.target,
        "precision": found.precision,
        "tokens_per_second": found.tokens_per_second,
        "prompt_tokens": 0 if dims is None else dims.prompt_tokens,
        "ubatch": 0 if dims is None else dims.ubatch,
        "room": found.room,
        "notes": list(found.notes),
        "phases": [] if judged is None else [asdict(use) for use in judged.phases],
        "devices": [] if judged is None else [
            {"device": use.device, "free": use.free, "capacity": use.capacity, "ops": use.ops,
             "buffer": found.sizes.get(use.device, 0)}
            for use in judged.devices
        ],
        "limit": None if found.limit is None else asdict(found.limit),
        "departure": None if found.departure is None else asdict(found.departure),
        "changes": [asdict(change) for change in (*found.tried, *found.changes)],
        "measured": [_measured_document(one) for one in found.measured],
        "unmet": found.result.unmet,
    }  # fmt: skip


def _measured_document(one: TimedCommand) -> dict[str, Any]:
    seconds, spread = find_middle(one.seconds)
    speeds = {"prompt_tokens_per_second": one.prompt_speed, "tokens_per_second": one.token_speed}
    return {**asdict(one), **(speeds if one.rounds else {}), "seconds": seconds, "spread": spread}

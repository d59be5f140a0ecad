"""What `fit` answers, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from placewise.model.result import Result

TWICE = 2.0
"""How much faster "twice as fast" is."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The device that takes most of the time of a token, and what it spends it on.

    `share` of the seconds of a token; `reason` is "memory bandwidth", "arithmetic" or "starting ops"; `read` are the
    bytes that its ops move per token, at `bandwidth` bytes/s at best.
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

    `tokens_per_second` is None, and `why` says why, where nothing fits then either.
    """

    words: str
    tokens_per_second: float | None
    faster: float
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """The answer: `result` is the placement for `target`, "" for the host alone; `command` runs it ("": nothing fits).

    `precision` is the one chosen, "" for that of the file; `tried` are the other precisions. `changes` are ordered by
    speed, the fastest first. `prompt_tokens` are those that the prefill reads. `room` are the bytes of each
    accelerator that are kept for the target's compute buffer.
    """

    result: Result
    target: str
    command: str
    precision: str
    tried: tuple[Change, ...]
    prompt_tokens: int
    room: int = 0
    limit: Limit | None = None
    departure: Departure | None = None
    changes: tuple[Change, ...] = ()

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens per second of the whole batch; None where nothing fits."""
        return self.result.tokens_per_second

"""What a sharding rule sees of an op, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from placewise.model.sharding import SUMMAND, WHOLE, Indivisible
from placewise.model.tables import Attributes

FREE = -3
"""The form of a tensor of which every device can make any part by itself: weights, constants, views of them."""

Shape = tuple[int, ...]
Parts = tuple[int, ...]
"""Lengths of the parts of which a split dimension consists, as a ratio: every device has 1/t of each."""


@dataclass(frozen=True, slots=True)
class SplitOp:
    """An op with the forms of its arguments for one degree t.

    `shapes`, `forms` by argument position; a form is the dimension along which the argument is split, or `WHOLE`,
    `SUMMAND` or `FREE`. `weights` are the positions of weights, whose form is `FREE`. `tokens` says that what is split
    is split by tokens (sequence parallelism).
    """

    kind: str
    attributes: Attributes
    shapes: Mapping[int, Shape]
    results: tuple[Shape, ...]
    weights: frozenset[int]
    forms: Mapping[int, int]
    degree: int
    tokens: bool = False

    def divides(self, length: int) -> bool:
        """Whether a dimension of this length can be split evenly."""
        return length > 0 and length % self.degree == 0

    def first_split(self) -> tuple[int, int] | None:
        """Position and dimension of the first argument that is split."""
        return next(((at, form) for at, form in self.forms.items() if form >= 0), None)

    def leading_split(self) -> int | None:
        """The dimension along which argument 0 is split; None if another argument is the first that is."""
        at, form = self.first_split() or (-1, -1)
        return form if at == 0 else None

    def is_stationary(self, at: int) -> bool:
        """Whether an argument is a weight, or made of weights only."""
        return self.forms.get(at) == FREE

    def number(self, attribute: str, default: int = 0) -> int:
        return int(self.attributes.get(attribute, default))

    def axis(self, default: int, rank: int) -> int:
        """The attribute `axis` or `dim`, counted from the front."""
        value = self.attributes.get("axis", self.attributes.get("dim", default))
        value = value[0] if isinstance(value, (tuple, list)) else value
        return int(value) % max(rank, 1)


class Exchange(NamedTuple):
    """A collective that belongs to the op itself: of an argument, or of a result; `nbytes` per byte of that tensor.

    With `nbytes_per_row`, of that many bytes per row of the tensor instead.
    """

    kind: str
    at: int
    is_result: bool = False
    times_bytes: float = 1.0
    bytes_per_row: float = 0.0


class ShardingStrategy(NamedTuple):
    """One way to compute an op on t devices.

    `reads`: the dimension along which an argument is read split; the others are read whole (`SUMMAND` where the op is
    linear). `makes`: the form of each result. `share`: the fraction of the op's work for each device.

    `opens`: the split starts here, so it is worth while only if a later op gains by it. `cuts`: the split dimension of
    the arguments must consist of such parts ((1,): of one), and the results consist of one; `strict` if it must be
    known to. `joins`: the split dimension of the results consists of these parts. `weight_parts`: the parts of a
    weight's split dimension.
    """

    style: str
    reads: Mapping[int, int]
    makes: tuple[int, ...]
    share: float
    opens: bool = False
    cuts: Parts | None = None
    strict: bool = False
    joins: Parts | None = None
    weight_parts: Mapping[int, Parts] = MappingProxyType({})
    exchanges: tuple[Exchange, ...] = ()


Answer = ShardingStrategy | Indivisible
Rule = Callable[[SplitOp], list[Answer]]
"""Maps an op to the ways to compute it split, the preferred one first; none if it needs all of its arguments."""


def follow(
    op: SplitOp,
    reads: Mapping[int, int],
    makes: tuple[int, ...],
    style: str = "",
    *,
    cuts: Parts | None = None,
    strict: bool = False,
    joins: Parts | None = None,
    exchanges: tuple[Exchange, ...] = (),
) -> ShardingStrategy:
    """A strategy that computes the part that the device has."""
    style = style or ("tokens" if op.tokens else "follows")
    share = 1 / op.degree
    return ShardingStrategy(style, reads, makes, share, cuts=cuts, strict=strict, joins=joins, exchanges=exchanges)


def padded_share(length: int, degree: int) -> float:
    """The share of a device of a dimension that is padded to a multiple of the degree."""
    return -(-length // degree) / length


__all__ = [
    "FREE",
    "SUMMAND",
    "WHOLE",
    "Answer",
    "Exchange",
    "Indivisible",
    "Parts",
    "Rule",
    "Shape",
    "ShardingStrategy",
    "SplitOp",
    "follow",
    "padded_share",
]  # fmt: skip

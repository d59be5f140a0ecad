"""Sharding: how the ops of a graph are split over the devices of a group (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from placewise.errors import GraphError
from placewise.model.columns import Bytes8, Floats, frozen
from placewise.model.graph import Graph

WHOLE, SUMMAND = -1, -2
"""Instead of the dimension along which a tensor is split: every device has all of it, or a summand of it."""

STYLES = ("whole", "colwise", "rowwise", "embedding", "heads", "experts", "follows", "tokens")
"""How an op is split.

- `whole`: every device computes all of it.
- `colwise`: the weights of a product or convolution are split by output (column-parallel), the result too.
- `rowwise`: they are split by input (row-parallel); the results of all devices are summed.
- `embedding`: the rows of a table are split (vocabulary-parallel); the results of all devices are summed.
- `heads`: an attention, or a batch of products, is split by heads.
- `experts`: every device has some of the experts, or a part of each.
- `follows`: the op is computed on the part of its arguments that the device has.
- `tokens`: the same, where that part is some of the tokens (sequence parallelism).
"""

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


class Collective(NamedTuple):
    """One exchange among the devices of a split.

    `nbytes` is the size of the whole tensor: what each device has before an all-reduce or a reduce-scatter, and after
    an all-gather; of an all-to-all, what all devices send together. `dim` is the dimension that is gathered or
    scattered (−1 otherwise). `op` makes the tensor, or is the first one that waits for it; it says which unit pays.
    A collective of the `backward` pass exchanges the gradient of `tensor`. `times` is how often it runs per
    micro-batch: a phase of the graph may repeat.
    """

    kind: str
    tensor: int
    op: int
    nbytes: float
    dim: int = -1
    backward: bool = False
    times: int = 1


class Indivisible(NamedTuple):
    """A degree does not divide so many heads, key-value heads, experts, columns or channels (`what`) of some ops."""

    number: int
    what: str


class ModuleSplit(NamedTuple):
    """How the weights of one module are split, for tools that take a style per module.

    `style` is one of `STYLES`. `weights` maps the name of each split weight to its split dimension; `parts` names
    those whose split dimension consists of several matrices side by side (queries, keys and values; gate and up) and
    gives the lengths of these: every device has 1/t of each. `gathers` says that the split result is gathered at
    once, as the scores of a vocabulary are; without it, results stay split, and sums are reduced.
    """

    style: str
    weights: Mapping[str, int]
    parts: Mapping[str, tuple[int, ...]]
    gathers: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Sharding:
    """The decisions for one graph and one degree t: t devices compute every op together.

    - `style` [n_ops]: codes in `STYLES`. A backward op has that of its forward op.
    - `share` [n_ops]: the fraction of the op's work that each device does, 1 or about 1/t (a vocabulary that t does
      not divide is padded).
    - `traffic` [n_ops]: the fraction of the bytes that the op reads and writes for each device: what is whole counts in
      full.
    - `split` [n_tensors]: the dimension along which each device has its part of a tensor, once it is summed or gathered
      for its readers; `WHOLE` or `SUMMAND` instead of a dimension. Gradients are whole here: only their collectives are
      recorded.
    - `weight_split` [n_weights]: the same of weights; `parts` has the lengths of matrices side by side in a split
      dimension, for the weights that have several.
    - `collectives`: in the order of their ops, with those of the backward pass.
    - `refusals`: why ops stay whole that another degree could split.

    A sharding with degree 1 leaves everything whole. Raises GraphError where columns do not fit together.
    """

    degree: int
    style: Bytes8
    share: Floats
    traffic: Floats
    split: Bytes8
    weight_split: Bytes8
    parts: Mapping[int, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    collectives: tuple[Collective, ...] = ()
    sequence_parallel: bool = False
    refusals: tuple[Indivisible, ...] = ()

    def __post_init__(self) -> None:
        for name, dtype in (
            ("style", np.int8), ("share", np.float64), ("traffic", np.float64), ("split", np.int8),
            ("weight_split", np.int8),
        ):  # fmt: skip
            object.__setattr__(self, name, frozen(getattr(self, name), dtype))
        if self.degree < 1 or not self.style.shape == self.share.shape == self.traffic.shape:
            raise GraphError("the columns of a sharding do not fit together")

    def __repr__(self) -> str:
        split = int((self.share < 1).sum())
        return f"Sharding(degree {self.degree}: {split} of {len(self.style)} ops, {len(self.collectives)} collectives)"

    def style_of(self, op: int) -> str:
        """The style of one op."""
        return STYLES[int(self.style[op])]

    def require_match(self, graph: Graph) -> None:
        """Raise GraphError unless the sharding has a row for every op, tensor and weight of the graph."""
        have = len(self.style), len(self.split), len(self.weight_split)
        if have != (graph.n_ops, graph.n_tensors, len(graph.weights)):
            raise GraphError("the sharding is that of another graph")


def module_splits(graph: Graph, sharding: Sharding) -> dict[str, ModuleSplit]:
    """The split of every module, by path, that has weights of its own or splits anything otherwise (attention).

    A module is the scope of ops; its style is that of its op with the largest split weight, else of its first split op
    that does not just follow. Modules whose ops are all whole, or only follow, are left out unless they compute on
    some of the tokens (`tokens`).
    """
    sharding.require_match(graph)
    modules: dict[str, _ModuleDraft] = {}
    forward = np.flatnonzero(~graph.ops.backward & (sharding.style > 0)).tolist()
    gathered = {c.tensor for c in sharding.collectives if c.kind == "all-gather" and not c.backward}
    for op in forward:
        style = sharding.style_of(op)
        weights = {int(w): int(sharding.weight_split[w]) for w in graph.weights_of(op) if sharding.weight_split[w] >= 0}
        if style == "follows" and not weights:
            continue
        module = modules.setdefault(graph.ops.scope[op], _ModuleDraft())
        size = max((int(graph.weights.bytes[w]) for w in weights), default=0)
        rank = (style not in ("follows", "tokens"), size)
        if rank > module.rank:
            module.rank, module.style = rank, style
            module.gathers = style == "colwise" and all(t in gathered for t in graph.outputs_of(op))
        module.weights |= weights
    return {path: _module_split(graph, sharding, module) for path, module in modules.items()}


class _ModuleDraft:
    """What is known of a module so far; `rank` orders its ops."""

    __slots__ = ("gathers", "rank", "style", "weights")

    def __init__(self) -> None:
        self.rank: tuple[bool, int] = (False, -1)
        self.style = ""
        self.weights: dict[int, int] = {}
        self.gathers = False


def _module_split(graph: Graph, sharding: Sharding, module: _ModuleDraft) -> ModuleSplit:
    names = graph.weights.name
    weights = {names[w]: dim for w, dim in sorted(module.weights.items())}
    parts = {names[w]: sharding.parts[w] for w in sorted(module.weights) if w in sharding.parts}
    return ModuleSplit(module.style, MappingProxyType(weights), MappingProxyType(parts), module.gathers)

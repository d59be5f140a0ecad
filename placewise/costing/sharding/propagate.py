"""Propagate splits through a graph: in topological order, with a look ahead where a split would start.

As GSPMD does (Xu et al. 2021, section 3.5), but towards the consumers only and without annotations: what Megatron-LM
(Shoeybi et al. 2019) does by hand follows from the rules. A split starts only if a later op of the same unit gains by
it before it would be gathered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from placewise.costing.sharding.op_table import OpArgument, OpRow, OpTable
from placewise.costing.sharding.rules import KEEP_FREE, LINEAR, RULES
from placewise.costing.sharding.strategies import (
    FREE,
    SUMMAND,
    WHOLE,
    Answer,
    Indivisible,
    Parts,
    ShardingStrategy,
    SplitOp,
)
from placewise.model.sharding import Collective

MOST_AHEAD = 400
"""The most ops that a look ahead visits."""
GAINS = frozenset(("rowwise", "heads", "experts"))
"""Styles of ops for which a split is worth while."""
CHOICES = frozenset(("ArgMax", "TopK", "Softmax", "LogSoftmax", "Loss", "SoftmaxCrossEntropyLoss"))
"""Kinds that read the scores of a vocabulary."""

TOKENS = "tokens"
"""What a degree must divide with sequence parallelism."""

PICKED = frozenset(("Gather", "GatherElements", "GatherND", "com.microsoft::GatherBlockQuantized"))
"""Kinds that read only some rows of their first argument."""


class Read(NamedTuple):
    """How an op reads a tensor: the form it needs; `partial` if its gradient for the tensor is a summand."""

    tensor: int
    op: int
    form: int
    partial: bool


@dataclass(slots=True)
class Spread:
    """The outcome of a propagation: columns by op, tensor and weight, and what was exchanged and read.

    `made` is the form in which an op makes a tensor, `form` the one in which readers find it, summed or gathered.
    """

    style: list[str]
    share: list[float]
    traffic: list[float]
    form: list[int]
    made: list[int]
    reads: list[Read] = field(default_factory=list)
    exchanges: list[Collective] = field(default_factory=list)
    own: list[Collective] = field(default_factory=list)
    weight_reads: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    weight_layout: dict[int, Parts | None] = field(default_factory=dict)
    free_reads: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    refusals: dict[Indivisible, int] = field(default_factory=dict)


class Propagation:
    """One pass over a graph for one degree.

    `unit` [n_ops] says where tensors must be whole again: what another unit reads is. `repeats` [n_ops].
    """

    def __init__(
        self, table: OpTable, degree: int, *, unit: list[int], repeats: list[int], sequence_parallel: bool
    ) -> None:
        self._table, self._degree, self._unit, self._repeats = table, degree, unit, repeats
        self._sequence = sequence_parallel
        graph = table.graph
        n_ops, n_tensors = graph.n_ops, graph.n_tensors
        self.spread = Spread(["whole"] * n_ops, [1.0] * n_ops, [1.0] * n_ops, [WHOLE] * n_tensors, [WHOLE] * n_tensors)
        self._form = self.spread.form
        self._token = [False] * n_tensors
        self._layout: dict[int, int] = {}
        self._parts: list[Parts | None] = []
        self._parent: list[int] = []
        self._gathered: set[tuple[int, int, int]] = set()
        self._memo: dict[tuple[object, ...], tuple[Answer, ...]] = {}
        self._nbytes = [max(size, 0) for size in graph.tensors.bytes.tolist()]
        self._weight_nbytes = [max(size, 0) for size in graph.weights.bytes.tolist()]
        self._shapes = list(graph.tensors.shape)
        self._done = -1

    def run(self) -> Spread:
        """Decide every forward op in turn."""
        for op, row in enumerate(self._table.rows):
            if row is not None:
                self._decide(op, row)
                self._done = op
        self._resolve_free()
        self._finish_weights()
        return self.spread

    def _decide(self, op: int, row: OpRow) -> None:
        forms = self._read_forms(row)
        values = [form for at, form in forms.items()]
        if SUMMAND in values:
            strategy = self._linear(row, forms)
            if strategy is not None:
                self._apply(op, row, strategy)
                return
            forms = {at: self._reduced(row, at) if form == SUMMAND else form for at, form in forms.items()}
            values = list(forms.values())
        if all(form == FREE for form in values) and (row.kind in KEEP_FREE or not row.arguments):
            self._keep_free(row)
            return
        for answer in self._answers(row, forms):
            if isinstance(answer, Indivisible):
                self.spread.refusals.setdefault(answer, op)
                continue
            if not self._fits_layout(row, answer):
                continue
            if answer.opens and not self._pays(op, row, answer):
                continue
            self._apply(op, row, answer)
            return
        self._apply(op, row, ShardingStrategy("whole", {}, (WHOLE,) * len(row.results), 1.0))

    def _read_forms(self, row: OpRow) -> dict[int, int]:
        form = self._form
        return {at: FREE if value.is_weight else form[value.number] for at, value in row.arguments.items()}

    def _reduced(self, row: OpRow, at: int) -> int:
        """The form that a summand has after it was summed: by tokens with sequence parallelism, or whole.

        Tokens are the last but one of two or three dimensions; images and what convolutions make have none.
        """
        return self._reduced_form(row.arguments[at].number)

    def _reduced_form(self, tensor: int) -> int:
        place = len(self._shapes[tensor]) - 2
        tokens = self._count_tokens(tensor)
        return place if tokens and tokens % self._degree == 0 else WHOLE

    def _count_tokens(self, tensor: int) -> int:
        """The tokens of a sum that sequence parallelism would split; 0 if it has none, or a single one."""
        shape = self._shapes[tensor]
        maker = self._table.rows[self._table.makers[tensor]]
        if not self._sequence or len(shape) not in (2, 3) or (maker is not None and "Conv" in maker.kind):
            return 0
        return shape[-2] if shape[-2] > 1 else 0

    def _linear(self, row: OpRow, forms: Mapping[int, int]) -> ShardingStrategy | None:
        rule = LINEAR.get(row.kind)
        if rule is None:
            return None
        return rule(self._view(row, forms, False))

    def _view(self, row: OpRow, forms: Mapping[int, int], tokens: bool) -> SplitOp:
        shapes = {at: value.shape for at, value in row.arguments.items()}
        weights = frozenset(at for at, value in row.arguments.items() if value.is_weight)
        return SplitOp(row.kind, row.attributes, shapes, row.result_shapes, weights, forms, self._degree, tokens)

    def _answers(self, row: OpRow, forms: Mapping[int, int]) -> tuple[Answer, ...]:
        """The ways to compute an op, from the rule of its kind; equal ops are asked about once."""
        rule = RULES.get(row.kind)
        if rule is None:
            return ()
        split = [at for at, form in forms.items() if form >= 0]
        by_tokens = [self._is_by_tokens(row, at) for at in split]
        tokens = bool(split) and all(by_tokens)
        if any(by_tokens) and not tokens:
            forms = {at: WHOLE if at in split and self._is_by_tokens(row, at) else form for at, form in forms.items()}
        key = (row.code, tokens, *forms.values())
        answers = self._memo.get(key)
        if answers is None:
            open_shape = any(-1 in value.shape for value in row.arguments.values()) or any(
                -1 in shape for shape in row.result_shapes
            )
            answers = () if open_shape else tuple(_ask(rule, self._view(row, forms, tokens)))
            self._memo[key] = answers
        return answers

    def _is_by_tokens(self, row: OpRow, at: int) -> bool:
        value = row.arguments[at]
        if value.is_weight:
            return False
        number = value.number
        return self._token[number] or (self._form[number] == SUMMAND and self._sequence)

    def _keep_free(self, row: OpRow) -> None:
        for tensor in row.results:
            self._form[tensor] = FREE

    def _apply(self, op: int, row: OpRow, strategy: ShardingStrategy) -> None:
        """Convert the arguments, and record the layouts of the strategy."""
        spread = self.spread
        spread.style[op], spread.share[op] = strategy.style, strategy.share
        is_split = strategy.share < 1
        tokens = False
        for at, value in row.arguments.items():
            need = strategy.reads.get(at, WHOLE)
            if value.is_weight:
                spread.weight_reads[value.number].add(need)
                continue
            tokens |= need >= 0 and self._is_by_tokens(row, at)
            self._convert(value.number, need, op)
            spread.reads.append(Read(value.number, op, need, is_split and need == WHOLE))
        self._set_layout(row, strategy)
        for k, tensor in enumerate(row.results):
            self._form[tensor] = strategy.makes[k] if k < len(strategy.makes) else WHOLE
            self._token[tensor] = self._form[tensor] >= 0 and tokens
        spread.traffic[op] = self._traffic(row, strategy)
        for exchange in strategy.exchanges:
            tensor = row.results[exchange.at] if exchange.is_result else row.arguments[exchange.at].number
            shape = self._shapes[tensor]
            rows = max(1, _size(shape) // max(shape[-1] if shape else 1, 1))
            nbytes = exchange.bytes_per_row * rows or exchange.times_bytes * self._nbytes[tensor]
            spread.own.append(Collective(exchange.kind, tensor, op, nbytes, -1, False, self._repeats[op]))
        for tensor in row.results:
            spread.made[tensor] = self._form[tensor]
            self._close(op, tensor)

    def _traffic(self, row: OpRow, strategy: ShardingStrategy) -> float:
        """The fraction of the bytes of an op's arguments and results that each device reads and writes."""
        if strategy.share == 1 or row.kind in PICKED:
            return 1.0 if strategy.makes[:1] == (SUMMAND,) else strategy.share
        local, total = 0.0, 0.0
        for at, value in row.arguments.items():
            size = self._weight_nbytes[value.number] if value.is_weight else self._nbytes[value.number]
            total += size
            local += size / self._degree if strategy.reads.get(at, WHOLE) >= 0 else size
        for k, tensor in enumerate(row.results):
            split = k < len(strategy.makes) and strategy.makes[k] >= 0
            total += self._nbytes[tensor]
            local += self._nbytes[tensor] / self._degree if split else self._nbytes[tensor]
        return local / total if total else strategy.share

    def _close(self, op: int, tensor: int) -> None:
        """Make whole what other units read, or what leaves the model; by tokens is enough with sequence parallelism."""
        form = self._form[tensor]
        if form in (WHOLE, FREE):
            return
        leaves = self._table.outputs[tensor] or self._crosses(tensor)
        if form == SUMMAND and leaves:
            self._sum(tensor, op)
            form = self._form[tensor]
        if form >= 0 and leaves and not self._token[tensor]:
            self._exchange("all-gather", tensor, op, form)
            self._form[tensor] = WHOLE

    def _convert(self, tensor: int, need: int, op: int) -> None:
        """Exchange what turns a tensor into the form that an op needs; every form of it in a unit is made once."""
        form = self._form[tensor]
        if form == FREE:
            self.spread.free_reads[tensor].add(need)
            return
        if form == SUMMAND and need != SUMMAND:
            self._sum(tensor, op, need)
            form = self._form[tensor]
        if form in (need, WHOLE) or need == SUMMAND:
            return
        known = (tensor, self._unit[op], need)
        if known in self._gathered:
            return
        self._gathered.add(known)
        self._exchange("all-gather" if need == WHOLE else "all-to-all", tensor, op, form)

    def _sum(self, tensor: int, op: int, need: int = WHOLE) -> None:
        """Sum a summand; straight into parts if they are needed, or by tokens with sequence parallelism."""
        place = self._reduced_form(tensor)
        by_tokens = place >= 0
        if not by_tokens and (tokens := self._count_tokens(tensor)):
            self.spread.refusals.setdefault(Indivisible(tokens, TOKENS), op)
        if need >= 0 and not by_tokens:
            place = need
        self._exchange("reduce-scatter" if place >= 0 else "all-reduce", tensor, op, place)
        self._form[tensor] = place
        self._token[tensor] = by_tokens
        if place >= 0:
            self._layout.setdefault(tensor, self._new_layout((1,)))

    def _exchange(self, kind: str, tensor: int, op: int, dim: int) -> None:
        self.spread.exchanges.append(
            Collective(kind, tensor, op, float(self._nbytes[tensor]), max(dim, -1), False, self._repeats[op])
        )

    # Layouts: of which parts a split dimension consists. Tensors that are combined must agree.

    def _new_layout(self, parts: Parts | None) -> int:
        self._parts.append(parts)
        self._parent.append(len(self._parent))
        return len(self._parent) - 1

    def _find(self, layout: int) -> int:
        while self._parent[layout] != layout:
            self._parent[layout] = layout = self._parent[self._parent[layout]]
        return layout

    def _layouts_read(self, row: OpRow, strategy: ShardingStrategy) -> list[int]:
        found = []
        for at, value in row.arguments.items():
            number = value.number
            if not value.is_weight and strategy.reads.get(at, WHOLE) >= 0 and self._form[number] >= 0:
                layout = self._layout.get(number)
                if layout is not None:
                    found.append(self._find(layout))
        return found

    def _fits_layout(self, row: OpRow, strategy: ShardingStrategy) -> bool:
        known = {parts for layout in self._layouts_read(row, strategy) if (parts := self._parts[layout]) is not None}
        if strategy.cuts is not None:
            known.add(strategy.cuts)
            if strategy.strict and len(known) == 1 and strategy.cuts != (1,):
                return any(self._parts[layout] is not None for layout in self._layouts_read(row, strategy))
        return len(known) <= 1

    def _set_layout(self, row: OpRow, strategy: ShardingStrategy) -> None:
        if strategy.share == 1 and not strategy.reads:
            return
        layouts = self._layouts_read(row, strategy)
        own = layouts[0] if layouts else self._new_layout(None)
        for other in layouts[1:]:
            parts = self._parts[own] or self._parts[self._find(other)]
            self._parent[self._find(other)] = own
            self._parts[own] = parts
        if strategy.cuts is not None:
            self._parts[own] = strategy.cuts
        for at, value in row.arguments.items():
            if value.is_weight and strategy.reads.get(at, WHOLE) >= 0:
                ratio = strategy.weight_parts.get(at)
                apart = ratio is not None or strategy.style == "experts"
                layout = self._new_layout(ratio) if apart else own
                self.spread.weight_layout.setdefault(value.number, (layout,))
        joined = own
        if strategy.joins is not None:
            joined = self._new_layout(strategy.joins)
        elif strategy.cuts is not None:
            joined = self._new_layout((1,)) if strategy.cuts != (1,) else own
        for k, tensor in enumerate(row.results):
            if k < len(strategy.makes) and strategy.makes[k] >= 0:
                self._layout[tensor] = joined

    # What every device can make in part is made in part if all readers need the same part.

    def _resolve_free(self) -> None:
        """Give tensors that are `FREE` the one form that all their readers need, and their makers' arguments too."""
        for op in range(len(self._table.rows) - 1, -1, -1):
            row = self._table.rows[op]
            if row is None or not row.results or self._form[row.results[0]] != FREE:
                continue
            places = {form for tensor in row.results for form in self.spread.free_reads.get(tensor, ())}
            leaves = any(self._table.outputs[tensor] or self._crosses(tensor) for tensor in row.results)
            place = places.pop() if len(places) == 1 and not leaves else WHOLE
            reads = self._read_backwards(row, place) if place >= 0 else None
            for tensor in row.results:
                self._form[tensor] = self.spread.made[tensor] = WHOLE if reads is None else place
            if reads is not None:
                self.spread.style[op] = "follows"
                self.spread.share[op] = self.spread.traffic[op] = 1 / self._degree
            for at, value in row.arguments.items():
                need = WHOLE if reads is None else reads.get(at, WHOLE)
                (self.spread.weight_reads if value.is_weight else self.spread.free_reads)[value.number].add(need)

    def _read_backwards(self, row: OpRow, place: int) -> Mapping[int, int] | None:
        """How a free op reads its arguments if its results are split along `place`, None if they must be whole."""
        if not row.arguments:
            return {}
        for at, value in row.arguments.items():
            for k in range(len(value.shape)):
                forms = dict.fromkeys(row.arguments, FREE) | {at: k}
                for answer in self._answers(row, forms):
                    if (
                        isinstance(answer, ShardingStrategy)
                        and answer.makes
                        and answer.makes[0] == place
                        and not answer.cuts
                    ):
                        return answer.reads
        return None

    def _finish_weights(self) -> None:
        layouts = self.spread.weight_layout
        for weight, found in layouts.items():
            layouts[weight] = self._parts[self._find(found[0])] if found else None

    # Looking ahead.

    def _pays(self, op: int, row: OpRow, strategy: ShardingStrategy) -> bool:
        """Whether an op gains by a split that starts here, before its results have to be gathered."""
        if not any(form >= 0 for form in strategy.makes):
            return True
        ahead = {t: form for t, form in zip(row.results, strategy.makes, strict=False) if form >= 0}
        width = max((value.shape[k] for k, value in _columns(row, strategy)), default=0)
        inner = max((_inner(value.shape, k) for k, value in _columns(row, strategy)), default=0)
        scores = strategy.style == "colwise" and width >= 2 * inner > 0
        waiting, seen = list(ahead), 0
        if any(self._crosses(tensor) for tensor in ahead):
            return False
        for tensor in waiting:
            if scores and (self._table.outputs[tensor] or self._is_chosen_from(tensor)):
                return True
            for reader in self._table.readers[tensor]:
                follower = self._table.rows[reader]
                seen += 1
                if follower is None or self._unit[reader] != self._unit[op] or seen > MOST_AHEAD:
                    continue
                if self._leads_on(follower, ahead, waiting, scores):
                    return True
        return False

    def _crosses(self, tensor: int) -> bool:
        """Whether another unit reads a tensor."""
        unit = self._unit[self._table.makers[tensor]]
        return any(self._unit[reader] != unit for reader in self._table.readers[tensor])

    def _is_chosen_from(self, tensor: int) -> bool:
        rows = (self._table.rows[reader] for reader in self._table.readers[tensor])
        return any(row is not None and row.kind in CHOICES for row in rows)

    def _leads_on(self, row: OpRow, ahead: dict[int, int], waiting: list[int], scores: bool) -> bool:
        """Whether an op gains by the splits ahead; if it passes them on, its results are added to those waiting.

        A loss gains only by the split of a vocabulary's `scores`.
        """
        forms = {}
        for at, value in row.arguments.items():
            known = FREE if value.is_weight else ahead.get(value.number)
            if known is None:
                decided = self._table.makers[value.number] <= self._done
                known = self._form[value.number] if decided else FREE
            forms[at] = self._reduced(row, at) if known == SUMMAND else known
        for answer in self._answers(row, forms):
            if isinstance(answer, Indivisible):
                self.spread.refusals.setdefault(answer, row.results[0])
                return False
            reads = {
                value.number: answer.reads.get(at, WHOLE) for at, value in row.arguments.items() if not value.is_weight
            }
            if any(tensor in ahead and ahead[tensor] != form for tensor, form in reads.items()) or answer.opens:
                continue
            if answer.style in GAINS or (scores and row.kind in CHOICES and answer.exchanges):
                return True
            for tensor, form in zip(row.results, answer.makes, strict=False):
                if form >= 0 and tensor not in ahead and not self._crosses(tensor):
                    ahead[tensor] = form
                    waiting.append(tensor)
            return False
        return False


def _ask(rule: Callable[[SplitOp], Iterable[Answer]], op: SplitOp) -> Iterable[Answer]:
    """The answers of a rule; none if shapes or attributes are not those of its kind."""
    try:
        return list(rule(op))
    except (LookupError, ValueError, TypeError, ArithmeticError):
        return []


def _columns(row: OpRow, strategy: ShardingStrategy) -> list[tuple[int, OpArgument]]:
    return [
        (strategy.reads[at], value)
        for at, value in row.arguments.items()
        if value.is_weight and strategy.reads.get(at, WHOLE) >= 0 and len(value.shape) > 1
    ]


def _inner(shape: tuple[int, ...], columns: int) -> int:
    return max((length for k, length in enumerate(shape) if k != columns), default=0)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= max(length, 1)
    return size

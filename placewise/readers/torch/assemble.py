"""A listing → a Graph, one op per call: kinds, tied weights, and what writes in place must come before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from placewise.errors import GraphError
from placewise.model.builder import GraphBuilder
from placewise.model.dtypes import bytes_of
from placewise.model.graph import Graph, Source
from placewise.readers.base import unique_name
from placewise.readers.torch.forms import Form
from placewise.readers.torch.kinds import SKIPPED, form_of
from placewise.readers.torch.listing import Call, Listing, Meta

FIRST_EXTRA = 1 << 16
"""Argument position from which on values stand that an op does not read but must wait for; costing leaves them out."""
LARGEST = 1 << 62
_FLOATING = ("float", "bfloat", "complex")


@dataclass(slots=True)
class _Draft:
    """A graph in the making.

    `tensors`, `weights`: ids by value. `root`: the value whose memory a value is a view of. `writes`: by root, the
    values that in-place ops left there, in order; `seen`: how many of them a value already includes. `scalars`:
    values that stand behind a number which only the run finds out.
    """

    listing: Listing
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    tensors: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    root: dict[str, str] = field(default_factory=dict)
    writes: dict[str, list[str]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    scalars: dict[str, tuple[str, ...]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


def assemble(listing: Listing, source: Source | None) -> Graph:
    """The raw view of a listing. Raises GraphError for sizes that no machine has."""
    draft = _Draft(listing)
    _add_parameters(draft)
    for name in dict.fromkeys(listing.inputs):
        if name in listing.metas and name not in draft.weights:
            draft.tensors[name] = _add_tensor(draft, name, -1)
    for call in listing.calls:
        _add_call(draft, call)
    for name in (*listing.outputs, *listing.written, *_left_behind(draft)):
        if name in draft.tensors:
            draft.builder.set_output(draft.tensors[name])
    return draft.builder.build(source)


def _add_parameters(draft: _Draft) -> None:
    """Weights by name; two that share memory share a storage id."""
    storages: dict[object, int] = {}
    by_name: dict[str, int] = {}
    for number, parameter in enumerate(draft.listing.parameters):
        meta = draft.listing.metas[parameter.value]
        if parameter.name not in by_name:
            _refuse_size(parameter.name, meta)
            by_name[parameter.name] = draft.builder.add_weight(
                parameter.name,
                shape=meta.shape,
                dtype=meta.dtype,
                storage=storages.setdefault(parameter.storage, number),
                trainable=parameter.trainable,
            )
        draft.weights[parameter.value] = by_name[parameter.name]
        draft.root[parameter.value] = f"storage {storages[parameter.storage]}"


def _add_call(draft: _Draft, call: Call) -> None:
    results = [name for name in call.results if name in draft.listing.metas]
    if call.op in SKIPPED or (not results and call.results):
        for name in call.results:
            draft.scalars[name] = () if call.op in SKIPPED else tuple(_behind(draft, call.refs))
        return
    if not results and not call.mutates:
        return
    made = form_of(call, draft.listing.metas)
    op = draft.builder.add_op(
        unique_name(call.name, draft.names),
        made.kind,
        scope=call.scope,
        attributes=made.attributes,
        dtype=_compute_dtype(draft, call, made),
        origin=() if call.origin < 0 else (call.origin,),
    )
    _connect(draft, op, made)
    for name in results:
        draft.tensors[name] = _add_tensor(draft, name, op)
    _note_memory(draft, call, made, results, op)


def _connect(draft: _Draft, op: int, made: Form) -> None:
    extra: list[str] = []
    for position, name in enumerate(made.arguments):
        if name is None:
            continue
        if name in draft.tensors:
            draft.builder.add_edge(draft.tensors[name], op, position)
        elif name in draft.weights:
            draft.builder.use_weight(draft.weights[name], op, position)
        extra.extend(draft.scalars.get(name, ()))
        extra.extend(_unseen(draft, name))
    direct = {name for name in made.arguments if name is not None}
    first = max(FIRST_EXTRA, len(made.arguments))
    waits = [name for name in dict.fromkeys(extra) if name in draft.tensors and name not in direct]
    for position, name in enumerate(waits, start=first):
        draft.builder.add_edge(draft.tensors[name], op, position)


def _unseen(draft: _Draft, name: str) -> list[str]:
    """What was last written to the memory of a value after the value was made."""
    writes = draft.writes.get(draft.root.get(name, name), [])
    return writes[-1:] if len(writes) > draft.seen.get(name, 0) else []


def _note_memory(draft: _Draft, call: Call, made: Form, results: list[str], op: int) -> None:
    """Results of views and of writes in place share memory with an argument; a write is noted with its memory."""
    shared = call.mutates[0] if call.mutates else made.arguments[0] if made.view and made.arguments else None
    root = None if shared is None else draft.root.get(shared, shared)
    for name in results:
        if root is not None:
            draft.root[name] = root
    for name in call.mutates:
        if not results:
            results = [f"{call.name}:written"]
            draft.tensors[results[0]] = draft.builder.add_tensor(op, shape=(0,), dtype="bool", name=results[0])
        draft.writes.setdefault(draft.root.get(name, name), []).append(results[0])
    for name in results:
        draft.seen[name] = len(draft.writes.get(draft.root.get(name, name), ()))


def _left_behind(draft: _Draft) -> Iterator[str]:
    """The last write to the memory of each weight and input: it outlives the run."""
    lasting = {draft.root.get(name, name) for name in (*draft.weights, *draft.listing.inputs)}
    return (writes[-1] for root, writes in draft.writes.items() if root in lasting)


def _behind(draft: _Draft, names: list[str]) -> Iterator[str]:
    for name in names:
        if name in draft.tensors:
            yield name
        else:
            yield from draft.scalars.get(name, ())


def _add_tensor(draft: _Draft, name: str, producer: int) -> int:
    meta = draft.listing.metas[name]
    _refuse_size(name, meta)
    return draft.builder.add_tensor(producer, shape=meta.shape, dtype=meta.dtype, name=name)


def _refuse_size(name: str, meta: Meta) -> None:
    if bytes_of(meta.shape, meta.dtype) >= LARGEST:
        shown = "×".join(map(str, meta.shape))
        raise GraphError(f"tensor {name!r} of shape {shown} exceeds 2^62 bytes", remedy="check the model's sizes")


def _compute_dtype(draft: _Draft, call: Call, made: Form) -> str:
    """The first floating type among the results, then the arguments; else the first result's."""
    names = [*call.results, *(name for name in made.arguments if name is not None)]
    found = [draft.listing.metas[name].dtype for name in names if name in draft.listing.metas]
    return next((dtype for dtype in found if dtype.startswith(_FLOATING)), found[0] if found else "unknown")

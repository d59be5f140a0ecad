"""A traced program → a Graph with one op per call: kinds, tied weights, and dependencies on in-place writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from placewise.errors import GraphError
from placewise.model.builder import GraphBuilder
from placewise.model.dtypes import bytes_of
from placewise.model.graph import Graph, Source
from placewise.readers.base import first_floating, unique_name
from placewise.readers.torch.kinds import SKIPPED, convert_call
from placewise.readers.torch.op_specs import OpSpec
from placewise.readers.torch.traced_program import TensorMeta, TracedCall, TracedProgram
from placewise.readers.torch.written_memory import group_writes

FIRST_EXTRA = 1 << 16
"""First argument position of values that an op only waits for; costing ignores them."""
MAX_BYTES = 1 << 62
RUNNABLE = ("torch-export", "torch-module")


@dataclass(slots=True)
class _GraphAssembly:
    """A graph under construction.

    `tensors`, `weights`: ids by value. `root`: the value whose memory a value is a view of. `writes`: by root, the
    results of in-place ops on that memory, in order; `seen`: how many of them a value already includes. `scalars`: the
    values behind a number that is known only at run time.
    """

    listing: TracedProgram
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    tensors: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    root: dict[str, str] = field(default_factory=dict)
    writes: dict[str, list[str]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    scalars: dict[str, tuple[str, ...]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


def assemble(listing: TracedProgram, source: Source | None) -> Graph:
    """The raw view of a program. Raises GraphError for absurdly large sizes.

    Calls that use memory which one of them writes in place share a device if the program is one that runtimes can run.
    """
    state = _GraphAssembly(listing)
    _add_parameters(state)
    for name in dict.fromkeys(listing.inputs):
        if name in listing.metas and name not in state.weights:
            state.tensors[name] = _add_tensor(state, name, -1)
    runs = source is not None and source.format in RUNNABLE
    groups = group_writes(listing) if runs else [-1] * len(listing.calls)
    for call, group in zip(listing.calls, groups, strict=True):
        _add_call(state, call, group)
    for name in (*listing.outputs, *listing.written, *_final_writes(state)):
        if name in state.tensors:
            state.builder.set_output(state.tensors[name])
    return state.builder.build(source)


def _add_parameters(state: _GraphAssembly) -> None:
    """Add the weights; weights that share memory share a storage id."""
    storages: dict[object, int] = {}
    by_name: dict[str, int] = {}
    for number, parameter in enumerate(state.listing.parameters):
        meta = state.listing.metas[parameter.value]
        if parameter.name not in by_name:
            _refuse_size(parameter.name, meta)
            by_name[parameter.name] = state.builder.add_weight(
                parameter.name,
                shape=meta.shape,
                dtype=meta.dtype,
                storage=storages.setdefault(parameter.storage, number),
                trainable=parameter.trainable,
            )
        state.weights[parameter.value] = by_name[parameter.name]
        state.root[parameter.value] = f"storage {storages[parameter.storage]}"


def _add_call(state: _GraphAssembly, call: TracedCall, group: int) -> None:
    results = [name for name in call.results if name in state.listing.metas]
    if call.op in SKIPPED or (not results and call.results):
        for name in call.results:
            state.scalars[name] = () if call.op in SKIPPED else tuple(_scalar_sources(state, call.refs))
        return
    if not results and not call.mutates:
        return
    spec = convert_call(call, state.listing.metas)
    op = state.builder.add_op(
        unique_name(call.name, state.names),
        spec.kind,
        scope=call.scope,
        attributes=spec.attributes,
        dtype=_compute_dtype(state, call, spec),
        origin=() if call.origin < 0 else (call.origin,),
        group=group,
    )
    _connect(state, op, spec)
    for name in results:
        state.tensors[name] = _add_tensor(state, name, op)
    _track_memory(state, call, spec, results, op)


def _connect(state: _GraphAssembly, op: int, spec: OpSpec) -> None:
    waited: list[str] = []
    for position, name in enumerate(spec.arguments):
        if name is None:
            continue
        if name in state.tensors:
            state.builder.add_edge(state.tensors[name], op, position)
        elif name in state.weights:
            state.builder.use_weight(state.weights[name], op, position)
        waited.extend(state.scalars.get(name, ()))
        waited.extend(_pending_writes(state, name))
    arguments = {name for name in spec.arguments if name is not None}
    first = max(FIRST_EXTRA, len(spec.arguments))
    waits = [name for name in dict.fromkeys(waited) if name in state.tensors and name not in arguments]
    for position, name in enumerate(waits, start=first):
        state.builder.add_edge(state.tensors[name], op, position)


def _pending_writes(state: _GraphAssembly, name: str) -> list[str]:
    """The last write to the memory of a value after the value was computed."""
    writes = state.writes.get(state.root.get(name, name), [])
    return writes[-1:] if len(writes) > state.seen.get(name, 0) else []


def _track_memory(state: _GraphAssembly, call: TracedCall, spec: OpSpec, results: list[str], op: int) -> None:
    """Record which memory the results share with arguments (views, in-place writes), and what is written to it."""
    shared = call.mutates[0] if call.mutates else spec.arguments[0] if spec.view and spec.arguments else None
    root = None if shared is None else state.root.get(shared, shared)
    for name in results:
        if root is not None:
            state.root[name] = root
    for name in call.mutates:
        if not results:
            results = [f"{call.name}:written"]
            state.tensors[results[0]] = state.builder.add_tensor(op, shape=(0,), dtype="bool", name=results[0])
        state.writes.setdefault(state.root.get(name, name), []).append(results[0])
    for name in results:
        state.seen[name] = len(state.writes.get(state.root.get(name, name), ()))


def _final_writes(state: _GraphAssembly) -> Iterator[str]:
    """The last write to the memory of each weight and input; it outlives the run."""
    lasting = {state.root.get(name, name) for name in (*state.weights, *state.listing.inputs)}
    return (writes[-1] for root, writes in state.writes.items() if root in lasting)


def _scalar_sources(state: _GraphAssembly, names: list[str]) -> Iterator[str]:
    for name in names:
        if name in state.tensors:
            yield name
        else:
            yield from state.scalars.get(name, ())


def _add_tensor(state: _GraphAssembly, name: str, producer: int) -> int:
    meta = state.listing.metas[name]
    _refuse_size(name, meta)
    return state.builder.add_tensor(producer, shape=meta.shape, dtype=meta.dtype, name=name)


def _refuse_size(name: str, meta: TensorMeta) -> None:
    if bytes_of(meta.shape, meta.dtype) >= MAX_BYTES:
        shape_text = "×".join(map(str, meta.shape))
        raise GraphError(f"tensor {name!r} of shape {shape_text} exceeds 2^62 bytes", remedy="check the model's sizes")


def _compute_dtype(state: _GraphAssembly, call: TracedCall, spec: OpSpec) -> str:
    """The first floating-point type of results and arguments, else that of the first result."""
    names = [*call.results, *(name for name in spec.arguments if name is not None)]
    dtypes = [state.listing.metas[name].dtype for name in names if name in state.listing.metas]
    return first_floating(dtypes) or (dtypes[0] if dtypes else "unknown")

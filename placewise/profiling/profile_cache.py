"""A cache of measured times by op context, device, runtime and version.

The *context* of an op is a digest of its kind, attributes, element types and shapes, and of those near it, since
runtimes fuse ops with their neighbours and choose layouts for them. Ops of one context take the same time, so their
times are averaged. A cached time is used only if all ops of its kernel are there again.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placewise.errors import OutputError
from placewise.files.atomic import atomic_write
from placewise.files.cache_folder import LIMITS, PROFILES, mark_used, open_cache, remove_oldest
from placewise.files.profile_file import Figures
from placewise.model.disjoint_sets import DisjointSets
from placewise.model.graph import Graph
from placewise.model.tables import Tensors, Weights
from placewise.processes.abandoned import lock_path, unlock
from placewise.profiling.op_times import Fused

REACH = 3
"""How many tensors away from an op its context reaches."""
MAX_ENTRIES, MAX_MODELS = 100_000, 20
_VERSION = 2


CachedOp = tuple[float | None, str, tuple[int, ...]]
"""Seconds of an op, the digest of its kernel, and the positions of its arguments that the same kernel makes."""


@dataclass(frozen=True, slots=True)
class CachedProfile:
    """Measurements of one device in one state: `ops` by context, the seconds of a `call`, and the figures of whole
    `models` by the digest of all their contexts.
    """

    ops: Mapping[str, CachedOp] = field(default_factory=dict)
    call: float = 0.0
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


EMPTY = CachedProfile()


def op_contexts(graph: Graph, reach: int = REACH) -> list[str]:
    """The context of each op [n_ops]: equal for equal ops among equal neighbours, in any model."""
    ops, own = graph.ops, list[str]()
    for op in range(graph.n_ops):
        values = [
            *(("t", p, *_shape_and_type(graph.tensors, v)) for v, p in _arguments(graph, op)),
            *(("w", p, *_shape_and_type(graph.weights, v)) for v, p in _weights(graph, op)),
            *(("o", *_shape_and_type(graph.tensors, v)) for v in graph.outputs_of(op)),
        ]
        attributes = sorted((str(name), repr(value)) for name, value in ops.attributes[op].items())
        own.append(_digest(ops.kind[op], attributes, int(ops.dtype[op]), values))
    contexts, producer = own, graph.tensors.producer
    for _ in range(reach):
        near = []
        for op in range(graph.n_ops):
            before = [(p, contexts[producer[v]] if producer[v] >= 0 else "") for v, p in _arguments(graph, op)]
            after = [
                (
                    sorted(contexts[int(reader)] for reader in graph.consumers_of(tensor)),
                    bool(graph.tensors.output[tensor]),
                )
                for tensor in graph.outputs_of(op)
            ]
            near.append(_digest(contexts[op], before, after))
        contexts = near
    return contexts


def average_contexts(contexts: Sequence[str], figures: Figures) -> Figures:
    """The figures with the mean of all ops of one context for each of them; their sum stays the same."""
    times: dict[str, list[float]] = defaultdict(list)
    for context, seconds in zip(contexts, figures.ops, strict=True):
        if seconds is not None:
            times[context].append(seconds)
    mean = {context: float(np.mean(seconds)) for context, seconds in times.items()}
    ops = tuple(None if s is None else mean[context] for context, s in zip(contexts, figures.ops, strict=True))
    return figures.model_copy(update={"ops": ops})


def find_figures(graph: Graph, contexts: Sequence[str], cached: CachedProfile) -> tuple[Figures, Fused] | None:
    """The cached figures of a model: of this model, or from its ops if all of them are cached with their kernels.

    None if they are not. If the figures come from ops of other models, those of the whole model are unknown.
    """
    model = cached.models.get(_digest(list(contexts)))
    if model is not None:
        return Figures.model_validate(model["figures"]), tuple(tuple(ops) for ops in model["fused"])
    if not all(context in cached.ops for context in contexts):
        return None
    sets = _join_kernels(graph, [cached.ops[context][2] for context in contexts])
    if sets is None:
        return None
    own = op_contexts(graph, 0)
    for ops in sets:
        kernel = _kernel_digest(own, ops)
        if any(cached.ops[contexts[op]][1] != kernel for op in ops):
            return None
    figures = Figures.model_validate({"ops": tuple(cached.ops[context][0] for context in contexts)})
    return figures, tuple(sorted(tuple(ops) for ops in sets if len(ops) > 1))


def _join_kernels(graph: Graph, inside: Sequence[Sequence[int]]) -> list[list[int]] | None:
    """Sets of ops of one kernel; `inside` [n_ops] are the argument positions that each op's own kernel makes.

    None if such an argument has no producer.
    """
    kernels = DisjointSets(graph.n_ops)
    for op, positions in enumerate(inside):
        for value, position in _arguments(graph, op):
            if position in positions:
                producer = int(graph.tensors.producer[value])
                if producer < 0:
                    return None
                kernels.join(op, producer)
    sets: dict[int, list[int]] = defaultdict(list)
    for op in range(graph.n_ops):
        sets[kernels.find(op)].append(op)
    return list(sets.values())


def add_figures(
    cached: CachedProfile, graph: Graph, contexts: Sequence[str], figures: Figures, fused: Fused, call: float
) -> CachedProfile:
    """The cached profile with these figures added, without contexts whose ops are fused in different ways."""
    kernel_of, own = {op: ops for ops in fused for op in ops}, op_contexts(graph, 0)
    added: dict[str, CachedOp] = {}
    ambiguous: set[str] = set()
    for op, context in enumerate(contexts):
        ops = kernel_of.get(op, (op,))
        inside = tuple(
            position for value, position in _arguments(graph, op) if int(graph.tensors.producer[value]) in ops
        )
        entry = figures.ops[op], _kernel_digest(own, ops), inside
        if added.setdefault(context, entry)[1:] != entry[1:]:
            ambiguous.add(context)
    kept, new = ({c: entry for c, entry in ops.items() if c not in ambiguous} for ops in (cached.ops, added))
    models = {**cached.models, _digest(list(contexts)): {"figures": figures.model_dump(), "fused": fused}}
    newest_ops = dict([*kept.items(), *new.items()][-MAX_ENTRIES:])
    return CachedProfile(newest_ops, call, dict([*models.items()][-MAX_MODELS:]))


class ProfileCache:
    """A folder with a file per device, state, runtime and version; by default in the user's cache folder.

    A file that cannot be read counts as empty, and a file that cannot be written is not an error.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = open_cache(PROFILES) if folder is None else folder

    def read(self, *key: str) -> CachedProfile:
        """The profile under this key; empty if there is none."""
        if self.folder is None:
            return EMPTY
        path = _file_of(self.folder, key)
        try:
            document = json.loads(path.read_text("utf-8"))
            ops = {
                context: (seconds, kernel, tuple(inside))
                for context, (seconds, kernel, inside) in document["ops"].items()
            }
            profile = CachedProfile(ops, document["call"], document["models"])
            mark_used(path)
            return profile if document["version"] == _VERSION else EMPTY
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return EMPTY

    def write(self, profile: CachedProfile, *key: str) -> None:
        """Replace the profile under this key."""
        if self.folder is None:
            return
        document = {"version": _VERSION, "about": key, "call": profile.call, "models": profile.models}
        with suppress(OSError, OutputError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(_file_of(self.folder, key)) as file:
                json.dump(document | {"ops": profile.ops}, file)
            remove_oldest(self.folder, LIMITS[PROFILES])

    def update(self, change: Callable[[CachedProfile], CachedProfile], *key: str) -> None:
        """Replace the profile under this key by what `change` makes of it; processes that do so wait for each other."""
        if self.folder is None:
            return
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
        lock = lock_path(self.folder.resolve(), wait=True)
        try:
            self.write(change(self.read(*key)), *key)
        finally:
            unlock(lock)


def _file_of(folder: Path, key: tuple[str, ...]) -> Path:
    return folder / f"{_digest(key)}.json"


def _arguments(graph: Graph, op: int) -> list[tuple[int, int]]:
    rows = range(int(graph.in_offsets[op]), int(graph.in_offsets[op + 1]))
    return [(int(graph.edges.value[row]), int(graph.edges.position[row])) for row in rows]


def _weights(graph: Graph, op: int) -> list[tuple[int, int]]:
    rows = range(int(graph.weight_offsets[op]), int(graph.weight_offsets[op + 1]))
    return [(int(graph.weight_edges.value[row]), int(graph.weight_edges.position[row])) for row in rows]


def _shape_and_type(values: Tensors | Weights, number: int) -> tuple[tuple[int, ...], str]:
    return tuple(int(size) for size in values.shape[number]), values.dtype_name(number)


def _kernel_digest(own: Sequence[str], ops: Sequence[int]) -> str:
    """A digest of what a kernel computes; `own` [n_ops] are the contexts of the ops alone."""
    return _digest(sorted(own[op] for op in ops))


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]

"""Measured times kept for the next profile: by what an op does, what stands around it, device, runtime and version.

An op's *context* says its kind, attributes, element types and shapes, and those of what is near it, since runtimes fuse
and lay out what is near. Ops of one context take the same time, so their times are averaged. A time counts again only
where the ops of its whole kernel are there again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placewise.errors import OutputError
from placewise.files.atomic import atomic_write
from placewise.files.profile_file import Figures
from placewise.model.graph import Graph
from placewise.model.tables import Tensors, Weights
from placewise.profiling.kernels import Fused

REACH = 3
"""How far around an op its context looks, in steps along tensors."""
MOST_ENTRIES, MOST_MODELS = 100_000, 20
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Known:
    """What was measured on one device in one state: what a `call` costs; `ops` by context (seconds, its kernel, which
    arguments are made in the same kernel); and the figures of whole `models` by all their contexts.
    """

    ops: Mapping[str, tuple[float | None, str, tuple[int, ...]]] = field(default_factory=dict)
    call: float = 0.0
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


NOTHING = Known()


def contexts(graph: Graph, reach: int = REACH) -> list[str]:
    """A word per op [n_ops], equal for ops that do the same among neighbours that do the same, in any model."""
    ops, own = graph.ops, list[str]()
    for op in range(graph.n_ops):
        values = [
            *(("t", p, *_value(graph.tensors, v)) for v, p in _arguments(graph, op)),
            *(("w", p, *_value(graph.weights, v)) for v, p in _weights(graph, op)),
            *(("o", *_value(graph.tensors, v)) for v in graph.outputs_of(op)),
        ]
        attributes = sorted((str(name), repr(value)) for name, value in ops.attributes[op].items())
        own.append(_word(ops.kind[op], attributes, int(ops.dtype[op]), values))
    found, producer = own, graph.tensors.producer
    for _ in range(reach):
        near = []
        for op in range(graph.n_ops):
            before = [(p, found[producer[v]] if producer[v] >= 0 else "") for v, p in _arguments(graph, op)]
            after = [
                (
                    sorted(found[int(reader)] for reader in graph.consumers_of(tensor)),
                    bool(graph.tensors.output[tensor]),
                )
                for tensor in graph.outputs_of(op)
            ]
            near.append(_word(found[op], before, after))
        found = near
    return found


def pooled(graph: Graph, words: Sequence[str], figures: Figures) -> Figures:
    """The figures with the mean of all ops of one context for each of them: their sum stays."""
    times: dict[str, list[float]] = defaultdict(list)
    for word, seconds in zip(words, figures.ops, strict=True):
        if seconds is not None:
            times[word].append(seconds)
    mean = {word: float(np.mean(found)) for word, found in times.items()}
    same = [None if seconds is None else mean[word] for word, seconds in zip(words, figures.ops, strict=True)]
    return figures.model_copy(update={"ops": tuple(same)})


def remembered(graph: Graph, words: Sequence[str], known: Known) -> tuple[Figures, Fused] | None:
    """The figures of a model that ran before, or whose every op is known, with all that its kernel holds; else None.

    Of a model that did not run itself, the whole is unknown.
    """
    model = known.models.get(_word(list(words)))
    if model is not None:
        return Figures.model_validate(model["figures"]), tuple(tuple(ops) for ops in model["fused"])
    if not all(word in known.ops for word in words):
        return None
    root = list(range(graph.n_ops))

    def top(op: int) -> int:
        while root[op] != op:
            root[op] = op = root[root[op]]
        return op

    for op, word in enumerate(words):
        inside = known.ops[word][2]
        for value, position in _arguments(graph, op):
            if position in inside:
                maker = int(graph.tensors.producer[value])
                if maker < 0:
                    return None
                root[top(op)] = top(maker)
    sets: dict[int, list[int]] = defaultdict(list)
    for op in range(graph.n_ops):
        sets[top(op)].append(op)
    own = contexts(graph, 0)
    for ops in sets.values():
        kernel = _kernel(own, ops)
        if any(known.ops[words[op]][1] != kernel for op in ops):
            return None
    figures = Figures.model_validate({"ops": tuple(known.ops[word][0] for word in words)})
    return figures, tuple(sorted(tuple(ops) for ops in sets.values() if len(ops) > 1))


def with_measured(
    known: Known, graph: Graph, words: Sequence[str], figures: Figures, fused: Fused, call: float
) -> Known:
    """What is known, and these figures; ops of one context that are not fused alike are left out."""
    member, own = {op: ops for ops in fused for op in ops}, contexts(graph, 0)
    found: dict[str, tuple[float | None, str, tuple[int, ...]]] = {}
    doubtful: set[str] = set()
    for op, word in enumerate(words):
        ops = member.get(op, (op,))
        inside = tuple(
            position for value, position in _arguments(graph, op) if int(graph.tensors.producer[value]) in ops
        )
        entry = figures.ops[op], _kernel(own, ops), inside
        if found.setdefault(word, entry)[1:] != entry[1:]:
            doubtful.add(word)
    kept = {word: entry for word, entry in known.ops.items() if word not in doubtful}
    new = {word: entry for word, entry in found.items() if word not in doubtful}
    ops_known = dict([*kept.items(), *new.items()][-MOST_ENTRIES:])
    models = {**known.models, _word(list(words)): {"figures": figures.model_dump(), "fused": fused}}
    return Known(ops_known, call, dict([*models.items()][-MOST_MODELS:]))


class Shelf:
    """Where things are kept: a file per device, state, runtime and version, in the user's cache folder.

    A file that cannot be read counts as empty, and one that cannot be written is not an error.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() / "profiles" if folder is None else folder

    def read(self, *about: str) -> Known:
        try:
            document = json.loads(self._path(about).read_text("utf-8"))
            ops = {
                word: (seconds, kernel, tuple(inside)) for word, (seconds, kernel, inside) in document["ops"].items()
            }
            return Known(ops, document["call"], document["models"]) if document["version"] == _VERSION else NOTHING
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return NOTHING

    def write(self, known: Known, *about: str) -> None:
        document = {"version": _VERSION, "about": about, "call": known.call, "models": known.models, "ops": known.ops}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._path(about)) as file:
                json.dump(document, file)
        except (OSError, OutputError):
            return

    def _path(self, about: tuple[str, ...]) -> Path:
        return self.folder / f"{_word(about)}.json"


def cache_folder() -> Path:
    """The user's folder for what can be made again: as the system's convention has it, or XDG_CACHE_HOME."""
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "placewise"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "placewise"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "placewise" / "Cache"
    return Path.home() / ".cache" / "placewise"


def _arguments(graph: Graph, op: int) -> list[tuple[int, int]]:
    rows = range(int(graph.in_offsets[op]), int(graph.in_offsets[op + 1]))
    return [(int(graph.edges.value[row]), int(graph.edges.position[row])) for row in rows]


def _weights(graph: Graph, op: int) -> list[tuple[int, int]]:
    rows = range(int(graph.weight_offsets[op]), int(graph.weight_offsets[op + 1]))
    return [(int(graph.weight_edges.value[row]), int(graph.weight_edges.position[row])) for row in rows]


def _value(values: Tensors | Weights, number: int) -> tuple[tuple[int, ...], str]:
    return tuple(int(size) for size in values.shape[number]), values.dtype_name(number)


def _kernel(own: Sequence[str], ops: Sequence[int]) -> str:
    """A word for what a kernel computes; `own` [n_ops] says what each op does by itself."""
    return _word(sorted(own[op] for op in ops))


def _word(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]

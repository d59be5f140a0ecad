"""A plan with stages in the terms of PyTorch: modules per stage, how each is split, and which recompute.

The result is a document of plain values, which `readers/torch/parallel_model.py` runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from placewise.core.token_plan import describe_tokens, find_token_tensors
from placewise.costing.sharding import shard_graph
from placewise.errors import ExportError
from placewise.model.columns import Bools
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.sharding import WHOLE, ModuleSplit, Sharding, module_splits

HUGGINGFACE = "huggingface"
FORMATS = ("torch-module", "torch-modules", "torch-export", HUGGINGFACE)
"""Sources whose scopes are paths of modules."""
MICROBATCHES = 4
"""Of each replica, per stage, where nothing is trained: enough to fill the pipeline."""
_WITH_WEIGHTS = frozenset({"colwise", "rowwise", "embedding"})


def describe_modules(problem: Problem, placement: Placement) -> tuple[dict[str, Any], list[str]]:
    """Sizes, stages and splits of a placement whose stages are equal, as `parallel_model.ParallelModel` takes them.

    Also the modules whose results are gathered at once, where the plan goes on with the parts, as in a loss.

    `stages` have the paths of their `modules` ("" is the whole model), the names of `calls` outside of these, the paths
    of modules that `recompute`, and `devices`, one replica after the other. `splits` maps the path of a module to its
    style, the split dimension of its `weights`, the lengths of `parts` side by side in such a dimension, and whether it
    `gathers`. `summed` are weights of which every device has a part of the gradient. With sequence parallelism, there
    is also `tokens`: what modules do with them (`describe_tokens`).

    Raises ExportError for a model without modules, and for splits that modules cannot express.
    """
    graph, ways, stages = problem.graph, problem.require_ways(), placement.stages
    _require_modules(graph)
    degree, replicas = stages[0].tensor_parallel, stages[0].data_parallel
    by_tokens = problem.constraints.sequence_parallel and degree > 1
    stage = np.where(graph.ops.backward, -1, np.asarray(placement.stage))
    total = count_by_module(graph)
    entire = len(stages) == 1 and not by_tokens
    whole = [[""]] if entire else [whole_modules(graph, stage == s, total) for s in range(len(stages))]
    everything = [path for paths in whole for path in paths]
    calls = _calls_outside(graph, stage.tolist(), everything)
    if graph.source is not None and graph.source.format == HUGGINGFACE:
        calls = _leave_out_calls(graph, stage.tolist(), everything)
    splits: dict[str, Any] = {}
    tokens: dict[str, Any] = {}
    summed, early = list[str](), list[str]()
    if degree > 1:
        sharding = shard_graph(graph, degree, unit=ways.unit, sequence_parallel=by_tokens)
        splits, summed, early = _split_modules(graph, sharding)
        if by_tokens:
            made = describe_tokens(graph, sharding, splits, stage.tolist(), everything)
            tokens, early = {"tokens": made}, [*early, *made["results"]]
    _require_inside(splits, everything)
    again = _recomputed_modules(problem, placement, total)
    document = {
        "tensor_parallel": degree,
        "data_parallel": replicas,
        "microbatches": ways.microbatches if ways.trains else replicas * MICROBATCHES * len(stages),
        "schedule": problem.objective.schedule,
        "stages": [
            {
                "modules": whole[s],
                "calls": calls.get(s, []),
                "recompute": again[s],
                "devices": [problem.cluster.names[d] for d in group.devices],
            }
            for s, group in enumerate(stages)
        ],
        "splits": splits,
        "summed": summed,
        **tokens,
    }
    return document, early


def whole_modules(graph: Graph, chosen: Bools, total: Mapping[str, int]) -> list[str]:
    """The outermost modules, by path and in order, all of whose forward ops are among the chosen [n_ops].

    `total` is what `count_by_module` says of the graph.
    """
    own = count_by_module(graph, chosen)
    full = {path for path, count in own.items() if path and count == total[path]}
    return [path for path in own if path in full and full.isdisjoint(_prefixes(path)[:-1])]


def count_by_module(graph: Graph, chosen: Bools | None = None) -> dict[str, int]:
    """How many of the (chosen) forward ops are in each module, by path and in order; "" is the whole model."""
    counts: dict[str, int] = {}
    kept = ~graph.ops.backward if chosen is None else chosen & ~graph.ops.backward
    codes, first = np.unique(graph.ops.scope.codes[kept], return_index=True)
    sizes = np.bincount(graph.ops.scope.codes[kept], minlength=1)
    for code in codes[np.argsort(first)].tolist():
        for path in _prefixes(graph.ops.scope.values[code]):
            counts[path] = counts.get(path, 0) + int(sizes[code])
    return counts


def call_name(name: str) -> str:
    """The call of an exported program that an op stands for or is a part of."""
    return name.partition(".")[0].partition("#")[0]


def _require_modules(graph: Graph) -> None:
    source = graph.source
    if source is None or source.format not in FORMATS:
        raise ExportError("the model is no PyTorch module", remedy="place the module itself, or its .pt2 file")
    if graph.phases:
        raise ExportError(
            "this model runs in phases, and a module is called once", remedy="place a training step: --graph training"
        )


def _prefixes(scope: str) -> list[str]:
    parts = scope.split(".") if scope else []
    return ["", *(".".join(parts[:count]) for count in range(1, len(parts) + 1))]


def _calls_outside(graph: Graph, stage: list[int], whole: list[str]) -> dict[int, list[str]]:
    """By stage, the names of the calls that are in none of its whole modules."""
    found: dict[int, list[str]] = {}
    for op, s in enumerate(stage):
        if s >= 0 and not _is_inside(graph.ops.scope[op], whole):
            names = found.setdefault(s, [])
            if (name := call_name(graph.ops.name[op])) not in names:
                names.append(name)
    return found


def locate_calls(graph: Graph, stage: Sequence[int]) -> list[int]:
    """The stage [n_ops] of forward ops where calls outside of modules (−1 in `stage`) run with what they read.

    −1 remains for what depends on the model's inputs alone, which every stage computes for itself.
    """
    found, free, producer = list(stage), set[int](), graph.tensors.producer
    for op in np.flatnonzero(~graph.ops.backward).tolist():
        makers = [int(producer[t]) for t in graph.inputs_of(op).tolist() if producer[t] >= 0]
        if found[op] >= 0:
            continue
        if free.issuperset(makers) and not graph.weights.trainable[graph.weights_of(op)].any():
            free.add(op)
        else:
            found[op] = max((found[maker] for maker in makers), default=0)
    return found


def _leave_out_calls(graph: Graph, stage: list[int], whole: list[str]) -> dict[int, list[str]]:
    """No calls: a configuration is traced without masks, so the model's own program has other names.

    Raises ExportError for a call outside of modules that is not on the stage where it would run.
    """
    inside = [_is_inside(scope, whole) for scope in graph.ops.scope]
    where = locate_calls(graph, [s if known else -1 for s, known in zip(stage, inside, strict=True)])
    late = next((op for op, s in enumerate(where) if 0 <= s != stage[op] >= 0), None)
    if late is not None:
        name = graph.ops.scope[late] or graph.ops.name[late]
        raise ExportError(f"a call in {name!r}, outside of whole modules, is on another stage than what it reads")
    return {}


def _is_inside(path: str, parts: Iterable[str]) -> bool:
    return not set(_prefixes(path)).isdisjoint(parts)


def _split_modules(graph: Graph, sharding: Sharding) -> tuple[dict[str, Any], list[str], list[str]]:
    """How modules are split, the weights with parts of gradients, and the modules that gather only here."""
    early, own = _gather_early(graph, sharding), module_splits(graph, sharding)
    splits = _describe_splits(graph, sharding, own, early)
    return splits, _partial_gradients(graph, sharding), [path for path in early if not own[path].gathers]


def _gather_early(graph: Graph, sharding: Sharding) -> list[str]:
    """Column-parallel modules whose parts reach an op that has to exchange them and is in no module that does so.

    Code that is written for whole tensors cannot do so either: a loss, a softmax over what is split. Raises ExportError
    where the parts are needed as well.
    """
    gathered: dict[int, None] = {}
    passed: set[int] = set()
    by_token = find_token_tensors(graph, sharding)
    for collective in sharding.collectives:
        maker = int(graph.tensors.producer[collective.tensor])
        if by_token[collective.tensor]:
            continue
        if collective.backward or (maker >= 0 and _makes_sums(graph, sharding, maker)):
            continue
        gathers = collective.kind == "all-gather"
        passed |= set() if gathers else {collective.op}
        for tensor in [collective.tensor] if gathers else graph.inputs_of(collective.op).tolist():
            _find_sources(graph, sharding, int(tensor), gathered, passed, by_token)
    for op in gathered:
        _require_no_parts(graph, sharding, op, passed)
    return list(dict.fromkeys(graph.ops.scope[op] for op in gathered))


def _describe_splits(
    graph: Graph, sharding: Sharding, found: Mapping[str, ModuleSplit], early: list[str]
) -> dict[str, Any]:
    styles: dict[str, set[str]] = {}
    for op in np.flatnonzero(~graph.ops.backward & (sharding.style > 0)).tolist():
        style = sharding.style_of(op)
        if style == "experts":
            raise ExportError("experts that are split over devices are no style of PyTorch's parallelize_module")
        if style in _WITH_WEIGHTS and any(sharding.weight_split[w] >= 0 for w in graph.weights_of(op)):
            styles.setdefault(graph.ops.scope[op], set()).add(style)
    _require_no_slices(graph, sharding)
    mixed = next((path for path, own in styles.items() if len(own) > 1), None)
    if mixed is not None:
        said = f"the module {mixed!r} holds several products, of which each is split in its own way"
        raise ExportError(said, remedy="write them as modules of their own")
    strange = next((path for path, split in found.items() if split.style == "heads" and split.weights), None)
    if strange is not None:
        raise ExportError(f"the attention {strange!r} holds weights of its own that are split by heads")
    return {
        path: {
            "style": split.style,
            "weights": {_own_name(name, path): dim for name, dim in split.weights.items()},
            "parts": {_own_name(name, path): list(lengths) for name, lengths in split.parts.items()},
            "gathers": split.gathers or path in early,
        }
        for path, split in found.items()
        if path and split.style != "tokens"
    }


def _makes_sums(graph: Graph, sharding: Sharding, op: int) -> bool:
    """Whether an op is a product or an embedding whose results are summed over the devices."""
    weighs = any(sharding.weight_split[w] >= 0 for w in graph.weights_of(op).tolist())
    return weighs and sharding.style_of(op) in ("rowwise", "embedding")


def _find_sources(
    graph: Graph, sharding: Sharding, tensor: int, gathered: dict[int, None], passed: set[int], by_token: Bools
) -> None:
    """Add the column-parallel ops from which a split tensor comes to `gathered`, and the ops between to `passed`."""
    stack = [tensor]
    while stack:
        one = stack.pop()
        op = int(graph.tensors.producer[one])
        if op < 0 or by_token[one] or sharding.split[one] < 0 or op in passed or op in gathered:
            continue
        if _makes_sums(graph, sharding, op):
            continue
        style = sharding.style_of(op)
        if style == "colwise":
            gathered[op] = None
        elif style == "follows":
            passed.add(op)
            stack += graph.inputs_of(op).tolist()
        else:
            name = graph.ops.scope[op] or graph.ops.name[op]
            raise ExportError(f"what {name!r} makes is split, and PyTorch's styles gather the results of products only")


def _require_no_parts(graph: Graph, sharding: Sharding, op: int, passed: set[int]) -> None:
    for tensor in graph.outputs_of(op):
        for reader in graph.consumers_of(tensor).tolist():
            if graph.ops.backward[reader] or reader in passed or sharding.share[reader] >= 1:
                continue
            name = graph.ops.scope[op] or graph.ops.name[op]
            raise ExportError(
                f"what {name!r} makes is needed whole and in parts, which PyTorch's styles cannot express"
            )


def _require_no_slices(graph: Graph, sharding: Sharding) -> None:
    """Raise ExportError where a split op takes its part of a value that is whole: no code of a module does so."""
    shape, split = graph.tensors.shape, sharding.split
    for op in np.flatnonzero(~graph.ops.backward & (sharding.share < 1)).tolist():
        style, outputs = sharding.style_of(op), graph.outputs_of(op)
        given = [t for t in graph.inputs_of(op).tolist() if graph.tensors.producer[t] >= 0]
        place = int(split[outputs[0]]) if len(outputs) else WHOLE
        fault = style == "rowwise" and all(split[t] == WHOLE for t in given)
        if style in ("heads", "follows") and place >= 0:
            rank, most = len(shape[outputs[0]]), shape[outputs[0]][place]
            alike = [t for t in given if len(shape[t]) == rank and split[t] == WHOLE]
            lengths = [shape[t][place] for t in alike]
            fault = any(n == most > 1 or (style == "heads" and n > 1) for n in lengths)
        if fault:
            name = graph.ops.scope[op] or graph.ops.name[op]
            raise ExportError(f"{name!r} computes on parts of values that are whole, which no module of the model does")


def _own_name(name: str, path: str) -> str:
    """The name of a weight within its module; a tied one is called after another module."""
    return name.removeprefix(f"{path}.") if name.startswith(f"{path}.") else name.rpartition(".")[2]


def _require_inside(splits: Mapping[str, Any], whole: list[str]) -> None:
    outside = next((path for path in splits if not _is_inside(path, whole)), None)
    if outside is not None:
        said = f"the module {outside!r} is split over devices and used in several stages"
        raise ExportError(said, remedy="place with --tensor-parallel 1, or keep it --together")


def _partial_gradients(graph: Graph, sharding: Sharding) -> list[str]:
    """Whole weights that meet values which are split: every device has a part of their gradients."""
    found: dict[str, None] = {}
    for op in np.flatnonzero(~graph.ops.backward & (sharding.share < 1)).tolist():
        if sharding.style_of(op) in ("follows", "heads", "tokens"):
            whole = [graph.weights.name[w] for w in graph.weights_of(op).tolist() if sharding.weight_split[w] == WHOLE]
            found |= dict.fromkeys(name for name in whole if "." in name or not graph.ops.scope[op])
    return list(found)


def _recomputed_modules(problem: Problem, placement: Placement, total: Mapping[str, int]) -> list[list[str]]:
    """By stage, the outermost modules of each unit that recomputes."""
    graph, ways = problem.graph, problem.require_ways()
    stage, way = np.asarray(placement.stage), np.asarray(placement.way)
    found: list[list[str]] = [[] for _ in placement.stages]
    for unit in np.flatnonzero(ways.recompute[way]).tolist():
        ops = ways.unit == unit
        found[int(stage[np.argmax(ops)])] += whole_modules(graph, ops, total)
    return found

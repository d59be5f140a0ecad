"""cut(): a placement → pieces, and each piece → a sub-model of its own. Here the judge and the model file meet."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import onnx

from placewise.errors import InputError
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Timeline
from placewise.readers.apart import read_onnx_apart
from placewise.readers.onnx.model import load_with_weights
from placewise.readers.onnx.submodels import ANYWHERE, Submodel, split_model, value_types
from placewise.simulate import judge_placement
from placewise.transform.piece_merging import merge_pieces
from placewise.transform.pieces import Pieces, build_pieces, cut_by_changes, cut_in_order, group_kernels, order_by_time

How = Literal["operator", "calls", "few"]
"""How a placement is cut: as `operator` execution has it (`cut_in_order`), into the calls of the placement, or into as
few pieces as do not wait for each other in a circle."""


def cut(
    problem: Problem, placement: Placement, how: str = "", *, hand_over: float = 0.0, overhead: float = 0.0
) -> Pieces:
    """The pieces of a placement.

    Unless `how` says it, latency is cut as its execution has it, and throughput into few. Pieces of `operator`
    execution are joined again where the makespan holds with `hand_over` seconds from device to device and `overhead`
    per piece; what is to stay together as one kernel is not parted. Raises InputError for an unknown way, PlanError for
    calls that wait for each other in a circle.
    """
    objective, graph, device = problem.objective, problem.graph, placement.device
    usual = "operator" if objective.op_by_op else {"subgraph": "calls", "sequential": "few"}[objective.execution]
    how = how or ("few" if objective.kind == "throughput" else usual)
    if how not in get_args(How):
        raise InputError(f"there is no method {how!r} to cut pieces", remedy=f"choose from {', '.join(get_args(How))}")
    if how == "calls" and placement.call is not None:
        return build_pieces(graph, device, placement.call)
    if how == "operator":
        order, kernel = group_kernels(graph, device, order_by_time(_timeline(problem, placement)), _together(problem))
        pieces = build_pieces(graph, device, cut_in_order(graph, device, order, kernel), order)
        return merge_pieces(problem, pieces, hand_over=hand_over, overhead=overhead)
    return merge_pieces(problem, build_pieces(graph, device, cut_by_changes(graph, device)), few=True)


def sub_models(graph: Graph, pieces: Pieces, *, outside: bool = False) -> tuple[list[Submodel], tuple[str, ...]]:
    """The sub-model of every piece, empty where all its ops are constants, and notes. Raises InputError and its kin.

    The model is the ONNX file that the graph's source names, with its weights, and random ones where it has none; with
    `outside`, weights that lie in other files stay there.
    """
    raw, model, notes = original(graph, outside=outside)
    return split_model(model, owners(graph, pieces, raw), value_types(raw)), notes


def original(graph: Graph, *, outside: bool = False) -> tuple[Graph, onnx.ModelProto, tuple[str, ...]]:
    """The raw view of the ONNX file that a graph was read from, the model in it, and notes. Raises as `sub_models`.

    The last one is kept, since many placements of one model are cut one after the other: nobody may change it.
    """
    source = graph.source
    if source is None or source.format != "onnx" or graph.ops.backward.any():
        what = "a training graph" if graph.ops.backward.any() else "this model"
        raise InputError(f"{what} is not an ONNX file that can be cut", remedy="give an ONNX model for inference")
    path, dims = Path(source.path), tuple(sorted(source.options.get("dims", {}).items()))
    try:
        changed = path.stat().st_mtime_ns
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=source.path, remedy="give its path") from None
    return _read(path, changed, source.sha256, dims, outside)


@lru_cache(maxsize=1)
def _read(
    path: Path, changed: int, sha256: str, dims: tuple[tuple[str, int], ...], outside: bool
) -> tuple[Graph, onnx.ModelProto, tuple[str, ...]]:
    """The raw view, the model and notes of a file as it was when last `changed` (nanoseconds).

    The process with limits reads it first: of what native code does with a file, only parsing and inlining happen here,
    and those have succeeded there.
    """
    raw = read_onnx_apart(path, dims=dict(dims)).graph
    if raw.source is None or raw.source.sha256 != sha256:
        raise InputError("the file has changed since the plan was made", where=str(path), remedy="place it again")
    return raw, *load_with_weights(path, dict(dims), keep_external=outside)


def owners(graph: Graph, pieces: Pieces, raw: Graph) -> list[int]:
    """The piece of each node of the file, which the raw view counts; constants and what folding removed go anywhere."""
    owner = [ANYWHERE] * raw.n_ops
    for op in range(graph.n_ops):
        owner[graph.ops.origin[op][0]] = int(pieces.piece[op])
    for op in np.flatnonzero(raw.ops.kind.equals("Constant")).tolist():
        if not any(raw.tensors.output[tensor] for tensor in raw.outputs_of(op)):
            owner[raw.ops.origin[op][0]] = ANYWHERE
    return owner


def _together(problem: Problem) -> list[list[int]]:
    """The sets of ops that share a device, by number."""
    if not problem.constraints.together:
        return []
    index = {name: op for op, name in enumerate(problem.graph.ops.name)}
    return [[index[name] for name in names] for names in problem.constraints.together]


def _timeline(problem: Problem, placement: Placement) -> Timeline:
    """What runs when in `operator` execution, as the judge has it."""
    operator = problem.with_(objective=replace(problem.objective, kind="latency", execution="operator"))
    timeline = judge_placement(operator, placement).timeline
    if timeline is None or not np.isfinite(timeline.start).all():
        raise InputError("some op cannot run where the placement puts it", remedy="judge the placement first")
    return timeline

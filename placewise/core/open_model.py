"""open_model(): whatever a user has → a Reading. Here readers, the zoo and transforms meet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewise.core.options import NO_WISHES, Wishes
from placewise.errors import InputError
from placewise.files.format import format_name
from placewise.files.graph_file import load_graph
from placewise.files.problem_file import load_problem
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.readers import Asked, read
from placewise.readers.base import Reading
from placewise.readers.huggingface import read_huggingface
from placewise.readers.torch.live import read_live
from placewise.transform.fold import fold
from placewise.transform.training import OPTIMIZERS, STEP, to_training
from placewise.zoo.registry import generate

Model = Any
"""A path, "zoo:NAME", "hf:NAME", a Graph, Problem or Reading, or a PyTorch module or exported program."""

VIEWS = ("folded", "raw")
GRAPHS = ("inference", "training")
ZOO, PRESET = "zoo:", "hf:"


def open_model(model: Model, wishes: Wishes = NO_WISHES, inputs: Any = None) -> Reading:
    """The graph of a model in the wished view, or the whole problem where the file holds one.

    A wish for a training graph adds a backward pass and an optimizer to a graph that has none. `inputs` are the
    example arguments of a PyTorch module: a tuple, or a mapping by name. Raises InputError and its kin.
    """
    _check(wishes)
    reading = _opened(model, wishes, inputs)
    has_backward = bool(reading.graph.ops.backward.any())
    given = reading.problem is not None or reading.op_seconds is not None
    if wishes.graph == "training" and not has_backward and not given:
        return _trained(reading, wishes)
    found = "training" if has_backward else "inference"
    if wishes.graph not in (None, found):
        where = "" if isinstance(model, (Graph, Problem)) else str(model)
        remedy = f"leave out --graph {wishes.graph}"
        raise InputError(f"the only graph in it is for {found}", where=where, remedy=remedy)
    if wishes.optimizer is not None or wishes.frozen:
        raise InputError("this training graph is made already", remedy="leave out --optimizer and --freeze")
    return reading


def replayed(wishes: Wishes, source: Any) -> Wishes:
    """The wishes, with what a plan's source says of how its model was opened where the user says nothing."""
    options: Mapping[str, Any] = source.options
    made = next((step for step in source.transforms if step.startswith(STEP)), "")
    return replace(
        wishes,
        dims={**options.get("dims", {}), **wishes.dims},
        view=wishes.view or source.view,
        graph=wishes.graph or ("training" if made else options.get("graph")),
        dtype=wishes.dtype or options.get("dtype"),
        optimizer=wishes.optimizer or made.removeprefix(STEP) or None,
        frozen=wishes.frozen or options.get("frozen", ()),
    )


def name_of(model: Model) -> str:
    """What to call a model in messages."""
    return str(model) if isinstance(model, (str, os.PathLike)) else f"this {type(model).__name__}"


def _check(wishes: Wishes) -> None:
    for what, value, known in (
        ("view", wishes.view, VIEWS), ("graph", wishes.graph, GRAPHS), ("optimizer", wishes.optimizer, OPTIMIZERS),
    ):  # fmt: skip
        if value not in (None, *known):
            raise InputError(f"there is no {what} {value!r}", remedy=f"choose {' or '.join(known)}")
    if (wishes.optimizer is not None or wishes.frozen) and wishes.graph != "training":
        what = "what is frozen" if wishes.optimizer is None else "an optimizer"
        raise InputError(f"{what} belongs to a training graph", remedy="add --graph training")


def _opened(model: Model, wishes: Wishes, inputs: Any) -> Reading:
    if isinstance(model, Reading):
        return model
    if isinstance(model, Problem):
        return Reading(model.graph, model, model.warnings)
    if isinstance(model, Graph):
        return Reading(model)
    if isinstance(model, (str, os.PathLike)) and isinstance(os.fspath(model), str):
        return _from_path(os.fspath(model), wishes)
    reading = read_live(model, inputs, dims=wishes.dims)
    if reading is None:
        remedy = "give the path of a file, 'zoo:NAME', 'hf:NAME', a Graph, a Problem or a PyTorch module"
        raise InputError(f"a {type(model).__name__} is no model", remedy=remedy)
    return _in_view(reading, wishes)


def _from_path(model: str, wishes: Wishes) -> Reading:
    training = wishes.graph == "training"
    if model.startswith(ZOO):
        graph = generate(model.removeprefix(ZOO), wishes.dims, wishes.dtype or "float32", training=training)
        return _in_view(Reading(graph), wishes)
    if model.startswith(PRESET):
        return _in_view(read_huggingface(model, dims=wishes.dims, dtype=wishes.dtype, training=training), wishes)
    ours = format_name(Path(model))
    if ours == "placewise-problem":
        problem = load_problem(model)
        return Reading(problem.graph, problem, problem.warnings)
    if ours == "placewise-graph":
        return Reading(load_graph(model))
    asked = Asked(wishes.dims, wishes.objective or "throughput", wishes.graph or "inference", wishes.dtype)
    reading = read(Path(model), asked)
    return reading if reading.problem is not None or reading.op_seconds is not None else _in_view(reading, wishes)


def _in_view(reading: Reading, wishes: Wishes) -> Reading:
    return reading if wishes.view == "raw" else replace(reading, graph=fold(reading.graph))


def _trained(reading: Reading, wishes: Wishes) -> Reading:
    if wishes.view == "raw":
        raise InputError("a training graph is made of the folded view", remedy="leave out --view raw")
    graph = to_training(reading.graph, optimizer=wishes.optimizer or "adam", frozen=wishes.frozen)
    return replace(reading, graph=graph)

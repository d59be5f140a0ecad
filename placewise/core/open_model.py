"""open_model(): whatever a user has → an ImportedModel. Here readers, the zoo and transforms meet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from placewise.core.options import NO_OPTIONS, ProblemOptions
from placewise.core.precision import cast_graph, note_precision, quantize_graph, recorded_precision, replay_precision
from placewise.core.traced_models import read_traced
from placewise.errors import InputError
from placewise.files.columns import format_name
from placewise.files.graph_file import load_graph
from placewise.files.problem_file import load_problem
from placewise.model.graph import Graph
from placewise.model.problem import Problem
from placewise.readers.base import ImportedModel
from placewise.readers.formats import ReadOptions, detect_format, read_model
from placewise.readers.torch.module import read_live
from placewise.transform.fold import fold
from placewise.transform.precision import PRECISIONS
from placewise.transform.training import OPTIMIZERS, planned_optimizer, to_training
from placewise.zoo.registry import generate

Model = Any
"""A path, "zoo:NAME", "hf:NAME", a Graph, Problem or ImportedModel, or a PyTorch module or exported program."""

VIEWS = ("folded", "raw")
GRAPHS = ("inference", "training")
ZOO, PRESET = "zoo:", "hf:"


def open_model(model: Model, options: ProblemOptions = NO_OPTIONS, inputs: Any = None) -> ImportedModel:
    """The graph of a model in the wished view, or the whole problem where the file holds one.

    A wish for a training graph adds a backward pass and an optimizer to a graph that has none. `inputs` are the
    example arguments of a PyTorch module: a tuple, or a mapping by name. Raises InputError and its kin.
    """
    _check(options)
    reading = _opened(model, options, inputs)
    has_backward = bool(reading.graph.ops.backward.any())
    has_costs = reading.problem is not None or reading.op_seconds is not None
    if options.graph == "training" and not has_backward and not has_costs:
        return _trained(reading, options)
    kind = "training" if has_backward else "inference"
    if options.graph not in (None, kind):
        where = "" if isinstance(model, (Graph, Problem)) else str(model)
        remedy = f"leave out --graph {options.graph}"
        raise InputError(f"the only graph in it is for {kind}", where=where, remedy=remedy)
    source = reading.graph.source
    optimizer, frozen = ("", ()) if source is None else (planned_optimizer(source), source.options.get("frozen", ()))
    if options.optimizer not in (None, optimizer or None) or (
        options.freeze and tuple(options.freeze) != tuple(frozen)
    ):
        raise InputError("this is a training graph already", remedy="leave out --optimizer and --freeze")
    return reading


def replayed(options: ProblemOptions, source: Any) -> ProblemOptions:
    """The options, with what a plan's source says of how its model was opened where the user says nothing."""
    recorded: Mapping[str, Any] = source.options
    optimizer = planned_optimizer(source)
    return replace(
        options,
        dims={**recorded.get("dims", {}), **options.dims},
        view=options.view or source.view,
        graph=options.graph or ("training" if optimizer else recorded.get("graph")),
        precision=replay_precision(options, recorded),
        cache_type=options.cache_type or recorded.get("cache_type"),
        tf32=recorded.get("tf32") if options.tf32 is None and options.precision is None else options.tf32,
        optimizer=options.optimizer or optimizer or None,
        freeze=options.freeze or recorded.get("frozen", ()),
    )


def name_of(model: Model) -> str:
    """What to call a model in messages."""
    return str(model) if isinstance(model, (str, os.PathLike)) else f"this {type(model).__name__}"


def _check(options: ProblemOptions) -> None:
    for what, value, known in (
        ("view", options.view, VIEWS), ("graph", options.graph, GRAPHS), ("optimizer", options.optimizer, OPTIMIZERS),
    ):  # fmt: skip
        if value not in (None, *known):
            raise InputError(f"there is no {what} {value!r}", remedy=f"choose {' or '.join(known)}")
    if (options.optimizer is not None or options.freeze) and options.graph != "training":
        what = "what is frozen" if options.optimizer is None else "an optimizer"
        raise InputError(f"{what} belongs to a training graph", remedy="add --graph training")


def _opened(model: Model, options: ProblemOptions, inputs: Any) -> ImportedModel:
    if inputs is not None and isinstance(model, (ImportedModel, Problem, Graph, str, os.PathLike)):
        raise InputError("example inputs belong to a PyTorch module", remedy="leave out example_inputs")
    if isinstance(model, ImportedModel):
        return _as_given(model, options)
    if isinstance(model, Problem):
        return _as_given(ImportedModel(model.graph, model, model.warnings), options)
    if isinstance(model, Graph):
        return _as_given(ImportedModel(model), options)
    if isinstance(model, (str, os.PathLike)) and isinstance(os.fspath(model), str):
        return _from_path(os.fspath(model), options)
    reading = read_live(model, inputs, dims=options.dims)
    if reading is None:
        remedy = "give the path of a file, 'zoo:NAME', 'hf:NAME', a Graph, a Problem or a PyTorch module"
        raise InputError(f"an object of type {type(model).__name__} is not a model", remedy=remedy)
    return _in_view(reading, options)


def _from_path(model: str, options: ProblemOptions) -> ImportedModel:
    training = options.graph == "training"
    floats = PRECISIONS[options.precision].floats if options.precision else None
    if model.startswith(ZOO):
        _check_for_gguf(model, options)
        graph = generate(model.removeprefix(ZOO), options.dims, floats or "float32", training=training)
        return _in_view(ImportedModel(graph), options, is_cast=True)
    ours = "" if model.startswith(PRESET) else format_name(Path(model))
    if ours == "placewise-problem":
        problem = load_problem(model)
        return _as_given(ImportedModel(problem.graph, problem, problem.warnings), options)
    if ours == "placewise-graph":
        return _as_given(ImportedModel(load_graph(model)), options)
    if model.startswith(PRESET) or detect_format(Path(model)) == "huggingface":
        _check_for_gguf(model, options)
        keep = options.cache is not False
        traced = read_traced(model, dims=options.dims, dtype=floats, training=training, use_cache=keep)
        return _in_view(traced, options, is_cast=True)
    _check_for_gguf(model, options)
    read_options = ReadOptions(
        options.dims,
        options.objective or "throughput",
        options.graph or "inference",
        floats,
        options.cache_type,
    )
    reading = read_model(Path(model), read_options)
    if reading.problem is not None or reading.op_seconds is not None:
        return _as_given(reading, options)
    return _in_view(reading, options)


def _check_for_gguf(model: str, options: ProblemOptions) -> None:
    """Raise InputError for a type of the KV cache where the format has none, and a precision where it has its own."""
    is_gguf = not model.startswith((ZOO, PRESET)) and detect_format(Path(model)) == "gguf"
    if options.cache_type and not is_gguf:
        raise InputError("only GGUF models take a type of the KV cache", where=model, remedy="leave out --cache-type")
    if options.precision and is_gguf:
        remedy = f"leave out --precision {options.precision}; llama-quantize writes another file"
        raise InputError("a GGUF file has the types of its weights", where=model, remedy=remedy)


def _as_given(reading: ImportedModel, options: ProblemOptions) -> ImportedModel:
    """A graph or a problem that is read already. Raises InputError for options of its reading that differ."""
    source = reading.graph.source
    recorded: Mapping[str, Any] = {} if source is None else source.options
    where = "" if source is None else source.path
    is_whole = reading.problem is not None or reading.op_seconds is not None
    fixed = "its costs are given" if is_whole else "this graph is read already"
    sizes = recorded.get("dims", {})
    for name, size in options.dims.items():
        if sizes.get(name) != size:
            raise InputError(f"{fixed}, with its sizes", where=where, remedy=f"leave out --dim {name}={size}")
    view = options.view or (None if source is None else source.view)
    if source is not None and view != source.view and (is_whole or view == "raw"):
        raise InputError(f"{fixed}, in the {source.view} view", where=where, remedy=f"leave out --view {view}")
    if not is_whole:
        return _in_view(reading, replace(options, view=options.view or "raw"))
    if options.precision not in (None, recorded_precision(recorded)):
        raise InputError(f"{fixed}, in one precision", where=where, remedy=f"leave out --precision {options.precision}")
    if options.tf32 not in (None, recorded.get("tf32")):
        flag = "--tf32" if options.tf32 else "--no-tf32"
        raise InputError(f"{fixed}, in one precision", where=where, remedy=f"leave out {flag}")
    return reading


def _in_view(reading: ImportedModel, options: ProblemOptions, *, is_cast: bool = False) -> ImportedModel:
    """The model in the view and the precision of the options; `is_cast` if its floats are of that precision already."""
    graph = cast_graph(reading.graph, options, is_cast=is_cast)
    graph = quantize_graph(graph if options.view == "raw" else fold(graph), options)
    return replace(reading, graph=note_precision(graph, options))


def _trained(reading: ImportedModel, options: ProblemOptions) -> ImportedModel:
    if options.view == "raw":
        raise InputError("a training graph is made from the folded view", remedy="leave out --view raw")
    graph = to_training(reading.graph, optimizer=options.optimizer or "adam", frozen=options.freeze)
    return replace(reading, graph=graph)

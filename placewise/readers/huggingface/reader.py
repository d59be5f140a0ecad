"""The steps from a configuration to a reading."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from placewise.errors import InputError, ModelFileError
from placewise.model.graph import Graph, Source
from placewise.readers.base import Reading
from placewise.readers.huggingface.dims import Dims, dims_of, in_use
from placewise.readers.huggingface.instance import Instance, instance_of
from placewise.readers.huggingface.phases import joined, single
from placewise.readers.huggingface.repeats import Repeats
from placewise.readers.huggingface.runs import runs_of
from placewise.readers.huggingface.settings import Settings, read_settings
from placewise.readers.huggingface.tracing import graph_of_run

_TEXT = 512
"""Tokens that an encoder reads unless the user says otherwise."""


def read(source: str | Path, dims: Mapping[str, int], dtype: str | None, *, once: bool = True) -> Reading:
    """As `read_huggingface`; without `once` every layer is traced by itself, equal or not."""
    settings = read_settings(source)
    try:
        instance = instance_of(settings.values, dtype)
        names = _names(instance)
        run = dims_of(dims, names, _defaults(instance))
        options = {"dims": in_use(run, names), "dtype": instance.dtype}
        made = Source(settings.path, settings.sha256, "huggingface", options, view="raw")
        graph = _graph(instance, run, made, once)
    except InputError as error:
        raise error.at(settings.path) from None
    return Reading(graph, warnings=tuple(_warnings(settings, instance, run, graph)))


def _graph(instance: Instance, dims: Dims, source: Source, once: bool) -> Graph:
    repeats = Repeats()
    if once:
        repeats.watch(instance.module)
    apart = dims.experts_split > 0
    try:
        runs = runs_of(instance, dims)
    except (RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelFileError(f"its inputs cannot be made ({said[:200]})", remedy="check its values") from None
    graphs = [graph_of_run(instance, run, repeats, apart=apart) for run in runs]
    if instance.task == "encoder":
        return single(graphs[0], source)
    second = graphs[1] if len(graphs) > 1 else None
    return joined(graphs[0], second, repeats=dims.tokens, sequences=dims.sequences, source=source)


def _names(instance: Instance) -> dict[str, str]:
    """The fields of `Dims` that matter for a model, and what the user calls them."""
    reads_text = instance.module.main_input_name == "input_ids"
    if instance.task == "encoder":
        return {"batch": "batch", **({"prompt": "length"} if reads_text else {})}
    names = ["batch", *(["prompt"] if reads_text else []), "tokens", "length", "sequences", "experts_split"]
    return {name: name for name in names}


def _defaults(instance: Instance) -> Dims:
    if instance.task != "encoder":
        return Dims()
    most = getattr(instance.config, "max_position_embeddings", None)
    return Dims(prompt=min(_TEXT, most) if isinstance(most, int) and most > 0 else _TEXT, tokens=0)


def _warnings(settings: Settings, instance: Instance, dims: Dims, graph: Graph) -> list[str]:
    notes = []
    if any(kind in ("Experts", "Dispatch") for kind in graph.ops.kind.values):
        notes.append(
            "experts are priced under uniform routing: every expert is as likely as another, and a batch reads the "
            "weights of as many as are expected to be used"
        )
    if "quantization_config" in settings.values:
        notes.append(f"its quantization is left out: weights count as {instance.dtype}")
    most = getattr(instance.config, "max_position_embeddings", None)
    needed = dims.prompt + dims.tokens
    if instance.task == "decoder" and isinstance(most, int) and 0 < most < needed:
        notes.append(f"{needed} positions are more than the {most} that the model was made for")
    return notes

"""The steps from a configuration to an imported model."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.cache_utils import DynamicCache
from transformers.models.auto import modeling_auto

from placewise._util.llama_defaults import UBATCH
from placewise.errors import InputError, ModelFileError
from placewise.model.graph import Graph, Source
from placewise.readers.base import ImportedModel
from placewise.readers.huggingface.cache import is_recurrent, unsupported_state_error
from placewise.readers.huggingface.instance import DTYPES, Instance, build_instance
from placewise.readers.huggingface.interfaces import use_operators
from placewise.readers.huggingface.library_errors import EXPORT, describe_library_error
from placewise.readers.huggingface.llama_header import find_defaults
from placewise.readers.huggingface.operators import CACHE_UPDATE
from placewise.readers.huggingface.packed_weights import pack_weights
from placewise.readers.huggingface.phases import build_single_phase, join_phases
from placewise.readers.huggingface.quantization import read_quantization
from placewise.readers.huggingface.repeats import RepeatTracker
from placewise.readers.huggingface.runs import Run, build_runs
from placewise.readers.huggingface.settings import Settings, asks_for_code, read_settings
from placewise.readers.huggingface.tracing import trace_run
from placewise.readers.run_dims import RunDims, list_used_dims, parse_dims, replace_context

_LENGTHS = {"input_ids": "length", "pixel_values": "image", "input_values": "samples"}
"""Name of the size of a model that runs once: tokens, pixels per side, samples of sound."""
_TEXT = 512
_USUAL = {"input_ids": _TEXT, "pixel_values": 224, "input_values": 160_000}
"""Defaults of that size unless the user or the configuration sets it (ten seconds at 16 kHz)."""


def read(
    source: str | Path, dims: Mapping[str, int], dtype: str | None, *, training: bool = False, once: bool = True
) -> ImportedModel:
    """As `read_huggingface`; without `once` every layer is traced, even if equal layers repeat."""
    settings = read_settings(source)
    try:
        instance = build_instance(settings.values, dtype)
        check_windows(instance.config)
        check_states(instance)
        if training:  # whatever the model, a training step reads a text once and predicts every token
            instance = replace(instance, task="encoder")
        names = _name_dimensions(instance)
        defaults = _default_dims(instance)
        sizes = dims if instance.task == "translator" else replace_context(dims, names)
        run = parse_dims(sizes, names, defaults)
        quantization, method = read_quantization(settings.values, DTYPES[instance.dtype].itemsize)
        if training:  # packed weights are not trained
            quantization = None
        packed = {"quantization": method} if quantization else {}
        left = find_defaults(settings.values, instance.config) if instance.task == "decoder" else {}
        options = {"dims": list_used_dims(run, names), "dtype": instance.dtype, **packed}
        options |= {"defaults": left} if left else {}
        graph_source = Source(settings.path, settings.sha256, "huggingface", options, view="raw")
        graph = _trace_graph(instance, run, graph_source, once)
        notes = _describe_warnings(settings, instance, run, graph)
        if quantization is not None:
            graph, count = pack_weights(graph, instance.module, quantization)
            notes.append(f"{count or 'no'} weights are quantized as its configuration says ({method})")
            if quantization.sparsity:
                notes.append(f"the file is smaller than that: its sparsity ({quantization.sparsity}) is not counted")
        elif method:
            notes.append(
                f"its quantization ({method}) is {'not trained' if training else 'not known'}: weights count as "
                f"{instance.dtype} without --precision int8 or int4"
            )
    except InputError as error:
        raise error.at(settings.path) from None
    modules = {path: type(part).__name__ for path, part in instance.module.named_modules()}
    return ImportedModel(graph, warnings=tuple(notes), modules=modules)


def _trace_graph(instance: Instance, dims: RunDims, source: Source, once: bool) -> Graph:
    repeats = RepeatTracker()
    use_operators(instance.module)
    if once:
        repeats.watch(instance.module)
    apart = dims.experts_split > 0
    try:
        runs = build_runs(instance, dims)
    except (RuntimeError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise describe_library_error("its inputs cannot be built", error, EXPORT) from None
    try:
        graphs = [trace_run(instance, run, repeats, apart=apart) for run in runs]
    except ModelFileError as error:
        graphs = _trace_with_masks(instance, runs, repeats, apart, error)
    if instance.task == "encoder":
        return build_single_phase(graphs[0], source)
    second = graphs[1] if len(graphs) > 1 else None
    if second is not None and CACHE_UPDATE not in second.ops.kind.values:
        raise ModelFileError(
            "it keeps no keys and values between tokens, so the cost of a generated token is unknown",
            remedy="read the prompt alone with tokens=0",
        )
    return join_phases(graphs[0], second, repeats=dims.tokens, sequences=dims.sequences, source=source)


def _trace_with_masks(
    instance: Instance, runs: list[Run], repeats: RepeatTracker, apart: bool, error: ModelFileError
) -> list[Graph]:
    """The graphs of a model that needs masks; if masks do not help, raise the first error."""
    use_operators(instance.module, masks=True)
    try:
        return [trace_run(instance, run, repeats, apart=apart) for run in runs]
    except ModelFileError:
        raise error from None


def _name_dimensions(instance: Instance) -> dict[str, str]:
    """The fields of `RunDims` that a model uses, and the names that users give them."""
    length = _LENGTHS.get(str(instance.module.main_input_name))
    if instance.task == "encoder":
        if length == "image" and hasattr(instance.config, "image_size"):
            length = None
        return {"batch": "batch", **({"prompt": length} if length else {})}
    names = ("tokens", "length", "sequences", "experts_split", UBATCH)
    return {name: name for name in ("batch", *(["prompt"] if length == "length" else []), *names)}


def _default_dims(instance: Instance) -> RunDims:
    if instance.task != "encoder":
        return RunDims()
    name = str(instance.module.main_input_name)
    most = getattr(instance.config, "max_position_embeddings", None) if name == "input_ids" else None
    usual = _USUAL.get(name, _TEXT)
    return RunDims(prompt=min(usual, most) if isinstance(most, int) and most > 0 else usual, tokens=0)


def _describe_warnings(settings: Settings, instance: Instance, dims: RunDims, graph: Graph) -> list[str]:
    notes = []
    if any(kind in ("Experts", "Dispatch") for kind in graph.ops.kind.values):
        notes.append(
            "costs of experts assume uniform routing: all experts are equally likely, and a batch reads the "
            "weights of the expected number of experts in use"
        )
    if dims.experts_split and "Expert" in graph.ops.kind.values:
        notes.append(
            "every expert is charged its expected share of a run: latency is underestimated if few tokens run at once"
        )
    if asks_for_code(settings.values):
        notes.append("its code (auto_map) is not run: transformers' own model of this type is read instead")
    notes += _describe_unused_parameters(instance, graph)
    most = getattr(instance.config, "max_position_embeddings", None)
    needed = dims.capacity
    if instance.task == "decoder" and isinstance(most, int) and 0 < most < needed:
        notes.append(f"{needed} positions exceed the model's maximum of {most}")
    return notes


def _describe_unused_parameters(instance: Instance, graph: Graph) -> list[str]:
    """A note about parts that take no part in the run, if they exceed one percent of the parameters."""
    used = {graph.weights.name[weight] for weight in set(graph.weight_edges.value.tolist())}
    named = dict(instance.module.named_parameters(remove_duplicate=False))
    read = {id(value) for name, value in named.items() if name in used or _name_first_expert(name) in used}
    left = {name: value.numel() for name, value in named.items() if id(value) not in read}
    total = sum(value.numel() for value in instance.module.parameters())
    if 100 * sum(left.values()) <= total:
        return []
    parts = sorted({".".join(name.split(".")[:2]) for name in left})
    shown = ", ".join(parts[:3]) + (", …" if len(parts) > 3 else "")
    share = sum(left.values()) / total
    return [f"{share:.0%} of the parameters ({shown}) take no part in this run and are omitted"]


def _name_first_expert(name: str) -> str:
    """The name of a mixture's parameter in its first expert, if experts are separate ops."""
    path, _, last = name.rpartition(".")
    return f"{path}.0.{last}"


_STATES = frozenset(("state", "cache_params"))
"""Names of the state in recurrent models without a cache of keys and values (RWKV, xLSTM)."""


def check_states(instance: Instance) -> None:
    """Raise ModelFileError for a language model with recurrent layers.

    Also if it generates nothing: the trace would unroll its scan token by token.
    """
    own = _STATES & frozenset(inspect.signature(instance.module.forward).parameters)
    if own:
        raise unsupported_state_error(min(own))
    if instance.task != "encoder" or type(instance.config) in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        for layer in filter(is_recurrent, _layers(instance.config)):
            raise unsupported_state_error(type(layer).__name__)


def _layers(config: Any) -> Sequence[Any]:
    """The layers of the cache that transformers would make: none if it cannot."""
    try:
        return DynamicCache(config=config).layers
    except Exception:
        return ()


def check_windows(config: Any) -> None:
    """Raise ModelFileError for a sliding window of less than one position.

    A configuration whose class has no windows may write 0 for none.
    """
    for part in _parts(config):
        window = getattr(part, "sliding_window", None)
        unused = window == 0 and not hasattr(type(part), "sliding_window")
        kinds = getattr(part, "layer_types", None)
        slides = kinds is None or any("sliding" in str(kind) for kind in kinds)
        if isinstance(window, int) and window < 1 and slides and not unused:
            raise ModelFileError(
                f"its sliding_window is {window}, which excludes the token itself", remedy="give 1 or more, or null"
            )


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield from _parts(value)

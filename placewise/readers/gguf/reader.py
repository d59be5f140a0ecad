"""A GGUF file → the graph of its model: prompt and generated tokens in one placement, as for Hugging Face models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from placewise._util.llama_defaults import UBATCH
from placewise._util.text import shortened
from placewise.errors import InputError, ModelFileError
from placewise.model.graph import Graph, Source
from placewise.model.tables import Phase
from placewise.readers.base import NO_DIMS, ImportedModel
from placewise.readers.gguf.header import NO_LAYER, Header, Tensor, read_header
from placewise.readers.gguf.layers import Layer, add_layer, require_size, split_layers
from placewise.readers.gguf.pass_builder import LOOKUP, Part, Pass, PassBuilder
from placewise.readers.gguf.shape import RECURRENT, ModelShape, read_shape
from placewise.readers.gguf.types import CACHE_TYPES, REPACKED, find_type
from placewise.readers.run_dims import RunDims, list_used_dims, parse_dims, replace_context

NAMES = {name: name for name in ("batch", "prompt", "tokens", "length", "sequences", UBATCH)}
"""Dimensions of a run; ``context`` is another name of ``length``."""
KNOWN = frozenset((
    "apertus", "arcee", "baichuan", "bloom", "chatglm", "codeshell", "command-r", "cohere2", "dbrx", "deepseek",
    "deepseek2", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "exaone4", "falcon", "gemma", "gemma2", "gemma3",
    "gemma4", "glm4", "glm4moe", "gpt-oss", "gpt2", "gptneox", "granite", "granitemoe", "grok", "hunyuan-dense",
    "hunyuan-moe", "internlm2", "llama", "llama4", "minicpm", "mistral3", "mpt", "nemotron", "olmo", "olmo2",
    "olmoe", "orion", "phi2", "phi3", "phimoe", "plamo", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3",
    "qwen3moe", "qwen3vl", "qwen3vlmoe", "refact", "seed_oss", "smollm3", "stablelm", "starcoder", "starcoder2",
    "xverse",
))  # fmt: skip
"""Architectures of llama.cpp whose layers consist of the parts that are read here."""
WITHOUT_NORM = frozenset({"olmo"})
"""Those of them whose last norm has no weights."""
NOT_CAUSAL = frozenset((
    "bert", "dream", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llada", "llada-moe", "llama-embed",
    "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "rnd1", "t5", "t5encoder", "wavtokenizer-dec",
))  # fmt: skip
"""Encoders, also T5 with its decoder, and diffusion models (src/models of llama.cpp)."""
SAMPLE = "sample"


def read_gguf(path: Path, *, dims: Mapping[str, int] = NO_DIMS, cache_type: str | None = None) -> ImportedModel:
    """Read the model of a GGUF file from its header and its table of tensors; weights are not read.

    The graph has two phases, prefill and decode, whose equal ops share colocation groups; the KV cache is state.
    `dims`: ``batch`` (1), ``prompt`` (512), ``tokens`` (generated: 128; 0 for the prompt alone), ``context`` (positions
    of the cache; default prompt + tokens), ``sequences`` (1), ``ubatch`` (tokens of a micro-batch: 512). `cache_type`:
    one of `CACHE_TYPES` for keys and values, or two with a comma; default f16.

    Raises ModelFileError, naming the file, for a damaged file and for models without attention in each layer.
    """
    header = read_header(path)
    try:
        run = parse_run_dims(dims)
        cache = parse_cache_type(cache_type)
        _require_causal(header)
        shape = read_shape(header)
        _require_cache(shape, cache)
        options = {"dims": list_used_dims(run, NAMES), **({"cache_type": cache_type} if cache_type else {})}
        source = Source(str(path), header.sha256, "gguf", options, view="raw")
        graph, notes = _build_graph(header, shape, run, cache, source)
    except InputError as error:
        raise error.at(str(path)) from None
    except (KeyError, IndexError, ZeroDivisionError, OverflowError) as error:
        raise ModelFileError(f"its tensors do not fit together ({error!r})", where=str(path)) from None
    return ImportedModel(graph, warnings=notes)


def parse_cache_type(text: str | None) -> tuple[str, str]:
    """The types of keys and values. Raises InputError for one that does not exist."""
    names = (text or "f16").split(",")
    wrong = next((name for name in names if name not in CACHE_TYPES), None)
    if wrong is not None or len(names) > 2:
        remedy = f"give one or two (keys, values) of {', '.join(CACHE_TYPES)}"
        raise InputError(f"there is no cache of the type {shortened(text or '', 40)!r}", remedy=remedy)
    return names[0], names[-1]


def _require_cache(shape: ModelShape, cache: tuple[str, str]) -> None:
    """Raise InputError for types that llama.cpp refuses for this model (`llama_init_from_model`)."""
    if shape.latent and cache[0] != cache[1]:
        raise InputError(
            f"the values of latent attention are a part of its keys, and not {cache[1]} beside {cache[0]}",
            remedy=f"give one type, as --cache-type {cache[0]}",
        )
    if not shape.fusible and find_type(cache[1]).block > 1:
        raise InputError(
            f"llama.cpp fuses no attention of this architecture, and reads a cache of {cache[1]} in no other way",
            remedy=f"give values in f16, as --cache-type {cache[0]},f16",
        )
    for what, name, widths in zip(("keys", "values"), cache, (shape.key_widths, shape.value_widths), strict=True):
        block = find_type(name).block
        odd = [width for width in widths if width % block]
        if odd:
            whole = ", ".join(kind for kind in CACHE_TYPES if find_type(kind).block == 1)
            raise InputError(
                f"{what} of {odd[0]} entries per head are no whole blocks of {block}, as a cache of {name} has them",
                remedy=f"choose one of {whole} for them",
            )


def parse_run_dims(dims: Mapping[str, int]) -> RunDims:
    """The dimensions of a run of a GGUF model. Raises ModelFileError for unknown names and sizes out of range."""
    return parse_dims(replace_context(dims, NAMES), NAMES, RunDims())


def _build_graph(
    header: Header, shape: ModelShape, run: RunDims, cache: tuple[str, str], source: Source
) -> tuple[Graph, tuple[str, ...]]:
    layers, tensors = list(split_layers(header.tensors, shape.layers)), {one.name: one for one in header.tensors}
    _require_attention(header, layers)
    _require_ends(header, shape, tensors)
    first = Pass(run.batch, run.prompt, run.prompt, run.capacity, run.sequences, cache, micro_batch=run.ubatch)
    graph = PassBuilder(first)
    prompt = graph.builder.add_tensor(-1, shape=(first.rows,), dtype="int32", name="tokens")
    token = _add_pass(graph, shape, layers, tensors, prompt)
    held = _hold_rest(graph, header, shape.layers)
    phases = [Phase("prefill", 1)]
    if run.tokens:
        visible = min(run.mean_position + 1, run.capacity)
        graph.begin(Pass(run.batch, 1, visible, run.capacity, run.sequences, cache, 1, run.ubatch))
        token = _add_pass(graph, shape, layers, tensors, token)
        phases.append(Phase("decode", run.tokens))
    graph.builder.set_output(token)
    built = graph.builder.build(source, tuple(phases))
    return built, tuple(_list_notes(header, shape, run, graph, held))


def _add_pass(
    graph: PassBuilder, shape: ModelShape, layers: list[Layer], tensors: Mapping[str, Tensor], token: int
) -> int:
    """Add a pass that begins with `token`; return the next token [batch]."""
    now, wide = graph.now, (graph.now.rows, shape.width)
    hidden = graph.op("token_embd", LOOKUP, "token_embd", [token], wide, weights=_part(tensors, "token_embd").values())
    if position := _part(tensors, "position_embd"):
        more = graph.op("position_embd", LOOKUP, "position_embd", [token], wide, weights=position.values())
        hidden = graph.op("position_add", "Add", "position_embd", [hidden, more], wide)
    hidden = graph.norm("token_embd_norm", _part(tensors, "token_embd_norm"), hidden, wide)
    embedded = _embed_per_layer(graph, tensors, token, hidden)
    for layer in layers:
        hidden = add_layer(graph, shape, layer, hidden, embedded)
    hidden = graph.norm("output_norm", _part(tensors, "output_norm"), hidden, wide)
    graph.homes[NO_LAYER] = graph.builder.n_ops
    last = graph.view("last", "Slice", "output_norm", [hidden], (now.batch, shape.width))
    head = _part(tensors, "output") or _share_embedding(_part(tensors, "token_embd"))
    logits = graph.product("output", head, last, now.batch)
    return graph.op(SAMPLE, "ArgMax", SAMPLE, [logits], (now.batch,), attributes={"axis": -1}, dtype="int32")


def _hold_rest(graph: PassBuilder, header: Header, layers: int) -> list[Tensor]:
    """Let ops that cost nothing hold the tensors that no op reads, each in its layer or with the output.

    Layers beyond the last one, which predict further tokens, are not loaded. Returns what is held.
    """
    held = []
    for tensor in header.tensors:
        if tensor.name not in graph.weights and tensor.layer < layers:
            graph.builder.use_weight(graph.weight(tensor), graph.homes[tensor.layer])
            held.append(tensor)
    return held


def _embed_per_layer(graph: PassBuilder, tensors: Mapping[str, Tensor], token: int, hidden: int) -> int:
    """The embeddings [rows, all layers] that every layer has of a token (Gemma 4); −1 where there are none.

    llama.cpp looks them up in host memory, and computes their other half on the first layer's device.
    """
    table, matrix = _part(tensors, "per_layer_token_embd"), _part(tensors, "per_layer_model_proj")
    if not table or not matrix:
        return -1
    scope, rows = "blk.0.per_layer", graph.now.rows
    every = (rows, table["weight"].shape[-1])
    found = graph.op("per_layer_token_embd", LOOKUP, "per_layer_token_embd", [token], every, weights=table.values())
    made = graph.product(f"{scope}_model_proj", matrix, hidden, rows)
    made = graph.norm(f"{scope}_proj_norm", _part(tensors, "per_layer_proj_norm"), made, every)
    return graph.op(f"{scope}_add", "Add", "blk.0", [made, found], every)


def _part(tensors: Mapping[str, Tensor], name: str) -> Part:
    pairs = ((end, tensors.get(f"{name}.{end}")) for end in ("weight", "bias"))
    return {end: tensor for end, tensor in pairs if tensor is not None}


def _share_embedding(embedding: Part) -> Part:
    """The weights of an output that predicts by the input embedding: a copy of their own where they are repacked."""
    weight = embedding["weight"]
    return {**embedding, "weight": replace(weight, name="output.weight")} if weight.type in REPACKED else embedding


def _require_causal(header: Header) -> None:
    """Raise ModelFileError for a model that does not generate."""
    name = header.architecture
    if name in NOT_CAUSAL or header.metadata.get(f"{name}.attention.causal") is False:
        raise ModelFileError(
            f"is of the architecture {shortened(name, 40)!r}, whose tokens attend to later ones: it does not generate "
            "token by token",
            remedy="give a model that generates text",
        )


def _require_attention(header: Header, layers: list[Layer]) -> None:
    """Raise ModelFileError for a model whose layers keep another state than keys and values."""
    for layer in layers:
        recurrent = next((name for name in layer.parts if name.startswith(RECURRENT)), "")
        if recurrent or not layer.parts:
            what = f"has the state of {recurrent!r}" if recurrent else "has no tensors"
            raise ModelFileError(
                f"layer {layer.number} (architecture {shortened(header.architecture, 40)!r}) {what}, and is not known",
                remedy="models with attention in each layer are read",
            )


def _require_ends(header: Header, shape: ModelShape, tensors: Mapping[str, Tensor]) -> None:
    """Raise ModelFileError for an input or an output that is missing, or of other sizes than the layers.

    Unknown architectures may have no last norm, and an output for another vocabulary.
    """
    is_known, needed = header.architecture in KNOWN, ["token_embd.weight"]
    if is_known and header.architecture not in WITHOUT_NORM:
        needed.append("output_norm.weight")
    for name in needed:
        if name not in tensors:
            raise ModelFileError(f"has no {name}", remedy="give a whole language model")
    output = _part(tensors, "output")
    rows = shape.vocabulary if is_known or not output else output["weight"].shape[0]
    require_size("token_embd", _part(tensors, "token_embd"), shape.vocabulary, shape.width)
    require_size("output_norm", _part(tensors, "output_norm"), shape.width)
    require_size("output", output, rows, shape.width)


def _list_notes(
    header: Header, shape: ModelShape, run: RunDims, graph: PassBuilder, held: Sequence[Tensor]
) -> list[str]:
    notes = []
    if header.architecture not in KNOWN:
        name = shortened(header.architecture, 40)
        notes.append(
            f"the architecture {name!r} is not known: weights have the bytes of the file, layers are taken to cache "
            "all positions, and times follow from these bytes"
        )
    if any(name.endswith("_exps.weight") for name in graph.weights):
        notes.append("costs of experts assume uniform routing: all experts are equally likely")
    left, whole = [tensor for tensor in header.tensors if tensor.name not in graph.weights], _sum_bytes(header.tensors)
    for tensors, what in (
        (left, "take no part in generation and are omitted"),
        (held, "are in no part that is known: they take memory and no time"),
    ):
        if 1000 * _sum_bytes(tensors) > whole:
            share, example = _sum_bytes(tensors) / whole, shortened(tensors[0].name, 60)
            notes.append(f"{share:.1%} of the bytes ({example}, …) {what}")
    if 0 < shape.positions < run.capacity:
        notes.append(f"{run.capacity} positions exceed the model's maximum of {shape.positions}")
    return notes


def _sum_bytes(tensors: Sequence[Tensor]) -> int:
    """The bytes of tensors."""
    return sum(tensor.nbytes for tensor in tensors)

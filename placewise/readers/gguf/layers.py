"""The ops of a layer of a transformer, read off its tensors by the names that llama.cpp gives them.

Fused or separate projections, norms before and after, dense and mixed layers, shared experts, latent attention
(DeepSeek) and layers whose two halves run side by side (Falcon, Phi-2, Command R) are told apart by
which tensors exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from placewise.errors import ModelFileError
from placewise.readers.gguf.header import NO_LAYER, Tensor
from placewise.readers.gguf.pass_builder import NEW_GROUP, NO_PART, Part, PassBuilder, cache_bytes
from placewise.readers.gguf.shape import ModelShape, count_cells
from placewise.readers.gguf.types import element_type, find_type

POST_ATTENTION = ("attn_post_norm", "post_attention_norm")
POST_FEED = ("post_ffw_norm", "ffn_post_norm")
EXPERTS = ("ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
MIXED = "experts"
"""The module of the experts of a layer."""

Parts = Mapping[str, Part]
"""The tensors of a layer, by part: ``attn_q`` → weight, bias."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: its number, its scope ``blk.3``, and its parts."""

    number: int
    parts: Parts

    @property
    def scope(self) -> str:
        return f"blk.{self.number}"

    def __contains__(self, name: str) -> bool:
        return name in self.parts


def add_layer(graph: PassBuilder, shape: ModelShape, layer: Layer, hidden: int, embedded: int = -1) -> int:
    """Add a layer; return its result [rows, width]. `embedded` are the tokens' embeddings of all layers, if any."""
    wide = (graph.now.rows, shape.width)
    after_feed = any(name in layer for name in POST_FEED)
    after = next((name for name in POST_ATTENTION if name in layer), "")
    before_feed = "ffn_norm" if "ffn_norm" in layer else ""
    if after and not before_feed and not after_feed:  # it is the norm before the other half, by another name
        after, before_feed = "", after
    beside = not (after or before_feed or after_feed)
    normed = _norm(graph, layer, ("attn_norm",), hidden, wide)
    attended = _attend(graph, shape, layer, normed)
    attended = _norm(graph, layer, (after,), attended, wide)
    if beside:
        other = _norm(graph, layer, ("attn_norm_2",), hidden, wide) if "attn_norm_2" in layer else normed
        fed = _feed(graph, shape, layer, hidden, other)
        fed = graph.op(f"{layer.scope}.halves_add", "Add", layer.scope, [attended, fed], wide)
        middle = hidden
    else:
        middle = graph.op(f"{layer.scope}.attn_add", "Add", layer.scope, [hidden, attended], wide)
        fed = _feed(graph, shape, layer, middle, _norm(graph, layer, (before_feed,), middle, wide))
        fed = _norm(graph, layer, POST_FEED, fed, wide)
    out = graph.op(f"{layer.scope}.ffn_add", "Add", layer.scope, [middle, fed], wide)
    out = _norm(graph, layer, ("layer_output_norm",), out, wide)
    if embedded >= 0 and "inp_gate" in layer:
        out = _add_embedded(graph, layer, embedded, out, wide)
    if "layer_output_scale" in layer:
        scale = layer.parts["layer_output_scale"].values()
        out = graph.op(f"{layer.scope}.layer_output_scale", "Mul", layer.scope, [out], wide, weights=scale)
    return out


def _add_embedded(graph: PassBuilder, layer: Layer, embedded: int, hidden: int, wide: tuple[int, int]) -> int:
    """What a layer makes of its own embedding of every token (Gemma 4), beside its result."""
    scope, parts, rows = layer.scope, layer.parts, graph.now.rows
    own = (rows, parts["inp_gate"]["weight"].shape[0])
    gate = graph.product(f"{scope}.inp_gate", parts["inp_gate"], hidden, rows)
    gate = graph.op(f"{scope}.inp_act", "Gelu", scope, [gate], own)
    mine = graph.view(f"{scope}.inp", "Slice", scope, [embedded], own)
    mixed = graph.op(f"{scope}.inp_mul", "Mul", scope, [gate, mine], own)
    raised = graph.product(f"{scope}.proj", parts["proj"], mixed, rows)
    raised = _norm(graph, layer, ("post_norm",), raised, wide)
    return graph.op(f"{scope}.inp_add", "Add", scope, [hidden, raised], wide)


def _norm(graph: PassBuilder, layer: Layer, names: Sequence[str], hidden: int, shape: tuple[int, ...]) -> int:
    """The first of some norms that the layer has."""
    name = next((name for name in names if name in layer), "")
    return graph.norm(f"{layer.scope}.{name}", layer.parts[name], hidden, shape) if name else hidden


def _attend(graph: PassBuilder, shape: ModelShape, layer: Layer, hidden: int) -> int:
    now, scope, rows = graph.now, f"{layer.scope}.attn", graph.now.rows
    heads, kv_heads = shape.heads[layer.number], shape.kv_heads[layer.number]
    widths = (shape.key_widths[layer.number], shape.value_widths[layer.number])
    if shape.latent:
        kv_heads, widths = 1, (widths[0], shape.latent)
    sizes = (heads * widths[0], kv_heads * widths[0], kv_heads * widths[1])
    window = shape.windows[layer.number]
    if layer.number < shape.cached:
        project = _expand_latent if "attn_kv_b" in layer else _project
        project = _project_latent if shape.latent else project
        query, key, value = project(graph, shape, layer, hidden, sizes)
        query = _rotate(graph, layer, "attn_q", query, (rows, sizes[0]))
        key = _rotate(graph, layer, "attn_k", key, (rows, sizes[1]))
        home = graph.groups
        graph.caches[layer.number] = _fill_cache(graph, shape, layer, (key, value), (kv_heads, *widths))
        keys, values = graph.caches[layer.number]
    else:
        _require_size(layer, "attn_q", sizes[0], shape.width)
        query = graph.product(f"{layer.scope}.attn_q", layer.parts["attn_q"], hidden, rows)
        query = _rotate(graph, layer, "attn_q", query, (rows, sizes[0]))
        home = NEW_GROUP
        keys, values = graph.caches[shape.cached - (2 if window else 1)]
    query = graph.view(f"{layer.scope}.q_heads", "Reshape", scope, [query], (now.batch, heads, now.tokens, widths[0]))
    mixed = graph.op(
        f"{layer.scope}.attention", "Attention", scope, [query, keys, values],
        (now.batch, now.tokens, heads, widths[1]), weights=layer.parts.get("attn_sinks", NO_PART).values(),
        attributes={"window": window, "causal": 1}, group=home,
    )  # fmt: skip
    graph.homes[layer.number] = graph.builder.n_ops
    inner = heads * widths[1]
    mixed = graph.view(f"{layer.scope}.merged", "Reshape", scope, [mixed], (rows, inner))
    if shape.latent:
        value = layer.parts["attn_v_b"]["weight"].shape[1]
        _require_size(layer, "attn_v_b", heads, value, shape.latent)
        inner = heads * value
        mixed = _per_head(graph, layer, "attn_v_b", mixed, inner)
    mixed = _norm(graph, layer, ("attn_sub_norm",), mixed, (rows, inner))
    if "attn_output" not in layer:
        return mixed
    _require_size(layer, "attn_output", shape.width, inner)
    return graph.product(f"{layer.scope}.attn_output", layer.parts["attn_output"], mixed, rows, shape.width)


def _fill_cache(
    graph: PassBuilder, shape: ModelShape, layer: Layer, new: tuple[int, int], sizes: tuple[int, int, int]
) -> tuple[int, int]:
    """Store new keys and values; all that are seen then. `sizes`: heads, and entries of a key and of a value.

    Latent attention stores and reads the keys alone, of which the values are a part.
    """
    now, (heads, *widths), window = graph.now, sizes, shape.windows[layer.number]
    seen = min(now.visible, window) if window else now.visible
    kept = count_cells(now.capacity, window, now.micro_batch)
    stored = widths[:1] if shape.latent else widths
    state = sum(
        cache_bytes(now.batch * now.sequences * kept * heads * width, name)
        for width, name in zip(stored, now.cache, strict=False)
    )
    read = tuple(0.0 if shape.latent and place else find_type(name).bits for place, name in enumerate(now.cache))
    update = graph.add(
        f"{layer.scope}.cache", "CacheUpdate", f"{layer.scope}.attn", new,
        attributes={"visible": seen, "capacity": kept, "bits": read}, state_bytes=state,
    )  # fmt: skip
    keys, values = (
        graph.result(update, f"{layer.scope}.{what}", (now.batch, heads, seen, width), element_type(name), view=True)
        for what, width, name in zip(("keys", "values"), widths, now.cache, strict=True)
    )
    return keys, values


def _project(
    graph: PassBuilder, shape: ModelShape, layer: Layer, hidden: int, sizes: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Queries, keys and values [rows, size], from three matrices or from one."""
    rows, scope = graph.now.rows, layer.scope
    for name, size in zip(("attn_qkv", "attn_q", "attn_k", "attn_v"), (sum(sizes), *sizes), strict=True):
        _require_size(layer, name, size, shape.width)
    if "attn_qkv" in layer:
        fused = graph.product(f"{scope}.attn_qkv", layer.parts["attn_qkv"], hidden, rows)
        query, key, value = (
            graph.view(f"{scope}.{name}", "Slice", f"{scope}.attn", [fused], (rows, size))
            for name, size in zip(("q", "k", "v"), sizes, strict=True)
        )
        return query, key, value
    if "attn_q" not in layer or "attn_k" not in layer:
        raise ModelFileError(
            f"layer {layer.number} has no projections that are known",
            remedy="take a model with attention in each layer",
        )
    query = graph.product(f"{scope}.attn_q", layer.parts["attn_q"], hidden, rows)
    key = graph.product(f"{scope}.attn_k", layer.parts["attn_k"], hidden, rows)
    value = graph.product(f"{scope}.attn_v", layer.parts["attn_v"], hidden, rows) if "attn_v" in layer else key
    return query, key, value


def require_size(name: str, part: Part, *sizes: int) -> None:
    """Raise ModelFileError for a weight of other sizes than those of the metadata and of the tensors beside it."""
    weight = part.get("weight")
    if weight is not None and weight.shape != sizes:
        found, wanted = (" × ".join(map(str, shape)) for shape in (weight.shape, sizes))
        raise ModelFileError(
            f"{name} is {found}, and {wanted} by the other sizes in the file", remedy="convert the model again"
        )


def _require_size(layer: Layer, name: str, *sizes: int) -> None:
    """Raise ModelFileError for a weight of other sizes, if the layer has it. Queries may come with a gate of theirs."""
    part = layer.parts.get(name, NO_PART)
    gated = name == "attn_q" and "weight" in part and part["weight"].shape == (2 * sizes[0], *sizes[1:])
    if not gated:
        require_size(f"{layer.scope}.{name}", part, *sizes)


def _project_query(graph: PassBuilder, layer: Layer, hidden: int, outputs: int, width: int) -> int:
    """Queries [rows, outputs] of latent attention, from one matrix or by way of a smaller width."""
    rows, scope, parts = graph.now.rows, layer.scope, layer.parts
    if "attn_q_a" not in layer:
        _require_size(layer, "attn_q", outputs, width)
        return graph.product(f"{scope}.attn_q", parts["attn_q"], hidden, rows)
    query = graph.product(f"{scope}.attn_q_a", parts["attn_q_a"], hidden, rows)
    inner = parts["attn_q_a"]["weight"].shape[0]
    query = graph.norm(f"{scope}.attn_q_a_norm", parts.get("attn_q_a_norm", NO_PART), query, (rows, inner))
    _require_size(layer, "attn_q_b", outputs, inner)
    return graph.product(f"{scope}.attn_q_b", parts["attn_q_b"], query, rows)


def _compress(graph: PassBuilder, layer: Layer, hidden: int, outputs: int, latent: int, width: int) -> tuple[int, int]:
    """Compressed keys and values [rows, outputs], and their part without positions [rows, latent], normed."""
    rows, scope, parts = graph.now.rows, layer.scope, layer.parts
    _require_size(layer, "attn_kv_a_mqa", outputs, width)
    both = graph.product(f"{scope}.attn_kv_a_mqa", parts["attn_kv_a_mqa"], hidden, rows)
    value = graph.view(f"{scope}.latent", "Slice", f"{scope}.attn", [both], (rows, latent))
    return both, graph.norm(f"{scope}.attn_kv_a_norm", parts.get("attn_kv_a_norm", NO_PART), value, (rows, latent))


def _project_latent(
    graph: PassBuilder, shape: ModelShape, layer: Layer, hidden: int, sizes: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Queries for the latent, and the latent itself as keys and values (DeepSeek-V2, section 2.1, absorbed)."""
    heads, plain = shape.heads[layer.number], layer.parts["attn_k_b"]["weight"].shape[-1]
    _require_size(layer, "attn_k_b", heads, shape.latent, plain)
    query = _project_query(graph, layer, hidden, heads * (plain + shape.rotated), shape.width)
    query = _per_head(graph, layer, "attn_k_b", query, sizes[0])
    key, value = _compress(graph, layer, hidden, sizes[1], sizes[2], shape.width)
    return query, key, value


def _expand_latent(
    graph: PassBuilder, shape: ModelShape, layer: Layer, hidden: int, sizes: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Queries, keys and values of every head, the last two from the latent (DeepSeek-V2, not absorbed)."""
    rows, scope, parts = graph.now.rows, layer.scope, layer.parts
    query = _project_query(graph, layer, hidden, sizes[0], shape.width)
    latent = parts["attn_kv_b"]["weight"].shape[-1]
    plain = sizes[1] - shape.kv_heads[layer.number] * shape.rotated
    _require_size(layer, "attn_kv_b", plain + sizes[2], latent)
    turned, normed = _compress(graph, layer, hidden, latent + shape.rotated, latent, shape.width)
    expanded = graph.product(f"{scope}.attn_kv_b", parts["attn_kv_b"], normed, rows)
    key = graph.op(f"{scope}.keys_joined", "Concat", f"{scope}.attn", [expanded, turned], (rows, sizes[1]))
    value = graph.view(f"{scope}.v", "Slice", f"{scope}.attn", [expanded], (rows, sizes[2]))
    return query, key, value


def _per_head(graph: PassBuilder, layer: Layer, name: str, hidden: int, columns: int) -> int:
    """A product with a matrix [outputs, inputs] of its own for every head; result [rows, columns]."""
    part, rows = layer.parts[name], graph.now.rows
    heads, outputs, inputs = part["weight"].shape
    scope = f"{layer.scope}.{name}"
    apart = graph.view(f"{scope}.apart", "Reshape", scope, [hidden], (heads, rows, inputs))
    product = graph.op(
        scope, "Gemm", scope, [apart], (heads, rows, outputs), weights=part.values(), attributes={"transB": 1}
    )
    return graph.view(f"{scope}.joined", "Reshape", scope, [product], (rows, columns))


def _rotate(graph: PassBuilder, layer: Layer, name: str, hidden: int, shape: tuple[int, ...]) -> int:
    """The norm of queries or keys, if any, and the rotation by their positions."""
    normed = graph.norm(f"{layer.scope}.{name}_norm", layer.parts.get(f"{name}_norm", NO_PART), hidden, shape)
    return graph.op(f"{layer.scope}.{name}_rope", "RotaryEmbedding", f"{layer.scope}.attn", [normed], shape)


def _feed(graph: PassBuilder, shape: ModelShape, layer: Layer, hidden: int, normed: int) -> int:
    """The feed-forward half: dense, or a mixture of experts with shared ones beside it, each with norms of its own."""
    if not any(name in layer for name in EXPERTS):
        return _feed_dense(graph, shape, layer, normed, "")
    wide = (graph.now.rows, shape.width)
    routed = _norm(graph, layer, ("pre_ffw_norm_2",), hidden, wide) if "pre_ffw_norm_2" in layer else normed
    mixed = _norm(graph, layer, ("post_ffw_norm_2",), _feed_mixed(graph, shape, layer, routed), wide)
    for end in ("_shexp", ""):
        if f"ffn_down{end}" in layer:
            shared = _feed_dense(graph, shape, layer, normed, end)
            shared = _norm(graph, layer, ("post_ffw_norm_1",), shared, wide)
            gate = layer.parts.get(f"ffn_gate_inp{end}", NO_PART) if end else NO_PART
            mixed = graph.op(
                f"{layer.scope}.ffn_shared_add{end}", "Add", f"{layer.scope}.ffn", [mixed, shared],
                wide, weights=gate.values(),
            )  # fmt: skip
    return mixed


def _feed_dense(graph: PassBuilder, shape: ModelShape, layer: Layer, hidden: int, end: str) -> int:
    """Up, gate and down; a matrix twice as wide as the next one's input is both of the first two."""
    rows, scope, parts = graph.now.rows, layer.scope, layer.parts
    up, down, gate = (f"ffn_{name}{end}" for name in ("up", "down", "gate"))
    if up not in layer or down not in layer:
        raise ModelFileError(f"layer {layer.number} has no feed-forward part that is known")
    inner = parts[down]["weight"].shape[-1]
    joined = gate not in layer and parts[up]["weight"].shape[0] == 2 * inner
    for name, size in ((up, 2 * inner if joined else inner), (gate, inner)):
        _require_size(layer, name, size, shape.width)
    _require_size(layer, down, shape.width, inner)
    raised = graph.product(f"{scope}.{up}", parts[up], hidden, rows)
    inputs = [raised]
    if gate in layer:
        inputs = [graph.product(f"{scope}.{gate}", parts[gate], hidden, rows), raised]
    kind = "SwiGLU" if gate in layer or joined else "Gelu"
    active = graph.op(f"{scope}.ffn_act{end}", kind, f"{scope}.ffn", inputs, (rows, inner))
    active = _norm(graph, layer, (f"ffn_sub_norm{end}",), active, (rows, inner))
    return graph.product(f"{scope}.{down}", parts[down], active, rows, shape.width)


def _feed_mixed(graph: PassBuilder, shape: ModelShape, layer: Layer, hidden: int) -> int:
    """Router, choice, and all experts as one op: of their weights, those of the expected number in use are read."""
    rows, scope, parts = graph.now.rows, layer.scope, layer.parts
    if "ffn_gate_inp" not in layer or not shape.experts_used:
        raise ModelFileError(f"layer {layer.number} has experts, and does not say how many a token uses")
    count = parts["ffn_down_exps"]["weight"].shape[0] if "ffn_down_exps" in layer else 0
    chosen = shape.experts_used
    if chosen > count:
        raise ModelFileError(f"layer {layer.number} has {count} experts, of which a token would use {chosen}")
    scores = graph.product(f"{scope}.ffn_gate_inp", parts["ffn_gate_inp"], hidden, rows)
    bias = parts.get("exp_probs_b", NO_PART).values()
    choice = graph.add(f"{scope}.ffn_topk", "TopK", f"{scope}.ffn", [scores], bias)
    index = graph.result(choice, f"{scope}.chosen", (rows, chosen), "int32")
    kept = graph.result(choice, f"{scope}.scores", (rows, chosen))
    weights = [parts[name]["weight"] for name in EXPERTS if name in layer]
    for weight in weights:
        if len(weight.shape) != 3 or weight.shape[0] != count:
            raise ModelFileError(f"the tensor {weight.name!r} is no matrix for each of {count} experts")
    weights += [one for name in EXPERTS for end, one in parts.get(name, NO_PART).items() if end != "weight"]
    return graph.op(
        f"{scope}.ffn_experts", "Experts", f"{scope}.{MIXED}", [hidden, index, kept], (rows, shape.width),
        weights=weights, attributes={"experts": count},
    )  # fmt: skip


def split_layers(tensors: Sequence[Tensor], count: int) -> Iterator[Layer]:
    """The layers of a model, from the names of its tensors: ``blk.3.attn_q.weight``."""
    found: list[dict[str, dict[str, Tensor]]] = [{} for _ in range(count)]
    for tensor in tensors:
        words, number = tensor.name.split("."), tensor.layer
        if NO_LAYER < number < count:
            end = words[-1] if len(words) > 3 else "weight"
            found[number].setdefault(words[2], {})[end] = tensor
    return (Layer(number, parts) for number, parts in enumerate(found))

"""The results of llama.cpp's graph for a micro-batch, in its order (src/llama-graph.cpp, src/models/llama.cpp).

Layers are those of Llama: norm, attention with a cache, norm, feed-forward or experts. The last layer and what follows
compute the outputs alone, which is one row for a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewise.readers.gguf.header import Header
from placewise.readers.gguf.llama_compute import Result
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.shape import ModelShape

FLOAT, INDEX = 4, 8
ROTATED = 64
"""Caches of quantized types hold keys and values that were multiplied by a Hadamard matrix of this size."""


@dataclass(frozen=True, slots=True)
class _FeedForward:
    """Widths of a layer's feed-forward part: `inner`, the `experts` and how many of them are `used`, `shared`."""

    inner: int
    experts: int = 0
    used: int = 1
    shared: int = 0
    gated: bool = True


@dataclass(frozen=True, slots=True)
class _Micro:
    """Of a micro-batch: its tokens, the positions of the caches without and with windows, whether attention is fused,
    and whether the cache is rotated.
    """

    tokens: int
    cells: int
    window_cells: int
    fused: bool
    rotated: bool


def list_results(header: Header, shape: ModelShape, flags: LlamaFlags, cells: tuple[int, int]) -> list[Result]:
    """The results of the whole model on one device; `cells` are positions of a cache without and with a window."""
    quantized = not flags.cache[0].endswith(("16", "32"))
    micro = _Micro(
        min(flags.ubatch, cells[0]),
        *cells,
        flags.flash != "off",
        quantized and shape.key_widths[0] % ROTATED == 0,
    )
    widths = {tensor.name: tensor.shape for tensor in header.tensors}
    results = _inputs(shape, micro)
    last, incoming = shape.layers - 1, "x"
    if "position_embd.weight" in widths:
        rows = shape.width * micro.tokens * FLOAT
        results += [Result("learned", rows, ("positions",)), Result("x_at", rows, ("x", "learned"), True)]
        incoming = "x_at"
    parallel = not {"blk.0.ffn_norm.weight", "blk.0.post_attention_norm.weight"} & widths.keys()
    for layer in range(shape.layers):
        results += _attend(shape, micro, layer, incoming)
        rows = 1 if layer == last else micro.tokens
        sources = [f"projected.{layer}", incoming, *([f"scaled.{layer}"] if parallel else [])]
        if layer == last:
            picked = [f"picked.{source}" for source in sources]
            results += [
                Result(name, shape.width * FLOAT, (source, "rows"))
                for name, source in zip(picked, sources, strict=True)
            ]
            sources = picked
        results += _feed(shape, _feed_forward(header, widths, layer), layer, sources, rows)
        incoming = f"y.{layer}"
    results.append(Result("norm", shape.width * FLOAT, (incoming,), True))
    results.append(Result("logits", shape.vocabulary * FLOAT, ("norm",)))
    return results


def _feed_forward(header: Header, widths: dict[str, tuple[int, ...]], layer: int) -> _FeedForward:
    experts = widths.get(f"blk.{layer}.ffn_up_exps.weight")
    if experts is None:
        down = widths.get(f"blk.{layer}.ffn_down.weight", (0, 0))
        up = widths.get(f"blk.{layer}.ffn_up.weight", down)
        gated = f"blk.{layer}.ffn_gate.weight" in widths or up[0] > down[1]
        return _FeedForward(down[1], gated=gated)
    shared = widths.get(f"blk.{layer}.ffn_up_shexp.weight", (0,))
    return _FeedForward(experts[1], experts[0], max(header.number("expert_used_count"), 1), shared[0])


def _inputs(shape: ModelShape, micro: _Micro) -> list[Result]:
    """What llama.cpp reserves for tokens, embeddings and both mixed, of which a run uses one; positions and masks."""
    tokens, rows = micro.tokens, shape.width * micro.tokens * FLOAT
    values = 1 if micro.fused else max(shape.kv_heads) * max(shape.value_widths)
    masked = 2 if micro.fused else FLOAT
    inputs = [("tokens", tokens * FLOAT), ("embeddings", rows), ("mixed_tokens", tokens * FLOAT)]
    inputs += [("mixed_slots", tokens * INDEX), ("mixed", rows), ("positions", tokens * FLOAT)]
    for kind, cells, present in (
        ("", micro.cells, not all(shape.windows)),
        ("_w", micro.window_cells, any(shape.windows)),
    ):
        if present:
            inputs += [(f"keys_at{kind}", tokens * INDEX), (f"values_at{kind}", tokens * INDEX * values)]
            inputs.append((f"mask{kind}", cells * tokens * masked))
    if micro.rotated:
        inputs += [("rotate_keys", ROTATED**2 * FLOAT), ("rotate_values", ROTATED**2 * FLOAT)]
    return [
        *(Result(name, nbytes) for name, nbytes in inputs),
        Result("rows", FLOAT),
        Result("x", rows, ("tokens",)),
        Result("mixed_rows", rows, ("mixed_tokens",)),
        Result("mixed_copy", rows, ("mixed",)),
        Result("mixed_set", 0, ("mixed_rows", "mixed_slots")),
    ]


def _attend(shape: ModelShape, micro: _Micro, layer: int, incoming: str) -> list[Result]:
    unit = micro.tokens * FLOAT
    query, width = shape.heads[layer] * shape.key_widths[layer] * unit, shape.width * unit
    key, value = (shape.kv_heads[layer] * one * unit for one in (shape.key_widths[layer], shape.value_widths[layer]))
    mixed = shape.heads[layer] * shape.value_widths[layer] * unit
    kind = "_w" if shape.windows[layer] else ""
    cells = micro.window_cells if kind else micro.cells

    def at(name: str) -> str:
        return f"{name}.{layer}"

    names = {"q": at("q_roped"), "v": at("v"), "k": at("k_roped")}
    results = [Result(at("normed"), width, (incoming,)), Result(at("scaled"), width, (at("normed"),), True)]
    for name, nbytes, matrix in (("q", query, "keys"), ("v", value, "values"), ("k", key, "keys")):
        results.append(Result(at(name), nbytes, (at("scaled"),)))
        if name != "v":
            results.append(Result(names[name], nbytes, (at(name), "positions")))
        if micro.rotated:
            results.append(Result(at(f"{name}_rotated"), nbytes, (names[name], f"rotate_{matrix}")))
            names[name] = at(f"{name}_rotated")
    results.append(Result(at("keys"), 0, (names["k"], f"keys_at{kind}")))
    results.append(Result(at("values"), 0, (names["v"], f"values_at{kind}")))
    if micro.fused:
        results.append(Result(at("mixed"), mixed, (names["q"], at("keys"), at("values"), f"mask{kind}")))
    else:
        scores = shape.heads[layer] * cells * unit
        results += [
            Result(at("scores"), scores, (names["q"], at("keys"))),
            Result(at("weights"), scores, (at("scores"), f"mask{kind}"), True),
            Result(at("heads"), mixed, (at("weights"), at("values"))),
            Result(at("mixed"), mixed, (at("heads"),)),
        ]
    source = at("mixed")
    if micro.rotated:
        source = at("mixed_rotated")
        results.append(Result(source, mixed, (at("mixed"), "rotate_values")))
    return [*results, Result(at("projected"), width, (source,))]


def _feed(shape: ModelShape, part: _FeedForward, layer: int, sources: Sequence[str], rows: int) -> list[Result]:
    """`sources` are the result of attention and the residual; of layers whose parts are parallel, the norm as well."""
    unit = rows * FLOAT
    width = shape.width * unit

    def at(name: str) -> str:
        return f"{name}.{layer}"

    attended, residual, *rest = sources
    normed, after, results = at("ffn_scaled"), at("added"), list[Result]()
    if rest:
        normed, after = rest[0], attended
    else:
        results += [
            Result(after, width, (attended, residual), True),
            Result(at("ffn_normed"), width, (after,)),
            Result(normed, width, (at("ffn_normed"),), True),
        ]
    if part.experts:
        chosen = (normed, at("chosen"))
        used, inner = part.used * unit, part.used * part.inner * unit
        results += [
            Result(at("router"), part.experts * unit, (normed,)),
            Result(at("odds"), part.experts * unit, (at("router"),), True),
            Result(at("chosen"), part.experts * unit, (at("odds"),)),
            Result(at("picked_odds"), used, (at("odds"), at("chosen"))),
            Result(at("sum"), unit, (at("picked_odds"),)),
            Result(at("shares"), used, (at("picked_odds"), at("sum")), True),
            Result(at("gate"), inner, chosen),
            Result(at("up"), inner, chosen),
            Result(at("product"), inner, (at("gate"), at("up"))),
            Result(at("each"), part.used * width, (at("product"), at("chosen"))),
            Result(at("weighted"), part.used * width, (at("each"), at("shares")), True),
            Result(at("down"), width, (at("weighted"),)),
        ]
    if part.shared or not part.experts:
        name, inner = ("shared_" if part.experts else ""), (part.shared or part.inner) * unit
        if part.gated:
            results.append(Result(at(f"{name}gate"), inner, (normed,)))
        results.append(Result(at(f"{name}up"), inner, (normed,)))
        both = (at(f"{name}gate"), at(f"{name}up")) if part.gated else (at(f"{name}up"),)
        results.append(Result(at(f"{name}product"), inner, both, not part.gated))
        results.append(Result(at(f"{name}down"), width, (at(f"{name}product"),)))
    total = at("down")
    if part.experts and part.shared:
        total = at("all_experts")
        results.append(Result(total, width, (at("down"), at("shared_down")), True))
    if rest:
        results.append(Result(at("both"), width, (total, after), True))
        total, after = at("both"), residual
    return [*results, Result(at("y"), width, (total, after), True)]

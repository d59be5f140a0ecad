"""The results of llama.cpp's graph for a micro-batch, in its order (src/llama-graph.cpp, src/models).

Layers are those of Llama: norm, attention with a cache, norm, feed-forward or experts; or of Command R and Phi 2, whose
attention and feed-forward part read the same norm; or of Gemma 4, with embeddings per layer, or experts beside a dense
part. The last layer and what follows compute the outputs alone, which is one row per sequence for a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from placewise._util.llama_defaults import OFFLOADED_ROWS
from placewise.readers.gguf.header import Header
from placewise.readers.gguf.llama_compute import ComputeResult
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.llama_kernels import count_half_copies, is_cuda, is_fused
from placewise.readers.gguf.shape import ModelShape

FLOAT, INDEX = 4, 8
ROTATED = 64
"""Caches of quantized types hold what was multiplied by a Hadamard matrix of this size, or of the largest multiple by a
power of two for keys. Latent caches do not."""
COMPARED = frozenset((
    "bloom", "cohere2", "command-r", "deepseek2", "falcon", "gemma", "gemma2", "gemma3", "gemma4", "glm4", "glm4moe",
    "gpt-oss", "gpt2", "granite", "granitemoe", "internlm2", "llama", "llama4", "olmo2", "olmoe", "phi2", "phi3",
    "qwen2", "qwen2moe", "qwen3", "qwen3moe", "stablelm", "starcoder2",
))  # fmt: skip
"""Architectures whose buffers were compared with llama.cpp's log; others are counted as if they were like Llama."""
LAYER_EMBEDDING, LAYER_PROJECTION = "per_layer_token_embd.weight", "per_layer_model_proj.weight"
WITHOUT_ROPE = frozenset({"bloom", "gptj", "jais", "mpt", "refact"})
"""Architectures that turn no keys, besides those with learned positions."""
ROPE_IN_WINDOWS = frozenset({"cohere2", "exaone4", "smallthinker"})
"""Architectures that turn the keys of layers with a sliding window alone, where some layers have one."""
ROPE_STEPS: Mapping[str, int] = MappingProxyType({"llama4": 4, "smollm3": 4})
"""Architectures whose every so many-th layer turns no keys."""
WEIGHED_BEFORE = frozenset({"llama4"})
"""Architectures that choose experts before scores become shares, and multiply what experts read by these."""
ATTENTION_FIRST = frozenset({"phi2"})
"""Architectures that project the attention before a parallel feed-forward part; others do it after."""
RESIDUAL_LAST = frozenset({"falcon"})
"""Architectures that then add both parts, and the residual to their sum; others add the residual to the first part."""
ONTO_RESIDUAL = frozenset({"phi3", "phimoe"})
"""Architectures that add the feed-forward part to the residual; others add the residual to that."""
PICKED_LATE = frozenset(
    {"bailingmoe3", "cohere2moe", "gemma3n", "gemma4", "gpt-oss", "hy-v3", "mimo2", "step35"}
)  # fmt: skip
"""Architectures that pick the rows of the outputs behind the last layer, and not in it."""
PICKED_LAST = frozenset({"bailingmoe3", "cohere2moe", "gemma4", "hy-v3"})
"""Those of them that do it behind the last norm."""
VALUES_NORMED = frozenset({"gemma3n", "gemma4"})
"""Architectures whose values have a norm without weights."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are: tensors by name, layers and the output behind them, and the GPUs, the host last.

    `copies` are the weights of host memory that the GPU `borrower` gets copies of, by name, in bytes; `whole` says that
    no layer is on the host.
    """

    tensors: Mapping[str, str]
    layers: Sequence[str]
    devices: Sequence[str]
    copies: Mapping[str, int]
    borrower: str
    whole: bool


@dataclass(frozen=True, slots=True)
class _FeedForward:
    """Widths of a layer's feed-forward part: `inner`, the `experts` and how many of them are `used`, `shared`.

    The gate is a matrix of its own ("apart"), the first half of the other one ("joined"), or missing ("").
    """

    inner: int
    experts: int = 0
    used: int = 1
    shared: int = 0
    gate: str = "apart"


@dataclass(frozen=True, slots=True)
class _Micro:
    """Of a micro-batch: its tokens and outputs, the positions of the caches without and with windows, whether attention
    is fused, the `types` of keys and values, the sizes of the matrices that rotate both (0: none), and their bytes per
    layer.
    """

    tokens: int
    outputs: int
    cells: int
    window_cells: int
    fused: bool
    types: tuple[str, str]
    rotated: tuple[int, int]
    caches: Sequence[tuple[int, int]]


def list_results(
    header: Header,
    shape: ModelShape,
    flags: LlamaFlags,
    cells: tuple[int, int],
    caches: Sequence[tuple[int, int]],
    places: Places,
) -> list[ComputeResult]:
    """The results of the whole model.

    `cells` are positions of a cache without and with a window, `caches` its bytes of keys and values in every layer.
    """
    keys, values = (
        0 if shape.latent or name.endswith(("16", "32")) or widths[0] % ROTATED else ROTATED
        for name, widths in zip(flags.cache, (shape.key_widths, shape.value_widths), strict=True)
    )
    while keys and shape.key_widths[0] % (2 * keys) == 0:
        keys *= 2
    micro = _Micro(
        min(flags.ubatch, flags.batch, cells[0] * flags.parallel),
        flags.parallel,
        *cells,
        is_fused(shape, flags, places.layers),
        flags.cache,
        (keys, values),
        caches,
    )
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    name = header.architecture
    scaled = name.startswith("gemma") or bool(header.metadata.get(f"{name}.embedding_scale"))
    graph = _Graph(name, shape, micro, places, shapes, scaled)
    incoming = graph.add_inputs()
    for layer in range(shape.layers):
        incoming = graph.add_layer(layer, incoming, _feed_forward(header, graph.shapes, layer))
    graph.add_output(incoming)
    return graph.results


def _feed_forward(header: Header, shapes: Mapping[str, tuple[int, ...]], layer: int) -> _FeedForward:
    fused = shapes.get(f"blk.{layer}.ffn_gate_up_exps.weight")
    experts = (fused[0], fused[1] // 2, fused[2]) if fused else shapes.get(f"blk.{layer}.ffn_up_exps.weight")
    if experts is None:
        down = shapes.get(f"blk.{layer}.ffn_down.weight", (0, 0))
        up = shapes.get(f"blk.{layer}.ffn_up.weight", down)
        joined = "joined" if up[0] > down[1] else ""
        return _FeedForward(down[1], gate="apart" if f"blk.{layer}.ffn_gate.weight" in shapes else joined)
    shared = shapes.get(f"blk.{layer}.ffn_up_shexp.weight") or shapes.get(f"blk.{layer}.ffn_up.weight", (0,))
    return _FeedForward(experts[1], experts[0], max(header.number("expert_used_count"), 1), shared[0])


@dataclass(slots=True)
class _Graph:
    """The results so far; `shapes` are those of the model's tensors, and embeddings may be `scaled`."""

    architecture: str
    shape: ModelShape
    micro: _Micro
    places: Places
    shapes: Mapping[str, tuple[int, ...]]
    scaled: bool
    results: list[ComputeResult] = field(default_factory=list)

    def add(
        self,
        name: str,
        nbytes: int,
        *reads: str,
        weight: str = "",
        in_place: bool = False,
        home: str = "",
        rows: int = 0,
    ) -> str:
        """Add a result, which is where its `weight` is, or on a GPU that gets a copy of that; return its name.

        `rows` are those that are multiplied, if not one per token.
        """
        home = self.places.tensors.get(weight, home)
        if weight in self.places.copies and (rows or self.micro.tokens) >= OFFLOADED_ROWS:
            self._store(weight, self.places.copies[weight], home, "weight")
            reads, home = (*reads, weight), self.places.borrower
        self.results.append(ComputeResult(name, nbytes, reads, in_place, home))
        return name

    def add_inputs(self) -> str:
        """Tokens, embeddings and both mixed, of which a run uses one; positions and masks. The first layer's input."""
        micro, rows = self.micro, self._rows(self.shape.width)
        values = 1 if micro.fused else max(self.shape.kv_heads) * max(self.shape.value_widths)
        masked = 2 if micro.fused else FLOAT
        inputs = [("tokens", micro.tokens * FLOAT), ("embeddings", rows), ("mixed_tokens", micro.tokens * FLOAT)]
        inputs += [("mixed_slots", micro.tokens * INDEX), ("mixed", rows)]
        inputs += [("positions", micro.tokens * FLOAT)] if self.architecture not in WITHOUT_ROPE else []
        inputs += [("tokens_of_layers", micro.tokens * FLOAT)] if LAYER_EMBEDDING in self.shapes else []
        for kind, cells, present in (
            ("", micro.cells, not all(self.shape.windows)),
            ("_w", micro.window_cells, any(self.shape.windows)),
        ):
            if present:
                inputs += [(f"keys_at{kind}", micro.tokens * INDEX)]
                inputs += [] if self.shape.latent else [(f"values_at{kind}", micro.tokens * INDEX * values)]
                inputs += [(f"mask{kind}", cells * micro.tokens * masked)]
                inputs += [(f"rotate_{name}{kind}", size**2 * FLOAT) for name, size in self._rotations() if size]
        for name, nbytes in [*inputs, ("rows", micro.outputs * FLOAT)]:
            self.add(name, nbytes)
        if home := self.places.tensors.get(LAYER_EMBEDDING, ""):
            self.add("rows_of_layers", self._rows(self.shapes[LAYER_EMBEDDING][-1]), "tokens_of_layers", home=home)
        embedding = self.places.tensors.get("token_embd.weight", self.places.devices[-1])
        incoming = self.add("x", rows, "tokens", home=embedding)
        self.add("mixed_rows", rows, "mixed_tokens", home=embedding)
        self.add("mixed_copy", rows, "mixed")
        self.add("mixed_set", 0, "mixed_rows", "mixed_slots")
        if "position_embd.weight" in self.shapes:
            self.add("learned", rows, "positions", home=embedding)
            incoming = self.add("x_at", rows, incoming, "learned", in_place=True)
        if self.scaled:
            incoming = self.add("x_larger", rows, incoming, in_place=True)
        if "token_embd_norm.weight" in self.shapes:
            self.add("x_normed", rows, incoming, home=self._home_of_norm(0))
            incoming = self.add("x_scaled", rows, "x_normed", weight="token_embd_norm.weight", in_place=True)
        return incoming

    def add_layer(self, layer: int, incoming: str, part: _FeedForward) -> str:
        """The layer's result, from that of the layer before."""
        parallel = not {f"blk.0.{name}.weight" for name in ("ffn_norm", "post_attention_norm")} & self.shapes.keys()
        width = self._size_behind(layer)
        mixed, normed = self._attend(layer, incoming)
        if not parallel:
            behind, rows = self._find(layer, "post_ffw_norm"), self._count_rows(layer)
            between, before = self._find(layer, "post_attention_norm"), self._find(layer, "ffn_norm")
            attended = self._pick(layer, self._project(layer, mixed))
            if behind:
                attended = self._norm(layer, "attended", attended, between, rows)
            after = self.add(f"added.{layer}", width, attended, self._pick(layer, incoming), in_place=True)
            if self._find(layer, "pre_ffw_norm_2"):
                fed = self._feed_beside(layer, part, after)
            else:
                normed = self._norm(layer, "ffn", after, before or ("" if behind else between), rows)
                fed = self._feed(layer, part, normed)
            terms = (self._norm(layer, "fed", fed, behind, rows), after)
            if self.architecture in ONTO_RESIDUAL:
                terms = terms[::-1]
            out = self.add(f"y.{layer}", width, *terms, in_place=True)
            if self._find(layer, "inp_gate") and {LAYER_EMBEDDING, LAYER_PROJECTION} <= self.shapes.keys():
                out = self._add_embedded(layer, incoming, out)
            scale = self._find(layer, "layer_output_scale")
            return self.add(f"y_scaled.{layer}", width, out, weight=scale, in_place=True) if scale else out
        attended = self._pick(layer, self._project(layer, mixed)) if self.architecture in ATTENTION_FIRST else ""
        both = self._feed(layer, part, self._pick(layer, normed))
        if attended:
            both = self.add(f"both.{layer}", width, attended, both, in_place=True)
        elif self.architecture in RESIDUAL_LAST:
            attended = self._pick(layer, self._project(layer, mixed))
            both = self.add(f"both.{layer}", width, both, attended, in_place=True)
        else:
            both = self.add(f"both.{layer}", width, both, self._pick(layer, incoming), in_place=True)
            incoming = self._project(layer, mixed)
        return self.add(f"y.{layer}", width, both, self._pick(layer, incoming), in_place=True)

    def add_output(self, incoming: str) -> None:
        """The last norm and the logits."""
        rows, home = self.micro.outputs * FLOAT, self.places.layers[-1]
        late, last = self.architecture in PICKED_LATE, self.architecture in PICKED_LAST
        width = self._rows(self.shape.width) if last else self.shape.width * rows
        if late and not last:
            incoming = self.add("picked", width, incoming, "rows")
        self.add("norm", width, incoming, in_place=True)
        incoming = self.add("norm_scaled", width, "norm", in_place=True, home=home)
        if last:
            incoming = self.add("picked", self.shape.width * rows, incoming, "rows")
        self.add("logits", self.shape.vocabulary * rows, incoming, home=home)

    def _rotations(self) -> tuple[tuple[str, int], ...]:
        return ("keys", self.micro.rotated[0]), ("values", self.micro.rotated[1])

    def _rows(self, width: int) -> int:
        """Bytes of a row of this width for every token."""
        return width * self.micro.tokens * FLOAT

    def _picks(self, layer: int) -> bool:
        """Whether the layer goes on with the rows of the outputs behind its attention."""
        return layer == self.shape.layers - 1 and self.architecture not in PICKED_LATE

    def _count_rows(self, layer: int) -> int:
        """Rows behind the attention."""
        return self.micro.outputs if self._picks(layer) else self.micro.tokens

    def _find(self, layer: int, *names: str) -> str:
        """The first of these weights that the layer has."""
        full = (f"blk.{layer}.{name}.weight" for name in names)
        return next((name for name in full if name in self.shapes), "")

    def _home_of_norm(self, layer: int) -> str:
        """llama.cpp keeps a norm with its layer where no layer is on the host."""
        return self.places.layers[layer] if self.places.whole else ""

    def _store(self, name: str, nbytes: int, home: str, kind: str) -> None:
        self.results.append(ComputeResult(name, nbytes, home=home, stored=kind))

    def _pick(self, layer: int, source: str) -> str:
        """The rows of the outputs, in the last layer."""
        if not self._picks(layer):
            return source
        return self.add(f"picked.{source}", self.shape.width * self.micro.outputs * FLOAT, source, "rows")

    def _norm(self, layer: int, part: str, incoming: str, weight: str, rows: int) -> str:
        """A norm before or behind a part of a layer; `incoming` itself where there is none."""
        if not weight:
            return incoming
        nbytes = self.shape.width * rows * FLOAT
        normed = self.add(f"{part}_normed.{layer}", nbytes, incoming, home=self._home_of_norm(layer), in_place=True)
        return self.add(f"{part}_scaled.{layer}", nbytes, normed, weight=weight, in_place=True, rows=rows)

    def _project(self, layer: int, mixed: str) -> str:
        if self.micro.rotated[1]:
            kind = "_w" if self.shape.windows[layer] else ""
            mixed = self.add(f"mixed_rotated.{layer}", self._size_of_heads(layer), mixed, f"rotate_values{kind}")
        weight = self._find(layer, "attn_output")
        return self.add(
            f"projected.{layer}", self._rows(self.shape.width), mixed, weight=weight, home=self.places.layers[layer]
        )

    def _turns(self, layer: int) -> bool:
        """Whether keys and queries are turned by their position (RoPE)."""
        name, windows = self.architecture, self.shape.windows
        if name in WITHOUT_ROPE or "position_embd.weight" in self.shapes:
            return False
        if name in ROPE_IN_WINDOWS and any(windows):
            return windows[layer] > 0
        return name not in ROPE_STEPS or (layer + 1) % ROPE_STEPS[name] > 0

    def _attend(self, layer: int, incoming: str) -> tuple[str, str]:
        """The heads' results side by side, and the norm that they read."""
        normed = self._norm(layer, "attn", incoming, self._find(layer, "attn_norm"), self.micro.tokens)
        kind = "_w" if self.shape.windows[layer] else ""
        if self.shape.latent:
            names = self._compress(layer, normed)
        elif self._find(layer, "attn_kv_b"):
            names = self._expand(layer, normed, kind)
        else:
            names = self._compute_heads(layer, normed, kind)
        found = self._mix(layer, names, kind)
        if self.shape.latent and (weight := self._find(layer, "attn_v_b")):
            nbytes = self._rows(self.shape.heads[layer] * self.shapes[weight][1])
            found = self.add(f"expanded.{layer}", nbytes, found, weight=weight)
            found = self.add(f"expanded_copy.{layer}", nbytes, found)
        return found, normed

    def _size_of_heads(self, layer: int) -> int:
        return self._rows(self.shape.heads[layer] * self.shape.value_widths[layer])

    def _compress(self, layer: int, incoming: str) -> dict[str, str]:
        """Queries and the latent keys and values of multi-head latent attention (DeepSeek 2)."""
        heads, latent, turned = self.shape.heads[layer], self.shape.latent, self.shape.rotated
        query = self._ask_latent(layer, incoming)
        absorbed = self.add(
            f"q_absorbed.{layer}", self._rows(heads * latent), query, weight=self._find(layer, "attn_k_b")
        )
        self.add(f"q_turned.{layer}", self._rows(heads * turned), query, "positions")
        found = self.add(f"q_all.{layer}", self._rows(heads * (latent + turned)), absorbed, f"q_turned.{layer}")
        both, value = self._add_latent(layer, incoming, latent)
        self.add(f"k_turned.{layer}", self._rows(turned), both, "positions")
        return {"q": found, "k": self.add(f"k_all.{layer}", self._rows(latent + turned), value, f"k_turned.{layer}")}

    def _expand(self, layer: int, incoming: str, kind: str) -> dict[str, str]:
        """Queries, keys and values of every head, the last two from the latent (DeepSeek 2, older files)."""
        shape, heads, weight = self.shape, self.shape.heads[layer], self._find(layer, "attn_kv_b")
        outputs, latent = self.shapes[weight]
        query = key = self._rows(heads * shape.key_widths[layer])
        found = self.add(f"q_turned.{layer}", query, self._ask_latent(layer, incoming), "positions")
        found = self._rotate(layer, "q", query, found, "keys", kind)
        both, normed = self._add_latent(layer, incoming, latent)
        expanded = self.add(f"kv_expanded.{layer}", self._rows(outputs), normed, weight=weight)
        value = self._size_of_heads(layer)
        values = self.add(f"v.{layer}", value, expanded)
        values = self._rotate(layer, "v", value, values, "values", kind)
        self.add(f"k_turned.{layer}", self._rows(shape.rotated), both, "positions")
        self.add(f"k_repeated.{layer}", self._rows(heads * shape.rotated), f"k_turned.{layer}")
        keys = self.add(f"k_all.{layer}", key, expanded, f"k_repeated.{layer}")
        return {"q": found, "k": self._rotate(layer, "k", key, keys, "keys", kind), "v": values}

    def _ask_latent(self, layer: int, incoming: str) -> str:
        """The queries of latent attention, by way of a smaller width or not."""
        query = self._find(layer, "attn_q_b", "attn_q")
        if rank := self._find(layer, "attn_q_a"):
            nbytes = self._rows(self.shapes[rank][0])
            self.add(f"rank.{layer}", nbytes, incoming, weight=rank)
            self.add(f"rank_normed.{layer}", nbytes, f"rank.{layer}", in_place=True, home=self._home_of_norm(layer))
            weight = self._find(layer, "attn_q_a_norm")
            incoming = self.add(f"rank_scaled.{layer}", nbytes, f"rank_normed.{layer}", weight=weight, in_place=True)
        return self.add(f"q.{layer}", self._rows(self.shapes[query][0]), incoming, weight=query)

    def _add_latent(self, layer: int, incoming: str, latent: int) -> tuple[str, str]:
        """The latent with the positions of keys, and the normed part without."""
        weight = self._find(layer, "attn_kv_a_mqa")
        both = self.add(f"kv.{layer}", self._rows(latent + self.shape.rotated), incoming, weight=weight)
        self.add(f"kv_normed.{layer}", self._rows(latent), both, home=self._home_of_norm(layer))
        weight = self._find(layer, "attn_kv_a_norm")
        value = self.add(f"kv_scaled.{layer}", self._rows(latent), f"kv_normed.{layer}", weight=weight, in_place=True)
        return both, value

    def _rotate(self, layer: int, name: str, nbytes: int, at: str, matrix: str, kind: str) -> str:
        """Multiplied by the matrix of a cache of a quantized type, if any."""
        if not self.micro.rotated[matrix == "values"]:
            return at
        return self.add(f"{name}_rotated.{layer}", nbytes, at, f"rotate_{matrix}{kind}")

    def _compute_heads(self, layer: int, incoming: str, kind: str) -> dict[str, str]:
        """Queries, keys and values."""
        shape, home = self.shape, self.places.layers[layer]
        query = self._rows(shape.heads[layer] * shape.key_widths[layer])
        key, value = (
            self._rows(shape.kv_heads[layer] * widths[layer]) for widths in (shape.key_widths, shape.value_widths)
        )
        joined = self._find(layer, "attn_qkv")
        if joined:
            self.add(f"qkv.{layer}", query + key + value, incoming, weight=joined)
        names = {}
        order = [("q", query, "keys"), ("v", value, "values"), ("k", key, "keys")]
        if any(shape.windows):
            order = [order[0], order[2], order[1]]
        for name, nbytes, matrix in order if layer < shape.cached else order[:1]:
            weight, at = self._find(layer, f"attn_{name}"), f"qkv.{layer}" if joined else f"k.{layer}"
            if not joined and (weight or name != "v"):
                at = self.add(f"{name}.{layer}", nbytes, incoming, weight=weight, home=home)
            normed = self._find(layer, f"attn_{name}_norm")
            if normed or (name == "v" and self.architecture in VALUES_NORMED):
                at = self.add(f"{name}_normed.{layer}", nbytes, at, home=self._home_of_norm(layer) if normed else "")
            if normed:
                at = self.add(f"{name}_scaled.{layer}", nbytes, at, weight=normed, in_place=True)
            if name != "v" and self._turns(layer):
                at = self.add(f"{name}_turned.{layer}", nbytes, at, "positions", in_place=bool(normed))
            names[name] = self._rotate(layer, name, nbytes, at, matrix, kind)
        return names

    def _mix(self, layer: int, names: Mapping[str, str], kind: str) -> str:
        """Attention: the heads' results. Latent attention caches no values beside its keys."""
        micro, home, mixed = self.micro, self.places.layers[layer], self._size_of_heads(layer)
        cached = (f"cached_keys.{layer}", f"cached_values.{layer}")
        owner = layer if layer < self.shape.cached else self.shape.cached - (2 if kind else 1)
        for name, nbytes in zip(cached, micro.caches[owner], strict=True):
            self._store(name, nbytes, self.places.layers[owner], "cache")
        if "k" in names:
            self.add(f"keys.{layer}", 0, names["k"], f"keys_at{kind}", home=home)
        if "v" in names:
            self.add(f"values.{layer}", 0, names["v"], f"values_at{kind}", home=home)
        if micro.fused:
            halves = [self._halve(*each) for each in zip(cached, micro.caches[owner], micro.types, strict=True)]
            copied = count_half_copies(micro.caches[owner], micro.types) if is_cuda(home) else 0
            return self.add(f"mixed.{layer}", mixed + copied, names["q"], *halves, f"mask{kind}")
        scores = self._rows(self.shape.heads[layer] * (micro.window_cells if kind else micro.cells))
        self.add(f"scores.{layer}", scores, names["q"], cached[0])
        self.add(f"weights.{layer}", scores, f"scores.{layer}", f"mask{kind}", in_place=True)
        self.add(f"heads.{layer}", mixed, f"weights.{layer}", cached[1])
        return self.add(f"mixed.{layer}", mixed, f"heads.{layer}")

    def _halve(self, cached: str, nbytes: int, kind: str) -> str:
        """Keys or values as fused attention reads them: those of four bytes are cast to two."""
        return self.add(f"{cached}.half", nbytes // 2, cached) if kind == "f32" and nbytes else cached

    def _multiply(self, layer: int, name: str, nbytes: int, *reads: str, weight: str) -> str:
        """A product with a weight of the feed-forward part."""
        weight, home, rows = self._find(layer, weight), self.places.layers[layer], self._count_rows(layer)
        return self.add(f"{name}.{layer}", nbytes, *reads, weight=weight, home=home, rows=rows)

    def _feed(self, layer: int, part: _FeedForward, normed: str) -> str:
        """The result of the feed-forward part, or of the experts and those that are shared."""
        if not part.experts:
            return self._feed_dense(layer, part.inner, normed, gate=part.gate)
        mixed = self._feed_experts(layer, part, normed, normed)
        if not part.shared:
            return mixed
        end = "_shexp" if self._find(layer, "ffn_up_shexp") else ""
        shared = self._feed_dense(layer, part.shared, normed, "shared_", end)
        return self.add(f"all_experts.{layer}", self._size_behind(layer), mixed, shared, in_place=True)

    def _feed_beside(self, layer: int, part: _FeedForward, after: str) -> str:
        """Experts beside a dense part, each with norms of its own, and one for the router (Gemma 4)."""
        rows, nbytes = self._count_rows(layer), self._size_behind(layer)
        self.add(f"router_normed.{layer}", nbytes, after)
        self.add(f"router_smaller.{layer}", nbytes, f"router_normed.{layer}", in_place=True)
        scale = f"blk.{layer}.ffn_gate_inp.scale"
        asked = self.add(f"router_scaled.{layer}", nbytes, f"router_smaller.{layer}", weight=scale, in_place=True)
        mixed = self._feed_experts(layer, part, after, asked)
        normed = self._norm(layer, "ffn", after, self._find(layer, "ffn_norm"), rows)
        dense = self._feed_dense(layer, part.shared, normed, "shared_")
        dense = self._norm(layer, "dense", dense, self._find(layer, "post_ffw_norm_1"), rows)
        mixed = self._norm(layer, "mixture", mixed, self._find(layer, "post_ffw_norm_2"), rows)
        return self.add(f"all_experts.{layer}", nbytes, dense, mixed, in_place=True)

    def _feed_experts(self, layer: int, part: _FeedForward, incoming: str, asked: str) -> str:
        """The weighted sum of the experts that the router chooses. Gate and up may be one matrix."""
        weighed = self.architecture in WEIGHED_BEFORE
        unit, width = self._count_rows(layer) * FLOAT, self._size_behind(layer)
        used, inner = part.used * unit, part.used * part.inner * unit
        router = self._multiply(layer, "router", part.experts * unit, asked, weight="ffn_gate_inp")
        odds = self.add(f"odds.{layer}", part.experts * unit, router, in_place=not weighed)
        chosen = self.add(f"chosen.{layer}", part.experts * unit, router if weighed else odds)
        picked = self.add(f"picked_odds.{layer}", used, odds, chosen)
        shares = picked
        if not weighed:
            total = self.add(f"sum.{layer}", unit, picked)
            shares = self.add(f"shares.{layer}", used, picked, total, in_place=True)
        before = self._find(layer, "pre_ffw_norm_2")
        incoming = self._norm(layer, "routed", incoming, before, self._count_rows(layer))
        if weighed:
            spread = self.add(f"spread.{layer}", part.used * width, incoming)
            incoming = self.add(f"weighted.{layer}", part.used * width, spread, shares, in_place=True)
        if self._find(layer, "ffn_gate_up_exps"):
            raised = [self._multiply(layer, "gate_up", 2 * inner, incoming, chosen, weight="ffn_gate_up_exps")]
        else:
            raised = [
                self._multiply(layer, name, inner, incoming, chosen, weight=f"ffn_{name}_exps")
                for name in ("gate", "up")
            ]
        product = self.add(f"product.{layer}", inner, *raised)
        each = self._multiply(layer, "each", part.used * width, product, chosen, weight="ffn_down_exps")
        if not weighed:
            each = self.add(f"weighted.{layer}", part.used * width, each, shares, in_place=True)
        return self.add(f"down.{layer}", width, each)

    def _feed_dense(
        self, layer: int, inner: int, normed: str, name: str = "", end: str = "", gate: str = "apart"
    ) -> str:
        """Gate, up and down of a dense part, or of the shared experts."""
        nbytes, raised = inner * self._count_rows(layer) * FLOAT, []
        if gate == "apart":
            raised = [self._multiply(layer, f"{name}gate", nbytes, normed, weight=f"ffn_gate{end}")]
        both = 2 * nbytes if gate == "joined" else nbytes
        raised.append(self._multiply(layer, f"{name}up", both, normed, weight=f"ffn_up{end}"))
        product = self.add(f"{name}product.{layer}", nbytes, *raised, in_place=not gate)
        return self._multiply(layer, f"{name}down", self._size_behind(layer), product, weight=f"ffn_down{end}")

    def _size_behind(self, layer: int) -> int:
        """Bytes of rows of the model's width behind the attention."""
        return self.shape.width * self._count_rows(layer) * FLOAT

    def _add_embedded(self, layer: int, incoming: str, out: str) -> str:
        """What a layer makes of its own embeddings of the tokens, added to its result (Gemma 4)."""
        nbytes, width = self._rows(self.shapes[self._find(layer, "inp_gate")][0]), self._size_behind(layer)
        gate = self._multiply(layer, "own_gate", nbytes, out, weight="inp_gate")
        active = self.add(f"own_active.{layer}", nbytes, gate, in_place=True)
        if not any(self._find(before, "inp_gate") for before in range(layer)):
            self._embed_layers(incoming)
        embedded, home = "embedded", self.places.layers[0]
        if self.places.layers[layer] != home:  # a view, which is copied alone
            embedded = f"embedded.{layer}"
            self._store(embedded, nbytes, home, "view")
        mixed = self.add(f"own_mixed.{layer}", nbytes, active, embedded, in_place=True)
        raised = self._multiply(layer, "own_raised", width, mixed, weight="proj")
        raised = self._norm(layer, "own", raised, self._find(layer, "post_norm"), self._count_rows(layer))
        return self.add(f"z.{layer}", width, out, raised, in_place=True)

    def _embed_layers(self, incoming: str) -> None:
        """The embeddings that all layers have of the tokens, also made from that of the model, by layer."""
        nbytes = self._rows(self.shapes[LAYER_PROJECTION][0])
        made = self.add("layers_made", nbytes, incoming, weight=LAYER_PROJECTION)
        self.add("layers_smaller", nbytes, made, in_place=True)
        self.add("layers_normed", nbytes, "layers_smaller")
        self.add("layers_scaled", nbytes, "layers_normed", weight="per_layer_proj_norm.weight", in_place=True)
        self.add("layers_larger", nbytes, "rows_of_layers", in_place=True)
        self.add("layers_added", nbytes, "layers_scaled", "layers_larger", in_place=True)
        self.add("embedded", nbytes, "layers_added")

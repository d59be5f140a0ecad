"""Small graphs with the layers of known models, built by hand."""

from __future__ import annotations

import math

from placewise.model.builder import GraphBuilder


class Draft:
    """A graph under construction: values have shapes, and ops are added by kind."""

    def __init__(self, dtype="float32"):
        self.builder, self.dtype = GraphBuilder(), dtype
        self.shapes: dict[int, tuple[int, ...]] = {}
        self._weights: dict[int, int] = {}
        self._count = 0

    def input(self, *shape, dtype=None):
        tensor = self.builder.add_tensor(-1, shape=shape, dtype=dtype or self.dtype, name=f"x{len(self.shapes)}")
        self.shapes[tensor] = shape
        return tensor

    def weight(self, *shape, name=""):
        number = self.builder.add_weight(name or f"w{self._count}", shape=shape, dtype=self.dtype)
        self._count += 1
        return ("weight", number, shape)

    def op(self, kind, *arguments, shape, scope="", **attributes):
        """Add an op; `shape` is that of its result, or a list of shapes for several."""
        number = self.builder.add_op(f"op{self.builder.n_ops}", kind, scope=scope, attributes=attributes)
        for at, value in enumerate(arguments):
            if value is None:
                continue
            if isinstance(value, tuple):
                self.builder.use_weight(value[1], number, at)
            else:
                self.builder.add_edge(value, number, at)
        shapes = shape if isinstance(shape, list) else [shape]
        made = []
        for k, each in enumerate(shapes):
            tensor = self.builder.add_tensor(number, shape=each, dtype=self.dtype, name=f"t{number}.{k}")
            self.shapes[tensor] = each
            made.append(tensor)
        return made if isinstance(shape, list) else made[0]

    def linear(self, x, columns, *, scope="", bias=False):
        """A product with a weight [columns, width]."""
        *front, width = self.shapes[x]
        weight = self.weight(columns, width, name=f"{scope}.weight")
        more = [self.weight(columns, name=f"{scope}.bias")] if bias else []
        return self.op("Gemm", x, weight, *more, shape=(*front, columns), scope=scope, transB=1)

    def norm(self, x, *, scope="", kind="RMSNormalization"):
        width = self.shapes[x][-1]
        scale = self.weight(width, name=f"{scope}.weight")
        return self.op(kind, x, scale, shape=self.shapes[x], scope=scope, normalized_shape=(width,))

    def same(self, kind, *arguments, scope="", **attributes):
        """An elementwise op with the shape of its longest argument."""
        shapes = [a[2] if isinstance(a, tuple) else self.shapes[a] for a in arguments]
        return self.op(kind, *arguments, shape=max(shapes, key=math.prod), scope=scope, **attributes)

    def build(self, *outputs):
        for tensor in outputs:
            self.builder.set_output(tensor)
        return self.builder.build()


def heads_first(draft, x, heads, *, scope=""):
    """[batch, length, heads · width] → [batch, heads, length, width]."""
    batch, length, width = draft.shapes[x]
    parted = draft.op("Reshape", x, shape=(batch, length, heads, width // heads), scope=scope)
    return draft.op("Transpose", parted, shape=(batch, heads, length, width // heads), scope=scope, perm=(0, 2, 1, 3))


def heads_last(draft, x, *, scope=""):
    batch, heads, length, width = draft.shapes[x]
    turned = draft.op("Transpose", x, shape=(batch, length, heads, width), scope=scope, perm=(0, 2, 1, 3))
    return draft.op("Reshape", turned, shape=(batch, length, heads * width), scope=scope)


def llama_layer(draft, x, *, scope="layers.0", heads=8, kv_heads=4, inner=48):
    """Grouped queries in one op, and a gated feed-forward network."""
    width = draft.shapes[x][-1]
    h = draft.norm(x, scope=f"{scope}.norm1")
    at = f"{scope}.attention"
    q = heads_first(draft, draft.linear(h, width, scope=f"{at}.q"), heads, scope=at)
    k = heads_first(draft, draft.linear(h, width // heads * kv_heads, scope=f"{at}.k"), kv_heads, scope=at)
    v = heads_first(draft, draft.linear(h, width // heads * kv_heads, scope=f"{at}.v"), kv_heads, scope=at)
    mixed = draft.op("Attention", q, k, v, shape=draft.shapes[q], scope=at)
    x = draft.same("Add", x, draft.linear(heads_last(draft, mixed, scope=at), width, scope=f"{at}.o"), scope=scope)
    h = draft.norm(x, scope=f"{scope}.norm2")
    gate = draft.same("Swish", draft.linear(h, inner, scope=f"{scope}.mlp.gate"), scope=f"{scope}.mlp")
    up = draft.linear(h, inner, scope=f"{scope}.mlp.up")
    down = draft.linear(draft.same("Mul", gate, up, scope=f"{scope}.mlp"), width, scope=f"{scope}.mlp.down")
    return draft.same("Add", x, down, scope=scope)


def written_attention(draft, x, *, heads=4, fused=False, scope="attention"):
    """Attention as products and a softmax, with three matrices or one for queries, keys and values."""
    batch, length, width = draft.shapes[x]
    if fused:
        packed = draft.linear(x, 3 * width, scope=f"{scope}.qkv", bias=True)
        parts = draft.op("Split", packed, shape=[(batch, length, width)] * 3, scope=scope, axis=2)
    else:
        parts = [draft.linear(x, width, scope=f"{scope}.{name}", bias=True) for name in "qkv"]
    q, k, v = (heads_first(draft, part, heads, scope=scope) for part in parts)
    turned = draft.op("Transpose", k, shape=(batch, heads, width // heads, length), scope=scope, perm=(0, 1, 3, 2))
    scores = draft.op("MatMul", q, turned, shape=(batch, heads, length, length), scope=scope)
    scores = draft.op("Softmax", scores, shape=(batch, heads, length, length), scope=scope, axis=-1)
    mixed = draft.op("MatMul", scores, v, shape=(batch, heads, length, width // heads), scope=scope)
    return draft.linear(heads_last(draft, mixed, scope=scope), width, scope=f"{scope}.o", bias=True)


def bert_layer(draft, x, *, heads=4, inner=48, fused=False, scope="layer.0"):
    """Normalizations after the sums, biases, GELU."""
    mixed = written_attention(draft, x, heads=heads, fused=fused, scope=f"{scope}.attention")
    x = draft.norm(draft.same("Add", x, mixed, scope=scope), scope=f"{scope}.norm1", kind="LayerNormalization")
    h = draft.same("Gelu", draft.linear(x, inner, scope=f"{scope}.up", bias=True), scope=scope)
    h = draft.linear(h, draft.shapes[x][-1], scope=f"{scope}.down", bias=True)
    return draft.norm(draft.same("Add", x, h, scope=scope), scope=f"{scope}.norm2", kind="LayerNormalization")


def conv(draft, x, channels, size=1, *, scope="", stride=1, group=1):
    """A convolution, a normalization and nothing else."""
    batch, width, *space = draft.shapes[x]
    kernel = draft.weight(channels, width // group, *(size,) * len(space), name=f"{scope}.weight")
    shape = (batch, channels, *(-(-length // stride) for length in space))
    pad = size // 2
    made = draft.op(
        "Conv", x, kernel, shape=shape, scope=scope, group=group, pads=(pad,) * 2 * len(space),
        strides=(stride,) * len(space), kernel_shape=(size,) * len(space),
    )  # fmt: skip
    values = [draft.weight(channels, name=f"{scope}.{name}") for name in ("scale", "shift", "mean", "var")]
    return draft.op("BatchNormalization", made, *values, shape=shape, scope=scope)


def resnet_block(draft, x, *, inner=8, scope="block"):
    """A bottleneck: three convolutions, and the sum with what came in."""
    width = draft.shapes[x][1]
    h = draft.same("Relu", conv(draft, x, inner, scope=f"{scope}.conv1"), scope=scope)
    h = draft.same("Relu", conv(draft, h, inner, 3, scope=f"{scope}.conv2"), scope=scope)
    h = conv(draft, h, width, scope=f"{scope}.conv3")
    return draft.same("Relu", draft.same("Add", x, h, scope=scope), scope=scope)


def moe_layer(draft, x, *, experts=4, chosen=2, inner=24, scope="moe"):
    """Tokens [batch, length, width] through some of several experts."""
    batch, length, width = draft.shapes[x]
    tokens = draft.op("Reshape", x, shape=(batch * length, width), scope=scope)
    scores = draft.op("Softmax", draft.linear(tokens, experts, scope=f"{scope}.gate"), shape=(batch * length, experts),
                      scope=scope, axis=-1)  # fmt: skip
    shapes = [(batch * length, chosen)] * 2
    best, index = draft.op("TopK", scores, shape=shapes, scope=scope, axis=-1, k=chosen)
    before = draft.weight(experts, 2 * inner, width, name=f"{scope}.experts.before")
    after = draft.weight(experts, width, inner, name=f"{scope}.experts.after")
    made = draft.op(
        "Experts", tokens, index, best, before, after, shape=(batch * length, width), scope=f"{scope}.experts",
        experts=experts,
    )  # fmt: skip
    return draft.op("Reshape", made, shape=(batch, length, width), scope=scope)

"""BERT and Transformer-XL.

Devlin et al., BERT, NAACL 2019, arXiv 1810.04805, section 3: 12 layers of width 768 with 12 heads (base), 24 of 1024
with 16 (large), 10 % dropout; sentences of 128 words, as in nine tenths of pre-training, and a batch of 32, one of
those for fine-tuning (appendix A). The graph ends in the pooler and knows 30,522 word pieces, as the published
checkpoints do.

Dai et al., Transformer-XL, ACL 2019, arXiv 1901.02860, appendix: the model of 12 layers for enwik8 (width 512, 8 heads,
inner width 2048, segments and memory of 512, 204 symbols, a batch of 22, 10 % dropout), here with 2, 4 or 8 layers as
Zhou et al. (GDP, 2019) place it. That they took this model and not another one of the paper is assumed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from placewise.errors import InputError
from placewise.zoo.net import NetBuilder, NetValue, Weight
from placewise.zoo.workload import Sizes, Workload

DROPOUT = 0.1


def bert(net: NetBuilder, sizes: Sizes) -> None:
    """Words [batch, length] → features [batch, length, hidden] and pooled features [batch, hidden]."""
    batch, length, hidden = sizes["batch"], sizes["length"], sizes["hidden"]
    heads = Heads.of(sizes)
    if length > sizes["positions"]:
        raise InputError(
            f"length {length} is more than the {sizes['positions']} positions", remedy="choose fewer words"
        )
    with net.within("embeddings"):
        x = _lookup(net, "words", sizes["vocabulary"], (batch, length), hidden)
        x = net.each("Add", x, _lookup(net, "segments", 2, (batch, length), hidden))
        places = _lookup(net, "places", sizes["positions"], (length,), hidden)
        x = net.dropout(net.layer_norm(net.each("Add", x, places)), DROPOUT)
    mask = net.input("mask", batch, 1, 1, length)
    for layer in range(sizes["layers"]):
        with net.within("layer", layer):
            with net.within("attention"):
                x = net.layer_norm(net.each("Add", _self_attention(net, heads, x, mask), x))
            x = _feed_forward(net, x, sizes["inner"], "Gelu")
    net.builder.set_output(x.number)
    with net.within("pooler"):
        first = net.op("Slice", x, shape=(batch, 1, hidden), axes=(1,), starts=(0,), ends=(1,))
        first = net.dense(net.reshape(first, batch, hidden), hidden)
        net.each("Tanh", first, output=True)


def transformer_xl(net: NetBuilder, sizes: Sizes) -> None:
    """Symbols [batch, length] and a memory [batch, memory, hidden] per layer → the mean loss."""
    batch, length, hidden = sizes["batch"], sizes["length"], sizes["hidden"]
    heads, seen = Heads.of(sizes), length + sizes["memory"]
    with net.within("embedding"):
        x = net.dropout(_lookup(net, "symbols", sizes["vocabulary"], (batch, length), hidden), DROPOUT)
    with net.within("distances"):
        if hidden % 2:
            raise InputError(f"hidden is {hidden}", remedy="choose an even width: distances are sines and cosines")
        angles = net.input("angles", seen, hidden // 2)
        waves = net.concat((net.each("Sin", angles), net.each("Cos", angles)), axis=1)
        waves = net.dropout(waves, DROPOUT)
    mask = net.input("mask", length, seen)
    for layer in range(sizes["layers"]):
        with net.within("layer", layer):
            before = net.input(f"memory.{layer}", batch, sizes["memory"], hidden)
            with net.within("attention"):
                attended = _relative_attention(net, heads, x, before, waves, mask)
                x = net.layer_norm(net.each("Add", attended, x))
            x = _feed_forward(net, x, sizes["inner"], "Relu")
    with net.within("softmax"):
        rows = net.reshape(net.dropout(x, DROPOUT), batch * length, hidden)
        scores = net.dense(rows, sizes["vocabulary"])
        labels = net.input("labels", batch * length, dtype="int32")
        net.op("SoftmaxCrossEntropyLoss", scores, labels, shape=(), label="loss", output=True, reduction="mean")


class Heads(NamedTuple):
    """The split of a width into heads."""

    n: int
    width: int

    @classmethod
    def of(cls, sizes: Sizes) -> Heads:
        count, width = sizes["heads"], sizes["hidden"]
        if width % count:
            raise InputError(f"{count} heads cannot share a width of {width}", remedy="choose a multiple of the heads")
        return cls(count, width // count)

    def split_heads(self, net: NetBuilder, x: NetValue, *order: int) -> NetValue:
        """[batch, length, heads · width] → the four dimensions (batch, length, head, width) in `order`."""
        return net.transpose(net.reshape(x, *x.shape[:-1], self.n, self.width), *order)

    def merge_heads(self, net: NetBuilder, x: NetValue) -> NetValue:
        """[batch, heads, length, width] → [batch, length, heads · width]."""
        batch, _, length, _ = x.shape
        return net.reshape(net.transpose(x, 0, 2, 1, 3), batch, length, self.n * self.width)


def _lookup(net: NetBuilder, name: str, rows: int, places: tuple[int, ...], width: int) -> NetValue:
    table, indices = net.weight(name, rows, width), net.input(name, *places, dtype="int32")
    return net.op("Gather", table, indices, shape=(*places, width), label=name, axis=0)


def _self_attention(net: NetBuilder, heads: Heads, x: NetValue, mask: NetValue) -> NetValue:
    """One product each for queries, keys and values; softmax(Q · Kᵀ / √width + mask) · V; an output product."""
    hidden = x.shape[-1]
    query = heads.split_heads(net, net.dense(x, hidden, name="query"), 0, 2, 1, 3)
    key = heads.split_heads(net, net.dense(x, hidden, name="key"), 0, 2, 3, 1)
    value = heads.split_heads(net, net.dense(x, hidden, name="value"), 0, 2, 1, 3)
    scores = net.each("Mul", net.matmul(query, key), net.constant(1 / math.sqrt(heads.width)), label="scale")
    scores = net.each("Add", scores, mask, label="mask")
    shares = net.dropout(net.each("Softmax", scores, axis=-1), DROPOUT)
    context = heads.merge_heads(net, net.matmul(shares, value))
    return net.dropout(net.dense(context, hidden, name="output"), DROPOUT)


def _relative_attention(
    net: NetBuilder, heads: Heads, x: NetValue, before: NetValue, waves: NetValue, mask: NetValue
) -> NetValue:
    """Section 3.3: scores of contents and of distances, each with its own bias for the query."""
    batch, length, hidden = x.shape
    seen = before.shape[1] + length
    everything = net.concat((before, x), axis=1)
    projected = net.dense(everything, 3 * hidden, bias=False, name="query_key_value")
    query, key, value = net.split(projected, 3, axis=2)
    query = net.op("Slice", query, shape=x.shape, axes=(1,), starts=(before.shape[1],), ends=(seen,))
    query = net.reshape(query, batch, length, heads.n, heads.width)
    key, value = heads.split_heads(net, key, 0, 2, 3, 1), heads.split_heads(net, value, 0, 2, 1, 3)
    distance = heads.split_heads(net, net.dense(waves, hidden, bias=False, name="distance"), 1, 2, 0)
    contents = net.matmul(_add_bias(net, query, net.weight("content_bias", *heads)), key)
    places = _shift_rows(net, net.matmul(_add_bias(net, query, net.weight("distance_bias", *heads)), distance))
    scores = net.each("Mul", net.each("Add", contents, places), net.constant(1 / math.sqrt(heads.width)), label="scale")
    scores = net.each("Add", scores, mask, label="mask")
    shares = net.dropout(net.each("Softmax", scores, axis=-1), DROPOUT)
    context = heads.merge_heads(net, net.matmul(shares, value))
    return net.dropout(net.dense(context, hidden, bias=False, name="output"), DROPOUT)


def _add_bias(net: NetBuilder, query: NetValue, bias: Weight) -> NetValue:
    """Add the bias of each head to a query [batch, length, heads, width] and move the heads forward."""
    return net.transpose(net.each("Add", query, bias), 0, 2, 1, 3)


def _shift_rows(net: NetBuilder, scores: NetValue) -> NetValue:
    """Appendix B: shift row i by i places to the left, with a column of padding and two reshapes."""
    batch, heads, length, seen = scores.shape
    padded = net.op("Pad", scores, shape=(batch, heads, length, seen + 1), pads=(0, 0, 0, 1, 0, 0, 0, 0))
    reshaped = net.reshape(padded, batch, heads, seen + 1, length)
    shape = (batch, heads, seen, length)
    cut = net.op("Slice", reshaped, shape=shape, axes=(2,), starts=(1,), ends=(seen + 1,))
    return net.reshape(cut, batch, heads, length, seen)


def _feed_forward(net: NetBuilder, x: NetValue, inner: int, activation: str) -> NetValue:
    with net.within("feed_forward"):
        hidden = net.each(activation, net.dense(x, inner, name="inner"))
        hidden = net.dropout(hidden, DROPOUT) if activation == "Relu" else hidden
        hidden = net.dropout(net.dense(hidden, x.shape[-1], name="output"), DROPOUT)
        return net.layer_norm(net.each("Add", hidden, x))


_BERT = "Devlin et al., NAACL 2019, arXiv 1810.04805"
_XL = "Dai et al., ACL 2019, arXiv 1901.02860; placed by Zhou et al. 2019, arXiv 1910.01578"
_BERT_SIZES = {"vocabulary": 30_522, "positions": 512, "batch": 32, "length": 128}
_BASE = {"layers": 12, "hidden": 768, "heads": 12, "inner": 3072}
_LARGE = {"layers": 24, "hidden": 1024, "heads": 16, "inner": 4096}
_XL_SIZES = {
    "hidden": 512, "heads": 8, "inner": 2048, "vocabulary": 204, "batch": 22, "length": 512, "memory": 512,
}  # fmt: skip

ENTRIES = (
    Workload("bert-base", "language features of 12 transformer layers", _BERT, {**_BASE, **_BERT_SIZES}, bert),
    Workload("bert-large", "language features of 24 transformer layers", _BERT, {**_LARGE, **_BERT_SIZES}, bert),
    *(
        Workload(
            f"transformer-xl-{layers}",
            f"language model of {layers} transformer layers with memory",
            _XL,
            {"layers": layers, **_XL_SIZES},
            transformer_xl,
        )
        for layers in (2, 4, 8)
    ),
)

"""NMT and GNMT: translation by LSTM layers with attention over all outputs of the encoder, every step unrolled.

GNMT: Wu et al., Google's Neural Machine Translation System, arXiv 1609.08144: 1024 units, a bidirectional layer at the
bottom of the encoder, residual connections from the third layer on, additive attention by the lowest decoder layer
whose context every decoder layer reads, 32,000 word pieces, a batch of 128 per replica. The sentence length, 75 pieces,
is that of the MLPerf training benchmark (NVIDIA's GNMT, MAX_SEQ_LEN). Details that both leave open follow TensorFlow's
implementation (tensorflow/nmt): 20 % dropout, a decoder that starts from the encoder's last states. The lengths that
the placement papers unrolled are unknown.

NMT: tensorflow/nmt's standard model of two layers (unidirectional, attention of Luong et al. 2015 with input feeding,
sentences of 50 words, to which the decoder adds a begin or end marker), with the batch of 64 of Mirhoseini et al.,
ICML 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from placewise.zoo import lstm
from placewise.zoo.lstm import State
from placewise.zoo.net import NetBuilder, NetValue, Weight
from placewise.zoo.workload import Sizes, Workload

NEVER = -1e9
"""The score of positions after the end of a sentence."""


class AttentionMemory(NamedTuple):
    """What the decoder attends to: values and keys [batch, places, width], and which places exist [batch, places]."""

    values: NetValue
    keys: NetValue
    exists: NetValue


class Additive(NamedTuple):
    """Weights of a feed-forward network with one hidden layer (Bahdanau et al. 2015; Wu et al. 2016, equation 4)."""

    query: Weight
    score: Weight


def memory(net: NetBuilder, outputs: Sequence[NetValue], units: int) -> AttentionMemory:
    """The outputs [batch, width] of all encoder steps, and their keys."""
    batch, width = outputs[0].shape
    exists = net.input("source.exists", batch, len(outputs), dtype="bool")
    values = net.reshape(net.concat(outputs, axis=1), batch, len(outputs), width)
    return AttentionMemory(values, net.dense(values, units, bias=False, name="keys"), exists)


def attend_additively(net: NetBuilder, weights: Additive, over: AttentionMemory, query: NetValue) -> NetValue:
    """The context [batch, width] for a query [batch, width]."""
    batch, places, units = over.keys.shape
    projected = net.reshape(net.matmul(query, weights.query), batch, 1, units)
    hidden = net.each("Tanh", net.each("Add", over.keys, projected))
    weighted = net.each("Mul", hidden, weights.score)
    return _context(net, over, net.op("ReduceSum", weighted, shape=(batch, places), axes=(2,), keepdims=0))


def attend_multiplicatively(net: NetBuilder, over: AttentionMemory, transposed: NetValue, query: NetValue) -> NetValue:
    """The context [batch, width] for a query, by products with the transposed keys [batch, units, places].

    Luong et al. 2015, "general".
    """
    batch, units, places = transposed.shape
    scores = net.matmul(net.reshape(query, batch, 1, units), transposed)
    return _context(net, over, net.reshape(scores, batch, places))


def _context(net: NetBuilder, over: AttentionMemory, scores: NetValue) -> NetValue:
    batch, places, width = over.values.shape
    scores = net.op("Where", over.exists, scores, net.constant(NEVER), shape=scores.shape)
    shares = net.reshape(net.each("Softmax", scores, axis=-1), batch, 1, places)
    return net.reshape(net.matmul(shares, over.values), batch, width)


DROPOUT = 0.2
RESIDUAL_FROM = 2
"""The first layer, counted from 0, with a residual connection (GNMT)."""


def nmt(net: NetBuilder, sizes: Sizes) -> None:
    """Sentences [steps, batch] → the loss per sentence."""
    batch, hidden, layers = sizes["batch"], sizes["hidden"], sizes["layers"]
    with net.within("encoder"):
        rows, exists = _source(net, sizes)
        states = []
        for layer in range(layers):
            with net.within("layer", layer):
                rows, last = _encode(net, sizes, rows, exists, f"encoder.{layer}")
                states.append(last)
    with net.within("attention"):
        over = memory(net, rows, hidden)
        transposed = net.transpose(over.keys, 0, 2, 1)
        kernel = net.weight("layer.kernel", 2 * hidden, hidden)
    with net.within("decoder"):
        words = _words(net, "target", sizes["target_steps"], sizes)
        cells = []
        for layer in range(layers):
            with net.within("layer", layer):
                cells.append(lstm.cell(net, 2 * hidden if not layer else hidden, hidden))
        fed, outputs = net.input("attention.first", batch, hidden), []
        for step, word in enumerate(words):
            with net.within("layer.0.step", step):
                x = net.concat((word, fed), axis=1)
            for layer, cell in enumerate(cells):
                with net.within("layer", layer, "step", step):
                    states[layer] = lstm.step(net, cell, net.dropout(x, DROPOUT), states[layer])
                    x = states[layer].output
            with net.within("attention", "step", step):
                context = attend_multiplicatively(net, over, transposed, x)
                fed = net.matmul(net.concat((x, context), axis=1), kernel)
            outputs.append(fed)
    _loss(net, outputs, sizes)


def gnmt(net: NetBuilder, sizes: Sizes) -> None:
    """Sentences [steps, batch] → the loss per sentence."""
    hidden, layers = sizes["hidden"], sizes["layers"]
    with net.within("encoder"):
        rows, exists = _source(net, sizes)
        with net.within("layer.0"):
            rows, last = _encode_both_ways(net, sizes, rows, exists)
        states = [last]
        for layer in range(1, layers):
            with net.within("layer", layer):
                rows, last = _encode(net, sizes, rows, exists, f"encoder.{layer}", residual=layer >= RESIDUAL_FROM)
                states.append(last)
    with net.within("attention"):
        over = memory(net, rows, hidden)
        weights = Additive(net.weight("query.kernel", hidden, hidden), net.weight("score", hidden))
    with net.within("decoder"):
        rows = _words(net, "target", sizes["target_steps"], sizes)
        contexts: list[NetValue] = []
        fed = net.input("attention.first", sizes["batch"], over.values.shape[2])
        with net.within("layer.0"):
            cell, state = lstm.cell(net, hidden + fed.shape[1], hidden), states[0]
        for step, row in enumerate(rows):
            with net.within("layer.0.step", step):
                state = lstm.step(net, cell, net.dropout(net.concat((row, fed), axis=1), DROPOUT), state)
                rows[step] = state.output
            with net.within("attention.step", step):
                fed = attend_additively(net, weights, over, state.output)
                contexts.append(fed)
        for layer in range(1, layers):
            with net.within("layer", layer):
                rows = _decode(net, sizes, rows, contexts, states[layer], residual=layer >= RESIDUAL_FROM)
    _loss(net, rows, sizes)


def _source(net: NetBuilder, sizes: Sizes) -> tuple[list[NetValue], list[NetValue]]:
    """Embedded words [batch, hidden] of each step, and which sentences are still running [batch, 1]."""
    steps = sizes["source_steps"]
    running = net.input("source.running", steps, sizes["batch"], 1, dtype="bool")
    with net.within("running"):
        exists = lstm.unstack(net, running)
    return _words(net, "source", steps, sizes), exists


def _words(net: NetBuilder, name: str, steps: int, sizes: Sizes) -> list[NetValue]:
    batch, hidden = sizes["batch"], sizes["hidden"]
    words = net.input(f"{name}.words", steps, batch, dtype="int32")
    with net.within("embedding"):
        table = net.weight("table", sizes["vocabulary"], hidden)
        embedded = net.op("Gather", table, words, shape=(steps, batch, hidden), axis=0)
        return lstm.unstack(net, embedded)


def _encode(
    net: NetBuilder,
    sizes: Sizes,
    rows: Sequence[NetValue],
    exists: Sequence[NetValue],
    name: str,
    *,
    residual: bool = False,
    backward: bool = False,
    ends: bool = True,
) -> tuple[list[NetValue], State]:
    """One direction of one layer: a finished sentence keeps its state. `ends`: the last memory is needed."""
    batch, hidden = sizes["batch"], sizes["hidden"]
    cell = lstm.cell(net, rows[0].shape[1], hidden)
    state = lstm.make_initial_state(net, name, batch, hidden)
    outputs = list(rows)
    for step in reversed(range(len(rows))) if backward else range(len(rows)):
        with net.within("step", step):
            fresh = lstm.step(net, cell, net.dropout(rows[step], DROPOUT), state)
            output = _keep_running(net, exists[step], fresh.output, state.output)
            needed = ends or step < len(rows) - 1
            memory = _keep_running(net, exists[step], fresh.memory, state.memory) if needed else fresh.memory
            state = State(output, memory)
            outputs[step] = net.each("Add", state.output, rows[step], label="residual") if residual else state.output
    return outputs, state


def _keep_running(net: NetBuilder, running: NetValue, new: NetValue, old: NetValue) -> NetValue:
    return net.op("Where", running, new, old, shape=new.shape, label="running")


def _encode_both_ways(
    net: NetBuilder, sizes: Sizes, rows: Sequence[NetValue], exists: Sequence[NetValue]
) -> tuple[list[NetValue], State]:
    """A bidirectional layer; outputs are concatenated, the last state is that of the backward direction."""
    with net.within("forward"):
        ahead, _ = _encode(net, sizes, rows, exists, "encoder.0.forward", ends=False)
    with net.within("backward"):
        behind, last = _encode(net, sizes, rows, exists, "encoder.0.backward", backward=True)
    outputs = []
    for step, pair in enumerate(zip(ahead, behind, strict=True)):
        with net.within("step", step):
            outputs.append(net.concat(pair, axis=1))
    return outputs, last


def _decode(
    net: NetBuilder,
    sizes: Sizes,
    rows: Sequence[NetValue],
    contexts: Sequence[NetValue],
    state: State,
    *,
    residual: bool,
) -> list[NetValue]:
    """One decoder layer; every step reads the outputs below it and the context of that step."""
    cell = lstm.cell(net, rows[0].shape[1] + contexts[0].shape[1], sizes["hidden"])
    outputs = []
    for step, (row, context) in enumerate(zip(rows, contexts, strict=True)):
        with net.within("step", step):
            state = lstm.step(net, cell, net.dropout(net.concat((row, context), axis=1), DROPOUT), state)
            outputs.append(net.each("Add", state.output, row, label="residual") if residual else state.output)
    return outputs


def _loss(net: NetBuilder, rows: Sequence[NetValue], sizes: Sizes) -> None:
    """Cross entropy, summed over the existing words, per sentence."""
    count = len(rows) * sizes["batch"]
    labels = net.input("target.labels", count, dtype="int32")
    with net.within("softmax"):
        scores = net.dense(net.concat(rows, axis=0), sizes["vocabulary"], bias=False)
        losses = net.op("SoftmaxCrossEntropyLoss", scores, labels, shape=(count,), reduction="none")
        real = net.each("Mul", losses, net.input("target.exists", count))
        total = net.op("ReduceSum", real, shape=(), axes=(0,), keepdims=0)
        net.op("Div", total, net.constant(sizes["batch"]), shape=(), label="loss", output=True)


_WIDTHS = {"hidden": 1024, "vocabulary": 32_000}
_PAPER = "Wu et al. 2016, arXiv 1609.08144; placed by Zhou et al. 2019, arXiv 1910.01578"
_NMT = "Luong et al. 2015, arXiv 1508.04025; placed by Mirhoseini et al., ICML 2017"

ENTRIES = (
    Workload(
        "nmt",
        "translation by LSTM layers with attention",
        _NMT,
        {"layers": 2, "batch": 64, **_WIDTHS, "source_steps": 50, "target_steps": 51},
        nmt,
    ),
    *(
        Workload(
            f"gnmt-{layers}",
            f"translation by {layers} + {layers} LSTM layers with attention",
            _PAPER,
            {"layers": layers, "batch": 128, **_WIDTHS, "source_steps": 75, "target_steps": 75},
            gnmt,
        )
        for layers in (2, 4, 8)
    ),
)

"""RNNLM: the language model of several LSTM layers that started device placement.

Jozefowicz et al., Exploring the Limits of Language Modeling, arXiv 1602.02410: LSTM-2048-512 (2048 units projected to
512, embeddings of 512), 793,470 words, a softmax sampled with 8192 words, 20 steps, 10 % dropout. Mirhoseini et al.
(ICML 2017) place it with 2 layers and a batch of 64, Zhou et al. (GDP, 2019) with 2, 4 and 8 layers. Equal other
sizes are assumed.
"""

from __future__ import annotations

from placewise.zoo import lstm
from placewise.zoo.net import NetBuilder, NetValue
from placewise.zoo.workload import Sizes, Workload

DROPOUT = 0.1


def build(net: NetBuilder, sizes: Sizes) -> None:
    """Words [steps, batch] → the mean loss."""
    steps, batch, hidden, width = sizes["steps"], sizes["batch"], sizes["hidden"], sizes["projection"]
    words = net.input("words", steps, batch, dtype="int32")
    with net.within("embedding"):
        table = net.weight("table", sizes["vocabulary"], width)
        embedded = net.op("Gather", table, words, shape=(steps, batch, width), axis=0)
        rows = [net.dropout(row, DROPOUT) for row in lstm.unstack(net, embedded)]
    for layer in range(sizes["layers"]):
        with net.within("layer", layer):
            cell = lstm.cell(net, width, hidden, projection=width)
            state = lstm.make_initial_state(net, f"state.{layer}", batch, hidden, projection=width)
            for step, row in enumerate(rows):
                with net.within("step", step):
                    state = lstm.step(net, cell, row, state)
                    rows[step] = net.dropout(state.output, DROPOUT)
    with net.within("softmax"):
        _sampled_loss(net, net.concat(rows, axis=0), sizes)


def _sampled_loss(net: NetBuilder, outputs: NetValue, sizes: Sizes) -> None:
    """Score every word against one sample of the vocabulary, corrected by the frequency of each word."""
    rows, width, sampled = *outputs.shape, sizes["sampled"]
    table, bias = net.weight("table", sizes["vocabulary"], width), net.weight("bias", sizes["vocabulary"], 1)
    labels = net.input("labels", rows, dtype="int32")
    samples = net.input("sampled", sampled, dtype="int32")
    with net.within("true"):
        chosen_rows = net.op("Gather", table, labels, shape=(rows, width), axis=0)
        product = net.each("Mul", outputs, chosen_rows)
        true_scores = net.op("ReduceSum", product, shape=(rows, 1), axes=(1,), keepdims=1)
        true_scores = net.each(
            "Add", true_scores, net.op("Gather", bias, labels, shape=(rows, 1), axis=0), label="BiasAdd"
        )
        true_scores = net.each("Sub", true_scores, net.input("labels.log_frequency", rows, 1))
    with net.within("sampled"):
        chosen_rows = net.op("Gather", table, samples, shape=(sampled, width), axis=0)
        scores = net.matmul(outputs, net.transpose(chosen_rows, 1, 0))
        rise = net.op("Gather", bias, samples, shape=(sampled, 1), axis=0)
        scores = net.each("Add", scores, net.reshape(rise, sampled), label="BiasAdd")
        scores = net.each("Sub", scores, net.input("sampled.log_frequency", sampled))
    scores = net.concat((true_scores, scores), axis=1)
    first = net.input("labels.position", rows, dtype="int32")
    net.op("SoftmaxCrossEntropyLoss", scores, first, shape=(), label="loss", output=True, reduction="mean")


_SIZES = {
    "batch": 64, "steps": 20, "hidden": 2048, "projection": 512, "vocabulary": 793_470, "sampled": 8192,
}  # fmt: skip
_PAPER = "Jozefowicz et al. 2016, arXiv 1602.02410; placed by Mirhoseini et al., ICML 2017"

ENTRIES = tuple(
    Workload(f"rnnlm-{layers}", f"language model of {layers} LSTM layers", _PAPER, {"layers": layers, **_SIZES}, build)
    for layers in (2, 4, 8)
)

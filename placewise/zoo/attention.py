"""Attention of a decoder step over all outputs of an encoder, op by op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from placewise.zoo.net import NetBuilder, NetValue, Weight

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

"""LSTM cells as TensorFlow 1 unrolls them: one product for all four gates, then op by op."""

from __future__ import annotations

from typing import NamedTuple

from placewise.zoo.net import NetBuilder, NetValue, Weight


class Cell(NamedTuple):
    """The weights of one layer, which all its steps share."""

    kernel: Weight
    bias: Weight
    projection: Weight | None


class State(NamedTuple):
    """The state between steps: output (projected, if the cell projects) and memory."""

    output: NetValue
    memory: NetValue


def cell(net: NetBuilder, inputs: int, hidden: int, *, projection: int = 0) -> Cell:
    """New weights for inputs [batch, `inputs`] (Hochreiter and Schmidhuber 1997; projection: Sak et al. 2014)."""
    returned = projection or hidden
    kernel = net.weight("kernel", inputs + returned, 4 * hidden)
    bias = net.weight("bias", 4 * hidden)
    return Cell(kernel, bias, net.weight("projection", hidden, projection) if projection else None)


def make_initial_state(net: NetBuilder, name: str, batch: int, hidden: int, *, projection: int = 0) -> State:
    """The state before the first step, an input of the model."""
    output = net.input(f"{name}.output", batch, projection or hidden)
    return State(output, net.input(f"{name}.memory", batch, hidden))


def step(net: NetBuilder, weights: Cell, inputs: NetValue, state: State) -> State:
    """One step: 14 ops, and one more product with projection. An op adds 1 to the forget gate's bias."""
    gates = net.matmul(net.concat((inputs, state.output), axis=1), weights.kernel)
    gates = net.each("Add", gates, weights.bias, label="BiasAdd")
    enter, new, forget, leave = net.split(gates, 4, axis=1)
    forget = net.each("Sigmoid", net.each("Add", forget, net.constant(1.0), label="forget_bias"), label="forget")
    kept = net.each("Mul", state.memory, forget, label="keep")
    fresh = net.each("Mul", net.each("Sigmoid", enter, label="enter"), net.each("Tanh", new, label="new"))
    memory = net.each("Add", kept, fresh, label="memory")
    output = net.each("Mul", net.each("Tanh", memory), net.each("Sigmoid", leave, label="leave"), label="output")
    if weights.projection is not None:
        output = net.matmul(output, weights.projection, label="projected")
    return State(output, memory)


def unstack(net: NetBuilder, values: NetValue) -> list[NetValue]:
    """Split [steps, …] into one value […] per step."""
    steps, *rest = values.shape
    if steps == 1:
        return [net.op("Squeeze", values, shape=rest, dtype=values.dtype, axes=(0,))]
    parts = net.split(values, steps, axis=0)
    return [net.op("Squeeze", part, shape=rest, dtype=values.dtype, axes=(0,)) for part in parts]

"""The backward ops of a training graph in plain numpy, and ONNX's own evaluator for the forward ones: for tests.

Every ``gradient::`` op is computed from nothing but what its edges bring.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from placewise.model.graph import Graph

OPSET = 23
STEP = 1e-6


def model(nodes, inputs: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], outputs):
    """An ONNX model in float64; `outputs` are declared without shapes."""
    declared = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "graph", declared, results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])


def forward(nodes, inputs, weights) -> dict[str, np.ndarray]:
    """Every value of the forward graph, by name."""
    made = [name for node in nodes for name in node.output if name]
    values = ReferenceEvaluator(model(nodes, inputs, weights, made)).run(None, dict(inputs))
    return {**inputs, **weights, **dict(zip(made, values, strict=True))}


def backward(graph: Graph, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run the backward ops of a training graph; the gradient that each update reads, by the name of its weight.

    `values` holds what the forward ops make, and the gradients that the graph has as inputs.
    """
    known, found = dict(values), {}
    for op in range(graph.n_ops):
        if not graph.ops.backward[op]:
            continue
        names = arguments(graph, op)
        kind, attributes = graph.ops.kind[op], graph.ops.attributes[op]
        if kind.startswith("optimizer::"):
            if 1 in names:
                found[names[1]] = known[names[0]]
            continue
        results = [graph.tensors.name[t] for t in graph.outputs_of(op)]
        wanted = [graph.tensors.shape[t] for t in graph.outputs_of(op)]
        made = compute(kind, attributes, {at: known[name] for at, name in names.items()}, wanted)
        for name, value, shape in zip(results, made, wanted, strict=True):
            assert value.shape == tuple(shape), (graph.ops.name[op], kind, value.shape, shape)
            known[name] = value
    return found


def arguments(graph: Graph, op: int) -> dict[int, str]:
    """What an op reads, by position: names of tensors and weights."""
    found = {}
    for edges, names in ((graph.edges, graph.tensors.name), (graph.weight_edges, graph.weights.name)):
        for row in np.flatnonzero(edges.consumer == op):
            found[int(edges.position[row])] = names[edges.value[row]]
    return found


def compute(kind: str, attributes: Mapping[str, Any], given: dict[int, np.ndarray], shapes) -> list[np.ndarray]:
    if kind.startswith("gradient::"):
        m, n = attributes["layout"]
        call = _Call(
            attributes,
            [given.get(at) for at in range(m)],
            {at - m: value for at, value in given.items() if m <= at < m + n},
            {at - m - n: value for at, value in given.items() if at >= m + n},
            attributes["wrt"],
            shapes,
        )
        return _GRADIENTS.get(kind.removeprefix("gradient::"), _numerically(kind))(call)
    return _PLAIN[kind](attributes, [given[at] for at in sorted(given)], shapes)


class _Call:
    def __init__(self, attributes, given, inputs, outputs, wrt, shapes):
        self.attributes, self.given, self.inputs, self.outputs = attributes, given, inputs, outputs
        self.wrt, self.shapes = wrt, shapes
        self.dy = next(value for value in given if value is not None)

    @property
    def x(self):
        return self.inputs[0]

    @property
    def y(self):
        return self.outputs[0]


def _matmul(attributes, values, shapes):
    a, b = values
    a = a.swapaxes(-1, -2) if attributes.get("transA") else a
    b = b.swapaxes(-1, -2) if attributes.get("transB") else b
    return [attributes.get("alpha", 1.0) * (a @ b)]


def _transpose(attributes, values, shapes):
    return [np.transpose(values[0], attributes.get("perm"))]


def _split(attributes, values, shapes):
    return np.split(values[0], np.cumsum(attributes["split"])[:-1], attributes["axis"])


_PLAIN = {
    "Add": lambda a, v, s: [v[0] + v[1]],
    "Neg": lambda a, v, s: [-v[0]],
    "Mul": lambda a, v, s: [a.get("factor", 1.0) * math.prod(v[1:], start=v[0])],
    "Div": lambda a, v, s: [v[0] / v[1]],
    "Log": lambda a, v, s: [np.log(v[0])],
    "Cast": lambda a, v, s: [v[0]],
    "Reshape": lambda a, v, s: [v[0].reshape(s[0])],
    "Transpose": _transpose,
    "ReduceSum": lambda a, v, s: [v[0].sum(tuple(a["axes"]), keepdims=bool(a["keepdims"]))],
    "Einsum": lambda a, v, s: [np.einsum(a["equation"], *v)],
    "com.microsoft::FusedMatMul": _matmul,
    "Gemm": _matmul,
    "Split": _split,
    "Concat": lambda a, v, s: [np.concatenate(v, a["axis"])],
    "ConstantOfShape": lambda a, v, s: [np.full(s[0], a.get("value", 0.0))],
}


def _numerically(kind):
    """The gradient of one node by differences: for kinds whose gradient keeps every argument."""
    op = kind.removeprefix("gradient::")

    def run(call):
        size = max(call.inputs) + 1
        names = [f"x{at}" if at in call.inputs else "" for at in range(size)]
        keep = {k: v for k, v in call.attributes.items() if k not in ("layout", "wrt")}
        made = [f"y{at}" for at in range(len(call.given))]
        node = helper.make_node(op, names, made, **keep)
        feed = {f"x{at}": value for at, value in call.inputs.items()}
        session = ReferenceEvaluator(model([node], feed, {}, made))

        def total(at, value):
            results = session.run(None, {**feed, f"x{at}": value})
            return sum((g * y).sum() for g, y in zip(call.given, results, strict=True) if g is not None)

        found = []
        for at in call.wrt:
            x, slope = call.inputs[at], np.zeros(call.inputs[at].shape)
            for place in np.ndindex(x.shape):
                step = np.zeros(x.shape)
                step[place] = STEP
                slope[place] = (total(at, x + step) - total(at, x - step)) / (2 * STEP)
            found.append(slope)
        return found

    return run


def _softmax(call):
    axis = call.attributes.get("axis", -1)
    return [call.y * (call.dy - (call.dy * call.y).sum(axis, keepdims=True))]


def _log_softmax(call):
    axis = call.attributes.get("axis", -1)
    return [call.dy - np.exp(call.y) * call.dy.sum(axis, keepdims=True)]


def _normalized(call, axes, shape, centred=True):
    """dX, d scale and d bias of scale · (x − mean) / deviation + bias over `axes`; scale has `shape` beside x."""
    x, scale, dy = call.x, call.inputs[1].reshape(shape), call.dy
    eps = call.attributes.get("epsilon", 1e-5)
    middle = x - x.mean(axes, keepdims=True) if centred else x
    inverse = 1 / np.sqrt((middle**2).mean(axes, keepdims=True) + eps)
    unit = middle * inverse
    dunit = dy * scale
    dx = dunit - unit * (dunit * unit).mean(axes, keepdims=True)
    dx = (dx - dunit.mean(axes, keepdims=True) if centred else dx) * inverse
    summed = tuple(axis for axis in range(x.ndim) if np.broadcast_to(scale, x.shape).strides[axis] == 0)
    of = {0: dx, 1: (dy * unit).sum(summed), 2: dy.sum(summed)}
    return [of[at].reshape(shape) for at, shape in zip(call.wrt, call.shapes, strict=True)]


def _layer_norm(call, centred=True):
    first = call.attributes.get("axis", -1) % call.x.ndim
    shape = (1,) * first + call.x.shape[first:]
    return _normalized(call, tuple(range(first, call.x.ndim)), shape, centred)


def _batch_norm(call):
    axes = tuple(axis for axis in range(call.x.ndim) if axis != 1)
    return _normalized(call, axes, (1, -1) + (1,) * (call.x.ndim - 2))


def _conv(call):
    """Of X, W or B, by walking over the kernel's places."""
    attributes = {k: call.attributes.get(k) for k in ("pads", "strides", "dilations", "group")}
    strides, dilations = attributes["strides"] or (1, 1), attributes["dilations"] or (1, 1)
    pads, groups = attributes["pads"] or (0, 0, 0, 0), attributes["group"] or 1
    dy, (at,) = call.dy, call.wrt
    if at == 2:
        return [dy.sum((0, 2, 3))]
    shape = call.shapes[0]
    x = call.inputs.get(0, np.zeros(shape) if at == 0 else None)
    w = call.inputs.get(1, np.zeros(shape) if at == 1 else None)
    padded = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    dpadded, dw = np.zeros(padded.shape), np.zeros(w.shape)
    out, inner = w.shape[0] // groups, w.shape[1]
    for g in range(groups):
        outs, ins = slice(g * out, (g + 1) * out), slice(g * inner, (g + 1) * inner)
        for i, j in np.ndindex(w.shape[2:]):
            rows = slice(i * dilations[0], i * dilations[0] + strides[0] * (dy.shape[2] - 1) + 1, strides[0])
            columns = slice(j * dilations[1], j * dilations[1] + strides[1] * (dy.shape[3] - 1) + 1, strides[1])
            dpadded[:, ins, rows, columns] += np.einsum("nohw,oc->nchw", dy[:, outs], w[outs, :, i, j])
            dw[outs, :, i, j] += np.einsum("nohw,nchw->oc", dy[:, outs], padded[:, ins, rows, columns])
    height, width = x.shape[2:]
    return [dpadded[:, :, pads[0] : pads[0] + height, pads[1] : pads[1] + width] if at == 0 else dw]


def _pooled(call, weigh):
    kernel, strides = call.attributes["kernel_shape"], call.attributes.get("strides", (1, 1))
    dx = np.zeros(call.shapes[0])
    for n, c, i, j in np.ndindex(call.dy.shape):
        window = (n, c, *(slice(a * s, a * s + k) for a, s, k in zip((i, j), strides, kernel, strict=True)))
        dx[window] += call.dy[n, c, i, j] * weigh(window, kernel)
    return [dx]


def _max_pool(call):
    def largest(window, kernel):
        x = call.x[window]
        return (x == x.max()) / (x == x.max()).sum()

    return _pooled(call, largest)


def _axes(call):
    axes = call.inputs[1] if 1 in call.inputs else call.attributes.get("axes", range(len(call.shapes[0])))
    return tuple(int(axis) for axis in np.atleast_1d(np.array(axes)))


def _spread(call, value):
    return value if call.attributes.get("keepdims", 1) else np.expand_dims(value, _axes(call))


def _reduced(call, scale):
    return [np.broadcast_to(_spread(call, call.dy), call.shapes[0]) * scale(math.prod(call.shapes[0]) / call.dy.size)]


def _extreme(call):
    chosen = call.x == _spread(call, call.y)
    return [chosen / chosen.sum(_axes(call), keepdims=True) * _spread(call, call.dy)]


def _into(call, place):
    dx = np.zeros(call.shapes[0])
    np.add.at(dx, place, call.dy)
    return [dx]


def _gather(call):
    axis = call.attributes.get("axis", 0)
    return _into(call, (slice(None),) * axis + (call.inputs[1],))


def _gather_nd(call):
    return _into(call, tuple(np.moveaxis(call.inputs[1], -1, 0)))


def _slice(call):
    rank = len(call.shapes[0])
    starts, ends = call.inputs[1], call.inputs[2]
    axes, steps = call.inputs.get(3, np.arange(len(starts))), call.inputs.get(4, np.ones(len(starts), int))
    places = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        places[axis] = slice(int(start), int(end), int(step))
    return _into(call, tuple(places))


def _pad(call):
    pads, rank = call.inputs[1], len(call.shapes[0])
    places = tuple(slice(int(pads[k]), int(pads[k]) + call.shapes[0][k]) for k in range(rank))
    return [call.dy[places]]


def _where(call):
    chosen = call.inputs[0] if call.wrt == (1,) else ~call.inputs[0]
    return [_summed(call.dy * chosen, call.shapes[0])]


def _power(call):
    base, exponent = call.x, call.inputs[1]
    return [_summed(call.dy * exponent * base ** (exponent - 1), call.shapes[0])]


def _summed(value, shape):
    value = value.sum(tuple(range(value.ndim - len(shape)))) if value.ndim > len(shape) else value
    return value.sum(tuple(k for k, dim in enumerate(shape) if dim == 1 and value.shape[k] > 1), keepdims=True)


def _phi(x):
    return np.array([math.erf(value / math.sqrt(2)) for value in x.ravel()]).reshape(x.shape) / 2 + 0.5


_GRADIENTS = {
    "Relu": lambda c: [c.dy * (c.y > 0)],
    "Sigmoid": lambda c: [c.dy * c.y * (1 - c.y)],
    "Tanh": lambda c: [c.dy * (1 - c.y**2)],
    "Exp": lambda c: [c.dy * c.y],
    "Sqrt": lambda c: [c.dy / (2 * c.y)],
    "Reciprocal": lambda c: [-c.dy * c.y**2],
    "Log": lambda c: [c.dy / c.x],
    "Abs": lambda c: [c.dy * np.sign(c.x)],
    "Erf": lambda c: [c.dy * 2 / math.sqrt(math.pi) * np.exp(-(c.x**2))],
    "Gelu": lambda c: [c.dy * (_phi(c.x) + c.x * np.exp(-(c.x**2) / 2) / math.sqrt(2 * math.pi))],
    "Softplus": lambda c: [c.dy / (1 + np.exp(-c.x))],
    "LeakyRelu": lambda c: [c.dy * np.where(c.x > 0, 1, c.attributes.get("alpha", 0.01))],
    "Clip": lambda c: [c.dy * ((c.x > c.inputs[1]) & (c.x < c.inputs[2]))],
    "Pow": _power,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": lambda c: _layer_norm(c, centred=False),
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": lambda c: _pooled(c, lambda window, kernel: 1 / math.prod(kernel)),
    "GlobalAveragePool": lambda c: [np.broadcast_to(c.dy, c.shapes[0]) / math.prod(c.shapes[0][2:])],
    "ReduceSum": lambda c: _reduced(c, lambda count: 1),
    "ReduceMean": lambda c: _reduced(c, lambda count: 1 / count),
    "ReduceMax": _extreme,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Slice": _slice,
    "Pad": _pad,
    "Where": _where,
    "Trilu": lambda c: [np.triu(c.dy) if c.attributes.get("upper", 1) else np.tril(c.dy)],
    "CumSum": lambda c: [np.flip(np.cumsum(np.flip(c.dy, int(c.inputs[1])), int(c.inputs[1])), int(c.inputs[1]))],
}

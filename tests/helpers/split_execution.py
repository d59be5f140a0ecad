"""A plain interpreter of graphs on t devices at once: every op runs on what each device has, as its decision says.

It shares nothing with the costs: forms of tensors come from the propagation, values are numpy arrays in float64.
"""

from __future__ import annotations

import math

import numpy as np

from placewise.costing.sharding.op_table import read_ops
from placewise.costing.sharding.propagate import Propagation
from placewise.model.sharding import SUMMAND, WHOLE

FREE_OR_WHOLE = (WHOLE, -3)


def random_values(graph, seed=0):
    """Values of inputs and weights: positive variances, ids that exist, everything else around zero."""
    rng = np.random.default_rng(seed)

    def value(name, shape, dtype):
        if dtype.startswith("int"):
            return rng.integers(0, 50, shape)
        array = rng.standard_normal(shape)
        return np.abs(array) + 0.5 if "var" in name else array / math.sqrt(max(shape[-1] if shape else 1, 1))

    tensors, weights = graph.tensors, graph.weights
    given = {
        t: value(tensors.name[t], tensors.shape[t], tensors.dtype_name(t)) for t in range(int(graph.out_offsets[0]))
    }
    held = {w: value(weights.name[w], weights.shape[w], weights.dtype_name(w)) for w in range(len(weights))}
    return given, held


def run_whole(graph, given, held):
    """The values [n_tensors] of all tensors on one device."""
    values = dict(given)
    for op, row in enumerate(read_ops(graph).rows):
        arguments = {
            at: held[value.number] if value.is_weight else values[value.number] for at, value in row.arguments.items()
        }
        results = KINDS[row.kind](row, arguments, row.result_shapes)
        assert all(np.shape(r) == s for r, s in zip(results, row.result_shapes, strict=True)), (op, row.kind)
        values |= dict(zip(row.results, results, strict=True))
    return values


class SplitRun:
    """One run of a graph on `degree` devices; `exchanged` counts the collectives that were needed."""

    def __init__(self, graph, degree, unit=None, tokens=False):
        self.table, self.degree = read_ops(graph), degree
        units = [0] * graph.n_ops if unit is None else list(unit)
        self.pass_ = Propagation(self.table, degree, unit=units, repeats=[1] * graph.n_ops, sequence_parallel=tokens)
        self.spread = self.pass_.run()
        self.needs = {}
        for read in self.spread.reads:
            self.needs.setdefault(read.op, []).append(read.form)
        self.exchanged = 0

    def parts_of(self, tensor):
        layout = self.pass_._layout.get(tensor)
        return None if layout is None else self.pass_._parts[self.pass_._find(layout)]

    def run(self, given, held):
        """The values of the graph's outputs, put together from all devices."""
        self.local = {t: [value] * self.degree for t, value in given.items()}
        self.form = dict.fromkeys(given, WHOLE)
        graph = self.table.graph
        for op, row in enumerate(self.table.rows):
            made = [self.spread.made[t] for t in row.results]
            arguments = [{} for _ in range(self.degree)]
            needs = iter(self.needs.get(op, ()))
            for at, value in row.arguments.items():
                need = None if value.is_weight else next(needs, self.spread.form[value.number])
                for rank, part in enumerate(self.read(row, value, held, need)):
                    arguments[rank][at] = part
            results = []
            for rank in range(self.degree):
                shapes = [self.local_shape(s, f) for s, f in zip(row.result_shapes, made, strict=True)]
                summand = made[:1] == [SUMMAND]
                results.append(KINDS[row.kind](row, arguments[rank], shapes, rank=rank, t=self.degree, summand=summand))
            for k, tensor in enumerate(row.results):
                self.local[tensor] = [result[k] for result in results]
                self.form[tensor] = made[k]
        return {t: self.to_whole(t)[0] for t in range(graph.n_tensors) if graph.tensors.output[t]}

    def local_shape(self, shape, form):
        return tuple(n // self.degree if k == form else n for k, n in enumerate(shape)) if form >= 0 else tuple(shape)

    def read(self, row, value, held, need):
        """What each device gets of an argument."""
        number = value.number
        if value.is_weight:
            needs = self.spread.weight_reads[number]
            assert len(needs) == 1, "a weight is split in two ways"
            form = next(iter(needs))
            return cut(held[number], form, self.degree, self.spread.weight_layout.get(number))
        form = self.form[number]
        if form == need or (form in FREE_OR_WHOLE and need in FREE_OR_WHOLE):
            return self.local[number]
        whole = self.to_whole(number)[0] if form not in FREE_OR_WHOLE else self.local[number][0]
        if need in FREE_OR_WHOLE:
            return [whole] * self.degree
        joined = row.kind == "Concat" and _axis(row, {0: whole}) == need
        own = self.spread.made[number] == SUMMAND and number in self.pass_._layout  # a scattered sum has its own parts
        parts = self.parts_of(number if own else row.results[0])
        return cut(whole, need, self.degree, None if joined else parts)

    def to_whole(self, tensor):
        form = self.form[tensor]
        if form == SUMMAND:
            self.exchanged += 1
            total = sum(self.local[tensor])
            self.local[tensor], self.form[tensor] = [total] * self.degree, WHOLE
        elif form >= 0:
            return [join(self.local[tensor], form, self.parts_of(tensor))] * self.degree
        return self.local[tensor]


def cut(value, form, degree, parts):
    """The part of each device: 1/t of each part of the split dimension."""
    if form < 0:
        return [value] * degree
    blocks = np.split(value, _bounds(value.shape[form], parts), axis=form)
    return [
        np.concatenate([np.array_split(block, degree, axis=form)[rank] for block in blocks], axis=form)
        for rank in range(degree)
    ]


def join(locals_, form, parts):
    """The whole of what each device has a part of."""
    length = sum(local.shape[form] for local in locals_)
    pieces = [np.split(local, _bounds(local.shape[form], parts), axis=form) for local in locals_]
    assert length
    return np.concatenate([piece for block in zip(*pieces, strict=True) for piece in block], axis=form)


def _bounds(length, parts):
    ratio = parts or (1,)
    sizes = [length * part // sum(ratio) for part in ratio]
    assert sum(sizes) == length
    return np.cumsum(sizes)[:-1].tolist()


def _elementwise(function):
    return lambda row, x, shapes, **_: [function(*(x[at] for at in sorted(x)))]


def _scalar(row, x, name):
    return x[1] if 1 in x else row.attributes.get(name, row.attributes.get("other"))


def _matmul(row, x, shapes, *, rank=0, summand=False, **_):
    a, b = x[0], x[1]
    a = np.swapaxes(a, -1, -2) if row.attributes.get("transA") else a
    b = np.swapaxes(b, -1, -2) if row.attributes.get("transB") else b
    result = a @ b
    if 2 in x and not (summand and rank):
        result = result + x[2]
    return [result]


def _reshape(row, x, shapes, **_):
    return [np.reshape(x[0], shapes[0])]


def _transpose(row, x, shapes, **_):
    return [np.transpose(x[0], row.attributes.get("perm"))]


def _norm(row, x, shapes, *, centre, **_):
    shape = row.attributes.get("normalized_shape")
    rank = x[0].ndim
    first = rank - len(shape) if shape is not None else int(row.attributes.get("axis", -1)) % rank
    axes = tuple(range(first, rank))
    value = x[0] - x[0].mean(axes, keepdims=True) if centre else x[0]
    scaled = value / np.sqrt((value**2).mean(axes, keepdims=True) + 1e-5)
    return [scaled * x.get(1, 1.0) + x.get(2, 0.0)] + [np.zeros(s) for s in shapes[1:]]


def _batch_norm(row, x, shapes, **_):
    dims = (1, -1) + (1,) * (x[0].ndim - 2)
    scale, shift, mean, var = (np.reshape(x[at], dims) for at in range(1, 5))
    return [(x[0] - mean) / np.sqrt(var + 1e-5) * scale + shift] + [np.zeros(s) for s in shapes[1:]]


def _softmax(row, x, shapes, **_):
    axis = int(row.attributes.get("axis", row.attributes.get("dim", -1)))
    power = np.exp(x[0] - x[0].max(axis, keepdims=True))
    return [power / power.sum(axis, keepdims=True)]


def _conv(row, x, shapes, *, rank=0, t=1, summand=False, **_):
    data, kernel = x[0], x[1]
    groups, channels = max(int(row.attributes.get("group", 1)), 1), kernel.shape[1]
    groups = data.shape[1] // channels if groups > 1 else 1
    space = data.ndim - 2
    pads = row.attributes.get("pads") or (0,) * 2 * space
    strides = row.attributes.get("strides") or (1,) * space
    data = np.pad(data, [(0, 0), (0, 0), *((pads[k], pads[space + k]) for k in range(space))])
    windows = np.lib.stride_tricks.sliding_window_view(data, kernel.shape[2:], axis=tuple(range(2, data.ndim)))
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]
    made = []
    for group in range(groups):
        part = windows[:, group * channels : (group + 1) * channels]
        own = kernel[group * kernel.shape[0] // groups : (group + 1) * kernel.shape[0] // groups]
        axes = (1, *range(2 + space, 2 + 2 * space))
        made.append(np.moveaxis(np.tensordot(part, own, (axes, tuple(range(1, kernel.ndim)))), -1, 1))
    result = np.concatenate(made, axis=1)
    if 2 in x and not (summand and rank):
        result = result + np.reshape(x[2], (1, -1) + (1,) * space)
    return [result]


def _pool(row, x, shapes, **_):
    axes = tuple(range(2, x[0].ndim))
    if row.kind == "GlobalAveragePool":
        return [x[0].mean(axes, keepdims=True)]
    size = row.attributes["kernel_shape"]
    windows = np.lib.stride_tricks.sliding_window_view(x[0], size, axis=axes)
    strides = row.attributes.get("strides") or (1,) * len(size)
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]
    return [windows.max(tuple(range(-len(size), 0)))]


def _axis(row, x):
    return int(row.attributes.get("axis", row.attributes.get("dim", 0))) % x[min(x)].ndim


def _split(row, x, shapes, **_):
    axis = _axis(row, x)
    return np.split(x[0], np.cumsum([shape[axis] for shape in shapes])[:-1], axis=axis)


def _concat(row, x, shapes, **_):
    return [np.concatenate([x[at] for at in sorted(x)], axis=_axis(row, x))]


def _slice(row, x, shapes, *, t=1, **_):
    axis = _axis(row, x)
    if "index" in row.attributes:
        return [np.take(x[0], row.attributes["index"], axis=axis)]
    start, step = int(row.attributes.get("start", 0)), int(row.attributes.get("step", 1))
    local = x[0].shape[axis] != row.arguments[0].shape[axis]
    start = start // t if local else start
    picked = np.arange(x[0].shape[axis])[start::step][: shapes[0][axis]]
    return [np.take(x[0], picked, axis=axis)]


def _gather(row, x, shapes, *, rank=0, t=1, summand=False, **_):
    table, index = x[0], np.asarray(x[1])
    axis = _axis(row, {0: table})
    if not summand:
        return [np.take(table, index, axis=axis)]
    own = index - rank * len(table)
    inside = (own >= 0) & (own < len(table))
    return [np.where(inside[..., None], table[np.clip(own, 0, len(table) - 1)], 0.0)]


def _attention(row, x, shapes, **_):
    q, k, v = x[0], x[1], x[2]
    k, v = (np.repeat(part, q.shape[1] // part.shape[1], axis=1) for part in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(row.arguments[0].shape[-1])
    scores = scores + x[3] if 3 in x else scores
    power = np.exp(scores - scores.max(-1, keepdims=True))
    result = power / power.sum(-1, keepdims=True) @ v
    return [np.swapaxes(result, 1, 2) if "window" in row.attributes else result]


def _reduced_axes(row, x):
    axes = row.attributes.get("axes", row.attributes.get("dim", row.attributes.get("axis")))
    return tuple(range(x[0].ndim)) if axes is None else tuple(np.atleast_1d(axes).tolist())


def _sum(row, x, shapes, **_):
    kept = row.attributes.get("keepdims", row.attributes.get("keepdim", len(shapes[0]) == x[0].ndim))
    return [np.sum(x[0], axis=_reduced_axes(row, x), keepdims=bool(kept))]


def _mean(row, x, shapes, **_):
    """A device divides its sum by the whole length."""
    length = math.prod(row.arguments[0].shape[axis] for axis in _reduced_axes(row, x))
    return [_sum(row, x, shapes)[0] / length]


def _einsum(row, x, shapes, **_):
    return [np.einsum(row.attributes["equation"], *(x[at] for at in sorted(x)))]


def _erf(x):
    return np.vectorize(math.erf)(x)


KINDS = {
    "Add": lambda row, x, shapes, **_: [x[0] + _scalar(row, x, "other")],
    "Sub": lambda row, x, shapes, **_: [x[0] - _scalar(row, x, "other")],
    "Mul": lambda row, x, shapes, **_: [x[0] * _scalar(row, x, "other")],
    "Div": lambda row, x, shapes, **_: [x[0] / _scalar(row, x, "other")],
    "Pow": lambda row, x, shapes, **_: [x[0] ** _scalar(row, x, "exponent")],
    "Neg": _elementwise(np.negative),
    "Cos": _elementwise(np.cos),
    "Sin": _elementwise(np.sin),
    "Tanh": _elementwise(np.tanh),
    "Sigmoid": _elementwise(lambda x: 1 / (1 + np.exp(-x))),
    "Swish": _elementwise(lambda x: x / (1 + np.exp(-x))),
    "Gelu": _elementwise(lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2),
    "Relu": _elementwise(lambda x: np.maximum(x, 0)),
    "Identity": _elementwise(lambda x: x),
    "Cast": _elementwise(lambda x: x),
    "Expand": lambda row, x, shapes, **_: [np.broadcast_to(x[0], shapes[0])],
    "MatMul": _matmul,
    "Gemm": _matmul,
    "Einsum": _einsum,
    "Conv": _conv,
    "MaxPool": _pool,
    "GlobalAveragePool": _pool,
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Transpose": _transpose,
    "LayerNormalization": lambda row, x, shapes, **k: _norm(row, x, shapes, centre=True, **k),
    "RMSNormalization": lambda row, x, shapes, **k: _norm(row, x, shapes, centre=False, **k),
    "BatchNormalization": _batch_norm,
    "Softmax": _softmax,
    "Split": _split,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "Attention": _attention,
    "ReduceSum": _sum,
    "ReduceMean": _mean,
}

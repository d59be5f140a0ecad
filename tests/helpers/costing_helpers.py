"""One-op graphs for the tests of costing."""

from __future__ import annotations

from placewise.model.builder import GraphBuilder


def one_op(kind, inputs, outputs, *, weights=None, dtype="float32", dtypes=None, **attributes):
    """A graph of one op. `inputs` and `weights` map positions to shapes; `outputs` lists shapes.

    `dtypes` maps positions (outputs: ``"out"``) to element types other than `dtype`.
    """
    builder, types = GraphBuilder(), dtypes or {}
    op = builder.add_op("op", kind, dtype=dtype, attributes=attributes)
    if not isinstance(inputs, dict):
        inputs = dict(enumerate(inputs))
    for position, shape in inputs.items():
        tensor = builder.add_tensor(-1, shape=shape, dtype=types.get(position, dtype), name=f"in{position}")
        builder.add_edge(tensor, op, position)
    for position, shape in (weights or {}).items():
        weight = builder.add_weight(f"w{position}", shape=shape, dtype=types.get(position, dtype))
        builder.use_weight(weight, op, position)
    for number, shape in enumerate(outputs):
        out = types.get("out", dtype)
        builder.add_tensor(op, shape=shape, dtype=out, name=f"out{number}", output=True)
    return builder.build()

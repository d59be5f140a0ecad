"""The zoo speaks ONNX: its ops, attributes and argument positions pass ONNX's own checker and shape inference."""

import onnx
import pytest
from onnx import TensorProto, helper

from placewise.zoo import describe, generate, names

OPSET = 20
TYPES = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "bool": TensorProto.BOOL}
AS_INPUTS = {
    "Slice": ("starts", "ends", "axes"),
    "Squeeze": ("axes",),
    "ReduceSum": ("axes",),
    "ReduceMean": ("axes",),
    "Pad": ("pads",),
}
"""Attributes that are arguments in this version of ONNX."""
SMALL = {"source_steps": 3, "target_steps": 2, "steps": 3, "n_ops": 150, "cells": 1, "batch": 2}


def as_onnx(graph):
    """The graph as a model without shapes between its ops; weights are inputs, so that they need no data."""
    tensor, weight = graph.tensors, graph.weights
    inputs, seeds, nodes = [], [], []
    for values in (tensor, weight):
        for number, name in enumerate(values.name):
            if values is weight or tensor.producer[number] < 0:
                dtype = TYPES[values.dtype_name(number)]
                inputs.append(helper.make_tensor_value_info(name, dtype, values.shape[number]))
    for op, kind in enumerate(graph.ops.kind):
        attributes = dict(graph.ops.attributes[op])
        arguments = [tensor.name[t] for t in graph.inputs_of(op)]
        by_position = dict(zip(graph.edges.position[slice(*graph.in_offsets[op : op + 2])], arguments, strict=True))
        used = [weight.name[w] for w in graph.weights_of(op)]
        rows = slice(*graph.weight_offsets[op : op + 2])
        by_position |= dict(zip(graph.weight_edges.position[rows], used, strict=True))
        arguments = [by_position[position] for position in range(len(by_position))]
        made = graph.outputs_of(op)
        more = [attributes.pop(name) for name in AS_INPUTS.get(kind, ())]
        more += [tensor.shape[made[0]]] if kind == "Reshape" else []
        for place, values in enumerate(more):
            seeds.append(helper.make_tensor(f"{op}:{place}", TensorProto.INT64, [len(values)], values))
            arguments.append(seeds[-1].name)
        nodes.append(helper.make_node(kind, arguments, [tensor.name[t] for t in made], **attributes))
    ends = [
        helper.make_tensor_value_info(name, TYPES[tensor.dtype_name(t)], tensor.shape[t])
        for t, name in enumerate(tensor.name)
        if tensor.output[t]
    ]
    body = helper.make_graph(nodes, "zoo", inputs, ends, seeds)
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", OPSET)])


@pytest.mark.parametrize("name", names())
def test_shapes_are_those_that_onnx_infers(name):
    """Every op is valid as ONNX defines it, and makes the shape and element type that the generator says."""
    known = describe(name).dims
    graph = generate(name, {size: n for size, n in SMALL.items() if size in known}, training=True)
    model = as_onnx(graph)
    onnx.checker.check_model(model)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph
    found = {value.name: value.type.tensor_type for value in (*inferred.value_info, *inferred.output)}
    made = [t for t in range(graph.n_tensors) if graph.tensors.producer[t] >= 0]
    assert len(made) >= graph.n_ops
    for t in made:
        each = found[graph.tensors.name[t]]
        assert tuple(dim.dim_value for dim in each.shape.dim) == graph.tensors.shape[t], graph.tensors.name[t]
        assert each.elem_type == TYPES[graph.tensors.dtype_name(t)], graph.tensors.name[t]

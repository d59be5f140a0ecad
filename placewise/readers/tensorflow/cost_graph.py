"""CostGraphDef, TensorFlow's measurements: ops by name with times, outputs and memory, but without kinds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from placewise.errors import GraphError, ModelFileError
from placewise.model.builder import GraphBuilder
from placewise.model.graph import Source
from placewise.readers.base import ImportedModel
from placewise.readers.tensorflow.draft import Names, check_size, has_gradient_scope, mark_backward
from placewise.readers.tensorflow.types import dtype_of, shape_of

_US = 1e-6
_LARGEST = 2**62
_TRANSPORT = re.compile(r"(.+)/_(\d{1,9})")
_Port = tuple[int, int]
_ENDS = ("_SOURCE", "_SINK")
MAX_OUTPUTS = 65_536


def read_cost_graph(proto: Any, source: Source) -> ImportedModel:
    """Read a CostGraphDef as a graph; `op_seconds` are its compute costs, which the file holds in microseconds.

    Persistent memory becomes state; temporary memory becomes the attribute `temporary_bytes`. A transfer between
    devices becomes an edge again. Raises ModelFileError or GraphError.
    """
    transfers = _find_transfers(proto.node)
    transports = {node for pair in transfers.values() for node in pair[:2]}
    nodes = [node for node in proto.node if node.name not in _ENDS and node.id not in transports]
    if not nodes:
        raise ModelFileError("the file holds no cost graph", remedy="run the model while recording")
    builder, names, values = GraphBuilder(), Names(), Names()
    op_of: dict[int, int] = {}
    tensor_of: dict[tuple[int, int], int] = {}
    seconds: dict[str, float] = {}
    for node in nodes:
        if not node.name or node.id in op_of:
            where = f"node {node.name!r}" if node.name else f"node {node.id}"
            raise GraphError("has no name, or its id is not unique", where=where, remedy="record the cost graph again")
        name = names.make_unique(node.name)
        state = max(node.persistent_memory_size, 0)
        if state > _LARGEST:
            raise ModelFileError(f"keeps {state} bytes", where=f"node {name!r}", remedy="sizes are bytes, up to 2^62")
        attributes: dict[str, Any] = {"device": node.device} if node.device else {}
        if node.temporary_memory_size > 0:
            attributes["temporary_bytes"] = int(node.temporary_memory_size)
        op_of[node.id] = builder.add_op(
            name,
            "Op",
            scope=".".join(name.split("/")[:-1]),
            attributes=attributes,
            state_bytes=state,
            origin=(node.id,),
        )
        seconds[name] = max(node.compute_cost, 0) * _US
        for port, info in enumerate(node.output_info):
            tensor_of[node.id, port] = _add_output(builder, op_of[node.id], info, node.is_final, values, name, port)
    skipped = {node.id for node in proto.node if node.name in _ENDS} | transports
    for node in nodes:
        _connect(builder, node, op_of, tensor_of, skipped, values, {port: pair[2] for port, pair in transfers.items()})
    graph = builder.build(source)
    graph = mark_backward(graph, [has_gradient_scope(name) for name in graph.ops.name])
    times = np.array([seconds[name] for name in graph.ops.name])
    return ImportedModel(graph, warnings=_describe_warnings(nodes), op_seconds=times)


def _find_transfers(nodes: Sequence[Any]) -> dict[_Port, tuple[int, int, _Port]]:
    """Map the output of each receiver to the receiver, the sender and the tensor that was sent.

    TensorFlow writes a transfer between devices as two nodes: ``tensor/_8`` sends and ``tensor/_9`` receives.
    """
    senders, receivers = {}, {}
    for node in nodes:
        match = _TRANSPORT.fullmatch(node.name)
        if match and len(node.input_info) == 1 and not node.output_info:
            senders[match[1], int(match[2])] = node
        elif match and not node.input_info and len(node.output_info) == 1:
            receivers[match[1], int(match[2])] = node
    transfers = {}
    for (tensor, number), node in receivers.items():
        sender = senders.get((tensor, number - 1))
        if sender is not None:
            sent = sender.input_info[0]
            transfers[node.id, 0] = (node.id, sender.id, (sent.preceding_node, sent.preceding_port))
    return transfers


def _add_output(builder: GraphBuilder, op: int, info: Any, is_final: bool, values: Names, name: str, port: int) -> int:
    shape, dtype = shape_of(info.shape), dtype_of(info.dtype)
    check_size(name, shape or (), dtype)
    if info.size > _LARGEST:
        raise ModelFileError(f"makes {info.size} bytes", where=f"node {name!r}", remedy="sizes are bytes, up to 2^62")
    nbytes = info.size if info.size >= 0 else None
    tensor_name = values.make_unique(f"{name}:{port}" if port else name)
    return builder.add_tensor(op, shape=shape, dtype=dtype, nbytes=nbytes, name=tensor_name, output=is_final)


def _connect(
    builder: GraphBuilder, node: Any, op_of: dict[int, int], tensor_of: dict[tuple[int, int], int],
    skipped: set[int], values: Names, sources: dict[_Port, _Port],
) -> None:  # fmt: skip
    op = op_of[node.id]
    for position, info in enumerate(node.input_info):
        key = (info.preceding_node, info.preceding_port)
        key = sources.get(key, key)
        if key[0] in skipped:
            continue
        if key not in tensor_of:
            if key[0] not in op_of or not 0 <= key[1] < MAX_OUTPUTS:
                raise GraphError(
                    f"reads output {key[1]} of node {key[0]}, which does not exist",
                    where=f"node {node.name!r}",
                    remedy="record the cost graph again",
                )
            tensor_of[key] = builder.add_tensor(op_of[key[0]], name=values.make_unique(f"{key[0]}:{key[1]}"))
        builder.add_edge(tensor_of[key], op, position)
    for other in node.control_input:
        if other in skipped:
            continue
        if other not in op_of:
            raise GraphError(f"waits for node {other}, which does not exist", where=f"node {node.name!r}",
                             remedy="record the cost graph again")  # fmt: skip
        if (other, -1) not in tensor_of:
            tensor_of[other, -1] = builder.add_tensor(
                op_of[other], shape=(0,), dtype="bool", name=values.make_unique(f"^{other}")
            )
        builder.add_edge(tensor_of[other, -1], op)


def _describe_warnings(nodes: list[Any]) -> tuple[str, ...]:
    count = Counter(
        "inaccurate" if node.inaccurate else "unmeasured" for node in nodes if node.inaccurate or node.compute_cost <= 0
    )
    texts = {
        "inaccurate": "{} of {} ops have times that TensorFlow marks as inaccurate",
        "unmeasured": "{} of {} ops have no time in the file and count as free",
    }
    return tuple(text.format(count[key], len(nodes)) for key, text in texts.items() if count[key])

"""Ops that convert a list with known elements to a tensor, and a tensor to such a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placewise.readers.tensorflow.abstract_values import AbstractValue, NodeCall, Type
from placewise.readers.tensorflow.draft import Draft
from placewise.readers.tensorflow.list_elements import WRITES, elements_of, is_filled_tensor
from placewise.readers.tensorflow.nodes import Node


def unpack_list(draft: Draft, call: NodeCall, *, path: str) -> NodeCall:
    """Replace a list that is a tensor by its rows, if the call replaces one of them."""
    args, place = call.args, WRITES.get(call.node.op, len(call.args))
    if place >= len(args) or not is_filled_tensor(args[place]):
        return call
    if args[0].of_gradient and not args[place].of_gradient:
        return call
    value, node = args[place], call.node
    rows = [Type(value.dtype, (value.shape or ())[1:])] * (value.shape or (0,))[0]
    unpack = replace(node, name=f"{node.name}/list", op="Unpack", attr={})
    _, items = draft.add_op(NodeCall(unpack, (value,)), rows, path=path)
    filled = replace(value, tensor=-1, items=tuple(items))
    return replace(call, args=(*args[:place], filled, *args[place + 1 :]))


def pack_list(
    draft: Draft, node: Node, value: AbstractValue, types: Sequence[Type], *, path: str, after: Sequence[int]
) -> tuple[int, list[AbstractValue]]:
    """Add the op that packs the elements of a list into a tensor."""
    items = tuple(elements_of(value))
    pack = NodeCall(replace(node, op="Pack" if items else "TensorListReserve", attr={}), items)
    return draft.add_op(pack, types, path=path, after=after)


def materialize_lists(draft: Draft, call: NodeCall, *, path: str, after: Sequence[int]) -> NodeCall:
    """Replace lists without a tensor by tensors."""
    args = list(call.args)
    for place, value in enumerate(args):
        if value.items is not None:
            node = replace(call.node, name=f"{call.node.name}/list")
            _, results = pack_list(draft, node, value, [Type(value.dtype, value.shape)], path=path, after=after)
            args[place] = replace(results[0], is_list=True)
    return replace(call, args=tuple(args))

"""Lists in loops are edges; here are the ops that make a tensor of a list, and a list of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from placewise.readers.tensorflow.abstract_values import AbstractValue, NodeCall, Type
from placewise.readers.tensorflow.draft import Draft
from placewise.readers.tensorflow.list_elements import WRITES, elements_of, is_filled_tensor
from placewise.readers.tensorflow.nodes import Node


def unpack_list(draft: Draft, call: NodeCall, *, path: str) -> NodeCall:
    """The call with the rows of a tensor as the contents of a list, where one of them will be replaced."""
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
    """The op that joins the elements of a list, and its result."""
    items = tuple(elements_of(value))
    pack = NodeCall(replace(node, op="Pack" if items else "TensorListReserve", attr={}), items)
    return draft.add_op(pack, types, path=path, after=after)


def materialize_lists(draft: Draft, call: NodeCall, *, path: str, after: Sequence[int]) -> NodeCall:
    """The call with tensors in place of lists that are nowhere."""
    args = list(call.args)
    for place, value in enumerate(args):
        if value.items is not None:
            node = replace(call.node, name=f"{call.node.name}/list")
            _, made = pack_list(draft, node, value, [Type(value.dtype, value.shape)], path=path, after=after)
            args[place] = replace(made[0], is_list=True)
    return replace(call, args=tuple(args))

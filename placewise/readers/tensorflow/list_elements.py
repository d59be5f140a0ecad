"""Lists with known contents: an op that reads an element becomes a direct edge to the value that was written.

Unrolled loops fill and empty their lists at known indices: TensorLists, TensorArrays of TF1, and the accumulators
through which a backward loop reads values of the forward loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from placewise.readers.tensorflow.abstract_values import AbstractValue, Items, NodeCall, Type, Unknown
from placewise.readers.tensorflow.draft import Draft
from placewise.readers.tensorflow.lists import HANDLE, RULES
from placewise.readers.tensorflow.nodes import Node

MAX_ITEMS = 10_000


def evaluate_list_op(call: NodeCall) -> list[AbstractValue] | None:
    """The results of an op on lists with known contents; None if the op must be kept."""
    rule = _RULES.get(call.node.op)
    try:
        return rule(call) if rule is not None else None
    except (Unknown, LookupError, ValueError, TypeError):
        return None


def is_filled_tensor(value: AbstractValue) -> bool:
    """Whether a list is a tensor whose rows can serve as its contents."""
    if not value.is_list or value.items is not None or value.shape is None or value.tensor < 0:
        return False
    return min(value.shape) >= 0 and 0 < value.shape[0] <= MAX_ITEMS


def elements_of(value: AbstractValue) -> list[AbstractValue]:
    """The values in a list, in order; empty slots are skipped."""
    return [item for item in value.items or () if item is not None]


def _known_items(call: NodeCall) -> Items:
    items = call.args[0].items
    if items is None:
        raise Unknown
    return items


def _make_list(call: NodeCall, port: int, items: Items) -> AbstractValue:
    """A list with these contents, of the type that the shape rule infers."""
    if len(items) > MAX_ITEMS:
        raise Unknown
    kind = RULES[call.node.op](call)[port]
    return AbstractValue(kind.dtype, kind.shape, is_list=True, items=items)


def _empty_like(value: AbstractValue) -> AbstractValue:
    """An empty list of the same type."""
    if not value.is_list or value.shape is None or not 0 <= value.shape[0] <= MAX_ITEMS:
        raise Unknown
    return AbstractValue(value.dtype, value.shape, is_list=True, items=(None,) * value.shape[0])


def read_flow(call: NodeCall, place: int) -> AbstractValue:
    """The contents of a TensorArray, which its flow carries (argument `place`).

    An array of gradients starts empty, whatever the flow: TensorFlow passes the flow of the forward pass.
    """
    handle, flow = call.args[0], call.args[place]
    return replace(_empty_like(flow), of_gradient=True) if handle.of_gradient and not flow.of_gradient else flow


def _pass_through(call: NodeCall) -> list[AbstractValue]:
    _known_items(call)
    return [call.args[0]]


def _reserve_list(call: NodeCall) -> list[AbstractValue]:
    count = call.number(1)
    return [_make_list(call, 0, (None,) * min(count, MAX_ITEMS + 1))]


def _pop_back(call: NodeCall) -> list[AbstractValue]:
    *rest, last = _known_items(call)
    if last is None:
        raise Unknown
    return [_make_list(call, 0, tuple(rest)), last]


def _set_item(call: NodeCall) -> list[AbstractValue]:
    return [_make_list(call, 0, _replace_item(_known_items(call), call.number(1), call.args[2]))]


def _replace_item(old: Items, place: int, value: AbstractValue) -> Items:
    if not 0 <= place < len(old):
        raise Unknown
    return (*old[:place], value, *old[place + 1 :])


def _element_at(items: Items, place: int) -> list[AbstractValue]:
    if items[place] is None:
        raise Unknown
    return [item for item in (items[place],) if item is not None]


def _array(call: NodeCall) -> list[AbstractValue]:
    count = min(call.number(0), MAX_ITEMS + 1)
    return [AbstractValue(*HANDLE), _make_list(call, 1, (None,) * count)]


def _array_gradient(call: NodeCall) -> list[AbstractValue]:
    handle = AbstractValue(*HANDLE, of_gradient=True)
    return [handle, read_flow(NodeCall(call.node, (handle, call.args[1])), 1)]


def _array_set_item(call: NodeCall) -> list[AbstractValue]:
    flow = read_flow(call, 3)
    if flow.items is None:
        raise Unknown
    items = _replace_item(flow.items, call.number(1), call.args[2])
    return [replace(_make_list(call, 0, items), of_gradient=flow.of_gradient)]


def _array_scatter(call: NodeCall) -> list[AbstractValue]:
    """Write all elements at once: the array is the tensor."""
    value, flow = call.args[2], read_flow(call, 3)
    if value.items is not None or value.shape is None or flow.shape is None or value.shape[:1] != flow.shape[:1]:
        raise Unknown
    return [replace(value, data=None, is_list=True, of_gradient=flow.of_gradient)]


def _add_lists(call: NodeCall) -> list[AbstractValue]:
    """Add lists of which at most one has a value at each index; a scalar beside them is the zero of the flow."""
    lists = [value for value in call.args if value.items is not None]
    if not lists or any(value.items is None and value.shape != () for value in call.args):
        raise Unknown
    columns = zip(*(value.items or () for value in lists), strict=True)
    filled = [[item for item in column if item is not None] for column in columns]
    if any(len(column) > 1 for column in filled):
        raise Unknown
    shapes = [value.shape for value in lists if value.shape is not None]
    items = tuple(column[0] if column else None for column in filled)
    longest = max(shapes, key=lambda shape: (len(shape), shape), default=None)
    return [replace(lists[0], shape=longest, items=items)]


WRITES: Mapping[str, int] = {"TensorListSetItem": 0, "TensorArrayWriteV3": 3}
"""The argument that is the list, for ops that replace an element."""
_RULES: Mapping[str, Callable[[NodeCall], list[AbstractValue]]] = {
    "TensorListReserve": _reserve_list,
    "TensorListPopBack": _pop_back,
    "TensorListSetItem": _set_item,
    "TensorArrayV3": _array,
    "TensorArrayGradV3": _array_gradient,
    "TensorArrayWriteV3": _array_set_item,
    "TensorArrayScatterV3": _array_scatter,
    **dict.fromkeys(("AddN", "Add", "AddV2"), _add_lists),
    "EmptyTensorList": lambda call: [_make_list(call, 0, ())],
    "TensorListPushBack": lambda call: [_make_list(call, 0, (*_known_items(call), call.args[1]))],
    "TensorListGetItem": lambda call: _element_at(_known_items(call), call.number(1)),
    "TensorArrayReadV3": lambda call: _element_at(read_flow(call, 2).items or (), call.number(1)),
    "ZerosLike": lambda call: [_empty_like(call.args[0])],
    "Identity": _pass_through,
}


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

"""Lists of tensors whose contents are known: who reads an element reads what was put there, and no op is needed.

Loops that are written out fill and empty their lists at known places: a TensorList, a TensorArray of TF1, or the
accumulators by which a backward loop gets at the values of the forward one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from placewise.readers.tensorflow.abstract_values import AbstractValue, Items, NodeCall, Unknown
from placewise.readers.tensorflow.lists import HANDLE, RULES

MOST_ITEMS = 10_000


def evaluate_list_op(call: NodeCall) -> list[AbstractValue] | None:
    """The results of an op on lists with known contents; None where it has to be an op."""
    rule = _RULES.get(call.node.op)
    try:
        return rule(call) if rule is not None else None
    except (Unknown, LookupError, ValueError, TypeError):
        return None


def is_filled_tensor(value: AbstractValue) -> bool:
    """Whether a list is a tensor whose rows could be its known contents."""
    if not value.is_list or value.items is not None or value.shape is None or value.tensor < 0:
        return False
    return min(value.shape) >= 0 and 0 < value.shape[0] <= MOST_ITEMS


def elements_of(value: AbstractValue) -> list[AbstractValue]:
    """What was put into a list, in order; places that nobody filled are left out."""
    return [item for item in value.items or () if item is not None]


def _known_items(call: NodeCall, position: int) -> Items:
    items = call.args[position].items
    if items is None:
        raise Unknown
    return items


def _make_list(call: NodeCall, port: int, items: Items) -> AbstractValue:
    """A list of the type that the shape rule says, with these contents."""
    if len(items) > MOST_ITEMS:
        raise Unknown
    kind = RULES[call.node.op](call)[port]
    return AbstractValue(kind.dtype, kind.shape, is_list=True, items=items)


def _empty_like(value: AbstractValue) -> AbstractValue:
    """A list of this type in which nothing was put."""
    if not value.is_list or value.shape is None or not 0 <= value.shape[0] <= MOST_ITEMS:
        raise Unknown
    return AbstractValue(value.dtype, value.shape, is_list=True, items=(None,) * value.shape[0])


def read_flow(call: NodeCall, place: int) -> AbstractValue:
    """The contents of a TensorArray: what flows to argument `place`.

    An array of gradients is empty at first, whatever flows: TensorFlow hands it the flow of the forward pass.
    """
    handle, flow = call.args[0], call.args[place]
    return replace(_empty_like(flow), of_gradient=True) if handle.of_gradient and not flow.of_gradient else flow


def _pass_through(call: NodeCall) -> list[AbstractValue]:
    _known_items(call, 0)
    return [call.args[0]]


def _reserve_list(call: NodeCall) -> list[AbstractValue]:
    count = call.number(1)
    return [_make_list(call, 0, (None,) * min(count, MOST_ITEMS + 1))]


def _empty(call: NodeCall) -> list[AbstractValue]:
    return [_make_list(call, 0, ())]


def _push_back(call: NodeCall) -> list[AbstractValue]:
    return [_make_list(call, 0, (*_known_items(call, 0), call.args[1]))]


def _pop_back(call: NodeCall) -> list[AbstractValue]:
    *rest, last = _known_items(call, 0)
    if last is None:
        raise Unknown
    return [_make_list(call, 0, tuple(rest)), last]


def _set_item(call: NodeCall) -> list[AbstractValue]:
    return [_make_list(call, 0, _replace_item(_known_items(call, 0), call.number(1), call.args[2]))]


def _replace_item(old: Items, place: int, value: AbstractValue) -> Items:
    if not 0 <= place < len(old):
        raise Unknown
    return (*old[:place], value, *old[place + 1 :])


def _get_item(call: NodeCall) -> list[AbstractValue]:
    return _element_at(_known_items(call, 0), call.number(1))


def _element_at(items: Items, place: int) -> list[AbstractValue]:
    if items[place] is None:
        raise Unknown
    return [item for item in (items[place],) if item is not None]


def _array(call: NodeCall) -> list[AbstractValue]:
    count = min(call.number(0), MOST_ITEMS + 1)
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


def _array_read(call: NodeCall) -> list[AbstractValue]:
    return _element_at(read_flow(call, 2).items or (), call.number(1))


def _array_scatter(call: NodeCall) -> list[AbstractValue]:
    """All elements at once: the array is the tensor."""
    value, flow = call.args[2], read_flow(call, 3)
    if value.items is not None or value.shape is None or flow.shape is None or value.shape[:1] != flow.shape[:1]:
        raise Unknown
    return [replace(value, data=None, is_list=True, of_gradient=flow.of_gradient)]


def _zeros_like(call: NodeCall) -> list[AbstractValue]:
    return [_empty_like(call.args[0])]


def _add_lists(call: NodeCall) -> list[AbstractValue]:
    """Sums of lists of which at most one has something at each place; a number beside them is the flow's zero."""
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
"""Which argument is the list in which an element is replaced."""
_RULES: Mapping[str, Callable[[NodeCall], list[AbstractValue]]] = {
    "Identity": _pass_through,
    "TensorListReserve": _reserve_list,
    "EmptyTensorList": _empty,
    "TensorListPushBack": _push_back,
    "TensorListPopBack": _pop_back,
    "TensorListSetItem": _set_item,
    "TensorListGetItem": _get_item,
    "TensorArrayV3": _array,
    "TensorArrayGradV3": _array_gradient,
    "TensorArrayWriteV3": _array_set_item,
    "TensorArrayReadV3": _array_read,
    "TensorArrayScatterV3": _array_scatter,
    "ZerosLike": _zeros_like,
    **dict.fromkeys(("AddN", "Add", "AddV2"), _add_lists),
}

"""Lists of tensors whose contents are known: who reads an element reads what was put there, and no op is needed.

Loops that are written out fill and empty their lists at known places: a TensorList, a TensorArray of TF1, or the
accumulators by which a backward loop gets at the values of the forward one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from placewise.readers.tensorflow.call import Call, Items, Unknown, Value
from placewise.readers.tensorflow.lists import HANDLE, RULES

MOST_ITEMS = 10_000


def results_without_op(call: Call) -> list[Value] | None:
    """The results of an op on lists with known contents; None where it has to be an op."""
    rule = _RULES.get(call.node.op)
    try:
        return rule(call) if rule is not None else None
    except (Unknown, LookupError, ValueError, TypeError):
        return None


def is_filled_tensor(value: Value) -> bool:
    """Whether a list is a tensor whose rows could be its known contents."""
    if not value.is_list or value.items is not None or value.shape is None or value.tensor < 0:
        return False
    return min(value.shape) >= 0 and 0 < value.shape[0] <= MOST_ITEMS


def elements_of(value: Value) -> list[Value]:
    """What was put into a list, in order; places that nobody filled are left out."""
    return [item for item in value.items or () if item is not None]


def _items(call: Call, position: int) -> Items:
    items = call.args[position].items
    if items is None:
        raise Unknown
    return items


def _new(call: Call, port: int, items: Items) -> Value:
    """A list of the type that the shape rule says, with these contents."""
    if len(items) > MOST_ITEMS:
        raise Unknown
    kind = RULES[call.node.op](call)[port]
    return Value(kind.dtype, kind.shape, is_list=True, items=items)


def _blank(value: Value) -> Value:
    """A list of this type in which nothing was put."""
    if not value.is_list or value.shape is None or not 0 <= value.shape[0] <= MOST_ITEMS:
        raise Unknown
    return Value(value.dtype, value.shape, is_list=True, items=(None,) * value.shape[0])


def flow_of(call: Call, place: int) -> Value:
    """The contents of a TensorArray: what flows to argument `place`.

    An array of gradients is empty at first, whatever flows: TensorFlow hands it the flow of the forward pass.
    """
    handle, flow = call.args[0], call.args[place]
    return replace(_blank(flow), of_gradient=True) if handle.of_gradient and not flow.of_gradient else flow


def _same(call: Call) -> list[Value]:
    _items(call, 0)
    return [call.args[0]]


def _reserved(call: Call) -> list[Value]:
    count = call.number(1)
    return [_new(call, 0, (None,) * min(count, MOST_ITEMS + 1))]


def _empty(call: Call) -> list[Value]:
    return [_new(call, 0, ())]


def _pushed(call: Call) -> list[Value]:
    return [_new(call, 0, (*_items(call, 0), call.args[1]))]


def _popped(call: Call) -> list[Value]:
    *rest, last = _items(call, 0)
    if last is None:
        raise Unknown
    return [_new(call, 0, tuple(rest)), last]


def _written(call: Call) -> list[Value]:
    return [_new(call, 0, _replaced(_items(call, 0), call.number(1), call.args[2]))]


def _replaced(old: Items, place: int, value: Value) -> Items:
    if not 0 <= place < len(old):
        raise Unknown
    return (*old[:place], value, *old[place + 1 :])


def _got(call: Call) -> list[Value]:
    return _found(_items(call, 0), call.number(1))


def _found(items: Items, place: int) -> list[Value]:
    if items[place] is None:
        raise Unknown
    return [item for item in (items[place],) if item is not None]


def _array(call: Call) -> list[Value]:
    count = min(call.number(0), MOST_ITEMS + 1)
    return [Value(*HANDLE), _new(call, 1, (None,) * count)]


def _array_gradient(call: Call) -> list[Value]:
    handle = Value(*HANDLE, of_gradient=True)
    return [handle, flow_of(Call(call.node, (handle, call.args[1])), 1)]


def _array_written(call: Call) -> list[Value]:
    flow = flow_of(call, 3)
    if flow.items is None:
        raise Unknown
    items = _replaced(flow.items, call.number(1), call.args[2])
    return [replace(_new(call, 0, items), of_gradient=flow.of_gradient)]


def _array_read(call: Call) -> list[Value]:
    return _found(flow_of(call, 2).items or (), call.number(1))


def _array_scattered(call: Call) -> list[Value]:
    """All elements at once: the array is the tensor."""
    value, flow = call.args[2], flow_of(call, 3)
    if value.items is not None or value.shape is None or flow.shape is None or value.shape[:1] != flow.shape[:1]:
        raise Unknown
    return [replace(value, data=None, is_list=True, of_gradient=flow.of_gradient)]


def _zeros(call: Call) -> list[Value]:
    return [_blank(call.args[0])]


def _added(call: Call) -> list[Value]:
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
_RULES: Mapping[str, Callable[[Call], list[Value]]] = {
    "Identity": _same,
    "TensorListReserve": _reserved,
    "EmptyTensorList": _empty,
    "TensorListPushBack": _pushed,
    "TensorListPopBack": _popped,
    "TensorListSetItem": _written,
    "TensorListGetItem": _got,
    "TensorArrayV3": _array,
    "TensorArrayGradV3": _array_gradient,
    "TensorArrayWriteV3": _array_written,
    "TensorArrayReadV3": _array_read,
    "TensorArrayScatterV3": _array_scattered,
    "ZerosLike": _zeros,
    **dict.fromkeys(("AddN", "Add", "AddV2"), _added),
}

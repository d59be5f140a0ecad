"""Gradients of views, copies and casts: views, copies and casts the other way."""

from __future__ import annotations

from placewise.transform.training.values import Call, Gradients, sum_to


def reshaped(call: Call) -> Gradients:
    """A view in another shape."""
    return {at: call.make("Reshape", call.gradient, like=call.inputs[at]) for at in call.wants}


def transposed(call: Call) -> Gradients:
    order = call.attributes.get("perm") or tuple(reversed(range(len(call.inputs[0].shape))))
    back = sorted(range(len(order)), key=lambda axis: int(order[axis]))
    return {at: call.make("Transpose", call.gradient, like=call.inputs[at], perm=tuple(back)) for at in call.wants}


def cast(call: Call) -> Gradients:
    return {at: call.make("Cast", call.gradient, like=call.inputs[at]) for at in call.wants}


def expanded(call: Call) -> Gradients:
    return {at: sum_to(call, call.gradient, call.inputs[at]) for at in call.wants}


def concatenated(call: Call) -> Gradients:
    """One Split, into the gradients of all arguments."""
    parts, axis = [call.inputs[at] for at in sorted(call.inputs)], _axis(call)
    lengths = tuple(part.shape[axis] if -len(part.shape) <= axis < len(part.shape) else 1 for part in parts)
    made = call.emit("Split", {0: call.gradient}, parts, {"axis": axis, "split": lengths})
    of = dict(zip(sorted(call.inputs), made, strict=True))
    return {at: of[at] for at in call.wants}


def split(call: Call) -> Gradients:
    """One Concat; parts that have no gradient have zeros."""
    parts = {
        place: call.given[place] if place in call.given else call.emit("ConstantOfShape", {}, (value,), {})[0]
        for place, value in enumerate(call.outputs)
    }
    return {at: call.emit("Concat", parts, (call.inputs[at],), {"axis": _axis(call)})[0] for at in call.wants}


def cached(call: Call) -> Gradients:
    """Keys and values pass a cache that holds nothing else: a training step keeps none from before."""
    return {
        at: call.given[at] for at in call.wants if at in call.given and call.given[at].shape == call.inputs[at].shape
    }


def _axis(call: Call) -> int:
    return int(call.number("axis", call.number("dim")))


def blocks_to_depth(call: Call) -> Gradients:
    """DepthToSpace and SpaceToDepth turn each other's values back."""
    kind = "SpaceToDepth" if call.kind == "DepthToSpace" else "DepthToSpace"
    return {at: call.emit(kind, {0: call.gradient}, (call.inputs[at],), call.attributes)[0] for at in call.wants}

"""Gradients of views, copies and casts are the inverse views, copies and casts."""

from __future__ import annotations

from placewise.transform.training.values import ForwardOp, Gradients, sum_to


def reshape(op: ForwardOp) -> Gradients:
    """A view of another shape."""
    return {at: op.make("Reshape", op.gradient, like=op.inputs[at]) for at in op.wants}


def transpose(op: ForwardOp) -> Gradients:
    order = op.attributes.get("perm") or tuple(reversed(range(len(op.inputs[0].shape))))
    back = sorted(range(len(order)), key=lambda axis: int(order[axis]))
    return {at: op.make("Transpose", op.gradient, like=op.inputs[at], perm=tuple(back)) for at in op.wants}


def cast(op: ForwardOp) -> Gradients:
    return {at: op.make("Cast", op.gradient, like=op.inputs[at]) for at in op.wants}


def expand(op: ForwardOp) -> Gradients:
    return {at: sum_to(op, op.gradient, op.inputs[at]) for at in op.wants}


def concat(op: ForwardOp) -> Gradients:
    """One Split, into the gradients of all arguments."""
    parts, axis = [op.inputs[at] for at in sorted(op.inputs)], _axis(op)
    lengths = tuple(part.shape[axis] if -len(part.shape) <= axis < len(part.shape) else 1 for part in parts)
    gradients = op.emit("Split", {0: op.gradient}, parts, {"axis": axis, "split": lengths})
    of = dict(zip(sorted(op.inputs), gradients, strict=True))
    return {at: of[at] for at in op.wants}


def split(op: ForwardOp) -> Gradients:
    """One Concat; parts without a gradient are zero."""
    parts = {
        place: op.given[place] if place in op.given else op.emit("ConstantOfShape", {}, (value,), {})[0]
        for place, value in enumerate(op.outputs)
    }
    return {at: op.emit("Concat", parts, (op.inputs[at],), {"axis": _axis(op)})[0] for at in op.wants}


def update_cache(op: ForwardOp) -> Gradients:
    """Keys and values pass a cache that holds nothing else: a training step keeps none from before."""
    return {at: op.given[at] for at in op.wants if at in op.given and op.given[at].shape == op.inputs[at].shape}


def _axis(op: ForwardOp) -> int:
    return int(op.number("axis", op.number("dim")))


def blocks_to_depth(op: ForwardOp) -> Gradients:
    """DepthToSpace and SpaceToDepth invert each other."""
    kind = "SpaceToDepth" if op.kind == "DepthToSpace" else "DepthToSpace"
    return {at: op.emit(kind, {0: op.gradient}, (op.inputs[at],), op.attributes)[0] for at in op.wants}

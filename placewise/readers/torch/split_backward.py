"""A pipeline stage whose backward pass is done in two: gradients of inputs first, those of weights later.

PyTorch groups the weights of a stage by the nodes at which the paths to them leave the paths to its inputs. Its groups
may overlap where a weight has several such nodes, as a tied one has, and the graph behind them is freed after the first
group. Then it counts gradients twice, or fails with "backward through the graph a second time". Outputs that depend on
no input lead to no group, so that what arrives there reaches no weight (PyTorch 2.13).

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.pipelining import PipelineStage


class Arrival(NamedTuple):
    """Where the backward pass of a stage begins, and the gradient that arrives there."""

    edge: GradientEdge
    gradient: torch.Tensor


class SplitBackwardStage(PipelineStage):
    """A `PipelineStage` that computes the gradients of all weights, in groups that share nothing."""

    _free: list[int] | None = None  # outputs that depend on no input: the same ones for every micro-batch

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """PyTorch's own, which it calls for "full", "input" and "weight", but for what goes from input to weight."""
        if backward_type == "weight":
            return add_weight_gradients(list(self.submod.parameters()), *bwd_kwargs["param_groups"]), None
        if backward_type != "input":
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        outputs = bwd_kwargs["stage_output"]
        if self._free is None:
            self._free = find_free_outputs(outputs, bwd_kwargs["input_values"])
        free = list_arrivals(outputs, bwd_kwargs["output_grads"], self._free)
        gradients, groups = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        return gradients, (merge_groups(groups or []), free)


def find_free_outputs(outputs: Sequence[torch.Tensor], inputs: Iterable[Any]) -> list[int]:
    """The places of the outputs that have a gradient and depend on no input."""
    needed = {get_gradient_edge(x).node for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad}
    return [
        place for place, output in enumerate(outputs)
        if output.requires_grad and not _reaches(get_gradient_edge(output).node, needed)
    ]  # fmt: skip


def list_arrivals(
    outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None] | None, places: Iterable[int]
) -> list[Arrival]:
    """What arrives at some outputs: ones at a loss, which has no `gradients`."""
    found = []
    for place in places:
        gradient = torch.ones_like(outputs[place]) if gradients is None else gradients[place]
        if gradient is not None:
            found.append(Arrival(get_gradient_edge(outputs[place]), gradient))
    return found


def _reaches(node: Any, targets: set[Any]) -> bool:
    """Whether the backward pass from a node comes to one of the targets."""
    stack, seen = [node], {node}
    while stack:
        node = stack.pop()
        if node in targets:
            return True
        behind = {other for other, _ in node.next_functions if other is not None} - seen
        seen |= behind
        stack.extend(behind)
    return False


def merge_groups(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Groups of weights ("params") and of the nodes from which their gradients go on ("intermediates"), with what
    arrived there ("grads"): those that share a weight or a node become one. Nodes at which nothing arrived go.
    """
    merged: list[tuple[set[Any], dict[Any, Any]]] = []
    for group in groups:
        params = set(group["params"])
        arrived = dict(zip(group["intermediates"], group.get("grads") or (), strict=False))
        nodes = {node: grads for node, grads in arrived.items() if grads is not None}
        apart = []
        for others, theirs in merged:
            if params.isdisjoint(others) and nodes.keys().isdisjoint(theirs):
                apart.append((others, theirs))
            else:
                params, nodes = params | others, theirs | nodes
        merged = [*apart, (params, nodes)]
    return [
        {"params": params, "intermediates": list(nodes), "grads": list(nodes.values())}
        for params, nodes in merged
        if nodes
    ]


def add_weight_gradients(
    weights: Sequence[torch.nn.Parameter], groups: Sequence[Mapping[str, Any]], free: Sequence[Arrival]
) -> tuple[torch.Tensor | None, ...]:
    """Add to the gradients of `weights` what merged `groups` of them bring, and what arrived at outputs that depend on
    no input.
    """
    trained = {get_gradient_edge(weight).node: weight for weight in weights if weight.requires_grad}
    for group in groups:
        nodes = list(group["params"])
        for node, gradient in zip(nodes, _differentiate_group(group, nodes), strict=True):
            _add(trained[node], gradient)
    if free:
        edges, arrived = [one.edge for one in free], [one.gradient for one in free]
        found = torch.autograd.grad(edges, list(trained.values()), arrived, allow_unused=True)
        for weight, gradient in zip(trained.values(), found, strict=True):
            _add(weight, gradient)
    return tuple(weight.grad for weight in weights)


def _differentiate_group(group: Mapping[str, Any], nodes: Sequence[Any]) -> tuple[torch.Tensor | None, ...]:
    """The gradients of the weights of a group, by their nodes. The graph is kept for the groups that follow."""
    begins, arrived = [], []
    for node, gradients in zip(group["intermediates"], group["grads"], strict=True):
        for place, gradient in enumerate(gradients):
            if gradient is not None:
                begins.append(GradientEdge(node, place))
                arrived.append(gradient)
    handles = []
    try:
        if len(group["intermediates"]) > 1:  # what comes to one of them from another one has been counted already
            for node, gradients in zip(group["intermediates"], group["grads"], strict=True):
                handles.append(node.register_prehook(lambda _, own=gradients: own))
        edges = [GradientEdge(node, 0) for node in nodes]
        return torch.autograd.grad(begins, edges, arrived, retain_graph=True, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()


def _add(weight: torch.nn.Parameter, gradient: torch.Tensor | None) -> None:
    if gradient is not None:
        weight.grad = gradient if weight.grad is None else weight.grad + gradient

"""A pipeline stage whose backward pass is done in two: gradients of inputs first, those of weights later.

PyTorch groups the weights of a stage by the nodes at which the paths to them leave the paths to its inputs. Its groups
may overlap where a weight has several such nodes, as a tied one has, and the graph behind them is freed after the first
group. Then it counts gradients twice, or fails with "backward through the graph a second time". Weights whose paths
never meet those of an input get no gradient at all (PyTorch 2.13).

This module depends on PyTorch only: exports contain a copy of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward_weight


class SplitBackwardStage(PipelineStage):
    """A `PipelineStage` that computes the gradients of all weights, in groups that share nothing."""

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """PyTorch's own, which it calls for "full", "input" and "weight", but for what goes from input to weight."""
        if backward_type == "weight":
            return compute_weight_gradients(list(self.submod.parameters()), *bwd_kwargs["param_groups"]), None
        if backward_type != "input":
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        leaving = find_edges(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"])
        gradients, groups = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        groups = merge_groups(groups or [])
        grouped = {node for group in groups for node in group["params"]}
        apart = [weight for weight in self.submod.parameters() if get_gradient_edge(weight).node not in grouped]
        return gradients, (groups, apart, leaving if apart else {})


def find_edges(outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None] | None) -> dict[Any, Any]:
    """Where the backward pass of a stage begins, with what arrives there: ones at a loss, which has no `gradients`."""
    return {
        get_gradient_edge(output): torch.ones_like(output) if gradients is None else gradients[i]
        for i, output in enumerate(outputs)
        if output.requires_grad
    }


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


def compute_weight_gradients(
    weights: Sequence[torch.nn.Parameter],
    groups: list[dict[str, Any]],
    apart: Sequence[torch.nn.Parameter],
    leaving: Mapping[Any, torch.Tensor | None],
) -> tuple[torch.Tensor | None, ...]:
    """Add to the gradients of `weights`: of merged `groups` of them, and of those `apart`, from the stage's outputs."""
    stage_backward_weight(iter(weights), groups, retain_graph=True)
    begun = {edge: gradient for edge, gradient in leaving.items() if gradient is not None}
    if begun:
        found = torch.autograd.grad(list(begun), apart, list(begun.values()), allow_unused=True)
        for weight, gradient in zip(apart, found, strict=True):
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
    return tuple(weight.grad for weight in weights)

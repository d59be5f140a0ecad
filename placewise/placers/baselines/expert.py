"""expert: the split of a person who knows the model. Layers in a row, about equal work on every accelerator.

Layers are found by the numbers in scopes (``encoder.layer.3``); without such numbers, the ops in their order stand for
layers. In recurrent models every layer has one device for all its steps, with attention and softmax beside the last
layer, as the experts of Mirhoseini et al. (ICML 2017) and of GNMT (Wu et al., 2016) did; convolutional models are cut
between their stages. Backward ops share the devices of their forward ops. A published split is taken unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers.base import PlacerInfo, SearchContext
from placewise.placers.baselines.expert_layers import Layers, fill_layers, find_layers
from placewise.placers.shared.fit import fit_memory
from placewise.placers.shared.interchangeable import relabel
from placewise.placers.shared.partitions.component_lines import fill_stages, shift_late, sort_by_rank
from placewise.placers.shared.partitions.hypergraph import build_hypergraph, list_working_devices
from placewise.placers.shared.partitions.repair_and_select import CandidateSelector
from placewise.placers.shared.repair import repair
from placewise.placers.shared.rules import find_broken_rule


@dataclass(frozen=True, slots=True)
class ExpertOptions:
    """`hint`: take the first hint, if there is one, as the expert's split."""

    hint: bool = True


class ExpertPlacer:
    """The human baseline of the placement papers: an even split by layers, made by hand."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="expert",
        summary="even by layers, as people place by hand; a split of theirs as it stands",
        source="the human experts of Mirhoseini et al., ICML 2017, and Tarnawski et al., NeurIPS 2020",
    )
    Options = ExpertOptions

    def __init__(self, options: ExpertOptions | None = None) -> None:
        self.options = options or ExpertOptions()

    def supports(self, problem: Problem) -> str | None:
        return None

    def propose(self, search: SearchContext) -> Proposal:
        """The expert's split, from the hints or built here, or a note of why it cannot be used."""
        problem = search.problem
        if search.hints.placements and self.options.hint:
            return _check_hint(problem, search.hints.placements[0])
        selector = CandidateSelector(problem, search.price, search.watch)
        reason = Reason.FINISHED
        try:
            _offer_layers(problem, selector)
        except KeyboardInterrupt:
            reason = Reason.INTERRUPTED
        if selector.best is None:
            fault = selector.rejections[0] if selector.rejections else "there was no time"
            return Proposal(None, reason=reason, notes=(f"an even split by layers makes no placement: {fault}",))
        return Proposal(Placement(relabel(problem, selector.best)), reason=reason)


def _check_hint(problem: Problem, split: Placement) -> Proposal:
    """A person's own split; if it has calls, an order or replicas, only the judge checks its memory."""
    plain = split.call is None and split.order is None and split.replicas is None
    fault = find_broken_rule(problem, split.device) if plain else ""
    if fault:
        return Proposal(None, notes=(f"the expert's split breaks a rule: {fault}",))
    return Proposal(split)


def _offer_layers(problem: Problem, selector: CandidateSelector) -> None:
    """Offer layers in a row, of equal work and of equal number; recurrent stacks also each over all devices."""
    graph, instance, devices = selector.graph, selector.instance, list_working_devices(problem)
    layers = find_layers(problem.graph, len(devices))
    if layers is None:
        unit = np.empty(problem.n_blocks, np.int32)
        unit[problem.block] = np.arange(graph.n, dtype=np.int32)[graph.component]
    else:
        unit = fill_layers(problem, graph, layers.of)
    work = np.where(instance.runs[:, devices], instance.damage[:, devices], 0.0).mean(axis=1)
    if not work.any():
        work = np.ones(problem.n_blocks)
    load = np.bincount(unit, weights=work).astype(np.float64)
    share = build_hypergraph(problem, instance, devices).share if len(devices) > 1 else np.ones(1)
    _offer_stages(problem, selector, unit, _split_evenly(load, share), devices)
    if layers is None:
        return
    in_a_row = _split_evenly(np.ones(len(load)), share)
    _offer_stages(problem, selector, unit, in_a_row, devices)
    if layers.recurrent and not problem.constraints.shaped:
        last = np.zeros(problem.n_blocks, np.bool_)
        last[problem.block[layers.last]] = True
        unit = np.where(last, len(load) - 1, unit)
        for stage in (in_a_row, _spread_stacks(layers, len(devices))):
            _offer_stages(problem, selector, unit, stage, devices)


def _split_evenly(load: Floats, share: Floats) -> Ints:
    """The stage [n_units] of each unit in a row: the device whose share of all work holds the middle of the unit."""
    middle = (np.cumsum(load) - load / 2) / max(float(load.sum()), np.finfo(float).tiny)
    ends = np.cumsum(share / share.sum())[:-1]
    return np.searchsorted(ends, middle, side="right").astype(np.int32)


def _spread_stacks(layers: Layers, count: int) -> Ints:
    """Layer i of a stack of n on device ⌊i · count / n⌋, every stack (encoder, decoder) over all devices."""
    numbers: dict[str, list[int]] = {}
    for stack, number in zip(layers.stack, layers.number, strict=True):
        numbers.setdefault(stack, []).append(number)
    ordered = {stack: sorted(known) for stack, known in numbers.items()}
    places = [
        ordered[stack].index(number) * count // max(len(ordered[stack]), 1)
        for stack, number in zip(layers.stack, layers.number, strict=True)
    ]
    return np.array(places, np.int32)


def _offer_stages(problem: Problem, selector: CandidateSelector, unit: Ints, stage: Ints, devices: Ints) -> None:
    """Offer units [n_blocks] in stages [n_units], repaired until memory, rules and the shape of stages are kept."""
    graph = selector.graph
    if not problem.constraints.shaped:
        assignment = devices[stage[unit]]
        device = repair(problem, assignment[problem.block], instance=selector.instance, watch=selector.watch)
        if device is not None and selector.consider(device, checked=True) and np.isfinite(selector.value):
            return
        if device is None:
            selector.rejections.append("its layers do not fit in memory, whatever blocks move")
        if selector.best is not None and np.isfinite(selector.value):
            return
    rank = np.zeros(graph.n, np.int32)
    np.maximum.at(rank, graph.component, stage[unit][problem.block])
    rank = shift_late(graph, rank)
    if selector.consider(devices[rank][graph.component]):
        return
    device, _ = fit_memory(problem, partial(fill_stages, problem, graph, sort_by_rank(rank)))
    if device is not None:
        selector.consider(device)

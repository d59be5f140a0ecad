"""gdp: a policy places all ops of a graph at once; its weights fit any graph and any devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from placewise.errors import PlacerError
from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.base import Budget, PlacerInfo, run_placer
from placewise.placers.learned.features import build_features
from placewise.placers.learned.gdp_network import Embedded, GdpNetwork
from placewise.placers.learned.options import PLAIN, LearningOptions, require_at_least
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.policy import Policy, Price, Rollout, draw, draw_segment, entropy_of, position_ranks
from placewise.placers.learned.pricing import BudgetExhausted, always_fits
from placewise.placers.learned.view import build_view, coarse_labels
from placewise.placers.registry import create
from placewise.placers.shared.repair import repair
from placewise.placers.shared.rules import find_broken_rule

SECTIONS = ("kind", "shape", "degrees", "work", "weights", "levels", "places", "backward")
MAX_IDLE, BETTER = 2, 1e-6
"""Refinements in a row without a gain before they stop, and the least relative gain."""
REFINED_OPS = 100_000
"""Largest product of ops and refinements: pricing takes longer than the refinement itself."""
MANY = 100_000
"""Ops times devices above which not every number of devices is tried."""


@dataclass(frozen=True)
class GdpOptions(LearningOptions):
    """Training as in Zhou et al. 2019 (GDP); docs/learning.md lists the differences.

    Units are blocks (colocation groups); with `units` "coarse", graphs of more than `most_units` blocks are coarsened
    first. The network has `layers` of neighbourhood aggregation, then `attentions` layers with `heads` over segments of
    `segment` units, and `rounds` in which devices are scored with the loads and neighbours that follow from the round
    before; `hidden` numbers per unit, `inner` per unit and device.

    `prior` is the weight of the initial scores, which prefer fast and idle devices, the neighbours' devices, and what
    list schedulers choose (0: none). There are `prior_sets` sets of such weights, each of which gives choices of its
    own; samples are drawn from the first. `refinements` is the largest number of times that the policy refines the best
    of its choices, while that helps. In a share `moving` of the updates, `regions` of units that are close in an order
    move together, from the best placement so far.

    Switches: `device_features`, and `advice`, which adds the choices of list schedulers as features and prices the
    placement of METIS.
    """

    paper: ClassVar[Mapping[str, Any]] = {
        **PLAIN, "epochs": 4, "rate": 1e-4, "entropy": 0.01, "units": "all", "attentions": 3, "heads": 8, "hidden": 128,
        "rounds": 1, "prior_sets": 1, "refinements": 0, "prior": 0.0, "moving": 0.0, "device_features": False,
        "advice": False,
    }  # fmt: skip
    algorithm: Literal["reinforce", "ppo"] = "ppo"
    epochs: int = 2
    rate: float = 5e-4
    units: Literal["coarse", "all"] = "coarse"
    most_units: int = 512
    layers: int = 2
    attentions: int = 2
    heads: int = 4
    segment: int = 256
    rounds: int = 8
    hidden: int = 64
    inner: int = 32
    prior_sets: int = 16
    refinements: int = 12
    prior: float = 1.0
    moving: float = 1.0
    regions: int = 2
    device_features: bool = True
    advice: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, most_units=1, layers=0, attentions=0, heads=1, segment=1, rounds=1, hidden=1, inner=1)
        require_at_least(self, prior_sets=1, refinements=0, regions=1)
        if self.hidden % self.heads:
            raise PlacerError(f"hidden is {self.hidden}", remedy=f"give a multiple of the {self.heads} heads")
        self.require_shares("moving")
        self.require_numbers("prior")


class Gdp(GdpNetwork):
    """The policy of GDP. Its parameters fit any graph and any devices. `notes` reports a lack of memory."""

    any_devices: ClassVar[bool] = True
    version: ClassVar[int] = 2

    def __init__(self, problem: Problem, options: GdpOptions) -> None:
        most = options.most_units if options.units == "coarse" else problem.n_blocks
        view = build_view(problem, coarse_labels(problem, most))
        super().__init__(view, build_features(view, SECTIONS, hashed=True), options)
        self.fits = always_fits(problem)
        self.rank = position_ranks(self.facts.place)

    def logits(self) -> Tensor:
        """Log p [n, D] of every unit's device."""
        scores = self._retry_in_less_memory(lambda: self.scores(self.inputs, self.embedded())[0])
        return self.explore(scores, self.inputs.allowed, self.view.n)

    def rollout(self, count: int, generator: torch.Generator, price: Price) -> Rollout:
        """Draw `count` whole placements; or, in a share `moving` of calls, moves of regions."""
        with torch.no_grad():
            logits = self.logits()
            if float(torch.rand((), generator=generator)) < self.options.moving:
                return self._moves(logits, count, generator, price)
            device = draw(logits.expand(count, -1, -1), generator)
        return Rollout({"device": device}, price(self.view.placements(device.numpy())))

    def _moves(self, logits: Tensor, count: int, generator: torch.Generator, price: Price) -> Rollout:
        """Draw episodes that move regions of the best placement so far, or of the likeliest one if there is none."""
        likeliest = logits.argmax(dim=1)
        masks, moves, path = [], [], []
        for _ in range(count):
            best = self.best_so_far(price)
            start = likeliest if best is None else best
            mask = torch.stack([draw_segment(self.rank, generator) for _ in range(self.options.regions)])
            move = draw(self.move_log_p(logits, mask, self.inputs.allowed, self.options.regions), generator)
            row = start
            for region, device in zip(mask, move, strict=True):
                row = torch.where(region & self.inputs.allowed[:, device], device, row)
            masks.append(mask)
            moves.append(move)
            path.append(price(self.view.placements(torch.stack((start, row)).numpy())))
        seconds = np.stack(path)
        return Rollout({"region": torch.stack(masks), "move": torch.stack(moves)}, seconds[:, -1], seconds)

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log p and entropy [K, n] of every unit's device, or [K, regions] of every region's."""
        if "move" in choices:
            log_p = self.move_log_p(self.logits(), choices["region"], self.inputs.allowed, self.options.regions)
            device = choices["move"]
            return log_p.gather(-1, device.unsqueeze(-1)).squeeze(-1), entropy_of(log_p)
        log_p, device = self.logits(), choices["device"]
        log_prob = log_p[torch.arange(self.view.n), device]
        return log_prob, entropy_of(log_p).expand_as(log_prob)

    def greedy(self, price: Price) -> Ints:
        """The likeliest placements by each prior set, on all devices and on ever fewer fast ones; then refinements.

        They are repaired until they fit. The first is that of the first set, from which samples are drawn, on all
        devices.
        """
        with torch.no_grad():
            embedded = self._retry_in_less_memory(self.embedded)
        rows = self._repair_rows(np.concatenate(self._likeliest(embedded)))
        return np.concatenate((rows, *self._refine(rows, price, embedded)))

    def suggestions(self) -> Ints:
        """The placement of METIS, if `advice` is on and it fits."""
        metis = run_placer(create("metis"), self.view.problem, Budget()).placement if self.options.advice else None
        return super().suggestions() if metis is None else metis.device[None]

    @torch.no_grad()
    def _refine(self, rows: Ints, price: Price, embedded: Embedded | None) -> list[Ints]:
        """Run more rounds from the best priced placements, as if these were certain; return the gains [1, n_ops]."""
        better, most = list[Ints](), min(self.options.refinements, REFINED_OPS // max(self.view.problem.n_ops, 1))
        open_rows: list[tuple[float, int, Ints]] = []
        known, value, idle = set[bytes](), np.inf, 0
        with suppress(BudgetExhausted):
            for _ in range(most + 1):
                seconds = price(rows)
                for row, spent in zip(rows, seconds.tolist(), strict=True):
                    if math.isfinite(spent) and row.tobytes() not in known:
                        known.add(row.tobytes())
                        heappush(open_rows, (spent, len(known), row))
                idle += 1
                if open_rows and open_rows[0][0] < value * (1 - BETTER):
                    value, idle = open_rows[0][0], 0
                    better.append(open_rows[0][2][None])
                if idle == MAX_IDLE or not open_rows:
                    break
                rows = np.unique(self.view.placements(self.rounds_from(heappop(open_rows)[2], embedded)), axis=0)
        return better[1:]

    @torch.no_grad()
    def _likeliest(self, embedded: Embedded | None) -> list[Ints]:
        """The likeliest placements [S, n_ops] by each prior set, for every number of devices."""
        n_devices = self.view.n_devices
        order = np.lexsort((np.arange(n_devices), -self.facts.speed))
        placements = []
        for count in _device_counts(n_devices, many=self.view.problem.n_ops * n_devices > MANY):
            inputs = self._inputs(np.isin(np.arange(n_devices), order[:count]))
            rows = [
                self._retry_in_less_memory(partial(self.scores, inputs, embedded, sets)).argmax(dim=-1).numpy()
                for sets in self.batch_priors(embedded)
            ]
            placements.append(self.view.placements(np.concatenate(rows)))
        return placements

    def _repair_rows(self, rows: Ints) -> Ints:
        """Remove duplicates among placements [K, n_ops], and repair each until it fits."""
        first = np.unique(rows, axis=0, return_index=True)[1]
        return np.stack([self._repair(row) for row in rows[np.sort(first)]])

    def decisions(self, placements: Ints) -> Mapping[str, Tensor]:
        return {"device": torch.from_numpy(self.view.devices(placements)).long()}

    def _repair(self, row: Ints) -> Ints:
        """Change a placement [n_ops] as little as possible until it fits; return it unchanged if that fails."""
        problem = self.view.problem
        if self.fits or not find_broken_rule(problem, row):
            return row
        repaired = repair(problem, row, measured=False)
        return row if repaired is None else repaired


def _device_counts(n_devices: int, *, many: bool) -> list[int]:
    """The numbers of devices to try: from all down to one; on large graphs all, and 1, 2, 4, … fewer."""
    if not many:
        return list(range(n_devices, 0, -1))
    return [n_devices, *(n_devices - (1 << k) for k in range(n_devices.bit_length()) if 1 << k < n_devices)]


class GdpPlacer(LearnedPlacer):
    """Without updates, it places graphs that it was never trained on."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="gdp",
        summary="a policy that places all ops at once; its weights fit any graph, and it starts untrained",
        source="Zhou et al. 2019, arXiv 1910.01578 (GDP); Zhou et al., NeurIPS 2020 (GO)",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = GdpOptions
    network: ClassVar[type[Policy]] = Gdp

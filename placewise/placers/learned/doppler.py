"""doppler: one policy selects the next unit of a partial schedule, another its device; both first imitate a heuristic.

Messages are passed once per episode: what changes with every step are the candidates and the features of devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from placewise.model.columns import Bools, Floats, Ints, Longs
from placewise.model.problem import Problem
from placewise.placers.base import PlacerInfo
from placewise.placers.learned.features import build_features, link_pace, time_scale, to_single
from placewise.placers.learned.options import LARGEST, PLAIN, Baseline, LearningOptions, require_at_least
from placewise.placers.learned.partial_schedules import STATE, PartialSchedules, schedule_graph
from placewise.placers.learned.placer import LearnedPlacer
from placewise.placers.learned.policy import Policy, Price, Rollout, paths_of, score_choices
from placewise.placers.learned.view import build_view, coarse_labels

SECTIONS = ("work", "levels")
"""A unit's seconds and those of its transfers in and out; the longest paths from the start to it and on to the end."""
TIES = 8
"""Schedules of the heuristic, their ties drawn, that are priced where moves start from the best placement."""
LOWEST = -60.0
"""Least logarithm of a candidate's weight, below the largest."""


@dataclass(frozen=True)
class DopplerOptions(LearningOptions):
    """Training as in Yao et al., ICLR 2026; docs/learning.md lists the differences.

    Units are blocks (colocation groups), coarsened if there are more than `most_units`. Before the first update, both
    policies take `imitation` steps towards the critical-path heuristic, with `samples` schedules each; not if their
    weights come from a `checkpoint`. With an `epsilon`, decisions are the likeliest or, in that share, uniformly
    random; the share falls to zero along the budget. With 0 they are drawn. In a share `moving` of the updates, about
    `moves` units are placed anew, and the others stay as in the best placement so far; the reward is the gain. Networks
    have `rounds` of messages and `hidden` numbers per unit.
    """

    paper: ClassVar[Mapping[str, Any]] = {
        **PLAIN, "samples": 1, "updates": 2000, "reward": "negative", "baseline": "average", "rate": 1e-4,
        "final_rate": 1e-3, "entropy": 0.01, "clip_norm": LARGEST, "imitation": 2000, "epsilon": 0.2, "moving": 0.0,
        "rounds": 6, "hidden": 128,
    }  # fmt: skip
    baseline: Baseline = "batch"
    elite: float = 0.25
    rate: float = 5e-3
    imitation: int = 100
    epsilon: float = 0.0
    moving: float = 0.3
    moves: int = 2
    most_units: int = 512
    rounds: int = 3
    hidden: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, imitation=0, moves=1, most_units=1, rounds=0, hidden=2)
        self.require_shares("epsilon", "moving")


class Encoder(nn.Module):
    """Messages along the edges and against them: embeddings [n, hidden] of units, and of their features alone."""

    def __init__(self, width: int, hidden: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.enter, self.alone = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.message, self.update = nn.Linear(2 * hidden + 1, hidden), nn.Linear(2 * hidden, hidden)

    def forward(self, x: Tensor, edges: Tensor, sent: Tensor) -> tuple[Tensor, Tensor]:
        """`x` [n, width], `edges` [2, E] from and to units, `sent` [E, 1]."""
        h = _leaky(self.enter(x))
        mean = 1.0 / torch.bincount(edges[1], minlength=len(x)).clamp_min(1)[:, None]
        for _ in range(self.rounds):
            message = _leaky(self.message(torch.cat((h[edges[0]], h[edges[1]], sent), dim=1)))
            heard = torch.zeros_like(h).index_add(0, edges[1], message) * mean
            h = h + _leaky(self.update(torch.cat((h, heard), dim=1)))
        return h, _leaky(self.alone(x))


class Doppler(Policy):
    """Selects units and places them. Its parameters fit any graph and any devices."""

    options: DopplerOptions
    any_devices: ClassVar[bool] = True

    def __init__(self, problem: Problem, options: DopplerOptions) -> None:
        super().__init__()
        view = build_view(problem, coarse_labels(problem, options.most_units))
        self.view, self.options, self.features = view, options, build_features(view, SECTIONS)
        self.graph = schedule_graph(view.tail, view.head, view.flow, view.seconds, view.allowed, link_pace(problem))
        self.x = _standardize(torch.from_numpy(self.features.matrix))
        self.edges = torch.from_numpy(np.stack((np.r_[view.tail, view.head], np.r_[view.head, view.tail]))).long()
        self.sent = to_single(np.log1p(np.tile(view.flow, 2) / time_scale(view)))[:, None]
        self.allowed = torch.from_numpy(view.allowed.copy())
        hidden, narrow = options.hidden, options.hidden // 2
        self.select, self.place = (Encoder(self.features.width, hidden, options.rounds) for _ in range(2))
        self.candidate = nn.Sequential(nn.Linear(4 * hidden, narrow), nn.LeakyReLU(0.1), nn.Linear(narrow, 1))
        self.unit, self.there = nn.Linear(2 * hidden, narrow), nn.Linear(hidden, narrow, bias=False)
        self.device = nn.Sequential(nn.Linear(STATE, hidden), nn.LeakyReLU(0.1), nn.Linear(hidden, narrow, bias=False))
        self.score = nn.Linear(narrow, 1)

    def rollout(self, count: int, generator: torch.Generator, price: Price) -> Rollout:
        """Draw whole placements; or, in a share `moving` of calls, some devices of the best placement so far."""
        moving = float(torch.rand((), generator=generator)) < self.options.moving
        price(self.suggestions())
        start = self.best_so_far(price) if moving else None
        choices, device = self._episodes(count, generator, start)
        if start is None:
            return Rollout(choices, price(self.view.placements(device)))
        path = paths_of(price(self.view.placements(np.concatenate((start[None].numpy(), device)))))
        return Rollout(choices, path[:, 1], path)

    def log_prob(self, choices: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Log p and entropy [K, 2n]: of the selections, then of the devices, in the order of each episode."""
        order, device, anew = choices["order"], choices["device"], choices["anew"]
        select = score_choices(self._candidates().masked_fill(~choices["ready"], -torch.inf), order)
        unit, there = self._units()
        on = functional.one_hot(device, self.view.n_devices).to(there.dtype)[..., None]
        held = _sum_before(on * there[order][:, :, None]) / _sum_before(on).clamp_min(1.0)
        place = score_choices(self._devices(order, unit, held, choices["state"], moving=not bool(anew.all())), device)
        log_p, entropy = (torch.cat((a, b.where(anew, 0.0)), dim=1) for a, b in zip(select, place, strict=True))
        return log_p, entropy

    def greedy(self, price: Price) -> Ints:
        """The placement [1, n_ops] of the likeliest decisions."""
        return self.view.placements(self._episodes(1)[1])

    def suggestions(self) -> Ints:
        """The heuristic's placements, whose ties are drawn, unless the policy never moves."""
        return self._heuristic

    def lessons(self, generator: torch.Generator) -> Iterator[Mapping[str, Tensor]]:
        for _ in range(self.options.imitation):
            yield self._episodes(self.options.samples, generator, teacher=True)[0]

    def decisions(self, placements: Ints) -> Mapping[str, Tensor]:
        """The heuristic's selections, and the devices of each placement."""
        return self._episodes(len(placements), given=self.view.devices(placements), teacher=True)[0]

    @cached_property
    def _heuristic(self) -> Ints:
        count = TIES if self.options.moving else 0
        return self.view.placements(self._episodes(count, torch.Generator().manual_seed(0), teacher=True)[1])

    def _candidates(self) -> Tensor:
        """The logit [n] of each unit while it is a candidate: it depends on the graph alone."""
        h, z = self.select(self.x, self.edges, self.sent)
        paths = (_standardize(_sum_along(h, pointer)) for pointer in (self.graph.onward, self.graph.backward))
        logits: Tensor = self.candidate(torch.cat((h, *paths, z), dim=1)).squeeze(-1)
        return logits

    def _units(self) -> tuple[Tensor, Tensor]:
        """What units add [n, narrow] to the scores of devices: the one that is placed, and those that are there."""
        h, z = self.place(self.x, self.edges, self.sent)
        return self.unit(torch.cat((h, z), dim=1)), self.there(h)

    def _devices(self, order: Tensor, unit: Tensor, held: Tensor, state: Tensor, *, moving: bool) -> Tensor:
        """Log p [..., D] of the devices of units `order` [...]; `held` [..., D, narrow] is the mean of who is there."""
        scores = self.score(_leaky(unit[order].unsqueeze(-2) + held + self.device(state))).squeeze(-1)
        return self.explore(scores, self.allowed[order], self.options.moves if moving else self.view.n)

    @torch.no_grad()
    def _episodes(
        self, count: int, generator: torch.Generator | None = None, start: Tensor | None = None, *,
        given: Ints | None = None, teacher: bool = False,
    ) -> tuple[dict[str, Tensor], Longs]:  # fmt: skip
        """The decisions of episodes, as `log_prob` reads them, and the devices [count, n] of units.

        Without a generator they are the likeliest. From the devices `start` [n], about `moves` units of each episode
        are placed anew. The `teacher` decides by the heuristic; `given` are the devices [count, n] of all units.
        """
        n, n_devices, row = self.view.n, self.view.n_devices, np.arange(count)
        draws, anew = np.zeros((n, 4, count)), np.ones((count, n), np.bool_)
        if generator is not None:
            draws = torch.rand(draws.shape, generator=generator).double().numpy()
            if start is not None:
                anew = (torch.rand((count, n), generator=generator) < self.options.moves / n).numpy()
                anew[row, torch.randint(n, (count,), generator=generator)] = True
        epsilon = self.options.epsilon * (1 - self.progress) if generator is not None else 0.0
        drawn = teacher or (generator is not None and not self.options.epsilon)
        if not teacher:
            logits, (unit_part, there) = self._candidates().double().numpy(), self._units()
            weight = np.exp(np.maximum(logits - logits.max(initial=-np.inf), LOWEST))
        schedules, on = PartialSchedules(self.graph, count), torch.zeros((count, n_devices, n))
        order, device = np.zeros((2, count, n), np.int64)
        ready, state = np.zeros((count, n, n), np.bool_), np.zeros((count, n, n_devices, STATE), np.float32)
        for step, draw in enumerate(draws):
            ready[:, step] = schedules.ready
            selects = schedules.critical() if teacher else weight * schedules.ready
            order[:, step] = unit = _choose(selects, draw[:2], None if drawn else epsilon)
            features = schedules.state(unit)
            state[:, step] = features
            if teacher:
                places = schedules.quickest(unit, features)
            else:
                held = (on @ there) / on.sum(dim=2, keepdim=True).clamp_min(1.0)
                rows = torch.from_numpy(unit), unit_part, held, torch.from_numpy(state[:, step])
                places = self._devices(*rows, moving=start is not None).double().exp().numpy()
            if given is None:
                chosen = _choose(places, draw[2:], None if drawn else epsilon)
            else:
                chosen = given[row, unit].astype(np.int64)
            if start is not None:
                chosen = np.where(anew[row, unit], chosen, start.numpy()[unit])
            device[:, step], on[row, chosen, unit] = chosen, 1.0
            schedules.place(unit, chosen)
        arrays = {"order": order, "device": device, "ready": ready, "state": state, "anew": anew[row[:, None], order]}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}, schedules.device[:, :n]


def _choose(weight: Floats | Bools, draw: Floats, epsilon: float | None) -> Longs:
    """An index [K] per row of weights [K, m], by draws [2, K] from 0 to 1.

    In proportion; or, with an `epsilon`, the largest, and in that share any that is not zero.
    """
    if epsilon is not None:
        largest = np.arange(weight.shape[1]) == weight.argmax(axis=1)[:, None]
        weight = np.where(draw[1][:, None] < epsilon, weight > 0, largest)
    total = weight.cumsum(axis=1, dtype=np.float64)
    chosen: Longs = (total > draw[0][:, None] * total[:, -1:]).argmax(axis=1)
    return chosen


def _leaky(x: Tensor) -> Tensor:
    return functional.leaky_relu(x, 0.1)


def _standardize(x: Tensor) -> Tensor:
    return (x - x.mean(dim=0)) / (x.std(dim=0, unbiased=False) + 1e-6)


def _sum_along(h: Tensor, pointer: Longs) -> Tensor:
    """The sums [n, width] along the paths that begin at each unit and go on at `pointer` [n], to n."""
    total, further = torch.cat((h, h.new_zeros(1, h.shape[1]))), torch.from_numpy(np.append(pointer, len(h)))
    for _ in range(len(h).bit_length()):
        total, further = total + total[further], further[further]
    return total[: len(h)]


def _sum_before(x: Tensor) -> Tensor:
    """For each step of episodes [K, steps, …], the sum over the steps before it."""
    return x.cumsum(dim=1) - x


class DopplerPlacer(LearnedPlacer):
    """Selects the next op and its device, step by step; learns from a heuristic, then from rewards."""

    info: ClassVar[PlacerInfo] = PlacerInfo(
        name="doppler",
        summary="one policy selects the next op, another its device; both imitate a heuristic, then learn from rewards",
        source="Yao et al., ICLR 2026 (arXiv 2505.23131), Doppler",
        extra="learn",
    )
    Options: ClassVar[type[LearningOptions]] = DopplerOptions
    network: ClassVar[type[Policy]] = Doppler

"""Learning: rewards from seconds, baselines, REINFORCE and PPO."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from placewise.model.columns import Bools, Floats
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Policy, Rollout, copy_parameters


@dataclass(frozen=True, slots=True)
class TrainStats:
    """Statistics of one update: mean reward, baseline, mean entropy of a decision, gradient norm, loss.

    `steps` [D] is the mean return of each step, for policies with intermediate rewards.
    """

    reward: float
    baseline: float
    entropy: float
    norm: float
    loss: float
    steps: Floats | None = None


class Diverged(Exception):
    """A loss, a gradient or a parameter is not finite."""


@dataclass(slots=True, eq=False)
class Learner:
    """Updates the parameters of a policy. Rewards are in units of `scale` seconds.

    `baseline` is the moving average of rewards; `steps` [D] are those of the return of each step, for policies with
    intermediate rewards.
    """

    policy: Policy
    options: LearningOptions
    scale: float
    baseline: float | None = None
    steps: Floats | None = None
    updates: int = 0
    optimizer: torch.optim.Adam = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.policy.parameters(), self.options.rate)

    def restart(self, parameters: Mapping[str, Tensor]) -> None:
        """Load parameters, and reset moments and averages. The count of `updates` continues."""
        self.policy.load_state_dict(dict(parameters))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), self.options.rate)
        self.baseline, self.steps = None, None

    def learn(self, rollout: Rollout, progress: float = 0.0, old: Tensor | None = None) -> TrainStats:
        """One update: a step of REINFORCE, or `epochs` steps of PPO. `progress` is the spent share of the budget.

        `old`: log p of the decisions [K, D] under the policy that drew them, if that was an older one. Raises
        Diverged. After that, as after Ctrl-C, the parameters are unchanged.
        """
        with self._guard_update(progress):
            for _ in range(self.options.epochs if self.options.algorithm == "ppo" else 1):
                stats, now = self.compute_gradients(rollout, old, progress)
                old = now if old is None else old
                stats = self._step(stats)
        self.update_baseline(stats)
        return stats

    def imitate(self, choices: Mapping[str, Tensor]) -> None:
        """A step of maximum likelihood towards decisions, which counts as no update. Raises as `learn` does."""
        with self._guard_update(0.0):
            loss = -self.policy.log_prob(choices)[0].sum(dim=1).mean()
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            self._step(TrainStats(math.nan, math.nan, math.nan, math.nan, float(loss.detach())))
        self.updates -= 1

    def apply(self, gradients: Mapping[str, Tensor], stats: TrainStats, progress: float = 0.0) -> TrainStats:
        """One update with the gradients of another copy of the policy. Raises as `learn` does."""
        with self._guard_update(progress):
            for name, value in self.policy.named_parameters():
                value.grad = gradients.get(name)
            stats = self._step(stats)
        self.update_baseline(stats)
        return stats

    def compute_gradients(self, rollout: Rollout, old: Tensor | None, progress: float) -> tuple[TrainStats, Tensor]:
        """Set the gradients of a rollout's loss; return statistics and the current log p of its decisions [K, D]."""
        loss, stats, now = self.loss(rollout, old, progress)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        return replace(stats, loss=float(loss.detach())), now

    @contextmanager
    def _guard_update(self, progress: float) -> Iterator[None]:
        """Set the learning rate, and undo the update if it fails or leaves a parameter that is not finite."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.rate * (1 + (self.options.final_rate - 1) * min(progress, 1.0))
        before = copy_parameters(self.policy)
        try:
            yield
            if not all(bool(torch.isfinite(value).all()) for value in self.policy.parameters()):
                raise Diverged
        except (Diverged, KeyboardInterrupt):
            self.policy.load_state_dict(before)
            raise
        self.updates += 1

    def _step(self, stats: TrainStats) -> TrainStats:
        norm = float(torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.options.clip_norm))
        if not (math.isfinite(stats.loss) and math.isfinite(norm)):
            raise Diverged
        self.optimizer.step()
        return replace(stats, norm=norm)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The parameters (``policy/…``) and Adam's moments (``adam/…``)."""
        arrays = {f"policy/{name}": value.numpy().copy() for name, value in self.policy.state_dict().items()}
        for number, slot in self.optimizer.state_dict()["state"].items():
            arrays |= {f"adam/{number}/{name}": value.numpy().copy() for name, value in slot.items()}
        return arrays

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Load parameters and moments from `arrays`."""
        self.policy.load_state_dict(to_tensors(arrays, "policy/"))
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in to_tensors(arrays, "adam/").items():
            number, _, key = name.partition("/")
            slots.setdefault(int(number), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})

    def update_baseline(self, stats: TrainStats) -> None:
        """Move a baseline towards the mean reward of a rollout, or those of steps towards the mean gains of its own."""
        decay = 1 - 1 / max(self.updates, 1) if self.options.baseline == "average" else self.options.decay
        if stats.steps is None and math.isfinite(stats.reward):
            self.baseline = (
                stats.reward if self.baseline is None else decay * self.baseline + (1 - decay) * stats.reward
            )
        if stats.steps is not None:
            before = stats.steps if self.steps is None or self.steps.shape != stats.steps.shape else self.steps
            self.steps = decay * before + (1 - decay) * stats.steps

    def loss(self, rollout: Rollout, old: Tensor | None, progress: float) -> tuple[Tensor, TrainStats, Tensor]:
        """The loss of a rollout, its statistics, and the current log p of its decisions [K, D].

        `old`: log p before the first epoch of PPO.
        """
        options = self.options
        log_prob, entropy = self.policy.log_prob(rollout.choices)
        reward, kept = self._counted_rewards(rollout)
        base = self._baseline(reward)
        advantage = torch.from_numpy(self._advantages(rollout, kept, base)).to(log_prob.dtype)
        advantage = advantage[:, None] if advantage.ndim == 1 else advantage
        share = kept if rollout.weight is None else kept * rollout.weight
        weight = torch.from_numpy(share.astype(np.float32))[:, None] / max(float(share.sum()), 1e-9)
        if options.algorithm == "ppo":
            ratio = torch.exp(log_prob - (log_prob.detach() if old is None else old))
            cut = ratio.clamp(1 - options.clip, 1 + options.clip)
            gain = torch.minimum(ratio * advantage, cut * advantage)
        else:
            gain = log_prob * advantage
        spread = options.entropy * max(0.0, 1.0 - progress)
        loss = -((gain + spread * entropy) * weight).sum()
        n_decisions = int((entropy.detach() > 0).sum())
        mean_entropy = float(entropy.detach().sum()) / max(n_decisions, 1)
        mean_reward = float(reward.mean()) if len(reward) else math.nan
        steps = None if rollout.path is None else self._returns(rollout.path).mean(axis=0)
        return loss, TrainStats(mean_reward, base, mean_entropy, math.nan, math.nan, steps), log_prob.detach()

    def _counted_rewards(self, rollout: Rollout) -> tuple[Floats, Bools]:
        """Rewards of the episodes that count, and a mask [K] of those."""
        failed = ~np.isfinite(rollout.seconds)
        kept = ~failed if self.updates >= self.options.invalid_grace else np.ones(len(failed), np.bool_)
        return self.rewards(rollout.seconds)[kept], kept

    def _baseline(self, reward: Floats) -> float:
        if self.options.baseline == "none" or not len(reward):
            return 0.0
        if self.options.baseline == "batch" or self.baseline is None:
            return float(reward.mean())
        return self.baseline

    def _advantages(self, rollout: Rollout, kept: Bools, base: float) -> Floats:
        """Advantages [K], or [K, D] for policies with intermediate rewards."""
        if rollout.path is None:
            advantage = self.rewards(rollout.seconds) - base
        else:
            advantage = self._returns(rollout.path)
            if self.options.baseline == "moving" and self.steps is not None and len(self.steps) == advantage.shape[1]:
                advantage = advantage - self.steps
            elif self.options.baseline != "none" and kept.any():
                advantage = advantage - advantage[kept].mean(axis=0)
        if self.options.elite < 1 and kept.any():
            advantage = np.maximum(advantage - np.quantile(advantage[kept], 1 - self.options.elite, axis=0), 0.0)
        if self.options.normalized and kept.any():
            deviation = float(advantage[kept].std())
            advantage = advantage / deviation if deviation > 1e-8 else np.zeros_like(advantage)
        return advantage.astype(np.float32)

    def _returns(self, path: Floats) -> Floats:
        """The discounted return of each step [K, D]."""
        gains = np.diff(self.rewards(path), axis=1)
        for step in range(gains.shape[1] - 2, -1, -1):
            gains[:, step] += self.options.discount * gains[:, step + 1]
        return gains

    def rewards(self, seconds: Floats) -> Floats:
        """The rewards of seconds; a failure counts as `failure_penalty` times the scale."""
        times = np.where(np.isfinite(seconds), seconds / self.scale, self.options.failure_penalty)
        match self.options.reward:
            case "root":
                return -np.sqrt(times)
            case "inverse":
                return 1.0 / np.maximum(times, 1e-9)
            case "log":
                return -np.log(np.maximum(times, 1e-9))
        return -times


def to_tensors(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, Tensor]:
    """The arrays whose names begin with `prefix`, as to_tensors by the rest of their names."""
    return {
        name.removeprefix(prefix): torch.from_numpy(np.array(value))
        for name, value in arrays.items()
        if name.startswith(prefix)
    }

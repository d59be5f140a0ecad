"""train and pretrain: policies that learn to place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack

from placewise.analysis.measure_placements import Setting
from placewise.analysis.progress import listening
from placewise.api.results import Training
from placewise.core.build import Devices, build, start_of
from placewise.core.open_model import Model
from placewise.core.options import ProblemKeywords, options_from
from placewise.core.search_limits import budget_from
from placewise.model.placement import Placement
from placewise.placers.base import NO_HINTS, Budget, Hints, OnProgress
from placewise.training.pretrain_result import Pretrained


def train(
    model: Model,
    devices: Devices | None = None,
    *,
    policy: str | None = None,
    reward: str | None = None,
    options: Mapping[str, Any] | None = None,
    updates: int | None = None,
    evaluations: int | None = None,
    patience: int | None = None,
    time_limit: float | str | None = None,
    seed: int = 0,
    threads: int | None = None,
    budget: Budget | float | str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 50,
    resume: bool = False,
    weights: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    controllers: int | None = None,
    workers: int | None = None,
    ray: str | None = None,
    start: str | os.PathLike[str] | Placement | None = None,
    bind: Mapping[str, str] | None = None,
    inputs: Mapping[str, Any] | None = None,
    trust_model: bool = False,
    example_inputs: Any = None,
    on_progress: OnProgress | None = None,
    **problem_options: Unpack[ProblemKeywords],
) -> Training:
    """Train a policy to place a model (docs/learning.md); the best placement that it finds is the plan.

    Parameters
    ----------
    model, devices, start, example_inputs, on_progress, **problem_options
        As in `place`.
    policy : str
        A placer that learns. Default: "hsdag".
    reward : str
        "simulated", or a runtime, which then runs every placement on this machine. Default: "simulated".
    options : mapping of str to value
        Options of the policy.
    updates, evaluations : int
        Stop after this many updates (default: 100, without another limit), or different placements.
    patience : int
        Stop after this many updates without a better placement.
    time_limit, seed, threads, budget
        As in `place`.
    checkpoint : path
        Where the training is kept.
    every : int
        Keep it at least every this many updates. Default: 50.
    resume : bool
        Continue what `checkpoint` keeps. Default: False.
    weights : path
        A checkpoint whose weights, and policy, it begins with: fine-tuning.
    tensorboard : path
        A folder for TensorBoard.
    controllers, workers : int
        Processes that roll out and learn, and for each of them processes that measure.
    ray : str
        The address of a Ray cluster for them.
    bind, inputs, trust_model
        Of a measured reward, as in `run`.

    Returns
    -------
    Training
        A plan, and the figures of the training.

    Raises
    ------
    PlacewiseError
        If the policy's extra is not installed, or an argument is wrong.

    Examples
    --------
    >>> import placewise as pw
    >>> best = pw.train("zoo:random-layered", "2xL4,cpu", dims={"n_ops": 20}, updates=5)  # doctest: +SKIP

    """
    from placewise.training.resume import with_weights
    from placewise.training.train import TrainingSetting, worker_config
    from placewise.training.train import train as learn

    problem = build(model, devices, options_from(problem_options), example_inputs=example_inputs)
    hints = NO_HINTS if start is None else Hints((start_of(start, problem),))
    limits = budget_from(time_limit, None, seed, threads, budget, iterations=updates, evaluations=evaluations)
    live = None if isinstance(model, (str, os.PathLike)) else model
    measuring = Setting(
        binding=dict(bind or {}), inputs=inputs, model=live, example=example_inputs, seed=limits.seed,
        trust_model=trust_model,
    )  # fmt: skip
    policy, settings = with_weights(
        weights, policy, {**(options or {}), **({} if patience is None else {"patience": patience})}
    )
    setting = TrainingSetting(
        policy,
        settings,
        limits,
        reward,
        checkpoint,
        every,
        resume,
        tensorboard,
        measuring=measuring,
        workers=worker_config(controllers, workers, ray, reward),
    )
    with listening(on_progress, limits.seconds) as listener:
        trained = learn(problem, setting, hints=hints, on_progress=listener)
    return Training(trained.result, trained)


def pretrain(
    corpus: str | os.PathLike[str],
    *,
    policy: str | None = None,
    options: Mapping[str, Any] | None = None,
    updates: int | None = None,
    time_limit: float | str | None = None,
    seed: int = 0,
    budget: Budget | float | str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 50,
    resume: bool = False,
    weights: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    controllers: int | None = None,
    ray: str | None = None,
    on_progress: OnProgress | None = None,
) -> Pretrained:
    """Train a policy on the problems of a corpus file (docs/generalizing.md), so that it serves unseen ones.

    Parameters
    ----------
    corpus : path
        The corpus file (TOML).
    policy, options
        Instead of those of the file.
    updates : int
        Stop after this many updates. Default: the file's.
    time_limit, seed, budget, checkpoint, every, resume, weights, tensorboard, controllers, ray, on_progress
        As in `train`.

    Returns
    -------
    Pretrained
        Figures of the training, by problem.

    Raises
    ------
    PlacewiseError
        If the file is wrong, or the policy's extra is not installed.

    Examples
    --------
    >>> import placewise as pw
    >>> done = pw.pretrain("corpus.toml", checkpoint="policy", updates=10)  # doctest: +SKIP

    """
    from placewise.training.pretrain import PretrainSetting
    from placewise.training.pretrain import pretrain as learn
    from placewise.training.train import worker_config

    limits = budget_from(time_limit, None, seed, None, budget, iterations=updates)
    setting = PretrainSetting(
        corpus,
        policy,
        dict(options or {}),
        limits,
        checkpoint,
        every,
        resume,
        weights,
        tensorboard,
        worker_config(controllers, None, ray, None),
    )
    with listening(on_progress, limits.seconds) as listener:
        return learn(setting, on_progress=listener)

"""Crews of processes: what they learn and count, who dies and is replaced, and that nobody outlives anybody."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from locations import SEARCH_PATH
from worker_problems import OPTIONS, free_problem

torch = pytest.importorskip("torch")

from learned_policies import table
from processes_seen import gone
from simulate_problems import random_placement
from soak import later
from worker_here import Death, Here
from worker_rewards import Reward, measured, workers

from placewise.core.place import place
from placewise.errors import PlacerError, RunError
from placewise.model.columns import Floats, Ints
from placewise.model.problem import Problem
from placewise.model.result import Reason
from placewise.placers import registry
from placewise.placers.base import Budget
from placewise.placers.learned.objectives import Learner
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Rollout
from placewise.placers.learned.pricing import LOST, Pricing
from placewise.placers.learned.trainer import Update
from placewise.processes.backends import ProcessBackend
from placewise.simulate import evaluate
from placewise.training.distributed import DistributedTrainer, distributed_trainer, train_with_workers
from placewise.training.train import TrainingSetting, train, worker_config
from placewise.training.workers.config import Processes, RayCluster
from placewise.training.workers.controller import drop_lost_episodes
from placewise.training.workers.measuring import Measuring
from placewise.training.workers.messages import ControllerSpec


@contextmanager
def training(config: Any, make: Any = None, options: LearningOptions = OPTIONS) -> Iterator[DistributedTrainer]:
    """A trainer of the table with workers, closed in the end."""
    problem = free_problem()
    trainer = distributed_trainer(ControllerSpec(partial(table, problem, options, 0), options, config, make), seed=1)
    try:
        yield trainer
    finally:
        trainer.close()


def controllers(trainer: DistributedTrainer) -> list[int]:
    """The numbers of the processes of the controllers."""
    return [member.handle.worker.pid for member in trainer.controllers.members]


class Frail:
    """A reward here: the judge, whose worker dies at every `often`th placement, or at all after the first `most`."""

    def __init__(self, problem: Problem, often: int = 1 << 30, most: int = 1 << 30) -> None:
        self.problem, self.often, self.most, self.count = problem, often, most, 0

    def __call__(self) -> Any:
        return self.measure

    def measure(self, placements: Ints) -> Floats:
        self.count += len(placements)
        if self.count % self.often == 0 or self.count > self.most:
            raise Death("it fell over")
        return evaluate(self.problem, placements)


@pytest.mark.parametrize("algorithm", ["reinforce", "ppo"])
def test_a_crew_learns(algorithm: str) -> None:
    """Its policy comes to prefer what is good, as that of a single trainer does; counts are those of all together."""
    options = replace(OPTIONS, algorithm=algorithm)
    updates: list[Update] = []
    with training(Here(controllers=3, workers=0), options=options) as trainer:
        trainer.begin()
        reason = trainer.run(Budget(iterations=150), updates.append)
        problem, pricing = trainer.policy.view.problem, trainer.pricing
        preferred = evaluate(problem, trainer.policy.greedy(pricing))[0]
    assert reason is Reason.FINISHED and [update.number for update in updates] == list(range(1, 151))
    random = evaluate(problem, np.array(list(itertools.islice(possible(problem), 500))))
    assert preferred <= np.quantile(random, 0.05) and pricing.value <= preferred
    assert updates[-1].asked >= 150 * OPTIONS.samples
    assert trainer.learner.baseline is not None and updates[-1].stats.entropy < updates[0].stats.entropy


def possible(problem: Problem) -> Iterator[Ints]:
    """Placements that keep the rules, drawn at random."""
    rng = np.random.default_rng(0)
    while True:
        row = random_placement(problem, lambda low, high: int(rng.integers(low, high + 1))).device
        if not np.isnan(Pricing(problem)(row[None])[0]):
            yield row


@pytest.mark.parametrize("evaluations", [1, 7, 40, 100])
@pytest.mark.parametrize("workers", [0, 2])
def test_budgets_hold_for_all_together(evaluations: int, workers: int) -> None:
    """Not one placement more is measured than the budget says, whoever measures; and not one less."""
    frail = Frail(free_problem())
    with training(Here(controllers=3, workers=workers), frail) as trainer:
        trainer.begin()
        begun = frail.count
        assert trainer.run(Budget(evaluations=evaluations)) is Reason.FINISHED
    assert trainer.pricing.evaluations == frail.count == max(evaluations, begun)


def test_time_is_a_budget_too() -> None:
    """No time, no update."""
    with training(Here(workers=0)) as trainer:
        trainer.begin()
        assert trainer.run(Budget(seconds=0)) is Reason.TIME_LIMIT
    assert trainer.learner.updates == 0


def test_lost_samples_are_neither_failures_nor_counted() -> None:
    """Where every fifth measurement kills its worker, rewards are those of the others, and the budget is spent."""
    problem = free_problem()
    frail, updates = Frail(problem, often=5), []
    with training(Here(controllers=2, workers=2), frail) as trainer:
        trainer.begin()
        trainer.run(Budget(evaluations=100), updates.append)
    lost = trainer.controllers.lost
    assert not trainer.early_stop and lost >= 10 and trainer.pricing.evaluations == 100
    assert frail.count == pytest.approx(100 * 5 / 4, abs=trainer.controllers.deaths - lost + 10)
    worst = trainer.learner.rewards(evaluate(problem, np.array(list(itertools.islice(possible(problem), 500)))).max())
    assert min(update.stats.reward for update in updates) >= worst > trainer.learner.rewards(np.array(np.nan))


def test_where_everything_dies_the_run_ends_with_the_reason_and_the_best() -> None:
    """Five deaths without a result between them are enough; before the first result that is an error."""
    problem = free_problem()
    with training(Here(controllers=2, workers=1), Frail(problem, most=60)) as trainer:
        trainer.begin()
        assert trainer.run(Budget(evaluations=200)) is Reason.FINISHED
    assert "workers died one after the other without a result; the last one: it fell over" in trainer.early_stop
    assert trainer.pricing.failure == trainer.early_stop and trainer.pricing.evaluations == 60
    assert trainer.pricing.value == evaluate(problem, trainer.pricing.best[None])[0]
    with training(Here(workers=1), Frail(problem, most=0)) as trainer, pytest.raises(RunError, match="it fell over"):
        trainer.begin()


class Slow:
    """A reward that compares with a single device: each worker thinks that everything takes another multiple."""

    made = 0

    def __init__(self, problem: Problem) -> None:
        Slow.made += 1
        self._problem, self.single = problem, float(Slow.made)

    def __call__(self, placements: Ints) -> Floats:
        return evaluate(self._problem, placements) * self.single


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_agree_on_what_a_single_device_takes(workers: int) -> None:
    """Their ratios count, so that all prices are those of the worker that measured first."""
    problem = free_problem()
    Slow.made = 0
    priced: list[tuple[Ints, Floats]] = []
    with training(Here(controllers=3, workers=workers), partial(Slow, problem)) as trainer:
        record = trainer.pricing.record
        trainer.pricing.record = lambda rows, seconds: (priced.append((rows, seconds)), record(rows, seconds))[1]
        trainer.begin()
        trainer.run(Budget(evaluations=60))
    single = trainer.controllers.reference
    assert Slow.made == 3 * max(workers, 1) and 1 <= single <= Slow.made
    rows, seconds = (np.concatenate(parts) for parts in zip(*priced, strict=True))
    keeping = ~np.isnan(seconds)
    assert len(rows) == 60 and keeping.sum() > 30
    assert seconds[keeping] == pytest.approx(evaluate(problem, rows[keeping]) * single)


def test_a_placement_that_kills_twice_has_failed() -> None:
    """The first time its worker may have died of something else; others are measured all the same."""
    problem = free_problem()
    deadly = np.zeros(problem.n_ops, np.int32)

    def measure(placements: Ints) -> Floats:
        if (placements == deadly).all():
            raise Death("it fell over")
        return np.ones(len(placements))

    measuring = Measuring(Here().backend(), lambda: measure, 2, 60.0, "worker")
    rows = np.stack([deadly, deadly + 1, deadly + 1])
    assert measuring(rows).tolist() == [LOST, 1, 1]
    np.testing.assert_array_equal(measuring(rows), [np.nan, 1, 1])
    assert (measuring.take_deaths(), measuring.results, measuring.failure) == (2, 4, "it fell over")


def test_a_reward_that_cannot_be_made_says_why() -> None:
    """Its words are those of the error."""

    def refuse() -> Any:
        raise ValueError("there is no such runtime")

    with training(Here(), refuse) as trainer, pytest.raises(RunError, match="there is no such runtime"):
        trainer.begin()


def test_gradients_of_a_copy_are_as_good_as_ones_own() -> None:
    """One update from a rollout here, and one from the gradients that a copy made of it: the same parameters."""
    problem = free_problem()
    own, other, copy = (Learner(table(problem, OPTIONS, 0), OPTIONS, 1.0) for _ in range(3))
    for _ in range(3):
        rollout = own.policy.rollout(8, torch.Generator().manual_seed(0), Pricing(problem))
        stats = own.learn(rollout, 0.5)
        copy.policy.load_state_dict(other.policy.state_dict())
        copy.baseline = other.baseline
        found, _ = copy.compute_gradients(rollout, None, 0.5)
        gradients = {name: value.grad for name, value in copy.policy.named_parameters()}
        assert other.apply(gradients, found, 0.5) == stats
        assert torch.equal(own.policy.logits, other.policy.logits) and own.baseline == other.baseline


def test_episodes_with_losses_are_left_out() -> None:
    """Of four, one lost its end and one something on its way."""
    path = np.arange(12.0).reshape(4, 3)
    path[2, 1] = LOST
    seconds = np.array([1.0, LOST, 3.0, np.nan])
    rollout = drop_lost_episodes(Rollout({"device": torch.arange(4)}, seconds, path, np.arange(4.0)))
    assert rollout is not None and rollout.choices["device"].tolist() == [0, 3]
    assert rollout.seconds[0] == 1 and np.isnan(rollout.seconds[1])
    assert rollout.path.tolist() == path[[0, 3]].tolist() and rollout.weight.tolist() == [0, 3]
    assert drop_lost_episodes(Rollout({}, np.full(3, LOST))) is None


@pytest.mark.parametrize("wrong", [{"controllers": 0}, {"workers": -1}, {"controllers": 1001}, {"limit": 0.0}])
def test_sizes_must_make_sense(wrong: dict[str, Any]) -> None:
    """Before anybody is hired."""
    with pytest.raises(PlacerError, match="give a"), training(Processes(**wrong)):
        pass


def test_workers_that_hang_or_die_are_replaced(tmp_path: Path) -> None:
    """In processes: a placement that hangs fails by its time limit, one that kills is lost, the others are measured."""
    problem = free_problem()
    rows = np.zeros((5, problem.n_ops), np.int32)
    rows[1, 0], rows[3, 0] = 1, 2
    wanted = evaluate(problem, rows)
    measuring = Measuring(ProcessBackend(), Reward(problem, str(tmp_path), hangs=1, dies=2), 1, 5.0, "worker")
    try:
        found = measuring(rows)
    finally:
        measuring.close()
    wanted[1], wanted[3] = np.nan, LOST
    np.testing.assert_array_equal(found, wanted)
    assert "SIGKILL" in measuring.failure or "killed" in measuring.failure
    assert len(workers(tmp_path)) >= 3 and all(gone(pid) for pid in workers(tmp_path))


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("each", [1, later(2)])
def test_workers_and_controllers_may_be_killed(tmp_path: Path, each: int) -> None:
    """Each costs what it was doing; the budget is still spent to the last evaluation, and nobody is left behind."""
    problem = free_problem()
    victims: list[int] = []

    def kill(update: Any) -> None:
        if update.number == 2:
            victims.append(next(pid for pid in workers(tmp_path) if not gone(pid, 0.0)))
        elif trainer.controllers.deaths == 1 and len(victims) == 1:
            victims.append(controllers(trainer)[0])
        else:
            return
        os.kill(victims[-1], signal.SIGKILL)

    with training(Processes(controllers=each, workers=each), Reward(problem, str(tmp_path), pause=0.01)) as trainer:
        trainer.begin()
        reason = trainer.run(Budget(evaluations=100, seconds=300), kill)
        staff, pricing = trainer.controllers, trainer.pricing
        everybody = {*controllers(trainer), *workers(tmp_path), *victims}
    assert reason is Reason.FINISHED and not trainer.early_stop
    assert pricing.evaluations == 100 and staff.deaths >= 2 and len(victims) == 2
    seen = measured(tmp_path)
    assert len(set(seen)) >= 100 - problem.n_devices and pricing.value == evaluate(problem, np.array(seen)).min()
    assert pricing.value == evaluate(problem, pricing.best[None])[0]
    assert all(gone(pid) for pid in everybody)


@pytest.mark.soak
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_nobody_outlives_the_main_process(tmp_path: Path) -> None:
    """Killed in the midst of a training, it takes its controllers and their workers with it."""
    code = f"""
from training import test_workers as tests
from pathlib import Path
make = tests.Reward(tests.free_problem(), {str(tmp_path)!r}, pause=0.01)
with tests.training(tests.Processes(controllers=1, workers=1), make) as trainer:
    trainer.begin()
    print(*tests.controllers(trainer), flush=True)
    trainer.run(tests.Budget())
"""
    path = SEARCH_PATH
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    ) as parent:
        everybody = [int(parent.stdout.readline()), *workers(tmp_path)]
        parent.kill()
        assert len(everybody) == 2 and all(gone(pid) for pid in everybody)


def test_the_verb_trains_with_a_crew_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint is one like any other: other workers, or none, go on from there and lose nothing."""
    pytest.importorskip("safetensors")
    monkeypatch.setitem(registry._PLACERS, "table", "learned_policies:TablePlacer")
    problem = free_problem()
    setting = TrainingSetting("table", budget=Budget(iterations=6), checkpoint=tmp_path, workers=Here(2, 1))
    first = train(problem, setting)
    assert (first.updates, first.result.placement is not None) == (6, True)
    for updates, config in ((9, Here(1, 0)), (12, None)):
        more = TrainingSetting(budget=Budget(iterations=updates), checkpoint=tmp_path, resume=True, workers=config)
        then = train(problem, more)
        assert (then.updates, then.resumed) == (updates, updates - 3)
        assert then.learned <= first.learned and then.evaluations >= first.evaluations


def test_an_early_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result has the best so far, and a note that says why it is no better."""
    monkeypatch.setitem(registry._PLACERS, "table", "learned_policies:TablePlacer")
    problem = free_problem()
    placer = registry.create("table")
    placer.make_trainer = partial(train_with_workers, Here(2, 1), Frail(problem, most=60))
    result = place(problem, placer, Budget(evaluations=200))
    assert result.placement is not None
    assert any("table stopped early: " in note and "it fell over" in note for note in result.notes)


def test_crews_that_are_wished_for() -> None:
    """None where nobody says so; workers where placements are measured."""
    assert worker_config(None, None, None, None) is None
    assert worker_config(None, 3, None, None) == Processes(2, 3)
    assert worker_config(4, None, None, "simulated") == Processes(4, 0)
    assert worker_config(None, None, "auto", "onnxruntime") == RayCluster("auto", 2, 1)


def test_what_cannot_be_sent_is_refused() -> None:
    """In words, before anything is trained."""
    with pytest.raises(PlacerError, match="cannot be sent to other processes"), training(Processes(), lambda: evaluate):
        pass

"""Pre-training: corpora and what they draw, one training in any number of processes, killed ones gone on with."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from locations import ROOT, SEARCH_PATH

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from cli_runs import run
from hypothesis import given
from hypothesis import strategies as st
from soak import examples

import placewise as pw
from placewise.errors import InputError, PlacerError, RunError
from placewise.files.corpus_file import load_corpus, parse_corpus
from placewise.files.policy_file import load_header, load_policy, save_policy
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import Proposal, Reason
from placewise.placers import registry
from placewise.placers.base import Budget, SearchContext
from placewise.placers.learned.checkpoint import problem_digest, read_checkpoint
from placewise.placers.learned.gdp import GdpOptions, GdpPlacer
from placewise.placers.learned.objectives import Learner
from placewise.placers.learned.placeto import PlacetoOptions, PlacetoPlacer
from placewise.training.corpus import Corpus, open_corpus
from placewise.training.pretrain import PretrainSetting, pretrain
from placewise.training.pretrain_result import Pretrained, lines
from placewise.training.pretrainer import Pretrainer, PretrainUpdate, TrainingPlan, build_learner
from placewise.training.search_cache import SearchCache
from placewise.training.workers.config import Processes, RayCluster
from placewise.training.workers.corpus_worker import CorpusWorker
from placewise.training.workers.messages import BestKnown, CorpusResult, CorpusTask, CorpusWorkerSpec
from placewise.training.workers.pools import DistributedPool, LocalPool, WorkerPool

CORPORA = ROOT / "benchmarks" / "generalize" / "corpora"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_worker_register_timeout_seconds": "200",
    "PYTHONPATH": SEARCH_PATH,
}
NAMES = ("random-layered", "random-branchy", "wavenet-2x18")


def document(**changes: Any) -> dict[str, Any]:
    """A corpus of tiny problems."""
    seeds = {"least": 0, "most": 999}
    dims = {"n_ops": {"least": 8, "most": 14}, "seed": seeds}
    models = [{"model": name, "dims": dims, "graph": ["inference", "training"]} for name in NAMES[:2]]
    models.append({"model": "wavenet-2x18", "dims": {"layers": [2, 3], "samples": 256, "stack": 2}})
    clusters = {"devices": ["V100-16GB", "K80", "A100-40GB"], "count": {"least": 2, "most": 3}, "tight": 0.3}
    training = {"updates": 6, "problems": 3, "teacher": "etf", "validated": 2, "every": 3, "imitated": 0.5}
    options = {"samples": 3, "most_units": 8, "rounds": 2, "algorithm": "ppo", "epochs": 2}
    made = {
        "format": "placewise-corpus", "version": 1, "problems": 5, "models": models, "clusters": clusters,
        "policy": "placeto", "options": options, "training": training,
    }  # fmt: skip
    for name, value in changes.items():
        if value is None:
            del made[name]
            continue
        made[name] = {**made[name], **value} if isinstance(made.get(name), dict) else value  # type: ignore[dict-item]
    return made


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def written(path: Path, **changes: Any) -> Path:
    """The corpus as a file."""
    path.write_text("".join(f"{name} = {toml(value)}\n" for name, value in document(**changes).items()), "utf-8")
    return path


def corpus(**changes: Any) -> Corpus:
    """The corpus of tiny problems."""
    return Corpus(parse_corpus(document(**changes)))


def small(**changes: Any) -> PlacetoOptions:
    """Placeto as small as it gets."""
    return PlacetoOptions(**{"samples": 3, "most_units": 8, "rounds": 2, **changes})


class Made:
    """Makes policies for problems; plain data, as a worker spec must be."""

    def __init__(self, options: Any) -> None:
        self.options = options

    def __call__(self, problem: Problem) -> Any:
        return PlacetoPlacer(self.options).policy(problem, 0)


def worker_spec(options: PlacetoOptions | None = None, expert: str = "etf", **changes: Any) -> CorpusWorkerSpec:
    """What workers are made from."""
    options = options or small()
    return CorpusWorkerSpec(corpus(**changes).problem, Made(options), options, expert)


PLAN = TrainingPlan(problems=5, updates=6, batch=3, imitated=0.5, validated=2, every=3)


@examples(8)
@given(number=st.integers(0, 10_000), seed=st.integers(0, 5))
def test_a_number_is_always_the_same_problem_and_can_be_solved(number: int, seed: int) -> None:
    """Drawn twice, it has one digest; it fits the file's limits; some placement keeps its rules."""
    one, other = corpus(seed=seed).draw(number), corpus(seed=seed).draw(number)
    assert problem_digest(one.problem) == problem_digest(other.problem) and one.title == other.title
    accelerators = int((~one.problem.cluster.is_host).sum())
    assert 2 <= accelerators <= 3 and one.problem.objective.kind == "latency"
    found = pw.judge(one.problem, pw.place(one.problem, placer="etf").placement or Placement.on(0, one.problem.n_ops))
    assert found.valid or pw.place(one.problem, placer="pack").placement is not None


def test_what_is_left_out_never_occurs_and_the_rest_stays_as_it_was() -> None:
    """No draw is of the family or the device; draws that were of neither are the same problems as before."""
    every, without = corpus(), corpus(leave_out=["wavenet", "K80"])
    kept = 0
    for number in range(30):
        before, title = every.draw(number).title, without.draw(number).title
        assert not title.startswith("wavenet") and "K80" not in title
        kept += before == title
    assert any(every.draw(number).title.startswith("wavenet") for number in range(30)) and kept >= 5


def test_models_in_turn_on_clusters_of_their_own() -> None:
    """Problem k is model k, on the line that it names; nothing is drawn."""
    models = [{"model": "random-layered", "dims": {"n_ops": 9, "seed": 3}, "devices": ["2xP100,cpu"]},
              {"model": "random-branchy", "dims": {"n_ops": 9, "seed": 4}, "devices": ["3xK80"]}]  # fmt: skip
    drawn = [corpus(models=models, in_turn=True).draw(number) for number in range(3)]
    assert [d.problem.n_devices for d in drawn] == [3, 3, 3] and "on 3xK80" in drawn[1].title
    assert drawn[0].title == drawn[2].title
    fixed = pw.build(
        "zoo:random-layered", "2xP100,cpu", pw.ProblemOptions(objective="latency", dims={"n_ops": 9, "seed": 3})
    )
    assert problem_digest(fixed.with_(objective=drawn[0].problem.objective)) == problem_digest(drawn[0].problem)


def test_corpora_of_the_benchmarks_are_whole_and_leave_out_what_they_say() -> None:
    """They load; P100s do not occur in them; the first problems of one are without a family."""
    whole, less = (open_corpus(CORPORA / f"{name}.toml") for name in ("default", "without-transformer-xl"))
    assert "P100" not in whole.recipe.clusters.devices and not whole.recipe.leave_out
    assert less.recipe.model_copy(update={"leave_out": ()}) == whole.recipe
    titles = [less.title(number) for number in range(20)]
    assert not any(title.startswith(less.recipe.leave_out) for title in titles)
    assert sum(title == whole.title(number) for number, title in enumerate(titles)) > 10


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"models": []}, r"'models' needs 1 or more entries"),
        ({"modells": 1}, r"'modells' is not known here"),
        ({"training": {"updates": "many"}}, r"'training.updates' must be a whole number"),
        ({"version": 2}, "version 2, newer than 1"),
        ({"clusters": {"count": {"least": 3, "most": 2}}}, r"'clusters.count' is from 3 to 2"),
        ({"clusters": {"devices": ["V100-16GB", "Q9"]}}, "clusters.devices: .*Q9"),
        ({"models": [{"model": "alexnet"}]}, r"models.0: the zoo has no 'alexnet'"),
        ({"models": [{"model": "nasnet", "dims": {"steps": 3}}]}, r"models.0: nasnet has no dimension 'steps'"),
        ({"models": [{"model": "nasnet", "dims": {"cells": []}}]}, r"'models.0.dims.cells' needs 1 or more entries"),
        (
            {"models": [{"model": "nasnet", "dims": {"cells": 1e30}}]},
            r"'models.0.dims.cells' must be a whole number, a list or",
        ),
        ({"options": {"gamma": [0.5]}}, r"'options.gamma' must be true or false, a whole number, a number or a text"),
        ({"leave_out": ["gnmt-9"]}, "leave_out: leaves out 'gnmt-9', which begins no name"),
        ({"leave_out": ["random", "wavenet"]}, "leaves out every model"),
        ({"policy": "hsdag", "options": None}, "fits single problems"),
        ({"policy": "greedy"}, "learns nothing"),
        ({"options": {"colour": 1}}, "colour"),
        ({"options": {"patience": 3}}, "the option 'patience' does not go with a corpus; give training.patience"),
        ({"options": {"updates": 3}}, "the option 'updates' does not go with a corpus"),
        ({"options": {"checkpoint": "kept"}}, "does not go with a corpus; begin with its weights by --from"),
        ({"training": {"teacher": "nobody"}}, "nobody"),
        ({"training": {"imitated": 0.0, "held": 0.0, "rewarded": False, "bred": 8}}, "training: nothing is learned"),
    ],
)
def test_a_wrong_corpus_is_refused_by_file_and_key(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """One sentence with the file, the key and the fault, before anything is spent."""
    path = written(tmp_path / "c.toml", **changes)
    with pytest.raises(InputError, match=words):
        pretrain(PretrainSetting(path))


def test_a_limit_of_evaluations_is_refused(tmp_path: Path) -> None:
    """Updates and seconds end a training on a corpus; anything else is said, and not passed over."""
    with pytest.raises(InputError, match="a limit of evaluations does not go with a corpus"):
        pw.pretrain(written(tmp_path / "c.toml"), budget=Budget(evaluations=5))


def test_files_that_are_no_corpus(tmp_path: Path) -> None:
    """No TOML, with the line; none at all; bases of bases."""
    path = tmp_path / "c.toml"
    path.write_text('format = "placewise-corpus"\nversion = = 1\n')
    with pytest.raises(InputError, match=r"c\.toml: is not TOML .*line 2"):
        load_corpus(path)
    with pytest.raises(InputError, match="cannot be read"):
        load_corpus(tmp_path / "none.toml")
    written(tmp_path / "base.toml")
    path.write_text('base = "base.toml"\nseed = 7\n')
    assert load_corpus(path) == parse_corpus(document(seed=7))
    (tmp_path / "d.toml").write_text('base = "c.toml"\n')
    with pytest.raises(InputError, match="itself has a base"):
        load_corpus(tmp_path / "d.toml")


def pretrainer(spec: CorpusWorkerSpec, pool: WorkerPool, plan: TrainingPlan, seed: int = 0) -> Pretrainer:
    """A training that has not begun."""
    return Pretrainer(build_learner(spec), pool, plan, seed)


def study(plan: TrainingPlan = PLAN, seed: int = 0, **given: Any) -> Pretrainer:
    """A training in this process, at its end."""
    made = pretrainer(worker_spec(**given), LocalPool(worker_spec(**given)), plan, seed)
    made.run(Budget())
    return made


@pytest.fixture(scope="module")
def whole() -> Pretrainer:
    """A training that nothing disturbed."""
    return study()


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal arrays under equal names."""
    assert set(one) == set(other)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_one_process_and_two_end_in_the_same_parameters() -> None:
    """Imitation and PPO of two epochs: every array equal to the last bit, another seed not."""
    options = small(algorithm="ppo", epochs=2)
    plan = replace(PLAN, updates=2, every=2)
    alone = study(plan, options=options)
    pool = DistributedPool(worker_spec(options), Processes(2, 0))
    many = pretrainer(worker_spec(options), pool, plan)
    many.run(Budget())
    pool.close()
    same(alone.state()[1], many.state()[1])
    assert alone.asked == many.asked > 0 and alone.score == many.score >= 1
    other = study(plan, seed=1, options=options).state()[1]
    assert any(not np.array_equal(other[name], array) for name, array in alone.state()[1].items() if "policy" in name)


@pytest.mark.soak
def test_on_a_real_ray_cluster_it_ends_in_the_same_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers as actors of a cluster on this machine: every array equal to the last bit."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    plan, made = replace(PLAN, updates=3), Cluster()
    try:
        made.add_node(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20)
        pool = DistributedPool(worker_spec(), RayCluster(made.address, 2, 0))
        many = pretrainer(worker_spec(), pool, plan)
        many.run(Budget())
        pool.close()
    finally:
        ray.shutdown()
        made.shutdown()
    same(study(plan).state()[1], many.state()[1])


def test_stopped_and_gone_on_with_it_ends_the_same(whole: Pretrainer) -> None:
    """Three updates, what they left, another training and three more: the same as six."""
    half = pretrainer(worker_spec(), LocalPool(worker_spec()), PLAN)
    half.run(Budget(), lambda step: (_ for _ in ()).throw(KeyboardInterrupt) if step.number == 3 else None)
    assert half.learner.updates == 3
    again = pretrainer(worker_spec(), LocalPool(worker_spec()), PLAN)
    figures, arrays = half.state()
    again.restore(json.loads(json.dumps(figures)), arrays)
    again.run(Budget())
    same(whole.state()[1], again.state()[1])
    assert [trial[::2] for trial in whole.trials] == [trial[::2] for trial in again.trials]


def test_gradients_of_a_batch_are_the_mean_of_those_of_its_problems() -> None:
    """An update moves the parameters as Adam does with the mean of what single workers say."""
    made = pretrainer(worker_spec(), LocalPool(worker_spec()), replace(PLAN, imitated=1.0), 0)
    twin = Learner(Made(small())(corpus().problem(0)), small(), 1.0)
    worker, total = CorpusWorker(worker_spec()), dict[str, Any]()
    start = {name: value.numpy().copy() for name, value in twin.policy.state_dict().items()}
    for number in made.problem_numbers(0):
        known = worker.run(CorpusTask(number, "search", use_expert=True)).known
        told = worker.run(CorpusTask(number, "learn", known, start, imitate=1.0))
        assert told.gradients is not None
        total = {name: total.get(name, 0) + value / 3 for name, value in told.gradients.items()}
    made.run(Budget(iterations=1))
    for name, value in twin.policy.named_parameters():
        value.grad = torch.from_numpy(np.array(total[name]))
    torch.nn.utils.clip_grad_norm_(twin.policy.parameters(), small().clip_norm)
    twin.optimizer.step()
    for (name, value), other in zip(twin.policy.named_parameters(), made.learner.policy.parameters(), strict=True):
        torch.testing.assert_close(value, other, atol=1e-6, rtol=1e-4, msg=name)


def test_every_problem_has_its_turn_in_every_round() -> None:
    """Fifteen places of five updates are five problems three times, in orders that differ."""
    made = pretrainer(worker_spec(), LocalPool(worker_spec()), PLAN)
    places = [number for update in range(5) for number in made.problem_numbers(update)]
    rounds = [places[k : k + 5] for k in (0, 5, 10)]
    assert all(sorted(turn) == list(range(5)) for turn in rounds) and len(set(map(tuple, rounds))) > 1


def test_imitation_comes_nearer_to_what_is_imitated() -> None:
    """After thirty updates that only imitate, decisions of the expert are far likelier."""
    distances: list[float] = []
    options, plan = small(rate=2e-2), replace(PLAN, updates=30, imitated=1.0)
    made = pretrainer(worker_spec(options), LocalPool(worker_spec(options)), plan, 0)
    made.run(Budget(), lambda step: distances.append(step.distance) if step.number else None)
    assert np.mean(distances[-5:]) < 0.6 * np.mean(distances[:5])


TINY_GDP = {"rounds": 2, "layers": 1, "attentions": 1, "hidden": 8, "inner": 8, "heads": 2}


class MadeGdp(Made):
    """Makes GDP's policy, as small as it gets."""

    def __call__(self, problem: Problem) -> Any:
        return GdpPlacer(self.options).policy(problem, 0)


def test_what_is_known_only_gets_better(whole: Pretrainer) -> None:
    """Values never rise, are what the judge says of the placements, and begin at the expert's or better."""
    for number, known in whole.known.items():
        problem = corpus().problem(number)
        assert pw.judge(problem, Placement(known.best)).value == pytest.approx(known.value)
        first = CorpusWorker(worker_spec()).run(CorpusTask(number, "search", use_expert=True)).known
        assert known.value <= first.value <= pw.place(problem, placer="etf").value * (1 + 1e-9)
        worse = BestKnown(first.best, math.inf, 1.0)
        tried = CorpusWorker(worker_spec()).run(CorpusTask(number, "validate", worse))
        assert tried.known.value <= tried.seconds < math.inf


class Heard(LocalPool):
    """A worker in this process, whose tasks and answers can be read afterwards."""

    def __init__(self, spec: CorpusWorkerSpec) -> None:
        super().__init__(spec)
        self.sent: list[tuple[CorpusTask, CorpusResult]] = []

    def run(self, tasks: Any, parameters: Any) -> list[tuple[CorpusTask, CorpusResult]]:
        found = super().run(tasks, parameters)
        self.sent += found
        return found


def test_of_two_turns_in_one_update_the_better_placement_is_kept() -> None:
    """Three problems, two per update: in the end the best that any answer had is known, and all prices are counted."""
    plan = TrainingPlan(3, 7, batch=2, imitated=0.0, held=0.0, rewarded=False, validated=1, every=3)
    pool = Heard(worker_spec())
    made = pretrainer(worker_spec(), pool, plan)
    made.run(Budget())
    assert made.asked == sum(answer.asked for _, answer in pool.sent) > 0
    for number, known in made.known.items():
        assert known.value == min(answer.known.value for task, answer in pool.sent if task.number == number)


def test_all_epochs_of_an_update_have_one_baseline() -> None:
    """PPO's second epoch sees the average from before the update, which moves once, as in training on one problem."""
    options = GdpOptions(**TINY_GDP, samples=3, moving=0.0, epochs=2)  # type: ignore[arg-type]
    spec = CorpusWorkerSpec(corpus().problem, MadeGdp(options), options, "etf")
    pool, plan = Heard(spec), replace(PLAN, problems=3, imitated=0.0)
    pretrainer(spec, pool, plan).run(Budget())
    first, again = ([(t, a) for t, a in pool.sent if t.explore and (t.rollout is None) == new] for new in (True, False))
    assert len(first) == len(again) == 18
    assert [t.known.baseline for t, _ in first if t.known] == [t.known.baseline for t, _ in again if t.known]
    for (task, one), (_, other) in zip(first, again, strict=True):
        assert one.known.baseline is not None and one.known.baseline == other.known.baseline
        assert task.known is not None and one.stats is not None
        if task.known.baseline is not None:
            moved = options.decay * task.known.baseline + (1 - options.decay) * one.stats.reward
            assert one.known.baseline == pytest.approx(moved)


def test_greedy_placements_ignore_the_best_known_one() -> None:
    """Placeto can begin at the best placement so far: that of an expert is not its own."""
    worker = CorpusWorker(worker_spec())
    for number in range(5):
        known = worker.run(CorpusTask(number, "search", use_expert=True)).known
        alone = replace(known, best=worker.run(CorpusTask(number, "search")).known.best)
        assert (
            worker.run(CorpusTask(number, "validate", known)).seconds
            == worker.run(CorpusTask(number, "validate", alone)).seconds
        )


def test_a_problem_searched_too_late_still_goes_to_the_expert() -> None:
    """Without time nothing is known, and nothing is tried; on what was not searched, a trial runs the expert."""
    made = pretrainer(worker_spec(), LocalPool(worker_spec()), PLAN)
    assert made.run(Budget(seconds=0.0)) is Reason.TIME_LIMIT and not made.known and not made.trials
    pool = Heard(worker_spec())
    made = pretrainer(worker_spec(), pool, replace(PLAN, problems=1, validated=1, batch=1, updates=0))
    made.run(Budget(), lambda step: made.known.clear())
    told = [(task.kind, task.use_expert) for task, _ in pool.sent if task.number == 1]
    assert told == [("search", True), ("validate", True)]


def test_a_limit_of_time_counts_what_was_spent_before() -> None:
    """Three quarters of the time were over when it stopped: imitation alone, the first half, does not come again."""
    made, steps = pretrainer(worker_spec(), LocalPool(worker_spec()), PLAN), list[PretrainUpdate]()
    made.began -= 300
    made.run(Budget(seconds=100, iterations=1), steps.append)
    assert math.isfinite(steps[-1].stats.reward)


def test_ctrl_c_while_an_expert_searches_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted expert returns what it has; that is no complete search, and is neither used nor cached."""
    folder = tmp_path / "answers"
    folder.mkdir()

    def interrupted(placer: Any, search: SearchContext) -> Proposal:
        return Proposal(Placement.on(0, search.problem.n_ops), reason=Reason.INTERRUPTED)

    monkeypatch.setattr(registry.placer_class("etf"), "propose", interrupted)
    told = replace(worker_spec(), cache=SearchCache(str(folder), "etf"))
    made = pretrainer(told, LocalPool(told), PLAN)
    assert made.run(Budget()) is Reason.INTERRUPTED
    assert not made.known and not list(folder.iterdir())


def test_damaged_answers_are_searched_again(tmp_path: Path) -> None:
    """An empty file, half of one, another array, and text are no answers; a whole one is."""
    problem, cache = corpus().problem(0), SearchCache(str(tmp_path), "etf")
    known = BestKnown(np.zeros(problem.n_ops, np.int32), 2.0, 1.0)
    cache.keep(problem, known)
    found = cache.find(problem)
    assert found is not None and (found.value, found.scale) == (2.0, 1.0)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    np.save(tmp_path / "other.npy", np.zeros(3))
    for damaged in (b"", whole[: len(whole) // 2], (tmp_path / "other.npy").read_bytes(), b"no archive"):
        path.write_bytes(damaged)
        assert cache.find(problem) is None


def test_a_score_without_end_is_gone_on_from() -> None:
    """Greedy placements that cannot run score infinity, which JSON writes as null."""
    made, again = study(replace(PLAN, updates=1)), pretrainer(worker_spec(), LocalPool(worker_spec()), PLAN)
    figures, arrays = made.state()
    again.restore({**figures, "trials": [[0, 1.0, None]]}, arrays)
    assert again.trials == [(0, 1.0, math.inf)]


def test_training_leaves_the_threads_of_its_process_as_they_were() -> None:
    """Torch is on one thread while it trains, and not afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        study(replace(PLAN, updates=1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_workers_evict_problems_and_give_the_same_results(whole: Pretrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one problem, all of them are made again and again; nothing else changes."""
    monkeypatch.setattr("placewise.training.workers.corpus_worker.CACHE_SIZE", 1)
    same(whole.state()[1], study().state()[1])


@pytest.mark.soak
def test_a_worker_that_dies_costs_its_part_of_an_update() -> None:
    """Killed in the middle: its update lacks it, somebody new comes, and training ends as planned."""
    pool = DistributedPool(worker_spec(), Processes(1, 0))
    made = pretrainer(worker_spec(), pool, PLAN)

    def kill(step: Any) -> None:
        if step.number == 2:
            os.kill(pool.members[0].handle.worker.pid, signal.SIGKILL)  # type: ignore[attr-defined]

    made.run(Budget(), kill)
    pool.close()
    assert made.learner.updates == 6 and pool.deaths == 1
    assert all(np.isfinite(value.detach().numpy()).all() for value in made.learner.policy.parameters())


class Grave:
    """A backend whose workers are all dead."""

    alive, controllers, workers, limit = False, 2, 0, 1.0

    def backend(self) -> Any:
        return self

    def start_worker(self, served: str, *args: Any, name: str, measures: bool) -> Any:
        return self

    def ready(self, seats: Any, seconds: float) -> Any:
        return seats

    def answer(self) -> Any:
        raise RunError("it is dead")

    def kill(self) -> None:
        """Nothing is left to end."""


def test_training_ends_if_all_workers_die() -> None:
    """Five deaths in a row end the training with their reason."""
    with pytest.raises(RunError, match="workers died one after the other without a result; the last one: it is dead"):
        pretrainer(worker_spec(), DistributedPool(worker_spec(), Grave()), PLAN).run(Budget())


def test_divergence_keeps_the_last_good_parameters() -> None:
    """A rate that is far too high: finite parameters, and it is said."""
    options = small(rate=1e15, clip_norm=1e15)
    made = pretrainer(worker_spec(options), LocalPool(worker_spec(options)), PLAN, 0)
    made.run(Budget())
    assert made.diverged and made.learner.updates < 6
    assert all(np.isfinite(value.detach().numpy()).all() for value in made.learner.policy.parameters())


def test_patience_ends_what_gets_no_better() -> None:
    """Without any rate, no trial is better than the first."""
    options = small(rate=1e-12)
    plan = replace(PLAN, updates=50, every=1, patience=2, imitated=1.0)
    made = pretrainer(worker_spec(options), LocalPool(worker_spec(options)), plan, 0)
    made.run(Budget())
    assert made.learner.updates == len(made.trials) - 1 == 2


ARGUMENTS = ("--every", "1", "-q", "--json")


@pytest.mark.soak
def test_killed_and_gone_on_with_by_the_command_it_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """kill −9 in the middle, then --resume: the same weights, values and trials, to the last bit."""
    path = written(tmp_path / "c.toml", training={"updates": 12})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = (sys.executable, "-m", "placewise", "train", "--corpus", str(path), *ARGUMENTS, "--checkpoint")
    process = subprocess.Popen([*command, str(killed)], stdout=subprocess.DEVNULL)
    while not (killed / "policy.json").exists() or load_header(killed).updates < 2:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    middle = load_header(killed).updates
    assert 2 <= middle < 12
    one = json.loads(run("train", "--corpus", path, *ARGUMENTS, "--checkpoint", whole).stdout)
    other = json.loads(run("train", "--corpus", path, *ARGUMENTS, "--checkpoint", killed, "--resume").stdout)
    assert one["updates"] == other["updates"] == 12 and other["resumed"] == middle
    for name in ("asked", "score", "problems"):
        assert one[name] == other[name], name
    same(dict(load_policy(whole)[1]), dict(load_policy(killed)[1]))
    assert "pretrain" not in one and [problem["title"] for problem in one["problems"]]


def test_what_is_kept_serves_any_problem_and_goes_on_with_its_corpus_alone(tmp_path: Path) -> None:
    """Zero-shot, fine-tuned, as a start for other corpora; refused for going on with something else."""
    path, kept = written(tmp_path / "c.toml"), tmp_path / "kept"
    heard: list[str] = []
    done = pw.pretrain(path, checkpoint=kept, on_progress=lambda p: heard.append(p.message))
    assert (done.updates, len(done.problems)) == (6, 7) and done.score == load_header(kept).score
    assert any("searched 7 of 7" in words for words in heard) and any("unseen" in words for words in heard)
    header = load_header(kept)
    assert header.corpus == load_corpus(path).model_dump(mode="json") and not header.devices
    assert len(list((kept / "answers").iterdir())) == 7

    model = ("zoo:random-series-parallel", "--dim", "n_ops=20", "-d", "4xP100,cpu", "--objective", "latency")
    zero = run("place", *model, "--placer", "placeto", "--option", f"checkpoint={kept}", "--option", "updates=0",
               "--json", "-q")  # fmt: skip
    assert json.loads(zero.stdout)["assignment"]
    tuned = run("train", *model, "--from", kept, "--updates", "2", "--checkpoint", tmp_path / "tuned", "--json", "-q")
    assert json.loads(tuned.stdout)["training"]["policy"] == "placeto"
    assert load_header(tmp_path / "tuned").options["rounds"] == 2
    assert pw.train("zoo:random-layered", "2xP100,cpu", dims={"n_ops": 12}, weights=kept, updates=1,
                    objective="latency").updates == 1  # fmt: skip

    weights = load_policy(kept)[1]
    begun = pw.pretrain(written(tmp_path / "d.toml", seed=5), weights=kept, checkpoint=tmp_path / "on", updates=0)
    assert begun.updates == 0
    on = load_policy(tmp_path / "on")[1]
    same({k: v for k, v in weights.items() if "policy/" in k}, {k: v for k, v in on.items() if "policy/" in k})
    more = pw.pretrain(path, checkpoint=kept, resume=True, updates=7)
    assert (more.updates, more.resumed) == (7, 6)

    for changed, words in (
        ({"corpus": tmp_path / "d.toml"}, "was trained on another corpus: 'seed' differs"),
        ({"options": {"samples": 4}}, "was trained with samples=3, not 4; give the option samples=3"),
        ({"seed": 9}, "was trained with the seed 0, not 9"),
        ({"weights": kept}, "leave out (--from|weights)"),
        ({"policy": "gdp"}, "is of the policy 'placeto', not 'gdp'"),
    ):
        with pytest.raises(InputError, match=words):
            pw.pretrain(**{"corpus": path, "checkpoint": kept, "resume": True, **changed})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there is a training already"):
        pw.pretrain(path, checkpoint=kept)
    with pytest.raises(PlacerError, match="was trained on a corpus"):
        pw.train("zoo:random-layered", "2xP100,cpu", dims={"n_ops": 12}, checkpoint=kept, resume=True)
    with pytest.raises(InputError, match="was trained on one graph"):
        pw.pretrain(path, checkpoint=tmp_path / "tuned", resume=True)


def test_a_score_is_told_with_its_update() -> None:
    """It is the last trial's; where an earlier one was better, both are said."""
    trials = ((0, 0.0, 1.3), (100, 5.0, 1.1), (126, 8.0, 1.2))
    done = Pretrained(policy="gdp", reason="finished", updates=130, asked=9, seconds=9.0, score=1.2, trials=trials)
    assert "its preferred placements took 1.200 × the best known after update 126" in lines(done)[1]
    assert lines(done)[2] == "the last policy is saved; after update 100 they took 1.100 ×"
    assert "1.300 × the best known before the first update" in lines(replace(done, score=1.3, trials=trials[:1]))[-1]


def test_a_checkpoint_of_another_network_is_refused_by_version(tmp_path: Path) -> None:
    """A number that the policy does not have: said, with both numbers."""
    kept = tmp_path / "kept"
    pw.pretrain(written(tmp_path / "c.toml"), checkpoint=kept, updates=1)
    header, arrays = load_policy(kept)
    save_policy(header.model_copy(update={"network": 7}), arrays, kept)
    with pytest.raises(PlacerError, match="is of version 7 of the network of 'placeto', and this is version 1"):
        read_checkpoint(kept).load_weights(Made(small())(corpus().problem(0)), "placeto")


def test_searched_problems_are_not_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the answers of another training of the same problems nobody is asked any more; all ends the same."""
    path = written(tmp_path / "c.toml", training={"updates": 2})
    pw.pretrain(path, checkpoint=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "answers").rename(tmp_path / "b" / "answers")
    monkeypatch.setattr(CorpusWorker, "_search", None)
    pw.pretrain(path, checkpoint=tmp_path / "b")
    same(dict(load_policy(tmp_path / "a")[1]), dict(load_policy(tmp_path / "b")[1]))


def test_what_does_not_go_with_a_corpus_is_refused(tmp_path: Path) -> None:
    """A model, devices, problem_options; nothing at all."""
    path = written(tmp_path / "c.toml")
    for arguments, words in (
        (("zoo:rnnlm-2", "--corpus", path), "--corpus excludes MODEL"),
        (("--corpus", path, "-d", "2xP100"), "--corpus excludes --devices"),
        (("--corpus", path, "--patience", "3"), "--corpus excludes --patience"),
        (("--corpus", path, "--evaluations", "0"), "--corpus excludes --evaluations"),
        (("--corpus", path, "--workers", "0"), "--corpus excludes --workers"),
        (("--corpus", path, "--graph", "training"), "--corpus excludes the options of a model"),
        ((), "there is nothing to train on"),
        (("--corpus", path, "--resume"), "name its path with --checkpoint"),
    ):
        refused = run("train", *arguments, "-q", code=2)
        assert words in refused.stderr

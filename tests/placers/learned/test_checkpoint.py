"""Checkpoints: whole at every moment, exact when gone on with, and refused by name where they do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from learned_policies import TablePlacer
from simulate_problems import random_problem, seeded

from placewise.errors import InputError, ModelFileError, OutputError, PlacerError
from placewise.files.policy_file import PolicyFile, SectionRecord, header_path, load_policy, save_policy
from placewise.model.cluster import Cluster
from placewise.model.problem import Constraints, Problem
from placewise.placers import registry
from placewise.placers.base import Budget, run_placer
from placewise.placers.learned.checkpoint import problem_digest, read_checkpoint
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.trainer import RENAMED_KEYS, Trainer, Update
from placewise.simulate import judge_placement
from placewise.training.resume import dump_checkpoint, restore_trainer


def wide_problem() -> Problem:
    """A dozen ops or so with a choice for most of them."""
    found = (random_problem(seeded(seed), max_ops=12, max_devices=3) for seed in range(100))
    return next(problem for problem in found if np.log2(problem.allowed.sum(axis=1).clip(1)).sum() > 10)


def trained(problem: Problem, updates: int = 6, of: int | None = None, **options: object) -> Trainer:
    """A table after so many updates; where it was to be trained for more, stopped there."""
    trainer = TablePlacer(LearningOptions(**options)).trainer(problem, None, 0)  # type: ignore[arg-type]
    trainer.begin()

    def stop(update: Update) -> None:
        if of is not None and update.number == updates:
            raise KeyboardInterrupt

    trainer.run(Budget(iterations=of or updates), stop)
    return trainer


def kept(trainer: Trainer, path: Path) -> Path:
    """The trainer's checkpoint at that path."""
    save_policy(*dump_checkpoint(trainer, "table", reward="simulated", budget=Budget(), spent=1.0), path)
    return path


def test_a_training_goes_on_from_its_file_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Twelve updates, or six, a file, another trainer and six: the same in every number that is kept."""
    problem = wide_problem()
    whole = trained(problem, 12)
    again = TablePlacer().trainer(problem, None, 0)
    restore_trainer(read_checkpoint(kept(trained(problem, 6, of=12), tmp_path)), again, "table", "simulated")
    again.run(Budget(iterations=12))
    figures, arrays = whole.state()
    others, twins = again.state()
    assert set(arrays) == set(twins)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, twins[name], err_msg=name)
    assert {**figures, "curve": 0} == {**others, "curve": 0}
    assert whole.learner.updates == again.learner.updates == 12
    assert [(count, value) for count, _, value in whole.curve] == [(count, value) for count, _, value in again.curve]


def test_the_header_says_in_words_what_is_kept(tmp_path: Path) -> None:
    """Policy, features, devices and the best placement by names; the tensors are no pickle."""
    problem = wide_problem()
    trainer = trained(problem)
    header, arrays = load_policy(kept(trainer, tmp_path))
    assert (header.policy, header.updates, header.devices) == ("table", 6, problem.cluster.names)
    assert [(section.name, section.columns) for section in header.features] == list(trainer.policy.features.layout)
    assert header.assignment == {
        op: problem.cluster.names[d] for op, d in zip(problem.graph.ops.name, trainer.pricing.best, strict=True)
    }
    assert header.value == trainer.pricing.value and header.evaluations == trainer.pricing.evaluations
    assert header.options["samples"] == 16 and header.history[-1].value == header.value
    assert set(arrays) == set(trainer.state()[1])
    files = sorted(tmp_path.iterdir())
    assert [file.suffix for file in files] == [".safetensors", ".json"]
    assert files[0].name == header.tensors and files[0].read_bytes()[8:9] == b"{"


def test_an_older_checkpoint_gives_way_to_a_newer_one_and_to_no_other(tmp_path: Path) -> None:
    """Each leaves one pair of files; other people's tensors in the folder stay."""
    problem = wide_problem()
    stranger = tmp_path / "policy-of-mine.safetensors"
    stranger.write_bytes(b"x")
    for updates in (1, 2, 3):
        kept(trained(problem, updates), tmp_path)
    assert read_checkpoint(tmp_path).header.updates == 3
    assert len(list(tmp_path.iterdir())) == 3 and stranger.exists()
    kept(trained(problem, 1), tmp_path / "other.json")
    assert (
        read_checkpoint(tmp_path).header.updates == 3 and read_checkpoint(tmp_path / "other.json").header.updates == 1
    )


def test_torn_and_mixed_up_files_are_refused(tmp_path: Path) -> None:
    """No header, no tensors, other tensors, a path out of the folder, JSON that is no checkpoint."""
    problem = wide_problem()
    with pytest.raises(ModelFileError, match=r"policy\.json: cannot be read"):
        read_checkpoint(tmp_path)
    kept(trained(problem, 1), tmp_path)
    place = header_path(tmp_path)
    document = json.loads(place.read_text())
    beside = tmp_path / document["tensors"]
    whole = beside.read_bytes()
    beside.write_bytes(whole[:-1])
    with pytest.raises(ModelFileError, match=r"is not the file that policy\.json was written with"):
        read_checkpoint(tmp_path)
    beside.unlink()
    with pytest.raises(ModelFileError, match=r"safetensors: cannot be read"):
        read_checkpoint(tmp_path)
    for change, words in (
        ({"tensors": "../x"}, "names no file of tensors"),
        ({"tensors": ""}, "names no file of tensors"),
        ({"version": 2}, "newer than 1"),
        ({"format": "placewise-plan"}, "not a placewise-policy file"),
        ({"updates": -1}, "'updates'"),
    ):
        place.write_text(json.dumps({**document, **change}))
        with pytest.raises(ModelFileError, match=words):
            read_checkpoint(tmp_path)
    with pytest.raises(OutputError, match="make the directory"):
        kept(trained(problem, 1), tmp_path / "a" / "b")


def test_weights_without_the_rest_are_refused_for_going_on(tmp_path: Path) -> None:
    """A header whose tensors lack Adam's and the prices says what is missing."""
    problem = wide_problem()
    trainer = trained(problem, 1)
    header, arrays = dump_checkpoint(trainer, "table", reward="simulated", budget=Budget(), spent=0.0)
    save_policy(header, {name: array for name, array in arrays.items() if name.startswith("policy/")}, tmp_path)
    with pytest.raises(ModelFileError, match="lacks what training goes on from"):
        restore_trainer(read_checkpoint(tmp_path), TablePlacer().trainer(problem, None, 0), "table", "simulated")
    read_checkpoint(tmp_path).load_weights(TablePlacer().policy(problem, 0), "table")


def renamed(problem: Problem) -> Problem:
    """The same problem with devices of other names."""
    cluster = problem.cluster
    name = {device.name: f"my-{device.name}" for device in cluster} | {"host": "host"}
    links = [replace(link, source=name[link.source], target=name[link.target]) for link in cluster.links]
    devices = tuple(replace(device, name=name[device.name]) for device in cluster.devices)
    return replace(problem, cluster=Cluster(devices, tuple(links), cluster.transfers))


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    """Another policy, reward, graph, cluster, cost; other features, parameters and shapes."""
    problem = wide_problem()
    checkpoint = read_checkpoint(kept(trained(problem, 1), tmp_path))
    trainer = TablePlacer().trainer(problem, None, 0)
    with pytest.raises(PlacerError, match=r"policy\.json: is of the policy 'table', not 'hsdag'"):
        restore_trainer(checkpoint, trainer, "hsdag", "simulated")
    with pytest.raises(PlacerError, match="was trained on the reward 'simulated', not 'torch'"):
        restore_trainer(checkpoint, trainer, "table", "torch")
    other = TablePlacer().trainer(random_problem(seeded(77), max_ops=12, max_devices=3), None, 0)
    with pytest.raises(PlacerError, match="was trained on another graph"):
        restore_trainer(checkpoint, other, "table", "simulated")
    elsewhere = TablePlacer().trainer(renamed(problem), None, 0)
    with pytest.raises(
        PlacerError, match=rf"devices {problem.cluster.names[0]}.*not for my-{problem.cluster.names[0]}"
    ):
        restore_trainer(checkpoint, elsewhere, "table", "simulated")
    with pytest.raises(PlacerError, match="was trained for the devices"):
        checkpoint.load_weights(elsewhere.policy, "table")
    elsewhere.policy.__class__ = type("Careless", (elsewhere.policy.__class__,), {"any_devices": True})
    checkpoint.load_weights(elsewhere.policy, "table")
    slower = replace(problem, costs=replace(problem.costs, op_seconds=problem.costs.op_seconds * 2))
    with pytest.raises(PlacerError, match="was trained with other costs, another objective or other rules"):
        restore_trainer(checkpoint, TablePlacer().trainer(slower, None, 0), "table", "simulated")
    checkpoint.load_weights(TablePlacer().policy(slower, 0), "table")

    sections = checkpoint.header.features
    for features, words in (
        (sections[:1], "has no features 'fractal', which the policy reads here"),
        ((*sections, SectionRecord(name="shape", columns=4)), "has the features 'shape', which the policy does not"),
        (sections[::-1], "in another order"),
        (
            (sections[0], SectionRecord(name="fractal", columns=2)),
            "has 2 columns of the features 'fractal', and this problem 1",
        ),
    ):
        changed = replace(checkpoint, header=checkpoint.header.model_copy(update={"features": features}))
        with pytest.raises(PlacerError, match=words):
            changed.load_weights(trainer.policy, "table")
    logits = checkpoint.arrays["policy/logits"]
    for arrays, words in (
        ({}, "only the policy has 'logits'"),
        ({"policy/logits": logits, "policy/more": logits}, "only the checkpoint has 'more'"),
        ({"policy/logits": logits[:, :1]}, "has 'logits' of shape"),
    ):
        with pytest.raises(PlacerError, match=words):
            replace(checkpoint, arrays=arrays).load_weights(trainer.policy, "table")


def test_the_digest_of_a_problem_tells_what_prices_depend_on() -> None:
    """The same problem has the same digest; other costs, rules and objectives have others."""
    problem = wide_problem()
    costs = replace(problem.costs, transfer_seconds=problem.costs.transfer_seconds * 2)
    other = "live" if problem.objective.memory == "sum" else "sum"
    kinds = [
        problem,
        replace(problem, costs=costs),
        replace(problem, constraints=Constraints(headroom=0.5)),
        replace(problem, objective=replace(problem.objective, memory=other)),
    ]
    assert len({problem_digest(kind) for kind in kinds}) == len(kinds)
    assert problem_digest(wide_problem()) == problem_digest(problem)


def test_options_that_no_training_can_have_had_are_refused(tmp_path: Path) -> None:
    """A header that was edited: the option of the wrong type is named, with the file."""
    kept(trained(wide_problem(), 1), tmp_path)
    place = header_path(tmp_path)
    document = json.loads(place.read_text())
    place.write_text(json.dumps({**document, "options": {**document["options"], "samples": "many"}}))
    with pytest.raises(PlacerError, match=r"policy\.json: the option 'samples' of 'table' is 'many'; give a whole"):
        TablePlacer(LearningOptions(checkpoint=str(tmp_path)))


def test_a_placer_begins_with_trained_weights(tmp_path: Path) -> None:
    """With `checkpoint` and no updates, the answer is the trained policy's greedy placement, options included."""
    problem = wide_problem()
    trainer = trained(problem, 150, rate=0.1, samples=8)
    kept(trainer, tmp_path)
    placer = TablePlacer(LearningOptions(checkpoint=str(tmp_path), updates=0))
    assert (placer.options.rate, placer.options.samples, placer.options.updates) == (0.1, 8, 0)
    fresh = placer.trainer(problem, None, 0)
    greedy = trainer.policy.greedy(trainer.pricing)
    np.testing.assert_array_equal(fresh.policy.greedy(fresh.pricing), greedy)
    assert not np.array_equal(TablePlacer().policy(problem, 0).greedy(fresh.pricing), greedy)
    asked = run_placer(placer, problem, Budget())
    assert (
        asked.placement is not None
        and TablePlacer(LearningOptions(rate=0.5, checkpoint=str(tmp_path))).options.rate == 0.5
    )


def test_what_training_found_is_known_on_the_same_problem_alone(tmp_path: Path) -> None:
    """A policy that is asked again is not behind its own training; at other costs, it begins as any other."""
    problem = wide_problem()
    trainer = trained(problem, 40, samples=8)
    kept(trainer, tmp_path)
    placer = TablePlacer(LearningOptions(checkpoint=str(tmp_path), updates=0))
    assert placer.trained is not None and placer.trained.best(problem) is not None
    asked = run_placer(placer, problem, Budget()).placement
    greedy = float(trainer.pricing(trainer.policy.greedy(trainer.pricing))[0])
    assert asked is not None and judge_placement(problem, asked).value == trainer.pricing.value < greedy
    dearer = replace(problem, costs=replace(problem.costs, op_seconds=problem.costs.op_seconds * 2))
    assert placer.trained.best(dearer) is None
    rows = trainer.pricing.best.copy() if trainer.pricing.best is not None else np.zeros(0, np.int32)
    rows[0] = problem.n_devices
    strange = replace(placer.trained, arrays={**placer.trained.arrays, "pricing/best": rows})
    assert strange.best(problem) is None


def test_a_missing_checkpoint_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    """The option's path is read when the placer is made."""
    with pytest.raises(InputError, match="cannot be read"):
        TablePlacer(LearningOptions(checkpoint=str(tmp_path / "none")))


def test_the_smallest_header_is_read_back(tmp_path: Path) -> None:
    """Scalars, empty and Boolean arrays survive, and what is not given has its default."""
    arrays = {"s": np.array(3.5, np.float32), "e": np.zeros((0, 16), np.uint8), "b": np.array([True, False])}
    save_policy(PolicyFile(policy="p", devices=("d",)), arrays, tmp_path / "new")
    header, found = load_policy(tmp_path / "new")
    assert header.value == float("inf") and header.budget.updates is None
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def test_old_names_of_options_are_read(tmp_path: Path) -> None:
    """By the registry and in checkpoints; deleted options of checkpoints are ignored, and no option is given twice."""
    options = registry.create("hsdag", {"restless": 0.5, "renewed": 7}).options
    assert (options.extra_exploration, options.restart_after) == (0.5, 7)
    with pytest.raises(PlacerError, match="'restart_after' is given twice"):
        registry.create("hsdag", {"renewed": 7, "restart_after": 8})
    kept(trained(wide_problem(), 1), tmp_path)
    header, arrays = load_policy(tmp_path)
    old = {"failed": 3.0, "forgiven": 9, "costs": True}
    save_policy(header.model_copy(update={"options": old}), arrays, header_path(tmp_path))
    options = read_checkpoint(tmp_path).merge_options(LearningOptions())
    assert (options.failure_penalty, options.invalid_grace) == (3.0, 9)


def test_old_keys_of_the_state_are_read() -> None:
    """A state with the keys of older checkpoints restores the same training."""
    problem = wide_problem()
    trainer = trained(problem, 3)
    trainer.policy.extra_decisions, trainer._counts["best_run"] = 1.25, 2.5
    trainer._best_run = {name: value + 1 for name, value in trainer.policy.state_dict().items()}
    old = {now: before for before, now in RENAMED_KEYS.items()}
    figures, arrays = (
        {old.get(key.split("/")[0], key.split("/")[0]) + key[len(key.split("/")[0]) :]: state[key] for key in state}
        for state in trainer.state()
    )
    assert "dice" in arrays and any(name.startswith("elder/") for name in arrays) and figures["unrest"] == 1.25
    again = TablePlacer().trainer(problem, None, 0)
    again.restore(figures, arrays)
    others, twins = again.state()
    assert others == trainer.state()[0]
    for name, array in trainer.state()[1].items():
        np.testing.assert_array_equal(array, twins[name], err_msg=name)

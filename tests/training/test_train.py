"""Training as users meet it: killed and gone on with, stopped, logged, refused; by the command and from Python."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from locations import HELPERS
from soak import later

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from cli_runs import run, workload
from learned_policies import TablePlacer, TablePolicy
from onnx_files import make_node, model, saved

import placewise as pw
from placewise.errors import InputError, PlacerError
from placewise.files.policy_file import load_header
from placewise.model.columns import Floats, Ints
from placewise.model.placement import Placement
from placewise.model.result import Outcome, Reason
from placewise.placers import registry
from placewise.placers.base import Budget, Progress
from placewise.placers.learned.checkpoint import read_checkpoint
from placewise.training import train as study
from placewise.training.train import TrainingSetting, train
from placewise.training.train_result import lines

SMALL = ("zoo:random-layered", "--dim", "n_ops=60", "-d", "2xA100-80GB,cpu", "--objective", "latency")
HIDDEN = HELPERS


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest policy is a placer by name."""
    monkeypatch.setitem(registry._PLACERS, "table", "learned_policies:TablePlacer")


def problem(ops: int = 60) -> pw.Problem:
    """So many ops on two accelerators and a host."""
    return pw.build(
        "zoo:random-layered", "2xA100-80GB,cpu", pw.ProblemOptions(objective="latency", dims={"n_ops": ops})
    )


def setting(path: Path | None = None, updates: int | None = 20, **options: Any) -> TrainingSetting:
    """The table, trained for a while."""
    options.setdefault("budget", Budget(iterations=updates))
    return TrainingSetting("table", checkpoint=path, **options)


class Killer:
    """Ends a training at an update."""

    def __init__(self, update: int) -> None:
        self.update = update

    def __call__(self, progress: Progress) -> None:
        if progress.message.startswith(f"update {self.update} "):
            raise KeyboardInterrupt


KEPT = ("--seed", "3", "--json", "-q")


def apart(policy: str, folder: Path, *arguments: str) -> list[str]:
    """The command in a process of its own, where the table is a placer too."""
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from placewise.placers import registry; "
        "registry._PLACERS['table'] = 'learned_policies:TablePlacer'; from placewise.cli import main; main()"
    )
    given = ("train", *SMALL, *KEPT, "--policy", policy, "--checkpoint", str(folder), *arguments)
    return [sys.executable, "-c", code, str(HIDDEN), *given]


@pytest.mark.parametrize(("policy", "updates"), [("table", 40), later("table", 120), later("hsdag", 12)])
def test_killed_and_gone_on_with_it_ends_as_if_it_had_not_been(tmp_path: Path, policy: str, updates: int) -> None:
    """kill −9 in the middle, then --resume: the same placement, value, evaluations and weights, to the last bit."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = subprocess.Popen(apart(policy, killed, "--updates", str(updates), "--every", "1"))
    while not (killed / "policy.json").exists() or load_header(killed).updates < 3:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    middle = load_header(killed).updates
    assert 3 <= middle < updates
    asked = ("train", *SMALL, *KEPT, "--checkpoint")
    one = json.loads(run(*asked, whole, "--policy", policy, "--updates", updates).stdout)
    other = json.loads(run(*asked, killed, "--resume").stdout)
    assert one["assignment"] == other["assignment"] and one["value"] == other["value"]
    for name in ("updates", "asked", "evaluations", "learned"):
        assert one["training"][name] == other["training"][name], name
    assert other["training"]["resumed"] == middle and one["training"]["updates"] == updates
    first, second = read_checkpoint(whole), read_checkpoint(killed)
    assert set(first.arrays) == set(second.arrays)
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, second.arrays[name], err_msg=name)
    assert [step.value for step in first.header.history] == [step.value for step in second.header.history]


def test_what_is_interrupted_is_kept_and_gone_on_with(tmp_path: Path) -> None:
    """Ctrl-C: the best so far is the answer and in the file; going on keeps the budget, and may have another."""
    stopped = train(problem(), setting(tmp_path), on_progress=Killer(5))
    assert stopped.result.status.reason is Reason.INTERRUPTED and stopped.updates == 5
    header = load_header(tmp_path)
    assert header.updates == 5 and header.value == stopped.learned == stopped.result.value
    on = train(problem(), TrainingSetting(checkpoint=tmp_path, resume=True))
    assert (on.updates, on.resumed) == (20, 5) and on.learned <= stopped.learned
    more = train(problem(), TrainingSetting(checkpoint=tmp_path, resume=True, budget=Budget(iterations=25)))
    assert (more.updates, more.resumed) == (25, 20) and more.seconds > on.seconds
    assert train(problem(), TrainingSetting(checkpoint=tmp_path, resume=True)).updates == 25


def test_going_on_is_refused_where_it_would_not_be_the_same(tmp_path: Path) -> None:
    """No checkpoint, one where a new one is to be, other policy, option, seed, reward, graph."""
    with pytest.raises(InputError, match="there is no checkpoint to resume from"):
        train(problem(), setting(tmp_path, resume=True))
    with pytest.raises(InputError, match="name its path with --checkpoint"):
        train(problem(), setting(resume=True))
    train(problem(), setting(tmp_path, updates=2))
    with pytest.raises(InputError, match=r"policy\.json: there is a training already"):
        train(problem(), setting(tmp_path))
    for changed, words in (
        ({"policy": "hsdag"}, "is of the policy 'table', not 'hsdag'"),
        ({"options": {"rate": 0.5}}, r"was trained with rate=0\.001, not 0\.5"),
        ({"budget": Budget(seed=4)}, "was trained with the seed 0, not 4"),
        ({"reward": "nonsense"}, "there is no reward 'nonsense'"),
    ):
        with pytest.raises(InputError, match=words):
            train(problem(), TrainingSetting(**{"checkpoint": tmp_path, "resume": True, **changed}))  # type: ignore[arg-type]
    with pytest.raises(PlacerError, match=r"another graph \(zoo:random-layered, with dims {'n_ops': 60}\)"):
        train(problem(50), TrainingSetting(checkpoint=tmp_path, resume=True))
    with pytest.raises(InputError, match="a checkpoint every 0 updates"):
        train(problem(), setting(every=0))
    with pytest.raises(PlacerError, match=r"the placer 'greedy' learns nothing; choose from .*hsdag"):
        train(problem(), TrainingSetting("greedy"))


def test_a_policy_that_diverges_leaves_its_last_finite_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is not finite from the fourth update on: three are kept, the best is the answer, and both are said."""
    scored = TablePolicy.log_prob
    count = iter(range(100))

    def breaking(self: TablePolicy, choices: Any) -> Any:
        log_prob, entropy = scored(self, choices)
        return (log_prob * math.nan if next(count) >= 3 else log_prob), entropy

    monkeypatch.setattr(TablePolicy, "log_prob", breaking)
    found = train(problem(), setting(tmp_path))
    assert found.updates == 3 and found.result.placement is not None
    assert "diverged" in found.result.notes[0] and "after update 3" in found.result.notes[0]
    kept = read_checkpoint(tmp_path)
    assert kept.header.diverged and kept.header.updates == 3 and kept.header.value == found.learned
    assert all(np.isfinite(array).all() for name, array in kept.arrays.items() if name.startswith(("policy/", "adam/")))
    monkeypatch.setattr(TablePolicy, "log_prob", scored)
    assert train(problem(), TrainingSetting(checkpoint=tmp_path, resume=True)).updates == 20


@dataclass
class Failing:
    """A reward by a runtime on which nothing runs, or only what leaves the host alone."""

    problem: pw.Problem
    picky: bool = False
    failure: str = ""
    single: float = 1.0
    closed: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def __call__(self, placements: Ints) -> Floats:
        self.failure = "the worker ended: out of patience"
        on_host = placements == self.problem.cluster.index("cpu")
        seconds = on_host.mean(axis=1) + 1.0
        return np.where(on_host.any(axis=1), np.nan, seconds) if self.picky else np.full(len(placements), np.nan)


def measured_by(monkeypatch: pytest.MonkeyPatch, reward: Failing) -> None:
    """A runtime whose measurements are those of `reward`."""
    monkeypatch.setattr(study, "reward_of", lambda *_: lambda: reward)


def test_a_reward_that_always_fails_ends_with_the_runtimes_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is placed; the reason is in the notes; what measured is closed."""
    whole = problem()
    reward = Failing(whole)
    measured_by(monkeypatch, reward)
    found = train(whole, setting(reward="torch"))
    assert found.result.status.outcome is Outcome.UNKNOWN and reward.closed
    assert "out of patience" in found.result.notes[-1] and "none of" in found.result.notes[-1]


def test_measured_the_best_by_measure_and_by_the_judge_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is the fastest by measure; failures do not count; the judge's best of the measured is beside it."""
    whole = problem()
    measured_by(monkeypatch, Failing(whole, picky=True))
    found = train(whole, setting(reward="torch", budget=Budget(iterations=5)))
    assert found.learned == 1.0 and found.result.placement is not None and found.judged is not None
    assert found.judged.value <= found.result.value and found.judged.measured == 1.0
    assert found.evaluations <= found.asked
    liked = "the judge prefers another of them"
    assert (liked in "".join(lines(found))) is (found.judged.value < found.result.value)
    other = Placement((found.judged.placement.device + 1) % 3)
    worse = replace(found, judged=replace(found.judged, placement=other, value=2 * found.result.value))
    assert liked not in "".join(lines(worse))


def test_patience_ends_a_training_early() -> None:
    """So many updates without anything better, and it is over."""
    found = train(problem(), setting(options={"patience": 4, "rate": 1e-9}, updates=1000))
    assert found.updates < 500


def test_every_evaluation_is_spent(tmp_path: Path) -> None:
    """The last of a budget too: one sample is of one state of the policy's walk, in which nothing may be unseen."""
    nodes = [make_node("Relu", [f"t{op}"], [f"t{op + 1}"]) for op in range(12)]
    chain = saved(tmp_path, model(nodes, {"t0": (1 << 16, 512)}, ["t12"]))
    for evaluations in (20, 50):
        found = train(pw.build(chain, "2xK80"), TrainingSetting("hsdag", budget=Budget(evaluations=evaluations)))
        assert found.evaluations == evaluations and found.updates < 100 and not found.result.notes


def test_who_was_weary_goes_on_with_new_patience(tmp_path: Path) -> None:
    """A training that ended for want of anything better goes on for as long again, and says why it ends."""
    given = setting(tmp_path, options={"patience": 4, "rate": 1e-9}, updates=1000)
    first = train(problem(), given)
    again = train(problem(), TrainingSetting(checkpoint=tmp_path, resume=True))
    assert again.updates >= first.updates + 4
    assert "table stopped early: 4 updates in a row brought nothing better" in first.result.notes


def test_the_log_has_every_figure_once(tmp_path: Path) -> None:
    """Reward, baseline, entropy, gradient, best and speeds of every update, also where a training went on."""
    loading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log = tmp_path / "log"
    train(problem(), setting(tmp_path / "kept", log=log), on_progress=Killer(5))
    train(problem(), TrainingSetting(checkpoint=tmp_path / "kept", resume=True, log=log))
    seen = loading.EventAccumulator(str(log))
    seen.Reload()
    names = set(seen.Tags()["scalars"])
    assert {"reward/mean", "reward/baseline", "policy/entropy", "policy/gradient_norm", "time/best_seconds"} <= names
    assert {"speed/samples_per_second", "speed/evaluations_per_second"} <= names
    assert [event.step for event in seen.Scalars("time/best_seconds")] == list(range(1, 21))
    values = [event.value for event in seen.Scalars("time/best_seconds")]
    assert values == sorted(values, reverse=True)


def test_the_command_prints_the_plan_and_the_training(tmp_path: Path) -> None:
    """Value, bound, devices; updates and evaluations; what was written. As JSON it is a plan with `training`."""
    plan, folder = tmp_path / "plan.json", tmp_path / "kept"
    shown = run("train", *SMALL, "--policy", "table", "--updates", 12, "--checkpoint", folder, "-o", plan).stdout
    assert "table: 12 updates, " in shown and f"saved in {folder}" in shown and f"wrote {plan}" in shown
    assert "no placement is below" in shown and "best single device" in shown
    document = json.loads(run("train", *SMALL, "--checkpoint", folder, "--resume", "--updates", 14, "--json").stdout)
    assert document["training"]["updates"] == 14 and document["training"]["resumed"] == 12
    assert document["assignment"] and document["training"]["policy"] == "table" and document["placer"] == "table"
    assert document["value"] <= json.loads(plan.read_text())["value"]
    assert run("check", *SMALL[:3], plan).stdout


def test_a_trained_policy_places_without_training(tmp_path: Path) -> None:
    """`place` with a checkpoint and no updates asks the policy alone; of other devices it is refused by name."""
    folder = tmp_path / "kept"
    run("train", *SMALL, "--policy", "table", "--updates", 12, "--checkpoint", folder)
    chosen = ("--placer", "table", "--option", f"checkpoint={folder}", "--option", "updates=0")
    assert json.loads(run("place", *SMALL, *chosen, "--json").stdout)["placer"] == "table"
    refused = run("place", *SMALL[:3], "-d", "3xA100-80GB", *chosen, code=2).stderr
    assert "policy.json: was trained for the devices cuda:0, cuda:1, cpu, not for cuda:0, cuda:1, cuda:2" in refused


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    """Policies, rewards and checkpoints that do not exist: exit code 2 and what to do."""
    for arguments, words in (
        (("--policy", "nonsense"), "there is no policy 'nonsense'; choose from "),
        (("--policy", "heft"), "the placer 'heft' learns nothing"),
        (("--policy", "table", "--reward", "guessed"), "there is no reward 'guessed'"),
        (("--policy", "table", "--option", "rate=-1"), "rate is -1"),
        (("--policy", "table", "--resume"), "name its path with --checkpoint"),
        (("--checkpoint", tmp_path / "a" / "b"), "cannot be written; make the directory"),
        (("--policy", "table", "--checkpoint", tmp_path / "x", "--resume"), "there is no checkpoint to resume from"),
        (("--policy", "table", "--objective", "throughput", "--contiguous"), "cannot be trained on this problem"),
        (("--policy", "table", "--option", "samples=4000000000000"), "memory ran out while table was trained"),
        (("--policy", "table", "--tensorboard", __file__), "cannot be written (file exists); give a folder"),
        (("--bind", "core:0=1"), "--bind goes with a measured reward only; name a runtime: --reward onnxruntime"),
        (("--reward", "onnxruntime"), ""),
    ):
        error = run("train", *SMALL, *arguments, code=2).stderr
        assert words in error and error.count("\n") == 1, error
    assert not list(tmp_path.iterdir())


def test_what_nothing_fits_on_is_proved_before_training(tmp_path: Path) -> None:
    """Exit code 3, and nothing is kept."""
    model = workload(tmp_path / "w.json", maxSizePerFPGA=30.0, maxCPUs=0)
    assert (
        "infeasible"
        in run("train", model, "--free", "--policy", "table", "--checkpoint", tmp_path / "kept", code=3).stdout
    )
    assert not (tmp_path / "kept").exists()


def test_train_in_python(tmp_path: Path) -> None:
    """pw.train gives a plan with the figures of its training, and saves itself."""
    found = pw.train(
        "zoo:random-layered", "2xA100-80GB,cpu", policy="table", updates=5, seed=1, checkpoint=tmp_path / "p.json",
        objective="latency", options={"samples": 4}, dims={"n_ops": 60},
    )  # fmt: skip
    assert isinstance(found, pw.Plan) and found.updates == 5 and found.evaluations <= 4 * 5 + 10
    assert found.value == found.learned and "table: 5 updates" in found.summary()
    found.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").exists() and TablePlacer(None).options.checkpoint == ""
    on = pw.train("zoo:random-layered", "2xA100-80GB,cpu", checkpoint=tmp_path / "p.json", resume=True,
                  updates=6, objective="latency", dims={"n_ops": 60})  # fmt: skip
    assert (on.trained.policy, on.updates, on.result.seed) == ("table", 6, 1)

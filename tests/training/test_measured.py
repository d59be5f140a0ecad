"""The measured reward: real runtimes, drift, noise and failures; and policies that learn from it."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx.helper import make_node
from onnx_branches import branching, modelled, written

from placewise._util.cores import pinnable_cores
from placewise.analysis.measure_placements import Setting
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.core.place import place
from placewise.errors import InputError, RunError
from placewise.model.problem import Rule
from placewise.placers.base import Budget
from placewise.placers.learned.pricing import Pricing
from placewise.runtimes.base import Realised, RuntimeInfo
from placewise.runtimes.measure import Protocol
from placewise.training.measured_reward import BRIEF_PROTOCOL, REWARDS, MeasuredReward, MeasuringEffort, reward_of

pytest.importorskip("onnxruntime")
CORE = pinnable_cores()[0]
HERE = {"core:0": f"cores:{CORE}", "core:1": f"cores:{CORE}"}
SETTING = Setting(binding=HERE, options={"spin": "0"}, protocol=Protocol(rounds=1, samples=1, warm_up=1))
QUICK = MeasuringEffort(steady=1e9, most=1)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    """Two branches on two cores, for latency."""
    return build(written(tmp_path_factory.mktemp("reward"), branching()), "2xcore")


@pytest.fixture(scope="module")
def reward(problem):
    """It, measured by ONNX Runtime."""
    with MeasuredReward(problem, SETTING, QUICK) as reward:
        yield reward


def dealt(problem, *ops: str) -> np.ndarray:
    """These ops on the second core, by name."""
    return np.array([name in ops for name in problem.graph.ops.name], np.int32)


def test_placements_have_seconds_once(problem, reward):
    """In their order, finite; the same placement is not run again, nor one that only exchanges equal cores."""
    one, other = dealt(problem, "h", "g"), dealt(problem, "j")
    before = reward.evaluations
    first = reward(np.stack([one, other, one]))
    assert first[0] == first[2] and np.isfinite(first).all() and (first > 0).all() and (first < 10).all()
    assert reward.evaluations == before + 2
    assert reward(np.stack([1 - other, one])).tolist() == [first[1], first[0]]
    assert reward.evaluations == before + 2 and not reward.failure


def test_the_single_device_is_known_from_the_beginning(problem, reward):
    """It is what everything is compared with."""
    before = reward.evaluations
    assert reward(np.zeros((1, problem.n_ops), np.int32)).tolist() == [reward.single]
    assert reward.evaluations == before


def test_cores_that_are_set_otherwise_do_not_count_as_equal(problem):
    """Costs cannot tell them apart, and the machine can."""
    unlike = replace(SETTING, binding={**HERE, "core:1": f"cores:{CORE};session.set_denormal_as_zero=1"})
    with MeasuredReward(problem, unlike, QUICK) as reward:
        reward(np.stack([dealt(problem, "h"), 1 - dealt(problem, "h")]))
        assert reward.evaluations == 2


def test_a_single_device_that_died_is_started_again(problem):
    """Killed between two placements, it costs nothing but time."""
    with MeasuredReward(problem, SETTING, QUICK) as reward:
        for worker in reward._reference._workers:
            worker.kill()
        assert np.isfinite(reward(dealt(problem, "h", "g")[None])).all()


def test_what_fails_is_nan_and_says_why(problem):
    """Where the second core cannot start, all that use it fail with the runtime's reason, and are not tried again."""
    wrong = replace(SETTING, binding={**HERE, "core:1": f"cores:{CORE};threads=none"})
    with MeasuredReward(problem, wrong, QUICK) as reward:
        assert np.isnan(reward(np.stack([dealt(problem, "h"), dealt(problem, "y")]))).all()
        assert "core:1 has 'none' threads" in reward.failure
        assert np.isnan(reward(dealt(problem, "y")[None])).all() and reward.evaluations == 2


def test_a_placement_has_a_time_limit(problem):
    """Whoever does not answer within it has failed; the single device may take longer."""
    with MeasuredReward(problem, SETTING, replace(QUICK, seconds=1e-9)) as reward:
        assert reward.single > 0 and np.isnan(reward(dealt(problem, "h")[None])).all()
        assert "did not answer within" in reward.failure


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"runtime": "torch"}, "runs no model of the format 'onnx'"),
        ({"runtime": "abacus"}, "no runtime 'abacus'"),
        ({"options": {"speed": "9"}}, "no option 'speed'"),
        ({"binding": {"core:0": "cores:4096"}}, "core 4096 is not here"),
    ],
)
def test_what_is_not_here_is_refused_at_the_start(problem, said, message):
    """Before any placement is asked for."""
    with pytest.raises(InputError, match=message):
        MeasuredReward(problem, replace(SETTING, **said), QUICK)


def test_models_that_cannot_be_measured_are_refused(tmp_path):
    """One with random outputs, one whose file has gone, and one that has no file at all."""
    nodes = [make_node("RandomNormalLike", ["x"], ["n"], "n"), make_node("Add", ["x", "n"], ["y"], "y")]
    path = written(tmp_path, modelled(nodes, {"x": [8]}, {"y": [8]}))
    random = build(path, "2xcore")
    with pytest.raises(InputError, match="cannot be measured: the outputs of this model are random"):
        MeasuredReward(random, SETTING, QUICK)
    onnx.save(modelled([make_node("Relu", ["x"], ["y"])], {"x": [8]}, {"y": [8]}), path)
    with pytest.raises(InputError, match="has changed since the plan was made"):
        MeasuredReward(random, SETTING, QUICK)
    with pytest.raises(InputError, match="nothing here runs a model"):
        MeasuredReward(build("zoo:inception-v3", "2xcore", ProblemOptions()), SETTING, QUICK)


def test_rewards_by_name(problem):
    """Simulated is none; the others are made where they are needed, and can be sent there."""
    assert {"simulated", "onnxruntime", "openvino", "torch"} <= set(REWARDS)
    assert reward_of("simulated", problem) is None
    with pytest.raises(InputError, match="no reward 'stopwatch'; choose from simulated, onnxruntime"):
        reward_of("stopwatch", problem)
    with pytest.raises(InputError, match="runs no model of the format 'onnx'"):
        reward_of("torch", problem)
    make = reward_of("onnxruntime", problem, SETTING, QUICK)
    with pickle.loads(pickle.dumps(make))() as reward:
        assert np.isfinite(reward(dealt(problem, "h", "g")[None])).all()


def test_a_stream_is_measured_where_throughput_counts(problem):
    """Several samples in flight, as for a race."""
    streamed = problem.with_(objective=replace(problem.objective, kind="throughput"))
    make = reward_of("onnxruntime", streamed, SETTING, QUICK)
    assert make.args[1].protocol.in_flight == 4
    with make() as reward:
        assert np.isfinite(reward(dealt(problem, "h", "g", "y")[None])).all()


class Clockwork:
    """A runtime whose seconds are made up, on a machine that slows down: what timing does is then known exactly."""

    info = RuntimeInfo("clockwork", "made up", "operator", ("onnx",), "onnxruntime")

    def __init__(self) -> None:
        self.asked = self.begun = self.open = 0
        self.slower = lambda moment: 1.0
        self.seconds = lambda device: 1.0 + float(device.sum())
        self.broken = lambda device: ""
        self.outputs = lambda device: np.ones(2, np.float32)

    def prepare(self, job):
        why = self.broken(job.placement.device)
        if why:
            raise RunError(why)
        self.begun += 1
        self.open += 1
        return Wound(self, job.placement.device)


class Wound:
    """One placement of it."""

    notes, realised = (), Realised((1, 1))

    def __init__(self, clockwork, device) -> None:
        self.of, self.device = clockwork, device

    def run(self, inputs):
        return {"y": self.of.outputs(self.device), "z": np.zeros(1, np.float32)}

    def time(self, samples, *, in_flight=1):
        why = self.of.broken(self.device)
        if why:
            raise RunError(why)
        self.of.asked += 1
        return [self.of.seconds(self.device) * self.of.slower(self.of.asked) for _ in samples]

    def close(self) -> None:
        self.of.open -= 1


class Moving(Wound):
    """One that takes other placements."""

    def move(self, placement) -> None:
        why = self.of.broken(placement.device)
        if why:
            raise RunError(why)
        self.device = placement.device


@pytest.fixture
def clockwork(monkeypatch):
    made = Clockwork()
    monkeypatch.setattr("placewise.analysis.measure_placements.registry.create", lambda name: made)
    return made


def test_a_machine_that_slows_down_is_divided_out(problem, clockwork):
    """A third slower every 30 runs: placements of one and of four times the seconds stay so, and all are closed."""
    clockwork.slower = lambda moment: 1.0 if moment < 12 else 1.01**moment
    rows = np.stack([dealt(problem, *problem.graph.ops.name[:n]) for n in (1, 2, 3, 4, 5, 6)])
    with MeasuredReward(problem, Setting(protocol=BRIEF_PROTOCOL), MeasuringEffort(side_by_side=2)) as reward:
        assert reward.single == 1.0
        assert reward(rows) == pytest.approx([2, 3, 4, 5, 6, 7], rel=0.05)
    assert clockwork.slower(clockwork.asked) > 1.3 and clockwork.open == 0


def test_rounds_are_repeated_where_they_disagree_or_something_is_best(problem, clockwork):
    """Three rounds where all is steady; nine where it is not, and for what would be the best."""
    care, bad, good = MeasuringEffort(side_by_side=1), dealt(problem, "h"), dealt(problem, "j")
    with MeasuredReward(problem, Setting(protocol=BRIEF_PROTOCOL), care) as reward:
        before = clockwork.asked
        reward(bad[None])
        assert clockwork.asked - before == 2 * (1 + 3)
        clockwork.seconds = lambda device: 0.5 if device.any() else 1.0
        before = clockwork.asked
        assert reward(good[None])[0] == 0.5
        assert clockwork.asked - before == 2 * (1 + 3) + 2 * (1 + 6)
        generator = np.random.default_rng(0)
        clockwork.seconds = lambda device: 2.0 + 9.0 * generator.random() if device.any() else 1.0
        before = clockwork.asked
        reward(dealt(problem, "i")[None])
        assert clockwork.asked - before == 2 * (1 + 3) + 2 * (1 + 6)


def test_workers_take_other_placements_where_they_can(problem, clockwork, monkeypatch):
    """One start for many placements on the same devices; one that fails is tried in workers of its own first."""
    monkeypatch.setattr(clockwork, "prepare", lambda job: prepared(clockwork, job))
    with MeasuredReward(
        problem, Setting(protocol=BRIEF_PROTOCOL), MeasuringEffort(side_by_side=1, preparing=1)
    ) as reward:
        names = [name for name in problem.graph.ops.name if name != "a"]
        clockwork.broken = lambda device: "it is broken" if np.array_equal(device, dealt(problem, "h")) else ""
        for name in names:
            found = reward(dealt(problem, name)[None])
            assert np.isnan(found[0]) == (name == "h")
        assert clockwork.begun == 1 + 2 and reward.failure == "it is broken"
    assert clockwork.open == 0


def prepared(clockwork, job):
    ready = Clockwork.prepare(clockwork, job)
    return Moving(clockwork, ready.device)


def test_a_failure_costs_its_neighbours_nothing(problem, clockwork):
    """Those that are timed beside it have their seconds, in the order that was asked."""
    clockwork.broken = lambda device: "it is broken" if device[3] else ""
    rows = np.stack([dealt(problem, name) for name in problem.graph.ops.name[:6]])
    with MeasuredReward(problem, Setting(protocol=BRIEF_PROTOCOL), QUICK) as reward:
        found = reward(rows)
    assert np.isnan(found).tolist() == [False, False, False, True, False, False] and reward.failure == "it is broken"


def test_other_outputs_are_a_failure(problem, clockwork):
    """However fast it is."""
    clockwork.outputs = lambda device: np.full(2, 1.0 + 0.1 * device.any(), np.float32)
    with MeasuredReward(problem, Setting(protocol=BRIEF_PROTOCOL), QUICK) as reward:
        assert np.isnan(reward(dealt(problem, "h")[None])).all()
        assert "gives another output 'y'" in reward.failure
    assert clockwork.open == 0


def test_a_single_device_that_keeps_failing_ends_the_reward(problem, clockwork):
    """With its reason."""
    with MeasuredReward(problem, Setting(protocol=BRIEF_PROTOCOL), QUICK) as reward:
        clockwork.broken = lambda device: "" if device.any() else "it burnt down"
        with pytest.raises(RunError, match="it burnt down"):
            reward(dealt(problem, "h")[None])
    assert clockwork.open == 0


def test_care_that_means_nothing_is_refused():
    """In one sentence."""
    with pytest.raises(InputError, match="no placement can be measured"):
        MeasuringEffort(side_by_side=0)


def test_a_training_that_goes_on_counts_in_the_seconds_of_its_beginning(problem, clockwork):
    """On a machine that became twice as slow, the same ratio to the single device is the same seconds as before."""
    pytest.importorskip("torch")
    train = pytest.importorskip("placewise.training.train", exc_type=ImportError)
    one, other = dealt(problem, "h"), dealt(problem, "h", "j")
    states, found = [{}], []
    for slower in (1.0, 2.0):
        clockwork.slower = lambda moment, slower=slower: slower
        with MeasuredReward(problem, Setting(protocol=BRIEF_PROTOCOL), QUICK) as reward:
            pricing = Pricing(problem, train.JudgedReward(problem, reward))
            if states[-1]:
                pricing.restore(states[-1])
            found.append(pricing(np.stack([one, other])).tolist() if slower == 1.0 else pricing(1 - one[None]).tolist())
            states.append(pricing.state())
            assert reward.single == slower
    assert found == [[2.0, 3.0], [float(problem.n_ops)]]


def test_policies_learn_from_it(problem, reward):
    """place() hands it to a placer, whose best placement is one of those that were measured, and the best of them."""
    placers = pytest.importorskip("learned_policies", exc_type=ImportError)
    asked: dict[bytes, float] = {}

    def evaluate(placements):
        found = reward(placements)
        asked.update({row.tobytes(): seconds for row, seconds in zip(placements, found, strict=True)})
        return found

    found = place(problem, placers.TablePlacer(), Budget(evaluations=8), evaluate=evaluate)
    assert len(asked) == 8 and found.placement.device.tobytes() in asked
    assert asked[found.placement.device.tobytes()] == min(asked.values()) == found.history[-1].value


def test_a_reward_that_always_fails_ends_with_its_reason(problem):
    """Nothing but failures: after a while training gives up, and says what the runtime said."""
    placers = pytest.importorskip("learned_policies", exc_type=ImportError)
    wrong = replace(SETTING, binding={**HERE, "core:1": f"cores:{CORE};threads=none"})
    with MeasuredReward(problem, wrong, QUICK) as reward:
        pinned = problem.with_(constraints=replace(problem.constraints, pins=(Rule("a", "core:1"),)))
        found = place(pinned, placers.TablePlacer(), Budget(), evaluate=reward)
    assert found.placement is None and any("core:1 has 'none' threads" in note for note in found.notes)
    assert reward.evaluations < 100


def test_failures_are_told_beside_the_answer(problem):
    """Where one core cannot start, the other is the answer; how many failed, and why, is a note."""
    placers = pytest.importorskip("learned_policies", exc_type=ImportError)
    wrong = replace(SETTING, binding={**HERE, "core:1": f"cores:{CORE};threads=none"})
    with MeasuredReward(problem, wrong, QUICK) as reward:
        found = place(problem, placers.TablePlacer(), Budget(evaluations=5), evaluate=reward)
    assert found.placement is not None and not found.placement.device.any()
    (note,) = found.notes
    assert "4 of 5 placements could not be used" in note and "core:1 has 'none' threads" in note

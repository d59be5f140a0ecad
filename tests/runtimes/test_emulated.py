"""The emulated cluster does what the judge says: its moments are those of the judge's timeline, on a real clock."""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
from emulated_runs import ON_TIME, run_on_time
from soak import later

import placewise as pw
from placewise.errors import InputError, PlacewiseError, RunError
from placewise.model.cluster import Device
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.runtimes.base import Job
from placewise.runtimes.emulated.program import ADMITTED, join_stages
from placewise.runtimes.emulated.runtime import Emulated, PreparedEmulation
from placewise.simulate import judge_placement
from placewise.simulate.judge.throughput import loads
from placewise.simulate.problem_arrays import native_problem
from tests.helpers.processes_seen import gone
from tests.helpers.simulate_problems import random_placement, random_problem, seeded
from tests.helpers.worked_examples import Op, make_problem


def drawn(seed: int, objective: Objective, **options: object) -> tuple[Problem, Placement]:
    """A problem of up to 12 ops on up to 3 devices whose seconds are all different, and a placement that can run."""
    for number in range(seed, seed + 100_000, 1000):
        choose = seeded(number)
        problem = random_problem(choose, max_ops=12, max_devices=3, objective=objective, training=False, **options)
        rng = np.random.default_rng(number)
        ops, transfers = problem.costs.op_seconds.shape, problem.costs.transfer_seconds.shape
        seconds = rng.uniform(0.05, 0.5, transfers)
        seconds[:, 0] = 0.0
        problem = problem.with_(costs=CostTable.given(rng.uniform(0.2, 1.0, ops), seconds))
        placement = random_placement(problem, choose)
        spread = len(np.unique(placement.device)) > 1 and problem.n_ops >= 5
        if spread and np.isfinite(judge_placement(problem, placement).value):
            return problem, replace(placement, replicas=None)
    raise AssertionError("nothing that can run was drawn")


def starts_of(prepared: PreparedEmulation, problem: Problem) -> dict[int, float]:
    """The moment at which every op started that is a task of its own."""
    found = {}
    for program, report in zip(prepared.programs, prepared.reports[: problem.n_devices], strict=False):
        steps = {task.number: task.steps for task in program.tasks}
        found |= {steps[number][0].op: first for number, _, first, _ in report.spans if len(steps[number]) == 1}
    return found


@pytest.mark.parametrize("seed", [0, later(1), later(2)])
@pytest.mark.parametrize(("transfers", "wires"), [("direct", False), ("direct", True), ("staged", True)])
def test_ops_start_when_the_judge_says(seed, transfers, wires):
    """Queues of links, shared wires, forwarding through host memory, and priorities: every op at its exact moment."""
    problem, placement = drawn(seed, Objective("latency"), transfers=transfers, wires=wires)
    judged = judge_placement(problem, placement)
    with Emulated().prepare(Job(problem, placement, ())) as prepared:
        seconds = run_on_time(prepared)
        starts = starts_of(prepared, problem)
    assert seconds == pytest.approx(judged.value, rel=0.1)
    assert len(starts) == problem.n_ops
    assert [starts[op] for op in range(problem.n_ops)] == pytest.approx(judged.timeline.start, abs=1e-9)


def test_what_ops_without_seconds_make_queues_behind_what_was_sent_before():
    """At one moment, a tensor of an op that took no time goes over a link after those of the op before it."""
    ops = {
        "long": Op(1, "acc0", "", 4),
        "none": Op(0, "acc0", "", 2),
        "short": Op(2, "acc0", "", 1),
        "first": Op(1, "acc1", "long"),
        "second": Op(9, "acc1", "short"),
        "third": Op(1, "acc1", "none"),
    }
    devices = [Device("acc0"), Device("acc1")]
    problem = make_problem(ops, devices, "direct", Objective("latency"))
    placement = Placement(np.array([0, 0, 0, 1, 1, 1], np.int32), order=np.array([0, 2, 1, 3, 4, 5], np.int32))
    judged = judge_placement(problem, placement)
    assert judged.timeline.start[3:].tolist() == [5, 6, 15]
    with Emulated().prepare(Job(problem, placement, ())) as prepared:
        run_on_time(prepared)
        starts = starts_of(prepared, problem)
    assert [starts[op] for op in range(6)] == pytest.approx(judged.timeline.start, abs=1e-9)


@pytest.mark.parametrize("seed", [0, later(1), later(2)])
@pytest.mark.parametrize("execution", ["subgraph", "sequential"])
@pytest.mark.parametrize("transfers", ["direct", "staged"])
def test_pieces_end_when_the_judge_says(seed, execution, transfers):
    """Calls and pieces: the last task of all ends at the judge's value, and the real clock agrees."""
    problem, placement = drawn(seed, Objective("latency", execution=execution), transfers=transfers)
    value = judge_placement(problem, placement).value
    with Emulated().prepare(Job(problem, placement, ())) as prepared:
        seconds = run_on_time(prepared)
        ends = [last for report in prepared.reports for _, _, _, last in report.spans]
    assert seconds == pytest.approx(value, rel=0.1)
    assert max(ends) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("seed", [0, later(1)])
@pytest.mark.parametrize("mode", ["blocking", "overlap", "duplex"])
def test_engines_and_wires_are_busy_as_predicted(seed, mode):
    """Every engine of a device, and every wire, spends the judge's seconds per sample, one task after the other."""
    problem, placement = drawn(seed, Objective("throughput", communication=mode))
    parts, samples = loads(native_problem(problem), placement.device), 12
    expected = parts.compute + parts.send + parts.receive
    with Emulated().prepare(Job(problem, placement, ())) as prepared:
        prepared.time([{}] * samples, in_flight=4)
        programs, reports = prepared.programs, prepared.reports
    for d in range(problem.n_devices):
        assert sum(last - first for _, _, first, last in reports[d].spans) == pytest.approx(samples * expected[d])
        engine = {task.number: task.resource for task in programs[d].tasks}
        for resource in set(engine.values()):
            spans = sorted((first, last) for number, _, first, last in reports[d].spans if engine[number] == resource)
            assert all(last <= after + 1e-9 for (_, last), (after, _) in pairwise(spans))
    for report, traffic in zip(reports[problem.n_devices + 1 :], parts.wires, strict=True):
        assert sum(last - first for _, _, first, last in report.spans) == pytest.approx(samples * traffic)


def test_a_full_pipeline_takes_the_predicted_seconds_per_sample():
    """On the real clock: the seconds between samples in the full part of a stream are the judge's."""
    problem, placement = drawn(0, Objective("throughput", communication="overlap"))
    with Emulated().prepare(Job(problem, placement, ())) as prepared:
        seconds = run_on_time(prepared, samples=72, in_flight=12)
    assert seconds == pytest.approx(judge_placement(problem, placement).value, rel=0.1)


@pytest.mark.parametrize("mode", ["blocking", "overlap", "duplex"])
def test_the_first_round_goes_first(mode):
    """When a device starts a task in a full pipeline, nothing else that waits for it is of an earlier round."""
    problem, placement = drawn(35, Objective("throughput", communication=mode))
    in_flight, samples = 6, 44
    slow = {"time-scale": str(3 * ON_TIME / judge_placement(problem, placement).value)}
    with Emulated().prepare(Job(problem, placement, (), options=slow)) as prepared:
        run_on_time(prepared, samples=samples, in_flight=in_flight)
        spans = {span[:2]: span[2:] for report in prepared.reports for span in report.spans}
        programs = prepared.programs
        unseen = ON_TIME / prepared.scale  # a message may have been so late, and nobody waits for what is not there
    needs: dict[int, set[int]] = defaultdict(set)
    for program in programs:
        for other, waiters in program.waiters.items():
            for waiter in waiters:
                needs[waiter] |= {other} - {ADMITTED}
    checked = 0
    for program in programs:
        rounds = {task.number: join_stages(task.stage, program.stages, in_flight) for task in program.tasks}
        for one, other in product(program.tasks, repeat=2):
            if one.resource < 0 or one.resource != other.resource or not needs[other.number]:
                continue
            for sample, late in product(range(samples), repeat=2):
                start, waiting = spans[one.number, sample][0], spans[other.number, late][0]
                ready = max(spans[need, late][1] for need in needs[other.number])
                if ready < start - unseen and start < waiting:
                    assert rounds[one.number] + sample <= rounds[other.number] + late
                    checked += 1
    assert checked > 100


def test_a_stage_is_a_round_where_enough_samples_are_in_flight():
    """With as many samples as stages, every stage is a round of its own; with fewer, stages share rounds evenly."""
    assert [join_stages(stage, 6, 8) for stage in range(6)] == [0, 1, 2, 3, 4, 5]
    assert [join_stages(stage, 6, 3) for stage in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [join_stages(stage, 6, 1) for stage in range(6)] == [0] * 6


def test_no_process_decides_before_a_message_has_arrived():
    """What a task needs has ended elsewhere before it starts; all values follow from the inputs of their sample."""
    problem, placement = drawn(3, Objective("latency"))
    with Emulated().prepare(Job(problem, placement, ())) as prepared:
        prepared.run({})
        ended = {number: last for report in prepared.reports for number, _, _, last in report.spans}
        for program, report in zip(prepared.programs, prepared.reports, strict=True):
            first = {number: moment for number, _, moment, _ in report.spans}
            for awaited, waiters in program.waiters.items():
                assert awaited < 0 or all(ended[awaited] <= first[waiter] + 1e-9 for waiter in waiters)


def test_a_placement_replaces_another_in_the_same_processes():
    """A cluster that is running takes another placement, and then keeps its time."""
    problem, placement = drawn(1, Objective("latency"))
    alone = Placement.on(0, problem.n_ops)
    with Emulated().prepare(Job(problem, placement, ())) as prepared:
        pids = prepared.pids
        prepared.move(alone)
        assert run_on_time(prepared) == pytest.approx(judge_placement(problem, alone).value, rel=0.1)
        assert prepared.pids == pids


def test_a_killed_process_is_named_and_none_is_left():
    """A device whose process was killed is named at the next run, and closing ends all others."""
    problem, placement = drawn(2, Objective("latency"))
    prepared = Emulated().prepare(Job(problem, placement, (), seconds=30.0))
    pids, name = prepared.pids, problem.cluster.names[0]
    os.kill(pids[name], signal.SIGKILL)
    with pytest.raises(RunError, match=f"{name} was killed"):
        prepared.run({})
    prepared.close()
    assert all(gone(pid) for pid in pids.values())


def test_a_process_that_dies_in_a_run_ends_it():
    """A death in mid-run is reported by the name of the device."""
    problem, placement = drawn(2, Objective("latency"))
    with Emulated().prepare(Job(problem, placement, (), options={"time-scale": "1000"}, seconds=60.0)) as prepared:
        name = problem.cluster.names[int(placement.device[-1])]
        threading.Timer(0.5, os.kill, (prepared.pids[name], signal.SIGKILL)).start()
        with pytest.raises(RunError, match=f"{name} was killed"):
            prepared.run({})


def test_the_clock_can_be_stretched():
    """The option `time-scale` is the seconds that a second of the plan takes; nonsense is an error."""
    problem, placement = drawn(0, Objective("latency"))
    with Emulated().prepare(Job(problem, placement, (), options={"time-scale": "0.05"})) as prepared:
        assert prepared.scale == 0.05
    for text in ("0", "fast", "nan"):
        with pytest.raises(InputError, match="time-scale"):
            Emulated().prepare(Job(problem, placement, (), options={"time-scale": text}))
    with pytest.raises(InputError, match="no option 'spin'"):
        Emulated().prepare(Job(problem, placement, (), options={"spin": "1"}))


def test_an_op_that_its_device_cannot_run_is_named():
    """A placement on a device without a time for the op does not start."""
    problem, placement = drawn(0, Objective("latency"))
    seconds = problem.costs.op_seconds.copy()
    seconds[3, placement.device[3]] = np.inf
    problem = problem.with_(costs=replace(problem.costs, op_seconds=seconds))
    with pytest.raises(RunError, match="cannot run the op 'op3'"):
        Emulated().prepare(Job(problem, placement, ()))


def test_a_plan_runs_without_model_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python: beside the best single device, on a cluster that is not here; another graph is refused.

    A round is one sample, which takes a second, and there is no other before it: sleeping processes need not get warm.
    """
    counts, time = list[int](), PreparedEmulation.time

    def count(self: PreparedEmulation, samples: list[dict[str, object]], *, in_flight: int = 1) -> list[float]:
        counts.append(len(samples))
        return time(self, samples, in_flight=in_flight)

    monkeypatch.setattr(PreparedEmulation, "time", count)
    plan = pw.place("zoo:random-layered", devices="2xP100,cpu", graph="inference", dims={"n_ops": 20}, budget="1s")
    result = pw.run(plan, runtime="emulated", rounds=1)
    assert not result.failure and counts == [1] * 4
    assert any("most bytes held, of those predicted" in note for note in result.placements.of("plan").notes)
    plan.save(tmp_path / "plan.json")
    with pytest.raises(PlacewiseError, match="plan"):
        pw.run(tmp_path / "plan.json", "zoo:random-branchy", runtime="emulated")

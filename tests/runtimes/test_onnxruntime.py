"""The dataflow runtime on ONNX Runtime: outputs as of the whole model, streams, and workers that fail."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_branches
import pytest
from onnx.helper import make_node
from onnx_branches import branching, modelled, written
from soak import later

from placewise._util.cores import pinnable_cores
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import ClusterError, InputError, RunError
from placewise.model.cluster import Cluster, Device
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.processes.scratch import scratch_folder
from placewise.readers.onnx import read_onnx
from placewise.runtimes.base import Job
from placewise.runtimes.binding import Place
from placewise.runtimes.equal import require_equal
from placewise.runtimes.inputs import fresh_inputs
from placewise.runtimes.measure import check_outputs, input_source
from placewise.runtimes.onnxruntime import runtime
from placewise.runtimes.onnxruntime.runtime import OnnxRuntime

pytest.importorskip("onnxruntime")
CORES = pinnable_cores()


def cluster(count: int = 2) -> Cluster:
    return Cluster(tuple(Device(f"core:{n}", kind="cpu", peak_flops={"float32": 1e10}) for n in range(count)))


def problem_of(path: str, *, kind: str = "latency", devices: int = 2, **problem_options) -> Problem:
    return build(path, cluster(devices), ProblemOptions(**problem_options)).with_(objective=Objective(kind))


def places(count: int = 2, *, apart: bool = True) -> tuple[Place, ...]:
    """Cores of their own, if there are as many and it is wished; else the first for all."""
    apart = apart and len(CORES) >= count
    return tuple(Place(f"core:{n}", "cores", cores=(CORES[n if apart else 0],)) for n in range(count))


def job_of(problem: Problem, device, *, apart: bool = True, seconds: float = 60.0, **options) -> Job:
    placement = device if isinstance(device, Placement) else Placement(np.asarray(device, np.int32))
    return Job(problem, placement, places(problem.n_devices, apart=apart), options=options, seconds=seconds)


@pytest.fixture(scope="module")
def branches(tmp_path_factory) -> Problem:
    return problem_of(written(tmp_path_factory.mktemp("branches"), branching()))


def test_pieces_run_on_quotas(branches):
    """In control groups of their own, without polling; the outputs are those of the whole model."""
    job = job_of(branches, [int(number % 2) for number in range(branches.n_ops)], apart=False)
    slow = replace(job, places=tuple(replace(place, quota=0.4) for place in job.places))
    try:
        prepared = OnnxRuntime().prepare(slow)
    except RunError as error:
        pytest.skip(str(error)) if "can be made here" in str(error) else pytest.fail(str(error))
    with prepared, OnnxRuntime().prepare(job.alone(0)) as whole:
        assert all(prepared._spec.worker(row, 0, 0, (0, 0)).spin == 0 for row in range(2)) and not prepared.notes
        assert check_outputs(whole, prepared, input_source(branches.graph), who="it") < 1


def test_another_placement_takes_the_place_of_one(branches):
    """In the same processes: outputs of the whole model, more pieces and fewer; also after a worker has died."""
    names = list(branches.graph.ops.name)
    fresh, many = input_source(branches.graph), [int(number % 2) for number in range(len(names))]
    some = [int(name in ("h", "g")) for name in names]
    with OnnxRuntime().prepare(job_of(branches, many, apart=False)) as prepared:
        wanted, pids = prepared.run(fresh(0)), prepared.pids
        for device in (some, many, some):
            prepared.move(Placement(np.array(device, np.int32)))
            require_equal(wanted, prepared.run(fresh(0)), who="the moved one")
            assert len(prepared.time([fresh(1), fresh(2)])) == 2 and prepared.pids == pids
        with OnnxRuntime().prepare(job_of(branches, some, apart=False)) as anew:
            assert prepared.realised == anew.realised
        prepared._workers[0].kill()
        prepared.move(Placement(np.array(many, np.int32)))
        require_equal(wanted, prepared.run(fresh(0)), who="the one that was started again")
        with pytest.raises(InputError, match="uses other devices"):
            prepared.move(Placement.on(0, len(names)))


def equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", [1, later(0), later(2)])
def test_outputs_are_those_of_the_whole_model(branches, seed):
    """Whatever runs where, on cores of their own or on one."""
    device = np.random.default_rng(seed).integers(0, 2, branches.n_ops)
    inputs = fresh_inputs(branches.graph, seed)
    with OnnxRuntime().prepare(job_of(branches, device, apart=seed != 1)) as prepared:
        equal(prepared.run(inputs), onnx_branches.reference(branching(), inputs))
        assert sum(prepared.realised.pieces) >= 2 and prepared.realised.share == 1.0
        assert any("share cores" in note for note in prepared.notes) == (seed == 1 or len(CORES) < 2)


@pytest.mark.parametrize("view", ["folded", "raw"])
def test_one_device_is_one_session(tmp_path, view):
    """The reference is the unsplit model: one piece, all its weights in one worker."""
    problem = problem_of(written(tmp_path, branching()), view=view)
    inputs = fresh_inputs(problem.graph, 0)
    with OnnxRuntime().prepare(job_of(problem, [1] * problem.n_ops)) as prepared:
        assert prepared.realised.pieces == (0, 1)
        assert list(prepared.resident) == ["core:1"] and prepared.resident["core:1"] > 1 << 20
        equal(prepared.run(inputs), onnx_branches.reference(branching(), inputs))


def test_a_stream_gives_what_single_samples_give(branches):
    """Several samples in flight do not mix; the time of a stream is one figure, of single samples one each."""
    device = np.arange(branches.n_ops) % 2
    samples = [fresh_inputs(branches.graph, seed) for seed in range(7)]
    with OnnxRuntime().prepare(job_of(branches, device)) as prepared:
        alone = [prepared.run(sample) for sample in samples]
        for in_flight in (1, 2, 3, 10):
            for found, wanted in zip(prepared.stream(samples, in_flight=in_flight), alone, strict=True):
                equal(found, wanted)
        assert len(prepared.time(samples)) == 7 and min(prepared.time(samples)) > 0
        (mean,) = prepared.time(samples, in_flight=3)
        assert 0 < mean < 1


def test_members_of_a_stage_take_samples_in_turn(branches):
    """Two devices share the second stage of three; replicas of the whole model share everything."""
    problem = problem_of(branches.graph.source.path, kind="throughput", devices=3)
    device = (np.arange(problem.n_ops) >= 5).astype(np.int32)
    samples = [fresh_inputs(problem.graph, seed) for seed in range(5)]
    wanted = [onnx_branches.reference(branching(), sample) for sample in samples]
    placement = Placement(device, replicas=np.array([0, 1, 1]))
    with OnnxRuntime().prepare(job_of(problem, placement)) as prepared:
        assert prepared.realised.pieces == (1, 1, 1)
        for found, each in zip(prepared.stream(samples, in_flight=4), wanted, strict=True):
            equal(found, each)
    everywhere = Placement(np.zeros(problem.n_ops, np.int32), replicas=np.zeros(3, np.int32))
    with OnnxRuntime().prepare(job_of(problem, everywhere)) as prepared:
        assert prepared.realised.pieces == (1, 1, 1)
        for found, each in zip(prepared.stream(samples, in_flight=3), wanted, strict=True):
            equal(found, each)
        equal(prepared.run(samples[1]), wanted[1])
        assert len(prepared.time(samples, in_flight=3)) == 1


def test_workers_may_go_before_other_programs(branches):
    """Where the system allows it, their threads are in its real-time order; where not, that is said.

    One worker that may use every core and computes nothing: others in that order cannot hold it up.
    """
    job = replace(
        job_of(branches, np.zeros(branches.n_ops), first="yes"),
        places=(Place("core:0", "cores", cores=CORES, options={"threads": "1"}), *places()[1:]),
    )
    if os.geteuid():
        with pytest.raises(RunError, match="cannot get real-time priority"):
            OnnxRuntime().prepare(job)
        return
    with OnnxRuntime().prepare(job) as prepared:
        assert {os.sched_getscheduler(pid) for pid in prepared.pids.values()} == {os.SCHED_FIFO}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"spin": "long"}, "spin is 'long'"),
        ({"spin": "-1"}, "spin is '-1'"),
        ({"first": "me"}, "first is 'me'"),
        ({"speed": "9"}, "no option 'speed'"),
    ],
)
def test_wrong_options_are_refused(branches, options, said):
    """Before anything is started."""
    with pytest.raises(InputError, match=said):
        OnnxRuntime().prepare(job_of(branches, np.zeros(branches.n_ops), **options))


def test_options_that_cores_do_not_have_are_refused(branches):
    """An option of another runtime is not passed over in silence."""
    job = job_of(branches, np.zeros(branches.n_ops))
    place = replace(job.places[0], options={"INFERENCE_PRECISION_HINT": "bf16"})
    with pytest.raises(InputError, match="core:0 has no option 'INFERENCE_PRECISION_HINT'"):
        OnnxRuntime().prepare(replace(job, places=(place, *job.places[1:])))


def test_all_ways_of_cutting_agree(branches):
    """By operator, by calls and in as few pieces as can be."""
    device, inputs = np.arange(branches.n_ops) // 2 % 2, fresh_inputs(branches.graph, 0)
    wanted = onnx_branches.reference(branching(), inputs)
    for how in ("operator", "few", "calls"):
        with OnnxRuntime().prepare(job_of(branches, device, pieces=how)) as prepared:
            equal(prepared.run(inputs), wanted)
    with pytest.raises(InputError, match="there is no method 'none' to cut pieces"):
        OnnxRuntime().prepare(job_of(branches, device, pieces="none"))


@contextmanager
def killing(prepared, name):
    """Kills whichever process is the worker of the device, again and again, until the block ends."""
    ended = threading.Event()

    def kill():
        while not ended.wait(0.3):
            for worker in tuple(prepared._workers):
                if worker.name == name and worker.alive:
                    os.kill(worker.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        ended.set()
        killer.join()


def test_a_killed_worker_fails_one_measurement(branches):
    """Whoever is killed is named; afterwards everything works again, in new processes."""
    inputs = fresh_inputs(branches.graph, 0)
    with OnnxRuntime().prepare(job_of(branches, np.arange(branches.n_ops) % 2)) as prepared:
        wanted, before = prepared.run(inputs), prepared.pids
        with killing(prepared, "core:1"), pytest.raises(RunError, match=r"core:1 was killed"):
            for _ in range(500):  # who is killed between two measurements is only replaced, so it is killed again
                prepared.time([inputs] * 1_000)
        assert not any(Path(f"/proc/{pid}").exists() for pid in before.values())
        equal(prepared.run(inputs), wanted)
        assert not set(prepared.pids.values()) & set(before.values())


def test_large_parts_travel_as_files(branches, monkeypatch):
    """What no message could hold is written for a moment, read by the worker, and gone; also for a second start."""
    monkeypatch.setattr(runtime, "LARGEST_MESSAGE", 100)
    made = []

    @contextmanager
    def recorded():
        with scratch_folder() as folder:
            made.append(folder)
            yield folder

    monkeypatch.setattr(runtime, "scratch_folder", recorded)
    inputs = fresh_inputs(branches.graph, 0)
    with OnnxRuntime().prepare(job_of(branches, np.zeros(branches.n_ops))) as prepared:
        wanted = prepared.run(inputs)
        equal(wanted, onnx_branches.reference(branching(), inputs))
        os.kill(prepared.pids["core:0"], signal.SIGKILL)
        while any(worker.alive for worker in prepared._workers):
            time.sleep(0.01)
        equal(prepared.run(inputs), wanted)
    assert len(made) == 2 and not any(folder.exists() for folder in made)


def test_an_output_may_be_an_input(tmp_path):
    """A model that hands an input back, and one tensor that is an output and is read on the other device."""
    nodes = [make_node("Relu", ["x"], ["y"], "relu"), make_node("Neg", ["y"], ["z"], "neg")]
    problem = problem_of(written(tmp_path, modelled(nodes, {"x": [4]}, {"x": [4], "y": [4], "z": [4]})))
    samples = [fresh_inputs(problem.graph, seed) for seed in range(3)]
    with OnnxRuntime().prepare(job_of(problem, [0, 1])) as prepared:
        for found, sample in zip(prepared.stream(samples, in_flight=2), samples, strict=True):
            positive = np.maximum(sample["x"], 0)
            equal(found, {"x": sample["x"], "y": positive, "z": -positive})


def test_a_hanging_worker_is_named(branches):
    """A worker that stands still in the midst of a stream is stopped when time is up."""
    inputs = fresh_inputs(branches.graph, 0)
    with OnnxRuntime().prepare(job_of(branches, np.zeros(branches.n_ops), seconds=60.0)) as prepared:
        prepared.run(inputs)
        pid = prepared.pids["core:0"]
        os.kill(pid, signal.SIGSTOP)
        prepared._seconds = 0.5  # only now, so that a busy machine has its time to start and to answer
        with pytest.raises(RunError, match=r"core:0 did not answer within 0\.5 s"):
            prepared.run(inputs)
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("kind", "provider"), [("cuda", "CUDAExecutionProvider"), ("openvino", "OpenVINOExecutionProvider")]
)
def test_a_missing_provider_is_no_fallback(branches, kind, provider):
    """A device whose execution provider is not installed is an error that names both."""
    import onnxruntime

    if provider in onnxruntime.get_available_providers():
        pytest.skip(f"{provider} is installed")
    job = job_of(branches, np.arange(branches.n_ops) % 2)
    there = (job.places[0], Place("core:1", kind, "0"))
    with pytest.raises(ClusterError, match=f"core:1 needs {provider}"):
        OnnxRuntime().prepare(Job(job.problem, job.placement, there))


def test_wrong_inputs_are_refused(branches):
    """A wrong shape, a missing and a strange input are clear sentences, and nothing is broken by them."""
    with OnnxRuntime().prepare(job_of(branches, np.zeros(branches.n_ops))) as prepared:
        pid = prepared.pids
        with pytest.raises(InputError, match=r"'x' has shape \(3, 16\), and the plan is for \(2, 16\)"):
            prepared.run({"x": np.zeros((3, 16), np.float32)})
        with pytest.raises(InputError, match="the input 'x' is missing"):
            prepared.run({})
        with pytest.raises(InputError, match="no input 'u'"):
            prepared.run({"x": np.zeros((2, 16), np.float32), "u": np.zeros(1)})
        assert prepared.pids == pid


def test_random_outputs_are_refused(tmp_path):
    """A model that gives other outputs every time cannot be checked, and that is said."""
    nodes = [make_node("RandomNormalLike", ["x"], ["n"]), make_node("Add", ["x", "n"], ["y"])]
    problem = problem_of(written(tmp_path, modelled(nodes, {"x": [8]}, {"y": [8]})))
    random = pytest.raises(RunError, match="outputs of this model are random")
    with OnnxRuntime().prepare(job_of(problem, np.zeros(problem.n_ops))) as prepared, random:
        check_outputs(prepared, prepared, input_source(problem.graph), who="itself")


def test_open_shapes_stay_on_one_device(tmp_path):
    """How many entries are not zero is known only when they are there: nothing can be prepared to receive them."""
    nodes = [
        make_node("NonZero", ["x"], ["where"], "where"),
        make_node("Cast", ["where"], ["cast"], "cast", to=1),
        make_node("ReduceSum", ["cast"], ["y"], "sum", keepdims=1),
    ]
    graph = read_onnx(Path(written(tmp_path, modelled(nodes, {"x": [8]}, {"y": [1, 1]})))).graph
    costs = CostTable.given(np.ones((graph.n_ops, 2)), np.zeros((graph.n_tensors, 1)))
    problem = Problem(graph, cluster(), costs)
    with pytest.raises(RunError, match="'cast' passes between pieces, and its shape is known only"):
        OnnxRuntime().prepare(job_of(problem, [0, 0, 1]))
    with OnnxRuntime().prepare(job_of(problem, [0, 0, 0])) as prepared:
        inputs = {"x": np.array([0, 1, 0, 1, 1, 0, 0, 1], np.float32)}
        assert prepared.run(inputs)["y"].tolist() == [[1 + 3 + 4 + 7]]


def test_another_size_than_was_planned_is_told(tmp_path):
    """Where data decide how much is made, and it is not what the user said: both shapes, and what to do."""
    nodes = [make_node("NonZero", ["x"], ["where"], "where"), make_node("Cast", ["where"], ["y"], "cast", to=1)]
    path = written(tmp_path, modelled(nodes, {"x": [8]}, {"y": [1, "found"]}))
    inputs = {"x": np.array([0, 1, 0, 1, 1, 0, 0, 1], np.float32)}
    told = r"'y' has the shape \{1,3\} in the plan, and is \{1,4\} for these inputs; give the sizes"
    for device in ([0, 0], [0, 1]):
        with OnnxRuntime().prepare(job_of(problem_of(path, dims={"where:1": 4}), device)) as prepared:
            assert prepared.run(inputs)["y"].tolist() == [[1, 3, 4, 7]]
    job = job_of(problem_of(path, dims={"where:1": 3}), [0, 0])
    with OnnxRuntime().prepare(job) as prepared, pytest.raises(RunError, match=told):
        prepared.run(inputs)


def test_symbolic_dimensions_get_their_numbers(tmp_path):
    """The batch of the plan is the batch that runs."""
    path = written(tmp_path, branching(batch="batch"))
    problem = problem_of(path, dims={"batch": 3})
    inputs = fresh_inputs(problem.graph, 0)
    with OnnxRuntime().prepare(job_of(problem, np.arange(problem.n_ops) % 2)) as prepared:
        found = prepared.run(inputs)
    assert found["y"].shape == (3, 16)
    equal(found, onnx_branches.reference(branching(), inputs))


def test_a_changed_file_is_refused(tmp_path):
    """A plan is for the file that it was made from."""
    path = written(tmp_path, branching())
    problem = problem_of(path)
    written(tmp_path, branching(seed=1))
    with pytest.raises(InputError, match="has changed since the plan was made"):
        OnnxRuntime().prepare(job_of(problem, np.zeros(problem.n_ops)))

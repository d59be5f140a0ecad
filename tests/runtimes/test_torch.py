"""The runtimes `torch` and `pipelining`: programs of torch.export, cut and run for real on cores of this machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placewise.core.build import build
from placewise.core.options import NO_OPTIONS
from placewise.errors import InputError, RunError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.runtimes import registry
from placewise.runtimes.base import Job, Movable
from placewise.runtimes.binding import Place
from placewise.runtimes.equal import require_equal
from placewise.runtimes.inputs import fresh_inputs
from placewise.runtimes.measure import check_outputs, input_source
from placewise.runtimes.torch import job_payload
from placewise.runtimes.torch.job_payload import ProgramFile
from placewise.runtimes.torch.task_graph import HOST, LaneTask, TaskGraph
from placewise.transform.stages import stages_in_line

torch = pytest.importorskip("torch")
CORE = min(os.sched_getaffinity(0))


class Branches(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two branches that meet, a result of several, a weight that is used twice, and a table computed from nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: Any, mask: Any) -> Any:
        table = torch.arange(8, dtype=torch.float32).sqrt()
        left = torch.relu(self.left(x)) + table
        right = torch.sigmoid(self.right(left.detach() * mask))
        most, place = (left + right).max(dim=-1)
        with torch.no_grad():
            joined = self.norm(self.left(right)) * left
        return joined, most, place


class Writes(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Writes in place into a view."""

    def forward(self, x: Any) -> Any:
        y = x * 2
        z = y[:, 0]
        z.add_(1)
        return torch.relu(y) + 1


EXAMPLE = {"x": torch.randn(4, 8), "mask": torch.ones(4, 8, dtype=torch.int64)}


@pytest.fixture(scope="module")
def problem() -> Problem:
    return build(Branches().eval(), "2xcore", example_inputs=EXAMPLE)


def job_of(problem: Problem, device: Sequence[int], model: Any = None, example: Any = EXAMPLE) -> Job:
    places = tuple(Place(name, "cores", cores=(CORE,)) for name in problem.cluster.names)
    return Job(problem, Placement(np.array(device, np.int32)), places, model, example)


def run_here(job: Job, samples: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """The same as the worker does, in this process."""
    from placewise.runtimes.torch.payload import LanePlace
    from placewise.runtimes.torch.server import LaneServer

    program = ProgramFile(job)
    try:
        lanes = [LanePlace("cpu", place.cores) for place in job.places]
        server = LaneServer(program.payload(job.problem, job.placement), lanes)
    finally:
        program.close()
    try:
        assert server.time(samples, 3)[0] > 0
        return [server.run(sample) for sample in samples], server.pieces()
    finally:
        server.close()


def test_any_placement_gives_what_the_module_gives(problem: Problem) -> None:
    """Random placements on two lanes, several samples: the module's own outputs, in its order of outputs."""
    model = Branches().eval()
    samples = [fresh_inputs(problem.graph, seed) for seed in range(3)]
    rng = np.random.default_rng(0)
    for _ in range(6):
        device = rng.integers(0, 2, problem.n_ops)
        found, pieces = run_here(job_of(problem, device.tolist(), model), samples)
        assert sum(pieces) >= len(set(device.tolist()))
        for sample, outputs in zip(samples, found, strict=True):
            with torch.no_grad():
                wanted = model(**{name: torch.from_numpy(array) for name, array in sample.items()})
            for array, tensor in zip(outputs.values(), wanted, strict=True):
                np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-6)


def test_what_only_weights_decide_is_computed_once(problem: Problem) -> None:
    """No op stands for the table, so no piece has its calls: one lane runs one piece."""
    assert not {"arange", "sqrt"} & set(problem.graph.ops.name)
    _, pieces = run_here(job_of(problem, [0] * problem.n_ops, Branches().eval()), [fresh_inputs(problem.graph, 0)])
    assert pieces == [1, 0]


def test_a_program_file_with_an_open_batch(tmp_path: Path) -> None:
    """A .pt2 file with a symbolic dimension runs at the size that the plan was made for."""
    path, batch = tmp_path / "model.pt2", torch.export.Dim("batch", min=2, max=64)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Flatten(0)).eval()
    torch.export.save(torch.export.export(model, (torch.randn(3, 8),), dynamic_shapes=({0: batch},)), path)
    problem = build(path, "2xcore", replace(NO_OPTIONS, dims={"batch": 5}))
    sample = fresh_inputs(problem.graph, 0)
    device = np.arange(problem.n_ops) % 2
    (outputs,), _ = run_here(job_of(problem, device.tolist()), [sample])
    with torch.no_grad():
        np.testing.assert_allclose(
            next(iter(outputs.values())), model(torch.from_numpy(sample["input"])).numpy(), rtol=1e-6
        )


def test_writes_in_place_stay_on_one_device() -> None:
    """What is written in place, and all that uses its memory, runs in order on one lane, or is refused by name."""
    x = torch.randn(2, 3)
    problem = build(Writes(), "2xcore", example_inputs=(x,))
    sample = {"x": x.numpy()}
    (outputs,), _ = run_here(job_of(problem, [0] * problem.n_ops, Writes(), (x,)), [sample])
    np.testing.assert_array_equal(next(iter(outputs.values())), Writes()(x).numpy())
    writer = next(op for op, name in enumerate(problem.graph.ops.name) if name.startswith("add_"))
    device = [int(op == writer) for op in range(problem.n_ops)]
    with pytest.raises(RunError, match=r"writes in place to memory that .* on another device uses"):
        run_here(job_of(problem, device, Writes(), (x,)), [sample])


def test_writes_that_nobody_else_sees_bind_nothing() -> None:
    """A sum in place whose old value nobody reads again may be anywhere."""

    class Harmless(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            y = x * 2
            y += x.exp()
            return y.relu_() + 1

    x = torch.randn(2, 3)
    problem = build(Harmless(), "2xcore", example_inputs=(x,))
    for other in range(problem.n_ops):
        device = [int(op == other) for op in range(problem.n_ops)]
        (outputs,), _ = run_here(job_of(problem, device, Harmless(), (x,)), [{"x": x.numpy()}])
        np.testing.assert_array_equal(next(iter(outputs.values())), Harmless()(x).numpy())


def test_bfloat16_goes_in_and_out() -> None:
    """Element types that numpy has not itself."""
    model = torch.nn.Linear(4, 4).to(torch.bfloat16)
    problem = build(model, "2xcore", example_inputs=(torch.ones(2, 4, dtype=torch.bfloat16),))
    sample = fresh_inputs(problem.graph, 1)
    (outputs,), _ = run_here(job_of(problem, [0], model, (torch.ones(2, 4, dtype=torch.bfloat16),)), [sample])
    x = torch.from_numpy(sample["input"].view(np.int16)).view(torch.bfloat16)
    with torch.no_grad():
        np.testing.assert_array_equal(outputs["linear"].astype(np.float32), model(x).float().numpy())


def test_models_that_do_not_run(problem: Problem, tmp_path: Path) -> None:
    """Another model, one without data, one that is not at hand, one that was only recorded: one sentence each."""
    everywhere = [0] * problem.n_ops
    with pytest.raises(InputError, match="made for another model"):
        ProgramFile(job_of(problem, everywhere, torch.nn.Linear(8, 8), (torch.ones(4, 8),)))
    with pytest.raises(InputError, match="meta device"):
        ProgramFile(job_of(problem, everywhere, Branches().to("meta").eval()))
    with pytest.raises(InputError, match="not at hand"):
        ProgramFile(job_of(problem, everywhere))
    assert problem.graph.source is not None
    recorded = problem.graph.with_source(replace(problem.graph.source, format="torch-modules"))
    with pytest.raises(RunError, match=r"torch\.export cannot take this module"):
        ProgramFile(job_of(problem.with_(graph=recorded), everywhere, Branches().eval()))
    pictured = problem.graph.with_source(replace(problem.graph.source, format="onnx"))
    with pytest.raises(RunError, match=r"not onnx; save the model with torch\.export\.save"):
        ProgramFile(job_of(problem.with_(graph=pictured), everywhere))
    path = tmp_path / "other.pt2"
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), path)
    filed = problem.graph.with_source(replace(problem.graph.source, format="torch-export", path=str(path)))
    with pytest.raises(RunError, match="is not the program that this plan is for"):
        run_here(job_of(problem.with_(graph=filed), everywhere), [fresh_inputs(problem.graph, 0)])


def test_a_model_with_random_outputs_cannot_be_checked() -> None:
    """Dropout that drops: found out before any time counts; everything through a worker that is really pinned."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)).train()
    problem = build(model, "2xcore", example_inputs=(torch.ones(2, 64),))
    job = job_of(problem, [0] * problem.n_ops, model, (torch.ones(2, 64),))
    one = registry.create("torch").prepare(job)
    try:
        assert one.realised.pieces == (1, 0) and not one.realised.elsewhere
        assert len(one.time([fresh_inputs(problem.graph, seed) for seed in range(3)])) == 3
        with pytest.raises(RunError, match="random"):
            check_outputs(one, one, input_source(problem.graph), who="the plan")
    finally:
        one.close()


def test_placements_of_a_model_share_its_archive(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made side by side by several threads, it is exported once, and gone when the last of them is done."""
    saved = []
    monkeypatch.setattr(job_payload, "_export_model", lambda job, path: saved.append(Path(path).touch()))
    job = job_of(problem, [0] * problem.n_ops, Branches().eval())
    with ThreadPoolExecutor(4) as pool:
        programs = list(pool.map(lambda _: ProgramFile(job), range(8)))
    (path,) = {program.path for program in programs}
    assert len(saved) == 1
    for program in programs:
        assert Path(path).exists()
        program.close()
    assert not Path(path).exists()


def test_a_worker_takes_another_placement(problem: Problem) -> None:
    """The same process, other pieces, the same outputs."""
    rng, model = np.random.default_rng(1), Branches().eval()
    first, *others = (rng.integers(0, 2, problem.n_ops).astype(np.int32) for _ in range(4))
    prepared = registry.create("torch").prepare(job_of(problem, first.tolist(), model))
    try:
        assert isinstance(prepared, Movable)
        sample = fresh_inputs(problem.graph, 0)
        wanted, pieces = prepared.run(sample), {prepared.realised.pieces}
        for device in others:
            prepared.move(Placement(device))
            require_equal(wanted, prepared.run(sample), who="another placement")
            pieces.add(prepared.realised.pieces)
        assert len(pieces) > 1
    finally:
        prepared.close()


def lanes_of(tasks: Sequence[LaneTask], count: int, outputs: Sequence[str], **options: Any) -> TaskGraph:
    sends = options.pop("sends", [])

    def send(value: Any, source: int, target: int) -> Any:
        sends.append((value, source, target))
        return value

    return TaskGraph(tasks, [nullcontext] * count, outputs, send=send, receive=lambda value, _: value, **options)


@pytest.fixture
def flows() -> Iterator[list[TaskGraph]]:
    made: list[TaskGraph] = []
    yield made
    for flow in made:
        flow.close()


def test_lanes_work_at_the_same_time(flows: list[TaskGraph]) -> None:
    """Two tasks that wait for each other end only if both lanes run at once; a value is sent once to each lane."""
    barrier, sends = threading.Barrier(2, timeout=20), []  # type: ignore[var-annotated]

    def meet(x: int) -> list[int]:
        barrier.wait()
        return [x + 1]

    def add(a: int, b: int) -> list[int]:
        return [a + b]

    tasks = [
        LaneTask(0, meet, ("x",), ("a",)),
        LaneTask(1, meet, ("x",), ("b",)),
        LaneTask(0, add, ("a", "b"), ("c",)),
        LaneTask(0, add, ("b", "c"), ("d",)),
    ]
    flows.append(lanes_of(tasks, 2, ["d"], sends=sends))
    outputs, seconds = flows[0].run([{"x": 1}])
    assert outputs == [{"d": 6}] and seconds > 0
    assert sorted(sends) == [(1, HOST, 0), (1, HOST, 1), (2, 1, 0), (6, 0, HOST)]


def test_no_more_samples_in_flight_than_asked(flows: list[TaskGraph]) -> None:
    """The first stage is not more than two samples ahead of the last one, and order is kept."""
    started, finished, ahead = [0], [0], []

    def first(x: int) -> list[int]:
        started[0] += 1
        ahead.append(started[0] - finished[0])
        return [x]

    def last(x: int) -> list[int]:
        time.sleep(0.002)
        finished[0] += 1
        return [x * 10]

    flows.append(lanes_of([LaneTask(0, first, ("x",), ("y",)), LaneTask(1, last, ("y",), ("z",))], 2, ["z"]))
    outputs, _ = flows[0].run([{"x": number} for number in range(8)], in_flight=2)
    assert [item["z"] for item in outputs] == [number * 10 for number in range(8)]
    assert max(ahead) == 2


def test_inputs_are_sent_while_lanes_run(flows: list[TaskGraph]) -> None:
    """A copy of the second sample's input may take as long as the whole first sample: no lane waits for it."""
    finished = threading.Event()

    def send(value: int, source: int, _: int) -> int:
        if source == HOST and value == 1:
            assert finished.wait(20)
        return value

    def last(y: int) -> list[int]:
        finished.set()
        return [y]

    tasks = [LaneTask(0, lambda x: [x], ("x",), ("y",)), LaneTask(1, last, ("y",), ("z",))]
    graph = TaskGraph(tasks, [nullcontext] * 2, ["z"], send=send, receive=lambda value, _: value)
    flows.append(graph)
    outputs, _ = graph.run([{"x": 0}, {"x": 1}], in_flight=2)
    assert outputs == [{"z": 0}, {"z": 1}]


def test_a_task_is_done_when_its_lane_has_computed_it(flows: list[TaskGraph]) -> None:
    """A lane that only takes calls, as a GPU does: nothing that reads a value starts before its lane has waited."""
    seen: list[str] = []

    def wait(lane: int) -> None:
        time.sleep(0.01)  # a task that counted as done before would let the next one start here
        seen.append(f"lane {lane} waited")

    def note(name: str) -> Any:
        def call(x: int) -> list[int]:
            seen.append(name)
            return [x + 1]

        return call

    tasks = [LaneTask(0, note("first"), ("x",), ("y",)), LaneTask(1, note("second"), ("y",), ("z",))]
    flows.append(lanes_of(tasks, 2, ["z"], wait=wait))
    outputs, _ = flows[0].run([{"x": 0}, {"x": 5}], in_flight=1)
    assert outputs == [{"z": 2}, {"z": 7}]
    assert seen == ["first", "lane 0 waited", "second", "lane 1 waited"] * 2


def test_a_failure_ends_the_flow(flows: list[TaskGraph]) -> None:
    """An error in a lane is raised where the samples were given, at once and ever after."""

    def fail(x: int) -> list[int]:
        raise ValueError(f"no {x}")

    flows.append(lanes_of([LaneTask(0, fail, ("x",), ("y",)), LaneTask(1, lambda y: [y], ("y",), ("z",))], 2, ["z"]))
    for _ in range(2):
        with pytest.raises(ValueError, match="no 1"):
            flows[0].run([{"x": 1}, {"x": 2}], in_flight=1)


def test_strict_lanes_keep_their_order(flows: list[TaskGraph]) -> None:
    """With `strict`, a task that could run waits for the one before it on its lane."""
    done: list[str] = []
    late = threading.Event()

    def note(name: str) -> Any:
        def call(*_: Any) -> list[str]:
            done.append(name)
            return [name]

        return call

    def slow(x: int) -> list[int]:
        late.wait(0.05)
        return [x]

    tasks = [
        LaneTask(1, slow, ("x",), ("a",)),
        LaneTask(0, note("first"), ("a",), ("b",)),
        LaneTask(0, note("second"), ("x",), ("c",)),
    ]
    for strict, wanted in ((True, ["first", "second"]), (False, ["second", "first"])):
        done.clear()
        flows.append(lanes_of(tasks, 2, ["b", "c"], strict=strict))
        flows[-1].run([{"x": 1}])
        assert done == wanted


def test_stages_hand_on_what_later_ones_need(problem: Problem) -> None:
    """Every way to cut the calls in two or three stages: run one after the other they give the whole program's."""
    from placewise.readers.torch.cutting import build_stage, calls_of, outputs_of

    model = Branches().eval()
    program = torch.export.export(model, (), EXAMPLE)
    count = len(calls_of(program))
    wanted = [value.detach().numpy() for value in model(**EXAMPLE)]
    for low in range(1, count):
        for high in {low, min(low + 3, count - 1)}:
            said = {number: int(number >= low) + int(high > low and number >= high) for number in range(count)}
            values: Any = (EXAMPLE["x"], EXAMPLE["mask"])
            for place in range(max(said.values()) + 1):
                piece = build_stage(program, said, place, device="cpu")
                assert len(piece.reads) == len(values)
                with torch.no_grad():
                    values = piece.module(*values)
            assert list(piece.makes) == outputs_of(program)
            for value, array in zip(values, wanted, strict=True):
                np.testing.assert_allclose(value.numpy(), array, rtol=1e-6)


def test_a_circle_of_devices_is_no_line_of_stages(problem: Problem) -> None:
    """The error names an edge that goes back."""
    device = np.zeros(problem.n_ops, np.int32)
    device[problem.n_ops // 2] = 1
    with pytest.raises(RunError, match=r"feeds .* on core:0, which comes before it"):
        stages_in_line(problem, Placement(device))
    device = (np.arange(problem.n_ops) < problem.n_ops // 2).astype(np.int32)
    assert stages_in_line(problem, Placement(device)) == (1, 0)

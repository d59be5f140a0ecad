"""The runtime openvino: splits really run, equal and read back; what cannot run says why."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

pytest.importorskip("openvino")

from openvino_models import branching, classifier, job, mixed, two
from processes_seen import gone
from soak import later

from placewise._util.cores import pinnable_cores
from placewise.errors import ClusterError, InputError, RunError
from placewise.model.placement import Placement
from placewise.model.problem import Objective
from placewise.readers.openvino.counterparts import match_ops
from placewise.readers.openvino.folded_model import FoldedModel, summarize_error
from placewise.runtimes.binding import Place
from placewise.runtimes.equal import require_equal
from placewise.runtimes.inputs import fresh_inputs
from placewise.runtimes.measure import check_outputs, input_source
from placewise.runtimes.openvino.devices import confine_cores, logical_devices
from placewise.runtimes.openvino.kernels import ProfiledKernel, attribute_kernels, parse_ops, parse_split
from placewise.runtimes.openvino.runtime import OpenVino, own_split

RUNTIME = OpenVino()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The branching IR."""
    return branching(tmp_path_factory.mktemp("ir"))


@pytest.fixture(scope="module")
def alone(model):
    """It, compiled for one device."""
    with RUNTIME.prepare(job(model)) as prepared:
        yield prepared


def outputs(prepared, problem, seed=0):
    return prepared.run(fresh_inputs(problem.graph, seed))


def test_another_placement_takes_the_place_of_one(model, alone):
    """The same worker compiles it anew: outputs equal, read back where it says; other devices are refused."""
    base = job(model)
    rng = np.random.default_rng(7)
    with RUNTIME.prepare(base.on(Placement(rng.integers(0, 2, base.problem.n_ops)))) as prepared:
        for _ in range(3):
            placement = Placement(rng.integers(0, 2, base.problem.n_ops))
            prepared.move(placement)
            require_equal(outputs(alone, base.problem), outputs(prepared, base.problem), who="the moved one")
        with RUNTIME.prepare(base.on(placement)) as fresh:
            assert prepared.placement == fresh.placement and prepared.realised == fresh.realised
        with pytest.raises(InputError, match="uses other devices"):
            prepared.move(Placement.on(0, base.problem.n_ops))


@pytest.mark.parametrize("seed", [0, later(1), later(2)])
def test_random_placements_run_equal_and_where_asked(model, alone, seed):
    """Op by op at random, HETERO does as told: outputs equal, every op read back on its device."""
    base = job(model)
    device = np.random.default_rng(seed).integers(0, 2, base.problem.n_ops)
    with RUNTIME.prepare(base.on(Placement(device))) as prepared:
        assert check_outputs(alone, prepared, input_source(base.problem.graph), who="it") <= 1
        assert np.array_equal(prepared.placement.device, device)
        assert prepared.realised.share == 1 and not prepared.realised.elsewhere and not prepared.realised.idle
        assert min(prepared.realised.pieces) >= 1


def test_single_device_needs_no_hetero(model, alone):
    """Everything in one piece, outputs by the names of the graph, other inputs give other outputs."""
    problem = job(model).problem
    assert alone.realised.pieces == (1, 0) and alone.realised.share == 1
    first, second = outputs(alone, problem), outputs(alone, problem, seed=1)
    names = {problem.graph.tensors.name[row] for row in np.flatnonzero(problem.graph.tensors.output)}
    assert set(first) == names and len(first) == 2
    with pytest.raises(RunError, match="differ"):
        require_equal(first, second, who="another sample")


def test_pieces_are_counted_and_timed(model):
    """Layers 0, 1, 4, 5 here and 2, 3 there are three pieces; samples have a time each, a stream has one for all."""
    base = job(model)
    layer = np.array([int("".join(filter(str.isdigit, name)) or 5) for name in base.problem.graph.ops.name])
    samples = [fresh_inputs(base.problem.graph, seed) for seed in range(4)]
    with RUNTIME.prepare(base.on(Placement((layer % 4 >= 2).astype(np.int32)))) as prepared:
        assert prepared.realised.pieces == (2, 1)
        assert len(prepared.time(samples)) == 4 and min(prepared.time(samples)) > 0
        assert len(prepared.time(samples, in_flight=2)) == 1


def test_onnx_nodes_that_are_taken_apart_stay_together(tmp_path):
    """Gemm, LayerNormalization and nodes without names: every op of OpenVINO follows its own."""
    base = job(classifier(tmp_path))
    names, kinds = base.problem.graph.ops.name, list(base.problem.graph.ops.kind)
    assert len(names) == 7 and "Identity" not in kinds
    with RUNTIME.prepare(base) as reference:
        device = [1, 0, 1, 0, 1, 0, 1]
        with RUNTIME.prepare(base.on(Placement(np.array(device, np.int32)))) as prepared:
            check_outputs(reference, prepared, input_source(base.problem.graph), who="it")
            assert prepared.placement.device.tolist() == device and not prepared.realised.elsewhere
            types: dict[str, set[str]] = {kind: set() for kind in kinds}
            for row, op in enumerate(prepared._belongs):
                types[kinds[op]].add(prepared._listing.type[row])
    assert {"MatMul", "Add"} <= types["Gemm"] and "MVN" in types["LayerNormalization"]
    assert "Convolution" in types["Conv"] and "BatchNormInference" in types["BatchNormalization"]


def test_inputs_of_every_kind(tmp_path):
    """Scalars stay scalars, truth values are chosen by, bfloat16 goes in and out as it is; what no op reads need not be
    given.
    """
    base = job(mixed(tmp_path), dims={})
    inputs = fresh_inputs(base.problem.graph, 0)
    assert "spare" not in inputs
    device = np.arange(base.problem.n_ops, dtype=np.int32) % 2
    with RUNTIME.prepare(base.on(Placement(device))) as prepared:
        found = prepared.run(inputs)
    brain = inputs["brain"].astype(np.float32)
    wanted = np.where(inputs["mask"], 1, -1) * (np.exp(brain) + inputs["x"])
    assert np.allclose(found["chosen"], wanted, rtol=1e-2)
    assert found["relu"].dtype == inputs["brain"].dtype
    assert np.array_equal(found["relu"].astype(np.float32), np.maximum(brain, 0))


def test_raw_graphs_run_too(model, alone):
    """Constants, inputs and outputs are ops there; the outputs are the same."""
    base = job(model, view="raw")
    device = np.random.default_rng(0).integers(0, 2, base.problem.n_ops)
    with RUNTIME.prepare(base.on(Placement(device))) as prepared:
        found = list(prepared.run(fresh_inputs(base.problem.graph, 0)).values())
        assert prepared.realised.share == 1 and min(prepared.realised.pieces) > 0
    wanted = list(outputs(alone, base.problem).values())
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted, strict=True))


def test_lost_weights_are_drawn(tmp_path):
    """A model whose weights are not there runs on random ones, and says so."""
    base = job(classifier(tmp_path, weights=False))
    with RUNTIME.prepare(base) as prepared:
        found = outputs(prepared, base.problem)["out"]
    assert "9 weights of the model are missing (lost.bin is not here)" in prepared.notes[0]
    assert np.isfinite(found).all() and found.std() > 0


def test_kernels_name_the_ops_behind_them(tmp_path):
    """Every op with work is behind some kernel; fused ones share one; the sum is near the whole."""
    base = job(classifier(tmp_path), perf_count="yes")
    samples = [fresh_inputs(base.problem.graph, seed) for seed in range(3)]
    device = np.array([0, 0, 0, 1, 1, 1, 1], np.int32)
    with RUNTIME.prepare(base.on(Placement(device))) as prepared:
        kernels, wholes = prepared.kernels(samples)
    conv = next(kernel for kernel in kernels if 0 in kernel.ops)
    assert {0, 1, 2} <= set(conv.ops) and conv.device == "CPU"
    assert next(kernel for kernel in kernels if 5 in kernel.ops).device == "CPU2"
    assert len(wholes) == 3 and 0 < sum(kernel.seconds for kernel in kernels) <= max(wholes)


def test_automatic_split_follows_its_rule(model):
    """Alone, the first device takes all; of the kinds that it may not run, the second gets all and nothing else."""
    with RUNTIME.prepare(job(model, affinity="automatic")) as prepared:
        assert not prepared.placement.device.any() and prepared.realised.pieces == (1, 0)
    held = job(model, cluster=two(unsupported=["Tanh"]))
    assert np.array_equal(own_split(held).device, held.problem.graph.ops.kind.equals("Tanh"))


def test_devices_differ_in_precision(model, alone):
    """Options of a place reach its plugin: the second device in bf16 gives other digits, within its tolerance."""
    said = {"cpu:0": "cores:0", "cpu:1": "cores:0;INFERENCE_PRECISION_HINT=bf16"}
    base = job(model, 1, said=said)
    with RUNTIME.prepare(base) as prepared:
        check_outputs(alone, prepared, input_source(base.problem.graph), who="it", precision="bfloat16")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("openvino:NPU.7", r"cpu:1 \(openvino:NPU.7\) is not on this machine; OpenVINO sees CPU"),
        ("cuda:0", "OpenVINO has no device for cpu:1"),
        ("cores:0;SPEED=high", "cannot set CPU2: .*SPEED"),
        later("cores:0;INFERENCE_NUM_THREADS=many", "Wrong value"),
    ],
)
def test_devices_that_are_not_here(model, said, message):
    """A device or a property that OpenVINO does not have: its name, and what there is."""
    base = job(model, [0] * 3 + [1] * 28, said={"cpu:0": "cores:0", "cpu:1": said})
    with pytest.raises((ClusterError, RunError), match=message):
        RUNTIME.prepare(base)


def test_places_become_logical_devices():
    """Cores are CPUs with as many threads; names tell them apart; a real device is taken once."""
    places = (
        Place("a", "cores", cores=(0, 1)), Place("b", "openvino", "gpu", options={"X": "1"}),
        Place("c", "cores", cores=(2,)), Place("d", "openvino", "GPU.0"),
        Place("e", "openvino", "CPU", options={"INFERENCE_PRECISION_HINT": "bf16"}),
    )  # fmt: skip
    found = logical_devices(places, (0, 1, 2, 4), ["CPU", "GPU.0"])
    assert [found[number].name for number in (0, 1, 2, 4)] == ["CPU", "GPU", "CPU2", "CPU3"]
    assert found[0].properties == {"INFERENCE_NUM_THREADS": "2", "INFERENCE_PRECISION_HINT": "f32"}
    assert found[1].properties == {"INFERENCE_PRECISION_HINT": "f32", "X": "1"}
    with pytest.raises(ClusterError, match="two devices of the cluster are both OpenVINO's GPU"):
        logical_devices(places, (1, 3), ["CPU", "GPU.0"])


def test_pieces_one_after_another_get_the_cores_of_one_device():
    """Never more cores than the device with most has, unless pieces may overlap."""
    places = Place("a", "cores", cores=(0, 1)), Place("b", "cores", cores=(2,)), Place("g", "openvino", "GPU.0")
    assert confine_cores(places, (0, 1, 2), overlapping=False) == [0, 1]
    assert confine_cores(places, (0, 1, 2), overlapping=True) == [0, 1, 2]
    assert (
        confine_cores(places, (1, 2), overlapping=False) == [2] and confine_cores(places, (2,), overlapping=True) == []
    )


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time of a process, all its threads together, in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(len(pinnable_cores()) < 2, reason="needs two cores")
def test_a_split_over_two_cores_uses_one_at_a_time(tmp_path):
    """No thread of the process may leave its core, so that processor time stays below the time of the runs."""
    first, second = pinnable_cores()[:2]
    path = branching(tmp_path, layers=40)
    base = job(path, dims={"batch": 4096}, said={"cpu:0": f"cores:{first}", "cpu:1": f"cores:{second}"})
    halves = (np.arange(base.problem.n_ops) >= base.problem.n_ops // 2).astype(np.int32)
    samples = [fresh_inputs(base.problem.graph, seed) for seed in range(8)]
    with RUNTIME.prepare(base.on(Placement(halves))) as prepared:
        pid = prepared._worker.pid
        tasks = [int(task) for task in os.listdir(f"/proc/{pid}/task")]
        assert {frozenset(os.sched_getaffinity(task)) for task in tasks} == {frozenset({first})}
        prepared.time(samples)
        used, began = cpu_seconds(pid), time.perf_counter()
        prepared.time(samples)
        assert cpu_seconds(pid) - used <= 0.02 + 1.05 * (time.perf_counter() - began)


def test_a_pipeline_on_processors_is_none(model):
    """HETERO's logical CPUs share a thread, and whoever measures samples in flight is told."""
    base = job(model, np.arange(31) % 2)
    streamed = replace(base, problem=base.problem.with_(objective=Objective("throughput")))
    with RUNTIME.prepare(streamed) as prepared:
        assert "samples in flight do not overlap" in prepared.notes[-1]


def test_wrong_inputs_and_options(model, alone, tmp_path):
    """Other models, options and inputs than this runtime takes."""
    with pytest.raises(RunError, match="input 'x' is not given"):
        alone.run({})
    with pytest.raises(RunError, match="OpenVINO cannot run"):
        alone.run({"x": np.zeros((3, 9), np.float32)})
    with pytest.raises(InputError, match="no option affinity=magic; it has affinity: placement or automatic"):
        RUNTIME.prepare(job(model, affinity="magic"))
    gone = tmp_path / "gone.xml"
    gone.write_bytes(Path(model).read_bytes())
    with pytest.raises(RunError, match=r"there is no gone\.bin beside it"):
        RUNTIME.prepare(job(gone))
    lost = job(gone)
    gone.unlink()
    with pytest.raises(InputError, match=r"gone\.xml: the model of this plan is not there"):
        RUNTIME.prepare(lost)


def test_what_openvino_cannot_compile_says_why(tmp_path):
    """An op that nobody implements is named."""
    node = helper.make_node("Strange", ["x"], ["y"], "odd", domain="no.such")
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"], "relu"), node], "strange",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("no.such", 1)])
    path = tmp_path / "strange.onnx"
    onnx.save(made, path)
    with pytest.raises(RunError, match=r"OpenVINO cannot (read|compile).*Strange"):
        RUNTIME.prepare(job(path, dims={}))


def test_open_shapes_are_not_handed_over(tmp_path):
    """How long NonZero's result is depends on values: it runs on one device, and no cut may be behind it."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("NonZero", ["r"], ["n"], "where"),
        helper.make_node("Cast", ["n"], ["f"], "cast", to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["f"], ["y"], "sum", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "open", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        value_info=[
            helper.make_tensor_value_info("n", TensorProto.INT64, [1, 4]),
            helper.make_tensor_value_info("f", TensorProto.FLOAT, [1, 4]),
        ],
    )  # fmt: skip
    path = tmp_path / "open.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    base = job(path, dims={})
    x = {"x": np.array([1, -1, 2, 3], np.float32)}
    for device in ([0, 0, 0, 0], [0, 1, 1, 1]):
        with RUNTIME.prepare(base.on(Placement(np.array(device, np.int32)))) as prepared:
            assert prepared.run(x)["y"] == 5
    with pytest.raises(RunError, match="'where' makes depends on values, and HETERO cannot hand it from CPU to CPU2"):
        RUNTIME.prepare(base.on(Placement(np.array([0, 0, 1, 1], np.int32))))


def test_a_killed_worker_fails_this_placement_only(model, alone):
    """Its next question is an error in words; another placement is not touched, and closing leaves no process."""
    base = job(model, 1)
    prepared = RUNTIME.prepare(base)
    pid = prepared._worker.pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RunError, match="worker of OpenVINO was killed"):
        outputs(prepared, base.problem)
    prepared.close()
    assert outputs(alone, base.problem)
    assert gone(pid)


def test_ops_follow_who_reads_them_then_whom_they_read():
    """By the file's nodes first, a node of its own before one folded into it; else the reader's; else the source's."""
    graph = _graph_with_origins([(5, 1), (7,)])
    listing = FoldedModel(
        ("const", "a", "part", "b", "sink"), ("Constant",) * 5, ((), (0,), (1,), (1, 2), (3,)),
        ((), (1, 5), (), (7,), ()), (False,) * 5,
    )  # fmt: skip
    assert match_ops(graph, listing).tolist() == [0, 0, 1, 1, 1]


def _graph_with_origins(origins):
    from placewise.model.builder import GraphBuilder

    builder = GraphBuilder()
    for number, origin in enumerate(origins):
        builder.add_op(f"op{number}", "Relu", origin=origin)
    return builder.build()


def test_unnamed_ops_join_the_kernel_that_reads_them():
    """A convolution whose name was lost in fusion counts with the kernel behind it; reorders have no ops."""
    listing = FoldedModel(
        ("x", "conv", "norm", "relu", "y"), ("Parameter", "Convolution", "BatchNormInference", "Relu", "Result"),
        ((), (0,), (1,), (2,), (3,)), ((),) * 5, (False,) * 5,
    )  # fmt: skip
    kernels = [
        ProfiledKernel("reorder", "Reorder", (), "CPU", 1.0),
        ProfiledKernel("fused", "Convolution", (2, 3), "CPU", 2.0),
    ]
    found = attribute_kernels(kernels, listing, np.array([0, 0, 1, 2, 2], np.int32))
    assert [(kernel.name, kernel.ops, kernel.seconds) for kernel in found] == [
        ("reorder", (), 1.0), ("fused", (0, 1, 2), 2.0),
    ]  # fmt: skip


def test_what_hetero_writes_down_is_read():
    """Ops with their piece and device; copies of constants, and others' words, are passed over."""
    text = (
        'A [label="pw3\\nAdd_7\\nopset1::Add\\nsubgraph=12\\ndevice=GPU.0" x]\n'
        'B [label="pw4\\nC_1\\nopset1::Constant\\n{f32}[2]\\nvalue: [ 1 ]"]\n'
        'C [label="mine\\nAdd_9\\nopset1::Add\\nsubgraph=1\\ndevice=CPU" x]\n'
    )
    assert parse_split(text) == {3: (12, "GPU.0")}
    assert parse_ops("pw3,Multiply_12, pw14,pw14_abcd") == (3, 14)


def test_the_cause_is_the_last_word():
    """OpenVINO's messages are stacks of places; one line of them matters."""
    stack = "Exception from src/core.cpp:84:\nCheck 'false' failed at src/f.cpp:47:\nLoading it\nno such file\n\n"
    assert summarize_error(RuntimeError(stack)) == "Loading it no such file"
    assert summarize_error(RuntimeError("Check 'a > b' failed at src/f.cpp:47:\n")) == "Check 'a > b'"

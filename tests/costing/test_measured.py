"""Measured times over the estimates: what profilers wrote of a small model, and tables written by hand."""

import gzip
import json

import numpy as np
import pytest
from locations import DATA

from placewise.catalog import read_cluster
from placewise.costing.measured import load_measured
from placewise.costing.measured.attribute import distribute_times
from placewise.costing.measured.load import apply_measured, read_timings
from placewise.costing.measured.table import TimingRow, Timings
from placewise.costing.roofline import cost_table
from placewise.errors import CostError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.tables import Phase
from placewise.readers.onnx import read_onnx
from placewise.readers.openvino import read_openvino
from placewise.readers.torch import read_pt2
from placewise.transform.fold import fold

FOLDER = DATA / "measured"
CPU = Device("cpu", "cpu", peak_flops={"float32": 1e11}, memory_bandwidth=1e10)
GPU = Device("cuda:0", "gpu", peak_flops={"float32": 1e12}, memory_bandwidth=1e11)
PROFILES = [
    ("small.onnx", "onnxruntime.json"),
    ("small.onnx", "torch.json"),
    ("small.pt2", "torch.json"),
    ("small.xml", "execution.xml"),
    ("small.xml", "counters.csv"),
    ("small.xml", "counters.json"),
]


def cluster(*devices):
    return Cluster(devices, tuple(Link(*ends, 1e10) for d in devices for ends in ((d.name, "host"), ("host", d.name))))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """The folded graph of the small model in each of its formats."""
    path = tmp_path_factory.mktemp("small") / "small.xml"
    path.write_bytes(gzip.decompress((FOLDER / "small.xml.gz").read_bytes()))
    return {
        "small.onnx": fold(read_onnx(FOLDER / "small.onnx").graph),
        "small.pt2": fold(read_pt2(FOLDER / "small.pt2").graph),
        "small.xml": fold(read_openvino(path).graph),
    }


def chain(*kinds, phases=()):
    """Ops in a row, called after their places: op0, op1, …"""
    builder = GraphBuilder()
    tensor = builder.add_tensor(-1, shape=(64, 64), dtype="float32", name="x")
    weight = builder.add_weight("w", shape=(64, 64), dtype="float32")
    for place, kind in enumerate(kinds):
        op = builder.add_op(f"op{place}", kind, dtype="float32")
        builder.add_edge(tensor, op)
        if kind == "MatMul":
            builder.use_weight(weight, op)
        tensor = builder.add_tensor(op, shape=(64, 64), dtype="float32", name=f"t{place}")
    return builder.build()


def applied(graph, rows, devices=(CPU,), **options):
    base = cost_table(graph, cluster(*devices))
    table, notes = apply_measured(base, graph, cluster(*devices), Timings("a test", tuple(rows), **options))
    return table.op_seconds[:, 0], notes


def measured_of(table):
    return table.op_source == table.sources.index("measured")


@pytest.mark.parametrize(("model", "profile"), PROFILES)
def test_profiles_of_runtimes(graphs, model, profile):
    """Every op that computes is measured, no time is lost or made, and what no op was found for is small and told."""
    graph, devices = graphs[model], cluster(CPU)
    base, path = cost_table(graph, devices), f"cpu={FOLDER / profile}.gz"
    table, notes = load_measured(path, graph, devices, base)
    assert measured_of(table)[base.op_seconds[:, 0] > 0].all()
    total = sum(row.seconds for row in read_timings(FOLDER / f"{profile}.gz", graph).rows)
    given = table.op_seconds[measured_of(table)].sum()
    assert 0.6 * total < given <= total * (1 + 1e-9)
    assert any("100 % of the ops that compute" in note for note in notes)
    assert ("belong" in notes[-1]) == (given < total * (1 - 1e-9))


def test_fused_kernels_of_onnx_runtime(graphs):
    """A convolution takes the sum and the activation behind it with it, and shares as the estimates do."""
    graph = graphs["small.onnx"]
    op = {name: row for row, name in enumerate(graph.ops.name)}
    base = cost_table(graph, cluster(CPU))
    table, _ = load_measured(str(FOLDER / "onnxruntime.json.gz"), graph, cluster(CPU), base)
    rows = {row.name: row.seconds for row in read_timings(FOLDER / "onnxruntime.json.gz", graph).rows}
    last = [name for name, kind in zip(graph.ops.name, graph.ops.kind, strict=True) if kind == "Relu"][-1]
    fused = [last]
    while graph.ops.kind[op[fused[-1]]] != "Conv":
        before = graph.tensors.producer[graph.inputs_of(op[fused[-1]])[0]]
        fused.append(graph.ops.name[before])
    assert [graph.ops.kind[op[name]] for name in fused] == ["Relu", "Add", "Conv"]
    convolved = graph.tensors.name[graph.outputs_of(op[fused[-1]])[0]]
    seconds = table.op_seconds[[op[name] for name in fused], 0]
    assert seconds.sum() == pytest.approx(rows[f"{convolved}_nchwc"])
    estimate = base.op_seconds[[op[name] for name in fused], 0]
    assert seconds / seconds.sum() == pytest.approx(estimate / estimate.sum())


def test_kernels_of_two_devices():
    """An op whose kernel ran on the CPU is not inside one of the GPU: each device gets what ran there."""
    graph = chain("MatMul", "Tanh", "MatMul", "Relu")
    rows = [TimingRow("op0", 1.0, "MatMul", device="cuda"), TimingRow("op1", 8.0, "Tanh", device="cpu")]
    rows += [TimingRow("op2", 3.0, "MatMul", device="cuda")]
    devices = cluster(CPU, GPU)
    base = cost_table(graph, devices)
    table, notes = apply_measured(base, graph, devices, Timings("a test", tuple(rows)))
    assert measured_of(table).tolist() == [[False, True], [True, False], [False, True], [False, True]]
    assert table.op_seconds[2:, 1].sum() == pytest.approx(3.0) and table.op_seconds[1, 0] == 8.0
    assert len(notes) == 2


def test_sum_inside_a_kernel():
    """BiasGelu is the sum before it too, which else would be in the product's kernel."""
    graph = chain("MatMul", "Add", "Gelu")
    seconds, _ = applied(graph, [TimingRow("op0", 1.0, "MatMul"), TimingRow("gelu", 4.0, "BiasGelu")])
    assert seconds[0] == pytest.approx(1.0) and seconds[1] > 0 and seconds[1:].sum() == pytest.approx(4.0)


def test_execution_graph_and_counters_agree(graphs):
    """Which ops a kernel stands for is worked out from a report as the execution graph says it."""
    graph = graphs["small.xml"]
    base = cost_table(graph, cluster(CPU))
    tables = [
        load_measured(f"cpu={FOLDER / name}.gz", graph, cluster(CPU), base)[0].op_seconds[:, 0]
        for name in ("execution.xml", "counters.csv")
    ]
    assert tables[0] == pytest.approx(tables[1], rel=0.5, abs=3e-6)
    assert tables[0].sum() == pytest.approx(tables[1].sum(), rel=0.2)


def test_operators_in_order(graphs):
    """A trace of PyTorch is matched by order: each op gets the time of its own operator."""
    graph = graphs["small.pt2"]
    table, _ = load_measured(str(FOLDER / "torch.json.gz"), graph, cluster(CPU), cost_table(graph, cluster(CPU)))
    rows = read_timings(FOLDER / "torch.json.gz", graph).rows
    assert len(rows) == graph.n_ops
    assert table.op_seconds[:, 0] == pytest.approx([row.seconds for row in rows])
    assert [row.name for row in rows[:3]] == ["aten::conv2d", "aten::batch_norm", "aten::relu"]


def test_another_model_is_refused(graphs):
    """The profile of another model is no measurement of this one."""
    other = chain("Det", "Hardmax")
    base = cost_table(other, cluster(CPU))
    for name in ("onnxruntime.json", "counters.csv", "torch.json"):
        with pytest.raises(CostError, match="none of its times belongs to an op of this model"):
            load_measured(f"cpu={FOLDER / name}.gz", other, cluster(CPU), base)


def test_shares_by_hand():
    """Ten seconds over ops estimated at 1 and 4; over ops estimated at nothing, evenly; the rest is unmatched."""
    rows = [TimingRow("a", 10.0), TimingRow("b", 6.0), TimingRow("c", 5.0)]
    share = distribute_times(rows, [[0, 1], [2, 3], []], np.array([1.0, 4.0, 0.0, np.inf]))
    assert share.seconds.tolist() == [2.0, 8.0, 3.0, 3.0]
    assert (share.given, share.lost) == (16.0, 5.0) and [row.name for row in share.unmatched] == ["c"]


def test_absorbed_by_the_kernel_before():
    """An op without a row ran in the kernel before it, through views; the first ones in the kernel after them."""
    graph = chain("Relu", "MatMul", "Reshape", "Sigmoid", "MatMul", "Tanh")
    seconds, notes = applied(graph, [TimingRow("op1", 4.0, "MatMul"), TimingRow("op4", 2.0, "MatMul")])
    assert seconds[:4].sum() == pytest.approx(4.0) and seconds[4:].sum() == pytest.approx(2.0)
    assert seconds[0] > 0 and seconds[2] == 0 and seconds[3] > 0 and seconds[5] > 0
    assert "3 of which ran inside other kernels" in notes[0]


def test_heavy_ops_are_not_absorbed():
    """A product without a kernel keeps its estimate, and so does what stands behind it alone."""
    graph = chain("MatMul", "Relu", "MatMul", "Tanh")
    base = cost_table(graph, cluster(CPU)).op_seconds[:, 0]
    seconds, notes = applied(graph, [TimingRow("op0", 4.0, "MatMul")])
    assert seconds[:2].sum() == pytest.approx(4.0) and seconds[2:].tolist() == base[2:].tolist()
    assert "to 50 % of the ops that compute, 1 of which" in notes[0]


def test_backward_is_not_absorbed():
    """The profile of an inference says nothing of the backward ops of a training graph."""
    builder = GraphBuilder()
    x = builder.add_tensor(-1, shape=(64, 64), dtype="float32")
    made = builder.add_tensor(builder.add_op("forward", "Relu"), shape=(64, 64), dtype="float32")
    builder.add_edge(x, 0)
    builder.add_edge(made, builder.add_op("back", "Mul", backward=True))
    builder.add_tensor(1, shape=(64, 64), dtype="float32")
    graph = builder.build()
    seconds, _ = applied(graph, [TimingRow("forward", 4.0, "Relu")])
    assert seconds.tolist() == [4.0, cost_table(graph, cluster(CPU)).op_seconds[1, 0]]


def test_named_after_the_last_op():
    """A kernel called after an activation, of the kind of a product, is the product too."""
    graph = chain("Sigmoid", "MatMul", "Add", "Relu")
    seconds, _ = applied(
        graph, [TimingRow("op0", 1.0, "Sigmoid"), TimingRow("t3_x", 9.0, "FusedMatMul", aliases=("t3",))]
    )
    assert seconds[0] == pytest.approx(1.0) and seconds[1:].sum() == pytest.approx(9.0) and seconds[1] > seconds[3]


def test_left_over_of_one_kind():
    """Rows with strange names are paired with the ops of their kind if there are as many of both, and else left."""
    graph = chain("MatMul", "Relu", "MatMul")
    rows = [TimingRow("first", 1.0, "FusedGemm"), TimingRow("op1", 1.0, "Relu"), TimingRow("second", 3.0, "FusedGemm")]
    assert applied(graph, rows)[0].tolist() == [1.0, 1.0, 3.0]
    seconds, notes = applied(graph, rows[:2])
    assert seconds[1] == 1.0 and max(seconds[0], seconds[2]) < 0.01 and "1 row belongs to no op" in notes[0]


def test_repeats_of_a_phase():
    """A kernel's time is of one run; what a phase repeats counts every time, and times by op hold it already."""
    builder = GraphBuilder()
    builder.add_tensor(builder.add_op("prefill", "Relu", phase=0), shape=(8,), dtype="float32")
    builder.add_tensor(builder.add_op("decode", "Relu", phase=1), shape=(8,), dtype="float32")
    graph = builder.build(phases=(Phase("prefill"), Phase("decode", 10)))
    rows = [TimingRow("prefill", 1.0, "Relu"), TimingRow("decode", 2.0, "Relu")]
    assert applied(graph, rows)[0].tolist() == [1.0, 20.0]
    assert applied(graph, rows, by_op=True)[0].tolist() == [1.0, 2.0]


CSV = "op,device,seconds\nop0,cpu,0.5\nop1,cuda:0,2us\nop1,cpu,inf\n"


@pytest.mark.parametrize(
    "text",
    [
        CSV,
        CSV.replace("cuda:0", "gpu"),
        CSV.replace("cuda:0", "cuda"),
        CSV + "op0,tpu,7\n",
        CSV.replace("op0,cpu,0.5\n", "op0,cpu,9\nop0,cpu,0.5\nop0,cpu,0.1\n"),
        CSV.replace("op0,cpu,0.5\n", "*0,cpu,0.5\n"),
        CSV + "op?,cpu,3\n",
        json.dumps({"op0": {"cpu": 0.5}, "op1": {"cuda:0": 2e-6, "cpu": float("inf")}}).replace("Infinity", '"inf"'),
        json.dumps([{"op": "op0", "device": "cpu", "seconds": 0.5}, {"op": "op1", "device": "cuda:0", "seconds": "2us"},
                    {"op": "op1", "device": "cpu", "seconds": "inf"}]),
    ],
)  # fmt: skip
def test_times_by_op(tmp_path, text):
    """One table in every way to write it: names, kinds, units, repeated rows, patterns, CSV and JSON."""
    graph, devices = chain("Relu", "Tanh"), cluster(CPU, GPU)
    path = tmp_path / "times"
    path.write_text(text)
    base = cost_table(graph, devices)
    table, notes = load_measured(str(path), graph, devices, base)
    assert table.op_seconds.tolist() == [[0.5, base.op_seconds[0, 1]], [np.inf, 2e-6]]
    assert measured_of(table).tolist() == [[True, False], [True, True]]
    assert all(note.startswith(str(path)) for note in notes)
    assert any("1 of its 4 times belong to devices" in note for note in notes) == ("tpu" in text)


@pytest.mark.parametrize(("times", "spread"), [((0.5,), 0.0), ((0.4, 0.5, 0.6), 0.2)])
def test_the_spread_of_several_times(tmp_path, times, spread):
    """Several times of one op record their spread in the table; one time records none."""
    graph, devices = chain("Relu"), cluster(CPU)
    path = tmp_path / "times.csv"
    path.write_text("op,device,seconds\n" + "".join(f"op0,cpu,{seconds}\n" for seconds in times))
    table, _ = load_measured(str(path), graph, devices, cost_table(graph, devices))
    assert table.op_seconds[0, 0] == 0.5 and table.spread == pytest.approx(spread)


def test_device_in_front(tmp_path):
    """DEVICE=FILE gives all times to one device, to all of a kind or to all; a file may have such a name."""
    graph, devices = chain("Relu", "Tanh"), cluster(CPU, GPU)
    base = cost_table(graph, devices)
    path = tmp_path / "times.json"
    path.write_text('[{"op": "op0", "seconds": 1}]')
    found = {
        word: np.argwhere(measured_of(load_measured(f"{word}={path}", graph, devices, base)[0])).tolist()
        for word in ("cpu", "cuda:0", "gpu", "*")
    }
    assert found == {"cpu": [[0, 0]], "cuda:0": [[0, 1]], "gpu": [[0, 1]], "*": [[0, 0], [0, 1]]}
    odd = tmp_path / "a=b.json"
    odd.write_text('{"op0": {"cpu": 1}}')
    assert measured_of(load_measured(str(odd), graph, devices, base)[0]).sum() == 1
    with pytest.raises(CostError, match="it names no device"):
        load_measured(str(path), graph, devices, base)
    with pytest.raises(CostError, match="'npu', which is not a device"):
        load_measured(f"npu={path}", graph, devices, base)


def test_devices_that_differ(tmp_path):
    """The times of one GPU, given to two that differ, are told of."""
    graph = chain("MatMul")
    slow = Device("cuda:1", "gpu", peak_flops={"float32": 1e11}, memory_bandwidth=1e10)
    _, notes = applied(graph, [TimingRow("op0", 1.0, "MatMul", device="cuda")], devices=(GPU, slow))
    assert len(notes) == 2 and "differ" in notes[1]
    assert len(applied(graph, [TimingRow("op0", 1.0, "MatMul", device="cuda:0")], devices=(GPU, slow))[1]) == 1


def test_examples_of_the_catalogue():
    """Words for devices that the catalogue makes names of."""
    graph = chain("MatMul")
    devices = read_cluster("2xA100-80GB,cpu")
    base = cost_table(graph, devices)
    rows = (TimingRow("op0", 1.0, "MatMul", device="cuda"), TimingRow("op0", 2.0, "MatMul", device="cpu"))
    table, _ = apply_measured(base, graph, devices, Timings("a test", rows))
    assert dict(zip(devices.names, table.op_seconds[0].tolist(), strict=True)) == {"cuda:0": 1, "cuda:1": 1, "cpu": 2}

"""Files of measurements one by one: traces written by hand, runs and steps, and everything that is refused."""

import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from locations import DATA
from soak import examples

from placewise.costing.measured import content, load_measured
from placewise.costing.measured.load import read_timings
from placewise.costing.measured.match_order import align_sequences
from placewise.costing.measured.onnxruntime import read_trace, seconds_besides
from placewise.costing.measured.torch import find_period
from placewise.costing.roofline import cost_table
from placewise.errors import CostError
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device, Link

FOLDER = DATA / "measured"
CPU = Device("cpu", "cpu", peak_flops={"float32": 1e11}, memory_bandwidth=1e10)
CLUSTER = Cluster((CPU,), (Link("cpu", "host", 1e10), Link("host", "cpu", 1e10)))


def graph(*kinds):
    builder = GraphBuilder()
    tensor = builder.add_tensor(-1, shape=(8, 8), dtype="float32", name="x")
    for place, kind in enumerate(kinds):
        op = builder.add_op(f"{kind.lower()}_{place}", kind, dtype="float32")
        builder.add_edge(tensor, op)
        tensor = builder.add_tensor(op, shape=(8, 8), dtype="float32")
    return builder.build()


def rows_of(path, *kinds):
    return {row.name: row.seconds for row in read_timings(path, graph(*kinds or ("Relu",))).rows}


def written(folder, value, *, packed=False):
    path = folder / "profile.json"
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def node(name, start, duration, **args):
    known = {"op_name": "Relu", "provider": "CPUExecutionProvider", "node_index": name}
    return {"cat": "Node", "name": f"{name}_kernel_time", "ts": start, "dur": duration, "ph": "X", "args": known | args}


def run(start):
    return {"cat": "Session", "name": "model_run", "ts": start, "dur": 100, "ph": "X", "args": {}}


@pytest.mark.parametrize("packed", [False, True])
def test_runs_of_onnx_runtime(tmp_path, packed):
    """The median over runs without the first, which warms up; a node that runs twice in a run counts both."""
    trace = [
        node("a", 10, 900), node("b", 20, 5), run(5),
        node("a", 210, 3), node("b", 220, 5), node("b", 230, 6), run(205),
        node("a", 410, 5), node("b", 420, 7), run(405),
        node("a", 610, 4), node("b", 620, 9), run(605),
        {"cat": "Node", "name": "a_fence_before", "ts": 1, "dur": 77, "args": {}},
    ]  # fmt: skip
    assert rows_of(written(tmp_path, trace, packed=packed)) == pytest.approx({"a": 4e-6, "b": 9e-6})


def test_the_spread_of_runs(tmp_path):
    """The distance between quartiles over the median, without the first run; the mean over kernels, by seconds."""
    trace = [
        part
        for number, (a, b) in enumerate([(900, 900), (2, 6), (4, 6), (6, 6)])
        for part in (run(200 * number + 5), node("a", 200 * number + 10, a), node("b", 200 * number + 20, b))
    ]
    timings = read_timings(written(tmp_path, trace), graph("Relu"))
    assert {row.name: row.spread for row in timings.rows} == {"a": pytest.approx(0.5), "b": 0.0}
    assert timings.spread == pytest.approx((4 * 0.5 + 6 * 0.0) / 10)


def test_providers(tmp_path):
    """Execution providers say where a node ran; a provider that is not known must be said."""
    trace = [node("a", 10, 1), node("b", 20, 1, provider="CUDAExecutionProvider"), run(5)]
    timings = read_timings(written(tmp_path, trace), graph("Relu"))
    assert [row.device for row in timings.rows] == ["cpu", "cuda"]
    path = written(tmp_path, [node("relu_0", 10, 1, provider="DmlExecutionProvider"), run(5)])
    model = graph("Relu")
    with pytest.raises(CostError, match=r"'DmlExecutionProvider', which is not a device.*cpu=FILE"):
        load_measured(str(path), model, CLUSTER, cost_table(model, CLUSTER))


def kernel(name, start, duration, **args):
    return {"cat": "Kernel", "name": name, "ts": start, "dur": duration, "ph": "X", "args": {"stream": 7} | args}


def on_gpu(name, start, duration, *kernels, op_name="Relu"):
    """A call that launches kernels of these microseconds, which the profiler puts behind it."""
    call = node(name, start, duration, provider="CUDAExecutionProvider", op_name=op_name)
    parent = {"parent_name": call["name"], "op_name": op_name}
    return [call, *(kernel(f"{name}_{row}", start + 50, took, **parent) for row, took in enumerate(kernels))]


def test_kernels_of_gpus(tmp_path):
    """Kernels count and not what it took to launch them; calls on the CPU count as before; copies are of no node."""
    runs = [
        [*on_gpu("a", start + 10, 2, took, 30), *on_gpu("view", start + 20, 9), node("b", start + 30, 5), run(start)]
        for start, took in ((0, 900), (1000, 60), (2000, 70), (3000, 80))
    ]
    copies = [kernel("MemcpyHostToDevice", 1, 500), kernel("MemcpyDeviceToHost", 3900, 8)]
    trace = [copies[0], *(event for events in runs for event in events), copies[1]]
    timings = read_timings(written(tmp_path, trace), graph("Relu"))
    assert {row.name: row.seconds for row in timings.rows} == pytest.approx(
        {"a": 100e-6, "view": 0.0, "b": 5e-6, "MemcpyDeviceToHost": 2e-6}
    )
    assert timings.notes == ()
    read = read_trace(written(tmp_path, trace))
    assert seconds_besides(read) == 0.0  # the kernels take longer than the run that launches them
    assert [read.seconds(call) for call in read.calls][:3] == pytest.approx([930e-6, 0.0, 5e-6])


def test_gpus_without_kernels(tmp_path):
    """Without times of kernels, those of launching are all there is, and a note says what they are worth."""
    trace = [*on_gpu("a", 10, 2), run(5)]
    timings = read_timings(written(tmp_path, trace), graph("Relu"))
    assert rows_of(written(tmp_path, trace)) == pytest.approx({"a": 2e-6})
    assert "records no kernels" in timings.notes[0]


def call(name, start, duration, *, tid=1, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": duration, "args": args}


def step(number, start, duration):
    return call(f"ProfilerStep#{number}", start, duration, cat="user_annotation")


def trace_of(*events):
    return {"schemaVersion": 1, "traceEvents": [{"ph": "M", "name": "process_name"}, *events], "traceName": "t"}


def test_steps_of_torch(tmp_path):
    """Nested operators count once, steps at their median without the first, and odd steps not at all."""
    events = []
    for number, (relu, tanh) in enumerate([(50, 60), (4, 10), (6, 20), (5, 30)]):
        start = 1000 * number
        events += [
            step(number, start, 900),
            call("aten::relu", start + 10, relu),
            call("aten::clamp_min", start + 11, 1),
        ]
        events += [call("aten::tanh", start + 200, tanh)]
    events += [step(4, 4000, 900), call("aten::tanh", 4010, 1), call("aten::relu", 9000, 1)]
    timings = read_timings(written(tmp_path, trace_of(*events)), graph("Relu", "Tanh"))
    assert [(row.name, round(row.seconds * 1e6, 6)) for row in timings.rows] == [("aten::relu", 5), ("aten::tanh", 20)]
    assert timings.notes == ("1 of its 5 steps ran other operators and are ignored",)


def test_repetitions_without_steps(tmp_path):
    """A trace that repeats itself is of several runs, but a model that repeats itself is not."""
    times = [(50, 60), (4, 10), (6, 20)]
    events = [
        call(f"aten::{name}", 1000 * run + 100 * place, duration)
        for run, durations in enumerate(times)
        for place, (name, duration) in enumerate(zip(("relu", "tanh"), durations, strict=True))
    ]
    path = written(tmp_path, trace_of(*events))
    assert rows_of(path, "Relu", "Tanh") == pytest.approx({"aten::relu": 5e-6, "aten::tanh": 15e-6})
    repeated = read_timings(path, graph("Relu", "Tanh", "Relu", "Tanh", "Relu", "Tanh"))
    assert [round(row.seconds * 1e6) for row in repeated.rows] == [50, 60, 4, 10, 6, 20]


def repeated_trace(runs, *names):
    """Runs without steps, an operator every 10 µs; the first run takes twice as long."""
    return trace_of(
        *(
            call(f"aten::{name}", 1000 * run + 10 * place, 8 if run == 0 else 4)
            for run in range(runs)
            for place, name in enumerate(names)
        )
    )


@pytest.mark.parametrize("runs", [1, 2, 6, 7, 12])
def test_repetitions_are_runs_whatever_the_model(tmp_path, runs):
    """Runs of a small model are never put together to look like one run of a large one."""
    path = written(tmp_path, repeated_trace(runs, "matmul", "relu", "matmul"))
    large = graph(*("MatMul", "Relu", "MatMul", "Softmax", "MatMul", "MatMul") * 4)
    timings = read_timings(path, large)
    assert len(timings.rows) == 3
    assert timings.form == f"torch.profiler trace of {runs} {'step' if runs == 1 else 'steps'}"
    assert sum(row.seconds for row in timings.rows) == pytest.approx(24e-6 if runs == 1 else 12e-6)
    with pytest.raises(
        CostError, match=r"another model: 100 % of its time, and [\d.]+ % of the ops.*; measure this one"
    ):
        load_measured(str(path), large, CLUSTER, cost_table(large, CLUSTER))


def test_a_model_that_repeats_itself_is_whole(tmp_path):
    """All its blocks are one run, in a trace of several runs too."""
    model = graph(*("Relu", "Tanh") * 12)
    for runs in (1, 2, 3):
        timings = read_timings(written(tmp_path, repeated_trace(runs, *("relu", "tanh") * 12)), model)
        assert len(timings.rows) == 24 and f"of {runs} step" in timings.form


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=30))
def test_periods(names):
    """The shortest part that makes up the whole, as trying every length finds it."""
    lengths = (length for length in range(1, len(names) + 1) if names[:length] * (len(names) // length) == names)
    assert find_period(names) == next(lengths)


def onnxruntime_profile(**seconds):
    return [run(5), *(node(name, 10 + place, value) for place, (name, value) in enumerate(seconds.items()))]


@pytest.mark.parametrize(
    ("seconds", "fits"),
    [
        ({"relu_0": 40, "alien": 60}, "40 % of its time, and 100 % of the ops that compute, match"),
        ({"matmul_0": 90, "alien": 10}, "90 % of its time, and 20 % of the ops that compute, match"),
    ],
)
def test_a_profile_that_hardly_fits(tmp_path, seconds, fits):
    """Less than half of the time, or less than a quarter of the ops: another model."""
    path = written(tmp_path, onnxruntime_profile(**seconds))
    model = graph("Relu") if "relu_0" in seconds else graph(*["MatMul"] * 5)
    with pytest.raises(CostError, match=f"this profile is of another model: {fits}; measure this one$"):
        load_measured(str(path), model, CLUSTER, cost_table(model, CLUSTER))


def test_a_profile_that_fits_badly(tmp_path):
    """In between, the times are taken and the user is asked."""
    model = graph(*["MatMul"] * 4)
    for known, asked in ((1, True), (2, False)):
        names = {f"matmul_{place}": 10 for place in range(known)}
        path = written(tmp_path, onnxruntime_profile(**names))
        _, notes = load_measured(str(path), model, CLUSTER, cost_table(model, CLUSTER))
        assert any("is this a profile of this model? Only" in note for note in notes) == asked
    path = written(tmp_path, onnxruntime_profile(**names, alien=15))
    _, notes = load_measured(str(path), model, CLUSTER, cost_table(model, CLUSTER))
    assert "Only 57.1 % of its time, and 50 % of the ops that compute, match: costs may be wrong" in notes[-1]


def test_openvino_of_another_model(tmp_path):
    """Counters are judged by the same shares."""
    path = tmp_path / "report.csv"
    head = "layerName;execStatus;layerType;execType;realTime (ms);cpuTime (ms)\n"
    path.write_text(f"{head}relu_0;EXECUTED;Relu;jit;1;1\nalien;EXECUTED;Convolution;jit;4;4\n")
    model = graph("Relu", "Tanh")
    with pytest.raises(CostError, match="another model: 20 % of its time"):
        load_measured(f"cpu={path}", model, CLUSTER, cost_table(model, CLUSTER))


def test_unknown_operators_are_looked_into(tmp_path):
    """Where the graph has no such op, what ran inside counts, and what is left belongs to none."""
    events = [call("aten::layer", 0, 10), call("aten::relu", 1, 3), call("aten::tanh", 5, 4), call("aten::neg", 20, 1)]
    model = graph("Relu", "Tanh")
    path = written(tmp_path, trace_of(*events))
    table, notes = load_measured(str(path), model, CLUSTER, cost_table(model, CLUSTER))
    assert table.op_seconds[:, 0] == pytest.approx([3e-6, 4e-6])
    assert "63.6 % of 11 µs" in notes[0] and "2 rows belong to no op (4 µs, most in 'aten::layer')" in notes[0]


def test_kernels_of_torch(tmp_path):
    """Kernels count instead of the calls that launched them; those that nothing launched are reported."""
    events = [
        call("aten::relu", 0, 10), call("aten::clamp_min", 1, 8), call("aten::tanh", 20, 10),
        call("cudaLaunchKernel", 2, 1, cat="cuda_runtime", correlation=7),
        call("cudaLaunchKernel", 22, 1, cat="cuda_runtime", correlation=8),
        call("cudaLaunchKernel", 24, 1, cat="cuda_runtime", correlation=9),
        call("relu_kernel", 50, 100, tid=7, cat="kernel", correlation=7, device=0),
        call("tanh_kernel", 150, 200, tid=7, cat="kernel", correlation=8, device=0),
        call("tanh_again", 350, 11, tid=7, cat="kernel", correlation=9, device=0),
        call("memset", 400, 13, tid=7, cat="gpu_memset", correlation=99, device=0),
    ]  # fmt: skip
    timings = read_timings(written(tmp_path, trace_of(*events)), graph("Relu", "Tanh"))
    assert {row.device for row in timings.rows} == {"cuda"}
    found = {row.name: row.seconds for row in timings.rows}
    assert found == pytest.approx({"aten::relu": 1e-4, "aten::tanh": 2.11e-4, "memset": 1.3e-5})


def test_requests_of_openvino(tmp_path):
    """Several requests, one below the other: the median; what did not run and the total are left out."""
    head = "layerName;execStatus;layerType;execType;realTime (ms);cpuTime (ms)\n"
    text = "".join(
        f"{head}a;Status.EXECUTED;Relu;jit;{a};1\nb;NOT_RUN;Tanh;undef;0;0\nc;EXECUTED;Tanh;jit;2;2\nTotal;;;;9;9\n\n"
        for a in ("1.0", "5.0", "3.0")
    )
    path = tmp_path / "report.csv"
    path.write_text(text)
    assert rows_of(path) == pytest.approx({"a": 3e-3, "c": 2e-3})


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "the file is empty"),
        (b"op,device\n", "line 1: does not begin with the line op,device,seconds"),
        (b"op,device,seconds\na,b\n", "line 2: has 2 fields"),
        (b"op,device,seconds\nrelu_0,cpu,-1\n", "line 2: '-1' is not a time"),
        (b"op,device,seconds\nrelu_0,cpu,nan\n", "line 2: 'nan' is not a time"),
        (b"op,device,seconds\nrelu_0,cpu,fast\n", "line 2: 'fast' is not a time"),
        (b"op,device,seconds\nrelu_9,cpu,1\n", "line 2: the model has no op 'relu_9'"),
        (b"op,device,seconds\nrelu_0,tpu,1\n", "no times for any device of this cluster"),
        (b"op,device,seconds\n", "holds no times; write op, device and seconds"),
        (b"op,device,seconds\nrelu_0,cpu,1e400\n", "line 2: '1e400' is not a time"),
        (b"op,device,seconds\nrelu_0,cpu,1e308h\n", "line 2: '1e308h' is not a time"),
        (b"op,device,seconds\nrelu_0,cpu,-inf\n", "line 2: '-inf' is not a time"),
        (b'{"relu_0": {"cpu": 1e400}}', "op 'relu_0': 'inf' is not a time"),
        (b'{"relu_0": {"cpu": -Infinity}}', "op 'relu_0': '-Infinity' is not a time"),
        (b"[]", "holds no times; write op, device and seconds"),
        (b"{}", "holds no times; write op, device and seconds"),
        (b"null\n", "holds neither a list nor a table of times"),
        (b"17", "holds neither a list nor a table of times"),
        (b'"times"', "holds neither a list nor a table of times"),
        (b"op,device,seconds\n\xff\xfe,cpu,1\n", "not UTF-8 text"),
        (b'op,device,seconds\n"relu,cpu,1\n', "not CSV"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON|truncated"),
        (b'{"relu_0": 3}', "op 'relu_0': has no times by device"),
        (b'{"relu_0": {"cpu": NaN}}', "op 'relu_0': 'NaN' is not a time"),
        (b'{"relu_0": {"cpu": true}}', "'True' is not a time"),
        (b'{"relu_0": {"cpu": [1]}}', "is not a time"),
        (b'[{"op": "relu_0"}]', "entry 0: names no op with its device and seconds"),
        (b'[{"op": 3, "device": "cpu", "seconds": 1}]', "entry 0: names no op"),
        (b'[{"cat": "Node"', "an event is truncated"),
        (b'[{"cat": "Session", "name": "model_run", "ts": 1}]', "holds no times of nodes"),
        (b'[{"cat": "Node", "name": "a_kernel_time", "ts": 1, "dur": -5, "args": {}}]', "event 0: '-5' is not a time"),
        (b'[{"cat": "Node", "name": "a_kernel_time", "ts": "x", "dur": 5}]', "event 0: has no number 'ts'"),
        (b'{"schemaVersion": 1, "traceEvents": []}', "holds no operators"),
        (b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 1}]}', "event 0: 'None' is not"),
        (b'{"schemaVersion": 1, "other": 3}', "no list of events"),
        (b'{"report_type": "detailed"}', "holds no counters"),
        (b'{"report_type": "detailed", "detailed_performance": [{"nodes": []}]}', "no layer that ran"),
        (b"layerName;execStatus\na;b\n", "line 1: has no column 'layerType'"),
        (b"<net><layers/></net>", "holds no times"),
        (b"<net><layers>", "not well-formed XML"),
        (b'<!DOCTYPE net [<!ENTITY a "b">]><net/>', "document type or entities"),
        (b'<net><layer name="a" type="T"><data execTimeMcs="soon"/></layer></net>', "'soon' is not a time"),
        (b"\x1f\x8b\x08broken", "not a complete gzip file"),
    ],
)  # fmt: skip
def test_refused(tmp_path, content, match):
    """Wrong, foreign and broken files: one sentence with file, place and remedy."""
    path, model = tmp_path / "file", graph("Relu")
    path.write_bytes(content)
    with pytest.raises(CostError, match=match) as caught:
        load_measured(str(path), model, CLUSTER, cost_table(model, CLUSTER))
    assert str(caught.value).startswith(str(path)) and caught.value.remedy and "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["op,device,seconds\n{},cpu,1\n", '{{"{}": 5}}', '{{"{}": {{"cpu": "x"}}}}'])
def test_long_names_are_clipped(tmp_path, form):
    """A name of forty thousand letters is shown by its first ones."""
    path, model = tmp_path / "file", graph("Relu")
    path.write_text(form.format("a" * 40_000))
    with pytest.raises(CostError, match=r"'a{79}…'") as caught:
        load_measured(str(path), model, CLUSTER, cost_table(model, CLUSTER))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("word", ["Infinity", '"inf"', '" inf "'])
def test_what_cannot_run_in_json(tmp_path, word):
    """Infinity as programs write it is the word inf."""
    path, model = written(tmp_path, f'{{"relu_0": {{"cpu": {word}}}}}'.encode()), graph("Relu")
    table, _ = load_measured(str(path), model, CLUSTER, cost_table(model, CLUSTER))
    assert table.op_seconds[0, 0] == float("inf")


def test_no_file_after_the_device():
    """DEVICE= without a file says so, and names the option's words."""
    model = graph("Relu")
    with pytest.raises(CostError, match=r"^cpu=: the file is missing after '='; write cpu=FILE$"):
        load_measured("cpu=", model, CLUSTER, cost_table(model, CLUSTER))


def test_missing_file(tmp_path):
    """A path that is no file."""
    model = graph("Relu")
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(CostError, match="cannot be read"):
            load_measured(str(path), model, CLUSTER, cost_table(model, CLUSTER))


def test_sizes_are_bounded(tmp_path, monkeypatch):
    """Files that unpack to more than is read are refused, packed or not."""
    model = graph("Relu")
    monkeypatch.setattr(content, "LARGEST", 1000)
    monkeypatch.setattr(content, "LARGEST_WHOLE", 1000)
    for data in (b"op,device,seconds\n" * 1000, json.dumps([node("a", 1, 1)] * 100).encode()):
        for packed in (False, True):
            with pytest.raises(CostError, match="is larger than"):
                load_measured(str(written(tmp_path, data, packed=packed)), model, CLUSTER, cost_table(model, CLUSTER))


def test_too_many_and_too_deep(tmp_path, monkeypatch):
    """Operators inside each other without end, and more events than any profile needs."""
    deep = trace_of(*(call("aten::add", place, 2000 - 2 * place) for place in range(1000)))
    with pytest.raises(CostError, match="nested too deeply"):
        rows_of(written(tmp_path, deep))
    monkeypatch.setattr(content, "MAX_EVENTS", 10)
    with pytest.raises(CostError, match="more than 10 events"):
        rows_of(written(tmp_path, [node("a", 1, 1)] * 11))


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_events_across_pieces(tmp_path, monkeypatch, size):
    """Events are the same however the file is cut into pieces, also within a character."""
    monkeypatch.setattr(content, "_CHUNK", size)
    values = [{"name": "é" * 20, "n": [1, {"a": "]"}]}, {"b": 2}, {"c": "}, {"}]
    path = written(tmp_path, json.dumps({"x": 1, "traceEvents": values, "y": 2}, ensure_ascii=False, indent=1).encode())
    assert [*content.events(path)] == values
    assert [*content.events(written(tmp_path, json.dumps(values).encode()))] == values


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes(tmp_path, data):
    """A real file with some bytes changed is read or refused, and nothing else."""
    name = data.draw(
        st.sampled_from(["onnxruntime.json", "torch.json", "counters.csv", "counters.json", "execution.xml"])
    )
    text = bytearray(gzip.decompress((FOLDER / f"{name}.gz").read_bytes())[:20_000])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text) - 1))
        text[start : start + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=6))
    path, model = tmp_path / "file", graph("Conv", "Relu")
    path.write_bytes(text)
    try:
        read_timings(path, model)
    except CostError as error:
        assert "\n" not in str(error)


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_alignment_is_longest(first, second):
    """The alignment pairs equal letters in order, as many as the textbook recursion finds."""
    pairs = align_sequences(len(first), len(second), lambda i, j: first[i] == second[j])
    best = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            best[i + 1][j + 1] = best[i][j] + 1 if a == b else max(best[i][j + 1], best[i + 1][j])
    assert all(first[i] == second[j] for i, j in pairs) and len(pairs) == best[-1][-1]
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))

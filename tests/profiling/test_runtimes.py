"""Profiles measured for real: small models in every runtime, on one core."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import placewise as pw
from placewise._util.cores import pinnable_cores
from placewise.cli.app import app
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import InputError, RunError
from placewise.files.profile_file import load_profile, save_profile
from placewise.model.cluster import Cluster, Device, Link
from placewise.profiling import profile as module
from placewise.profiling.profile import Profiling, profile
from placewise.profiling.profile_cache import ProfileCache, op_contexts
from placewise.profiling.servers.onnxruntime import OnnxRuntimeServer
from placewise.profiling.servers.window import TimeWindow
from placewise.runtimes.binding import Place


def convolutions(path: Path, layers: int = 2, *, width: int = 16, size: int = 24) -> str:
    """Convolution and Relu, so many times, then a Softmax."""
    rng, nodes, weights, last = np.random.default_rng(0), [], [], "x"
    for layer in range(layers):
        weights.append(numpy_helper.from_array(rng.standard_normal((width, width, 3, 3), np.float32) / 12, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [last, f"w{layer}"], [f"c{layer}"], name=f"conv{layer}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"], name=f"relu{layer}"))
        last = f"r{layer}"
    nodes.append(helper.make_node("Softmax", [last], ["y"], name="soft", axis=1))
    shape = [1, width, size, size]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "convolutions", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return str(path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A model, what was measured of it in ONNX Runtime, alone and with both devices busy, and where it is kept."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("profile")
    problem = build(convolutions(folder / "m.onnx"), "2xcore")
    cache = ProfileCache(folder / "cache")
    allowed = pinnable_cores()
    places = {"core:0": f"cores:{allowed[0]}", "core:1": f"cores:{allowed[-1]}"}
    first = profile(problem, Profiling("onnxruntime", places, 5, loaded=True, cache=cache))
    return problem, first, cache, places


def test_ops_and_the_call_are_the_whole(measured):
    """On every device, alone and busy, the times of the ops and of a call add up to the run without the profiler."""
    _, found, _, _ = measured
    assert [device.name for device in found.devices] == ["core:0", "core:1"]
    for device in found.devices:
        assert not device.cached and device.call_overhead > 0
        for figures in (device.idle, device.loaded):
            total = sum(seconds or 0.0 for seconds in figures.ops)
            assert total + device.call_overhead == pytest.approx(figures.whole)
            assert figures.runs >= 5 and figures.kernels > 0


def test_a_convolution_and_its_activation_are_one_kernel(measured):
    """What ONNX Runtime fuses is a set of ops that the profile keeps together."""
    _, found, _, _ = measured
    sets = {frozenset(found.ops[op] for op in ops) for ops in found.devices[0].fused}
    assert sets == {frozenset({"conv0", "relu0"}), frozenset({"conv1", "relu1"})}


def test_threads_of_a_session_do_not_spin_into_the_next(tmp_path):
    """Where a device has several cores, its sessions run in turns, and one would slow the other."""
    pytest.importorskip("onnxruntime")
    place = Place("cpu", "cores", cores=(0, 1))
    server = OnnxRuntimeServer(convolutions(tmp_path / "m.onnx", 8, width=64), {}, place)
    server.measure({"x": np.ones((1, 64, 24, 24), np.float32)}, TimeWindow(3))
    before = time.process_time()
    time.sleep(0.1)
    assert time.process_time() - before < 0.02


def test_what_was_measured_is_not_measured_again(measured, monkeypatch):
    """The second profile of a model starts no worker and gives the same times."""
    problem, found, cache, places = measured

    def refuse(*_args, **_more):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(module, "start_profiler", refuse)
    again = profile(problem, Profiling("onnxruntime", places, 5, loaded=True, cache=cache))
    assert all(device.cached and not device.measured for device in again.devices)
    if len(pinnable_cores()) > 1:  # on one core, both devices are the same, and the second one's times count
        assert [d.idle for d in again.devices] == [d.idle for d in found.devices]
        assert [d.loaded for d in again.devices] == [d.loaded for d in found.devices]
    assert [d.fused for d in again.devices] == [d.fused for d in found.devices]


def test_another_model_of_known_ops_needs_no_run(tmp_path, measured, monkeypatch):
    """Ops count again in another model where all their kernel and what is near it is there; a new op must run."""
    _, _, _, places = measured
    cache = ProfileCache(tmp_path / "cache")
    how = Profiling("onnxruntime", {"core:0": places["core:0"]}, 3, cache=cache)
    long = build(convolutions(tmp_path / "long.onnx", 8), "core")
    first = profile(long, how)
    monkeypatch.setattr(module, "start_profiler", lambda *_args, **_more: pytest.fail("a worker was started"))
    longer = build(convolutions(tmp_path / "longer.onnx", 10), "core")
    words = set(op_contexts(long.graph))
    assert words.issuperset(op_contexts(longer.graph))
    found = profile(longer, how)
    assert found.devices[0].cached and found.devices[0].idle.whole is None
    assert len(found.devices[0].fused) == 10 and "did not run" in found.notes[0]
    middle = found.ops.index("conv5")
    assert found.devices[0].idle.ops[middle] == first.devices[0].idle.ops[first.ops.index("conv4")]
    wider = build(convolutions(tmp_path / "wider.onnx", 8, width=8), "core")
    assert words.isdisjoint(op_contexts(wider.graph))


def test_the_file_gives_the_costs(tmp_path, measured):
    """`--costs` with the file: the very times, sets of ops that stay together, what a call costs, and a note."""
    problem, found, _, _ = measured
    path = tmp_path / "p.json"
    save_profile(found, path)
    assert load_profile(path) == found
    model = problem.graph.source.path
    for objective, state in (("latency", "idle"), ("throughput", "loaded")):
        costed = build(model, "2xcore", ProblemOptions(objective=objective, costs=(str(path),)))
        times = np.array([[seconds or 0.0 for seconds in getattr(device, state).ops] for device in found.devices])
        alike = (costed.costs.op_seconds[:, 0] == costed.costs.op_seconds[:, 1]).all()
        for column, own in enumerate(times):
            wanted = times.mean(axis=0) if alike else own  # tests/core/test_apply_profile.py says when
            assert costed.costs.op_seconds[:, column].tolist() == pytest.approx(wanted.tolist())
            calls = [device.call_overhead for device in found.devices]
            overhead = costed.cluster.devices[column].call_overhead
            assert overhead == pytest.approx(np.mean(calls) if alike else calls[column])
        assert costed.n_blocks == 3
        assert any("stays together" in note for note in costed.warnings)
    alone = build(model, "this", ProblemOptions(costs=(f"cpu={_only(found, tmp_path)}",)))
    assert alone.costs.op_seconds[:, 0].tolist() == pytest.approx(list(found.devices[0].idle.ops))


def _only(found, folder: Path) -> Path:
    path = folder / "one.json"
    save_profile(found.model_copy(update={"devices": found.devices[:1]}), path)
    return path


def test_from_python(tmp_path, monkeypatch):
    """`pw.profile` measures, keeps what it measured in the user's cache folder, and writes the file."""
    pytest.importorskip("onnxruntime")
    monkeypatch.delenv("PLACEWISE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model, path = convolutions(tmp_path / "m.onnx", 1), tmp_path / "p.json"
    for again in (False, True):
        found = pw.profile(model, "core", path, repeats=3)
        assert load_profile(path) == found and found.devices[0].cached is again
    assert len(list((tmp_path / "cache" / "placewise" / "profiles").iterdir())) == 1
    afresh = pw.profile(model, "core", repeats=3, afresh=True)
    assert not afresh.devices[0].cached and afresh.devices[0].idle.whole != found.devices[0].idle.whole
    assert pw.profile(model, "core").devices[0].idle == afresh.devices[0].idle


def test_the_command(tmp_path):
    """`placewise profile` prints the whole model and the sum of its ops, and writes a file that `place` takes."""
    pytest.importorskip("onnxruntime")
    model, path = convolutions(tmp_path / "m.onnx", 1), tmp_path / "p.json"
    done = CliRunner().invoke(app, ["profile", model, "-d", "core", "--repeats", "3", "--no-cache", "-o", str(path)])
    assert done.exit_code == 0 and "whole model" in done.stdout and "2 ops share 1 kernels" in done.stdout, done.output
    placed = CliRunner().invoke(app, ["place", model, "-d", "core", "--costs", str(path), "--json"])
    assert placed.exit_code == 0, placed.output
    found = load_profile(path).devices[0]
    assert json.loads(placed.stdout)["value"] == pytest.approx(found.idle.whole - found.call_overhead)
    refused = CliRunner().invoke(app, ["profile", model, "-d", "core", "--runtime", "tpu"])
    assert refused.exit_code == 2 and "cannot be profiled" in refused.stderr


def test_profiles_that_do_not_fit_are_refused(tmp_path, measured):
    """Of another model, of devices that are not there, of several where one is meant, and broken files."""
    problem, found, _, _ = measured
    path, model = tmp_path / "p.json", problem.graph.source.path
    save_profile(found, path)
    other = convolutions(tmp_path / "other.onnx", 3)
    with pytest.raises(InputError, match="of another model"):
        build(other, "2xcore", ProblemOptions(costs=(str(path),)))
    with pytest.raises(InputError, match=r"times of core:0, core:1, which the cluster does not have"):
        build(model, "2xL4", ProblemOptions(costs=(str(path),)))
    with pytest.raises(InputError, match="several devices"):
        build(model, "this", ProblemOptions(costs=(f"cpu={path}",)))
    document = json.loads(path.read_text())
    document["devices"][0]["idle"]["ops"].pop()
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"p\.json: core:0: has 4 times for 5 ops"):
        load_profile(path)


def test_a_core_that_was_not_profiled_takes_the_times_of_its_like(tmp_path, measured):
    """Equal devices: the times of one are those of the other, and a note says so."""
    problem, found, _, _ = measured
    costed = build(problem.graph.source.path, "2xcore", ProblemOptions(costs=(str(_only(found, tmp_path)),)))
    assert (costed.costs.op_seconds[:, 0] == costed.costs.op_seconds[:, 1]).all()
    assert any("core:1 was not profiled" in note for note in costed.warnings)


def test_openvino_and_torch(tmp_path):
    """The other runtimes: a call takes what its ops do not; OpenVINO's fusion is seen, PyTorch has none."""
    pytest.importorskip("openvino")
    torch = pytest.importorskip("torch")
    layers = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 8)).eval()
    program = torch.export.export(layers, (torch.zeros(64, 256),))  # much longer than a call
    torch.export.save(program, tmp_path / "m.pt2")
    fused = {}
    for model, runtime in ((convolutions(tmp_path / "m.onnx"), "openvino"), (str(tmp_path / "m.pt2"), "torch")):
        found = profile(build(model, "core"), Profiling(runtime, repeats=3))
        device = found.devices[0]
        total, whole = sum(seconds or 0.0 for seconds in device.idle.ops), device.idle.whole
        assert whole is not None and device.call_overhead == pytest.approx(max(whole - total, 0.0), abs=1e-9)
        assert all(seconds is not None for seconds in device.idle.ops)
        fused[runtime] = {frozenset(found.ops[op] for op in ops) for ops in device.fused}
    assert {frozenset({"conv0", "relu0"}), frozenset({"conv1", "relu1"})} <= fused["openvino"]
    assert not fused["torch"]


def test_what_cannot_be_profiled(tmp_path):
    """No model file, another format, no such runtime, a device that the runtime does not have: a sentence each."""
    pytest.importorskip("onnxruntime")
    model = convolutions(tmp_path / "m.onnx", 1)
    cluster = Cluster(
        (Device("gpu", peak_flops={"float32": 1e12}),), (Link("gpu", "host", 1e9), Link("host", "gpu", 1e9))
    )
    with pytest.raises(InputError, match=r"cannot profile a model of .zoo."):
        profile(build("zoo:rnnlm-2", "core"), Profiling("onnxruntime"))
    with pytest.raises(InputError, match=r"torch cannot profile a model of 'onnx'"):
        profile(build(model, "core"), Profiling("torch"))
    with pytest.raises(InputError, match="'tpu' cannot be profiled"):
        profile(build(model, "core"), Profiling("tpu"))
    with pytest.raises(RunError, match="has no CUDAExecutionProvider"):
        profile(build(model, cluster), Profiling("onnxruntime", {"gpu": "cuda:0"}))

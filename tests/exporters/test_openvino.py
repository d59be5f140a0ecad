"""The export target openvino: IR and affinities, loaded again by OpenVINO alone, run, equal, and read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("openvino")

from locations import SEARCH_PATH
from onnx_files import make_node, model, saved, weight
from openvino_models import branching, classifier, job

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import ExportError
from placewise.exporters import openvino_process
from placewise.exporters.openvino import AFFINITIES, MODEL, OpenvinoExporter
from placewise.exporters.writing import export_placement
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.placement import Placement
from placewise.runtimes.equal import require_equal
from placewise.runtimes.inputs import fresh_inputs
from placewise.runtimes.openvino.runtime import OpenVino

_ALONE = """
import os, sys
os.environ["OPENVINO_HETERO_VISUALIZE"] = "1"
sys.path.insert(0, sys.argv[1])
import numpy as np
from load import load
assert not any(name.startswith("placewise") for name in sys.modules)
compiled = load()
given = np.load(sys.argv[2])
found = compiled({name: given[name] for name in given.files})
np.savez("out.npz", *[found[port] for port in compiled.outputs])
print(",".join(compiled.get_property("EXECUTION_DEVICES")))
"""


def exported(base, options=None):
    return export_placement(base.problem, base.placement, "openvino", options)


def write(export, folder):
    for name, content in export.exported.files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("make", [branching, classifier])
def test_the_files_run_elsewhere_and_give_the_same(make, tmp_path):
    """In a process that knows nothing of Placewise: the devices asked for, and the outputs of one device alone."""
    base = job(make(tmp_path))
    device = np.random.default_rng(3).integers(0, 2, base.problem.n_ops)
    base = base.on(Placement(device))
    made = exported(base, {"precision": "f32"})
    assert not made.projected and set(made.exported.files) == {MODEL, "model.bin", AFFINITIES, "load.py"}
    folder = tmp_path / "out"
    folder.mkdir()
    write(made, folder)
    inputs = fresh_inputs(base.problem.graph, 0)
    np.savez(tmp_path / "in.npz", **inputs)
    command = [sys.executable, "-c", _ALONE, str(folder), str(tmp_path / "in.npz")]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert set(said.stdout.strip().split(",")) == {"CPU", "CPU2"} and not said.stderr
    with OpenVino().prepare(base.alone(0)) as prepared, np.load(tmp_path / "out.npz") as found:
        wanted = prepared.run(inputs)
        require_equal(wanted, dict(zip(wanted, found.values(), strict=True)), who="the export")


def test_every_op_and_every_layer_once(tmp_path):
    """What is read back is what was asked, and a file that says too little or too much is refused."""
    base = job(classifier(tmp_path), [0, 0, 1, 1, 0, 1, 1])
    target, made = OpenvinoExporter(), exported(base).exported
    assert target.read_back(made, base.problem).tolist() == [0, 0, 1, 1, 0, 1, 1]
    said = json.loads(made.files[AFFINITIES])
    assert said["devices"] == {"cpu:0": "CPU", "cpu:1": "CPU2"} and set(said["ops"]) == set(base.problem.graph.ops.name)
    layers = [layer for own in said["ops"].values() for layer in own]
    assert sorted(layers) == sorted(said["affinity"])
    first, second = list(said["ops"])[:2]
    for change in (
        {"affinity": {**said["affinity"], "stranger": "CPU"}},
        {"affinity": {name: said["affinity"][name] for name in layers[1:]}},
        {"ops": {**said["ops"], second: [*said["ops"][second], *said["ops"][first]]}},
        {"affinity": {**said["affinity"], layers[0]: "CPU2"}},
    ):
        files = {**made.files, AFFINITIES: json.dumps({**said, **change})}
        with pytest.raises(ExportError):
            target.read_back(replace(made, files=files), base.problem)


def test_devices_get_openvinos_names(tmp_path):
    """A device's own name if OpenVINO has such, CPU for hosts, or what the user says; one device needs no HETERO."""
    path, speed = branching(tmp_path, layers=1), {"float32": 1e12}
    names = ("GPU.1", "npu", "cuda:0")
    links = [Link(*ends, 1e9) for name in names for ends in ((name, "host"), ("host", name))]
    cluster = Cluster(tuple(Device(name, peak_flops=speed, memory=1e9) for name in names), tuple(links))
    base = job(path, [0, 0, 1, 1, 2, 2], cluster=cluster, said=dict.fromkeys(cluster.names, "cores:0"))
    with pytest.raises(ExportError, match=r"OpenVINO 'cuda:0' is; .* export with --option devices=cuda:0=GPU.0"):
        exported(base)
    with pytest.raises(ExportError, match="no device 'tpu'"):
        exported(base, {"devices": "tpu=GPU"})
    with pytest.raises(ExportError, match="no precision 'f33'; say f32, f16 or bf16"):
        exported(base, {"devices": "cuda:0=GPU.0", "precision": "f33"})
    said = json.loads(exported(base, {"devices": "cuda:0=GPU.0"}).exported.files[AFFINITIES])
    assert said["target"] == "HETERO:GPU.1,NPU,GPU.0" and said["plugins"] == {}
    assert set(said["properties"]) == {"GPU.1", "GPU.0"}  # an NPU has one precision of its own
    alone = json.loads(exported(base.on(Placement(np.ones(6, np.int32)))).exported.files[AFFINITIES])
    assert alone["target"] == "NPU" and set(alone["affinity"].values()) == {"NPU"}


def test_the_precision_of_the_plan_is_that_of_every_device(tmp_path):
    """A float32 model stays float32 where the plugin would choose bfloat16; a plan in another precision says so."""
    base = job(branching(tmp_path))
    base = base.on(Placement(np.arange(base.problem.n_ops, dtype=np.int32) % 2))
    made = exported(base)
    said = json.loads(made.exported.files[AFFINITIES])
    assert said["properties"] == {name: {"INFERENCE_PRECISION_HINT": "f32"} for name in ("CPU", "CPU2")}
    half = build(tmp_path / "branching.xml", base.problem.cluster, ProblemOptions(dims={"batch": 3}, precision="fp16"))
    other = json.loads(export_placement(half, base.placement, "openvino").exported.files[AFFINITIES])
    assert other["properties"]["CPU2"] == {"INFERENCE_PRECISION_HINT": "f16"}
    folder = tmp_path / "out"
    folder.mkdir()
    write(made, folder)
    inputs = fresh_inputs(base.problem.graph, 0)
    np.savez(tmp_path / "in.npz", **inputs)
    fast = _ALONE.replace("load()", "load(core)").replace(
        "compiled =", 'import openvino as ov; core = ov.Core(); core.set_property("CPU", {_HINT: "bf16"}); compiled ='
    )
    command = [
        sys.executable,
        "-c",
        f"_HINT = 'INFERENCE_PRECISION_HINT'\n{fast}",
        str(folder),
        str(tmp_path / "in.npz"),
    ]
    subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    with OpenVino().prepare(base.alone(0)) as prepared, np.load(tmp_path / "out.npz") as found:
        wanted = prepared.run(inputs)
        require_equal(wanted, dict(zip(wanted, found.values(), strict=True)), who="the export")


def test_models_that_it_cannot_take(tmp_path):
    """A graph without a file, and a file that has gone."""
    base = job(branching(tmp_path))
    with pytest.raises(ExportError, match="this model is no file"):
        exported(replace(base, problem=base.problem.with_(graph=replace(base.problem.graph, source=None))))
    (tmp_path / "branching.xml").unlink()
    with pytest.raises(ExportError, match=r"branching\.xml: the model of this plan is not there"):
        exported(base)


def test_openvino_reads_files_in_a_process_with_limits(tmp_path, monkeypatch):
    """It is never loaded where the export is made, and one sentence says what exceeds the limits."""
    branching(tmp_path)
    code = (
        "import sys, placewise as pw\n"
        "plan = pw.place('branching.xml', 'cpu', objective='latency', dims={'x:0': 2})\n"
        "pw.export(plan, 'openvino', 'out')\n"
        "assert 'openvino' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": SEARCH_PATH}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, timeout=300, check=True)
    assert (tmp_path / "out" / MODEL).exists()
    monkeypatch.setattr(openvino_process, "MIN_SECONDS", 0.0)
    with pytest.raises(ExportError, match=r"branching\.xml: OpenVINO fails on this model: .*did not answer within"):
        exported(job(branching(tmp_path)))


@pytest.mark.parametrize("letter", ["\0", "\x01", "\ufffe"])
def test_a_name_that_no_xml_can_hold(letter, tmp_path):
    """The name and what to do, whether it is an op's or a tensor's."""
    for named in ({"op": f"a{letter}"}, {"value": f"a{letter}"}):
        with pytest.raises(
            ExportError, match="has a character that OpenVINO's IR, which is XML, cannot hold; rename it"
        ):
            exported(job(_called(tmp_path, **named)))


def test_ends_of_lines_in_a_name_are_written(tmp_path):
    """And so are tabs: XML can hold them."""
    assert exported(job(_called(tmp_path, op="a\nb", value="c\td"))).exported.files[MODEL]


def _called(folder, op="op", value="y"):
    nodes = [make_node("MatMul", ["x", "w"], [value], name=op), make_node("Relu", [value], ["z"], name="last")]
    return saved(folder, model(nodes, {"x": ("batch", 8)}, ["z"], [weight("w", 8, 8)]))

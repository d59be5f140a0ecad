"""The export targets onnx and onnx-annotated: files that ONNX Runtime alone loads, runs, and gives the same from."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import onnx_branches
import pytest
from onnx_branches import branching, of_newest_ir, written

from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import ExportError
from placewise.exporters.onnx import PIPELINE, SCRIPT, OnnxExporter
from placewise.exporters.onnx_annotated import FILE, SETTING, AnnotatedOnnxExporter
from placewise.exporters.writing import export_placement, write_files
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.runtimes.equal import require_equal
from placewise.runtimes.inputs import fresh_inputs

CORES = Cluster(tuple(Device(f"core:{n}", kind="cpu", peak_flops={"float32": 1e10}) for n in range(2)))
MIXED = Cluster(
    (Device("fast", peak_flops={"float32": 1e12}), Device("cpu:0", kind="cpu", peak_flops={"float32": 1e10})),
    (Link("fast", HOST, 1e9), Link(HOST, "fast", 1e9)),
)


def problem_of(folder, cluster=CORES, view="folded") -> Problem:
    return build(written(folder, branching()), cluster, ProblemOptions(view=view))


def alternating(problem: Problem) -> Placement:
    return Placement(np.arange(problem.n_ops) // 2 % 2)


@pytest.mark.parametrize("view", ["folded", "raw"])
def test_pieces_run_without_us_and_give_the_same(tmp_path, view):
    """The script runs the pieces one after the other in a process that has only onnxruntime and numpy."""
    pytest.importorskip("onnxruntime")
    problem = problem_of(tmp_path, view=view)
    made = export_placement(problem, alternating(problem), "onnx")
    assert not made.projected and not made.exported.notes
    write_files(made.exported, made.info, tmp_path / "out")
    inputs = fresh_inputs(problem.graph, 0)
    np.savez(tmp_path / "in.npz", **inputs)
    command = [
        sys.executable,
        "-I",
        str(tmp_path / "out" / SCRIPT),
        str(tmp_path / "in.npz"),
        str(tmp_path / "out.npz"),
    ]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300, check=True)
    with np.load(tmp_path / "out.npz") as found:
        require_equal(onnx_branches.reference(branching(), inputs), dict(found), who="the export")


@pytest.mark.parametrize(("target", "oldest"), [("onnx", 8), ("onnx-annotated", 10)])
def test_files_have_the_ir_version_that_they_need(tmp_path, target, oldest):
    """Not that of the onnx package which made the model: ONNX Runtime loads no model of a version unknown to it."""
    runtime = pytest.importorskip("onnxruntime")
    problem = build(written(tmp_path, of_newest_ir()), MIXED)
    made = export_placement(problem, alternating(problem), target).exported
    models = [content for name, content in made.files.items() if name.endswith(".onnx")]
    assert {onnx.ModelProto.FromString(content).ir_version for content in models} == {oldest}
    for content in models:
        onnx.checker.check_model(content, full_check=True)
        runtime.InferenceSession(content, providers=["CPUExecutionProvider"])


def test_every_node_is_in_one_file(tmp_path):
    """Every op is named once, beside the file that holds its node; a constant is in every file that needs it."""
    problem = problem_of(tmp_path, view="raw")
    placement = alternating(problem)
    made = export_placement(problem, placement, "onnx").exported
    said, where = json.loads(made.files[PIPELINE]), {}
    for piece in said["pieces"]:
        content = onnx.ModelProto.FromString(made.files[piece["file"]])
        onnx.checker.check_model(content, full_check=True)
        for node in content.graph.node:
            where.setdefault(node.name, []).append(piece["device"])
    home = placement.assignment(problem.graph, CORES)
    assert sorted(where) == sorted(problem.graph.ops.name) and len(where.pop("half")) == 2
    assert where == {name: [device] for name, device in home.items() if name != "half"}


def test_files_that_contradict_themselves_are_refused(tmp_path):
    """An op that is named twice, and a node that is in two files."""
    problem = problem_of(tmp_path)
    target, made = OnnxExporter(), export_placement(problem, alternating(problem), "onnx").exported
    said = json.loads(made.files[PIPELINE])
    first, second = said["pieces"][:2]
    twice = {**said, "everywhere": {first["ops"][0]: "core:1"}}
    with pytest.raises(ExportError, match="names the op 'a' twice"):
        target.read_back(replace(made, files={**made.files, PIPELINE: json.dumps(twice)}), problem)
    with pytest.raises(ExportError, match=r"is not in piece-.* alone"):
        target.read_back(replace(made, files={**made.files, second["file"]: made.files[first["file"]]}), problem)


def test_weights_in_other_files_stay_there(tmp_path):
    """Pieces point at the weights' own file, and a note says that it belongs beside them."""
    model = branching()
    onnx.save(model, tmp_path / "large.onnx", save_as_external_data=True, location="large.bin", size_threshold=1000)
    problem = build(str(tmp_path / "large.onnx"), CORES)
    made = export_placement(problem, alternating(problem), "onnx").exported
    assert made.notes == ("the weights stay in large.bin: put it beside the exported files",)
    assert all(len(content) < 5000 for content in made.files.values())


def test_an_annotation_per_node(tmp_path):
    """ONNX Runtime takes the annotated model with the setting that it names; what was folded goes with its op."""
    problem = problem_of(tmp_path, MIXED)
    placement = alternating(problem)
    made = export_placement(problem, placement, "onnx-annotated").exported
    model = onnx.ModelProto.FromString(made.files[FILE])
    setting = {entry.key: entry.value for entry in model.metadata_props}[SETTING]
    assert setting == "gpu(=fast); cpu(=cpu:0)" and setting in made.notes[0]
    assert len(model.graph.node) == len(branching().graph.node)
    assert all([entry.key for entry in node.metadata_props] == ["layer_ann"] for node in model.graph.node)
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry(SETTING, setting)
    session = onnxruntime.InferenceSession(made.files[FILE], options, providers=["CPUExecutionProvider"])
    inputs = fresh_inputs(problem.graph, 0)
    found = dict(zip(("y", "z"), session.run(["y", "z"], inputs), strict=True))
    require_equal(onnx_branches.reference(branching(), inputs), found, who="the annotated model")


def test_two_processors_are_no_annotation(tmp_path):
    """One session has one processor: two cores are refused, with the target that can say them."""
    problem = problem_of(tmp_path)
    with pytest.raises(ExportError, match=r"uses core:0, core:1; export to 'onnx'"):
        export_placement(problem, alternating(problem), "onnx-annotated")


def test_annotations_that_contradict_each_other_are_refused(tmp_path):
    """A folded node that is annotated with another device than its op."""
    problem = problem_of(tmp_path, MIXED)
    made = export_placement(problem, alternating(problem), "onnx-annotated").exported
    model = onnx.ModelProto.FromString(made.files[FILE])
    op = next(op for op in range(problem.n_ops) if len(problem.graph.ops.origin[op]) > 1)
    folded = model.graph.node[problem.graph.ops.origin[op][1]].metadata_props[0]
    folded.value = "fast" if folded.value == "cpu:0" else "cpu:0"
    with pytest.raises(ExportError, match="is annotated with cpu:0, fast"):
        AnnotatedOnnxExporter().read_back(replace(made, files={FILE: model.SerializeToString()}), problem)


def test_other_models_are_refused():
    """A workload of the zoo has no file to cut."""
    problem = build("zoo:rnnlm-2", CORES)
    with pytest.raises(ExportError, match="not an ONNX file that can be cut"):
        export_placement(problem, Placement(np.zeros(problem.n_ops)), "onnx")

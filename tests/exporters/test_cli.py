"""placewise export from the outside: files, projected plans, exit codes, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run
from export_models import on, stack_graph, stack_problem
from locations import ROOT
from tensorflow_files import F, graph, node, placeholder, saved

import placewise as pw
from placewise.errors import ExportError, InternalError
from placewise.exporters import writing
from placewise.exporters.base import Exported, ExportOption
from placewise.exporters.registry import complete_options, create_exporter, names
from placewise.exporters.vllm import VllmExporter
from placewise.exporters.writing import describe_projection, export_placement, result_of, write_files
from placewise.files.plan_file import load_plan
from placewise.model.placement import Placement

DOCUMENT = ROOT / "docs" / "export.md"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A TensorFlow graph of a few ops in two numbered layers with a softmax each."""
    nodes, last = [placeholder("x", (64, 64))], "x"
    for layer in range(2):
        for kind in ("Relu", "Softmax", "Tanh"):
            nodes.append(node(f"m/layers/{layer}/{kind.lower()}", kind, last, T=F))
            last = nodes[-1].name
    return saved(tmp_path, graph(*nodes))


@pytest.fixture
def plan(model: Path, tmp_path: Path) -> Path:
    """A plan in which the first op of the first layer stands alone on cuda:1, beside the second layer."""
    path = tmp_path / "plan.json"
    pw.place(str(model), "2xL4", objective="throughput", contiguous=False, placer="single").save(path)
    document = json.loads(path.read_text())
    for op in document["assignment"]:
        document["assignment"][op] = f"cuda:{int(op == 'm/layers/0/relu' or 'layers/1' in op)}"
    path.write_text(json.dumps(document))
    return path


def test_a_projected_plan_is_written_beside_the_files(plan: Path, model: Path, tmp_path: Path) -> None:
    """One op of the first layer stands alone: a stage has whole layers, the loss is told, the plan can be checked."""
    script = tmp_path / "serve.sh"
    done = run("export", plan, "--to", "vllm", "-o", script)
    assert done.stdout == f"wrote {script}\nwrote {script}.plan.json\n"
    assert "vllm cannot express anything but whole layers" in done.stderr and "1 of 6 ops" in done.stderr
    assert "VLLM_PP_LAYER_PARTITION=" in script.read_text()
    said = load_plan(f"{script}.plan.json")
    homes = [{home for op, home in said.assignment.items() if f"layers/{layer}/" in op} for layer in (0, 1)]
    assert [len(home) for home in homes] == [1, 1] and "projected for the target vllm" in said.notes
    priced = json.loads(run("simulate", model, f"{script}.plan.json", "--json").stdout)
    assert priced["value"] == pytest.approx(said.value)
    document = json.loads(run("export", plan, "--to", "vllm", "--json").stdout)
    assert document["projected"] and document["value"] == pytest.approx(said.value)
    assert document["loss"] == pytest.approx(said.value / document["asked"] - 1) and document["moved"] == 1


def test_text_goes_to_standard_output_and_what_is_binary_does_not(plan: Path) -> None:
    """Without -o, a script is printed alone; a .pb asks for a file."""
    assert run("export", plan, "--to", "dot", "-q").stdout.startswith("digraph plan {")
    assert "name the output with -o" in run("export", plan, "--to", "tensorflow", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "nothing"], "there is no target 'nothing'; choose from deepspeed, "),
        (["--to", "dot", "--option", "most=x"], "the option 'most' of 'dot' is 'x'"),
        (["--to", "dot", "--option", "least=1"], "has no option 'least'; it has most"),
        (["--to", "vllm", "--option", "a=1"], "has no option 'a'; it has none"),
        ([], "write placewise export PLAN --to TARGET"),
        (["--to", "dot", "-o", "/nowhere/plan.dot"], "cannot be written"),
        (["--to", "dot", "--model", "zoo:inception-v3"], "this plan was made for another model"),
    ],
)
def test_bad_input(arguments: list[str], words: str, plan: Path) -> None:
    """A sentence with the remedy, and exit code 2."""
    assert words in run("export", plan, *arguments, code=2).stderr


def test_a_model_that_has_changed_is_refused(plan: Path, model: Path) -> None:
    """Other bytes with the same structure: refused, unless --model says that this is meant."""
    model.write_bytes(model.read_bytes() + graph(node("x/more", "NoOp")).SerializeToString())
    assert "has changed since the plan was made" in run("export", plan, "--to", "dot", code=2).stderr
    assert run("export", plan, "--to", "dot", "--model", model).stdout
    model.unlink()
    assert "which is not there" in run("export", plan, "--to", "dot", code=2).stderr


def test_what_breaks_a_rule_is_not_written_without_force(plan: Path, tmp_path: Path) -> None:
    """Too little memory for any placement: exit code 3 and no file, then a file with --force."""
    script = tmp_path / "serve.sh"
    arguments = ("export", plan, "--to", "vllm", "-o", script, "--headroom", "99.99999%")
    done = run(*arguments, code=3)
    assert "✗ memory" in done.stderr and "nothing is written" in done.stderr and not script.exists()
    run(*arguments, "--force")
    assert script.exists()


def test_pins_hold_for_stages_too(plan: Path) -> None:
    """Two ops of one layer pinned apart: no cut between layers is left, which is told."""
    pins = ("--pin", "layers/0/relu=cuda:1", "--pin", "layers/0/tanh=cuda:0")
    assert "no cut between layers lets" in run("export", plan, "--to", "vllm", *pins, code=2).stderr


def test_python_writes_the_same(plan: Path, tmp_path: Path) -> None:
    """pw.export_plan takes a plan or its file."""
    made = pw.export(plan, "vllm", tmp_path / "python.sh")
    assert made.projected and (tmp_path / "python.sh.plan.json").exists()
    assert (tmp_path / "python.sh").read_text() == run("export", plan, "--to", "vllm", "-q").stdout
    with pytest.raises(ExportError, match="no target"):
        pw.export(plan, "nothing")


def test_files_that_say_something_else_are_our_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter whose file does not say its placement is found out before anything is handed out."""

    class Wrong(VllmExporter):
        def export(self, *arguments: object) -> Exported:
            made = super().export(*arguments)  # type: ignore[arg-type]
            return Exported(made.files, Placement.on(1, len(made.placement)))

    monkeypatch.setattr(writing, "create_exporter", lambda name: Wrong())
    problem = stack_problem(stack_graph(3), cpu=False)
    with pytest.raises(InternalError, match="put 8 ops on a wrong device, the first of them 'embed'"):
        export_placement(problem, on(problem, {}), "vllm")


def test_several_files_go_into_a_folder(tmp_path: Path) -> None:
    """A target without a suffix writes a folder, with folders in it; a file of that name is in the way."""
    info = create_exporter("vllm").info
    several = type(info)("many", "files", "nobody", "text only", "nothing")
    exported = Exported({"a.txt": "a", "parts/b.bin": b"b"}, Placement.on(0, 1))
    written = write_files(exported, several, tmp_path / "out")
    assert [path.read_bytes() for path in written] == [b"a", b"b"] and written[1].parent.name == "parts"
    (tmp_path / "file").write_text("")
    with pytest.raises(pw.PlacewiseError, match="cannot be made"):
        write_files(exported, several, tmp_path / "file")


def test_sentences_of_a_loss() -> None:
    """Slower, faster, as fast, and nothing where the target says all."""
    problem = stack_problem(stack_graph(4), cpu=False)
    whole = {scope: "cuda:1" for scope in problem.graph.ops.scope if scope[7:8] in "23"} | {"embed": "cuda:0"}
    assert describe_projection(export_placement(problem, on(problem, whole), "vllm"), problem.n_ops) == ""
    cut = export_placement(problem, on(problem, whole | {"layers.2.attn": "cuda:0"}), "vllm")
    moves = (
        "vllm cannot express anything but whole layers, in order, on accelerators; in the nearest placement that it "
        "can, 1 of 10 ops are on another"
    )
    assert describe_projection(cut, problem.n_ops) == f"{moves} device, 16.7% faster: 5 s instead of 6 s"
    late = on(problem, whole | {"layers.1.mlp": "cuda:1"})
    assert describe_projection(export_placement(problem, late, "vllm"), problem.n_ops).endswith(
        "faster: 5 s instead of 6 s"
    )
    result = result_of(cut, problem)
    assert result.value == cut.said.value and result.lower_bound <= result.value


def test_options_have_types() -> None:
    """A number is no truth and no text; what is not given has its default."""
    info = create_exporter("trace").info
    assert complete_options(info, {}) == {"samples": 4} and complete_options(info, {"samples": 2}) == {"samples": 2}
    for wrong in ("2", 2.5, True):
        with pytest.raises(ExportError, match="samples"):
            complete_options(info, {"samples": wrong})
    assert isinstance(info.options["samples"], ExportOption)


def test_the_document_and_the_list_have_every_target() -> None:
    """docs/export.md has the rows that the code says, and --list names them all."""
    lines = DOCUMENT.read_text().splitlines()
    first = lines.index("|---|---|---|---|---|---|") + 1
    rows, infos = lines[first : first + len(names())], [create_exporter(name).info for name in names()]
    assert rows == [
        f"| `{i.name}` | {i.writes} | {i.loaded_by} | {i.verified} | {i.takes} | {i.cannot_say} |" for i in infos
    ]
    listed = run("export", "--list").stdout
    assert all(info.name in listed and info.verified in listed for info in infos)
    assert [entry["name"] for entry in json.loads(run("export", "--list", "--json").stdout)] == list(names())

"""Archives of torch.export whose loading would run code: nothing of a file runs unless the user trusts it."""

from __future__ import annotations

import io
import json
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from locations import DATA
from soak import SOAKS

import placewise as pw
from placewise.errors import RunError

torch = pytest.importorskip("torch")

from placewise.readers.torch import loading  # noqa: E402

PROGRAM = DATA / "torch" / "layered.pt2"
Members = dict[str, bytes]


class Runs:
    """Unpickling this writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self.marker)!r}, 'w').close()",)


def saved(marker: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(Runs(marker), buffer)
    return buffer.getvalue()


def change(members: Members, name: str, edit: Callable[[Any], None]) -> None:
    document = json.loads(members[name])
    edit(document)
    members[name] = json.dumps(document).encode()


def program(edit: Callable[[Any, Path], Any]) -> Callable[[Members, Path], None]:
    """An attack by the description of the program."""
    return lambda members, marker: change(members, "models/model.json", lambda document: edit(document, marker))


def pickled_weight(members: Members, marker: Path) -> None:
    members["data/weights/own"] = saved(marker)
    change(members, "data/weights/model_weights_config.json",
           lambda document: document["config"]["scale"].update(path_name="own", use_pickle=True))  # fmt: skip


def pickled_constant(members: Members, marker: Path) -> None:
    members["data/constants/tensor_0"] = saved(marker)
    change(members, "data/constants/model_constants_config.json",
           lambda document: document["config"]["shift"].update(use_pickle=True))  # fmt: skip


def opaque_constant(members: Members, marker: Path) -> None:
    members["data/constants/opaque_obj_0"] = pickle.dumps(Runs(marker))
    change(members, "data/constants/model_constants_config.json",
           lambda document: document["config"]["shift"].update(path_name="opaque_obj_0", use_pickle=True))  # fmt: skip


def old_weights(members: Members, marker: Path) -> None:
    members["data/weights/model.pt"] = saved(marker)


def old_constants(members: Members, marker: Path) -> None:
    members["data/constants/model.pt"] = saved(marker)


def sample_inputs(members: Members, marker: Path) -> None:
    members["data/sample_inputs/model.pt"] = saved(marker)


def touch(marker: Path) -> str:
    return f"__import__('os').close(__import__('os').open({str(marker)!r},66))"


def size(document: Any, marker: Path) -> None:
    document["graph_module"]["graph"]["tensor_values"]["ids"]["sizes"][0]["as_expr"]["expr_str"] = touch(marker)


def rename(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {rename(key, old, new): rename(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [rename(item, old, new) for item in value]
    return new if value == old else value


def input_name(document: Any, marker: Path) -> None:
    """As the default of the last argument."""
    document["graph_module"].update(rename(document["graph_module"], "twice", f"twice={touch(marker)}"))


def module_of_a_default(document: Any, marker: Path) -> None:
    (marker.parent / "placewise_marker.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    context = {"default_factory_module": "placewise_marker", "default_factory_name": "x", "dict_context": []}
    spec = {"type": "collections.defaultdict", "context": context, "children_spec": []}
    document["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = json.dumps([1, spec])


ATTACKS: dict[str, tuple[Callable[[Members, Path], None], str]] = {
    "sample inputs": (sample_inputs, ""),
    "a weight": (pickled_weight, "pickled object"),
    "a constant": (pickled_constant, "pickled object"),
    "an opaque object": (opaque_constant, "pickled object"),
    "weights of PyTorch 2.8": (old_weights, "more than tensors"),
    "constants of PyTorch 2.8": (old_constants, "more than tensors"),
    "a size": (program(size), "more than arithmetic"),
    "the name of an input": (program(input_name), "source code"),
    "a default of an input": (program(module_of_a_default), ""),
}


def archive(path: Path, attack: Callable[[Members, Path], None], marker: Path) -> str:
    with zipfile.ZipFile(PROGRAM) as original:
        members = {info.filename.partition("/")[2]: original.read(info) for info in original.infolist()}
    attack(members, marker)
    with torch.no_grad(), warnings.catch_warnings():
        writer = torch._C.PyTorchFileWriter(str(path))
        for name, data in members.items():
            if not name.startswith(".data"):
                writer.write_record(name, data, len(data))
        writer.write_end_of_file()
    return str(path)


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.filterwarnings("ignore")
def test_nothing_of_the_file_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded or refused, the marker is not written; PyTorch's own loader writes it, so that the attack is one."""
    attack, refusal = ATTACKS[name]
    marker = tmp_path / "marker"
    path = archive(tmp_path / "model.pt2", attack, marker)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    if refusal:
        with pytest.raises(loading.UnsafeProgram, match=refusal):
            loading.load_program(path)
    else:
        assert len(loading.load_program(path).graph.nodes) > 20
    assert not marker.exists()
    with suppress(Exception):
        loading.load_program(path, trust_model=True)
    assert marker.exists()


@pytest.mark.parametrize("target", [
    "torch.os.system", "torch.load", "torch.hub.load", "_operator.methodcaller", "_operator.call", "math.sqrt",
    "torch.ops.load_library", "torch.ops.aten.add", "torch.ops.aten.add.__class__", "torch.ops.aten.save.default",
    "torch.ops.aten.from_file.default", "torch.ops.c10d.send.default", "torch.ops.higher_order.call_torchbind",
    "torch.ops.higher_order.triton_kernel_wrapper_mutation", "torch.ops.prim.CreateObject.default", "#executorch:x",
    "torch._C._functorch.x", "x", "torch.ops.aten.no_such.Tensor",
])  # fmt: skip
def test_only_operators_are_called(target: str, tmp_path: Path) -> None:
    """A function of PyTorch, of Python's modules, or an operator that opens files is refused by its name."""

    def call(document: Any, marker: Path) -> None:
        document["graph_module"]["graph"]["nodes"][0]["target"] = target

    with pytest.raises(loading.UnsafeProgram, match="it calls"):
        loading.load_program(archive(tmp_path / "model.pt2", program(call), tmp_path / "marker"))


@pytest.mark.parametrize("table", ["tensor_values", "as_string_to_argument", "k"])
@pytest.mark.parametrize("operator", ["torch.os.system", "torch.ops.aten.from_file.default"])
def test_tables_hide_no_operator(operator: str, table: str, tmp_path: Path) -> None:
    """Keys of an argument's own table may be called as the tables are whose keys mean nothing."""

    def pass_on(document: Any, marker: Path) -> None:
        argument = {"as_string_to_argument": {table: {"as_operator": operator}}}
        inputs = document["graph_module"]["graph"]["nodes"][0]["inputs"]
        inputs.append({"name": "", "arg": argument, "kind": 1})

    with pytest.raises(loading.UnsafeProgram, match="it calls"):
        loading.load_program(archive(tmp_path / "model.pt2", program(pass_on), tmp_path / "marker"))


@pytest.mark.parametrize("text", [
    "exec('1')", "Symbol('s0').x", "[x for x in (1,)]", "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
    "Pow(Integer(9), Integer(1000000000))", "lambda: 1", "Integer('9' * 10)", "Symbol('s9999999999')", "S", "(1).real",
    "Symbol('s0', **{'x': 1})", "f'{s0}'", "Integer(1) if s0 else s1", "Symbol('a b')", "1e400", "s0.x", "open(s0)", 3,
])  # fmt: skip
def test_sizes_are_arithmetic(text: Any) -> None:
    """Nothing that sympy would evaluate as Python, and no number that never ends."""
    with pytest.raises(loading.UnsafeProgram):
        loading.plain_expression(text)


@pytest.mark.parametrize("text", [
    "Symbol('s77', positive=True, integer=True)", "Add(Integer(-1), Mul(Integer(2), Symbol('u0')))",
    "FloorDiv(Symbol('s0', integer=True), Integer(2))", "Pow(Symbol('s0'), Integer(2))", "Float('1.5', precision=53)",
    "Max(Integer(1), u0)",
])  # fmt: skip
def test_what_torch_export_writes_passes(text: str) -> None:
    """Sizes keep their meaning."""
    assert eval(text, {}, _Recorder()) == eval(loading.plain_expression(text), {}, _Recorder())


class _Recorder(dict[str, Any]):
    """Names become themselves, calls what is called with what."""

    def __missing__(self, name: str) -> Any:
        return (lambda *args, **settings: (name, args, settings)) if name[0].isupper() else name


def test_guards_and_metadata_are_not_kept(tmp_path: Path) -> None:
    """What `module()` would execute is left out; compiled libraries in the archive are not opened."""

    def guard(document: Any, marker: Path) -> None:
        document["guards_code"] = ["x"]
        document["graph_module"]["metadata"] = {"custom": "{}"}

    def attack(members: Members, marker: Path) -> None:
        program(guard)(members, marker)
        members["data/aotinductor/model/library.so"] = b"\x7fELF"

    loaded = loading.load_program(archive(tmp_path / "model.pt2", attack, tmp_path / "marker"))
    assert loaded._guards_code == [] and "custom" not in loaded.graph_module.meta
    assert [each.shape for each in loading.sample_inputs(loaded)] == [(4, 5)]


def test_running_and_profiling_refuse_or_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run` and `profile` say which flag loads the file all the same, and that flag says what it does."""
    monkeypatch.delenv("PLACEWISE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    marker = tmp_path / "marker"
    path = archive(tmp_path / "model.pt2", pickled_constant, marker)
    plan = pw.place(path, "2xcore", dims={"batch": 4}, placer="heft")
    with pytest.raises(RunError, match=r"pickled object.*--trust-model if you trust"):
        pw.run(plan)
    if SOAKS:
        with pytest.raises(RunError, match=r"pickled object.*--trust-model if you trust"):
            pw.profile(path, "core", dims={"batch": 4})
    assert not marker.exists() and not caplog.records
    with suppress(RunError):
        pw.profile(path, "core", dims={"batch": 4}, trust_model=True)
    assert marker.exists() and "code that the file holds runs with your rights" in caplog.text

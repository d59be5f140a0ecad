"""Paths that no honest user gives, to everything that reads a file: one sentence, at once, and no traceback."""

from __future__ import annotations

import ast
import os
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from onnx.helper import make_node
from onnx_files import model, saved, weight
from typer.testing import CliRunner

from placewise.catalog import read_cluster
from placewise.cli.app import app
from placewise.core.build import build, build_for_plan
from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.errors import InputError
from placewise.files.corpus_file import load_corpus
from placewise.files.plan_file import find_model
from placewise.files.policy_file import load_header
from placewise.readers.huggingface.settings import read_settings
from placewise.readers.onnx import read_onnx
from placewise.readers.openvino import read_openvino
from placewise.readers.pipedream import read_pipedream
from placewise.readers.tensorflow import read_tensorflow
from placewise.readers.torch.file import read_pt2
from placewise.readers.workload import read_workload
from placewise.runtimes.inputs import load_inputs

pytestmark = pytest.mark.skipif(os.name == "nt", reason="files of POSIX")

READERS: dict[str, Callable[[Path], object]] = {
    "model": lambda path: open_model(str(path)),
    "plan": find_model,
    "start": lambda path: build_for_plan("x.onnx", path),
    "cluster": read_cluster,
    "costs": lambda path: build("zoo:random-branchy", "cpu", ProblemOptions(costs=(str(path),))),
    "costs of a device": lambda path: build("zoo:random-branchy", "cpu", ProblemOptions(costs=(f"cpu={path}",))),
    "corpus": load_corpus,
    "policy": lambda path: load_header(path),
    "inputs": load_inputs,
    **{read.__name__: read for read in (  # type: ignore[attr-defined]
        read_onnx, read_openvino, read_tensorflow, read_pt2, read_settings, read_workload, read_pipedream,
    )},
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Whoever waits for a pipe is woken, and fails."""

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 300)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def odd_paths(folder: Path) -> dict[str, Path]:
    """Paths by what is odd about them."""
    os.mkfifo(folder / "pipe")
    (folder / "empty").write_bytes(b"")
    (folder / "blank").write_bytes(b" \r\n\t")
    (folder / "wide").write_bytes('{"format": "placewise-plan"}'.encode("utf-16"))
    (folder / "deep").write_bytes(b'{"a":' * 100_000)
    (folder / "digits").write_bytes(b'{"a": ' + b"9" * 5_000 + b"}")
    (folder / "gone").symlink_to(folder / "nowhere")
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "folder").mkdir()
    (folder / "closed").write_bytes(b"{}")
    (folder / "closed").chmod(0)
    made = {name: folder / name for name in os.listdir(folder)}
    beyond = {
        "endless": Path("/dev/zero"),
        "nothing": Path("/dev/null"),
        "absent": folder / "absent",
        "inside": folder / "empty" / "x",
        "long": folder / ("x" * 10_000),
        "zero": folder / "a\0b",
        "halves": folder / "a\udc80",
        "escape": folder / "\x1b[2J\n",
    }
    return made | beyond


@pytest.mark.parametrize("name", READERS)
def test_odd_paths(tmp_path: Path, name: str) -> None:
    """Pipes, devices, folders, links to nowhere, closed and empty files, names that no file can have: refused."""
    for what, path in odd_paths(tmp_path).items():
        with pytest.raises(InputError) as caught:
            READERS[name](path)
        said = str(caught.value)
        assert said.isprintable() and len(said) < 1_300, what
        assert "Errno" not in said and "Traceback" not in said, said


@pytest.mark.parametrize(
    "text", ["seed = " + "9" * 5_000, "seed = " + "[" * 100_000, "seed = 1e999999999", "\ufeffseed = 1"]
)
def test_toml_that_python_does_not_take(tmp_path: Path, text: str) -> None:
    """Numbers of thousands of digits, brackets without end: what the library raises for them is not always its own."""
    path = tmp_path / "file.toml"
    path.write_text(text, "utf-8")
    for read in (load_corpus, read_cluster):
        with pytest.raises(InputError, match=r"file\.toml"):
            read(path)


def test_numbers_of_thousands_of_digits_in_a_line() -> None:
    """The same in memory by device."""
    with pytest.raises(InputError, match="not JSON"):
        read_cluster('{"cuda:0": ' + "9" * 5_000 + "}")


def test_inputs_whose_headers_are_no_headers(tmp_path: Path) -> None:
    """Brackets that nobody closes, a shape beyond any memory, objects: one sentence."""
    start = "{'descr': '<f4', 'fortran_order': False, 'shape': ("
    for header in (start, start + "1000000000, 1000000000), }", start.replace("<f4", "|O") + "1,), }"):
        with zipfile.ZipFile(tmp_path / "inputs.npz", "w") as archive:
            archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        with pytest.raises(InputError, match="file of arrays"):
            load_inputs(tmp_path / "inputs.npz")


HOSTILE = (
    "\x1b[2J\x1b[31mred", 'a"); import os; os.abort() #', "'''", '"""', "\\", "a\nb\rc", "../../etc/passwd",
    "x" * 10_000, "</script><script>alert(1)</script>", "%s%n", "{x}", "\u202eexe", "nul\x00x", "-rf", "$(abort)",
    "`abort`", "=cmd|calc", "[red]m[/]",
)  # fmt: skip


def test_hostile_names_are_only_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through every command that shows or writes them: nothing is obeyed by a terminal, a page or a script."""
    monkeypatch.chdir(tmp_path)
    values = ["x", *(f"{name}:{row}" for row, name in enumerate(HOSTILE))]
    nodes = [
        make_node("MatMul", [values[row], f"w{name}"], [values[row + 1]], name) for row, name in enumerate(HOSTILE)
    ]
    saved(tmp_path, model(nodes, {"x": [2, 16]}, values[-1:], [weight(f"w{name}", 16, 16) for name in HOSTILE]))
    search = ("--placer", "etf", "-d", "2xL4,cpu")
    for said in (
        ("inspect", "model.onnx"),
        ("place", "model.onnx", *search, "-o", "plan.json"),
        ("simulate", "model.onnx", "plan.json"),
        ("explain", "plan.json", HOSTILE[0]),
        ("explain", "plan.json", "\x1b[2J\n"),
        ("compare", "model.onnx", "-d", "2xL4,cpu", "--placers", "single,etf", "--format", "markdown"),
        ("report", "plan.json", "-o", "page.html"),
        ("export", "plan.json", "--to", "onnx", "-o", "pieces"),
        ("export", "plan.json", "--to", "dot", "-o", "graph.dot"),
        ("place", "model.onnx", *search, "--pin", "\x1b[2J=cpu"),
        ("place", "\x1b[2J.onnx", *search),
        ("devices", "\x1b[2J"),
    ):
        done = CliRunner().invoke(app, list(said))
        assert done.exit_code in (0, 2) and isinstance(done.exception, SystemExit | None), said
        assert done.exit_code == 0 or said[-1].startswith("\x1b") or "\x1b" in said[1], done.output
        assert done.output.replace("\n", "").isprintable(), said
    assert "<script>alert" not in (tmp_path / "page.html").read_text("utf-8")
    ast.parse((tmp_path / "pieces" / "run.py").read_text("utf-8"))

"""A configuration is traced once: later the cache has its graph, for as long as nothing changes that matters."""

from __future__ import annotations

import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_configs import write_config
from pydantic_core import from_json
from soak import later

from placewise.core import traced_models
from placewise.core.open_model import open_model
from placewise.core.options import ProblemOptions
from placewise.errors import InputError
from placewise.files.cache_folder import GRAPHS, open_cache
from placewise.files.graph_file import encode_graph
from placewise.readers.base import ImportedModel
from placewise.readers.run_dims import find_run_dims

pytest.importorskip("torch", reason="configurations are built with PyTorch")
pytest.importorskip("transformers", reason="configurations are built with transformers")

DIMS = {"prompt": 4, "tokens": 2}
WHOLE = {"batch": 1, "length": 8}
EXACT = ProblemOptions(dims=WHOLE, dtype="float32")
"""All that a trace of BERT depends on: nothing is left to defaults."""
Traces = list[str]


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traces:
    """The sources that were really traced, with a cache of their own."""
    monkeypatch.delenv("PLACEWISE_NO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    seen, read = Traces(), traced_models.read_huggingface

    def traced(source: Any, **options: Any) -> ImportedModel:
        seen.append(str(source))
        return read(source, **options)

    monkeypatch.setattr(traced_models, "read_huggingface", traced)
    return seen


def entries() -> list[Path]:
    folder = open_cache(GRAPHS)
    assert folder is not None
    return sorted(folder.iterdir())


def assert_equal(one: ImportedModel, other: ImportedModel) -> None:
    """Every column, the header, the warnings and the modules are the same."""
    (head, columns), (other_head, other_columns) = encode_graph(one.graph), encode_graph(other.graph)
    assert head == other_head and one.warnings == other.warnings and dict(one.modules) == dict(other.modules)
    assert {name: column.tolist() for name, column in columns.items()} == {
        name: column.tolist() for name, column in other_columns.items()
    }


@pytest.mark.usefixtures("own_traces")
@pytest.mark.parametrize("kind", ["mixtral", "bert"])
def test_the_second_reading_traces_nothing(kind: str, traces: Traces, tmp_path: Path) -> None:
    """And gives what the first gave, in whatever view."""
    path = write_config(tmp_path, kind)
    options = ProblemOptions(dims=WHOLE if kind == "bert" else DIMS, view="raw")
    first, second = open_model(path, options), open_model(path, options)
    assert traces == [str(path)]
    assert_equal(first, second)
    assert_equal(open_model(path, ProblemOptions(dims=options.dims, view="raw", cache=False)), second)


def test_a_plan_finds_the_trace_that_it_was_made_of(traces: Traces, tmp_path: Path) -> None:
    """A plan names every dimension and the element type, also those that were defaults when it was made."""
    path = write_config(tmp_path, "llama")
    graph = open_model(path, ProblemOptions(dims=DIMS)).graph
    assert graph.source is not None and graph.source.options["dims"].keys() > DIMS.keys()
    recorded = ProblemOptions(dims=graph.source.options["dims"], dtype=graph.source.options["dtype"])
    assert open_model(path, recorded).graph.digest() == graph.digest() and len(traces) == 1
    open_model(path, ProblemOptions(dims={**DIMS, "batch": 2}))
    assert len(traces) == 2


def test_a_copy_of_a_configuration_keeps_its_own_path(traces: Traces, tmp_path: Path) -> None:
    """Equal content is traced once, but a plan must find the file that its user named."""
    (tmp_path / "copy").mkdir()
    one, other = write_config(tmp_path, "bert"), write_config(tmp_path / "copy", "bert")
    sources = [open_model(path).graph.source for path in (one, other)]
    assert [source.path for source in sources if source] == [str(one), str(other)] and len(traces) == 1


def test_whatever_changes_the_graph_is_traced(traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes, element type, training, the configuration, the libraries, the reader's own code."""
    path = write_config(tmp_path, "llama")
    prompt = {"prompt": 4, "tokens": 0}
    for options in (
        ProblemOptions(dims=prompt), ProblemOptions(dims={**prompt, "batch": 2}),
        ProblemOptions(dims=prompt, dtype="float64"), ProblemOptions(graph="training", dims={"length": 4}),
    ):  # fmt: skip
        open_model(path, options)
    assert len(traces) == 4
    open_model(write_config(tmp_path, "llama", num_hidden_layers=2), ProblemOptions(dims=prompt))
    assert len(traces) == 5
    monkeypatch.setattr(traced_models, "_reader_digest", lambda: "another")
    open_model(path, ProblemOptions(dims=prompt))
    monkeypatch.setattr(traced_models, "_library_versions", lambda: ("torch 0",))
    open_model(path, ProblemOptions(dims=prompt))
    assert len(traces) == 7


def test_no_cache_neither_reads_nor_writes(traces: Traces, tmp_path: Path) -> None:
    """By the option, and where the libraries cannot be told from others."""
    path, options = write_config(tmp_path, "bert"), ProblemOptions(cache=False)
    open_model(path, options)
    assert not entries()
    open_model(path)
    open_model(path, options)
    assert len(traces) == 3


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def of_another_key(path: Path) -> None:
    graph = traced_models.load_traced(path, _key(path))
    traced_models.save_traced(path, "0" * 64, graph)


def _key(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return str(from_json(archive.read("header.json"))["key"])


@pytest.mark.parametrize("damage", [truncate, later(flip), later(empty), as_folder, of_another_key])
def test_a_damaged_entry_is_replaced(damage: Callable[[Path], None], traces: Traces, tmp_path: Path) -> None:
    """It is as if it were not there; only a folder in its place cannot be overwritten, and does no harm."""
    path = write_config(tmp_path, "bert")
    first = open_model(path, EXACT)
    damage(entries()[0])
    assert_equal(first, open_model(path, EXACT))
    assert_equal(first, open_model(path, EXACT))
    assert len(traces) == (3 if damage is as_folder else 2)


def test_writers_at_once_leave_one_whole_entry(traces: Traces, tmp_path: Path) -> None:
    """Every reader gets the same graph, whoever writes first."""
    path = write_config(tmp_path, "bert")
    first, got = open_model(path, EXACT), list[ImportedModel]()
    key, model = _key(entries()[0]), (first.graph, first.warnings, dict(first.modules))
    entry, done = entries()[0], threading.Event()

    def write() -> None:
        for _ in range(10):
            traced_models.save_traced(entry, key, model)

    def read() -> None:
        while not done.is_set():
            got.append(open_model(path, EXACT))

    reader, writers = threading.Thread(target=read), [threading.Thread(target=write) for _ in range(3)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert len(traces) == 1 and entries() == [entry] and got
    for other in got[:3]:
        assert_equal(first, other)


def test_the_cache_stays_within_its_limit(traces: Traces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read last is kept, what was not used for longest goes."""
    path = write_config(tmp_path, "bert")
    open_model(path, EXACT)
    (oldest,) = entries()
    monkeypatch.setitem(traced_models.LIMITS, GRAPHS, oldest.stat().st_size * 5 // 2)
    os.utime(oldest, (1000, 1000))
    open_model(path, ProblemOptions(dims={**WHOLE, "batch": 2}, dtype="float32"))
    for age, entry in enumerate([oldest, *(entry for entry in entries() if entry != oldest)]):
        os.utime(entry, (1000 + age, 1000 + age))
    open_model(path, EXACT)
    open_model(path, ProblemOptions(dims={**WHOLE, "batch": 3}, dtype="float32"))
    assert oldest in entries() and len(entries()) == 2 and len(traces) == 3


def test_the_micro_batch_changes_no_trace(traces: Traces, tmp_path: Path) -> None:
    """It is a size of the graph's source alone; a plan that names it finds the trace, and encoders have none."""
    path = write_config(tmp_path, "mixtral")
    plain, larger = (open_model(path, ProblemOptions(dims={**DIMS, **more})) for more in ({}, {"ubatch": 2048}))
    assert len(traces) == 1 and larger.graph.digest() == plain.graph.digest()
    dims = [find_run_dims(model.graph.source) for model in (plain, larger)]
    assert [each.ubatch for each in dims if each is not None] == [512, 2048]
    source = larger.graph.source
    assert source is not None
    again = open_model(path, ProblemOptions(dims=source.options["dims"], dtype="float32"))
    assert len(traces) == 1 and again.graph.source is not None
    assert again.graph.source.options["dims"] == source.options["dims"]
    for size in (0, 1 << 40):
        with pytest.raises(InputError, match="give a whole number"):
            open_model(path, ProblemOptions(dims={**DIMS, "ubatch": size}))
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    with pytest.raises(InputError, match="no dimension 'ubatch'; give batch, length"):
        open_model(write_config(encoder, "bert"), ProblemOptions(dims={"ubatch": 8}))


def test_a_wrong_option_is_refused_with_and_without_a_cache(traces: Traces, tmp_path: Path) -> None:
    """Nothing is kept of a reading that failed."""
    path = write_config(tmp_path, "bert")
    for _ in "12":
        with pytest.raises(InputError):
            open_model(path, ProblemOptions(dims={"nonsense": 3}))
    assert len(traces) == 2 and not entries()

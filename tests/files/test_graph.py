"""Graph files: every column comes back, and files that lie about a graph are refused."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files_strategies import columns_of, graphs
from hypothesis import given
from soak import examples

from placewise.errors import InputError, ModelFileError, OutputError
from placewise.files.attributes import attributes_from_json, attributes_to_json
from placewise.files.columns import read_columns, write_columns
from placewise.files.graph_file import GraphHeader, encode_graph, load_graph, save_graph
from placewise.files.problem_file import load_problem
from placewise.model.builder import GraphBuilder
from placewise.model.graph import Graph, Source


def small_graph() -> Graph:
    """a → b → c with a weight, three dtypes and attributes."""
    builder = GraphBuilder()
    a = builder.add_op("a", "Input", dtype="float16")
    b = builder.add_op("b", "MatMul", scope="layer", attributes={"perm": [1, 0], "alpha": -math.inf}, group=3)
    c = builder.add_op("c", "Relu", scope="layer", state_bytes=7, origin=(4, 5))
    w = builder.add_weight("w", shape=(2, 2), dtype="bfloat16")
    builder.use_weight(w, b)
    for producer, consumer in ((a, b), (b, c)):
        builder.add_edge(builder.add_tensor(producer, shape=(2, -1), dtype="float32", nbytes=16), consumer)
    return builder.build(Source("m.onnx", "ab12", "onnx", {"batch": (1, 2)}, "raw", ("to_training",)))


def round_trip(graph: Graph) -> Graph:
    with tempfile.TemporaryDirectory() as folder:
        save_graph(graph, Path(folder) / "g.npz")
        return load_graph(Path(folder) / "g.npz")


@examples(25)
@given(graphs())
def test_any_graph_comes_back(graph: Graph) -> None:
    """Every column bit by bit, attributes, source and digest."""
    again = round_trip(graph)
    assert columns_of(again) == columns_of(graph)
    assert again.digest() == graph.digest()


def test_types_of_attributes_survive() -> None:
    """Tuples stay tuples, and NaN, infinity, bytes, big integers and keys with a dollar sign come back."""
    value = {"t": (1, (2.0, "x")), "n": math.nan, "i": (-math.inf, 1 << 80), "b": b"\0\xff", "$float": {"$bytes": True}}
    (again,) = attributes_from_json(attributes_to_json((value,)))
    assert math.isnan(again.pop("n"))
    assert again == {key: item for key, item in value.items() if key != "n"}
    assert isinstance(again["t"][1], tuple)
    assert again["$float"]["$bytes"] is True


def test_numbers_of_numpy_become_plain() -> None:
    """A numpy number is written as the number that it is."""
    (again,) = attributes_from_json(attributes_to_json(({"x": (np.int64(3), np.float32(0.5), np.bool_(True))},)))
    assert again == {"x": (3, 0.5, True)}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"x": object()}, "is a object"),
        ({"x": nested(1000)}, "nested more than"),
        ({"x": "\ud800"}, "cannot be written"),
    ],
)
def test_attributes_that_no_file_holds(attributes: Mapping[str, Any], message: str) -> None:
    """Objects, deep nesting and broken Unicode are refused when they are written."""
    with pytest.raises(OutputError, match=message):
        attributes_to_json((attributes,))


@pytest.mark.parametrize(
    "text",
    [
        b"{}", b"[1]", b"[[]]", b"nonsense", b'[{"x": {"$float": "one"}}]', b'[{"x": {"$float": []}}]',
        b'[{"x": {"$bytes": "?"}}]', b'[{"x": {"$bytes": 1}}]', b'[{"x": {"$eval": "1"}}]',
        b'[{"x": {"$float": "1", "y": 2}}]', b'[{"x": {"$object": 1}}]', b'[{"$float": "1"}]',
    ],
)  # fmt: skip
def test_bad_attribute_texts(text: bytes) -> None:
    """No list of objects, unknown tags, tags with a wrong value."""
    with pytest.raises(ModelFileError):
        attributes_from_json(text)


def changed(path: Path, header: Mapping[str, Any] | None = None, **arrays: Any) -> Path:
    """A file of `small_graph` with parts of its header or arrays replaced ("." is written "__")."""
    good_header, good = encode_graph(small_graph())
    replaced = {name.replace("__", "."): np.asarray(array) for name, array in arrays.items()}
    write_columns(path, good_header.model_copy(update=dict(header or {})), {**good, **replaced})
    return path


WORDS = {"ops__kind__text": np.frombuffer(b"AddAddX", np.uint8), "ops__kind__offsets": np.array([0, 3, 6, 7])}


@pytest.mark.parametrize(
    ("header", "arrays", "message"),
    [
        ({"n_ops": 4}, {}, "has shape"),
        ({"n_tensors": 10**30}, {}, "has shape"),
        ({"dtypes": ("float32",)}, {}, "outside the header's list"),
        ({"dtypes": ("float33",) * 99}, {}, "unknown element type 'float33'"),
        ({}, {"ops__dtype": np.array([-1, 0, 0], np.int8)}, "outside the header's list"),
        ({}, {"ops__group": np.zeros(3, np.int64)}, "holds int64 instead of int32"),
        ({}, {"ops__group": np.full(3, -2, np.int32)}, "group ids"),
        ({}, {"ops__kind__codes": np.array([0, 1, 9], np.int32)}, "outside its vocabulary"),
        ({}, WORDS, "holds a word twice"),
        ({}, {"ops__attributes__json": np.frombuffer(b"[]", np.uint8)}, "outside its vocabulary"),
        ({}, {"ops__name__text": np.frombuffer(b"aab", np.uint8)}, "two ops are both called 'a'"),
        ({}, {"edges__value": np.array([1, 1], np.int32)}, "stands before an op that feeds it"),
        ({}, {"edges__position": np.array([-1, 0], np.int32)}, "negative position"),
        ({}, {"edges__consumer": np.array([1, 3], np.int32)}, "one does not exist"),
        ({}, {"tensors__producer": np.array([1, 0], np.int32)}, "sorted by a producer"),
        ({}, {"tensors__shape__offsets": np.array([0, 9, 4])}, "do not rise"),
    ],
)
def test_files_that_lie(tmp_path: Path, header: Any, arrays: Any, message: str) -> None:
    """Each wrong length, type, code or order is one sentence that names the file."""
    path = changed(tmp_path / "g.npz", header, **arrays)
    with pytest.raises(InputError, match=message) as caught:
        load_graph(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_dtype_codes_follow_the_header(tmp_path: Path) -> None:
    """Codes mean what the header's list says, whatever today's list is."""
    graph = small_graph()
    swapped = list(encode_graph(graph)[0].dtypes)
    a, b = swapped.index("float16"), swapped.index("int8")
    swapped[a], swapped[b] = swapped[b], swapped[a]
    again = load_graph(changed(tmp_path / "g.npz", {"dtypes": tuple(swapped)}))
    assert [again.ops.dtype_name(op) for op in range(3)] == ["int8", "unknown", "unknown"]
    assert again.tensors.dtype_name(0) == "float32"


def test_a_graph_is_not_a_problem(tmp_path: Path) -> None:
    """A file of another format says which one it is."""
    save_graph(small_graph(), tmp_path / "g.npz")
    with pytest.raises(ModelFileError, match="is a 'placewise-graph' file, not a placewise-problem file"):
        load_problem(tmp_path / "g.npz")


def test_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    """A later minor version may add fields and arrays."""
    changed(tmp_path / "g.npz", {}, extra=np.arange(3))
    assert columns_of(load_graph(tmp_path / "g.npz")) == columns_of(small_graph())
    header, _ = read_columns(tmp_path / "g.npz", GraphHeader)
    assert header.source is not None
    assert header.source.transforms == ("to_training",)

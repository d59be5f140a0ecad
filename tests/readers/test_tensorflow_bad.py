"""The TensorFlow reader on bad input: one sentence with the file, the place and the remedy, and never a traceback."""

import contextlib
import warnings

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from soak import examples
from tensorflow_files import DATA, INT, F, constant, function, graph, node, placeholder, saved, weight

from placewise.errors import GraphError, InputError, ModelFileError
from placewise.readers.tensorflow import looks_like_tensorflow, read_tensorflow

GOOD = graph(placeholder("x", [2, 3]), weight("w", 3, 4), node("y", "MatMul", "x", "w", T=F))


def refused(path, match, error=ModelFileError):
    with pytest.raises(error, match=match) as caught:
        read_tensorflow(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text and caught.value.remedy


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 this is a zip archive", "not a TensorFlow graph"),
        (b'{"nodes": []}', "not a TensorFlow graph"),
        (b"\x08\x07\x12\x07pytorch", "not a TensorFlow graph"),
        (b"node {\n name: 'a'\n op: 'Relu'\n", "the text is not a GraphDef"),
        (b"node {\n name: 'a'\n op: 'Relu'\n input: 7\n}\n", "the text is not a GraphDef"),
        (b"node {\n op: 'Relu'\n" + b"attr { value { list { func { attr { value {" * 400, "the text is not a GraphDef"),
        (b"\x08\x01\x12\x00", "no nodes"),
        (GOOD.SerializeToString()[:-3], "truncated"),
    ],
)
def test_not_a_tensorflow_file(tmp_path, content, match):
    """Empty, foreign, broken and truncated files."""
    path = tmp_path / "model.pb"
    path.write_bytes(content)
    refused(path, match)


def test_missing_file_and_folder(tmp_path):
    """A path that is no file, and a folder without a SavedModel."""
    refused(tmp_path / "absent.pb", "cannot be read")
    refused(tmp_path, "the folder holds no saved_model.pb")
    assert not looks_like_tensorflow(tmp_path) and not looks_like_tensorflow(tmp_path / "absent.pb")


def test_foreign_files_do_not_look_like_it(tmp_path):
    """ONNX, JSON, text and nothing."""
    for content in (b"", b"\x08\x07\x12\x07pytorch\x1a\x012", b'{"nodes": [], "edges": []}', b"node1 -- Input0 -- x"):
        path = tmp_path / "file"
        path.write_bytes(content)
        assert not looks_like_tensorflow(path)


@pytest.mark.parametrize(
    ("nodes", "match"),
    [
        ([node("a", "Relu", "b", T=F), node("b", "Relu", "a", T=F)], "cycle: '[ab]' → '[ab]' → '[ab]'"),
        ([node("a", "Relu", "gone", T=F)], "node 'a': reads 'gone', which no node produces"),
        ([node("a", "Relu", "^gone", T=F)], "reads 'gone'"),
        ([placeholder("x", [2]), node("a", "Relu", "x:3", T=F)], "reads output 3 of 'x', which has 1"),
        ([placeholder("x", [2]), node("a", "Relu", "x", T=F), node("b", "Neg", "a:5", T=F)], "reads output 5 of 'a'"),
        ([node("a", "Relu", "x:y", T=F)], "inputs are written name:port"),
        ([placeholder("x", [2]), placeholder("x", [2])], "two nodes have the name 'x'"),
        ([placeholder("x", [2]), node("", "Relu")], "node 1 has no name"),
        ([placeholder("x", [2]), node("a", "")], "node 1 has no op"),
        ([placeholder("x", [2])], "nothing in it computes"),
        ([node("c", "Const"), node("y", "Neg", "c")], "constant 'c' has no value"),
        ([weight("w", 1 << 40, 1 << 40), node("y", "Neg", "w", T=F)], "absurd shape"),
        ([placeholder("x", [1 << 62, 8]), node("y", "Relu", "x", T=F)], "absurd shape"),
        ([placeholder("x", [2]), node("c", "PartitionedCall", "x", f="@gone")], "function 'gone' is called"),
        ([node("r", "Placeholder", dtype=F.__class__("RESOURCE")), node("y", "ReadVariableOp", "r")], "freeze it"),
        ([node("e", "Enter", "m", frame_name="f"), node("m", "Merge", "e", "n"), node("n", "NextIteration", "m")],
         "loop 'f' has 0 conditions|cycle"),
    ],
)  # fmt: skip
def test_broken_graphs(tmp_path, nodes, match):
    """Cycles, edges to nowhere, names twice, sizes beyond any memory, calls of nothing, loops in pieces."""
    refused(saved(tmp_path, graph(*nodes)), match, InputError)


def test_functions_that_call_themselves(tmp_path):
    """A call that never ends, directly and by twos, is refused in bounded time."""
    again = function("f", ["a"], [node("c", "f", "a")], {"r": "c:r:0"})
    call = [placeholder("x", [2]), node("c", "f", "x")]
    refused(saved(tmp_path, graph(*call, functions=[again])), "function 'f' calls itself")
    chain = [
        function(f"f{i}", ["a"], [node("c", f"f{i + 1}", "a"), node("d", f"f{i + 1}", "c:r:0")], {"r": "d:r:0"})
        for i in range(40)
    ]
    last = function("f40", ["a"], [], {"r": "a"})
    nodes = [placeholder("x", [2]), node("c", "f0", "x"), node("y", "Relu", "c", T=F)]
    refused(saved(tmp_path, graph(*nodes, functions=[*chain, last])), "unfold to more than")


def test_loops_that_never_end(tmp_path):
    """While true: the rounds are not counted for ever, and the loop is one op."""
    true = function("true", ["i"], [node("e", "Equal", "i", "i", T=INT)], {"r": "e:z:0"})
    same = function("same", ["i"], [], {"r": "i"})
    nodes = [constant("i", 1), node("loop", "While", "i", cond="@true", body="@same"), node("y", "Neg", "loop", T=INT)]
    found = read_tensorflow(saved(tmp_path, graph(*nodes, functions=[true, same]))).graph
    assert list(found.ops.kind) == ["Loop", "Neg"]


def test_absurd_numbers_of_outputs(tmp_path):
    """A split into a billion parts, or into −3, is refused, without a billion parts."""
    for parts in (1 << 30, -3):
        nodes = [placeholder("x", [8]), constant("a", 0), node("s", "Split", "a", "x", num_split=parts, T=F)]
        path = saved(tmp_path, graph(*nodes, node("y", "Relu", "s:0", T=F)))
        refused(path, rf"op 's' \(Split\): .*'num_split' is {parts}")
    far = node("y", "Relu", "z:900000", T=F)
    refused(saved(tmp_path, graph(placeholder("x", [2]), node("z", "Own", "x"), far)), "900001 outputs")


def test_weights_that_no_machine_holds(tmp_path):
    """A constant and a variable of millions of tebibytes."""
    side = 10**9
    variable = node("w", "VariableV2", dtype=F, shape=(side, side))
    for huge in (weight("w", side, side), variable):
        nodes = [placeholder("x", [side]), huge, node("y", "Add", "x", "w", T=F)]
        refused(saved(tmp_path, graph(*nodes)), "'w' has the absurd shape 1000000000×1000000000")


def test_odd_escapes_raise_no_warning(tmp_path):
    """What protobuf says to itself about a text's escapes stays inside."""
    path = tmp_path / "model.pbtxt"
    path.write_text("node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }\n"
                    "node { name: 'a\\ms' op: 'Relu' input: 'x' }")  # fmt: skip
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with contextlib.suppress(ModelFileError):
            read_tensorflow(path)
    assert told == []


def test_every_truncation(tmp_path):
    """A file cut off anywhere is refused, or read where nothing that matters is missing."""
    whole, path = GOOD.SerializeToString(), tmp_path / "model.pb"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            read_tensorflow(path)
        except InputError as error:
            assert str(error).startswith(str(path))


@examples(120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["attention.pb", "lstm.pb", "training.meta", "learner/saved_model.pb", "costs.pb"]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=12),
)
def test_mutated_files(tmp_path, name, changes):
    """Bytes changed at random: an answer or an error of ours, nothing else."""
    data = bytearray((DATA / name).read_bytes())
    for place, byte in changes:
        data[int(place * (len(data) - 1))] = byte
    path = tmp_path / "model.pb"
    path.write_bytes(data)
    try:
        read_tensorflow(path, dims={"batch": 2} if name != "costs.pb" else {})
    except InputError as error:
        assert "\n" not in str(error)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1), st.characters(max_codepoint=127)), min_size=1, max_size=6))
def test_mutated_text(tmp_path, changes):
    """Characters changed at random in a text format."""
    data = list((DATA / "costs.pbtxt").read_text()[:6000].rsplit("node {", 1)[0])
    for place, character in changes:
        data[int(place * (len(data) - 1))] = character
    path = tmp_path / "model.pbtxt"
    path.write_text("".join(data))
    try:
        read_tensorflow(path)
    except InputError as error:
        assert "\n" not in str(error)


def test_cost_graphs_that_are_broken(tmp_path):
    """Ids twice, edges to nowhere and cycles."""
    for text, match in (
        ('node { name: "a" id: 1 } node { name: "b" id: 1 }', "id is not unique"),
        ('node { name: "a" id: 1 input_info { preceding_node: 9 } }', "reads output 0 of node 9"),
        ('node { name: "a" id: 1 control_input: 9 }', "waits for node 9"),
        ('node { name: "a" id: 1 control_input: 2 } node { name: "b" id: 2 control_input: 1 }', "cycle"),
        ('node { name: "a" id: 1 output_info { size: 9223372036854775807 } }', "makes 9223372036854775807 bytes"),
        ('node { name: "_SOURCE" id: 1 }', "holds no cost graph"),
    ):
        path = tmp_path / "costs.pbtxt"
        path.write_text(text)
        refused(path, match, (ModelFileError, GraphError))

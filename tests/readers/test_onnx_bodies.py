"""The ONNX reader on sequences and on ops with bodies: what is in them, and what their rounds cost."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_node, make_tensor_sequence_value_info, make_tensor_value_info
from onnx_files import FLOAT, INT64, integers, model, saved, weight

import placewise as pw
from placewise.costing.work import work_of
from placewise.readers.onnx import read_onnx


def read(folder, content):
    reading = read_onnx(saved(folder, content))
    graph = reading.graph
    sizes = {name: (tuple(graph.tensors.shape[row]), int(graph.tensors.bytes[row]))
             for row, name in enumerate(graph.tensors.name)}  # fmt: skip
    return reading, sizes


def cell(step, state="state", made="next"):
    """state [2, 3] and step [2, 4] → tanh(step · W + state · U)."""
    return [
        make_node("MatMul", [step, "W"], [f"{made}_a"]),
        make_node("MatMul", [state, "U"], [f"{made}_b"]),
        make_node("Add", [f"{made}_a", f"{made}_b"], [f"{made}_c"]),
        make_node("Tanh", [f"{made}_c"], [made]),
    ]


WEIGHTS = [weight("W", 4, 3), weight("U", 3, 3), weight("zero", 2, 3)]
ROUND = 2 * 2 * 3 * (4 + 3) + 2 * 3 + 2 * 3


def scanned():
    """A recurrent layer over x [5, 2, 4]."""
    body = make_graph(
        [*cell("step"), make_node("Identity", ["next"], ["out"])], "body",
        [make_tensor_value_info("state", FLOAT, None), make_tensor_value_info("step", FLOAT, None)],
        [make_tensor_value_info("next", FLOAT, None), make_tensor_value_info("out", FLOAT, None)],
    )  # fmt: skip
    scan = make_node("Scan", ["zero", "x"], ["last", "all"], body=body, num_scan_inputs=1)
    return model([scan], {"x": [5, 2, 4]}, ["last", "all"], WEIGHTS)


def test_a_scan_costs_what_its_steps_cost_one_by_one(tmp_path):
    """As many rounds as there are slices, against the same layer written out."""
    reading, sizes = read(tmp_path, scanned())
    assert sizes["last"] == ((2, 3), 24) and sizes["all"] == ((5, 2, 3), 120) and reading.warnings == ()
    work = work_of(reading.graph)
    nodes, state = [make_node("Split", ["x"], [f"x{step}" for step in range(5)], axis=0, num_outputs=5)], "zero"
    for step in range(5):
        nodes += [make_node("Squeeze", [f"x{step}", "axis"], [f"s{step}"]), *cell(f"s{step}", state, f"h{step}")]
        state = f"h{step}"
    unrolled = work_of(
        read(tmp_path, model(nodes, {"x": [5, 2, 4]}, [state], [*WEIGHTS, integers("axis", [0])]))[0].graph
    )
    assert float(work.flops[0]) == 5 * ROUND == float(unrolled.flops.sum())
    assert work.known.all() and work.op_class[0] == "matmul" and not work.warnings


@pytest.mark.parametrize(("trips", "rounds", "known"), [("five", 5, True), ("some", 1, False), ("", 1, False)])
def test_a_loop_costs_its_rounds_or_one_that_is_said_to_be_assumed(tmp_path, trips, rounds, known):
    """The trip count is multiplied where it is constant."""
    body = make_graph(
        [make_node("Identity", ["go"], ["on"]), *cell("x")], "body",
        [make_tensor_value_info("i", INT64, []), make_tensor_value_info("go", TensorProto.BOOL, []),
         make_tensor_value_info("state", FLOAT, None)],
        [make_tensor_value_info("on", TensorProto.BOOL, []), make_tensor_value_info("next", FLOAT, None)],
    )  # fmt: skip
    nodes = [
        make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        make_node("Cast", ["sum"], ["some"], to=INT64),
        make_node("Loop", [trips, "yes", "zero"], ["y"], name="loop", body=body),
    ]
    yes = onnx.numpy_helper.from_array(np.array(True), "yes")
    reading, sizes = read(tmp_path, model(nodes, {"x": [2, 4]}, ["y"], [*WEIGHTS, integers("five", 5), yes]))
    work = work_of(reading.graph)
    op = reading.graph.ops.name.index("loop")
    assert sizes["y"] == ((2, 3), 24) and float(work.flops[op]) == rounds * ROUND and bool(work.known[op]) == known
    said = (
        "the cost of Loop (1 op) is assumed from the known part of its body, and one iteration if the trip count is "
        "unknown",
    )
    assert work.warnings == (() if known else said)


def test_an_if_costs_its_dearer_branch(tmp_path):
    """A product against nothing at all, where only the run knows the condition."""
    out = [make_tensor_value_info("r", FLOAT, None)]
    then = make_graph([make_node("MatMul", ["x", "W"], ["r"])], "then", [], out)
    other = make_graph([make_node("Identity", ["zero"], ["r"])], "other", [], out)
    nodes = [
        make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        make_node("Greater", ["sum", "sum"], ["flag"]),
        make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other),
    ]
    reading, sizes = read(tmp_path, model(nodes, {"x": [2, 4]}, ["y"], WEIGHTS))
    work = work_of(reading.graph)
    assert sizes["y"] == ((2, 3), 24) and float(work.flops[2]) == 2 * 2 * 4 * 3 and work.known.all()


def test_sequences_are_as_large_as_what_is_in_them(tmp_path):
    """Split in unequal parts, put in, taken out at a known place or at any, mapped, and joined again."""
    body = make_graph(
        [make_node("MatMul", ["e", "W"], ["m"])], "body",
        [make_tensor_value_info("e", FLOAT, None)], [make_tensor_value_info("m", FLOAT, [None, 3])],
    )  # fmt: skip
    nodes = [
        make_node("SplitToSequence", ["x", "parts"], ["seq"], axis=0),
        make_node("SequenceInsert", ["seq", "x"], ["more"]),
        make_node("SequenceAt", ["more", "one"], ["second"]),
        make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        make_node("Cast", ["sum"], ["where"], to=INT64),
        make_node("SequenceAt", ["more", "where"], ["any"]),
        make_node("SequenceErase", ["more", "one"], ["less"]),
        make_node("ConcatFromSequence", ["less"], ["joined"], axis=0),
        make_node("SplitToSequence", ["x"], ["rows"], axis=0),
        make_node("SequenceMap", ["rows"], ["mapped"], body=body),
        make_node("Relu", ["second"], ["y"]),
    ]
    weights = [integers("parts", [1, 5]), integers("one", 1), *WEIGHTS]
    content = model(nodes, {"x": [6, 4]}, ["y", "any", "joined"], weights)
    reading, sizes = read(tmp_path, content)
    assert sizes["seq"][1] == 96 and sizes["more"][1] == 192 and sizes["less"][1] == 16 + 96
    assert sizes["second"] == ((5, 4), 80) == sizes["y"] and sizes["any"] == ((6, 4), 96)
    assert sizes["joined"] == ((7, 4), 112) and sizes["rows"][1] == 96
    work = work_of(reading.graph)
    mapped = list(reading.graph.ops.kind).index("SequenceMap")
    assert float(work.flops[mapped]) == 6 * 2 * 1 * 4 * 3 and work.known.all()
    assert pw.place(tmp_path / "model.onnx", "2xL4,cpu", placer="etf", budget="1s").value > 0


def test_a_sequence_that_is_given_counts_with_one_element(tmp_path):
    """Its length is not known before the run, and that is said."""
    content = model([make_node("SequenceAt", ["s", "one"], ["y"])], {}, ["y"], [integers("one", 1)])
    content.graph.input.append(make_tensor_sequence_value_info("s", FLOAT, [2, 3]))
    reading, sizes = read(tmp_path, content)
    assert sizes["s"][1] == 24 and sizes["y"] == ((2, 3), 24)
    assert reading.warnings == (
        "the length of 1 sequence is known only at run time: it counts with one element (first: 's')",
    )

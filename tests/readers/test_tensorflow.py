"""The TensorFlow reader: nodes, inputs, weights, order, colocation, functions and loops of small graphs."""

import hashlib

import numpy as np
import pytest
from tensorflow_files import INT, Dtype, F, constant, function, graph, node, placeholder, saved, weight

from placewise.errors import ModelFileError
from placewise.readers.tensorflow import looks_like_tensorflow, read_tensorflow
from placewise.transform.fold import fold


def read(folder, *nodes, functions=(), **options):
    return read_tensorflow(saved(folder, graph(*nodes, functions=functions)), **options)


def arguments(found, op):
    """(name, position) of each tensor and weight that an op reads."""
    number = found.ops.name.index(op)
    read = []
    for table, edges in ((found.tensors, found.edges), (found.weights, found.weight_edges)):
        rows = np.flatnonzero(edges.consumer == number)
        read += [(table.name[edges.value[row]], int(edges.position[row])) for row in rows]
    return sorted(read, key=lambda pair: pair[1])


def shape(found, tensor):
    return found.tensors.shape[found.tensors.name.index(tensor)]


def test_one_op_per_node_that_computes(tmp_path):
    """Placeholders are inputs, constants weights, and everything else an op with its place in the file."""
    product, result = node("a/product", "MatMul", "x", "w", T=F), node("y", "Relu", "a/product", T=F)
    nodes = [placeholder("x", [2, 3]), weight("w", 3, 4), product, result]
    path = saved(tmp_path, graph(*nodes))
    found = read_tensorflow(path).graph
    assert found.ops.name == ("a/product", "y") and list(found.ops.kind) == ["MatMul", "Relu"]
    assert found.ops.scope[0] == "a" and list(found.ops.origin) == [(2,), (3,)]
    assert found.tensors.name == ("x", "a/product", "y") and found.tensors.bytes.tolist() == [24, 32, 32]
    assert found.tensors.output.tolist() == [False, False, True]
    assert found.weights.name == ("w",) and found.weights.bytes.tolist() == [48]
    assert arguments(found, "a/product") == [("x", 0), ("w", 1)]
    source = found.source
    assert source is not None and (source.format, source.view) == ("tensorflow", "raw")
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() and looks_like_tensorflow(path)


def test_arguments_stand_where_onnx_has_them(tmp_path):
    """Split has its data first, Concat its axis last, and transposed factors are marked as in Gemm."""
    found = read(
        tmp_path,
        placeholder("x", [4, 6]),
        constant("axis", 1),
        node("parts", "Split", "axis", "x", num_split=3, T=F),
        node("both", "Concat", "axis", "parts", "parts:2", T=F),
        node("z", "MatMul", "both", "parts:1", transpose_a=True, T=F),
    ).graph
    assert arguments(found, "parts") == [("x", 0), ("axis", 1)]
    assert [name for name, _ in arguments(found, "both")] == ["parts", "parts:2", "axis"]
    assert shape(found, "both") == (4, 4) and shape(found, "parts:2") == (4, 2)
    assert found.ops.attributes[found.ops.name.index("z")]["transA"] == 1 and shape(found, "z") == (4, 2)


def test_control_edges_keep_order(tmp_path):
    """An op that waits for another reads an empty tensor of it; waiting for a constant is no waiting."""
    found = read(
        tmp_path,
        placeholder("x", [2]),
        constant("c", 1),
        node("first", "Relu", "x", T=F),
        node("gate", "NoOp", "^first", "^c"),
        node("second", "Neg", "x", "^gate", T=F),
    ).graph
    assert arguments(found, "second") == [("x", 0), ("^first", 1)] and found.n_ops == 2
    assert found.tensors.bytes[found.tensors.name.index("^first")] == 0


def test_identities_hand_waiting_on(tmp_path):
    """An identity that waits folds away, and what reads it waits in its stead."""
    found = read(
        tmp_path,
        placeholder("x", [2]),
        node("first", "Relu", "x", T=F),
        node("same", "Identity", "x", "^first", T=F),
        node("second", "Neg", "same", T=F),
        node("both", "AddV2", "first", "second", T=F),
    ).graph
    folded = fold(found)
    assert folded.ops.name == ("first", "second", "both")
    assert arguments(folded, "second") == [("x", 0), ("^first", 1)]


def test_many_waits_make_an_identity_an_op(tmp_path):
    """An identity behind many ops waits itself, so that waits do not multiply."""
    ops = [node(f"op{i}", "Relu", "x", T=F) for i in range(9)]
    same = node("same", "Identity", "x", *(f"^op{i}" for i in range(9)), T=F)
    ends = [node(f"end{i}", "Neg", "same", T=F) for i in range(9)]
    found = fold(read(tmp_path, placeholder("x", [2]), *ops, same, *ends).graph)
    assert len(found.inputs_of(found.ops.name.index("same"))) == 10
    assert all(arguments(found, f"end{i}") == [("same", 0)] for i in range(9))


def test_wide_gates_are_ops(tmp_path):
    """Many that wait for many: one op in between, which costs nothing, instead of a product of edges."""
    first, last = ([f"{word}{i}" for i in range(40)] for word in ("a", "b"))
    nodes = [*(node(name, "Relu", "x", T=F) for name in first), node("gate", "NoOp", *(f"^{name}" for name in first))]
    nodes += [node(name, "Neg", "x", "^gate", T=F) for name in last]
    found = read(tmp_path, placeholder("x", [2]), *nodes, node("end", "NoOp", *(f"^{name}" for name in last))).graph
    assert found.n_ops == 81 and arguments(found, "b7") == [("x", 0), ("^gate", 1)]
    assert len(arguments(found, "gate")) == 40 and len(found.edges) == 40 + 40 + 80


def test_variables_are_weights(tmp_path):
    """Both kinds of variable, read through identities, tied by their shared name."""
    variable = {"dtype": F, "shape": (3, 3)}
    found = fold(
        read(
            tmp_path,
            placeholder("x", [2, 3]),
            node("old", "VariableV2", **variable),
            node("old/read", "Identity", "old", T=F),
            node("new", "VarHandleOp", shared_name="one", **variable),
            node("again", "VarHandleOp", shared_name="one", **variable),
            node("new/read", "ReadVariableOp", "new", dtype=F),
            node("again/read", "ReadVariableOp", "again", dtype=F),
            node("a", "MatMul", "x", "old/read", T=F),
            node("b", "MatMul", "a", "new/read", T=F),
            node("c", "MatMul", "b", "again/read", T=F),
        ).graph
    )
    assert found.ops.name == ("a", "b", "c") and found.weights.name == ("old", "one")
    assert [found.weights_of(op).tolist() for op in range(3)] == [[0], [1], [1]]


def test_devices_and_colocation(tmp_path):
    """Devices stay as an attribute, and what the file wants together is a colocation group."""
    found = read(
        tmp_path,
        placeholder("x", [2]),
        node("a", "Relu", "x", T=F, device="/device:GPU:1"),
        node("b", "Neg", "a", T=F, _class=["loc:@a"]),
        node("c", "Abs", "b", T=F, _class=["loc:@elsewhere"]),
        node("d", "Exp", "c", T=F, _class=["loc:@elsewhere"]),
        node("e", "Exp", "d", T=F),
    ).graph
    assert found.ops.group.tolist() == [0, 0, 1, 1, -1]
    assert found.ops.attributes[0]["device"] == "/device:GPU:1" and "device" not in found.ops.attributes[1]


def test_training_graphs(tmp_path):
    """Gradients are backward and with their op; who uses a variable is with whoever changes it."""
    found = read(
        tmp_path,
        placeholder("x", [4, 3]),
        node("w", "VariableV2", dtype=F, shape=(3, 2)),
        node("w/Assign", "Assign", "w", "zeros", T=F),
        weight("zeros", 3, 2),
        constant("rate", np.float32(0.1)),
        node("w/read", "Identity", "w", T=F),
        node("dense", "MatMul", "x", "w/read", T=F),
        node("act", "Relu", "dense", T=F),
        node("gradients/act_grad/ReluGrad", "ReluGrad", "act", "act", T=F),
        node("gradients/dense_grad/MatMul_1", "MatMul", "x", "gradients/act_grad/ReluGrad", transpose_a=True, T=F),
        node("gradients/dense_grad/MatMul", "MatMul", "gradients/act_grad/ReluGrad", "w/read", transpose_b=True, T=F),
        node("update", "ApplyGradientDescent", "w", "rate", "gradients/dense_grad/MatMul_1", T=F),
        node("save", "SaveV2", "rate", "rate", "rate", "w/read"),
        node("init", "NoOp", "^w/Assign"),
        node("train", "NoOp", "^update"),
    ).graph
    names = ("w/read", "dense", "act", "gradients/act_grad/ReluGrad", "gradients/dense_grad/MatMul_1", "update")
    assert set(found.ops.name) == set(names)
    group = dict(zip(found.ops.name, found.ops.group.tolist(), strict=True))
    assert group["dense"] == group["update"] == group["gradients/dense_grad/MatMul_1"] >= 0
    assert group["act"] == group["gradients/act_grad/ReluGrad"] != group["dense"]
    backward = {name for name, flag in zip(found.ops.name, found.ops.backward.tolist(), strict=True) if flag}
    assert backward == set(names[3:])


def test_calls_are_written_out(tmp_path):
    """A function called twice gives its ops twice, with the same weight, and results find their readers."""
    inner = function(
        "layer", ["a"], [weight("w", 3, 3), node("p", "MatMul", "a", "w:output:0", T=F)], {"r": "p:product:0"}
    )
    outer = function("net", ["a"], [node("first", "layer", "a")], {"r": "first:r:0"})
    found = read(
        tmp_path,
        placeholder("x", [2, 3]),
        node("one", "PartitionedCall", "x", f="@net"),
        node("two", "StatefulPartitionedCall", "one", f="@layer"),
        node("y", "Relu", "two", T=F),
        functions=[inner, outer],
    ).graph
    assert found.ops.name == ("p", "p#2", "y") and found.weights.name == ("w",)
    assert arguments(found, "p#2") == [("p", 0), ("w", 1)] and list(found.ops.origin) == [(), (), (3,)]


def test_own_names_come_first(tmp_path):
    """A node of the file's graph keeps its name, also where a function that is called earlier has one of that name."""
    inner = function("f", ["a"], [node("y", "Neg", "a", T=F)], {"r": "y:y:0"})
    call = node("call", "PartitionedCall", "x", f="@f")
    found = read(tmp_path, placeholder("x", [2]), call, node("y", "Relu", "call", T=F), functions=[inner]).graph
    assert found.ops.name == ("y#2", "y") and list(found.ops.kind) == ["Neg", "Relu"]


def test_results_of_functions_by_name(tmp_path):
    """Functions call outputs by name: the mean of a normalization is its second output."""
    nodes = [node("n", "FusedBatchNormV3", *"abcde", T=F, U=F), node("m", "Neg", "n:batch_mean:0", T=F)]
    inputs = [placeholder("x", [2, 4, 4, 8]), *(placeholder(name, [8]) for name in "stuv")]
    call = node("call", "PartitionedCall", "x", *"stuv", f="@f")
    found = read(tmp_path, *inputs, call, functions=[function("f", list("abcde"), nodes, {"r": "m:y:0"})]).graph
    assert arguments(found, "m") == [("n:1", 0)] and shape(found, "m") == (8,)


def _loop(limit):
    """While count < limit: the state times a matrix."""
    cond = function("cond", ["i", "s", "n"], [node("less", "Less", "i", "n", T=INT)], {"r": "less:z:0"})
    body = function(
        "body",
        ["i", "s", "n"],
        [constant("one", 1), node("next", "AddV2", "i", "one:output:0", T=INT), weight("w", 4, 4),
         node("step", "MatMul", "s", "w:output:0", T=F)],
        {"i": "next:z:0", "s": "step:product:0", "n": "n"},
    )  # fmt: skip
    nodes = [placeholder("x", [2, 4]), constant("zero", 0), limit]
    loop = node("loop", "StatelessWhile", "zero", "x", "limit", cond="@cond", body="@body", T=[INT, F, INT])
    return [*nodes, loop, node("y", "Relu", "loop:1", T=F)], [cond, body]


def test_loops_with_known_rounds_are_written_out(tmp_path):
    """Five rounds are five products with one matrix, in a row."""
    nodes, functions = _loop(constant("limit", 5))
    reading = read(tmp_path, *nodes, functions=functions)
    found = fold(reading.graph)
    assert found.ops.name == (*(f"loop/{i}/step" for i in range(5)), "y") and reading.warnings == ()
    assert found.weights.name == ("w",) and arguments(found, "loop/4/step") == [("loop/3/step", 0), ("w", 1)]


def test_loops_with_unknown_rounds_stay_one_op(tmp_path):
    """The rounds depend on an input: one op, with the matrix inside, and a warning."""
    nodes, functions = _loop(placeholder("limit", [], "INT32"))
    reading = read(tmp_path, *nodes, functions=functions)
    found = reading.graph
    assert found.ops.name == ("loop", "y") and list(found.ops.kind) == ["Loop", "Relu"] and len(reading.warnings) == 1
    assert "w" in [name for name, _ in arguments(found, "loop")] and shape(found, "y") == (2, 4)


def test_loops_of_many_rounds_stay_one_op(tmp_path):
    """A million rounds are neither counted nor written out."""
    nodes, functions = _loop(constant("limit", 1_000_000))
    assert read(tmp_path, *nodes, functions=functions).graph.n_ops == 2


def _frame(limit):
    """The same loop as TF1 writes it: a cycle of Enter, Merge, Switch and NextIteration."""
    enter = {"frame_name": "loop", "T": F}
    return [
        placeholder("x", [2, 4]), constant("zero", 0), limit, weight("w", 4, 4),
        node("ei", "Enter", "zero", **enter), node("es", "Enter", "x", **enter),
        node("en", "Enter", "limit", is_constant=True, **enter), node("ew", "Enter", "w", is_constant=True, **enter),
        node("mi", "Merge", "ei", "ni", T=INT), node("ms", "Merge", "es", "ns", T=F),
        node("less", "Less", "mi", "en", T=INT), node("throw", "LoopCond", "less"),
        node("si", "Switch", "mi", "throw", T=INT), node("ss", "Switch", "ms", "throw", T=F),
        node("id", "Identity", "si:1", T=INT), node("one", "Const", "^id", value=np.array(1, np.int32)),
        node("next", "Add", "id", "one", T=INT),
        node("step", "MatMul", "ss:1", "ew", "^id", T=F),
        node("ni", "NextIteration", "next", T=INT), node("ns", "NextIteration", "step", T=F),
        node("out", "Exit", "ss", T=F), node("y", "Relu", "out", T=F),
    ]  # fmt: skip


def test_frames_are_loops(tmp_path):
    """TF1's cycles are written out like While where the rounds are known, and stay one op where they are not."""
    found = fold(read(tmp_path, *_frame(constant("limit", 3))).graph)
    assert found.ops.name == ("loop/0/step", "loop/1/step", "loop/2/step", "y") and found.weights.name == ("w",)
    found = read(tmp_path, *_frame(placeholder("limit", [], "INT32"))).graph
    assert list(found.ops.kind) == ["Loop", "Relu"] and shape(found, "y") == (2, 4)


LIST = {"element_dtype": F}


def _filled(*more):
    """A list of three, filled at 2, 0 and 1 with relu, neg and exp of x, and `more` nodes."""
    nodes = [placeholder("x", [4]), constant("shape", [-1]), constant("n", 3)]
    nodes += [node("l0", "TensorListReserve", "shape", "n", **LIST)]
    for number, (op, place) in enumerate((("Relu", 2), ("Neg", 0), ("Exp", 1))):
        nodes += [constant(f"p{number}", place), node(f"v{number}", op, "x", T=F)]
        nodes += [node(f"l{number + 1}", "TensorListSetItem", f"l{number}", f"p{number}", f"v{number}", **LIST)]
    return [*nodes, *more]


def test_lists_are_edges(tmp_path):
    """Who takes an element reads what was put there; all elements together are joined in their order."""
    get = node("got", "TensorListGetItem", "l3", "p0", "shape", **LIST)
    stack = node("all", "TensorListStack", "l3", "shape", **LIST)
    ends = [node("y", "Abs", "got", T=F), node("z", "Abs", "all", T=F)]
    found = read(tmp_path, *_filled(get, stack, *ends)).graph
    assert set(found.ops.name) == {"v0", "v1", "v2", "all", "y", "z"}
    assert arguments(found, "y") == [("v0", 0)]
    assert arguments(found, "all") == [("v1", 0), ("v2", 1), ("v0", 2)] and shape(found, "z") == (3, 4)


def test_elements_of_a_tensor_can_be_replaced(tmp_path):
    """A list made of a tensor is cut into its rows where one of them is replaced."""
    nodes = [placeholder("x", [2, 4]), placeholder("v", [4]), constant("shape", [4])]
    nodes += [
        constant("one", 1),
        constant("zero", 0),
        node("l", "TensorListFromTensor", "x", "shape", **LIST),
        node("m", "TensorListSetItem", "l", "one", "v", **LIST),
        node("kept", "TensorListGetItem", "m", "zero", "shape", **LIST),
        node("new", "TensorListGetItem", "m", "one", "shape", **LIST),
        node("y", "AddV2", "kept", "new", T=F),
    ]
    found = fold(read(tmp_path, *nodes).graph)
    assert found.ops.name == ("m/list", "y") and arguments(found, "y") == [("m/list", 0), ("v", 1)]


def test_lists_at_unknown_places_are_tensors(tmp_path):
    """Where the place is not known, the list becomes a tensor, and what is taken a part of it."""
    place = placeholder("where", [], "INT32")
    get = node("got", "TensorListGetItem", "l3", "where", "shape", **LIST)
    found = read(tmp_path, *_filled(place, get, node("y", "Abs", "got", T=F))).graph
    assert arguments(found, "got")[:2] == [("got/list", 0), ("where", 1)] and shape(found, "got/list") == (3, 4)
    assert arguments(found, "got/list") == [("v1", 0), ("v2", 1), ("v0", 2)] and shape(found, "y") == (4,)


def test_piles(tmp_path):
    """What was pushed last is popped first."""
    nodes = [placeholder("x", [4]), constant("shape", [4]), constant("n", -1)]
    nodes += [node("l0", "EmptyTensorList", "shape", "n", **LIST)]
    for number, op in enumerate(("Relu", "Neg")):
        nodes += [node(f"v{number}", op, "x", T=F)]
        nodes += [node(f"l{number + 1}", "TensorListPushBack", f"l{number}", f"v{number}", **LIST)]
    nodes += [node("p1", "TensorListPopBack", "l2", "shape", **LIST)]
    nodes += [node("p0", "TensorListPopBack", "p1", "shape", **LIST)]
    found = read(tmp_path, *nodes, node("y", "Sub", "p1:1", "p0:1", T=F)).graph
    assert found.ops.name == ("v0", "v1", "y") and arguments(found, "y") == [("v1", 0), ("v0", 1)]


def test_conditions(tmp_path):
    """A known condition picks its branch; an unknown one stays one op with the constants of both."""
    yes = function("yes", ["a"], [node("r", "Relu", "a", T=F)], {"r": "r:activations:0"})
    no = function("no", ["a"], [weight("w", 2), node("s", "AddV2", "a", "w:output:0", T=F)], {"r": "s:z:0"})
    for condition, kinds in ((constant("if", np.bool_(False)), ["Add"]), (placeholder("if", [], "BOOL"), ["If"])):
        branch = node("b", "If", "if", "x", then_branch="@yes", else_branch="@no", Tout=[F], output_shapes=[(2,)])
        found = read(tmp_path, placeholder("x", [2]), condition, branch, functions=[yes, no]).graph
        assert list(found.ops.kind) == kinds and found.tensors.bytes[-1] == 8 and "w" in found.weights.name


def test_conditions_of_tf1(tmp_path):
    """Switch and Merge: both sides are there, of one shape, and a warning says that both count."""
    nodes = [placeholder("x", [2]), placeholder("if", [], "BOOL"), node("s", "Switch", "x", "if", T=F)]
    nodes += [node("no", "Neg", "s", T=F), node("yes", "Relu", "s:1", T=F), node("m", "Merge", "no", "yes", T=F)]
    reading = read(tmp_path, *nodes, node("y", "Abs", "m", T=F))
    assert shape(reading.graph, "y") == (2,) and reading.graph.n_ops == 5
    assert "both sides of TF1" in reading.warnings[0]


def test_open_dimensions(tmp_path):
    """The first dimension is the batch, others are named after input and axis; both come from the user."""
    nodes = [placeholder("x", [-1, -1, 8]), node("y", "Relu", "x", T=F)]
    found = read(tmp_path, *nodes, dims={"batch": 3, "x:1": 5}).graph
    assert shape(found, "y") == (3, 5, 8) and found.source.options == {"dims": {"batch": 3, "x:1": 5}}
    for dims, match in (
        ({}, "--dim batch=1 --dim x:1=1"),
        ({"batch": 3}, "--dim x:1=1"),
        ({"batch": 3, "x:1": 5, "z": 1}, "no open dimension 'z'"),
        ({"batch": 0}, "'batch' is 0"),
    ):
        with pytest.raises(ModelFileError, match=match):
            read(tmp_path, *nodes, dims=dims)


def test_shapes_of_the_file_help_where_rules_end(tmp_path):
    """An op without a rule has the shape that the file notes; without a note it is unknown, and that is told."""
    nodes = [placeholder("x", [2, 3]), node("own", "MyOp", "x", T=F, _output_shapes=[(2, 7)])]
    reading = read(tmp_path, *nodes, node("y", "Relu", "own", T=F))
    assert shape(reading.graph, "y") == (2, 7) and reading.graph.ops.kind[0] == "tf::MyOp" and reading.warnings == ()
    reading = read(tmp_path, placeholder("x", [2, 3]), node("own", "MyOp", "x", T=F), node("y", "Relu", "own", T=F))
    assert reading.graph.tensors.bytes.tolist() == [24, -1, -1] and "'own', made by tf::MyOp" in reading.warnings[0]


def test_iterators_are_inputs(tmp_path):
    """What an iterator gives are inputs of the model, one per component."""
    get = node("next", "IteratorGetNext", "it", output_types=[F, INT], output_shapes=[(4, 2), (4,)])
    handle = node("it", "IteratorV2", output_types=[F, INT])
    found = read(tmp_path, handle, get, node("y", "Relu", "next", T=F), node("z", "Neg", "next:1", T=INT)).graph
    assert found.tensors.name[:2] == ("next", "next:1") and found.tensors.producer[:2].tolist() == [-1, -1]


def test_element_types(tmp_path):
    """Casts, comparisons and places have the types that they say."""
    found = read(
        tmp_path,
        placeholder("x", [4]),
        constant("axis", 0),
        node("half", "Cast", "x", SrcT=F, DstT=Dtype("HALF")),
        node("small", "Less", "x", "x", T=F),
        node("place", "ArgMax", "x", "axis", T=F),
        node("long", "Cast", "small", SrcT=Dtype("BOOL"), DstT=Dtype("BFLOAT16")),
    ).graph
    types = {name: found.tensors.dtype_name(t) for t, name in enumerate(found.tensors.name)}
    assert types == {"x": "float32", "half": "float16", "small": "bool", "place": "int64", "long": "bfloat16"}

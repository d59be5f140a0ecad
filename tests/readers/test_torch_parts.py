"""The parts of the PyTorch reader: strides, sizes, inlining, and order of writes against what really happens."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from soak import examples

from placewise.errors import GraphError, ModelFileError
from placewise.readers.torch.assemble import assemble
from placewise.readers.torch.inline import inline_bodies
from placewise.readers.torch.sizes import Sizes
from placewise.readers.torch.strides import is_contiguous, is_view
from placewise.readers.torch.symbols import OpenSymbol, evaluate, symbols_in
from placewise.readers.torch.traced_program import (
    Parameter,
    TensorMeta,
    TracedCall,
    TracedProgram,
    ValueRef,
    clean_scope,
)


@given(data=st.data())
def test_views_are_those_of_pytorch(data):
    """A reshape is a view exactly where torch makes one, for permuted, sliced and expanded tensors."""
    torch = pytest.importorskip("torch", reason="compared with torch.Tensor.view")
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    x = torch.zeros(shape).permute(data.draw(st.permutations(range(len(shape)))))
    if data.draw(st.booleans()):
        x = x[tuple(slice(data.draw(st.integers(0, size - 1)), None) for size in x.shape)]
    if data.draw(st.booleans()):
        x = x[None].expand(data.draw(st.integers(1, 3)), *x.shape)
    wanted, rest = [], x.numel()
    while rest > 1:
        wanted.append(data.draw(st.sampled_from([size for size in range(2, rest + 1) if rest % size == 0])))
        rest //= wanted[-1]
    try:
        x.view(wanted)
        possible = True
    except RuntimeError:
        possible = False
    assert is_view(tuple(x.shape), x.stride(), wanted) == possible
    assert is_contiguous(tuple(x.shape), x.stride()) == x.is_contiguous()


@given(data=st.data())
def test_expressions_are_those_of_sympy(data):
    """Any expression of sizes has the value that sympy gives it."""
    sympy = pytest.importorskip("sympy", reason="compared with sympy")
    symbols = [sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1")]
    leaf = st.sampled_from(symbols) | st.integers(1, 9).map(sympy.Integer)
    expression = data.draw(
        st.recursive(
            leaf,
            lambda inner: (
                st.builds(lambda a, b: a + b, inner, inner)
                | st.builds(lambda a, b: a * b, inner, inner)
                | st.builds(lambda a, b: sympy.Max(a, b), inner, inner)
                | st.builds(lambda a: sympy.floor(a / 3), inner)
                | st.builds(lambda a: a**2, inner)
            ),
            max_leaves=6,
        )
    )
    sizes = {name: data.draw(st.integers(1, 40)) for name in ("s0", "s1")}
    value = expression.subs({symbol: sizes[symbol.name] for symbol in symbols})
    assume(abs(value) < 1 << 60)
    text = sympy.srepr(expression)
    assert evaluate(text, sizes) == value
    assert set(symbols_in(text)) == {symbol.name for symbol in expression.free_symbols}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("FloorDiv(Symbol('s0', integer=True), Integer(3))", 3),
        ("floor(Add(Mul(Rational(1, 3), Integer(2)), Mul(Rational(1, 3), Integer(31))))", 11),
        ("Mul(Integer(49), Pow(Integer(49), Integer(-1)))", 1),
        ("Mod(Symbol('s0', integer=True), Integer(3))", 1),
        ("CeilToInt(IntTrueDiv(Symbol('s0'), Integer(4)))", 3),
        ("Add(Mul(Integer(-1), Symbol('s0')), Integer(15))", 5),
        ("Mul(Rational(1, 2), Symbol('s0'))", 5),
        ("Pow(Symbol('s0'), Integer(2))", 100),
    ],
)
def test_expressions_by_hand(text, value):
    """What torch writes, with s0 = 10."""
    assert evaluate(text, {"s0": 10}) == value


@pytest.mark.parametrize(
    "text",
    ["", "1 +", "__import__('os')", "open('x')", "Symbol", "(1).real", "[1]", "Pow(2, Pow(2, 99))", "Mod(1, 0)",
     "Rational(1, 3)", "Unknown(Integer(1))", "x" * 30_000, "Add(Integer('1'), Integer(2))", "LShift(1, -1)",
     "'a'", "True", "lambda: 1", "Max()", "FloorDiv(1)"],
)  # fmt: skip
def test_other_texts_are_no_sizes(text):
    """Anything else than whole-number arithmetic is refused, and nothing is evaluated."""
    with pytest.raises(ValueError, match=r"."):
        evaluate(text, {})


def test_open_symbols():
    """A symbol without a number is named."""
    with pytest.raises(OpenSymbol, match="s9"):
        evaluate("Add(Symbol('s9'), Integer(1))", {"s0": 1})


def test_sizes_by_place():
    """An input and an axis stand for the symbol there; two numbers for one symbol contradict each other."""
    inputs = {"x": ["Symbol('s0')", 4], "y": ["Add(Symbol('s0'), Integer(1))"]}
    sizes = Sizes(inputs, {"x:0": 6})
    assert [sizes.resolve(size, "", "") for size in (*inputs["x"], *inputs["y"])] == [6, 4, 7]
    with pytest.raises(ModelFileError, match="two numbers"):
        Sizes(inputs, {"x:0": 6, "s0": 7})
    assert Sizes(inputs, {"x:0": 6, "s0": 6}).resolve("Symbol('s0')", "", "") == 6


def test_paths():
    """What tracers add to module paths is left out."""
    assert clean_scope("model.layers.3@1") == "model.layers.3"
    assert clean_scope("L['self'].layers.3") == "layers.3"
    assert clean_scope("_empty_nn_module_stack_from_metadata_hook") == ""
    assert clean_scope("") == ""


def _listing(calls, outputs, inputs=("x",), parameters=()):
    names = {name for call in calls for name in call.results} | set(inputs) | {item.value for item in parameters}
    return TracedProgram(
        dict.fromkeys(sorted(names), TensorMeta((2,), "float32")), parameters, inputs, tuple(calls), outputs
    )


def test_bodies_within_bodies():
    """Two bodies inside each other, whose values have the names of values outside, become one row of calls."""
    deepest = _listing(
        [TracedCall("mul", "aten::mul", {"self": ValueRef("a"), "other": ValueRef("x")}, ("mul",))],
        ("mul",),
        ("a", "x"),
    )
    wrap = "higher_order::wrap"
    body = _listing(
        [
            TracedCall("add", "aten::add", {"self": ValueRef("x"), "other": 1}, ("add",), scope="inner"),
            TracedCall("out", wrap, {"0": deepest, "1": ValueRef("add"), "2": ValueRef("x")}, ("out",)),
        ],
        ("out",),
    )
    outer = _listing(
        [
            TracedCall("add", "aten::add", {"self": ValueRef("x"), "other": 2}, ("add",)),
            TracedCall("w", wrap, {"0": "a text", "1": body, "2": ValueRef("add")}, ("w",), scope="here", origin=7),
            TracedCall("relu", "aten::relu", {"self": ValueRef("w")}, ("relu",)),
        ],
        ("relu",),
    )
    flat = inline_bodies(outer)
    assert [(call.name, call.refs, call.scope) for call in flat.calls] == [
        ("add", ["x"], ""),
        ("w.add", ["add"], "inner"),
        ("w.out.mul", ["w.add", "add"], "here"),
        ("relu", ["w.out.mul"], ""),
    ]
    assert [call.origin for call in flat.calls] == [-1, 7, 7, -1]
    assert assemble(flat, None).n_edges == 4


def test_absurd_sizes_are_refused():
    """A tensor of more than 2^62 bytes is named."""
    listing = _listing([TracedCall("add", "aten::add", {"self": ValueRef("x")}, ("add",))], ("add",))
    huge = TracedProgram(
        {**listing.metas, "add": TensorMeta((1 << 40, 1 << 30), "float32")}, (), ("x",), listing.calls, ("add",)
    )
    with pytest.raises(GraphError, match=r"'add' of shape 1099511627776×1073741824 exceeds"):
        assemble(huge, None)


def test_tied_weights_share_a_storage():
    """Two parameters of one storage are two weights, held once; one parameter that is used twice is one weight."""
    parameters = (
        Parameter("p", "a.weight", 1, True),
        Parameter("q", "b.weight", 1, True),
        Parameter("r", "a.weight", 1, True),
    )
    calls = [TracedCall("add", "aten::add", {"self": ValueRef("p"), "other": ValueRef("q")}, ("add",))]
    graph = assemble(_listing(calls, ("add",), (), parameters), None)
    assert graph.weights.name == ("a.weight", "b.weight")
    assert graph.weights.storage.tolist() == [0, 0]


_STEPS = ("add", "view_add", "copy_row", "cat", "flip", "expand", "buffer", "read_buffer", "matmul", "swap")


@examples(8)
@given(steps=st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9))
def test_order_of_writes_is_what_really_happens(steps):
    """Where a result changes with an input when a program runs, its graph has a path; recorded and exported alike."""
    torch = pytest.importorskip("torch", reason="programs are run by PyTorch")
    from torch_models import ancestors, graph_of

    from placewise.readers.torch.example import prepare_example
    from placewise.readers.torch.record import record_calls

    module = _program(torch, steps)
    inputs = [torch.rand(2, 3, dtype=torch.float64) for _ in range(3)]
    with torch.no_grad():
        module.memory.zero_()
        before = [value.clone() for value in module(*(x.clone() for x in inputs))]
        depends = set()
        for place in range(len(inputs)):
            module.memory.zero_()
            changed = [x.clone() + (0.371 if number == place else 0) for number, x in enumerate(inputs)]
            for number, (old, new) in enumerate(zip(before, module(*changed), strict=True)):
                if not torch.equal(old, new):
                    depends.add((number, place))
        module.memory.zero_()
    exported = graph_of(module, tuple(inputs))
    run = assemble(record_calls(prepare_example(module, inputs, {}, {}), "a test"), None)
    for graph in (exported, run):
        names = [f"args_{place}" for place in range(3)]
        results = _result_names(graph, len(before))
        for number, place in depends:
            assert names[place] in ancestors(graph, results[number]) | {results[number]}


def _result_names(graph, count):
    """The last ops are `clone`s, one per result, in order."""
    clones = [name for name, kind in zip(graph.ops.name, graph.ops.kind, strict=True) if kind == "aten::clone"]
    made = dict(zip(graph.tensors.producer.tolist(), graph.tensors.name, strict=True))
    return [made[graph.ops.name.index(name)] for name in clones[-count:]]


def _program(torch, steps):
    class Program(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("memory", torch.zeros(2, 3, dtype=torch.float64))

        def forward(self, *args):
            values = [args[0] + 1, args[1] * 2, args[2] - 1]
            for step, left, right in steps:
                a, b = values[left % len(values)], values[right % len(values)]
                _apply(torch, step, a, b, values, self.memory)
            return [value.sin().clone() for value in values[:4]]

    return Program()


def _apply(torch, step, a, b, values, memory):
    if step == "add":
        a.add_(b)
    elif step == "view_add":
        a[:, 1:][0].mul_(b.sum())
    elif step == "copy_row":
        a[0] = b[1]
    elif step == "cat":
        values.append(torch.cat([a[:1], b[1:]]))
    elif step == "flip":
        values.append(a.t().contiguous().t().flip(0) * b)
    elif step == "expand":
        values.append(a[:1].expand(2, 3) + b)
    elif step == "buffer":
        memory[1].copy_(a[0])
    elif step == "read_buffer":
        values.append(memory + b)
    elif step == "matmul":
        values.append(a @ b.t() @ a)
    else:
        values[0], values[-1] = values[-1], values[0]

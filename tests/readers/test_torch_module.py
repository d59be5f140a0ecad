"""Modules with example inputs: by torch.export, and by one recorded run where that fails."""

from __future__ import annotations

import dataclasses
import sys

import pytest

torch = pytest.importorskip("torch", reason="the modules under test are PyTorch's")

from torch import nn  # noqa: E402
from torch_models import (  # noqa: E402
    Deciding,
    Layered,
    Sequence,
    Stateful,
    UNet,
    ancestors,
    arguments,
    graph_of,
    kinds,
    op,
    outputs,
    products,
)

from placewise.costing.work import work_of  # noqa: E402
from placewise.errors import InputError, MissingExtraError  # noqa: E402
from placewise.readers.torch.example import prepare_example  # noqa: E402
from placewise.readers.torch.module import trace_module  # noqa: E402
from placewise.readers.torch.record import record_calls  # noqa: E402
from placewise.transform.fold import fold  # noqa: E402

IDS = torch.zeros(2, 5, dtype=torch.long)


def record_of(module, *args, **kwargs):
    """The graph of one recorded run, whether torch.export could take the module or not."""
    from placewise.readers.torch.assemble import assemble

    return assemble(record_calls(prepare_example(module, args, kwargs, {}), "a test"), None)


def test_export_is_taken_first():
    """A module that torch.export takes is read from it, without a warning."""
    reading = trace_module(Layered().eval(), (IDS,))
    assert reading.graph.source.format == "torch-module"
    assert reading.graph.source.path == "Layered"
    assert reading.graph.source.view == "raw"
    assert reading.warnings == ()
    assert reading.graph.digest() == graph_of(Layered(), (IDS,)).digest()


def test_mode_is_kept():
    """In training mode dropout drops and statistics are updated; the module stays as it was."""
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5))
    graph = trace_module(module, (torch.zeros(1, 3, 4, 4),)).graph
    assert {"BatchNormalization", "aten::dropout", "Add"} <= set(graph.ops.kind)
    assert module.training
    assert int(module[1].num_batches_tracked) == 0
    graph = trace_module(module.eval(), (torch.zeros(1, 3, 4, 4),)).graph
    assert list(fold(graph).ops.kind) == ["Conv", "BatchNormalization"] or "Identity" in set(graph.ops.kind)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, where it loads its compiler
@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
def test_wrappers_are_looked_through(wrap):
    """A compiled or data-parallel module is the module inside."""
    graph = trace_module(wrap(Layered().eval()), (IDS,)).graph
    assert graph.digest() == trace_module(Layered().eval(), (IDS,)).graph.digest()


def test_meta_modules_take_real_inputs():
    """Inputs follow a module to the meta device."""
    with torch.device("meta"):
        module = UNet().eval()
    graph = trace_module(module, (torch.zeros(2, 3, 8, 8),)).graph
    assert graph.digest() == trace_module(UNet().eval(), (torch.zeros(2, 3, 8, 8),)).graph.digest()


class _Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)

    def forward(self, ids):
        return self.embed(ids) + torch.arange(4)


def test_meta_modules_may_make_tensors_of_their_own():
    """Where a tensor made on the CPU meets one on meta, a CPU without memory stands in; ties stay."""
    with torch.device("meta"):
        module = _Positions()
    reading = trace_module(module, (IDS,))
    assert reading.warnings == ()
    assert list(reading.graph.ops.kind) == ["Gather", "Constant", "Add"]
    assert module.embed.weight.is_meta


def test_fake_modules():
    """A module made under a FakeTensorMode is traced without data."""
    with torch._subclasses.FakeTensorMode():
        module, x = nn.Linear(3, 4), torch.ones(2, 3)
    graph = trace_module(module, (x,)).graph
    assert graph.weights.name == ("weight", "bias")
    assert graph.tensors.shape[1] == (2, 4)


@dataclasses.dataclass
class _Output:
    scores: object
    rest: object = None


class _Boxed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, scale=2, flag=None):
        return _Output(self.linear(x) * scale, {"pair": (x + 1, flag)})


def test_any_class_of_results():
    """Results inside classes that torch does not know are found, and paths and names stay the module's own."""
    reading = trace_module(_Boxed().eval(), (torch.ones(2, 4),), {"scale": 3})
    graph = reading.graph
    assert graph.source.format == "torch-module"
    assert outputs(graph) == {"mul", "add"}
    assert graph.ops.scope[op(graph, "linear")] == "linear"
    assert graph.weights.name == ("linear.weight", "linear.bias")
    assert arguments(graph, "linear")[0] == "x"


def test_autograd_functions_and_adapters():
    """A custom autograd function and a low-rank adapter are the ops that their forward calls."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.down, self.up = nn.Linear(8, 8), nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(Square.apply(x)))

    reading = trace_module(Adapted(), (torch.ones(3, 8),))
    assert reading.warnings == ()
    assert list(reading.graph.ops.kind) == ["Gemm", "Mul", "Gemm", "Gemm", "Add"]
    assert work_of(reading.graph).flops.sum() == 2 * 3 * (64 + 16 + 16) + 2 * 24


def test_dims_resize_the_example():
    """A dimension of an example input can be given another size; values repeat, so that indices stay valid."""
    wide = trace_module(Layered().eval(), (IDS,), dims={"ids:0": 7, "ids:1": 3}).graph
    assert wide.tensors.shape[0] == (7, 3)
    assert wide.source.options == {"dims": {"ids:0": 7, "ids:1": 3}}
    assert wide.digest() == graph_of(Layered(), (torch.zeros(7, 3, dtype=torch.long),)).digest()


def test_numpy_inputs():
    """Arrays stand for tensors."""
    graph = trace_module(Layered().eval(), (IDS.numpy(),)).graph
    assert graph.digest() == graph_of(Layered(), (IDS,)).digest()


def test_the_batch_of_all_inputs():
    """`batch` is the first axis of every input that is as long there as the first input."""
    inputs = {"ids": IDS, "mask": torch.zeros(2, 5, dtype=torch.bool)}
    graph = trace_module(Layered().eval(), (), inputs, dims={"batch": 7}).graph
    shapes = {graph.tensors.name[t]: graph.tensors.shape[t] for t in range(2)}
    assert shapes == {"ids": (7, 5), "mask": (7, 5)}


def test_dims_of_starred_arguments():
    """Arguments that forward takes as a row are called by their places in it."""

    class Starred(nn.Module):
        def forward(self, *args, **kwargs):
            return args[0] * kwargs["by"]

    graph = trace_module(Starred(), (torch.ones(2, 3),), {"by": torch.ones(3)}, dims={"args_0:0": 5}).graph
    assert graph.tensors.shape[graph.tensors.name.index("mul")] == (5, 3)


@pytest.mark.parametrize(
    ("args", "dims", "words"),
    [
        ((), {}, ["forward does not take these inputs", "'ids'"]),
        ((IDS, 1), {}, ["forward does not take these inputs"]),
        ("text", {}, ["not a tuple and a mapping"]),
        ((IDS,), {"ids:2": 3}, ["no input has the dimension 'ids:2'", "ids:0, ids:1"]),
        ((IDS,), {"ids:0": 0}, ["'ids:0' is 0"]),
        ((torch.ones(2, 5),), {}, ["running it fails", "check the module and its inputs"]),
    ],
)
def test_inputs_that_do_not_fit(args, dims, words):
    """Inputs that forward does not take, dimensions that they do not have: a sentence that names the module."""
    with pytest.raises(InputError) as error:
        trace_module(Layered(), args, dims=dims)
    assert all(word in str(error.value) for word in ["Layered", *words])


def test_no_module():
    """Something else than a module, and a module that computes nothing."""
    with pytest.raises(InputError, match=r"int is not an nn\.Module"):
        trace_module(3)
    with pytest.raises(InputError, match="calls no operation"):
        trace_module(nn.Identity(), (torch.ones(2),))


def test_without_pytorch(monkeypatch):
    """A missing PyTorch is named with its extra."""
    import placewise.readers.torch as room

    monkeypatch.setitem(sys.modules, "torch", None)
    for name in ("example", "export", "record"):
        monkeypatch.delattr(room, name, raising=False)
        monkeypatch.delitem(sys.modules, f"{room.__name__}.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=r"placewise\[torch\]"):
        trace_module(None)


def test_a_module_that_decides():
    """torch.export fails: the run that was taken is recorded, and the first warning says why and what that means."""
    module = Deciding().eval()
    reading = trace_module(module, (torch.ones(2, 3, 4),))
    graph = reading.graph
    assert graph.source.format == "torch-modules"
    assert "data-dependent" in reading.warnings[0]
    assert "branches not taken" in reading.warnings[0]
    found = kinds(graph)
    assert [found["linear"], found["layer_norm"], found["cat"]] == ["Gemm", "LayerNormalization", "Concat"]
    assert found["scaled_dot_product_attention"] == "Attention"
    assert graph.ops.attributes[op(graph, "linear")]["module"] == "nn.Linear"
    assert graph.ops.scope[op(graph, "linear")] == "left"
    assert {"linear", "layer_norm", "left.weight", "norm.weight", "x"} <= ancestors(
        graph, "scaled_dot_product_attention"
    )
    assert arguments(graph, "linear_1")[1] == "left.weight"
    assert "right.weight" not in ancestors(graph, "linear_1")
    assert float(module.count) == 0


def test_a_decision_without_data_is_refused():
    """On the meta device there is nothing to look at: the sentence says what helps."""
    with pytest.raises(InputError, match=r"Deciding: torch\.export cannot take it .* give it on a real device"):
        trace_module(Deciding().to("meta"), (torch.ones(2, 3, 4),))


def test_values_through_numpy():
    """A tensor that comes back from numpy is taken to depend on what went there."""

    class Through(nn.Module):
        def forward(self, x, y):
            doubled = torch.from_numpy((x * 2).numpy() * 3) if x.sum() > 0 else x
            return doubled + y

    reading = trace_module(Through(), (torch.ones(2), torch.ones(2)))
    assert {"x", "y"} <= ancestors(reading.graph, "add")


@pytest.mark.parametrize(
    ("module", "example"),
    [
        (UNet(), torch.zeros(2, 3, 8, 8)),
        (Sequence(), IDS),
        (Layered(), IDS),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(2, 5, 8)),
        (nn.GRU(4, 6, 2), torch.zeros(5, 2, 4)),
    ],
)
def test_a_recorded_run_does_the_same_work(module, example):
    """Recorded or exported: the same products, the same weights, every kind with a rule."""
    module = module.eval()
    exported, run = graph_of(module, (example,)), record_of(module, example)
    assert products(run) == products(exported) > 0
    used = [{graph.weights.name[weight] for weight in graph.weight_edges.value} for graph in (exported, run)]
    assert {name.replace("embed", "head") for name in used[0]} == {name.replace("embed", "head") for name in used[1]}
    assert work_of(run).warnings == ()


def test_a_recorded_run_keeps_the_order_of_writes():
    """In-place writes are seen by what reads afterwards, and buffers are as before."""
    module = Stateful().eval()
    graph = record_of(module, torch.ones(3, 8))
    assert {"linear", "mul"} <= ancestors(graph, "add_1")
    assert float(module.steps) == float(module.cache.sum()) == 0


@pytest.mark.filterwarnings("ignore")  # torch warns of torch.jit and torch.ao, which people still have
def test_scripted_and_packed_layers():
    """A scripted module is recorded op by op; the packed weights of a quantized layer are weights."""
    scripted = trace_module(torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.ReLU())), (torch.ones(2, 3),))
    assert "ScriptModule" in scripted.warnings[0]
    assert list(fold(scripted.graph).ops.kind) == ["Gemm", "Relu"]
    packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(30, 40)))
    graph = trace_module(packed, (torch.ones(2, 30),)).graph
    assert graph.weights.bytes.tolist() == [30 * 40, 4 * 40]
    assert work_of(graph).flops.tolist() == [2 * 2 * 30 * 40]


def test_a_lost_reason_is_one_line():
    """What torch says is cut to one line."""

    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError("first\nsecond " * 50)

    with pytest.raises(InputError) as error:
        trace_module(Failing(), (torch.ones(1),))
    assert len(str(error.value)) < 500
    assert "\n" not in str(error.value)

"""Exported programs: one op per call, with the names, paths, weights and order that the module has."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the programs under test are PyTorch's")

from torch import nn  # noqa: E402
from torch_models import (  # noqa: E402
    Layered,
    Stateful,
    UNet,
    ancestors,
    arguments,
    exported,
    graph_of,
    kinds,
    op,
    outputs,
    products,
)

from placewise.costing.work import work_of  # noqa: E402
from placewise.errors import ModelFileError  # noqa: E402
from placewise.readers.torch import read_pt2  # noqa: E402
from placewise.readers.torch.program import graph_of_program  # noqa: E402
from placewise.transform.fold import fold  # noqa: E402

IDS = torch.zeros(2, 5, dtype=torch.long)


@pytest.fixture(scope="module")
def layered():
    return graph_of(Layered(), (IDS,))


def test_calls_become_ops_with_paths(layered):
    """Each call is an op, in the vocabulary of ONNX, with its module's path and its number as origin."""
    found = kinds(layered)
    assert found["linear"] == "Gemm"
    assert found["embedding"] == "Gather"
    assert found["layer_norm"] == "LayerNormalization"
    assert found["topk"] == "TopK"
    assert layered.ops.scope[op(layered, "linear")] == "block.0"
    assert layered.ops.scope[op(layered, "linear_3")] == "block.2"
    assert layered.ops.scope[op(layered, "topk")] == ""
    origins = [origin for origin in layered.ops.origin if origin]
    assert origins == sorted(origins)


def test_arguments_stand_where_onnx_has_them(layered):
    """Positions are ONNX's: an embedding's table first, a normalization's input before its scale."""
    assert arguments(layered, "embedding") == {0: "head.weight", 1: "ids"}
    assert arguments(layered, "linear") == {0: "add", 1: "block.0.weight", 2: "block.0.bias"}
    assert arguments(layered, "layer_norm") == {0: "add_1", 1: "norm.weight", 2: "norm.bias"}


def test_weights_are_named_and_tied(layered):
    """Parameters, buffers and constants keep their names; two names of one storage are one storage."""
    weights = dict(zip(layered.weights.name, layered.weights.storage.tolist(), strict=True))
    assert {"embed.weight", "head.weight", "scale", "shift", "block.2.bias"} <= set(weights)
    assert weights["embed.weight"] == weights["head.weight"]
    assert len(set(weights.values())) == len(weights) - 1


def test_results_of_one_call_are_its_tensors(layered):
    """Taking a result out of several is no op: the results belong to the call."""
    names = [layered.tensors.name[tensor] for tensor in layered.outputs_of(op(layered, "topk"))]
    assert names == ["getitem", "getitem_1"]
    assert [layered.tensors.shape[tensor] for tensor in layered.outputs_of(op(layered, "topk"))] == [(2, 5, 2)] * 2
    assert layered.tensors.dtype_name(layered.outputs_of(op(layered, "topk"))[1]) == "int64"
    assert outputs(layered) == {"linear_4", "getitem", "getitem_1"}


def test_meta_module_gives_the_same_graph(layered):
    """Weights without data: same structure, shapes and ties."""
    with torch.device("meta"):
        graph = graph_of(Layered(), (IDS.to("meta"),))
    assert graph.digest() == layered.digest()
    assert graph.weights.storage.tolist() == layered.weights.storage.tolist()


def test_keyword_inputs_have_their_names():
    """An optional argument that is given becomes an input; None, numbers and switches do not."""
    graph = graph_of(Layered(), (IDS,), {"mask": torch.zeros(2, 5, dtype=torch.bool), "twice": False})
    inputs = [graph.tensors.name[t] for t in range(graph.n_tensors) if graph.tensors.producer[t] < 0]
    assert sorted(inputs) == ["ids", "mask"]
    assert arguments(graph, "masked_fill")[0] == "unsqueeze"
    assert "linear_3" not in graph.ops.name


def test_reads_wait_for_writes_in_place():
    """A value written through a view is read after the write, and a buffer's last contents are kept."""
    graph = graph_of(Stateful(), (torch.ones(3, 8),))
    assert {"linear", "mul_"} <= ancestors(graph, "add")
    assert "copy_" in ancestors(graph, "sum_1")
    assert {"add_", "copy_"} <= outputs(graph)
    assert {"add_", "copy_", "mul_"} <= set(fold(graph).ops.name)


def test_waiting_costs_no_traffic():
    """What an op only waits for is not among the bytes that it moves."""
    graph = graph_of(Stateful(), (torch.ones(3, 8),))
    add = op(graph, "add")
    assert "mul_" in [graph.tensors.name[tensor] for tensor in graph.inputs_of(add)]
    assert work_of(graph).bytes[add] == 2 * 3 * 8 * 4


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_functional_mutations_are_outputs():
    """After decomposition a buffer's new contents are a result that nobody returns: it stays all the same."""
    program = exported(Stateful().eval(), (torch.ones(3, 8),)).run_decompositions({})
    graph = fold(graph_of_program(program))
    assert len(outputs(graph)) == 4
    assert "linear.weight" in graph.weights.name


def test_views_are_free_and_copies_are_not():
    """Transpose, slice and split move nothing; a reshape of what was transposed does."""

    class Views(nn.Module):
        def forward(self, x):
            turned = x.transpose(0, 1)
            left, _ = turned.split([1, 2], 0)
            return turned.reshape(-1), left[:, 1:], turned.contiguous(), x.view(-1)

    graph = graph_of(Views(), (torch.ones(4, 3),))
    work = work_of(graph)
    moved = {name: float(size) for name, size in zip(graph.ops.name, work.bytes, strict=True) if size}
    assert moved == {"reshape": 2 * 48, "contiguous": 2 * 48}


def test_bodies_that_run_once_are_spliced_in():
    """Autocast and no_grad are no ops: what happens inside is part of the graph."""

    class Guarded(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                y = self.linear(x)
            with torch.set_grad_enabled(torch.is_grad_enabled()), torch.no_grad():
                z = y * 2
            return z + 1

    with torch.enable_grad():
        graph = graph_of_program(torch.export.export(Guarded(), (torch.ones(2, 4),), strict=False))
    assert list(graph.ops.kind) == ["Gemm", "Mul", "Add"]
    assert graph.ops.scope[0] == "linear"
    assert graph.ops.dtype_name(0) == "bfloat16"
    assert graph.n_edges == 2


def test_branches_are_one_op():
    """A condition on data is one op that reads the weights of both branches."""

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return torch.cond(x.sum() > 0, self.left, self.right, (x,))

    graph = graph_of(Branching(), (torch.ones(2, 4),))
    assert kinds(graph)["cond"] == "If"
    read = set(arguments(graph, "cond").values())
    assert read == {"gt", "x", "left.weight", "left.bias", "right.weight", "right.bias"}
    assert any("If" in warning for warning in work_of(graph).warnings)


def test_dimensions_by_symbol_and_by_place():
    """A program with an open batch is, once a number is given, the program exported with that number."""
    batch = {"x": {0: torch.export.Dim("batch", max=64)}}
    program = exported(UNet().eval(), (torch.zeros(4, 3, 8, 8),), dynamic_shapes=batch)
    fixed = graph_of(UNet(), (torch.zeros(6, 3, 8, 8),))
    by_place = graph_of_program(program, dims={"x:0": 6})
    symbol = next(iter(program.range_constraints)).name
    assert by_place.digest() == fixed.digest()
    assert graph_of_program(program, dims={symbol: 6}).digest() == fixed.digest()
    assert graph_of_program(program, dims={"batch": 6}).digest() == fixed.digest()


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ({}, ["symbolic", "x:0", "--dim x:0=1"]),
        ({"rows": 3}, ["no dimension 'rows'", "x:0"]),
        ({"x:0": 0}, ["'x:0' is 0", "from 1"]),
    ],
)
def test_open_dimensions_are_refused(dims, words):
    """A dimension without a number, one that does not exist, and one that is no size."""
    program = exported(nn.ReLU(), (torch.zeros(4, 3),), dynamic_shapes={"input": {0: torch.export.Dim("batch")}})
    words = [word.replace("x:0", "input:0") for word in words]
    with pytest.raises(ModelFileError) as error:
        graph_of_program(program, dims={name.replace("x:", "input:"): number for name, number in dims.items()})
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("given", "taken", "refused", "words"),
    [
        ({"min": 1, "max": 64}, [1, 64], [65], "from 1 to 64"),
        ({"min": 3}, [3, 1000], [2], "from 3"),
        ({}, [1, 1000], [], ""),
        (None, [1, 2, 1000], [], ""),
    ],
)
def test_sizes_are_those_of_the_exported_range(tmp_path, given, taken, refused, words):
    """In memory and in an archive; without a range, all are taken, as where torch finds out what is open."""
    batch = torch.export.Dim.AUTO if given is None else torch.export.Dim("batch", **given)
    program = exported(nn.ReLU(), (torch.zeros(4, 3),), dynamic_shapes={"input": {0: batch}})
    path = tmp_path / "program.pt2"
    torch.export.save(program, path)
    for size in taken:
        dims = {"input:0": size}
        assert graph_of_program(program, dims=dims).tensors.shape[0] == (size, 3)
        assert read_pt2(path, dims=dims).graph.tensors.shape[0] == (size, 3)
    for size in refused:
        message = (
            f"dimension 'input:0' is {size}, and the program was exported for sizes {words}; give a size {words}, or"
        )
        with pytest.raises(ModelFileError, match=message):
            graph_of_program(program, dims={"input:0": size})
        with pytest.raises(ModelFileError, match=message):
            read_pt2(path, dims={"input:0": size})


class _Repeated(nn.Module):
    def forward(self, x, times):
        return x.expand(times, 3) * 2


def test_open_numbers(tmp_path):
    """An input that is an open number is given by its name, or by its symbol; so it is in an archive."""
    open_number = {"x": None, "times": torch.export.Dim.DYNAMIC}
    program = exported(_Repeated(), (torch.zeros(1, 3), 4), dynamic_shapes=open_number)
    symbol = next(iter(program.range_constraints)).name
    graphs = [graph_of_program(program, dims={name: 5}) for name in ("times", symbol)]
    torch.export.save(program, tmp_path / "program.pt2")
    graphs.append(read_pt2(tmp_path / "program.pt2", dims={"times": 5}).graph)
    assert [graph.tensors.shape[graph.tensors.name.index("mul")] for graph in graphs] == [(5, 3)] * 3
    with pytest.raises(ModelFileError, match=f"'{symbol}' \\(times\\) is symbolic.*--dim times=1"):
        graph_of_program(program)


class _Found(nn.Module):
    def forward(self, x):
        return torch.nonzero(x) * 2


def test_sizes_from_data_are_asked_for():
    """A size that only the data decide is refused with its name, and taken when it is given, as far as it can be."""
    program = exported(_Found(), (torch.ones(4),))
    with pytest.raises(ModelFileError, match=r"size 'u0' of tensor 'nonzero'.*depends on the data.*--dim u0=1"):
        graph_of_program(program)
    graph = graph_of_program(program, dims={"u0": 3})
    assert graph.tensors.shape[graph.tensors.name.index("mul")] == (3, 1)
    with pytest.raises(ModelFileError, match=r"'u0' is 5, .* sizes from 1 to 4; give a size from 1 to 4$"):
        graph_of_program(program, dims={"u0": 5})


def test_numbers_from_data_keep_their_order():
    """A Python number that an op took out of a tensor ties its users to that op."""

    class Scaled(nn.Module):
        def forward(self, x, y):
            return y * (x.sum().item() * 2 + 1)

    graph = graph_of(Scaled(), (torch.ones(4), torch.ones(3)))
    assert {"x", "y", "item"} <= ancestors(graph, "mul_1" if "mul_1" in graph.tensors.name else "mul")


def test_custom_operators_keep_their_names():
    """An operator of a library of one's own is an op, priced by its bytes, in its place also if it only writes."""
    library = torch.library.Library("placewise_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.define("scale(Tensor(a!) x, float by) -> ()")
    for name, function in (("twice", lambda x: x * 2), ("scale", lambda x, by: x.mul_(by) and None)):
        library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake("placewise_test::scale", lambda x, by: None, lib=library)

    class Custom(nn.Module):
        def forward(self, x):
            y = x + 1
            torch.ops.placewise_test.scale(y.view(-1), 2.0)
            return torch.ops.placewise_test.twice(y)

    graph = graph_of(Custom(), (torch.ones(2, 3),))
    assert kinds(graph) == {
        "add": "Add", "view": "Reshape", "scale": "placewise_test::scale", "twice": "placewise_test::twice",
    }  # fmt: skip
    assert "scale:written" in ancestors(graph, "twice")
    work = work_of(graph)
    assert work.bytes[op(graph, "twice")] == 2 * 24
    assert any("placewise_test::twice" in warning for warning in work.warnings)


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_decomposed_programs_do_the_same_work():
    """Core ATen or not: the products are the same, and no kind is without a rule."""
    module, args = UNet().eval(), (torch.zeros(2, 3, 8, 8),)
    program = exported(module, args)
    plain, decomposed = graph_of_program(program), graph_of_program(program.run_decompositions())
    assert products(plain) == products(decomposed) > 0
    assert work_of(plain).warnings == work_of(decomposed).warnings == ()


def test_constants_fold():
    """Lifted constants, positions and masks made from numbers are known before the model runs."""

    class Constants(nn.Module):
        def forward(self, x):
            positions = torch.arange(4).unsqueeze(0).float()
            return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + nn.functional.dropout(positions.to(x.dtype), 0.5, False)

    graph = fold(graph_of(Constants(), (torch.ones(2, 4),)))
    assert list(graph.ops.kind) == ["Mul", "Add"]

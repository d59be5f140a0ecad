"""Archives of torch.export: the same graph as the live program, and a clear sentence for everything else."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from locations import DATA
from soak import examples

from placewise.errors import InputError
from placewise.readers.torch import looks_like_pt2, read_pt2

COMMITTED = DATA / "torch" / "layered.pt2"


def rewritten(path, change, *, name="copy.pt2", compression=zipfile.ZIP_STORED):
    """A copy of the committed archive in which `change` (member, bytes → bytes, or None to drop it) was applied."""
    copy = path / name
    with zipfile.ZipFile(COMMITTED) as source, zipfile.ZipFile(copy, "w", compression) as target:
        for info in source.infolist():
            data = change(info.filename, source.read(info))
            if data is not None:
                target.writestr(info.filename, data)
    return copy


def with_program(path, change):
    """A copy in which `change` was applied to the parsed program."""

    def edit(name, data):
        if not name.endswith("models/model.json"):
            return data
        program = json.loads(data)
        return json.dumps(change(program) or program).encode()

    return rewritten(path, edit)


def test_committed_archive():
    """An archive of PyTorch 2.13 keeps its structure: 5 matrix products, a tie, an open batch."""
    graph = read_pt2(COMMITTED, dims={"ids:0": 3}).graph
    assert graph.n_ops == 13
    assert list(graph.ops.kind).count("Gemm") == 5
    storage = dict(zip(graph.weights.name, graph.weights.storage.tolist(), strict=True))
    assert storage["embed.weight"] == storage["head.weight"]
    assert graph.tensors.shape[graph.tensors.name.index("ids")] == (3, 5)
    assert graph.source.format == "torch-export"
    assert graph.source.view == "raw"
    assert graph.source.options == {"dims": {"ids:0": 3}}


def with_range(path, least, largest):
    """A copy whose open dimension was exported for this range; null for no end."""

    def change(program):
        (symbol,) = program["range_constraints"]
        program["range_constraints"][symbol] = {"min_val": least, "max_val": largest}

    return with_program(path, change)


@pytest.mark.parametrize(
    ("least", "largest", "size", "words"),
    [
        (1, 64, 65, "from 1 to 64"),
        (0, 64, 100, "from 1 to 64"),
        (2, 64, 65, "from 2 to 64"),
        (5, 64, 4, "from 5 to 64"),
        (5, None, 4, "from 5"),
        (5, 2**63 - 2, 1, "from 5"),
        (None, 8, 9, "from 1 to 8"),
    ],
)
@pytest.mark.parametrize("name", ["ids:0", "batch", "s23"])
def test_sizes_out_of_the_exported_range_are_refused(tmp_path, least, largest, size, words, name):
    """The dimension is named as the user did, with its size and the range, and what to do."""
    said = (
        f"dimension '{name}' is {size}, and the program was exported for sizes {words}; give a size {words}, or export"
    )
    with pytest.raises(InputError) as caught:
        read_pt2(with_range(tmp_path, least, largest), dims={name: size})
    assert str(caught.value).endswith(f"copy.pt2: {said} it with another range")


@pytest.mark.parametrize(
    ("least", "largest", "size"),
    [(1, 64, 1), (1, 64, 64), (0, None, 100), (5, 64, 5), (5, None, 1000), (2, 64, 1), (2, None, 1), (None, None, 1)],
)
def test_sizes_at_the_ends_of_the_exported_range_are_taken(tmp_path, least, largest, size):
    """Also 1 where the range begins with 2: torch.export writes that where nobody gave a minimum."""
    graph = read_pt2(with_range(tmp_path, least, largest), dims={"ids:0": size}).graph
    assert graph.tensors.shape[graph.tensors.name.index("ids")] == (size, 5)


def test_pytorch_is_not_needed():
    """ImportedModel an archive imports nothing of PyTorch."""
    code = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path; "
        "from placewise.readers.torch import read_pt2; "
        f"print(read_pt2(Path({str(COMMITTED)!r}), dims={{'ids:0': 2}}).graph.n_ops)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "13"


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("name", ["Layered", "Stateful", "UNet", "Sequence", "decomposed", "branching", "data"])
def test_same_graph_as_the_live_program(tmp_path, name):
    """Archive and program agree in structure, names, paths, attributes, storages and origins."""
    torch = pytest.importorskip("torch", reason="the programs are PyTorch's")
    import torch_models

    from placewise.readers.torch.program import graph_of_program

    ids = torch.zeros(2, 5, dtype=torch.long)
    args = {"Layered": ids, "Sequence": ids, "Stateful": torch.ones(3, 8), "UNet": torch.zeros(2, 3, 8, 8)}
    dims = {}
    if name == "decomposed":
        program = torch_models.exported(torch_models.Layered().eval(), (ids,)).run_decompositions()
    elif name == "branching":
        linear = torch.nn.Linear(4, 4)
        linear.forward = lambda x: torch.cond(x.sum() > 0, lambda y: y @ linear.weight, lambda y: y * 2, (x,))
        program = torch_models.exported(linear, (torch.ones(4, 4),))
    elif name == "data":
        module = torch.nn.Identity()
        module.forward = lambda x: torch.nonzero(x) * x.masked_fill(x > 1, float("-inf")).sum().item()
        program, dims = torch_models.exported(module, (torch.ones(4),)), {"u0": 3}
    else:
        program = torch_models.exported(getattr(torch_models, name)().eval(), (args[name],))
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    read = read_pt2(path, dims=dims).graph
    live = graph_of_program(program, dims=dims, source=read.source)
    assert read.digest() == live.digest()
    assert read.ops.name == live.ops.name
    assert read.tensors.name == live.tensors.name
    assert list(read.ops.scope) == list(live.ops.scope)
    assert list(read.ops.attributes) == list(live.ops.attributes)
    assert list(read.ops.origin) == list(live.ops.origin)
    assert read.weights.name == live.weights.name
    assert read.weights.storage.tolist() == live.weights.storage.tolist()


def test_looks():
    """By suffix, or by the signature of a zip file."""
    assert looks_like_pt2(COMMITTED)
    assert looks_like_pt2(Path("not/there.pt2"))
    assert not looks_like_pt2(Path(__file__))
    assert not looks_like_pt2(Path("not/there.bin"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["cannot be read"]),
        (b"", ["the file is empty"]),
        (b"PK\3\4" + bytes(100), ["is not a .pt2 archive"]),
        (b"hello world" * 100, ["is not a .pt2 archive"]),
        (COMMITTED.read_bytes()[:-300], ["is not a .pt2 archive"]),
    ],
)
def test_no_archive(tmp_path, content, words):
    """Missing, empty, cut off or something else: one sentence that names the file."""
    path = tmp_path / "model.pt2"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_pt2(path, dims={"ids:0": 2})
    assert all(word in str(error.value) for word in [*words, "model.pt2"])


def test_checkpoints_are_not_unpickled(tmp_path):
    """A file of torch.save is refused by its looks: nothing in it runs."""
    path = tmp_path / "weights.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights/data.pkl", b"cos\nsystem\n(S'touch hacked'\ntR.")
    with pytest.raises(InputError, match=r"checkpoint of torch\.save.*unpickled.*torch\.export"):
        read_pt2(path)


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "model/../../evil", "model\\..\\evil"])
def test_paths_that_lead_outside(tmp_path, name):
    """An archive with a member outside of it is refused."""
    path = rewritten(tmp_path, lambda _, data: data)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(InputError, match="points outside"):
        read_pt2(path, dims={"ids:0": 2})


def test_bombs(tmp_path):
    """A description that unpacks to a thousand times its size is refused before it is unpacked."""
    path = rewritten(
        tmp_path,
        lambda name, data: b" " * (64 << 20) if name.endswith("models/model.json") else data,
        compression=zipfile.ZIP_DEFLATED,
    )
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InputError, match="unpack to 67108864 bytes"):
        read_pt2(path)


def test_too_many_members(tmp_path):
    """The number of members is looked at before the list of them is read."""
    data = bytearray(COMMITTED.read_bytes())
    place = data.rfind(b"PK\5\6")
    data[place + 12 : place + 16] = (1 << 30).to_bytes(4, "little")
    path = tmp_path / "many.pt2"
    path.write_bytes(data)
    with pytest.raises(InputError, match="the archive lists"):
        read_pt2(path)


def test_compressed_archives_are_read(tmp_path):
    """Deflated members are fine."""
    path = rewritten(tmp_path, lambda _, data: data, compression=zipfile.ZIP_DEFLATED)
    dims = {"ids:0": 2}
    assert read_pt2(path, dims=dims).graph.digest() == read_pt2(COMMITTED, dims=dims).graph.digest()


def test_several_programs(tmp_path):
    """An archive with two programs is refused, and both are named."""
    path = rewritten(tmp_path, lambda _, data: data)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("layered/models/other.json", b"{}")
    with pytest.raises(InputError, match=r"holds 2 programs \(model, other\)"):
        read_pt2(path)


def test_future_versions_are_told(tmp_path):
    """A later schema is read as the one that is known, and a warning says so."""

    def later(program):
        program["schema_version"]["major"] = 9

    reading = read_pt2(with_program(tmp_path, later), dims={"ids:0": 2})
    assert "schema version 9" in reading.warnings[0]


def test_archives_without_a_list_of_weights(tmp_path):
    """Sizes of weights stand in the program too; that ties are lost is told."""
    path = rewritten(tmp_path, lambda name, data: None if name.endswith("weights_config.json") else data)
    reading = read_pt2(path, dims={"ids:0": 2})
    full = read_pt2(COMMITTED, dims={"ids:0": 2}).graph
    assert reading.graph.digest() == full.digest()
    assert "tied" in reading.warnings[0]
    assert len(set(reading.graph.weights.storage.tolist())) == len(set(full.weights.storage.tolist())) + 1


def _first_shape(size):
    def change(program):
        program["graph_module"]["graph"]["tensor_values"]["linear"]["sizes"][0] = size

    return change


def _weight_called(name):
    def change(program):
        program["graph_module"]["signature"]["input_specs"][0]["parameter"]["parameter_name"] = name

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda program: program.pop("graph_module") and None, "not in the format of torch.export"),
        (lambda program: [1, 2], "not in the format of torch.export"),
        (lambda program: program["graph_module"]["graph"].update(nodes=[]), "no operations"),
        (_first_shape({"as_int": -4}), "has the shape"),
        (_first_shape({"as_int": 1 << 70}), "has the shape"),
        (_first_shape({"as_int": 1 << 60}), "exceeds 2^62 bytes"),
        (_first_shape({"as_expr": {"expr_str": "__import__('os').system('true')"}}), "is not arithmetic"),
        (_first_shape({"as_expr": {"expr_str": "Pow(Integer(9), Integer(999999999))"}}), "too large"),
        (_first_shape({"as_expr": {"expr_str": "Pow(" * 300 + "1" + ")" * 300}}), "cannot be evaluated"),
        (_first_shape({"as_expr": {"expr_str": "Symbol('u3', integer=True)"}}), "--dim u3=1"),
        (_first_shape("four"), "not in the format of torch.export"),
        *((_weight_called(name), "is no text") for name in (None, True, 3, float("nan"), [], {})),
    ],
)
def test_damaged_programs(tmp_path, change, words):
    """Missing parts, absurd sizes and hostile expressions: one sentence, nothing evaluated."""
    with pytest.raises(InputError) as error:
        read_pt2(with_program(tmp_path, change), dims={"ids:0": 2})
    assert words in str(error.value)
    assert "copy.pt2" in str(error.value)


@examples(150)
@given(data=st.data())
def test_mutated_bytes(tmp_path_factory, data):
    """Any bytes changed anywhere: a graph or an error of ours, nothing else."""
    content = bytearray(COMMITTED.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("mutated") / "model.pt2"
    path.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    _read_or_refuse(path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@examples(60)
@given(data=st.data())
def test_mutated_programs(tmp_path_factory, data):
    """Any part of the program replaced by anything or dropped: a graph or an error of ours."""

    def change(program):
        part = program["graph_module"]
        for _ in range(data.draw(st.integers(1, 9))):
            keys = sorted(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
            if not keys:
                return
            key = data.draw(st.sampled_from(list(keys)))
            below = part[key]
            if not isinstance(below, (dict, list)) or not below or data.draw(st.integers(0, 5)) == 0:
                if data.draw(st.booleans()):
                    part[key] = data.draw(_JSON)
                else:
                    del part[key]
                return
            part = below

    _read_or_refuse(with_program(tmp_path_factory.mktemp("mutated"), change))


def _read_or_refuse(path):
    try:
        graph = read_pt2(path, dims={"ids:0": 2}).graph
    except InputError as error:
        assert str(path) in str(error)
    else:
        assert graph.n_ops > 0


def test_inputs_may_have_the_names_of_fields(tmp_path):
    """Their names are keys of the table of values, where "target" is no call's."""
    torch = pytest.importorskip("torch")

    class Named(torch.nn.Module):
        def forward(self, target, name, expr_str, as_name, parameter_name):
            return target * name + expr_str * as_name - parameter_name

    path = tmp_path / "named.pt2"
    torch.export.save(torch.export.export(Named(), tuple(torch.ones(2) for _ in range(5))), path)
    graph = read_pt2(path).graph
    inputs = [name for name, producer in zip(graph.tensors.name, graph.tensors.producer, strict=True) if producer < 0]
    assert sorted(inputs) == ["as_name", "expr_str", "name", "parameter_name", "target"]

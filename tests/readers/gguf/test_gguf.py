"""GGUF files: exact bytes, the graph of every architecture, damaged and foreign files."""

from __future__ import annotations

import json
import math
import shutil
import struct
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from gguf_models import FAMILIES, HEAD, KV_HEADS, pack, tiny_model, write_mixture, write_model

import placewise as pw
from placewise.costing.work import work_of
from placewise.errors import InputError, ModelFileError
from placewise.exporters.base import Exported
from placewise.exporters.registry import create_exporter
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.reader import read_gguf
from placewise.readers.gguf.types import CACHE_TYPES, TYPES, find_type
from placewise.simulate import judge_placement

SIZES = {"prompt": 16, "tokens": 8}
WHOLE = {**SIZES, "context": 256}


def decode_of(graph: Graph) -> np.ndarray:
    """The ops of the second phase."""
    return np.flatnonzero(graph.ops.phase == 1)


def test_types_are_those_of_ggml() -> None:
    """Every type that the package gguf knows is known, with the same block and the same bytes.

    The newest of ggml is Q2_0, which no published version of the package knows.
    """
    gguf = pytest.importorskip("gguf")
    theirs = {t.value: (t.name, *gguf.GGML_QUANT_SIZES[t]) for t in gguf.GGMLQuantizationType}
    ours = {number: tuple(known) for number, known in TYPES.items()}
    assert ours == {42: ("Q2_0", 64, 18)} | theirs
    assert all(find_type(name).name == name.upper() for name in CACHE_TYPES)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["Q4_0", "F16"])
def test_bytes_are_those_of_the_file(family: str, kind: str, tmp_path: Path) -> None:
    """Of every architecture, all tensors are weights of some op, with the bytes that the package gguf wrote.

    An output that predicts by a repacked embedding has a copy of its own, as `test_llama_cpp` counts it. Layers of
    multi-token prediction are left out, with a note.
    """
    gguf = pytest.importorskip("gguf")
    known = FAMILIES[family]
    layers = max(2, known.least)
    path = write_model(tmp_path / "model.gguf", family, layers=layers, kind=kind)
    model = read_gguf(path, dims=SIZES)
    graph, theirs = model.graph, gguf.GGUFReader(path)
    written = {one.name: int(one.n_bytes) for one in theirs.tensors if f"blk.{layers}." not in one.name}
    assert len(written) < len(theirs.tensors) or not known.ahead
    if known.tied and kind == "Q4_0":
        written["output.weight"] = written["token_embd.weight"]
    assert dict(zip(graph.weights.name, graph.weights.bytes.tolist(), strict=True)) == written
    omitted = [note for note in model.warnings if "not known" in note or "omitted" in note]
    assert len(omitted) == (1 if known.ahead else 0)
    used = np.unique(graph.weight_edges.value)
    assert len(used) == len(graph.weights)
    both = [np.sort(graph.ops.group[graph.ops.phase == phase]) for phase in (0, 1)]
    assert (both[0] == both[1]).all(), "each op of one phase has its partner in the other"


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma4"])
def test_a_token_reads_its_rows_of_a_table(family: str, tmp_path: Path) -> None:
    """And not the whole table: an embedding takes what is written of it, twice, and the numbers of the tokens."""
    pytest.importorskip("gguf")
    graph = read_gguf(write_model(tmp_path / "model.gguf", family), dims=SIZES).graph
    lookups, work = np.flatnonzero(graph.ops.kind.equals("Gather")), work_of(graph)
    assert len(lookups) == (2 if family == "llama" else 4)
    for op in lookups.tolist():
        (result,) = graph.outputs_of(op)
        numbers = SIZES["prompt"] if graph.ops.phase[op] == 0 else 1
        assert work.bytes[op] == 2 * graph.tensors.bytes[result] + 4 * numbers


def test_work_is_that_of_the_same_hugging_face_model(tmp_path: Path) -> None:
    """A Llama read from either format has the same FLOPs, but those that a mask leaves out, and the same cache."""
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    write_model(tmp_path / "model.gguf", "llama", kind="F16")
    config = {
        "model_type": "llama", "vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "dtype": "float16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours, theirs = (pw.read_model(tmp_path / name, dims=WHOLE) for name in ("model.gguf", "config.json"))
    for graph in (ours, theirs):
        assert graph.ops.state_bytes.sum() == 3 * 2 * KV_HEADS * HEAD * 256 * 2
    flops = [
        [work_of(graph).flops[(graph.ops.phase == phase) & (np.array(list(graph.ops.kind)) == kind)].sum()
         for phase, kind in ((0, "Gemm"), (1, "Gemm"), (1, "Attention"), (0, "Attention"))] for graph in (ours, theirs)
    ]  # fmt: skip
    assert flops[0].pop() == flops[1].pop() * (16 + 1) / (2 * 16)
    assert flops[0] == flops[1]
    weights = [int(graph.weights.bytes.sum()) for graph in (ours, theirs)]
    assert weights[0] == pytest.approx(weights[1], rel=0.01)  # norms are float32 in one of them


@pytest.mark.parametrize("name", CACHE_TYPES)
def test_the_cache_has_the_bytes_of_its_type(name: str, tmp_path: Path) -> None:
    """Keys and values of all layers, at the context asked for, in multiples of 256; two types are keys and values."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model(head=32))
    sizes = {"prompt": 4, "tokens": 4, "context": 200, "batch": 2}
    known = find_type(name)
    entries = 2 * 2 * 256 * 32  # layers, sequences, positions, width of keys or values: the window is wider
    state = read_gguf(path, dims=sizes, cache_type=name).graph.ops.state_bytes.sum()
    assert state == 2 * entries * known.block_bytes / known.block
    mixed = read_gguf(path, dims=sizes, cache_type=f"f16,{name}").graph.ops.state_bytes.sum()
    assert mixed == entries * 2 + entries * known.block_bytes / known.block


@pytest.mark.parametrize("name", CACHE_TYPES)
def test_a_token_reads_the_bytes_of_its_type(name: str, tmp_path: Path) -> None:
    """Of all positions that a layer without a window sees, scales included, beside what is new, read and written."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model(head=32))
    graph = read_gguf(path, dims={"prompt": 100, "tokens": 8}, cache_type=f"f16,{name}").graph
    work, known = work_of(graph), find_type(name)
    ops = [op for op in range(graph.n_ops) if graph.ops.kind[op] == "CacheUpdate" and graph.ops.phase[op] == 1]
    assert work.bytes[ops[-1]] == 2 * 2 * 32 * 4 + 105 * 32 * (2 + known.block_bytes / known.block)


def test_latent_attention_reads_its_cache_once(tmp_path: Path) -> None:
    """Its values are a part of the keys."""
    pytest.importorskip("gguf")
    graph = read_gguf(write_model(tmp_path / "model.gguf", "deepseek2"), dims={"prompt": 100, "tokens": 8}).graph
    ops = [op for op in range(graph.n_ops) if graph.ops.kind[op] == "CacheUpdate" and graph.ops.phase[op] == 1]
    width = graph.tensors.shape[int(graph.outputs_of(ops[0])[0])][-1]
    new = sum(int(graph.tensors.bytes[tensor]) for tensor in graph.inputs_of(ops[0]))
    assert work_of(graph).bytes[ops[0]] == 2 * new + 105 * width * 2


@pytest.mark.parametrize(
    ("family", "cache", "words"),
    [("", "q8_0", "keys of 16 entries per head are no whole blocks of 32"),
     ("", "f16,q4_1", "values of 16 entries per head .*; choose one of f32, f16, bf16"),
     ("deepseek2", "f16,bf16", "not bf16 beside f16; give one type, as --cache-type f16"),
     ("deepseek2", "q8_0", "keys of 80 entries"), ("deepseek2", "bf16", ""), ("deepseek2-older", "f16,q8_0", "")],
)  # fmt: skip
def test_caches_that_llama_cpp_refuses(family: str, cache: str, words: str, tmp_path: Path) -> None:
    """A head is whole blocks of a quantized type, and latent attention has one type for keys and values."""
    path = tmp_path / "model.gguf"
    if family:
        pytest.importorskip("gguf")
        write_model(path, family, layers=2)
    else:
        path.write_bytes(tiny_model())
    with pytest.raises(InputError, match=words) if words else nullcontext():
        read_gguf(path, cache_type=cache)


def test_windows_bound_the_cache_and_what_is_seen(tmp_path: Path) -> None:
    """A layer with a sliding window keeps the window and a micro-batch, and attends to the window alone."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model())
    graph = read_gguf(path, dims={"prompt": 2000, "tokens": 48}).graph
    caches = [op for op in range(graph.n_ops) if graph.ops.kind[op] == "CacheUpdate"]
    assert [graph.ops.attributes[op]["capacity"] for op in caches] == [768, 2048] * 2
    assert [graph.ops.attributes[op]["visible"] for op in caches] == [8, 2000, 8, 2025]


def test_experts_are_read_as_they_are_used(tmp_path: Path) -> None:
    """A token reads the experts that it uses: half of the bytes of two experts of which it takes one."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model(experts=True))
    graph = read_gguf(path, dims=SIZES).graph
    (op,) = (op for op in decode_of(graph).tolist() if graph.ops.kind[op] == "Experts")
    assert graph.ops.scope[op] == "blk.1.experts"
    whole = sum(int(graph.weights.bytes[weight]) for weight in graph.weights_of(op))
    assert whole == 3 * 2 * 32 * 34
    read = float(work_of(graph).bytes[op])
    assert whole / 2 < read < whole / 2 + 2000


def test_split_files_are_one_model(tmp_path: Path) -> None:
    """The first part finds the others; a later one names the first, and a missing one is named."""
    pytest.importorskip("gguf")
    whole = write_model(tmp_path / "whole.gguf", "llama")
    first = write_model(tmp_path / "parts.gguf", "llama", split=7)
    assert first.name.startswith("parts-00001-of-")
    together, alone = (read_header(path) for path in (first, whole))
    assert sum(t.nbytes for t in together.tensors) == sum(t.nbytes for t in alone.tensors)
    assert {t.file.name for t in together.tensors} == {path.name for path in tmp_path.glob("parts-*.gguf")}
    last = max(tmp_path.glob("parts-*.gguf"))
    with pytest.raises(ModelFileError, match="give 'parts-00001-of-"):
        read_header(last)
    renamed = shutil.copy(last, tmp_path / "renamed.gguf")
    with pytest.raises(ModelFileError, match=r"is part \d of \d by its metadata, and not by its name"):
        read_header(renamed)
    last.unlink()
    with pytest.raises(ModelFileError, match=f"{last.name}' is missing"):
        read_header(first)


@pytest.mark.parametrize("kind", [8, 9])
def test_endless_arrays_are_refused(kind: int, tmp_path: Path) -> None:
    """Of empty texts, or of empty arrays: more than any vocabulary are not walked one by one."""
    path, count = tmp_path / "model.gguf", (1 << 22) + 1
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, kind, count)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 12 * count)
    with pytest.raises(ModelFileError, match=f"claims {count} values"):
        read_header(path)


def test_a_model_is_placed_and_exported(tmp_path: Path) -> None:
    """A file goes all the way: layers on both devices, a command with the file, its context and its cache."""
    pytest.importorskip("gguf")
    path = write_model(tmp_path / "my model.gguf", "mixtral")
    plan = pw.place(
        path, "RTX3060,cpu", target="llama.cpp", dims={**SIZES, "context": 4096}, cache_type="q8_0",
        max_memory={"cuda:0": "3MiB"}, forbid={"blk\\.2": "cpu"}, headroom=1e-9,
    )  # fmt: skip
    assert plan.status == "optimal" and plan.tokens_per_second
    assert {"layers 0–1", "layers 2"} & {part["name"] for parts in plan.by_module().values() for part in parts}
    plan.save(tmp_path / "plan.json")
    script = str(pw.export(tmp_path / "plan.json", "llama.cpp").exported.files["llama.sh"])
    command = script.splitlines()[-1]
    assert f"-m '{path}'" in command and " -c 4096" in command and "-ctk q8_0 -ctv q8_0" in command


def test_foreign_and_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    """Each is refused for what it is, with the file's name; none is read as something else."""
    path, whole = tmp_path / "tiny.gguf", tiny_model()
    metadata = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 32,
                "llama.attention.head_count": 2}  # fmt: skip
    ends = {"token_embd.weight": (8, 32), "output_norm.weight": (32,)}
    cases = {
        "middle of its header": whole[:200],
        "its weights end at": whole[:-64],
        "byte order of another machine": whole[:4] + struct.pack(">I", 3) + whole[8:],
        "version 1 of the format": whole[:4] + struct.pack("<I", 1) + whole[8:],
        "more than it can hold": whole[:8] + struct.pack("<Q", 1 << 60) + whole[16:],
        "no architecture": pack({}, {}),
        "neither its layers nor its width": pack({"general.architecture": "clip"}, {}),
        "state of 'ssm_in'": pack(metadata, {**ends, "blk.0.ssm_in.weight": (32, 32)}),
        "no projections that are known": pack(metadata, {**ends, "blk.0.attn_norm.weight": (32,)}),
        "no token_embd": pack(metadata, {"blk.0.attn_norm.weight": (32,)}),
    }  # fmt: skip
    for words, data in cases.items():
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match=words) as error:
            read_gguf(path)
        assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["bert", "gemma-embedding", "t5encoder", "dream", "llama"])
def test_models_that_do_not_generate(name: str, tmp_path: Path) -> None:
    """Encoders and diffusion models are refused by name, others by their metadata."""
    path = tmp_path / "model.gguf"
    causal = {"llama.attention.causal": name != "llama"}
    path.write_bytes(tiny_model(**{"general.architecture": name, **causal}))
    with pytest.raises(ModelFileError, match=f"architecture '{name}', whose tokens attend to later ones"):
        read_gguf(path)


def test_a_file_of_this_name_is_read_as_one(tmp_path: Path) -> None:
    """One that does not begin with GGUF is no such file, and not called a broken one of another format."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUX" + tiny_model()[4:])
    with pytest.raises(ModelFileError, match="is no GGUF file"):
        pw.place(path, "L4")


def test_options_that_do_nothing_are_errors(tmp_path: Path) -> None:
    """A type of cache needs a GGUF file; a GGUF file has its precision; types and sizes must exist."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model())
    with pytest.raises(InputError, match="only GGUF models"):
        pw.place("zoo:bert-base", "L4", cache_type="q8_0")
    with pytest.raises(InputError, match="has the types of its weights"):
        pw.place(path, "L4", precision="int8")
    with pytest.raises(InputError, match="no cache of the type 'q9_9'"):
        pw.place(path, "L4", cache_type="q9_9")
    with pytest.raises(InputError, match="width"):
        pw.place(path, "L4", dims={"width": 3})


@pytest.mark.parametrize(
    ("name", "value"),
    [("attention.head_count_kv", 3), ("attention.key_length", 32), ("attention.value_length", 8),
     ("embedding_length", 64), ("attention.head_count", [3, 1])],
)  # fmt: skip
def test_heads_that_are_not_those_of_the_tensors(name: str, value: object, tmp_path: Path) -> None:
    """The cache follows from the metadata, the weights from the tensors: where they differ, nothing is read."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_model(**{f"llama.{name}": value}))
    with pytest.raises(ModelFileError, match=r": (blk\.0\.attn_\w+|token_embd) is .* by the other sizes in the file"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [("token_embd", (8, 64), "8 × 32"), ("output_norm", (64,), "32"), ("output", (16, 32), "8 × 32"),
     ("output", (8, 64), "8 × 32"), ("blk.1.attn_output", (64, 16), "32 × 16"),
     ("blk.1.attn_output", (32, 32), "32 × 16"), ("blk.0.ffn_up", (64, 32), "32 × 32"),
     ("blk.0.ffn_gate", (32, 64), "32 × 32"), ("blk.0.ffn_down", (64, 32), "32 × 32")],
)  # fmt: skip
def test_tensors_that_do_not_fit_each_other(name: str, shape: tuple[int, ...], wanted: str, tmp_path: Path) -> None:
    """llama.cpp loads none of them; what they would be is said."""
    path, found = tmp_path / "model.gguf", " × ".join(map(str, shape))
    path.write_bytes(tiny_model(tensors={f"{name}.weight": shape}))
    with pytest.raises(ModelFileError, match=f": {name} is {found}, and {wanted} by the other sizes in the file"):
        read_gguf(path)


def test_ends_that_only_known_architectures_need(tmp_path: Path) -> None:
    """A last norm with weights, bar OLMo, and an output for all tokens: a new name may have neither."""
    path, without = tmp_path / "model.gguf", {"output_norm.weight": ()}
    sizes = {"block_count": 2, "embedding_length": 32, "attention.head_count": [2, 1], "attention.head_count_kv": 1}
    for name in ("olmo", "new"):
        metadata = {"general.architecture": name, **{f"{name}.{key}": size for key, size in sizes.items()}}
        path.write_bytes(tiny_model(tensors=without, **metadata))
        assert read_gguf(path).graph.n_ops
    path.write_bytes(tiny_model(tensors={**without, "output.weight": (4, 32)}, **metadata))
    assert read_gguf(path).graph.n_ops
    path.write_bytes(tiny_model(tensors=without))
    with pytest.raises(ModelFileError, match=r"has no output_norm\.weight"):
        read_gguf(path)


def test_experts_of_other_shapes(tmp_path: Path) -> None:
    """A matrix for another number of experts, or for none, is named."""
    for shape in ((3, 32, 32), (2 * 32, 32), (32,)):
        path = tmp_path / "model.gguf"
        path.write_bytes(tiny_model(experts=True, tensors={"blk.1.ffn_up_exps.weight": shape}))
        with pytest.raises(ModelFileError, match=r"'blk\.1\.ffn_up_exps\.weight' is no matrix for each of 2 experts"):
            read_gguf(path)


def test_unknown_parts_take_memory(tmp_path: Path) -> None:
    """A new name with known and unknown parts is read: all bytes count where the parts are, which a note names."""
    path, unknown = tmp_path / "new.gguf", {"blk.1.novelty.weight": (64, 32), "altar.weight": (32, 32)}
    path.write_bytes(tiny_model(tensors=unknown).replace(b"llama", b"lamma"))
    model = read_gguf(path, dims=SIZES)
    assert any("'lamma' is not known" in note for note in model.warnings)
    share = 3 * 34 * 32 / sum(tensor.nbytes for tensor in read_header(path).tensors)
    assert f"{share:.1%} of the bytes (blk.1.novelty.weight, …) are in no part that is known" in " ".join(
        model.warnings
    )
    graph = model.graph
    assert math.isclose(graph.weights.bytes.sum(), sum(t.nbytes for t in read_header(path).tensors))
    homes = {
        graph.weights.name[weight]: graph.ops.scope[op] for op in range(graph.n_ops) for weight in graph.weights_of(op)
    }
    assert homes["blk.1.novelty.weight"].startswith("blk.1") and homes["altar.weight"] == "output_norm"
    path.write_bytes(tiny_model())
    known = read_gguf(path, dims=SIZES).graph
    assert work_of(known).bytes.sum() == work_of(graph).bytes.sum()


def test_layers_of_no_number(tmp_path: Path) -> None:
    """A name with a number that no layer has is read like any other name."""
    path = tmp_path / "new.gguf"
    path.write_bytes(tiny_model(tensors={f"blk.{'9' * 5000}.attn_q.weight": (32, 32)}))
    graph = read_gguf(path, dims=SIZES).graph
    assert graph.weights.bytes.sum() == sum(tensor.nbytes for tensor in read_header(path).tensors)


def test_layers_that_share_a_cache(tmp_path: Path) -> None:
    """Gemma 4: the last layers have no keys of their own, and attend to those of an earlier one of their kind."""
    path, name = tmp_path / "model.gguf", "llama.attention."
    keys = {f"{name}shared_kv_layers": 2, f"{name}sliding_window_pattern": [True, False, True, False]}
    gone = {f"blk.{layer}.attn_{part}.weight": () for layer in (2, 3) for part in "kv"}
    path.write_bytes(tiny_model(layers=4, tensors=gone, **keys))
    graph = read_gguf(path, dims=SIZES).graph
    assert [graph.ops.scope[op] for op in range(graph.n_ops) if graph.ops.kind[op] == "CacheUpdate"] == [
        "blk.0.attn", "blk.1.attn",
    ] * 2  # fmt: skip
    maker = graph.tensors.producer
    read = {
        graph.ops.scope[op]: {graph.ops.name[maker[tensor]] for tensor in graph.inputs_of(op)}
        for op in range(graph.n_ops) if graph.ops.kind[op] == "Attention" and graph.ops.phase[op] == 0
    }  # fmt: skip
    assert [f"blk.{layer % 2}.cache" in read[f"blk.{layer}.attn"] for layer in range(4)] == [True] * 4
    path.write_bytes(tiny_model(layers=4, **keys))
    unused = read_gguf(path, dims=SIZES)
    assert unused.graph.ops.state_bytes.sum() == graph.ops.state_bytes.sum()
    assert any("blk.2.attn_k.weight" in note for note in unused.warnings)


def test_latent_attention_of_older_files(tmp_path: Path) -> None:
    """Without the widths of its heads, llama.cpp expands the latent, and keeps the keys and values of every head."""
    pytest.importorskip("gguf")
    entries = {"deepseek2": 64 + 16, "deepseek2-older": 4 * (64 + 32)}
    for family, kept in entries.items():
        graph = read_gguf(write_model(tmp_path / "model.gguf", family, layers=2), dims=WHOLE).graph
        assert graph.ops.state_bytes.sum() == 2 * 256 * kept * 2
    work = work_of(graph)
    (expand,) = (op for op in range(graph.n_ops) if graph.ops.name[op] == "blk.0.attn_kv_b")
    assert work.flops[expand] == 2 * 16 * 64 * 4 * (48 + 32)
    (attend,) = (op for op in range(graph.n_ops) if graph.ops.name[op] == "blk.0.attention")
    assert [graph.tensors.shape[one][1::2] for one in graph.inputs_of(attend)] == [(4, 64), (4, 64), (4, 32)]


def test_a_mixture_on_two_unlike_cards(tmp_path: Path) -> None:
    """48 layers with some 920 MiB of experts each, on cards of 16 and 15 GB, as users of llama.cpp reported.

    Keeping the experts of the first 26 layers in host memory and sharing the layers by memory asks the second card for
    over 20,000 MiB. The plan fits; with less host memory nothing does, and the sentence says what is missing.
    """
    path = write_mixture(tmp_path / "mixture.gguf", layers=48, experts=128, inner=576)
    layer = [tensor for tensor in read_header(path).tensors if tensor.name.startswith("blk.7.ffn_")]
    assert sum(t.nbytes for t in layer if "exps" in t.name) / 2**20 == pytest.approx(933, rel=0.02)
    devices, memory = "RTX4080,RTX3060,cpu@64GiB", {"cuda:0": "16GB", "cuda:1": "15GB"}
    sizes = {"prompt": 512, "tokens": 128, "context": 4096}
    problem = pw.build(path, devices, pw.ProblemOptions(dims=sizes, max_memory=memory))
    away = "|".join(map(str, range(26)))
    text = "\n".join((
        '# CPU is "cpu"', '# CUDA0 is "cuda:0"', '# CUDA1 is "cuda:1"',
        "llama-server -m x --device CUDA0,CUDA1 -ngl 49 --tensor-split 16,15 --override-tensor "
        f"'blk\\.({away})\\.ffn_.*_exps=CPU'",
    ))  # fmt: skip
    exported = Exported({"llama.sh": text}, Placement.on(0, problem.n_ops))
    judged = judge_placement(problem, Placement(create_exporter("llama.cpp").read_back(exported, problem)))
    assert judged.devices[1].peak > 20_000 * 2**20 and not judged.valid
    plan = pw.place(path, devices, target="llama.cpp", dims=sizes, max_memory=memory)
    assert plan.status == "optimal" and plan.result.judgement is not None
    assert all(use.peak <= use.capacity for use in plan.result.judgement.devices)
    none = pw.place(path, devices, target="llama.cpp", dims=sizes, max_memory={**memory, "cpu": "4GiB"})
    assert none.status == "infeasible" and "more than they hold" in none.result.unmet

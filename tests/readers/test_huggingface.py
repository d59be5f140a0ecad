"""Hugging Face configurations: graphs compared with transformers itself and with numbers worked out by hand."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from huggingface_configs import LLAMA_4, SMALL, write_config
from soak import later, sample

from placewise.costing.work import work_of
from placewise.errors import MissingExtraError, ModelFileError
from placewise.model.graph import Graph
from placewise.readers.huggingface import preset_names, read_huggingface
from placewise.transform.fold import fold

torch = pytest.importorskip("torch", reason="configurations are built with PyTorch")
transformers = pytest.importorskip("transformers", reason="configurations are built with transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from placewise.readers.huggingface.instance import build_instance  # noqa: E402
from placewise.readers.huggingface.reader import read  # noqa: E402
from placewise.readers.huggingface.settings import read_settings  # noqa: E402

DIMS = {"prompt": 12, "tokens": 8}
GENERATING = [kind for kind in SMALL if kind not in ("bert", "resnet", "vit")]
SELDOM = ("falcon", "gpt_oss", "mistral", "opt", "qwen2", "qwen3", "qwen3_moe")
"""Decoders like llama, gpt2, gemma2 and mixtral, which `make test` reads: they differ in norms, biases and sizes."""
LIKE_OTHERS = (*SELDOM, "gpt2", "llama", "vit", "whisper")
"""Whose layers follow each other as those of bert and t5 do, all alike, or as those of gemma2 do, in turns."""


def some(kinds: Iterable[str], seldom: Sequence[str] = SELDOM) -> list[Any]:
    """The kinds, some of them for `make soak` alone."""
    return [later(kind) if kind in seldom else kind for kind in kinds]


PUBLISHED = {
    "bert-base": 109_482_240, "bert-large": 335_141_888,
    "deepseek-v3": 671_026_404_352,  # 671.03 B with the 14,848 biases of its routers, which are buffers
    "gemma-2-9b": 9_241_705_984, "gpt-oss-120b": 116_829_156_672, "gpt2": 124_439_808, "gpt2-xl": 1_557_611_200,
    "llama-3-405b": 405_853_388_800, "llama-3-70b": 70_553_706_496, "llama-3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096, "mixtral-8x22b": 140_620_634_112, "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-72b": 72_706_203_648, "qwen2.5-7b": 7_615_616_512, "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264, "t5-base": 222_903_552, "t5-large": 737_668_096, "t5-v1.1-xxl": 11_135_332_352,
    "vit-base": 86_567_656, "vit-large": 304_326_632, "whisper-large-v3": 1_543_490_560,
}  # fmt: skip
"""Parameters as the publishers' model cards count them."""


_READ: dict[str, Graph] = {}
"""Graphs that several tests look at."""


def small(tmp_path, kind, dims=None) -> Graph:
    dims = dims if dims is not None else ({"tokens": 8} if kind == "whisper" else DIMS if kind in GENERATING else {})
    key = f"{kind} {sorted(dims.items())}"
    if key not in _READ:
        _READ[key] = read_huggingface(write_config(tmp_path, kind), dims=dims).graph
    return _READ[key]


def weight_bytes(graph: Graph) -> int:
    return sum(dict(zip(graph.weights.storage.tolist(), graph.weights.bytes.tolist(), strict=True)).values())


def test_every_preset_has_a_published_size():
    """The table of published sizes and the presets name the same models."""
    assert sorted(PUBLISHED) == list(preset_names())


@pytest.mark.parametrize("name", sample(sorted(PUBLISHED)))
def test_presets_have_the_published_number_of_parameters(name):
    """Built on the meta device, each preset has the parameters that its publisher counts."""
    model = build_instance(read_settings(f"hf:{name}").values).module
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("kind", some(sorted(SMALL)))
def test_weights_are_those_of_the_model(tmp_path, kind):
    """The graph holds every parameter once, ties included, under the name that the model gives it."""
    graph = small(tmp_path, kind)
    model = build_instance({"model_type": kind, **SMALL[kind]}).module
    buffers = {name for name, _ in model.named_buffers()}
    everywhere = {name for name, _ in model.named_parameters(remove_duplicate=False)} | buffers
    assert {name for name in graph.weights.name if "lifted" not in name} <= everywhere
    counted = {
        int(graph.weights.storage[weight]): int(graph.weights.bytes[weight])
        for weight in set(graph.weight_edges.value.tolist())
        if graph.weights.name[weight] in everywhere - buffers
    }
    assert sum(counted.values()) == 4 * sum(parameter.numel() for parameter in model.parameters())


def in_phase(graph: Graph, phase: int) -> list[int]:
    return [op for op in range(graph.n_ops) if graph.ops.phase[op] == phase]


def assert_same_structure(one: Graph, other: Graph) -> None:
    """Op by op: kinds, groups, state, what is read from where, and the shapes of everything; weights by their uses."""
    for first, second in (
        (list(one.ops.kind), list(other.ops.kind)),
        (one.ops.group, other.ops.group),
        (one.ops.state_bytes, other.ops.state_bytes),
        (one.ops.phase, other.ops.phase),
        (one.tensors.producer, other.tensors.producer),
        (list(one.tensors.shape), list(other.tensors.shape)),
        (one.tensors.bytes, other.tensors.bytes),
        (one.edges.value, other.edges.value),
        (one.edges.position, other.edges.position),
        (one.weights.bytes[one.weight_edges.value], other.weights.bytes[other.weight_edges.value]),
        (one.weight_edges.consumer, other.weight_edges.consumer),
        (one.weight_edges.position, other.weight_edges.position),
    ):
        assert np.array_equal(first, second) if isinstance(first, np.ndarray) else first == second


@pytest.mark.parametrize("kind", some(sorted(SMALL), LIKE_OTHERS))
def test_copied_layers_are_what_tracing_every_layer_gives(tmp_path, kind):
    """Layers traced once and copied, or each traced by itself: the same graph, scopes and weights included."""
    copied = small(tmp_path, kind)
    dims = {"tokens": 8} if kind == "whisper" else DIMS if kind in GENERATING else {}
    traced = read(write_config(tmp_path, kind), dims, None, once=False).graph
    assert_same_structure(copied, traced)
    assert list(copied.ops.scope) == list(traced.ops.scope)
    assert list(copied.ops.attributes) == list(traced.ops.attributes)
    one, other = ([graph.weights.name[weight] for weight in graph.weight_edges.value] for graph in (copied, traced))
    assert all(a == b or ("lifted" in a and "lifted" in b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", some(GENERATING))
def test_a_token_waits_for_the_one_before(tmp_path, kind):
    """After folding, every op of the second phase follows the first sample, and none goes back."""
    graph = fold(small(tmp_path, kind))
    after = np.zeros(graph.n_ops, bool)
    after[graph.ops.name.index("sample")] = True
    for op in range(graph.n_ops):
        makers = graph.tensors.producer[graph.inputs_of(op)]
        after[op] |= any(after[maker] for maker in makers if maker >= 0)
        if graph.ops.phase[op] == 0:
            assert all(graph.ops.phase[maker] == 0 for maker in makers if maker >= 0)
    assert after[in_phase(graph, 1)].all()
    assert [(phase.name, phase.repeats) for phase in graph.phases] == [("prefill", 1), ("decode", 8)]


@pytest.mark.parametrize("kind", some(GENERATING))
def test_phases_share_one_placement(tmp_path, kind):
    """Ops of the second phase are in groups with ops of the first that use the same weights and the same cache."""
    graph = fold(small(tmp_path, kind))
    group, phase = graph.ops.group, graph.ops.phase
    first = {int(group[op]) for op in in_phase(graph, 0)}
    assert all(group[op] >= 0 and int(group[op]) in first for op in in_phase(graph, 1))
    users: dict[int, set[int]] = {}
    for weight, op in zip(graph.weight_edges.value.tolist(), graph.weight_edges.consumer.tolist(), strict=True):
        if graph.weights.bytes[weight] and re.search(r"\.\d+\.", graph.weights.name[weight]) and phase[op] == 1:
            users.setdefault(weight, set()).add(int(group[op]))
    for weight, op in zip(graph.weight_edges.value.tolist(), graph.weight_edges.consumer.tolist(), strict=True):
        if weight in users:
            users[weight].add(int(group[op]))
    assert users
    assert all(len(groups) == 1 for groups in users.values())
    for op in range(graph.n_ops):
        if graph.ops.kind[op] in ("CacheUpdate", "CacheRead"):
            readers = {reader for tensor in graph.outputs_of(op) for reader in graph.consumers_of(tensor).tolist()}
            assert {int(group[reader]) for reader in readers} == {int(group[op])}


def test_scopes_and_groups_of_a_layer(tmp_path):
    """The second layer's query projection is one op in each phase, of one scope, one weight and one group."""
    graph = small(tmp_path, "llama")
    scope = "model.layers.1.self_attn.q_proj"
    ops = [op for op in range(graph.n_ops) if graph.ops.scope[op] == scope]
    assert [(graph.ops.kind[op], int(graph.ops.phase[op])) for op in ops] == [("Gemm", 0), ("Gemm", 1)]
    assert len({int(graph.ops.group[op]) for op in ops}) == 1
    assert {graph.weights.name[weight] for op in ops for weight in graph.weights_of(op).tolist()} == {f"{scope}.weight"}


def test_cache_of_a_small_llama_by_hand(tmp_path):
    """3 layers × (keys + values) × 2 heads × 8 wide × 20 positions × 4 bytes, times batch and batches in flight."""
    assert small(tmp_path, "llama").ops.state_bytes.sum() == 3 * 2 * 2 * 8 * 20 * 4
    graph = small(tmp_path, "llama", {**DIMS, "batch": 3, "length": 50, "sequences": 5})
    assert graph.ops.state_bytes.sum() == 3 * 2 * 2 * 8 * 50 * 4 * 3 * 5
    assert small(tmp_path, "llama", {"prompt": 12, "tokens": 0}).ops.state_bytes.sum() == 3 * 2 * 2 * 8 * 12 * 4


def test_caches_of_other_kinds_by_hand(tmp_path):
    """A window bounds the cache (2 of 4 layers), latent attention keeps 16 + 4 entries, a translator both caches."""
    assert small(tmp_path, "gemma2").ops.state_bytes.sum() == 2 * 2 * 8 * 4 * (2 * 20 + 2 * 6)
    assert small(tmp_path, "deepseek_v3").ops.state_bytes.sum() == 4 * (16 + 4) * 20 * 4
    assert small(tmp_path, "t5").ops.state_bytes.sum() == 4 * 2 * 4 * 8 * 4 * (9 + 12)
    assert small(tmp_path, "whisper").ops.state_bytes.sum() == 3 * 2 * 4 * 8 * 4 * (9 + 16)


def test_a_token_reads_the_cache_at_its_mean_length(tmp_path):
    """12 tokens of prompt, 4 of the 8 that are generated, and the token itself: 17 keys, 6 where a window ends."""
    graph = small(tmp_path, "gemma2")
    seen = [
        graph.tensors.shape[graph.inputs_of(op)[1]][2] for op in in_phase(graph, 1) if graph.ops.kind[op] == "Attention"
    ]
    assert sorted(seen) == [6, 6, 17, 17]
    work = work_of(graph)
    update = next(op for op in in_phase(graph, 1) if graph.ops.kind[op] == "CacheUpdate" and seen)
    keys = 6 if graph.tensors.shape[graph.outputs_of(update)[0]][2] == 6 else 17
    assert work.bytes[update] == 2 * 2 * 8 * 4 * (2 * 1 + keys)


def products(graph: Graph, phase: int) -> float:
    """FLOPs of all products of a phase: those of attention without its softmax (5 per score), those of experts
    without what they do to single entries (6 behind the gate, 2 for a result and its score)."""
    work, total = work_of(graph), 0.0
    for op in in_phase(graph, phase):
        if graph.ops.kind[op] == "Attention":
            query, key = (graph.tensors.shape[tensor] for tensor in graph.inputs_of(op)[:2])
            total -= 5 * query[0] * query[1] * query[2] * key[2]
        if graph.ops.kind[op] == "Experts":
            (tokens, width), (_, chosen) = (graph.tensors.shape[tensor] for tensor in graph.inputs_of(op)[:2])
            inner = graph.weights.shape[graph.weights_of(op)[0]][1] // 2
            total -= tokens * chosen * (6 * inner + 2 * width)
        if work.op_class[op] in ("matmul", "attention", "conv"):
            total += work.flops[op]
    return total


def real(kind, auto) -> torch.nn.Module:
    config = transformers.AutoConfig.for_model(
        kind, **{key: value for key, value in SMALL[kind].items() if key != "dtype"}
    )
    config._experts_implementation = "eager"
    return auto.from_config(config, attn_implementation="eager").eval()


def counted(run) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "kind", some(["llama", "qwen2", "qwen3", "gpt2", "opt", "gemma2", "mixtral", "qwen3_moe", "deepseek_v3"])
)
def test_products_are_those_that_pytorch_counts(tmp_path, kind):
    """Prompt and token: PyTorch's counter finds the same products when the model really runs, with a real cache."""
    graph, model = small(tmp_path, kind), real(kind, transformers.AutoModelForCausalLM)
    cache = transformers.DynamicCache(config=model.config)
    prompt, more, token = (torch.zeros((1, length), dtype=torch.long) for length in (12, 4, 1))
    last = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
    full = counted(lambda: model(input_ids=prompt, **last))
    model(input_ids=more, **last)
    assert products(graph, 1) == counted(lambda: model(input_ids=token, **last))
    if kind != "gemma2":  # its windows save nothing in what the counter sees of the prompt
        assert products(graph, 0) == full


def test_products_of_translators_and_of_models_that_run_once(tmp_path):
    """T5's encoder with its first token, a later token with the cache, BERT and ViT: as PyTorch's counter finds."""
    graph, model = small(tmp_path, "t5"), real("t5", transformers.AutoModelForSeq2SeqLM)
    source, token = torch.zeros((1, 12), dtype=torch.long), torch.zeros((1, 1), dtype=torch.long)
    own, cross = (transformers.DynamicCache() for _ in range(2))
    cache = transformers.EncoderDecoderCache(own, cross)
    made = []
    first = counted(
        lambda: made.append(model(input_ids=source, decoder_input_ids=token, past_key_values=cache, use_cache=True))
    )
    assert products(graph, 0) == first
    encoded = (made[0].encoder_last_hidden_state,)
    for _ in range(3):
        model(encoder_outputs=encoded, decoder_input_ids=token, past_key_values=cache, use_cache=True)
    assert products(graph, 1) == counted(
        lambda: model(encoder_outputs=encoded, decoder_input_ids=token, past_key_values=cache, use_cache=True)
    )
    bert, vit = real("bert", transformers.AutoModel), real("vit", transformers.AutoModelForImageClassification)
    text = torch.zeros((1, 16), dtype=torch.long)
    assert products(small(tmp_path, "bert", {"length": 16}), 0) == counted(lambda: bert(input_ids=text))
    picture = torch.zeros((1, 3, 16, 16))
    architecture = {"architectures": ["ViTForImageClassification"]}
    graph = read_huggingface(write_config(tmp_path, "vit", **architecture)).graph
    assert products(graph, 0) == counted(lambda: vit(pixel_values=picture))


@pytest.mark.soak
def test_a_large_model_by_the_rule_of_two_flops_per_parameter():
    """Llama-3 70B: 2 FLOPs per parameter (but the table) and token, all weights read per token, in both phases."""
    graph = fold(read_huggingface("hf:llama-3-70b", dims={"prompt": 512, "tokens": 128}).graph)
    work, phase = work_of(graph), graph.ops.phase
    table = 128256 * 8192
    layers = PUBLISHED["llama-3-70b"] - 2 * table
    assert work.flops[phase == 0].sum() == pytest.approx(2 * layers * 512, rel=0.03)
    assert work.flops[phase == 1].sum() == pytest.approx(2 * (layers + table), rel=0.02)
    assert weight_bytes(graph) == pytest.approx(2 * PUBLISHED["llama-3-70b"], rel=1e-6)
    assert work.bytes[phase == 1].sum() == pytest.approx(2 * (layers + table), rel=0.01)
    assert graph.ops.state_bytes.sum() == 80 * 2 * 8 * 128 * 640 * 2
    assert not work.warnings


def test_experts_under_uniform_routing_by_hand(tmp_path):
    """2 of 4 experts per token: 12 tokens use (almost) all weights, one token half of them; FLOPs count rows."""
    graph = small(tmp_path, "mixtral")
    work = work_of(graph)
    prompt, token = (next(op for op in in_phase(graph, phase) if graph.ops.kind[op] == "Experts") for phase in (0, 1))
    row = 2 * 3 * 32 * 48 + 6 * 48 + 2 * 32
    weights = 4 * 4 * 3 * 32 * 48
    assert (work.flops[prompt], work.flops[token]) == (12 * 2 * row, 2 * row)
    others = 2 * (4 * 32 + 3 * 96) * 4 + 32 * 4 + 2 * 8 + 2 * 4 + 32 * 4
    assert work.bytes[token] == pytest.approx(weights / 2 + others)
    share = 1 - (1 - 2 / 4) ** 12
    assert work.bytes[prompt] > weights * share


def test_llama_4_computes_the_experts_that_are_chosen(tmp_path):
    """In every second layer one of 4, and the one of all tokens beside; transformers computes all of them."""
    graph = read_huggingface(write_config(tmp_path, "llama", **LLAMA_4), dims=DIMS).graph
    work = work_of(graph)
    prompt, token = ([op for op in in_phase(graph, phase) if graph.ops.kind[op] == "Experts"] for phase in (0, 1))
    assert len(prompt) == len(token) == 2
    row = 2 * 3 * 32 * 48 + 6 * 48 + 2 * 32
    assert work.flops[prompt[0]] == pytest.approx(12 * row, rel=0.01)
    assert work.bytes[token[0]] == 4 * 3 * 32 * 48 + (4 * 32 + 3 * 96) * 4 + 32 * 4 + 8 + 4 + 32 * 4
    assert graph.ops.scope[prompt[0]].endswith("feed_forward.experts")


def test_experts_apart_have_the_weights_and_work_of_experts_together(tmp_path):
    """Each expert an op with its own weights: the same bytes of weights, the same FLOPs, one scope per expert."""
    dims = {"prompt": 12, "tokens": 8}
    whole, apart = (fold(small(tmp_path, "mixtral", {**dims, "experts_split": split})) for split in (0, 1))
    assert weight_bytes(whole) == weight_bytes(apart)
    assert work_of(whole).flops.sum() == pytest.approx(work_of(apart).flops.sum())
    assert work_of(whole).bytes.sum() == pytest.approx(work_of(apart).bytes.sum(), rel=0.05)
    experts = [op for op in range(apart.n_ops) if apart.ops.kind[op] == "Expert"]
    assert len(experts) == 2 * 3 * 4
    op = next(op for op in experts if apart.ops.scope[op] == "model.layers.2.mlp.experts.3")
    assert {apart.weights.name[weight] for weight in apart.weights_of(op)} == {
        "model.layers.2.mlp.experts.3.gate_up_proj", "model.layers.2.mlp.experts.3.down_proj",
    }  # fmt: skip


def test_routing_is_said_to_be_assumed(tmp_path):
    """Who reads a mixture of experts is told how its routing is priced, and nobody else is."""
    notes = read_huggingface(write_config(tmp_path, "mixtral"), dims=DIMS).warnings
    assert any("uniform routing" in note for note in notes)
    assert not read_huggingface(write_config(tmp_path, "llama"), dims=DIMS).warnings


@pytest.mark.parametrize("named", [{}, {"architectures": ["MarianMTModel"]}])
def test_translators_are_known_whatever_their_class_is_called(tmp_path, named):
    """Marian, with its class named or not: an encoder, and a decoder that keeps its own and the encoder's keys."""
    size = {"vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "pad_token_id": 0}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "marian", **size, **named}))
    graph = read_huggingface(path, dims=DIMS).graph
    assert [phase.name for phase in graph.phases] == ["prefill", "decode"]
    assert any(name.startswith("model.encoder.layers.1.") for name in graph.weights.name)
    kept = [op for op in in_phase(graph, 0) if graph.ops.kind[op] == "CacheUpdate"]
    assert len(kept) == 2 * 2


def test_models_that_run_once_have_no_phases(tmp_path):
    """BERT and ViT are one phase, and their dimensions are batch and, for text, length."""
    graph = small(tmp_path, "bert", {"batch": 2, "length": 16})
    assert graph.tensors.shape[0] == (2, 16)
    assert len(graph.phases) <= 1
    assert small(tmp_path, "vit", {"batch": 2}).tensors.shape[0] == (2, 3, 16, 16)


def test_dimensions_of_pictures_and_sound(tmp_path):
    """Where the configuration has no size of its own, the pixels per side or the samples are a dimension."""
    assert small(tmp_path, "resnet", {"image": 64}).tensors.shape[0] == (1, 3, 64, 64)
    assert small(tmp_path, "resnet").tensors.shape[0] == (1, 3, 224, 224)


def test_parts_that_take_no_part_are_told(tmp_path):
    """Of a model that also sees, only the text is read: a note says what is omitted."""
    path = tmp_path / "config.json"
    text = {"model_type": "llama", **SMALL["llama"]}
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_attention_heads": 4, "image_size": 16, "patch_size": 4}  # fmt: skip
    path.write_text(json.dumps({"model_type": "llava", "text_config": text, "vision_config": vision}))
    reading = read_huggingface(path, dims=DIMS)
    assert any("vision_tower" in note and "omitted" in note for note in reading.warnings)
    assert [phase.name for phase in reading.graph.phases] == ["prefill", "decode"]


@pytest.mark.usefixtures("own_traces")
def test_the_same_file_gives_the_same_graph(tmp_path):
    """ImportedModel twice gives one digest, and a source with dimensions and element type."""
    path = write_config(tmp_path, "qwen3_moe")
    one, other = (read_huggingface(path, dims=DIMS).graph for _ in range(2))
    assert one.digest() == other.digest()
    assert one.source is not None
    assert one.source.options["dims"]["prompt"] == 12
    assert (one.source.format, one.source.view, one.source.options["dtype"]) == ("huggingface", "raw", "float32")


def test_element_types(tmp_path):
    """The user's element type wins over the configuration's, under both of its names."""
    path = write_config(tmp_path, "llama", torch_dtype="float16", dtype=None)
    half = read_huggingface(path, dims=DIMS).graph
    assert half.source is not None and half.source.options["dtype"] == "float16"
    double = read_huggingface(path, dims=DIMS, dtype="float64").graph
    assert weight_bytes(double) == pytest.approx(4 * weight_bytes(half), rel=1e-3)


def test_an_old_library_is_refused(monkeypatch):
    """Versions of transformers before 5 cannot be asked for single operators."""
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.1")
    with pytest.raises(ModelFileError, match="is too old"):
        read_huggingface("hf:gpt2")


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    """Without transformers, the error names the extra that brings it."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"placewise\[transformers\]"):
        read_huggingface("hf:gpt2")


@pytest.mark.parametrize(("kind", "sizes"), [("llama", {"prompt": 40, "tokens": 8}), ("bert", {})])
def test_a_context_is_another_name_of_the_length(tmp_path, kind, sizes):
    """The positions of a decoder's cache, or the length of a text that is read once: the same graph."""
    graphs = [small(tmp_path, kind, dims={**sizes, name: 64}) for name in ("context", "length")]
    assert_same_structure(*graphs)
    assert graphs[0].source.options == graphs[1].source.options
    assert graphs[0].source.options["dims"]["length"] == 64


@pytest.mark.parametrize(
    ("kind", "dims", "words"),
    [
        ("llama", {"context": 128}, "a cache of length 128 does not hold 512 \\+ 128 tokens"),
        ("llama", {"context": 64, "length": 32}, "context and length are the same size, and differ"),
        ("bert", {"context": 64, "length": 16}, "context and length are the same size, and differ"),
        ("resnet", {"context": 64}, "this model has no dimension 'context'"),
        ("t5", {"context": 64}, "this model has no dimension 'context'"),
        ("llama", {"context": "64", "tokens": 4}, "is 64"),
    ],
)
def test_contexts_that_say_nothing(tmp_path, kind, dims, words):
    """One sentence each."""
    with pytest.raises(ModelFileError, match=words):
        small(tmp_path, kind, dims=dims)

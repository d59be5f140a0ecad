"""What llama.cpp's CUDA and ROCm builds do apart from others. No card is used: the rules are those of fattn.cu."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf_models import pack, tiny_model, write_model, write_real_size

import placewise as pw
from placewise.errors import ExportError, InputError
from placewise.exporters.registry import create_exporter
from placewise.readers.gguf.header import LongArray, read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.llama_kernels import converts_cache, count_half_copies, has_kernel
from placewise.readers.gguf.llama_memory import count_compute
from placewise.readers.gguf.reader import read_gguf
from placewise.readers.gguf.shape import ModelShape, read_shape

MEBIBYTE = 1 << 20
HALF = ("f16", "f16")


def shape_of(key: int, value: int, heads: int, kv_heads: int, latent: int = 0) -> ModelShape:
    one = ModelShape(1, 4096, (heads,), (kv_heads,), (key,), (value,), (0,), 0, 1000, 4096, 1)
    return replace(one, latent=latent)


@pytest.mark.parametrize(
    ("key", "value", "heads", "kv_heads", "latent", "known"),
    [
        (128, 128, 32, 8, 0, True), (80, 80, 32, 32, 0, True), (160, 160, 32, 8, 0, False), (128, 64, 32, 8, 0, False),
        (192, 128, 16, 16, 0, False), (192, 128, 64, 4, 0, True), (512, 512, 16, 2, 0, True),
        (512, 512, 8, 8, 0, False), (576, 0, 16, 1, 512, True), (32, 32, 8, 8, 0, False),
    ],
)  # fmt: skip
def test_heads_that_have_a_kernel(key: int, value: int, heads: int, kv_heads: int, latent: int, known: bool) -> None:
    """Llama, Phi 2, StableLM 2 12B, older files of DeepSeek 2 and newer ones, Gemma 4, and others."""
    assert has_kernel("CUDA0", shape_of(key, value, heads, kv_heads, latent), 0, HALF) is known
    assert not has_kernel("CUDA0", shape_of(key, value, heads, kv_heads, latent), 0, ("iq4_nl", "f16"))


def test_other_caches_are_copied_to_float16(tmp_path: Path) -> None:
    """Keys and values of one layer at all 65,536 positions, beside what the other results need; f16 is not copied."""
    path = write_real_size(
        tmp_path / "model.gguf", layers=4, width=4096, inner=14336, heads=32, kv=8, vocabulary=4096, kind="Q4_K"
    )
    header, sizes = read_header(path), {}
    for name in ("f16", "q8_0", "bf16"):
        for device in ("CUDA0", "ROCm0", "Vulkan0", "RPC0"):
            flags = LlamaFlags(ngl=99, context=65536, cache=(name, name))
            sizes[name, device] = count_compute(header, flags, [device])[device]
    copies = 2 * 65536 * 8 * 128 * 2
    for name in ("q8_0", "bf16"):
        assert copies < sizes[name, "CUDA0"] == sizes[name, "ROCm0"] <= copies + sizes[name, "RPC0"]
        assert sizes[name, "RPC0"] == sizes[name, "Vulkan0"] < copies
    assert sizes["f16", "CUDA0"] == sizes["f16", "RPC0"]
    assert count_half_copies((34, 68), ("q8_0", "f16")) == 64


def test_attention_that_is_not_fused_takes_its_scores(tmp_path: Path) -> None:
    """Of heads without a kernel where a card has a layer of them; with all layers on the host, nothing changes."""
    header = read_header(write_model(tmp_path / "model.gguf", "deepseek2-older"))
    shape = read_shape(header)
    assert not has_kernel("CUDA0", shape, 0, HALF)
    automatic, off = (
        count_compute(header, LlamaFlags(ngl=99, context=4096, flash=flash), ["CUDA0"]) for flash in ("auto", "off")
    )
    assert automatic == off and off["CUDA0"] > shape.heads[0] * 4096 * 512 * 4
    others = ((99, "RPC0"), (0, "CUDA0"))
    server, host = (count_compute(header, LlamaFlags(ngl=ngl, context=4096), [device]) for ngl, device in others)
    assert server["RPC0"] < off["CUDA0"] and host["CUDA0"] < off["CUDA0"]


def test_attention_of_grok_is_not_fused(tmp_path: Path) -> None:
    """Nowhere, whatever is asked for: the buffer has its scores, and quantized values are refused."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_model(head=64))
    llama = read_header(path)
    metadata = {
        key.replace("llama.", "grok."): list(value) if isinstance(value, tuple) else value
        for key, value in llama.metadata.items()
        if not isinstance(value, LongArray)
    }
    metadata["general.architecture"] = "grok"
    path.write_bytes(pack(metadata, {tensor.name: tensor.shape for tensor in llama.tensors}))
    grok = read_header(path)
    automatic, fused = LlamaFlags(ngl=99, context=4096), LlamaFlags(ngl=99, context=4096, flash="on")
    for device in ("Vulkan0", "RPC0", "CUDA0"):
        off = count_compute(grok, LlamaFlags(ngl=99, context=4096, flash="off"), [device])
        assert count_compute(grok, fused, [device]) == count_compute(grok, automatic, [device]) == off
        assert off[device] > count_compute(llama, fused, [device])[device]
    with pytest.raises(InputError, match=r"fuses no attention of this architecture.*; give values in f16"):
        read_gguf(path, cache_type="q8_0")
    assert read_gguf(path, cache_type="q8_0,f16").graph.n_ops


def test_quantized_values_need_a_kernel(tmp_path: Path) -> None:
    """llama.cpp would compute their attention on the host: one sentence. Keys alone, and other builds, are taken."""
    path, dims = write_model(tmp_path / "model.gguf", "deepseek2-older"), {"prompt": 16, "tokens": 4}
    with pytest.raises(ExportError, match="CUDA build has no fused attention for heads of 64 entries of a key and 32"):
        pw.place(path, "L4,cpu", target="llama.cpp", dims=dims, cache_type="q8_0")
    for devices, cache in (("L4,cpu", "q8_0,f16"), ("cpu,rpc:10.0.0.1:50052@8GiB", "q8_0"), ("M2-Max,cpu", "q8_0")):
        plan = pw.place(path, devices, target="llama.cpp", dims=dims, cache_type=cache, time_limit="5s")
        assert plan.placement is not None


@pytest.mark.parametrize(
    ("device", "cache", "key", "value", "known"),
    [
        ("MTL0", ("q8_0", "q8_0"), 128, 128, True), ("MTL0", ("q8_0", "f16"), 128, 128, False),
        ("MTL0", ("iq4_nl", "iq4_nl"), 128, 128, False), ("MTL0", HALF, 160, 160, False),
        ("MTL0", HALF, 192, 128, True), ("SYCL0", ("q5_0", "q5_0"), 128, 128, False),
        ("SYCL0", ("q8_0", "q4_0"), 128, 128, False), ("SYCL0", ("q8_0", "q8_0"), 128, 128, True),
        ("Vulkan0", ("q8_0", "q4_0"), 128, 128, True), ("Vulkan0", ("bf16", "f16"), 128, 128, False),
        ("Vulkan0", ("iq4_nl", "iq4_nl"), 160, 160, True), ("RPC0", ("q8_0", "q4_0"), 160, 160, True),
        ("CPU", ("iq4_nl", "iq4_nl"), 160, 160, True),
    ],
)  # fmt: skip
def test_other_builds_have_rules_of_their_own(
    device: str, cache: tuple[str, str], key: int, value: int, known: bool
) -> None:
    """Those of ggml-metal-device.m, ggml-sycl/fattn.cpp and ggml-vulkan.cpp."""
    assert has_kernel(device, shape_of(key, value, 32, 8), 0, cache) is known


@pytest.mark.parametrize(
    ("cache", "key", "converted"),
    [
        (("q8_0", "q8_0"), 128, False), (("q4_0", "q4_0"), 64, False), (HALF, 96, False), (("q8_0", "q4_0"), 128, True),
        (("q8_0", "f16"), 128, True), (("q5_1", "q5_1"), 128, True), (("q8_0", "q8_0"), 96, True),
    ],
)  # fmt: skip
def test_caches_that_are_converted_for_every_token(cache: tuple[str, str], key: int, converted: bool) -> None:
    """By CUDA and ROCm, of which usual builds have four kernels for a token; others read what is there."""
    shape = shape_of(key, key, 32, 8)
    assert converts_cache("CUDA0", shape, 0, cache) is converts_cache("ROCm1", shape, 0, cache) is converted
    half_read = not all(name in HALF for name in cache)
    assert converts_cache("CUDA0", shape, 0, cache, volta=True) is half_read, "four heads share a key"
    assert not any(converts_cache(device, shape, 0, cache) for device in ("MTL0", "Vulkan0", "RPC0", "CPU"))


def test_a_conversion_is_in_the_time_of_a_token(tmp_path: Path) -> None:
    """By hand: keys and values of all seen positions are written in float16 and read again, in every layer."""
    path = write_real_size(
        tmp_path / "model.gguf", layers=4, width=4096, inner=14336, heads=32, kv=8, vocabulary=4096, kind="Q4_K"
    )
    dims = {"prompt": 32768, "tokens": 64}
    plans = {
        cache: pw.place(path, "RTX4090,cpu", target="llama.cpp", dims=dims, cache_type=cache)
        for cache in ("q8_0", "q8_0,q4_0", "q4_0,f16")
    }
    card = plans["q8_0"].problem.cluster.devices[0]
    converted = [use_seconds(plans[cache]) - use_seconds(plans["q8_0"]) for cache in ("q8_0,q4_0", "q4_0,f16")]
    seen = 32768 + 32 + 1
    half, rate = seen * 8 * 128 * 2, card.memory_bandwidth * card.efficiency["memory"]
    read = [seen * 8 * 128 * (4.5 - 8.5) / 8, seen * 8 * 128 * (4.5 + 16 - 2 * 8.5) / 8]
    for more, tensors, other in zip(converted, (2, 1), read, strict=True):
        by_hand = 4 * ((tensors * 2 * half + other) / rate + tensors * card.op_overhead)
        assert more == pytest.approx(by_hand, rel=0.01)
    made = create_exporter("llama.cpp").export(plans["q8_0,q4_0"].problem, plans["q8_0,q4_0"].placement, {})
    assert any("turns a cache of q8_0,q4_0 into f16 for every token on cuda:0" in note for note in made.notes)


def use_seconds(plan: pw.Plan) -> float:
    """Seconds of a generated token."""
    assert plan.result.judgement is not None
    return next(use.seconds for use in plan.result.judgement.phases if use.phase == "decode")


def test_caches_that_other_targets_do_not_have(tmp_path: Path) -> None:
    """One sentence; a cache in 16 bits is theirs too."""
    path, dims = write_model(tmp_path / "model.gguf", "llama"), {"prompt": 16, "tokens": 4}
    with pytest.raises(InputError, match=r"vllm has no quantized cache of ggml; leave out --cache-type"):
        pw.place(path, "L4", target="vllm", dims=dims, cache_type="q8_0")
    assert pw.place(path, "L4", target="vllm", dims=dims, cache_type="bf16").placement is not None

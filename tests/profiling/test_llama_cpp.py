"""Profiles of llama.cpp: the fit finds the rates that made the times, and --costs applies them to other models."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from gguf_models import write_model
from llama_models import Sizes, write_published
from llama_servers import MISSING, is_installed, start_server

import placewise as pw
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.costing.llama_rates import (
    ATTENTION,
    CACHE,
    OPS,
    RUN,
    LlamaRates,
    add_seconds,
    count_prompt_work,
    count_token_work,
    find_types,
    list_op_seconds,
    scale_rates,
)
from placewise.errors import CostError, InputError, RunError
from placewise.files.profile_file import (
    BorderFigures,
    DeviceProfile,
    Figures,
    ProfileFile,
    load_profile,
    save_profile,
)
from placewise.processes.worker import read_schedule
from placewise.profiling import llama_probes
from placewise.profiling.llama_cpp import (
    Observation,
    describe_disturbance,
    fit_device,
    fit_rates,
    fit_slope,
    observe,
    read_size,
    solve_nonnegative,
    time_rounds,
    uses_program,
)
from placewise.profiling.llama_probes import Probe, list_probes, write_probe
from placewise.readers.gguf.header import read_header
from placewise.readers.gguf.llama_flags import LlamaFlags
from placewise.readers.gguf.reader import read_gguf
from placewise.runtimes.binding import Place
from placewise.runtimes.llama_cpp.program import LlamaProgram, find_program
from placewise.runtimes.llama_cpp.runtime import LlamaTiming, run_llama, time_llama

pytest.importorskip("gguf")
MIXTURE = Sizes(256, 512, 4, 2, 64, 512, 4, 2)
SIZES = {"prompt": 24, "tokens": 8}


def write_mixture(path: Path, kind: str = "Q8_0", layers: int = 2) -> Path:
    return write_published(path, "llama", MIXTURE, layers=layers, kind=kind)


def invent_rates(path: Path) -> LlamaRates:
    """Some rate for every term of a model."""
    graph, rng = read_size(path, 64, 8), np.random.default_rng(1)
    prompt, token = (
        {term: float(rng.uniform(1, 3) * 1e-3 / max(amount.sum(), 1)) for term, amount in count(graph).items()}
        for count in (count_prompt_work, count_token_work)
    )
    return LlamaRates(prompt, token)


def test_rates_that_made_the_times_are_found(tmp_path: Path) -> None:
    """Times of probes and models, computed by rates, give these back, and predict another length.

    Rates of experts are found as a sum, where one model has them.
    """
    paths = [write_mixture(tmp_path / "mixture.gguf"), write_mixture(tmp_path / "other.gguf", "Q4_0", 3)]
    paths += [
        write_probe(tmp_path / f"{kind}{width}.gguf", Probe(kind, width, 512, layers))
        for kind in ("Q8_0", "Q4_0") for width, layers in ((256, 1), (512, 2), (512, 7))
    ]  # fmt: skip
    first, second = invent_rates(paths[0]), invent_rates(paths[1])
    rates = LlamaRates({**second.prompt, **first.prompt}, {**second.token, **first.token})
    observed: tuple[list[Observation], list[Observation]] = ([], [])
    for path in paths:
        for length in (16, 200, 700):
            graph = read_size(path, length, 8)
            for kept, count, each in zip(
                observed, (count_prompt_work, count_token_work), (rates.prompt, rates.token), strict=True
            ):
                work = count(graph)
                kept.append(Observation(work, float(add_seconds(work, each).sum())))
    found = fit_rates(*observed)
    assert found.types == {"Q8_0", "Q4_0", "Q8_0 experts", "Q4_0 experts"}
    for each, one in ((found.prompt, rates.prompt), (found.token, rates.token)):
        for term in (term for term in each if "experts" not in term):
            assert each[term] == pytest.approx(one[term], rel=1e-3), term
    for path in paths:
        graph = read_size(path, 400, 8)
        assert list_op_seconds(graph, found).sum() == pytest.approx(list_op_seconds(graph, rates).sum(), rel=1e-6)


def test_models_that_fit_in_caches_say_nothing_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that reads weights three times as fast from its cache: the rate is that of its memory."""
    cache, memory, rest = 36 << 20, 1 / 7e9, {OPS: 3e-6, RUN: 1e-4, CACHE: 1e-10, ATTENTION: 1e-10}
    monkeypatch.setattr(llama_probes, "largest_cache", lambda: cache)
    path = write_published(tmp_path / "model.gguf", "llama", Sizes(1024, 2048, 16, 4, 64, 320), layers=1, kind="Q8_0")
    observed: list[Observation] = []
    for number, probe in enumerate(list_probes(read_header(path))):
        file = write_probe(tmp_path / f"{number}.gguf", probe)
        for length in probe.prompts:
            work = count_token_work(read_size(file, length, 16))
            rate = memory / 3 if work["weights Q8_0"].sum() < cache else memory
            seconds = float(add_seconds(work, {**rest, "weights Q8_0": rate}).sum())
            timing = LlamaTiming(length, 16, 1.0, seconds, 0.0)
            observed += observe(file, "f16", [timing], fits_caches=probe.fits_caches)[1]
    found = fit_rates(observed, observed).token
    assert found["weights Q8_0"] == pytest.approx(memory, rel=0.01)
    assert found.keys() == {*rest, "weights Q8_0"}


def test_no_rate_is_negative() -> None:
    """The best solution that is not negative, also where the best of all is."""
    matrix, target = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([3.0, 2.0, 1.0])
    assert solve_nonnegative(matrix, target) == pytest.approx([2.0, 0.0])
    assert solve_nonnegative(matrix, matrix @ np.array([0.5, 2.0])) == pytest.approx([0.5, 2.0])
    assert solve_nonnegative(matrix, -target) == pytest.approx([0.0, 0.0])


def test_a_hop_is_what_a_server_adds_to_each_token(tmp_path: Path) -> None:
    """What the processor spends on a token stays with the op that draws it; the rest of the constant is the hop."""
    graphs = [read_size(write_probe(tmp_path / f"{n}.gguf", Probe("Q8_0", 256, 256, n)), 16, 8) for n in (1, 4, 9)]
    rates = LlamaRates({"flops Q8_0": 1e-11}, {"weights Q8_0": 1e-9, RUN: 5e-4})
    prompts = [Observation(one, float(add_seconds(one, rates.prompt).sum())) for one in map(count_prompt_work, graphs)]
    tokens = [Observation(one, float(add_seconds(one, rates.token).sum())) for one in map(count_token_work, graphs)]
    host = fit_device(prompts, tokens)
    later = [Observation(one.work, one.seconds + 2e-3) for one in tokens]
    server = fit_device(prompts, later, host)
    assert host.hop == 0 and server.hop == pytest.approx(2e-3, rel=0.1)
    assert server.rates.token[RUN] == pytest.approx(host.rates.token[RUN])


def test_seconds_of_ops_add_up(tmp_path: Path) -> None:
    """The prompt once, and each token: what the terms of the whole model say; factors scale either part."""
    graph = read_size(write_mixture(tmp_path / "model.gguf"), 600, 8)
    rates, prompt, token = invent_rates(tmp_path / "model.gguf"), count_prompt_work(graph), count_token_work(graph)
    assert not any(amount[graph.ops.phase == 1].any() for amount in prompt.values())
    assert not any(amount[graph.ops.phase == 0].any() for amount in token.values())
    parts = add_seconds(prompt, rates.prompt).sum(), 8 * add_seconds(token, rates.token).sum()
    assert list_op_seconds(graph, rates).sum() == pytest.approx(sum(parts))
    assert list_op_seconds(graph, scale_rates(rates, (2, 3))).sum() == pytest.approx(2 * parts[0] + 3 * parts[1])
    assert find_types(graph) == {"Q8_0", "Q8_0 experts"}
    assert (
        prompt["weights Q8_0"].sum()
        == 2 * count_prompt_work(read_size(tmp_path / "model.gguf", 300, 8))["weights Q8_0"].sum()
    ), "600 tokens are two micro-batches"


def test_the_last_layer_of_a_prompt_runs_for_one_token(tmp_path: Path) -> None:
    """After its attention, as in llama.cpp; and of experts, a prompt reads those that some token has chosen."""
    sizes = Sizes(256, 512, 4, 2, 64, 512)
    graph = read_size(write_published(tmp_path / "dense.gguf", "llama", sizes, layers=2, kind="Q8_0"), 40, 8)
    flops = dict(zip(graph.ops.name, count_prompt_work(graph)["flops Q8_0"].tolist(), strict=True))
    assert flops["blk.0.ffn_up"] == pytest.approx(40 * flops["blk.1.ffn_up"])
    assert flops["blk.0.attn_output"] == flops["blk.1.attn_output"] > 0
    graph = read_size(write_mixture(tmp_path / "mixture.gguf"), 3, 8)
    read = dict(zip(graph.ops.name, count_prompt_work(graph)["weights Q8_0 experts"].tolist(), strict=True))
    assert read["blk.1.ffn_experts"] / read["blk.0.ffn_experts"] == pytest.approx(0.5 / (1 - 0.5**3), rel=0.01)


@pytest.mark.parametrize("kinds", [{"kind": "F32"}, {"kind": "BF16"}, {"kind": "Q8_0", "down": "F16"}])
@pytest.mark.parametrize(
    "sizes", [MIXTURE, replace(MIXTURE, experts=0, used=0), replace(MIXTURE, inner=1 << 17, experts=0)]
)
def test_every_type_of_a_model_has_probes(sizes: Sizes, kinds: dict[str, str], tmp_path: Path) -> None:
    """Also types that are not quantized, and those of few of the bytes: a profile serves the model it was made from."""
    path = write_published(tmp_path / "model.gguf", "llama", sizes, layers=1, **kinds)
    probes = list_probes(read_header(path))
    assert {probe.kind + " experts" * (probe.experts > 0) for probe in probes} >= find_types(read_gguf(path).graph)


def test_probes_have_layers_that_llama_cpp_takes(tmp_path: Path) -> None:
    """At most 512, however narrow a model is, and however large the caches are."""
    sizes = Sizes(256, 256, 4, 2, 64, 4096)
    probes = list_probes(read_header(write_published(tmp_path / "model.gguf", "llama", sizes, kind="Q4_0")))
    assert probes and max(probe.layers for probe in probes) <= 512


def test_attention_reads_keys_once_per_head(tmp_path: Path) -> None:
    """Rates of tokens tell bytes of the cache and FLOPs of attention apart: some probes share keys, and some do not."""
    graphs = [
        read_size(write_probe(tmp_path / f"{n}.gguf", probe), length, 16)
        for n, probe in enumerate(list_probes(read_header(write_mixture(tmp_path / "model.gguf")))[:3])
        for length in (16, 1024)
    ]
    rates = LlamaRates({"flops Q8_0": 1e-11}, {"weights Q8_0": 1e-10, "attention": 3e-10, "kv cache": 2e-10, RUN: 1e-4})
    prompts = [Observation(one, float(add_seconds(one, rates.prompt).sum())) for one in map(count_prompt_work, graphs)]
    tokens = [Observation(one, float(add_seconds(one, rates.token).sum())) for one in map(count_token_work, graphs)]
    found = fit_device(prompts, tokens).rates.token
    assert found["attention"] == pytest.approx(3e-10, rel=0.01) and found["kv cache"] == pytest.approx(2e-10, rel=0.01)


class ScriptedProcess:
    """A process whose times are those of a list."""

    pid = 0

    def __init__(self, seconds: Sequence[float]) -> None:
        self.seconds = list(seconds)

    def ask(self, method: str, *args: Any) -> Any:
        assert method == "generate"
        return (seconds := self.seconds.pop(0)), seconds


def test_rounds_go_on_until_the_best_agree() -> None:
    """Devices take turns, the least times count, and a device whose best two rounds differ is reported."""
    calm, busy = ScriptedProcess([9, 2, 1, 1, 1, 1]), ScriptedProcess([9, 9, 8, 4, 5, 4.1])
    first, second = time_rounds([calm, busy], [(16, 2)], 8)
    assert not busy.seconds and not calm.seconds, "the fifth round settles both"
    assert first.timings[0].prompt_seconds == first.timings[0].token_seconds == 1
    assert second.timings[0].token_seconds == 4 and first.agree and second.agree
    assert describe_disturbance([first, second]) == ""
    (never,) = time_rounds([ScriptedProcess([9, 1, 2, 3, 4])], [(16, 2)], 4)
    assert not never.agree and "1 of 2 models, no two rounds agree" in describe_disturbance([first, never])
    waited = replace(first, ran=3.0, waited=1.0)
    assert "waited for a processor in 25% of its time" in describe_disturbance([waited])


def test_the_time_that_a_process_waits_is_read() -> None:
    """Of this process: it ran. Of none: zeros."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("the system does not tell")
    ran, waited = read_schedule(os.getpid())
    assert ran > 0 and waited >= 0 and read_schedule(0) == (0, 0)


def test_a_slow_start_is_no_slow_connection() -> None:
    """The slope over sizes has no constant, withstands an outlier, and is not negative."""
    sizes = [1e6, 2e6, 8e7, 9e7, 1e8]
    assert fit_slope(sizes, [0.3 + 1e-9 * size for size in sizes]) == pytest.approx(1e-9)
    assert fit_slope(sizes, [0.3 + 1e-9 * size + 5 * (size == 9e7) for size in sizes]) == pytest.approx(1e-9, rel=0.05)
    assert fit_slope(sizes, [1.0 - 1e-9 * size for size in sizes]) == 0 == fit_slope([5.0], [1.0])


def test_every_server_has_the_link_that_was_measured(tmp_path: Path) -> None:
    """Both directions of each, through host memory between two; a server that was not measured has its twin's."""
    path, names = write_mixture(tmp_path / "model.gguf"), ("rpc:10.0.0.1:50052", "rpc:10.0.0.2:50052")
    devices = "cpu,{}@1GiB,{}@1GiB"
    problem = build(path, devices.format(*names), ProblemOptions(dims=SIZES))
    seconds = (1e-6,) * problem.n_ops
    profiles = [DeviceProfile(name=name, idle=Figures(ops=seconds)) for name in ("cpu", *names)]
    borders = tuple(
        BorderFigures(source="cpu", target=name, latency=latency, bandwidth=speed)
        for name, latency, speed in zip(names, (1e-3, 5e-3), (1e8, 2e7), strict=True)
    )
    profile = ProfileFile(runtime="llama.cpp", ops=problem.graph.ops.name, devices=tuple(profiles), borders=borders)
    save_profile(profile, tmp_path / "p.json")
    made = build(path, devices.format(*names), ProblemOptions(dims=SIZES, costs=tmp_path / "p.json"))
    cluster, host = made.cluster, len(made.cluster)
    size, often = made.graph.tensors.bytes.clip(0), made.graph.tensor_repeats
    for source, target, latency, pace in (
        (host, 1, 1e-3, 1e-8), (1, host, 1e-3, 1e-8), (host, 2, 5e-3, 5e-8), (2, host, 5e-3, 5e-8),
    ):  # fmt: skip
        column = int(cluster.link_class[source, target])
        assert made.costs.transfer_seconds[:, column] == pytest.approx(often * (latency + pace * size))
    other = build(
        path, devices.format(names[0], "rpc:10.0.0.3:50052"), ProblemOptions(dims=SIZES, costs=tmp_path / "p.json")
    )
    assert other.cluster.link_class[host, 1] == other.cluster.link_class[host, 2] > 0
    assert other.cluster.class_latency[other.cluster.link_class[host, 2]] == 1e-3


@pytest.fixture
def small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes that are timed in a moment."""
    for name, value in (("LEAST_BYTES", 1), ("CACHES", 0), ("LONG", 64), ("TINY_LAYERS", 2), ("PROMPTS", (4, 16))):
        monkeypatch.setattr(llama_probes, name, value)


@pytest.mark.usefixtures("small_probes")
def test_every_type_has_a_probe_that_llama_cpp_loads(tmp_path: Path) -> None:
    """Of each type of matrices, dense and of experts; the real llama.cpp generates with each, and of K types too."""
    pytest.importorskip("xllamacpp")
    probes = list_probes(read_header(write_mixture(tmp_path / "model.gguf")))
    assert [(probe.kind, probe.experts) for probe in probes] == [("Q8_0", 0)] * 5 + [("Q8_0", 4)] * 2
    assert len({probe.width for probe in probes[3:5]}) == 1, "no width is below a block"
    more = [Probe(kind, 512, 256, 1) for kind in ("Q6_K", "F16", "BF16", "F32")]
    for number, probe in enumerate(
        [*probes, *more, Probe("MXFP4", 256, 256, 1, 4, 2), Probe("F32", 256, 256, 1, 4, 2)]
    ):
        path = write_probe(tmp_path / f"{number}.gguf", probe)
        assert find_types(read_gguf(path).graph) >= {probe.kind}
        found = run_llama(path, LlamaFlags(context=64, threads=1), prompt=4, tokens=2, repeats=1)
        assert found.token_seconds > 0


@pytest.mark.usefixtures("small_probes")
def test_a_profile_serves_every_model_of_its_types(tmp_path: Path) -> None:
    """The command measures the real llama.cpp; its rates price other sizes and files, but no types without a rate."""
    pytest.importorskip("xllamacpp")
    path, other = write_mixture(tmp_path / "model.gguf"), write_mixture(tmp_path / "other.gguf", layers=3)
    file = tmp_path / "profile.json"
    dims = ("--dim", "prompt=24", "--dim", "tokens=8")
    run("profile", str(path), "-d", "core", "--runtime", "llama.cpp", "--repeats", "3", *dims, "-o", str(file), "-q")
    (device,) = load_profile(file).devices
    record = device.llama
    assert record is not None and min(record.own) > 0
    assert max(record.prompt.values()) > 0 and max(record.token.values()) > 0
    assert device.idle.whole is not None and device.idle.whole > 0 and np.isfinite(np.array(device.idle.ops)).all()
    rates = LlamaRates(record.prompt, record.token)
    for model, sizes in ((path, SIZES), (path, {"prompt": 700, "tokens": 3}), (other, SIZES)):
        plan = pw.place(model, "core", dims=sizes, costs=file, placer="single", execution="sequential")
        expected = scale_rates(rates, record.own if model == path else (1.0, 1.0))
        assert plan.value == pytest.approx(list_op_seconds(plan.problem.graph, expected).sum(), rel=1e-6)
    for options, words in (
        ({"cache_type": "q8_0"}, "for a cache of f16,f16, and not of q8_0,q8_0; profile with --cache-type q8_0,q8_0"),
        ({"dims": {"batch": 2}}, "for one sequence, and not for 2; leave out the batch"),
    ):
        with pytest.raises(CostError, match=words):
            build(path, "core", ProblemOptions(costs=file, **options))
    named = build(path, "core", ProblemOptions(costs=file, dims={"prompt": 30}, cache_type="f16"))
    assert any(" on " in note and note.startswith("profile of llama.cpp") for note in named.warnings)
    with pytest.raises(CostError, match=r"no rates of llama\.cpp for Q4_0"):
        pw.place(write_mixture(tmp_path / "narrow.gguf", "Q4_0"), "core", dims=SIZES, costs=file)


@pytest.fixture
def server() -> Iterator[str]:
    """The address of an RPC server of llama.cpp on this machine."""
    if not is_installed():
        pytest.skip(MISSING)
    with start_server() as (_, address):
        yield address


@pytest.mark.usefixtures("small_probes")
def test_an_rpc_server_is_profiled_and_used(server: str, tmp_path: Path) -> None:
    """The profile has rates of both devices and the hop between them; the exported command runs on the server."""
    path, name = write_mixture(tmp_path / "model.gguf"), f"rpc:{server}"
    profile = pw.profile(path, f"core,{name}@1GiB", tmp_path / "p.json", runtime="llama.cpp", dims=SIZES, repeats=3)
    assert [device.llama is not None for device in profile.devices] == [True, True]
    (border,) = profile.borders
    assert border.target == name and border.bandwidth > 0
    small: Any = {"max_memory": {"core:0": "1MiB"}, "headroom": 0}
    found = pw.fit(path, f"core,{name}@1GiB", dims=SIZES, costs=tmp_path / "p.json", **small, cache=False)
    words = found.command.split()
    assert words[words.index("--rpc") + 1] == server and words[words.index("--device") + 1] == "RPC0"
    with LlamaProgram(path, [*words[3:], "-lv", "5"]) as process:
        assert min(process.generate([3, 4, 5], 3)) > 0
        assert f"offloaded {words[words.index('-ngl') + 1]}/3 layers" in process.read_log()


@pytest.mark.usefixtures("small_probes")
def test_a_file_that_is_not_loaded_leaves_the_rates_of_its_types(tmp_path: Path) -> None:
    """They were measured on other models; a note says that the file itself was not timed."""
    pytest.importorskip("xllamacpp")
    path = write_mixture(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes().replace(b"tokenizer.ggml.model", b"tokenizer.ggml.other"))
    profile = pw.profile(path, "core", tmp_path / "p.json", runtime="llama.cpp", dims=SIZES, repeats=3)
    assert any("the file itself was not timed" in note for note in profile.notes)


@pytest.mark.usefixtures("small_probes")
def test_the_program_on_path_is_what_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what commands start; without it the package is timed. The profile names which."""
    path = write_mixture(tmp_path / "model.gguf")
    if not find_program("llama-server"):
        pytest.skip(MISSING)
    profile = pw.profile(path, "core", tmp_path / "p.json", runtime="llama.cpp", dims=SIZES, repeats=3)
    assert profile.runtime_version.startswith("llama-server ")
    monkeypatch.setenv("PATH", str(tmp_path))
    places = [Place("core:0", "cores", cores=(0,))]
    assert uses_program(places) == (find_spec("xllamacpp") is None)


def test_a_profile_of_servers_needs_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without llama-server, servers are not profiled, and the error says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("placewise.runtimes.llama_cpp.program.find_spec", lambda name: None)
    with pytest.raises(RunError, match="llama-server is not installed"):
        pw.profile(write_mixture(tmp_path / "model.gguf"), "core,rpc:10.0.0.1:50052", runtime="llama.cpp", dims=SIZES)


def test_what_cannot_be_profiled(tmp_path: Path) -> None:
    """Other models, several devices, several sequences and other micro-batches, each in one sentence."""
    path = write_model(tmp_path / "model.gguf")
    for model, devices, dims, words in (
        ("examples/models/resnet50.onnx", "core", {"batch": 1}, "give a GGUF file"),
        (path, "2xcore", SIZES, "profiled on one processor"),
        (path, "core", {**SIZES, "batch": 2}, "with one sequence"),
        (path, "core", {**SIZES, "ubatch": 1024}, "micro-batches of 512"),
    ):
        with pytest.raises(InputError, match=words):
            pw.profile(model, devices, runtime="llama.cpp", dims=dims)
    with pytest.raises(InputError, match="do not fit the context"):
        time_llama(path, LlamaFlags(context=8), [(8, 2)])

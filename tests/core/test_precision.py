"""precision and tf32 as options: every format, defaults of runtimes, devices without a rate, plans, refusals."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tensorflow_files
import torch
from cli_runs import run
from huggingface_configs import SMALL
from ir_files import small
from locations import EXAMPLES
from onnx.helper import make_node
from onnx_files import model, saved, weight

import placewise as pw
from placewise.core.build import build, build_for_plan
from placewise.core.options import ProblemOptions, options_from
from placewise.errors import InputError
from placewise.exporters.writing import export_placement
from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem

pytestmark = pytest.mark.usefixtures("traced_once")
GPUS = "A100,L4,RTX-4090"
RESNET = str(EXAMPLES / "resnet50.onnx")


def product(folder: Path, rows: int = 4096) -> str:
    """[rows, 1024] · [1024, 1024] as ONNX: large enough that arithmetic decides on every GPU."""
    content = model([make_node("MatMul", ["x", "w"], ["y"])], {"x": [rows, 1024]}, ["y"], [weight("w", 1024, 1024)])
    return str(saved(folder, content))


def total_bytes(graph: Graph) -> tuple[int, int]:
    return int(graph.tensors.bytes.sum()), int(graph.weights.bytes.sum())


class Net(torch.nn.Module):
    """A product, a sum and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)) + 1.0)


def sources(folder: Path) -> dict[str, dict[str, object]]:
    """A model of every format, as keyword arguments of read_model."""
    x = torch.zeros(8, 32)
    torch.export.save(torch.export.export(Net(), (x,)), str(folder / "net.pt2"))
    (folder / "net.xml").write_bytes(small())
    net = tensorflow_files.graph(
        tensorflow_files.placeholder("x", (8, 32)),
        tensorflow_files.weight("w", 32, 64),
        tensorflow_files.node("y", "MatMul", "x", "w", T=tensorflow_files.F),
    )
    return {
        "onnx": {"model": product(folder, 8)},
        "pt2": {"model": str(folder / "net.pt2")},
        "live": {"model": Net(), "example_inputs": (x,)},
        "openvino": {"model": str(folder / "net.xml")},
        "tensorflow": {"model": str(tensorflow_files.saved(folder, net, "net.pb"))},
        "zoo": {"model": "zoo:rnnlm-2", "dims": {"steps": 2}},
        "graph": {"model": pw.read_model("zoo:rnnlm-2", dims={"steps": 2})},
    }


FORMATS = ("onnx", "pt2", "live", "openvino", "tensorflow", "zoo", "graph")


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_cast(tmp_path: Path, form: str) -> None:
    """Models of floats alone halve in fp16, double in fp64; a matrix of 4 bits has 9/32 of its bytes in float16."""
    source = sources(tmp_path)[form]
    before = total_bytes(pw.read_model(**source))
    floats = total_bytes(pw.read_model(**source, precision="fp16"))
    wide = pw.read_model(**source, precision="fp64")
    ints = sum(
        int(size)
        for size, code in zip(wide.tensors.bytes, range(wide.n_tensors), strict=True)
        if "float" not in wide.tensors.dtype_name(code)
    )
    assert [2 * (size - part) for size, part in zip(floats, (ints, 0), strict=True)] == [before[0] - ints, before[1]]
    assert total_bytes(wide) == (2 * (before[0] - ints) + ints, 2 * before[1])
    four = pw.read_model(**source, precision="int4")
    assert four.n_ops == wide.n_ops and total_bytes(four)[0] == floats[0] and total_bytes(four)[1] < floats[1]


@pytest.mark.parametrize("form", FORMATS)
def test_dtype_is_the_same_option(tmp_path: Path, form: str) -> None:
    """In every format, by its other name and with the names of element types."""
    source = sources(tmp_path)[form]
    wanted = pw.read_model(**source, precision="bf16")
    assert pw.read_model(**source, dtype="bfloat16").digest() == wanted.digest()
    assert wanted.source is not None and wanted.source.options["precision"] == "bf16"


def test_options_that_contradict_each_other_or_do_not_exist() -> None:
    """One sentence with the remedy, in the reader's language."""
    with pytest.raises(
        InputError, match="there is no precision 'fp12'; choose fp64, fp32, tf32, fp16, bf16, fp8, int8, int4"
    ):
        ProblemOptions(precision="fp12")
    with pytest.raises(InputError, match="--precision fp16 and --tf32 contradict each other; leave out one of them"):
        ProblemOptions(precision="fp16", tf32=True)
    with pytest.raises(InputError, match="--precision tf32 and --no-tf32 contradict"):
        ProblemOptions(precision="tf32", tf32=False)
    with pytest.raises(InputError, match="dtype and precision are one option"):
        options_from({"dtype": "float16", "precision": "fp16"})
    assert options_from({"dtype": "float16"}).precision == ProblemOptions(precision="fp16").precision == "fp16"


def seconds(problem: Problem) -> list[float]:
    return [float(column) for column in problem.costs.op_seconds.sum(axis=0)]


def test_tf32_by_hand(tmp_path: Path) -> None:
    """2 · 4096 · 1024² FLOPs at 70 % of 156, 60 and 82.6 TFLOP/s, or of float32's 19.5, 30.3 and 82.6, and 5 µs."""
    path, flops = product(tmp_path), 2 * 4096 * 1024**2
    for tf32, rates in ((True, (156e12, 60e12, 82.6e12)), (False, (19.5e12, 30.3e12, 82.6e12))):
        expected = [flops / (0.7 * rate) + 5e-6 for rate in rates]
        assert seconds(build(path, GPUS, ProblemOptions(tf32=tf32))) == pytest.approx(expected, rel=1e-9)
    assert seconds(build(path, GPUS)) == seconds(build(path, GPUS, ProblemOptions(precision="tf32")))


def test_runtimes_choose_tf32_by_default(tmp_path: Path) -> None:
    """ONNX Runtime and TensorFlow: products; PyTorch: convolutions alone; a zoo workload and OpenVINO: nothing."""

    class Both(torch.nn.Module):
        """A convolution and a product, both bound by arithmetic on an A100."""

        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = torch.nn.Conv2d(256, 256, 3, padding=1), torch.nn.Linear(1024, 1024)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.conv(x), self.linear(y)

    def faster(model: object, **more: object) -> dict[str, bool]:
        """Which kinds of op the default makes faster than float32."""
        example = more.pop("example_inputs", None)
        usual, plain = (
            build(model, "A100", ProblemOptions(tf32=tf32, **more), example_inputs=example) for tf32 in (None, False)
        )
        gained = (usual.costs.op_seconds < plain.costs.op_seconds)[:, 0].tolist()
        return dict(zip(usual.graph.ops.kind, gained, strict=True))

    net = tensorflow_files.graph(
        tensorflow_files.placeholder("x", (4096, 1024)),
        tensorflow_files.weight("w", 1024, 1024),
        tensorflow_files.node("y", "MatMul", "x", "w", T=tensorflow_files.F),
    )
    module = faster(Both(), example_inputs=(torch.zeros(8, 256, 56, 56), torch.zeros(8192, 1024)))
    assert [gain for kind, gain in module.items() if "Conv" in kind] == [True]
    assert not any(gain for kind, gain in module.items() if "Conv" not in kind)
    assert faster(product(tmp_path)) == {"MatMul": True}
    assert faster(str(tensorflow_files.saved(tmp_path, net, "net.pb"))) == {"MatMul": True}
    assert not any(faster("zoo:rnnlm-2", dims={"steps": 2}).values())


@pytest.mark.parametrize("gpu", ["A100", "L4", "RTX-4090"])
def test_a_vision_transformer_with_and_without_tf32(gpu: str) -> None:
    """An A100 gains; an L4 waits for its memory, and an RTX 4090 has no higher peak; fp16 is faster on all."""
    one = {name: sum(seconds(build("hf:vit-base", gpu, options))) for name, options in {
        "fp32": ProblemOptions(tf32=False), "tf32": ProblemOptions(tf32=True), "fp16": ProblemOptions(precision="fp16"),
    }.items()}  # fmt: skip
    assert one["fp16"] < one["tf32"] <= one["fp32"]
    assert (one["tf32"] < 0.75 * one["fp32"]) == (gpu == "A100")


def test_tf32_of_a_model_without_float32_is_refused(tmp_path: Path) -> None:
    """It would change nothing, either way."""
    path = product(tmp_path)
    half = pw.read_model(path, precision="fp16")
    for source, options, flag in (
        (path, ProblemOptions(precision="fp16", tf32=False), "--no-tf32"),
        (half, ProblemOptions(tf32=True), "--tf32"),
    ):
        with pytest.raises(InputError, match=f"computes in float32; leave out {flag}"):
            build(source, "A100", options)


def test_tf32_without_a_device_that_has_it_is_refused(tmp_path: Path) -> None:
    """It would change nothing on a CPU, an older card, or beside an accelerator that is left out."""
    path = product(tmp_path, 8)
    for tf32, flag in ((True, "--tf32"), (False, "--no-tf32")):
        for devices in ("cpu", "2xV100", "A100@0,cpu"):
            with pytest.raises(InputError, match=f"no device computes in TF32; leave out {flag}"):
                build(path, devices, ProblemOptions(tf32=tf32))


def test_a_device_without_the_rate_computes_in_the_next_wider_type(tmp_path: Path) -> None:
    """V100: bfloat16 at float32's rate; A100: fp8 at float16's; a CPU: float16 at float32's; bytes are as asked."""
    path, flops = product(tmp_path), 2 * 4096 * 1024**2
    brain = build(path, "V100", ProblemOptions(precision="bf16"))
    assert seconds(brain) == pytest.approx([flops / (0.7 * 15.7e12) + 5e-6])
    assert brain.warnings == (
        "cuda:0: no peak for bfloat16 is known, so products are computed in float32; sizes in memory and in copies are "
        "those of bf16",
    )
    eight = build(path, "A100,RTX-4090,cpu", ProblemOptions(precision="fp8"))
    assert seconds(eight)[:2] == pytest.approx([flops / (0.7 * rate) + 5e-6 for rate in (312e12, 330.3e12)])
    assert [note.partition(":")[0] for note in eight.warnings] == ["cuda", "cpu"]
    assert [note.split(" in ")[1].partition(";")[0] for note in eight.warnings] == ["float16", "float32"]
    half, whole = (build(path, "L4,cpu", ProblemOptions(precision=name)) for name in ("fp16", "fp32"))
    assert int(half.graph.tensors.bytes.sum()) * 2 == int(whole.graph.tensors.bytes.sum())
    assert seconds(half)[1] == pytest.approx(seconds(whole)[1], rel=0.2) and half.warnings
    assert whole.warnings == (
        "cuda:0: products are priced in TF32, the default of the model's runtime; --no-tf32 prices them in float32",
    )
    plain = (
        build(path, "L4,cpu", ProblemOptions(precision="fp32", tf32=False)),
        build(path, "V100,cpu", ProblemOptions(precision="fp32")),
        build(torch.nn.Linear(8, 8), "L4", ProblemOptions(precision="fp32"), example_inputs=(torch.zeros(1, 8),)),
    )
    assert not any(problem.warnings for problem in plain)


@pytest.mark.soak
def test_sizes_of_a_published_language_model() -> None:
    """Llama 3 8B: 14.96, 7.95 and 4.36 GiB as F16, Q8_0 and Q4_K_S (llama.cpp, tools/quantize/README.md).

    F16 and Q8_0 differ by what is not in the graph (vectors in float32, rounding of the table): less than 0.2 %.
    Q4_K_S has the bits of int4, 4.5, in most layers, and its head, 128,256 · 4096 entries, in 6.5625 (Q6_K): with
    those bits int4 differs by less than 1 %, which is the share of its few layers in Q5_K.
    """

    def size(name: str) -> float:
        graph = pw.read_model("hf:llama-3-8b", dims={"prompt": 8, "tokens": 2}, precision=name)
        used = np.unique(graph.weights.storage, return_index=True)[1]
        return float(graph.weights.bytes[used].sum()) / 2**30

    head = 128_256 * 4096 * (6.5625 - 4.5) / 8 / 2**30
    assert size("fp16") == pytest.approx(14.96, rel=2e-3) and size("int8") == pytest.approx(7.95, rel=2e-3)
    assert size("int4") + head == pytest.approx(4.36, rel=1e-2)


def test_a_plan_keeps_its_precision(tmp_path: Path) -> None:
    """The file names it, and the plan is judged in it again, from the file alone."""
    path = product(tmp_path, 64)
    for options in ({"precision": "fp16"}, {"precision": "int4"}, {"tf32": False}, {"precision": "tf32"}):
        plan = pw.place(path, "2xA100,cpu", placer="heft", **options)
        plan.save(tmp_path / "plan.json")
        problem, placement = build_for_plan(path, tmp_path / "plan.json")
        assert pw.judge(problem, placement).value == plan.value
        assert problem.graph.source is not None and options.items() <= problem.graph.source.options.items()
    plan = pw.place("hf:gpt2", "2xA100", placer="heft", dtype="float16", dims={"prompt": 8, "tokens": 2})
    plan.save(tmp_path / "plan.json")
    assert pw.judge("hf:gpt2", tmp_path / "plan.json").value == plan.value


def test_a_cast_plan_does_not_run(tmp_path: Path) -> None:
    """Runtimes execute the file as it is: to run, or to profile, says so; a precision that changes nothing does run."""
    path = product(tmp_path, 8)
    plan = pw.place(path, "2xcpu", placer="heft", precision="fp16")
    with pytest.raises(
        InputError, match="prices the model in fp16, and a runtime executes it as it is; convert the model"
    ):
        pw.run(plan)
    with pytest.raises(InputError, match="prices the model in bf16"):
        pw.profile(path, "this", precision="bf16", repeats=1, cache=False)
    same = pw.place(path, "this", placer="heft", precision="fp32")
    assert not pw.run(same, rounds=1, measure_time="1s").failure


def exported(problem: Problem, target: str) -> tuple[str, tuple[str, ...]]:
    made = export_placement(problem, Placement.on(0, problem.n_ops), target)
    return str(next(iter(made.exported.files.values()))), made.exported.notes


def test_exports_ask_for_the_precision() -> None:
    """Targets that can say it do, others name what has to be converted."""
    dims = {"prompt": 8, "tokens": 2}

    @cache
    def of(name: str) -> Problem:
        return build("hf:gpt2", "A100,cpu", ProblemOptions(dims=dims, precision=name))

    assert "--dtype bfloat16" in exported(of("bf16"), "vllm")[0]
    text, notes = exported(of("fp8"), "vllm")
    assert "--quantization fp8" in text and not any("checkpoint" in note for note in notes)
    assert any("vLLM reads int4 weights from a checkpoint" in note for note in exported(of("int4"), "vllm")[1])
    assert "a GGUF file of type Q4_0" in exported(of("int4"), "llama.cpp")[0]
    assert "a GGUF file}" in exported(build("hf:gpt2", "A100,cpu", ProblemOptions(dims=dims)), "llama.cpp")[0]
    assert any("load_in_8bit=True" in note for note in exported(of("int8"), "device-map")[1])
    assert any("which device-map cannot ask for: convert" in note for note in exported(of("fp8"), "device-map")[1])


def test_the_command_line_takes_both_names(tmp_path: Path) -> None:
    """`--precision`, `--dtype`, `--tf32` and `--no-tf32`; what does nothing ends with exit code 2."""
    path = product(tmp_path, 8)
    for flag in (("--precision", "int8"), ("--dtype", "float16"), ("--tf32",), ("--no-tf32",)):
        run("place", path, "-d", "A100,cpu", "--placer", "heft", *flag)
    assert (
        "--precision fp16 and --tf32"
        in run("place", path, "-d", "A100", "--precision", "fp16", "--tf32", code=2).stderr
    )
    assert "float16" in run("inspect", path, "--precision", "int8").stdout


def whole(folder: Path) -> pw.Problem:
    problem = build("zoo:random-layered", "L4,cpu", ProblemOptions(dims={"n_ops": 20}))
    problem.save(folder / "problem.npz")
    return problem


def test_options_that_change_nothing_are_refused(tmp_path: Path) -> None:
    """What was read or priced before keeps its sizes, view and precision; patterns and inputs must find something."""
    problem, graph = whole(tmp_path), pw.read_model("zoo:random-layered", dims={"n_ops": 20})
    file = str(tmp_path / "problem.npz")
    for source in (problem, file):
        for options, words in (
            ({"dims": {"n_ops": 30}}, "its costs are given, with its sizes; leave out --dim n_ops=30"),
            ({"view": "raw"}, "its costs are given, in the folded view; leave out --view raw"),
            ({"precision": "fp16"}, "its costs are given, in one precision; leave out --precision fp16"),
            ({"tf32": True}, "its costs are given, in one precision; leave out --tf32"),
        ):
            with pytest.raises(InputError, match=words):
                build(source, None, ProblemOptions(**options))
        assert build(source, None, ProblemOptions(dims={"n_ops": 20}, view="folded")).graph.digest() == graph.digest()
    with pytest.raises(InputError, match="this graph is read already, with its sizes; leave out --dim n_ops=30"):
        pw.read_model(graph, dims={"n_ops": 30})
    with pytest.raises(InputError, match="no weight of the model matches 'zork'"):
        build(RESNET, "L4", ProblemOptions(dims={"batch": 1}, graph="training", freeze="zork"))
    with pytest.raises(InputError, match="example inputs belong to a PyTorch module; leave out"):
        build(RESNET, "L4", ProblemOptions(dims={"batch": 1}), example_inputs=(1,))


def test_what_is_trained_is_not_quantized(tmp_path: Path) -> None:
    """Nor is a graph quantized twice, in the raw view, or after its backward pass was made; 16 bits are trained."""
    path = product(tmp_path, 8)
    for options, words in (
        (
            {"precision": "int4", "graph": "training"},
            "quantizes weights, and these are not trained; give --precision bf16",
        ),
        ({"precision": "int8", "view": "raw"}, "quantizes the weights of the folded view"),
    ):
        with pytest.raises(InputError, match=words):
            pw.read_model(path, **options)
    four, trained = pw.read_model(path, precision="int4"), pw.read_model(path, precision="bf16", graph="training")
    with pytest.raises(InputError, match="quantized already, as int4; leave out --precision fp16"):
        pw.read_model(four, precision="fp16")
    with pytest.raises(InputError, match="this is a training graph already, in one precision"):
        pw.read_model(trained, precision="fp16")
    assert pw.read_model(four, precision="int4").digest() == four.digest()
    assert trained.ops.state_bytes.sum() == 12 * 1024**2  # Adam's moments and a copy of the weights in float32


def test_small_configurations_quantize(tmp_path: Path) -> None:
    """Experts are matrices too; what a run reads of them shrinks with them."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mixtral", **SMALL["mixtral"]}))
    half, four = (
        pw.read_model(str(path), precision=name, dims={"prompt": 8, "tokens": 2}) for name in ("fp16", "int4")
    )
    assert 0.28 < four.weights.bytes.sum() / half.weights.bytes.sum() < 0.3

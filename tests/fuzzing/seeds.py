"""The files that are damaged: real ones of the repository, small ones written here, and those that Placewise writes."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ir_files
import numpy as np
import tensorflow_files as tf
from gguf_models import tiny_model

from fuzzing import texts
from fuzzing.archive import packed
from fuzzing.models import onnx_models
from placewise.analysis.sweep.run import plan_sweep, run_sweep
from placewise.api import place
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.files.costs_file import save_costs
from placewise.files.graph_file import save_graph
from placewise.files.plan_file import save_plan
from placewise.files.problem_file import save_problem
from placewise.files.profile_file import ProfileFile, save_profile
from placewise.files.records import json_bytes
from placewise.files.sweep_file import AnswerRecord, SweepFile
from placewise.model.builder import GraphBuilder
from placewise.model.graph import Graph
from placewise.model.tables import Phase
from placewise.placers.base import Budget

ROOT = Path(__file__).parents[2]
DATA, EXAMPLES = ROOT / "tests" / "data", ROOT / "examples" / "models"
PRESETS = ROOT / "placewise" / "readers" / "huggingface" / "presets"
CORPORA = ROOT / "benchmarks" / "generalize" / "corpora"
MODEL, WORKLOAD, PHASED, DEVICES = "branches.onnx", "workload.json", "phased.npz", "2xL4,cpu"
PIPER = "piper.json"
BEHIND = {"given": WORKLOAD, "made": WORKLOAD, "phased": PHASED, "stages": PIPER}
"""The models of plans, where it is not `MODEL`."""
DIMS = {"batch": 2}
_OPEN = {"resnet50_open.xml.gz": {"images:0": 2}}
_UNREADABLE = "bert_open.xml.gz"
"""Its shapes depend on values: refused as it is."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A sound file: its name, its suffix, and the sizes that its open dimensions need."""

    name: str
    suffix: str
    data: bytes
    dims: dict[str, int] = field(default_factory=dict)


_EMBEDDED = {
    "per_layer_token_embd.weight": (8, 64), "per_layer_model_proj.weight": (64, 32),
    "blk.0.inp_gate.weight": (32, 32), "blk.0.proj.weight": (32, 32), "blk.1.attn_k.weight": (),
}  # fmt: skip
_SHARED = {"llama.attention.shared_kv_layers": 1}


def write_case_files(folder: Path) -> None:
    """Put what cases refer to into the folder in which they run: the models behind plans and measurements."""
    content = onnx_models()["branches"].SerializeToString()
    (folder / MODEL).write_bytes(content)
    (folder / WORKLOAD).write_text(json.dumps(texts.WORKLOAD))
    (folder / PIPER).write_text(json.dumps(texts.PIPER))
    save_graph(_phased(), folder / PHASED)
    (folder / "small.xml").write_bytes(gzip.decompress((DATA / "measured" / "small.xml.gz").read_bytes()))
    for path in (DATA / "measured" / "small.onnx", DATA / "measured" / "small.pt2", CORPORA / "default.toml"):
        (folder / path.name).write_bytes(path.read_bytes())


def model_seeds() -> dict[str, tuple[Seed, ...]]:
    """Models by format."""
    open_ = {"branches": DIMS, "convolutions": DIMS, "functions": {"rows": 4}, "attention": DIMS | {"seq": 5},
             "shapes": {"batch": 4, "2*seq": 6, "h": 8, "w": 8}}  # fmt: skip
    made = [Seed(name, ".onnx", m.SerializeToString(), open_.get(name, {})) for name, m in onnx_models().items()]
    examples = [_file(EXAMPLES / f"{name}.onnx", DIMS | more) for name, more in
                (("resnet50", {}), ("bert_base", {"seq": 16}), ("gpt2", {"seq": 16}))]  # fmt: skip
    ir = [Seed("small", ".xml", ir_files.small())]
    ir += [_file(path, _OPEN.get(path.name, {})) for path in sorted((DATA / "openvino").glob("*.xml.gz"))
           if path.name != _UNREADABLE]  # fmt: skip
    flow = [_file(path, {} if path.name in ("costs.pb", "loop_training.pb") else DIMS)
            for path in sorted((DATA / "tensorflow").iterdir()) if path.suffix in (".pb", ".meta")]  # fmt: skip
    flow.append(Seed("small", ".pb", tf.graph(
        tf.placeholder("x", [2, 3]), tf.weight("w", 3, 4), tf.node("y", "MatMul", "x", "w", T=tf.F),
        tf.node("c", "PartitionedCall", "y", f="@f"),
        functions=[tf.function("f", ["a"], [tf.node("b", "Relu", "a")], {"r": "b:activations:0"})],
    ).SerializeToString()))  # fmt: skip
    return {
        "onnx": (*made, *examples),
        "external": tuple(one for one in made if one.name == "tensors"),
        "openvino": tuple(ir),
        "tensorflow": tuple(flow),
        "tensorflow text": (_file(DATA / "tensorflow" / "costs.pbtxt"),
                            Seed("part", ".pbtxt", (DATA / "tensorflow" / "training.pbtxt").read_bytes(), DIMS)),
        "torch": (_file(DATA / "torch" / "layered.pt2", {"ids:0": 4}), _file(DATA / "measured" / "small.pt2")),
        "hugging face": tuple(_shallow(path) for path in sorted(PRESETS.glob("*.json"))),
        "workload": (Seed("made", ".json", json.dumps(texts.WORKLOAD).encode()),),
        "piper": (Seed("made", ".json", json.dumps(texts.PIPER).encode()),),
        "pipedream": (Seed("made", ".txt", texts.PIPEDREAM),),
        "gguf": (Seed("dense", ".gguf", tiny_model()), Seed("mixed", ".gguf", tiny_model(experts=True)),
                 Seed("embedded", ".gguf", tiny_model(tensors=_EMBEDDED, **_SHARED))),
        **dict.fromkeys(("names", "options"), (Seed("made", ".json", b"{}"),)),
    }  # fmt: skip


def other_seeds() -> dict[str, tuple[Seed, ...]]:
    """Everything else; to be called in a furnished folder."""
    problem = build(MODEL, DEVICES, ProblemOptions(dims=DIMS))
    plans = {
        "latency": place(MODEL, DEVICES, placer="etf", dims=DIMS, pins={"a": "cpu"}, headroom="5%").result,
        "throughput": place(MODEL, DEVICES, placer="dpl", dims=DIMS, objective="throughput", replicas=2).result,
        "given": place(WORKLOAD, placer="dpl").result,
        "phased": place(PHASED, DEVICES, placer="etf", objective="latency").result,
        "stages": place(PIPER, max_memory={"acc0": 2500}).result,
    }
    save_graph(problem.graph, "graph.npz")
    save_problem(problem, "problem.npz")
    save_problem(build(PHASED, DEVICES, ProblemOptions()), "phases.npz")
    save_problem(build(PIPER), "ways.npz")
    save_profile(_profile(problem.graph), "profile.json")
    save_costs(problem.costs, problem.graph, problem.cluster, "costs.npz")
    for name, plan in plans.items():
        save_plan(plan, f"{name}.json")
    measured = DATA / "measured"
    return {
        "cluster": tuple(Seed(str(row), ".toml", text.encode()) for row, text in enumerate(texts.CLUSTERS)),
        "cluster line": tuple(Seed(str(row), "", line.encode()) for row, line in enumerate(texts.LINES)),
        "topology": tuple(Seed(str(row), ".topo", text.encode()) for row, text in enumerate(texts.TOPOLOGIES)),
        "plan": tuple(Seed(name, ".json", _timeless(Path(f"{name}.json").read_bytes())) for name in plans),
        "split": (Seed("made", ".json", json.dumps(texts.SPLIT).encode()),),
        "graph": (_file(Path("graph.npz")), _file(Path(PHASED))),
        "problem": (_file(Path("problem.npz")), _file(Path("phases.npz")), _file(Path("ways.npz"))),
        "profile": (_file(Path("profile.json")),),
        "times": (
            Seed("csv", ".csv", texts.TIMES_CSV),
            _file(Path("costs.npz")),
            Seed("json", ".json", json.dumps(texts.TIMES_JSON).encode()),
            Seed("list", ".json", json.dumps(texts.TIMES_LIST).encode()),
            *(_file(path) for path in sorted(measured.glob("*.gz")) if not path.name.startswith("small")),
        ),
        "corpus": (Seed("made", ".toml", texts.CORPUS.encode()), *map(_file, sorted(CORPORA.glob("*.toml")))),
        "policy": _policy(),
        "sweep": (Seed("made", ".json", json_bytes(_sweep())),),
        "inputs": (Seed("made", ".npz", packed([(f"{name}.npy", _npy(np.ones(shape, np.float32)))
                                                for name, shape in (("x", (2, 16)), ("y", (3,)))])),),
    }  # fmt: skip


def _file(path: Path, dims: dict[str, int] | None = None) -> Seed:
    data = path.read_bytes()
    packed_ = path.suffix == ".gz"
    name = path.name.removesuffix(".gz")
    return Seed(name, Path(name).suffix, gzip.decompress(data) if packed_ else data, dims or {})


def _shallow(path: Path) -> Seed:
    """The configuration with two layers, so that building the model takes little."""
    values = json.loads(path.read_bytes())
    for key in values:
        if re.fullmatch(r"(num_hidden|encoder|decoder|n|num|num_decoder)_layers?", key):
            values[key] = min(values[key], 2)
    return Seed(path.stem, ".json", json.dumps(values).encode())


def _timeless(plan: bytes) -> bytes:
    """A plan without what is different every time that it is made."""
    values = json.loads(plan)
    values.pop("history", None)
    return json.dumps({key: 1.0 if key == "seconds" else value for key, value in values.items()}).encode()


def _profile(graph: Any) -> ProfileFile:
    n = graph.n_ops
    figures = {"ops": [1e-4] * n}
    device = {"name": "cuda:0", "place": "cuda:0", "idle": figures, "loaded": figures}
    return ProfileFile.model_validate(
        {"runtime": "onnxruntime", "graph_hash": graph.digest(), "ops": graph.ops.name, "devices": [device]}
    )


def _phased() -> Graph:
    """A prompt, and three tokens after it: two layers, each with a weight that both phases use, and a cache."""
    builder = GraphBuilder()
    weights = [builder.add_weight(f"w{layer}", shape=(4, 4), dtype="float32") for layer in range(2)]
    for phase, (word, length) in enumerate((("prompt", 5), ("token", 1))):
        value = builder.add_tensor(-1, shape=(length, 4), dtype="float32")
        for layer, weight in enumerate(weights):
            op = builder.add_op(f"{word}{layer}", "MatMul", phase=phase, state_bytes=64, scope=f"layer.{layer}")
            builder.add_edge(value, op)
            builder.use_weight(weight, op)
            value = builder.add_tensor(op, shape=(length, 4), dtype="float32", output=layer == 1)
    return builder.build(phases=(Phase("prompt"), Phase("tokens", 3)))


def _sweep() -> SweepFile:
    """A sweep of two sizes on two clusters, with a goal's answer and a list price."""
    sizes = {"batch": "1,2", "layers": "1,2"}
    options = ProblemOptions(dims={"length": 16})
    plan = plan_sweep("zoo:bert-base", "1..2xL4", sizes, options, Budget(), placer="single")
    found = run_sweep(plan, workers=1)
    answer = AnswerRecord(sizes=found.points[0].sizes, devices=found.points[0].devices)
    return found.model_copy(update={"until": "latency<=1s", "answers": (answer,)})


def _policy() -> tuple[Seed, ...]:
    from placewise.files.policy_file import PolicyFile, save_policy

    header = PolicyFile(policy="gdp", devices=("cuda:0", "cpu"), options={"samples": 4}, updates=3, seconds=1.5)
    save_policy(header, {"a": np.ones((3, 2), np.float32), "b": np.arange(4)}, "policy.json")
    (tensors,) = Path().glob("policy-*.safetensors")
    tensors.rename("policy-0000003-00000000.safetensors")
    document = json.loads(Path("policy.json").read_bytes()) | {"tensors": "policy-0000003-00000000.safetensors"}
    return (Seed("made", ".json", json.dumps(document).encode()),)


def _npy(array: Any) -> bytes:
    import io

    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()

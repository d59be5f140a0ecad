"""The target `device-map` and `pw.device_map`: maps of modules that Accelerate itself takes and runs."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placewise as pw
from placewise.analysis.device_map import device_map_of
from placewise.core.build import build
from placewise.core.options import ProblemOptions
from placewise.errors import ExportError, InputError
from placewise.exporters.device_map import read_map
from placewise.exporters.module_units import Modules, compress_keys, find_units, locate_ops
from placewise.exporters.writing import export_placement
from placewise.model.placement import Placement

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
IDS = torch.arange(2, 18).reshape(2, 8)


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=60)).eval()


def gpt2() -> Any:
    sizes = {"n_layer": 3, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 60}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).eval()


def llama() -> Any:
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, vocab_size=60)
    return transformers.LlamaForCausalLM(config).eval()


def t5() -> Any:
    sizes = {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_kv": 16, "d_ff": 64, "vocab_size": 60}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()


def inputs_of(model: Any) -> dict[str, Any]:
    return {"input_ids": IDS} | ({"decoder_input_ids": IDS} if hasattr(model, "decoder") else {})


def halves(model: Any, **options: Any) -> dict[str, int | str]:
    """A map over two GPUs of which each holds a part only."""
    size = sum(tensor.nbytes for tensor in model.parameters())
    memory = {0: int(0.8 * size) + 30_000, 1: int(0.8 * size) + 30_000}
    return pw.device_map(model, memory, example_inputs=inputs_of(model), headroom=0, budget=2, **options)


@pytest.mark.parametrize("make", [bert, gpt2, t5])
def test_maps_of_transformers(make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every tensor once, whole layers, ties together; Accelerate runs it, and nothing meets what is elsewhere."""
    model = make()
    made = halves(model)
    assert set(made.values()) == {0, 1}
    names = [name for name, _ in (*model.named_parameters(remove_duplicate=False), *model.named_buffers())]
    homes = {name: [key for key in made if name.startswith(f"{key}.")] for name in names}
    assert all(len(keys) == 1 for keys in homes.values())
    layers = [name for name, part in model.named_modules() if type(part).__name__ in set(model._no_split_modules)]
    assert not [key for key in made for layer in layers if key.startswith(f"{layer}.")]
    by_tensor: dict[int, set[int | str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        by_tensor.setdefault(id(tensor), set()).add(made[homes[name][0]])
    assert all(len(devices) == 1 for devices in by_tensor.values())
    accelerate.utils.modeling.check_device_map(model, made)
    with torch.no_grad():
        wanted = model(**inputs_of(model))[0]
    run = dispatched(model, made, {0: "cpu", 1: "disk"}, offload_dir=tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(run(**inputs_of(model))[0], wanted)
    meet_on_one_device(model, made, monkeypatch)


def dispatched(model: Any, made: Mapping[str, int | str], stand_ins: Mapping[int | str, str], **options: Any) -> Any:
    """The model as Accelerate runs it, with other devices in the place of the GPUs."""
    said = {key: stand_ins[device] for key, device in made.items()}
    return accelerate.dispatch_model(copy.deepcopy(model), said, main_device="cpu", **options)


def meet_on_one_device(model: Any, made: Mapping[str, int | str], monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch computes shapes alone on `meta`, and raises where tensors there and on the CPU meet.

    Accelerate's hooks move values; they may move them back, where PyTorch refuses to: there are none.
    """
    operations = accelerate.utils.operations

    def move(values: Any, device: Any, *_: Any, **__: Any) -> Any:
        def one(tensor: Any) -> Any:
            gone = tensor.is_meta and str(device) != "meta"
            return torch.zeros(tensor.shape, dtype=tensor.dtype) if gone else tensor.to(device)

        return operations.recursively_apply(one, values)

    monkeypatch.setattr(accelerate.hooks, "send_to_device", move)
    run = dispatched(model, made, {0: "cpu", 1: "meta"})
    with torch.no_grad():
        assert run(**inputs_of(model))[0].device.type == "cpu"


def test_as_accelerate_takes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments of infer_auto_device_map, by place and by name; one device is enough where all fits."""
    model = bert()
    memory = {0: "1GiB", 1: "1GiB", "cpu": "1GiB", "disk": "1GiB"}
    assert pw.device_map(model, memory, ["BertLayer"], example_inputs=inputs_of(model), budget=2) == {"": 0}
    assert pw.device_map(model, {0: 0, 1: "1GiB"}, None, torch.float16, example_inputs=inputs_of(model)) == {"": 1}
    monkeypatch.setattr(type(model), "_no_split_modules", None)
    assert set(halves(model, no_split_module_classes=["BertLayer"]).values()) == {0, 1}
    assert not next(model.parameters()).is_meta


def test_types_that_weights_will_have() -> None:
    """In half precision it fits where it does not in single; a type for one weight counts for that one."""
    model = bert()
    size = sum(tensor.nbytes for tensor in model.parameters())
    memory = {0: int(0.85 * size)}
    given = {"example_inputs": inputs_of(model), "headroom": 0, "budget": 2}
    with pytest.raises(InputError, match=r"no device map exists: .*more than they hold"):
        pw.device_map(model, memory, **given)
    assert pw.device_map(model, memory, dtype="float16", **given) == {"": 0}
    with pytest.raises(InputError, match="dtype is 'half-baked'"):
        pw.device_map(model, memory, dtype="half-baked", **given)
    every = {name: torch.float16 for name, _ in model.named_parameters()}
    assert pw.device_map(model, memory, special_dtypes=every, **given) == {"": 0}


def test_a_cpu_holds_what_gpus_cannot() -> None:
    """Without offload the map is refused, with it the CPU has a part; a model on meta is enough for a map."""
    with torch.device("meta"):
        model = llama()
    given: dict[str, Any] = {"example_inputs": inputs_of(model), "headroom": 0, "budget": 2}
    memory = {0: 90_000, "cpu": "1GiB"}
    with pytest.raises(InputError, match="no device map exists"):
        pw.device_map(model, memory, offload=False, **given)
    assert "cpu" in set(pw.device_map(model, memory, **given).values())


def test_what_cannot_be_mapped() -> None:
    """No inputs and none to guess, no memory, no module: one sentence each."""
    with pytest.raises(InputError, match="does not say the shapes of its inputs"):
        pw.device_map(torch.nn.Linear(2, 2), {0: "1GiB"})
    with pytest.raises(InputError, match="no device has any memory"):
        pw.device_map(bert(), {0: 0, "cpu": "0"})
    with pytest.raises(InputError, match=r"is not an nn\.Module"):
        pw.device_map("bert", {0: "1GiB"})


def test_the_result_is_that_of_the_map() -> None:
    """What the map says is what was judged: bound below value, no rule broken."""
    model = bert()
    made, result = device_map_of(model, {0: "1GiB", 1: "1GiB"}, example_inputs=inputs_of(model), objective="throughput")
    assert result.placement is not None
    judged = pw.judge(result.problem, result.placement)
    assert judged.valid and result.bound.value <= judged.value and set(made.values()) == {0, 1}


class Residual(torch.nn.Module):  # type: ignore[misc, name-defined]
    """stem → (left, right) → a sum outside of modules → head, which shares memory with the stem."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = (torch.nn.Linear(4, 4, bias=False) for _ in range(3))
        self.act, self.head = torch.nn.ReLU(), torch.nn.Linear(4, 4, bias=False)
        self.head.weight = self.stem.weight
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Any) -> Any:
        y = self.act(self.stem(x))
        return self.head(self.left(y) + self.right(y)) * self.scale


def test_what_meets_between_modules_is_together() -> None:
    """By hand: left and right meet in the sum; stem and head share memory; the scale is the root's own."""
    problem = pw.build(Residual(), {0: "1GiB", 1: "1GiB"}, example_inputs=(torch.ones(2, 4),))
    names = ("stem.weight", "left.weight", "right.weight", "head.weight", "scale")
    tied = {"stem.weight": 0, "left.weight": 1, "right.weight": 2, "head.weight": 0, "scale": 3}
    units = find_units(problem.graph, Modules(names, frozenset(), tied))
    assert units.names == ("stem", "left", "right", "head", "scale")
    label = dict(zip(units.names, units.unit_label, strict=True))
    assert label["stem"] == label["head"] and label["left"] == label["right"] != label["stem"]
    assert label["scale"] == label["head"] == units.main
    device = np.where(units.label == label["left"], 1, 0).astype(np.int32)
    keys = compress_keys(problem.graph, units, device)
    assert keys == {"stem": 0, "left": 1, "right": 1, "head": 0, "scale": 0}
    assert locate_ops(problem.graph, keys, 0).tolist() == device.tolist()
    apart = keys | {"left": 0}
    with pytest.raises(ExportError, match=r"'add'.*reads the module 'left' on cuda:0 and the module 'right' on cuda:1"):
        read_map(problem, apart)


def test_what_a_phase_hands_to_the_next_is_an_input(tmp_path: Path) -> None:
    """A generated token is moved like any input: to the first GPU, wherever it was drawn, in both phases alike."""
    config = gpt2().config.to_dict() | {"architectures": ["GPT2LMHeadModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    problem = build(str(tmp_path / "config.json"), "2xA100-80GB", ProblemOptions(dims={"prompt": 8, "tokens": 4}))
    assert len(problem.graph.phases) == 2
    first = ["transformer.h.0" in scope or scope.endswith("ln_f") for scope in problem.graph.ops.scope]
    made = export_placement(problem, Placement(np.where(first, 0, 1).astype(np.int32)), "device-map")
    said = json.loads(str(made.exported.files["device_map.json"]))
    assert set(said.values()) == {0, 1} and made.said.valid
    accelerate.utils.modeling.check_device_map(gpt2(), said)


def test_a_plan_of_a_program_file(tmp_path: Path) -> None:
    """Projected to whole layers, every tensor of the file in it, the loss known; and bad clusters are refused."""
    path = tmp_path / "bert.pt2"
    torch.export.save(torch.export.export(bert(), (), {"input_ids": IDS}), path)
    problem = pw.build(path, "2xA100-80GB,cpu")
    cut = next(op for op, scope in enumerate(problem.graph.ops.scope) if scope.startswith("encoder.layer.2.output"))
    placement = Placement((np.arange(problem.n_ops) >= cut).astype(np.int32))
    made = export_placement(problem, placement, "device-map")
    said = json.loads(str(made.exported.files["device_map.json"]))
    assert made.projected and set(said.values()) == {0, 1} and np.isfinite(made.loss)
    accelerate.utils.modeling.check_device_map(bert(), said)
    assert export_placement(problem, made.exported.placement, "device-map").moved == 0
    assert (
        export_placement(problem, Placement.on(2, problem.n_ops), "device-map").exported.files["device_map.json"]
        == '{\n  "": "cpu"\n}\n'
    )
    with pytest.raises(ExportError, match="Accelerate knows no device 'core:0'"):
        export_placement(pw.build(path, "2xcore"), placement, "device-map")
    drawn = pw.build("zoo:random-layered", "2xA100-80GB")
    with pytest.raises(ExportError, match="are not PyTorch's"):
        export_placement(drawn, Placement.on(0, drawn.n_ops), "device-map")

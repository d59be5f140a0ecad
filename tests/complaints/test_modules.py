"""What people complain of, rebuilt (docs/complaints.md): maps with holes, broken ties, the order of definition."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_configs import write_config

import placewise as pw
from placewise.analysis.device_map import device_map_of
from placewise.core.build import build_for_plan
from placewise.errors import InputError
from placewise.placers.base import Budget

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("traced_once")

WIDTH = 1024
PROVED = Budget(30.0, gap=0.25)
"""A search ends where its answer is proved to be so good, however slow the machine."""
IDS = torch.zeros(2, 64, dtype=torch.long)


class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two products, and a scale and a counter that belong to the layer itself."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, inner, bias=False), torch.nn.Linear(inner, WIDTH, bias=False)
        self.layer_scalar = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("steps", torch.ones(1))

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(x))) * self.layer_scalar * self.steps


class Decoder(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Embedding, layers, norm and head; nothing is allocated (meta)."""

    def __init__(self, inner: Sequence[int], vocab: int = 1024, *, tied: bool = False) -> None:
        with torch.device("meta"):
            super().__init__()
            self.embed = torch.nn.Embedding(vocab, WIDTH)
            self.layers = torch.nn.ModuleList(Layer(size) for size in inner)
            self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, vocab, bias=False)
            if tied:
                self.head.weight = self.embed.weight

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def size_of(model: Any) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def homes(model: Any, made: Mapping[str, int | str]) -> dict[str, int | str]:
    """The device of every parameter and buffer: each is below exactly one key of the map."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    found = {}
    for name, _ in named:
        keys = [key for key in made if key in ("", name) or name.startswith(f"{key}.")]
        assert len(keys) == 1, (name, keys)
        found[name] = made[keys[0]]
    return found


@pytest.mark.parametrize("memory", [{0: 1, 3: 1}, {0: 1, 1: 0, 2: 1, 3: 0, "cpu": 50}])
def test_two_of_four_cards(memory: dict[int | str, float]) -> None:
    """accelerate#4014, #4297: a parameter without a device, and all on GPU 0 where `max_memory` skips a number.

    Both cards are used and no other one is; every tensor has a device once, that which a layer holds beside its
    modules with the layer, since its sum could not be made on two devices.
    """
    model = Decoder([2**14] * 4)
    room = {card: int(0.6 * share * size_of(model)) for card, share in memory.items()}
    found = homes(model, made := pw.device_map(model, room, example_inputs=(IDS,), headroom=0, budget=PROVED))
    assert set(made.values()) == {card for card, share in memory.items() if share == 1}
    held = dict.fromkeys(made.values(), 0)
    for name, weight in model.named_parameters():
        held[found[name]] += weight.nbytes
    assert all(0.4 * size_of(model) < held[card] <= room[card] for card in held)
    for n in range(4):
        assert len({home for name, home in found.items() if name.startswith(f"layers.{n}.")}) == 1


class Plain(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Layers of two products without a sum around them; one is as large as all others."""

    def __init__(self) -> None:
        with torch.device("meta"):
            super().__init__()
            shapes = ((WIDTH, size) for size in (2**13, 2**15, 2**13, 2**13))
            self.layers = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.Linear(*shape, bias=False), torch.nn.Linear(*reversed(shape), bias=False))
                for shape in shapes
            )

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def test_finer_than_a_layer_if_allowed() -> None:
    """accelerate#3041: with `no_split_module_classes=[]`, one module larger than a card kept all others off it.

    Here the largest layer is cut in its middle, half of it on either card; as a whole, it alone is on the CPU.
    """
    model = Plain()
    room = {card: int(0.55 * size_of(model)) for card in (0, 1)}
    given: dict[str, Any] = {"example_inputs": (torch.zeros(8, WIDTH),), "headroom": 0, "budget": PROVED}
    found = homes(model, pw.device_map(model, room, [], **given))
    assert {found["layers.1.0.weight"], found["layers.1.1.weight"]} == {0, 1} == set(found.values())
    small = {0: int(0.48 * size_of(model)), "cpu": "64GiB"}
    away = homes(model, pw.device_map(model, small, **given))
    assert {name for name, home in away.items() if home == "cpu"} == {"layers.1.0.weight", "layers.1.1.weight"}


def test_generation_for_a_batch(tmp_path: Path) -> None:
    """accelerate#608, as it was told: OPT, a batch of 8, `generate` runs out of memory though the weights fit.

    By hand: 2 · 3 layers · 32 values · 520 positions · 4 bytes of cache per text. The card holds weights and the caches
    of two; for eight, the check finds what their caches and activations take too much.
    """
    pytest.importorskip("transformers")
    config, cache = write_config(tmp_path, "opt", max_position_embeddings=1024), 2 * 3 * 32 * 520 * 4
    dims = {"prompt": 8, "tokens": 512}
    roomy = pw.place(config, {0: "1GiB"}, placer="single", dims=dims)
    (use,) = roomy.result.judgement.devices  # type: ignore[union-attr]
    card = {0: int(use.peak + cache)}
    pw.place(config, card, placer="single", dims=dims).save(tmp_path / "plan.json")
    problem, placement = build_for_plan(config, tmp_path / "plan.json", options=pw.ProblemOptions(dims={"batch": 8}))
    judged = pw.judge(problem, placement)
    assert judged.devices[0].resident == use.resident + 7 * cache
    (broken,) = judged.violations
    assert broken.kind == "memory" and broken.bytes_short == judged.devices[0].peak - card[0] >= 6 * cache
    assert pw.judge(*build_for_plan(config, tmp_path / "plan.json", options=pw.ProblemOptions(dims={"batch": 1}))).valid


def test_offload_only_if_asked() -> None:
    """accelerate#2074: without it, an error says how many bytes are missing on which devices; the CPU is no room."""
    model = Decoder([2**14] * 4)
    room = {0: int(0.4 * size_of(model)), 1: int(0.4 * size_of(model)), "cpu": 100 * size_of(model)}
    with pytest.raises(InputError, match=r"must fit on cuda:0, cuda:1, which is [\d.]+ MiB") as told:
        pw.device_map(model, room, example_inputs=(IDS,), headroom=0, offload=False)
    missing = size_of(model) - 2 * int(0.4 * size_of(model))
    assert f"({missing} bytes)" in str(told.value)
    assert set(pw.device_map(model, room, example_inputs=(IDS,), headroom=0, budget=PROVED).values()) == {0, 1, "cpu"}


def test_what_takes_a_search_is_not_called_impossible() -> None:
    """The same: without a proof, and without any time to look, a longer budget is what is advised."""
    model = Decoder([2**13] * 5 + [2**14] * 3)
    room = {card: int(0.55 * size_of(model)) for card in (0, 1)}
    with pytest.raises(InputError, match="the search found no device map in time; give a longer budget"):
        pw.device_map(model, room, example_inputs=(IDS,), headroom=0, budget=0)


def test_ties_are_found_by_what_is_shared() -> None:
    """accelerate#993, transformers#46566: weights untied by the dispatch, ties looked for by names.

    Head and embedding are one tensor, and so are two products that no list of names knows: each pair has one device,
    and memory counts it once.
    """
    model = Decoder([2**13] * 6, 50_000, tied=True)
    model.layers[4].up.weight = model.layers[1].up.weight
    room = {card: int(0.7 * size_of(model)) for card in (0, 1)}
    made, result = device_map_of(model, room, example_inputs=(IDS,), headroom=0, budget=PROVED)
    found = homes(model, made)
    assert set(made.values()) == {0, 1} and result.placement is not None
    assert found["head.weight"] == found["embed.weight"]
    assert found["layers.4.up.weight"] == found["layers.1.up.weight"]
    resident = sum(use.resident for use in pw.judge(result.problem, result.placement).devices)
    assert size_of(model) <= resident < size_of(model) + 10_000


def test_a_tie_across_devices_is_a_copy_and_said() -> None:
    """The same, where a plan by op has embedding and head apart: both cards hold the matrix, and the plan says so."""
    model = Decoder([2**12] * 2, 50_000, tied=True)
    pins = {"embed": "cuda:0", "head": "cuda:1"}
    plan = pw.place(model, {0: "1GiB", 1: "1GiB"}, example_inputs=(IDS,), pins=pins, placer="single")
    assert plan.result.judgement is not None and plan.result.judgement.valid
    resident = [use.resident for use in plan.result.judgement.devices]
    assert sum(resident) == size_of(model) + model.embed.weight.nbytes
    assert re.search(r"held by every device that uses it: (embed|head)\.weight", plan.summary())


class Backwards(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Defined from the head to the stem, run from the stem to the head."""

    def __init__(self, blocks: int) -> None:
        with torch.device("meta"):
            super().__init__()
            self.order = ["stem", *(f"block{n}" for n in range(blocks)), "head"]
            for name in reversed(self.order):
                setattr(self, name, torch.nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x: Any) -> Any:
        for name in self.order:
            x = torch.relu(getattr(self, name)(x))
        return x


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_order_is_that_of_the_run(objective: str) -> None:
    """tt-torch#779, accelerate#661: maps that follow the definition send tensors back and need overrides by hand.

    Along the run there are as many changes of the device as cards, less one, and no tensor travels twice.
    """
    model = Backwards(10)
    room = {card: int(0.4 * size_of(model)) for card in (0, 1, 2)}
    given: dict[str, Any] = {"example_inputs": (torch.zeros(64, WIDTH),), "headroom": 0, "budget": PROVED}
    made, result = device_map_of(model, room, objective=objective, **given)
    along = [homes(model, made)[f"{name}.weight"] for name in model.order]
    assert sum(one != other for one, other in pairwise(along)) == 2 and len(set(along)) == 3
    assert result.placement is not None
    device, graph = result.placement.device, result.problem.graph
    crossing = [
        tensor for tensor in range(graph.n_tensors)
        if graph.tensors.producer[tensor] >= 0
        and np.any(device[graph.consumers_of(tensor)] != device[graph.tensors.producer[tensor]])
    ]  # fmt: skip
    assert len(crossing) == 2


def test_equal_arguments_equal_maps() -> None:
    """accelerate#448: the map differs between runs, and sometimes leaves GPUs unused and spills to the CPU.

    What is free at the moment does not count, only what is given; without a limit of time nothing depends on speed.
    """
    model = Decoder([2**12] * 3)
    room = {0: int(0.7 * size_of(model)), 1: int(0.7 * size_of(model)), "cpu": "64GiB"}
    first, again = (pw.device_map(model, room, example_inputs=(IDS,), headroom=0, budget=None) for _ in "12")
    assert first == again and set(first.values()) == {0, 1}

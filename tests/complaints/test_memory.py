"""What people complain of, rebuilt (docs/complaints.md): cards filled to the brim, sizes left out, silent offload."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cli_runs import run
from decoder_files import MIB, decoder

from placewise._util.units import format_bytes

GIB = 1024 * MIB
BRIEF = ("--time-limit", "30s", "--gap", "25%")
"""A search ends where its answer is proved to be so good, however slow the machine."""


def cards(count: int, size: str, **others: str) -> str:
    """So many equal GPUs, and other devices, as memory by device."""
    return json.dumps({**{str(card): size for card in range(count)}, **others})


def placed(model: Path, devices: str, *options: object, code: int = 0) -> Any:
    """The plan that `placewise place` prints as JSON."""
    return json.loads(run("place", model, "-d", devices, *BRIEF, "--json", *options, code=code).stdout)


def sizes(batch: int, tokens: int) -> tuple[str, ...]:
    return "--dim", f"batch={batch}", "--dim", f"tokens={tokens}"


def held(plan: Any) -> dict[str, float]:
    """Bytes at the worst moment, of the devices that run ops."""
    return {use["device"]: use["peak"] for use in plan["devices"] if use["ops"]}


def test_no_card_is_filled_to_the_brim(tmp_path: Path) -> None:
    """accelerate#473: weights that all but fill GPU 0, and inputs that then do not fit, while three others are free.

    Activations count, so the plan holds; on request a tenth of every card stays free, or all cards share evenly.
    """
    model = decoder(tmp_path / "opt.onnx", [700] * 12, width=4096, vocab=50_272)
    weights, card = (12 * 700 + 2 * 50_272 * 4096 * 2 / MIB) * MIB, "9GiB"
    assert 0.99 * 9 * GIB < weights < 9 * GIB
    plan = placed(model, cards(4, card), *sizes(8, 156))
    assert plan["violations"] == [] and len(held(plan)) > 1
    assert sum(held(plan).values()) > weights and max(held(plan).values()) <= 9 * GIB
    roomy = placed(model, cards(4, card), *sizes(8, 156), "--headroom", "10%")
    assert len(held(roomy)) > 1 and max(held(roomy).values()) <= 0.9 * 9 * GIB
    even = held(placed(model, cards(4, card), *sizes(8, 156), "--objective", "throughput"))
    assert len(even) == 4 and max(even.values()) < 0.4 * weights
    said = run("place", model, "-d", cards(4, card), *BRIEF, *sizes(8, 156), "--headroom", "10%", "-q").stdout
    free = 0.9 * 9 * GIB - roomy["devices"][0]["peak"]
    assert re.search(rf"cuda:0 .* of 8.1 GiB +{format_bytes(free)} ", said)


def test_a_full_card_is_pointed_out(tmp_path: Path) -> None:
    """The same: what is all but full is said, with what leaves room; who asked for room is not told again."""
    model, card = decoder(tmp_path / "m.onnx", [100] * 10), cards(1, "1040MiB")
    full = run("place", model, "-d", card, *BRIEF, *sizes(1, 4), "-q").stdout
    assert "all but full: cuda:0 (97%); --headroom 10%" in full
    assert "all but full" not in run("place", model, "-d", card, *BRIEF, *sizes(1, 4), "--headroom", "1%", "-q").stdout
    assert "all but full" not in run("place", model, "-d", cards(1, "2GiB"), *BRIEF, *sizes(1, 4), "-q").stdout


def test_batch_and_tokens_are_inputs(tmp_path: Path) -> None:
    """accelerate#608: a map made without the batch runs out of memory in the first `generate`.

    The plan for one short prompt is on one card. Asked whether it holds for eight long ones, `check` says how many
    bytes are missing where; the plan that is made for these holds.
    """
    model, two = decoder(tmp_path / "opt.onnx", [1000] * 8, width=4096, vocab=50_272), cards(2, "9.5GiB")
    small, logits = tmp_path / "small.json", 8 * 2048 * 50_272 * 2
    assert list(held(placed(model, two, *sizes(1, 128), "-o", small))) == ["cuda:0"]
    broken = run("check", model, small, *sizes(8, 2048), code=3)
    assert "the plan was made for batch=1, tokens=128" in broken.stderr
    priced = json.loads(run("simulate", model, small, *sizes(8, 2048), "--json").stdout)
    (short,) = priced["violations"]
    assert short["kind"] == "memory" and short["device"] == "cuda:0"
    peak = next(use["peak"] for use in priced["devices"] if use["ops"])
    assert short["bytes_short"] == peak - 9.5 * GIB > 0 and f"({short['bytes_short']:.0f} bytes) short" in broken.stdout
    large = placed(model, two, *sizes(8, 2048))
    assert set(held(large)) == {"cuda:0", "cuda:1"} and large["violations"] == []
    assert sum(held(large).values()) > 8000 * MIB + logits
    assert "--dim batch=1 --dim tokens=1" in run("place", model, "-d", two, code=2).stderr


def test_logits_count_where_the_head_is(tmp_path: Path) -> None:
    """unsloth-zoo#1028: logits of all rows on the card of the head, which `balanced` has filled like the other one.

    Two cards hold weights and logits only if the head's has fewer layers. It has; a lower cap on that card does not
    push the head to the CPU.
    """
    model = decoder(tmp_path / "head.onnx", [400] * 24, width=2048, vocab=200_000)
    logits, vocabulary = 4096 * 200_000 * 2, 200_000 * 2048 * 2
    everything = 24 * 400 * MIB + 2 * vocabulary + logits
    assert 12 * 400 * MIB + vocabulary + logits > 6.9 * GIB, "an even split of the layers does not fit"
    for first, second in ((6.9, 6.9), (7.6, 6.2)):
        assert everything < (first + second) * GIB < 1.13 * everything
        memory = json.dumps({"0": f"{first}GiB", "1": f"{second}GiB", "cpu": "64GiB"})
        plan = placed(model, memory, *sizes(1, 4096))
        assert plan["violations"] == [] and set(held(plan)) == {"cuda:0", "cuda:1"}
        head, embed = plan["assignment"]["/head/product"], plan["assignment"]["/embed"]
        use = {use["device"]: use for use in plan["devices"]}
        assert head != embed and use[head]["peak"] - use[head]["resident"] >= logits
        assert first > second or use[head]["resident"] < use[embed]["resident"]


def test_blocks_of_unequal_size_are_packed(tmp_path: Path) -> None:
    """transformers#46823: three layers of 0.6 GiB before twelve of 13, on six cards of 27.5: GPUs were skipped.

    Whole layers, two large ones per card: only that fits, and the CPU stays out.
    """
    model = decoder(tmp_path / "moe.onnx", [0.6 * 1024] * 3 + [13 * 1024] * 12, width=4096, vocab=20_000)
    plan = placed(model, cards(6, "27.5GiB", cpu="64GiB"), *sizes(1, 64), "--no-split", r"layers\.\d+", "--gap", "5%")
    homes = [plan["assignment"][f"/layers.{layer}/up"] for layer in range(15)]
    assert plan["violations"] == [] and "cpu" not in held(plan)
    assert all(plan["assignment"][f"/layers.{layer}/down"] == homes[layer] for layer in range(15))
    assert all(homes[3:].count(f"cuda:{card}") == 2 for card in range(6))


def test_a_vocabulary_larger_than_the_layers(tmp_path: Path) -> None:
    """transformers#47211: embedding and head of 2004 MiB, layers of 109, four cards of 2.2 GiB beside a large CPU.

    Each matrix has a card, the layers have the others, and nothing spills.
    """
    model = decoder(tmp_path / "vocab.onnx", [109] * 32, width=8192, vocab=128_256)
    plan = placed(model, cards(4, "2.2GiB", cpu="64GiB"), *sizes(1, 64), "--objective", "throughput", "--gap", "0%")
    assert set(held(plan)) == {f"cuda:{card}" for card in range(4)} and plan["status"] == "optimal"
    alone = [plan["assignment"][name] for name in ("/embed", "/head/product")]
    layers = {plan["assignment"][f"/layers.{layer}/up"] for layer in range(32)}
    assert len(set(alone)) == 2 and len(layers) == 2 and not layers & set(alone)


def test_a_layer_too_large_for_the_card(tmp_path: Path) -> None:
    """accelerate#3041: the largest module exceeds the card, and smaller ones were kept off the card with it.

    As a whole, it alone goes to the CPU; where layers may be split, half of it fits beside the others.
    """
    model = decoder(tmp_path / "seg.onnx", [200] * 4 + [3000] + [200] * 2, width=1024)
    whole = placed(model, cards(1, "2GiB", cpu="64GiB"), *sizes(1, 16), "--no-split", r"layers\.\d+")
    away = {name for name, home in whole["assignment"].items() if home == "cpu"}
    assert {f"/layers.4/{part}" for part in ("up", "act", "down", "sum")} <= away
    assert not [name for name in away if "/layers" in name and "/layers.4" not in name]
    finer = placed(model, cards(2, "2.2GiB"), *sizes(1, 16))
    assert finer["violations"] == [] and len({finer["assignment"][f"/layers.4/{part}"] for part in ("up", "down")}) == 2


def test_what_does_not_fit_is_said_and_not_offloaded(tmp_path: Path) -> None:
    """accelerate#2074: weights silently on the CPU or on `meta`; asked for: a list of devices, and an error.

    Devices that are not named are not used, nor is the CPU with `--no-offload`: exit code 3, and how many bytes are
    missing where.
    """
    model = decoder(tmp_path / "ten.onnx", [100] * 10)
    missing = 1000 * MIB + 2 * 1024 * 1024 * 2 - 3 * 330 * MIB
    told = f"must fit on cuda:0, cuda:1, cuda:2, which is {missing / MIB:.0f} MiB ({missing} bytes) more than they hold"
    for devices, rule in ((cards(3, "330MiB"), ()), (cards(3, "330MiB", cpu="8GiB"), ("--no-offload",))):
        refused = run("place", model, "-d", devices, *BRIEF, *sizes(1, 4), *rule, code=3)
        assert told in refused.stdout
    packed = placed(model, cards(3, "350MiB"), *sizes(1, 4), "--no-split", r"layers\.\d+", code=3)
    assert "short however the groups are spread" in packed["unmet"] and packed["assignment"] == {}
    assert "cpu" in held(placed(model, cards(3, "330MiB", cpu="8GiB"), *sizes(1, 4), "--gap", "99%"))


def test_use_and_deficit_per_device(tmp_path: Path) -> None:
    """llama.cpp#16653: what every device would hold, beside what it has, and the margin that stays free.

    A hand-made half and half is priced: the deficit of each card in bytes; then a plan with a margin per card.
    """
    model, two = decoder(tmp_path / "l.onnx", [500] * 12, width=2048, vocab=32_000), cards(2, "4GiB")
    plan = placed(model, two, *sizes(1, 512), "-o", tmp_path / "plan.json")
    assert plan["violations"] == []
    tight = tmp_path / "tight.toml"
    tight.write_text('[[devices]]\nname = "cuda:0"\nmemory = "3GiB"\npeak_flops = { float16 = "100T" }\n'
                     '[[devices]]\nname = "cuda:1"\nmemory = "2GiB"\npeak_flops = { float16 = "100T" }\n')  # fmt: skip
    priced = json.loads(run("simulate", model, tmp_path / "plan.json", "-d", tight, "--json").stdout)
    room, deficits = {"cuda:0": 3 * GIB, "cuda:1": 2 * GIB}, {}
    for use in priced["devices"]:
        assert use["capacity"] == room[use["device"]] and use["peak"] == held(plan)[use["device"]]
        deficits[use["device"]] = use["peak"] - use["capacity"]
    assert {broken["device"]: broken["bytes_short"] for broken in priced["violations"]} == {
        device: missing for device, missing in deficits.items() if missing > 0
    }
    said = run("simulate", model, tmp_path / "plan.json", "-d", tight).stdout
    assert deficits["cuda:1"] > 0 and f"−{format_bytes(deficits['cuda:1'])}" in said


def test_a_margin_on_one_card(tmp_path: Path) -> None:
    """llama.cpp#18390: the card that draws the desktop keeps more free than the other one."""
    model, two = decoder(tmp_path / "l.onnx", [500] * 6, width=2048, vocab=32_000), cards(2, "2GiB")
    for margin, code in ((512, 0), (1024, 3)):
        rules = ("--headroom", f"cuda:0={margin}MiB", "--headroom", "64MiB")
        plan = placed(model, two, *sizes(1, 16), *rules, code=code)
        assert code or (held(plan)["cuda:0"] <= (2048 - margin) * MIB and held(plan)["cuda:1"] <= (2048 - 64) * MIB)
    assert "must fit on cuda:0, cuda:1" in plan["unmet"]

"""The first picture of a page: who holds what, how full, how sure; and that no words stand on others, on any screen."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from locations import EXAMPLES, TESTS

import placewise as pw
from placewise.analysis.report import open_plan, open_result
from placewise.coarsen.module_parts import ModulePart, find_parts
from placewise.files.plan_file import load_plan, save_plan
from placewise.reporting.page.data import page_data
from placewise.reporting.page.overview import cut_strip, join_names, memory_shares, rate_figures
from placewise.zoo.random import random_graph

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs node")


@pytest.fixture(scope="module")
def bert() -> pw.Plan:
    """A pipeline of layers on two accelerators and a CPU of unknown model."""
    model = EXAMPLES / "bert_base.onnx"
    dims = {"batch": 1, "seq": 64}
    return pw.place(model, "2xL4,cpu", dims=dims, objective="throughput", placer="dp", time_limit="10s")


def test_cards_say_what_devices_hold(bert: pw.Plan) -> None:
    """A card per device in use: its layers, its share of the compute, its parts, and whose figures are assumed."""
    found = page_data(open_result(bert.result))
    cards = found["overview"]["cards"]
    assert [card["device"] for card in cards] == [0, 1, 2] and found["overview"]["unused"] == []
    assert sum("layers " in card["words"] for card in cards) >= 2
    assert math.fsum(card["share"] for card in cards) == pytest.approx(1)
    assert [card["figures"] for card in cards] == ["catalogue", "catalogue", "assumed"]
    assumed, known = found["overview"]["figures"]
    assert assumed.startswith("The figures of cpu are assumed (like Intel Xeon") and "cuda:0 and cuda:1" in known
    for card in cards:
        assert sum(ops for _, ops, _, _ in card["parts"]) == found["devices"][card["device"]]["ops"] or card["more"]
    titles = [title for title, _ in found["story"]["sentences"]]
    assert titles == ["What it waits for", "How good it is"]


def test_a_configuration_has_the_name_of_its_folder(bert: pw.Plan) -> None:
    """Every configuration is called config.json: its page says whose it is."""
    result = bert.result
    for path, name in (
        ("models/yi-34b/config.json", "yi-34b"),
        ("models/net.onnx", "net.onnx"),
        ("hf:gpt2", "hf:gpt2"),
    ):
        source = replace(result.problem.graph.source, path=path)  # type: ignore[type-var]
        problem = replace(result.problem, graph=result.problem.graph.with_source(source))
        assert page_data(open_result(replace(result, problem=problem)))["title"] == name


def test_answers_over_nodes_name_them(tmp_path: Path) -> None:
    """The summary, the page and the table of a cluster say in which machine a device is, with and without the model."""
    file = tmp_path / "nodes.toml"
    file.write_text(
        'node_link = { bandwidth = "10Gb/s" }\nnodes = [{ name = "left", devices = [{ model = "L4" }] }, '
        '{ name = "right", devices = [{ model = "L4" }] }]\n'
    )
    plan = pw.place("zoo:bert-base", file, objective="throughput", placer="dp", time_limit="10s")
    assert {"left", "right"} <= set(plan.summary().split())
    cards = page_data(open_result(plan.result))["overview"]["cards"]
    assert [card["node"] for card in cards] == ["left", "right"]
    plan.save(tmp_path / "plan.json")
    read = load_plan(tmp_path / "plan.json")
    assert read.cluster is not None and [device.node for device in read.cluster.devices] == ["left", "right"]
    assert list(plan.problem.cluster.to_frame()["node"]) == ["left", "right"]


def test_without_the_model_cards_keep_what_the_plan_knows(bert: pw.Plan, tmp_path: Path) -> None:
    """Memory and assumptions are in the plan; layers are not, and the story counts ops instead."""
    bert.save(tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    assert plan.source is not None
    gone = plan.model_copy(update={"source": plan.source.model_copy(update={"path": "gone.onnx"})})
    save_plan(gone, tmp_path / "gone.json")
    found = page_data(open_plan(tmp_path / "gone.json"))
    cards = found["overview"]["cards"]
    assert [card["words"] for card in cards] == [""] * 3 and found["overview"]["strip"] == []
    assert [card["figures"] for card in cards] == ["catalogue", "catalogue", "assumed"] and cards[0]["memory"]
    assert found["story"]["sentences"][0][0] == "What runs where"


def test_unused_devices_are_named_and_have_no_card() -> None:
    """One device is enough for a small model; the others are said in a line."""
    plan = pw.place("zoo:random-layered", "2xL4", dims={"n_ops": 20}, placer="single")
    found = page_data(open_result(plan.result))["overview"]
    assert [card["words"] for card in found["cards"]] == ["the whole model"] and found["unused"] == ["cuda:1"]
    assert [segment[:2] for segment in found["strip"]] == [[0, 1.0]]


def test_memory_is_on_the_scale_of_its_own_device() -> None:
    """Shares of the capacity, never more than the whole; what lacks memory fills it; without limit there is no bar."""
    assert memory_shares(2, 5, 10) == [0.2, 0.5]
    assert memory_shares(10, 20, 10) == [0.5, 1.0]
    assert memory_shares(0, 0, 0) == [0.0, 0.0]
    assert memory_shares(1, 2, math.inf) is None and memory_shares(math.inf, math.inf, 10) is None


def part(device: int, first: int, seconds: float, ops: int = 1) -> ModulePart:
    """A part of a placement."""
    return ModulePart(device, f"long p{first}", f"p{first}", ops, seconds, 0, first)


def test_the_strip_covers_the_model_once() -> None:
    """Stretches in the order of the model, neighbours on one device as one, named by the largest; shares make 1."""
    parts = [part(1, 5, 3.0), part(0, 0, 1.0), part(0, 2, 4.0), part(0, 9, 2.0)]
    assert cut_strip(parts) == [(0, 0.5, "p2"), (1, 0.3, "p5"), (0, 0.2, "p9")]
    assert cut_strip([part(0, 0, 0.0, 3), part(1, 3, 0.0, 1)]) == [(0, 0.75, "p0"), (1, 0.25, "p3")]
    assert cut_strip([]) == []
    assert cut_strip([part(k % 2, k, 1.0) for k in range(200)]) == []
    graph = random_graph("branchy", 400, seed=4)
    device = (np.arange(graph.n_ops) // 90).astype(np.int32)
    strip = cut_strip(find_parts(graph, device, np.ones(graph.n_ops)).parts)
    assert math.fsum(share for _, share, _ in strip) == pytest.approx(1) and all(share > 0 for _, share, _ in strip)
    assert all(a[0] != b[0] for a, b in pairwise(strip))


def test_how_sure_figures_are() -> None:
    """Guesses weigh more than gaps, gaps more than the catalogue; measured times need no figures."""
    title, guess = "NVIDIA L4 24 GB: 22.4 GiB; datasheet", "model not given: the figures of X are assumed"
    missing = "memory bandwidth is not given: unlimited"
    assert rate_figures((title, missing, guess), {"roofline"}) == ("assumed", guess)
    assert rate_figures((title, missing), {"roofline"}) == ("unknown", missing)
    assert rate_figures((title, "transfers are not given: staged"), {"roofline", "measured"}) == ("catalogue", "")
    assert rate_figures((title, guess), {"measured", "given"}) == ("", "") == rate_figures((), {"roofline"})
    assert join_names(["a"]) == "a" and join_names(["a", "b", "c"]) == "a, b and c"
    assert join_names([str(k) for k in range(30)]).endswith("10 and 19 more")


def drawn(page: str, width: int, folder: Path) -> dict[str, Any]:
    """What the scripts of a page draw on a screen of this width."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    helper = TESTS / "helpers" / "page_dom.js"
    done = subprocess.run([str(NODE), str(helper), str(path), str(width)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def collisions(found: dict[str, Any]) -> list[str]:
    """Pairs of words that stand on each other, and words beyond the edge of their picture."""
    pictures = [(canvas["texts"], canvas["width"]) for canvas in found["canvases"] if canvas["class"] in SHOWN]
    pictures += [(texts, math.inf) for texts in found["svg"]]
    faults = []
    for texts, width in pictures:
        faults += [f"{words!r} ends at {right:.0f} of {width}" for _, _, right, _, words in texts if right > width + 1]
        for k, (a, b, c, d, one) in enumerate(texts):
            over = [e[4] for e in texts[:k] if a < e[2] - 0.5 and e[0] < c - 0.5 and b < e[3] - 0.5 and e[1] < d - 0.5]
            faults += [f"{one!r} on {other!r}" for other in over]
    return faults


SHOWN = ("time", "search", "strip-of-devices")
NO_ROOM = ("return false;\n      taken.push", "return true;\n      taken.push")


@pytest.fixture(scope="module")
def pages(bert: pw.Plan) -> dict[str, str]:
    """A pipeline, and one sample on scattered devices."""
    scattered = pw.place("zoo:inception-v3", "4xP100,cpu", placer="random", seed=3)
    piped = pw.place("zoo:bert-base", "4xV100", objective="throughput", contiguous=False, placer="random", seed=1)
    return {"bert": bert.report(), "scattered": scattered.report(), "piped": piped.report()}


@needs_node
@pytest.mark.parametrize("width", [360, 800, 1366])
def test_no_words_stand_on_others(pages: dict[str, str], width: int, tmp_path: Path) -> None:
    """On a phone, a tablet and a laptop: labels of timelines, strips and graphs keep apart and inside."""
    for name, page in pages.items():
        found = drawn(page, width, tmp_path)
        assert {"time", "strip-of-devices"} <= {canvas["class"] for canvas in found["canvases"]} or name != "bert"
        assert collisions(found) == [], name


@needs_node
def test_words_would_stand_on_others(pages: dict[str, str], tmp_path: Path) -> None:
    """Without the room that labels take, some would: the test above can fail."""
    assert all(NO_ROOM[0] in page for page in pages.values())
    assert any(collisions(drawn(page.replace(*NO_ROOM), 360, tmp_path)) for page in pages.values())


@needs_node
def test_the_first_section_shows_layers_and_assumptions(pages: dict[str, str], tmp_path: Path) -> None:
    """Before anything else: layer ranges, a bar per device within its frame, and whose figures are assumed."""
    found = drawn(pages["bert"], 360, tmp_path)
    first = found["sections"]["headline"]
    assert "layers " in first and "assumed figures" in first and "The figures of cpu are assumed" in first
    assert len(found["meters"]) == 3
    for peak, resident in found["meters"]:
        assert 0 <= float(resident.rstrip("%")) <= float(peak.rstrip("%")) <= 100

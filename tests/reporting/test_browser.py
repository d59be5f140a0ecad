"""The page in a browser: Debian's Chromium without a window, driven by Playwright. Skipped where either is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from locations import ROOT
from parallel_plans import problem_of, staged

import placewise as pw
from placewise.analysis.report import make_view, render_page
from placewise.core.place import place
from placewise.files.plan_file import plan_of
from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.costs import CostTable, transfer_seconds_of
from placewise.model.problem import Objective, Problem
from placewise.model.ways import StageGroup
from placewise.simulate import judge_placement

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")

PATIENCE = 120_000
"""Milliseconds: a browser on a busy machine is slow, and not broken."""
LONG = "x" * 10_000
HOSTILE = (
    "<script>window.broken = 1</script>",
    "</script><img src=x onerror='window.broken = 1'>",
    "\"quoted\" and 'quoted' &amp; {{braces}} ${dollars}",
    "\u202eright to left שלום عليكم",
    "line\u2028break \x1b[31mred\x00",
    LONG,
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    with sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pages are."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def inception(folder: Path) -> Path:
    """The page of a real plan for latency."""
    model = ROOT / "examples" / "models" / "inception_v3.onnx"
    slow = {r"^stem\.": "cpu"}  # so that the stem takes long enough to be unfolded at first
    plan = pw.place(str(model), devices="2xL4,cpu", dims={"batch": 1}, budget="60s", placer="heft", pins=slow)
    shown = make_view(plan_of(plan.result), "inception_v3.onnx", plan.problem, plan.placement, plan.result.judgement)
    page = folder / "inception.html"
    page.write_text(render_page(shown), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def hostile(folder: Path) -> Path:
    """The page of a pipeline whose ops and modules are called what attackers would call them."""
    builder = GraphBuilder()
    for k in range(24):
        name = HOSTILE[k % len(HOSTILE)] + str(k)
        op = builder.add_op(name, HOSTILE[k % 3], scope=f"{HOSTILE[k // 4]}.{k // 8}", dtype="float32")
        builder.add_tensor(op, shape=(64,), dtype="float32")
        if k:
            builder.add_edge(k - 1, op)
    graph = builder.build()
    devices = (Device("<b>one</b>"), Device("\u202etwo"), Device("cpu", kind="cpu"))
    links = tuple(Link(a, b, 1e9) for d in devices[:2] for a, b in ((d.name, "host"), ("host", d.name)))
    cluster = Cluster(devices, links)
    costs = CostTable.given(np.full((graph.n_ops, 3), 1e-3), transfer_seconds_of(graph, cluster))
    result = place(Problem(graph, cluster, costs, Objective("throughput")), "balanced")
    page = folder / "hostile.html"
    shown = make_view(plan_of(result), HOSTILE[0], result.problem, result.placement, result.judgement)
    page.write_text(render_page(shown), encoding="utf-8")
    return page


Open = Callable[..., Any]


@pytest.fixture
def show(browser: Any) -> Iterator[Open]:
    """Opens pages; at the end of a test none may have complained, or asked for anything but itself."""
    contexts, complaints, asked = [], [], []

    def open_(path: Path, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1366, "height": 768}} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert len([url for url in asked if url.startswith("file:")]) == len(contexts)


def node(page: Any, name: str) -> Any:
    """The box of a module or op."""
    return page.locator("[role=treeitem]").filter(has=page.locator(f":scope > .head >> text='{name}'")).last


def serious(page: Any, *rules: str) -> list[str]:
    """What axe finds that is serious or critical, as rule and element; with `rules`, by these alone."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    return [
        f"{rule['id']}: {place['html'][:160]}"
        for rule in axe.Axe().run(page, options=options).response["violations"]
        for place in rule["nodes"]
        if rule["impact"] in ("serious", "critical")
    ]


BUSIEST = """() => {
  const drawn = placewise.shownTimeline, {tasks} = drawn, ops = [...tasks.seconds.keys()].filter((k) => tasks.isOp(k));
  const task = ops.reduce((a, b) => tasks.seconds[b] > tasks.seconds[a] ? b : a);
  const at = drawn.canvas.getBoundingClientRect(), middle = tasks.start[task] + tasks.seconds[task] / 2;
  return [placewise.ops.name(task), at.x + drawn.x(middle), at.y + drawn.middle(task)];
}"""
SPAN = "() => (placewise.shownTimeline.view.to - placewise.shownTimeline.view.from) / placewise.shownTimeline.view.end"


def test_the_timeline_tells_what_is_under_the_mouse(show: Open, inception: Path) -> None:
    """Over an op its name appears, off the picture it goes; a click shows the op below and in the graph."""
    page = show(inception)
    page.locator("canvas.time").first.scroll_into_view_if_needed()
    page.wait_for_function("placewise.shownTimeline.rowsAt")
    name, x, y = page.evaluate(BUSIEST)
    page.mouse.move(x, y)
    assert name in page.locator("#tip").inner_text()
    page.mouse.move(1, 1)
    assert page.locator("#tip").is_hidden()
    page.mouse.click(x, y)
    assert name in page.locator("#timeline-detail").inner_text()
    assert page.locator("[role=treeitem][aria-selected=true]").get_attribute("aria-label").startswith(f"{name}, ")


def test_the_timeline_zooms(show: Open, inception: Path) -> None:
    """Ctrl and the wheel, buttons and keys narrow what is seen around the same place, and 0 shows all again."""
    page = show(inception)
    page.locator("canvas.time").first.scroll_into_view_if_needed()
    page.wait_for_function("placewise.shownTimeline.rowsAt")
    _, x, y = page.evaluate(BUSIEST)
    assert page.evaluate(SPAN) == 1
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function(f"({SPAN})() < 0.9")
    assert page.evaluate(BUSIEST)[1] == pytest.approx(x, abs=3)
    page.locator("canvas.time").first.focus()
    page.keyboard.press("0")
    assert page.evaluate(SPAN) == 1
    page.keyboard.press("+")
    assert page.evaluate(SPAN) == pytest.approx(0.5)


def test_replicas_of_stages_take_micro_batches_in_turns(show: Open, folder: Path) -> None:
    """Under the mouse is the micro-batch of that replica; a collective is told with its kind, op, tensor and row."""
    pytest.importorskip("torch", reason="torch is not installed")
    problem = problem_of("bert", "8xA100-80GB", microbatches=8)
    groups = [StageGroup((0, 1, 2, 3), 2, 2), StageGroup((4, 5, 6, 7), 2, 2)]
    placement = staged(problem, groups, [2], again=True)
    view = make_view(plan_of(place(problem, "uniform")), "m", problem, placement, judge_placement(problem, placement))
    path = folder / "stages.html"
    path.write_text(render_page(view))
    page = show(path)
    page.locator("canvas.time").first.scroll_into_view_if_needed()
    page.wait_for_function("placewise.shownTimeline.rowsAt")
    where = """(sample) => {
      const drawn = placewise.shownTimeline, {tasks} = drawn;
      let task = -1;
      for (let k = 0; k < tasks.count; k++) {
        if (tasks.what(k) === "all-reduce" && (task < 0 || tasks.seconds[k] > tasks.seconds[task])) task = k;
      }
      const start = tasks.start[task] + sample * tasks.period;
      drawn.view.reveal(start, start + tasks.seconds[task]);
      drawn.paint();
      const at = drawn.canvas.getBoundingClientRect();
      return [at.x + drawn.x(start + tasks.seconds[task] / 2), at.y + drawn.middle(task, sample)];
    }"""
    told = []
    for sample in (2, 3):
        page.mouse.click(*page.evaluate(where, sample))
        told.append(page.locator("#timeline-detail").inner_text())
    assert all("all-reduce" in text and "whole size" in text for text in told)
    assert "cuda:0–cuda:1" in told[0] or "cuda:4–cuda:5" in told[0]
    assert "cuda:2–cuda:3" in told[1] or "cuda:6–cuda:7" in told[1]
    assert page.locator("#timeline .legend").all_inner_texts()[:3] == ["compute", "recomputation", "collectives"]


def test_the_keyboard_follows_the_critical_path(show: Open, inception: Path) -> None:
    """N goes from step to step, and each is told in words below the picture."""
    page = show(inception)
    page.locator("canvas.time").first.focus()
    path = page.evaluate(
        "placewise.shownTimeline.tasks.critical.length && [...placewise.shownTimeline.tasks.critical].slice(0, 3)"
    )
    assert len(path) == 3
    for step in path:
        page.keyboard.press("n")
        assert page.evaluate("placewise.shownTimeline.focus") == step
    name = page.evaluate("placewise.ops.name(placewise.shownTimeline.focus)")
    assert name in page.locator("#timeline-detail").inner_text() and name in page.locator("#spoken").inner_text()
    page.keyboard.press("c")
    assert page.evaluate("placewise.shownTimeline.focus") == path[1]


def test_an_op_is_found_and_shown_everywhere(show: Open, inception: Path) -> None:
    """The search above the timeline offers ops; the chosen one is told below and unfolded in the graph."""
    page = show(inception)
    page.locator("#find-op").fill("node_cat_14")
    page.locator("ul.found button").first.click()
    assert "node_cat_14" in page.locator("#timeline-detail").inner_text()
    assert node(page, "node_cat_14").get_attribute("aria-selected") == "true"


def test_modules_unfold_by_mouse(show: Open, inception: Path) -> None:
    """A click on a module shows its members and another one hides them; a click on an op tells what it is."""
    page = show(inception)
    stem = node(page, "stem.0")
    assert stem.get_attribute("aria-expanded") == "false"
    stem.locator(".head").click()
    assert stem.get_attribute("aria-expanded") == "true"
    ops = stem.locator("[role=treeitem]")
    assert ops.count() == 3
    ops.first.locator(".head").click()
    assert "Conv" in page.locator(".graph-details").inner_text()
    assert ops.first.get_attribute("aria-selected") == "true"
    stem.locator(".head").first.click()
    assert stem.get_attribute("aria-expanded") == "false" and ops.count() == 0


def test_modules_unfold_by_keyboard(show: Open, inception: Path) -> None:
    """Arrow keys walk the tree as in any tree: right unfolds and goes in, left goes out and folds."""
    page = show(inception)
    focused = "document.activeElement.querySelector('.name').textContent"
    page.locator("[role=treeitem][tabindex='0']").focus()
    assert page.evaluate(focused) == "model"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "stem"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.evaluate(focused) == "stem.0"
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.classList.contains('op')")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == "stem.0"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "false"
    assert page.locator("[role=treeitem][tabindex='0']").count() == 1


def test_the_drawing_is_layered(show: Open, inception: Path) -> None:
    """No two boxes of a module overlap, and every line leads downwards, or to a column further right."""
    page = show(inception)
    for _ in range(3):
        page.get_by_role("button", name="Unfold more").click()
    faults = page.evaluate(
        """() => {
          const groups = [...document.querySelectorAll('.stage [role=group]')], faults = [];
          for (const group of groups) {
            const boxes = [...group.querySelectorAll(':scope > .node')].map((b) => [b, b.getBoundingClientRect()]);
            boxes.forEach(([box, a], k) => boxes.slice(0, k).forEach(([other, b]) => {
              const apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
              if (!apart) faults.push(`${box.ariaLabel} over ${other.ariaLabel}`);
            }));
            const place = new Map(boxes.map(([box, at]) => [box.dataset.node, at]));
            for (const wire of group.querySelectorAll(':scope > svg > .wire')) {
              const from = place.get(wire.dataset.from), to = place.get(wire.dataset.to);
              if (from.bottom >= to.top && from.right >= to.left) faults.push(`${wire.dataset.from} up`);
            }
          }
          return [groups.length, document.querySelectorAll('.stage .node').length, ...faults];
        }"""
    )
    assert faults[0] >= 8 and faults[1] > 80 and faults[2:] == []


def test_the_table_says_what_the_drawing_shows(show: Open, inception: Path) -> None:
    """The same modules and ops, with words for devices; folding works there as well."""
    page = show(inception)
    drawn = page.locator(".stage .name").all_inner_texts()
    page.get_by_role("button", name="As a table").click()
    table = page.get_by_role("table", name="Modules and ops that are unfolded")
    assert table.locator("th .name").all_inner_texts() == drawn
    assert "cuda:0" in table.locator("tbody tr").first.inner_text()
    table.get_by_role("button", name="Members of stem", exact=True).click()
    assert len(table.locator("th .name").all_inner_texts()) < len(drawn)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Members of stem"


def test_ops_are_found_by_name(show: Open, inception: Path) -> None:
    """Whatever is folded around it, an op that is looked for is shown, and a name that does not exist is said so."""
    page = show(inception)
    page.get_by_label("Find an op or module").fill("node_cat_14")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("node_cat_14, Concat")
    assert node(page, "node_cat_14").is_visible()
    page.get_by_label("Find an op or module").fill("<b>none</b>")
    page.keyboard.press("Enter")
    assert "Nothing is called <b>none</b>" in page.locator(".graph-details").inner_text()


def test_a_phone_shows_everything_within_its_width(show: Open, inception: Path) -> None:
    """At 360 points of width nothing makes the page wider than the screen, and a tap unfolds."""
    page = show(inception, viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    node(page, "stem.0").locator(".head").tap()
    assert node(page, "stem.0").get_attribute("aria-expanded") == "true"
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_dark_is_dark(show: Open, inception: Path) -> None:
    """With a dark theme paper is dark and ink is light, and the other way round."""
    brightness = """() => ['backgroundColor', 'color'].map((what) =>
      getComputedStyle(document.body)[what].match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0))"""
    page = show(inception, color_scheme="dark")
    paper, ink = page.evaluate(brightness)
    assert paper < 150 and ink > 600
    page.emulate_media(color_scheme="light")
    paper, ink = page.evaluate(brightness)
    assert paper > 600 and ink < 150


def test_hostile_names_stay_text(show: Open, hostile: Path) -> None:
    """Names are shown as they are, and none becomes an element, runs, or breaks the page out of its width."""
    page = show(hostile)
    page.get_by_role("button", name="Unfold more").click()
    assert page.evaluate("window.broken === undefined && document.querySelectorAll('img, script').length") == 2
    names = page.locator(".stage .name").all_inner_texts()
    for name in HOSTILE[:3]:
        assert any(name in shown for shown in names), name
    assert page.evaluate("document.documentElement.scrollWidth") <= 1366
    assert page.evaluate("Math.max(...[...document.querySelectorAll('.node.op')].map((box) => box.offsetWidth))") < 300


def test_axe_finds_nothing_serious(show: Open, inception: Path) -> None:
    """No serious or critical fault of accessibility, as a drawing and as a table, and no faint text in the dark."""
    page = show(inception)
    assert serious(page) == []
    page.get_by_role("button", name="As a table").click()
    assert serious(page) == []
    page.emulate_media(color_scheme="dark")
    assert serious(page, "color-contrast") == []


def test_axe_would_find_faults(show: Open, inception: Path) -> None:
    """A field without a label and faint text are found: the test above can fail."""
    page = show(inception)
    page.evaluate(
        """document.querySelector('label[for=graph-find]').remove();
        document.querySelector('#graph .muted').style.color = '#bbb'"""
    )
    assert {fault.partition(":")[0] for fault in serious(page, "color-contrast", "label")} == {
        "color-contrast",
        "label",
    }

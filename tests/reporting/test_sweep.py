"""A sweep as a table, CSV and a page."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from sweep_points import made_point

from placewise.errors import InputError
from placewise.files.sweep_file import AnswerRecord, LargestRecord, SweepFile
from placewise.reporting.plain import lines
from placewise.reporting.sweep import describe_answer, describe_method, format_of, sweep_csv, sweep_view
from placewise.reporting.sweep_page import list_series, sweep_page
from placewise.reporting.sweep_plot import MAX_SERIES, Scale, Series, legend, line_plot

HOSTILE = "<script>alert(1)</script>\x1b[31m"


def made_sweep(model: str = "a model", dim: str = "context", **changes: object) -> SweepFile:
    """Four sizes on two clusters, of which the greatest fits on none; one probe."""
    points = []
    for number, devices in enumerate(("L4", "2xL4"), 1):
        for size in (1, 2, 4, 8):
            figures = {"value": size / number, "latency": size / number, "throughput": number / size}
            figures |= {"tokens_per_second": 10.0 * number / size, "baseline": "best single device"}
            figures |= {"baseline_ratio": 1.5, "price_per_hour": 1.0 * number, "pareto": True}
            fits = size < 8
            points.append(
                made_point({dim: size}, fits=fits, devices=devices, **(figures if fits else {"reason": "full"}))
            )
    points.insert(3, made_point({dim: 5}, devices="L4", probe=True, value=5.0, latency=5.0, throughput=0.2))
    largest = [
        LargestRecord(name=dim, devices="L4", fits=5, fails=6, method="bisection", monotone=True),
        LargestRecord(name=dim, devices="2xL4", fits=4, fails=8, method="trying", monotone=False, known=False),
    ]
    return SweepFile(
        model=model, varied=(dim,), clusters=("L4", "2xL4"), points=tuple(points), largest=tuple(largest), **changes
    )


def test_the_table_has_a_row_per_size_that_was_asked_for() -> None:
    """Probes are counted; what does not fit has a reason; both largest sizes say how they were found."""
    text = lines(sweep_view(made_sweep()), width=200)
    rows = [line.split() for line in text.splitlines() if re.match(r"\s+\d", line)]
    assert [row[:3] for row in rows] == [
        [str(size), devices, "yes" if size < 8 else "no"] for devices in ("L4", "2xL4") for size in (1, 2, 4, 8)
    ]
    assert "context 5" in text and "6 does not" in text and "bisection: memory grows" in text
    assert "no plan was found at 8, which is no proof" in text and "memory does not always grow" in text
    assert "1 more sizes were tried" in text and "context=8 on L4: full" in text


def test_a_narrow_terminal_has_fewer_columns() -> None:
    """The sizes, whether they fit and the value stay."""
    wide, narrow = (lines(sweep_view(made_sweep()), width=width).splitlines()[0].split() for width in (200, 60))
    assert len(narrow) < len(wide) and {"context", "fits", "latency"} <= set(narrow)


def test_csv_has_every_point_and_the_free_memory_of_devices() -> None:
    """Also probes; empty where nothing is known."""
    rows = list(csv.DictReader(io.StringIO(sweep_csv(made_sweep()))))
    assert len(rows) == 9 and [row["context"] for row in rows[:5]] == ["1", "2", "4", "5", "8"]
    assert float(rows[0]["free cuda:0"]) == 1e9 - 1 and rows[4]["free cuda:0"] == ""
    assert rows[3]["probe"] == "True" and rows[4]["value"] == ""


def test_how_a_size_was_found_is_said() -> None:
    """Bisection only where sizes lie between one that fits and one that does not."""
    line = made_sweep().largest[0]
    said = {
        describe_method(line.model_copy(update=changes))
        for changes in ({"fits": None}, {"fails": None}, {}, {"monotone": False}, {"method": "trying"})
    }
    assert said == {
        "no size that was tried fits",
        "every size that was tried fits",
        "bisection: memory grows with context at every size tried",
        "trying: memory does not always grow with context",
        "trying; memory grows with context",
    }


def test_answers_are_sentences() -> None:
    """With the price, or that no cluster reaches the goal."""
    sweep = made_sweep(until="latency<=3", cheapest=True)
    found = describe_answer(sweep, AnswerRecord(sizes={"context": 4}, devices="2xL4"))
    assert found == "context=4: the cheapest cluster with latency<=3 is 2xL4 for 2 per hour, 5 tokens per second"
    none = describe_answer(sweep, AnswerRecord(sizes={"context": 4}, devices=None))
    assert none == "context=4: no cluster of the 2 reaches latency<=3"
    points = tuple(point for point in sweep.points if point.devices == "2xL4")
    part = sweep.model_copy(update={"complete": False, "points": points})
    none = describe_answer(part, AnswerRecord(sizes={"context": 4}, devices=None))
    assert none == "context=4: no cluster of the 1 tried so far reaches latency<=3"


def test_the_suffix_names_the_format() -> None:
    """Others are an error of one sentence."""
    assert [format_of(f"a{suffix}") for suffix in (".html", ".JSON", ".csv", ".txt")] == [
        "page",
        "json",
        "csv",
        "table",
    ]
    with pytest.raises(InputError, match=r"end it in \.html"):
        format_of("a.pdf")


class _Tags(HTMLParser):
    """The tags of a page, and the text outside of its style."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_has_plots_and_runs_nothing() -> None:
    """Names cannot add elements; the policy allows the page's own style alone; every plot is well-formed."""
    page = sweep_page(made_sweep(HOSTILE, "n<b>"))
    tags = _Tags()
    tags.feed(page)
    assert "script" not in tags.tags and "b" not in tags.tags and "\x1b" not in page
    assert "default-src 'none'; style-src 'sha256-" in page and "http" not in page.replace("http-equiv", "")
    plots = re.findall(r"<figure>.*?(<svg.*?</svg>)", page, re.DOTALL)
    assert len(plots) == 4
    for plot in plots:
        assert len(ElementTree.fromstring(plot).findall(".//{*}title")) >= 6
    assert "Latency over n" in tags.text and "5 tokens" not in tags.text


def test_lines_are_the_points_that_fit() -> None:
    """With probes, ascending, and where nothing fits any more."""
    first, second = list_series(made_sweep(), "context", lambda point: point.value)
    assert first == Series("L4", ((1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (5.0, 5.0)), 6)
    assert second == Series("2xL4", ((1.0, 0.5), (2.0, 1.0), (4.0, 2.0)), 8)


def test_scales_keep_their_ends_and_tick_between() -> None:
    """Linear and logarithmic."""
    for low, high, log in ((1.0, 1024.0, True), (0.0, 7.3, False), (5.0, 5.0, False), (3.0, 100.0, True)):
        scale = Scale(low, high, 10.0, 110.0, log)
        if low < high:
            assert scale(low) == pytest.approx(10) and scale(high) == pytest.approx(110)
        ticks = scale.ticks(6)
        assert all(low <= tick <= high for tick in ticks) and len(ticks) <= 7


def test_many_lines_are_cut_and_counted() -> None:
    """The legend says how many are in the table only."""
    series = [Series(f"line {k}", ((1.0, float(k)), (2.0, k + 1.0))) for k in range(MAX_SERIES + 3)]
    plot = line_plot("t", "x", "y", series, str)
    assert plot.count('class="line ') == MAX_SERIES and "3 more are in the table" in legend(series)

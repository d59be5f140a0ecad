"""pw.sweep: what it answers, as data, text, files and tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_configs import write_config

import placewise as pw
from placewise.errors import InputError
from placewise.placers.base import Progress

TINY = {"layers": 1, "length": 16}


@pytest.fixture(scope="module")
def found() -> pw.Sweep:
    """One layer of BERT in two batches, on one and two cards."""
    return pw.sweep(
        "zoo:bert-base", "1..2xL4", vary={"batch": [2, 4]}, prices={"L4": 0.5}, dims=TINY, placer="single", workers=1
    )


def test_points_are_data(found: pw.Sweep) -> None:
    """Cluster by cluster, with the price of what they do."""
    assert repr(found) == "Sweep(4 of 4 points fit)"
    assert [(point.devices, point.sizes) for point in found.points] == [
        (devices, {"batch": batch}) for devices in ("1xL4", "2xL4") for batch in (2, 4)
    ]
    for point in found.points:
        assert point.throughput is not None and point.price_per_hour == 0.5 * int(point.devices[0])
        assert point.price_per_million_samples == pytest.approx(
            point.price_per_hour / (point.throughput * 3600) * 1_000_000
        )
    assert [(line.name, line.fits) for line in found.largest] == [("batch", 4), ("batch", 4)] and found.answers == ()


def test_files_and_views(found: pw.Sweep, tmp_path: Path) -> None:
    """JSON is read as it was written; the others are what `text` gives; notebooks show the table."""
    for suffix, form in ((".json", "json"), (".csv", "csv"), (".html", "page"), (".txt", "table")):
        found.save(tmp_path / f"s{suffix}")
        assert (tmp_path / f"s{suffix}").read_text("utf-8") == found.text(form)
    assert pw.Sweep.load(tmp_path / "s.json").file == found.file
    assert "<table" in found._repr_html_() and "2xL4" in found._repr_html_()
    with pytest.raises(InputError, match="names no format of a sweep"):
        found.save(tmp_path / "s.png")


def test_a_frame_has_a_row_per_point(found: pw.Sweep) -> None:
    """With sizes, figures and whether they fit."""
    pytest.importorskip("pandas")
    frame = found.to_frame()
    assert list(frame["batch"]) == [2, 4, 2, 4] and frame["fits"].all()
    assert list(frame["value"]) == [point.value for point in found.points]


def test_progress_is_told_after_every_point() -> None:
    """How many are done, of how many."""
    states: list[Progress] = []
    pw.sweep(
        "zoo:bert-base", "L4", vary={"batch": "1:2"}, dims=TINY, placer="single", on_progress=states.append, workers=1
    )
    assert [state.message.split(",")[0] for state in states] == ["0 of 2 points", "1 of 2 points", "2 of 2 points"]


def test_the_context_of_a_language_model_grows(tmp_path: Path) -> None:
    """Each point is the plan for a cache of that many positions; its price is by tokens."""
    pytest.importorskip("transformers")
    model = str(write_config(tmp_path, "llama"))
    found = pw.sweep(
        model,
        "L4",
        vary={"context": "32,64"},
        dims={"prompt": 8, "tokens": 8},
        prices={"L4": 3.6},
        placer="single",
        workers=1,
    )
    for point in found.points:
        plan = pw.place(model, "L4", dims={"prompt": 8, "tokens": 8, "length": point.sizes["context"]}, placer="single")
        assert (point.value, point.tokens_per_second) == (plan.value, plan.tokens_per_second)
        assert point.tokens_per_second and point.price_per_million_tokens == pytest.approx(
            1e3 / point.tokens_per_second
        )
    small, large = (point.needs for point in found.points)
    assert small and large and small.weights == large.weights and small.state * 2 == large.state

"""placewise sweep: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from cli_runs import run
from jsonschema import Draft202012Validator

import placewise as pw
from placewise.files.schema import schema_of

MODEL = ("zoo:bert-base", "--dim", "layers=1", "--dim", "length=16", "--placer", "single", "--workers", 1)


def test_the_largest_batch_is_printed_and_written(tmp_path: Path) -> None:
    """The table names it; JSON follows its schema, and Python reads the same."""
    file = tmp_path / "sweep.json"
    out = run("sweep", *MODEL, "-d", '{"cuda:0": "130MiB"}', "--vary", "batch=16:128", "-o", file).stdout
    found = pw.Sweep.load(file)
    assert f"batch {found.largest[0].fits}" in out and "bisection: memory grows with batch" in out
    Draft202012Validator(schema_of("sweep")).validate(json.loads(file.read_text()))
    same = pw.sweep(
        "zoo:bert-base", {"cuda:0": "130MiB"}, vary={"batch": "16:128"}, dims={"layers": 1, "length": 16},
        placer="single", workers=1,
    )  # fmt: skip
    assert [point.value for point in same.points] == [point.value for point in found.points]
    assert same.largest[0].fits == found.largest[0].fits


def test_formats(tmp_path: Path) -> None:
    """--json and --csv print; files follow their suffix."""
    arguments = ("sweep", *MODEL, "-d", "1..2xL4", "--vary", "batch=1,2", "--price", "L4=0.5")
    document = json.loads(run(*arguments, "--json").stdout)
    assert [point["price_per_hour"] for point in document["points"]] == [0.5, 0.5, 1.0, 1.0]
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "--csv", "-o", tmp_path / "s.html").stdout)))
    assert [row["devices"] for row in rows] == ["1xL4", "1xL4", "2xL4", "2xL4"]
    assert (tmp_path / "s.html").read_text().startswith("<!DOCTYPE html>")


def test_exit_codes() -> None:
    """Nothing fits: 3; no cluster reaches the goal: 4."""
    nothing = run("sweep", *MODEL, "-d", '{"cuda:0": "1MiB"}', "--vary", "batch=1,2", code=3)
    assert "batch none" in nothing.stdout
    out = run("sweep", *MODEL, "-d", "1..2xL4", "--until", "latency<=1ns", code=4).stdout
    assert "no cluster of the 2 reaches latency<=1ns" in out
    assert "is 1xL4 for 0.7 per hour" in run(
        "sweep", *MODEL, "-d", "1..2xL4", "--until", "latency<=9s", "--price", "L4=0.7"
    ).stdout  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--vary", "batch"), "--vary 'batch' is not a name and a value"),
        (("--vary", "batch=1:2", "--vary", "batch=4"), "--vary batch is given twice"),
        (("--vary", "batch=8:4"), "the range of batch is empty: 8 is above 4"),
        (("--vary", "length=8:16"), "length has one size and varies; leave out --dim length=16"),
        (("--vary", "depth=1:2"), "depth"),
        (("--vary", "batch=1:2", "--csv", "--json"), "--csv and --json are two formats"),
        (("--vary", "batch=1:2", "-o", "x.pdf"), "names no format of a sweep"),
        (("--vary", "batch=1:2", "--price", "L4"), "--price 'L4' is not a name and a value"),
        (("--vary", "batch=1:2", "--resume"), "name it with --checkpoint sweep.json"),
        (("--vary", "batch=1:999:1"), "allow them with --max-points 999"),
        (("--vary", "batch=1:2", "--ray", "nowhere"), "there is no Ray cluster at 'nowhere'"),
        ((), "nothing varies; add --vary batch=1:64"),
    ],
)
def test_bad_inputs_are_one_sentence(arguments: tuple[str, ...], words: str) -> None:
    """With the flag that mends it."""
    if "--ray" in arguments:
        pytest.importorskip("ray")
    err = run("sweep", *MODEL, "-d", "L4", *arguments, code=2).stderr
    assert words in err and len(err.splitlines()) == 1


def test_help_has_no_pictures() -> None:
    """Rich reads `:B:` as an emoji."""
    assert all(ord(letter) < 0x1F000 for letter in run("sweep", "--help").stdout)

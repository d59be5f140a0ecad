"""The leaderboard: its numbers, its four formats read back, starts and human splits from files, bad input."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from cli_runs import run, workload
from rich.console import Console

import placewise as pw
from placewise.analysis.compare import compare, tabulate_entries
from placewise.core.build import build, start_of
from placewise.errors import InputError, PlacerError, PlanError
from placewise.model.placement import Placement
from placewise.placers import registry
from placewise.placers.base import Budget, Progress
from placewise.reporting.leaderboard import (
    COLUMNS,
    LeaderboardRow,
    LeaderboardTable,
    board_view,
    format_for,
    render_leaderboard,
)

PLACERS = ("single", "dp", "temper", "balanced")
SPLIT = {"fpgas": [{"nodes": [0]}, {"nodes": [1, 2]}], "cpus": [{"nodes": []}]}
SPLIT_DEVICES = [0, 1, 1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A workload of three ops on two accelerators and a CPU; its optimum is 9 ms."""
    return workload(tmp_path / "w.json")


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A published split of it that keeps the rules."""
    file = tmp_path / "split.json"
    file.write_text(json.dumps(SPLIT))
    return file


def _rows(markdown: str) -> list[list[str]]:
    """The cells of a Markdown table: split at bars that no backslash guards."""
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table]


def test_the_rows_say_what_the_results_say(path: Path) -> None:
    """Ranks, gaps to the best bound, ratios to the best value and who proved the bound, from the results alone."""
    entries = pw.compare(path, placers=PLACERS).entries
    board = tabulate_entries(entries)
    rows = {row.placer: row for row in board.rows}
    assert board.best_value == pytest.approx(0.009) and board.lower_bound == pytest.approx(0.009)
    assert rows["dp"].rank == 1 and rows["dp"].ratio == 1 and rows["dp"].gap == pytest.approx(0, abs=1e-9)
    assert board.not_run == 1 and rows["temper"].status == "not run" and "latency" in rows["temper"].refusal
    assert rows["temper"].rank is None and rows["temper"].value is None
    for entry in entries:
        row, result = rows[entry.placer], entry.result
        assert row.source == registry.create(entry.placer).info.source
        if result is not None:
            assert row.value == result.value and row.seconds == result.seconds
            assert row.own_lower_bound == result.lower_bound
            assert row.devices == len(np.unique(result.placement.device))
            assert row.rank == 1 + sum(e.result is not None and e.result.value < result.value for e in entries)
    proved = [row.placer for row in board.rows if row.own_lower_bound == board.lower_bound]
    assert board.best_bound_by == ", ".join(proved) or len(proved) == 3


def test_every_format_holds_the_same(path: Path, tmp_path: Path) -> None:
    """CSV and JSON give back every number exactly, Markdown every row; a file's suffix says its format."""
    board = pw.compare(path, placers=PLACERS)
    rows = tabulate_entries(board.entries).rows
    for name in ("board.csv", "board.json", "board.md", "board.txt"):
        board.save(tmp_path / name)
    read = list(csv.DictReader(io.StringIO((tmp_path / "board.csv").read_text())))
    assert tuple(read[0]) == COLUMNS
    document = json.loads((tmp_path / "board.json").read_text())
    assert document["not_run"] == 1 and document["best_value"] == rows[0].value
    for row, cells, entry in zip(rows, read, document["entries"], strict=True):
        assert set(entry) == set(COLUMNS)
        for name in ("value", "gap", "ratio", "own_lower_bound", "seconds"):
            known = getattr(row, name)
            assert entry[name] == known
            assert cells[name] == "" if known is None else float(cells[name]) == known
        assert cells["placer"] == entry["placer"] == row.placer and cells["source"] == row.source
    head, line, *body = _rows((tmp_path / "board.md").read_text())
    assert len({len(head), len(line), *map(len, body)}) == 1 and set("".join(line)) <= set("-: ")
    assert [cells[1] for cells in body] == [row.placer for row in rows if row.rank]
    text = (tmp_path / "board.txt").read_text()
    assert "not run: 1" in text and "temper: " in text and text == board.text()


def test_words_cannot_break_a_table() -> None:
    """Bars, line breaks and commas in words stay inside their cells, in Markdown and in CSV."""
    row = LeaderboardRow(
        rank=1, placer="a|b", value=1.0, gap=0.5, ratio=1.0, status="feasible", source='x, "y"\n| z \\| [w]'
    )
    board = LeaderboardTable(rows=(row,), lower_bound=0.5, best_bound_by="a|b", bound_method="m", best_value=1.0)
    head, _, cells = _rows(render_leaderboard(board, "markdown"))
    assert len(cells) == len(head) and cells[1] == "a\\|b" and "\\x0a" in cells[-1]
    (read,) = csv.DictReader(io.StringIO(render_leaderboard(board, "csv")))
    assert read["source"] == row.source and float(read["value"]) == 1.0
    assert json.loads(render_leaderboard(board, "json"))["entries"][0]["source"] == row.source


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_table_fits_the_terminal(path: Path, width: int) -> None:
    """Columns go as the terminal gets narrower, names and values last, and no number is broken."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    console.print(board_view(tabulate_entries(pw.compare(path, placers=("dp",)).entries)))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert lines[0].split()[-1] == {40: "took", 80: "devices", 200: "source"}[width]
    assert "dp" in lines[1] and "9 ms" in lines[1]


def test_a_missing_extra_is_a_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A placer whose library is not there is listed with what to install, and the others run."""
    monkeypatch.setitem(registry._PLACERS, "absent", "no_such_library.placer:Placer")
    entries = compare(build(path), ("dp", "absent"))
    assert entries[0].placer == "dp" and entries[0].result is not None
    assert "no_such_library" in entries[1].refusal and "pip install 'placewise[" in entries[1].refusal


def test_progress_names_the_placer_and_its_number(path: Path) -> None:
    """Every word of progress says which placer of how many is at work."""
    heard: list[Progress] = []
    compare(build(path), ("dp", "auto"), on_progress=heard.append)
    said = {state.placer for state in heard}
    assert "dp (1 of 2)" in said and all(re.match(r"(dp \(1|auto \(2) of 2\)", placer) for placer in said)
    assert any(placer.startswith("auto (2 of 2): ") for placer in said)


def test_starts_come_from_files(path: Path, split: Path, tmp_path: Path) -> None:
    """A split or a plan becomes the start of a search: at no work, `auto` answers no worse than it."""
    problem = build(path)
    given = start_of(split, problem)
    assert given.device.tolist() == SPLIT_DEVICES and start_of(given, problem) is given
    plan = pw.place(path, start=split, budget=Budget(seconds=0))
    assert plan.value <= pw.judge(problem, given).value
    plan.save(tmp_path / "plan.json")
    again = json.loads(run("place", path, "--start", tmp_path / "plan.json", "--json").stdout)
    assert again["value"] <= plan.value


def test_starts_that_are_none(path: Path, tmp_path: Path) -> None:
    """A start that breaks a rule, belongs elsewhere or is no file is refused in the words of `check`."""
    problem = build(path)
    heavy, stranger = tmp_path / "heavy.json", tmp_path / "stranger.json"
    heavy.write_text(json.dumps({"fpgas": [{"nodes": [0, 1, 2]}, {"nodes": []}], "cpus": []}))
    stranger.write_text(json.dumps({"fpgas": [{"nodes": [0, 1, 2, 9]}], "cpus": []}))
    with pytest.raises(PlanError, match=r"heavy\.json: breaks a rule: memory: .* short"):
        start_of(heavy, problem)
    with pytest.raises(PlanError, match=r"stranger\.json: the model has no op '9'"):
        start_of(stranger, problem)
    with pytest.raises(PlanError, match="has 2 ops, and the model 3"):
        start_of(Placement.on(0, 2), problem)
    with pytest.raises(PlanError, match="on no device"):
        start_of(Placement.on(-1, 3), problem)
    assert "breaks a rule: memory" in run("place", path, "--start", heavy, code=2).stderr


def test_a_humans_split_needs_its_placer(path: Path, split: Path) -> None:
    """Where nobody takes the human's split, that is said at once."""
    with pytest.raises(
        PlacerError,
        match="no placer of this comparison takes the human's placement; compare the placer 'expert' as well",
    ):
        pw.compare(path, placers="dp,single", expert=split)


def test_a_humans_split_is_for_its_placer_alone(path: Path, split: Path) -> None:
    """The placer `expert` gives the split back as it stands, whatever it is worth; nobody else hears of it."""
    board = pw.compare(path, placers="expert,single", expert=split)
    results = {entry.placer: entry.result for entry in board.entries}
    assert results["expert"] is not None and results["expert"].placement is not None
    assert results["expert"].placement.device.tolist() == SPLIT_DEVICES
    assert results["expert"].value == pw.judge(results["expert"].problem, start_of(split, build(path))).value
    alone = pw.compare(path, placers="single").entries[0].result
    assert alone is not None and results["single"] is not None and results["single"].value == alone.value
    shown = json.loads(run("compare", path, "--placers", "expert", "--expert", split, "--json").stdout)
    assert shown["entries"][0]["value"] == results["expert"].value


def test_the_command_writes_what_is_asked(path: Path, tmp_path: Path) -> None:
    """--format goes to standard output, -o to a file, by its suffix unless told, beside the table for people."""
    plain = run("compare", path, "--placers", "dp,single", "--format", "csv").stdout
    assert plain.startswith("rank,placer,value,") and len(plain.splitlines()) == 3
    file = tmp_path / "board.txt"
    shown = run("compare", path, "--placers", "dp,single", "-o", file, "--format", "markdown").stdout
    assert f"wrote {file}" in shown and "lower bound" in shown and "|" not in shown
    assert _rows(file.read_text())[0][:3] == ["#", "placer", "value"]


def test_bad_formats(path: Path, tmp_path: Path) -> None:
    """A format or suffix that does not exist is refused before anything runs, with those that do."""
    with pytest.raises(InputError, match="there is no format 'xml'; choose from table, json, csv, markdown"):
        format_for(None, "xml")
    with pytest.raises(InputError, match=r"board\.xls: the suffix '.xls' names no format; end it in .txt, .json"):
        format_for("board.xls", None)
    assert format_for("board.xls", "csv") == "csv" and format_for("BOARD.MD", None) == "markdown"
    assert "two formats" in run("compare", path, "--json", "--format", "csv", code=2).stderr
    assert "directory" in run("compare", path, "-o", tmp_path / "none" / "b.csv", code=2).stderr

"""A slice of `make fuzz`: damaged files of every format are refused in one sentence, or make figures."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from fuzzing import names, pool
from fuzzing.bombs import xml_bomb, zip_bomb
from fuzzing.case_result import FAULT, LOADED, REFUSED, CaseResult, classify_error, find_flaw, kind_of
from fuzzing.cases import SHARES, Case, Damage, case, run
from fuzzing.leaves import csv_swapped, leaf_swapped, onnx_swapped, tensorflow_swapped, toml_swapped, xml_swapped
from fuzzing.pool import Done
from fuzzing.report import document_of, merge_documents
from fuzzing.seeds import Seed, model_seeds, other_seeds, write_case_files
from soak import FACTOR, SOAKS

from placewise.errors import InputError, InternalError

QUICK = [name for name in SHARES if name != "hugging face"]
"""Families without transformers, whose import takes longer than all the rest."""
CASES = 15 * FACTOR if SOAKS else 6
MEGABYTE_CASE = next(n for n in range(1_000) if names.has_megabyte(Random(n)))


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Seed, ...]]]:
    """The sound files by family, in a folder with what they refer to."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("fuzz")
    os.chdir(folder)
    try:
        write_case_files(folder)
        yield model_seeds() | other_seeds()
    finally:
        os.chdir(before)


@pytest.mark.parametrize("family", QUICK)
def test_damaged_files(seeds: dict[str, tuple[Seed, ...]], family: str) -> None:
    """No case is at fault."""
    for number in range(CASES):
        made, rng = case(family, number, seeds[family], chance=0)
        result = run(made, rng, Path.cwd())
        assert result.outcome != FAULT, f"{made.name}: {result.words}"


def test_a_name_of_a_megabyte(tmp_path: Path) -> None:
    """It goes through every output like any other name."""
    names.journey(tmp_path / "plan.json", Seed("made", ".json", b"{}"), Random(MEGABYTE_CASE))


@pytest.mark.parametrize(("family", "bomb", "suffix"), [
    ("openvino", xml_bomb, ".xml"), ("torch", zip_bomb, ".pt2"), ("graph", zip_bomb, ".npz"),
])  # fmt: skip
def test_bombs(seeds: dict[str, tuple[Seed, ...]], family: str, bomb: Damage, suffix: str, tmp_path: Path) -> None:
    """Files that unfold a thousand times are refused, or the member is not read, in little memory."""
    for number, seed in enumerate(seeds[family][:3]):
        made = Case(family, number, seed, suffix, bomb(Random(number), seed.data, seed.data))
        tracemalloc.start()
        try:
            result = run(made, Random(number), tmp_path)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert result.outcome != FAULT, result.words
        assert peak < 48 << 20


def test_every_leaf_is_reached(seeds: dict[str, tuple[Seed, ...]]) -> None:
    """Swapped leaves are JSON but for NaN, Infinity and their like, and one place is another."""
    (data,) = (seed.data for seed in seeds["plan"] if seed.name == "latency")
    changed = [leaf_swapped(Random(number), data, data) for number in range(200)]
    assert len(set(changed)) > 150
    assert all(isinstance(json.loads(text), (dict, list, str, int, float, type(None))) for text in changed)


@pytest.mark.parametrize(("family", "name", "swapped"), [
    ("cluster", "0", toml_swapped), ("times", "csv", csv_swapped), ("openvino", "small", xml_swapped),
    ("onnx", "tensors", onnx_swapped), ("tensorflow", "small", tensorflow_swapped),
])  # fmt: skip
def test_leaves_of_every_format(seeds: dict[str, tuple[Seed, ...]], family: str, name: str, swapped: Damage) -> None:
    """Each format has leaves, which are swapped one at a time."""
    (data,) = (seed.data for seed in seeds[family] if seed.name == name)
    changed = {swapped(Random(number), data, data) for number in range(60)}
    assert len(changed) > 30


def test_the_same_number_is_the_same_case(seeds: dict[str, tuple[Seed, ...]]) -> None:
    """Cases are made of their number and the seed alone; some are read, some refused."""
    seen = Counter()
    for number in range(60):
        (one, rng), (two, _) = (case("torch", number, seeds["torch"], chance=0) for _ in range(2))
        assert one == two
        seen[run(one, rng, Path.cwd()).outcome] += 1
    assert seen[LOADED] and seen[REFUSED] and len(seeds["torch"]) == 2
    assert any(case("onnx", n, seeds["onnx"], 0)[0].data != case("onnx", n, seeds["onnx"], 1)[0].data for n in range(3))


def test_what_is_no_answer() -> None:
    """Errors of others, our own contradictions and what is not one line are faults, under short names."""
    assert classify_error(None).outcome == LOADED and classify_error(InputError("is empty")).outcome == REFUSED
    for error in (KeyError("a"), MemoryError(), RecursionError(), InternalError("a bound above a value")):
        assert classify_error(error).outcome == FAULT
    for said in ("", "two\nlines", "\x1b[2J", "x" * 5_000, "half \ud800", "Traceback (most recent call last)"):
        assert find_flaw(said)
    assert kind_of("700 characters: 'abc'") == kind_of("800 characters: 'x'")


def test_every_family_has_its_files(seeds: dict[str, tuple[Seed, ...]]) -> None:
    """Families, shares and seeds are of one list."""
    assert set(seeds) == set(SHARES) and sum(SHARES.values()) == pytest.approx(100)
    assert case("onnx", 1, seeds["onnx"], 0)[1].random() == case("onnx", 1, seeds["onnx"], 0)[1].random()


def test_processes_keep_out_of_each_others_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes another's place works where nobody else does, whichever ended first."""
    monkeypatch.setattr(pool, "CHUNK", 3)
    for place in range(2):
        (tmp_path / str(place)).mkdir()

    def runner(_: str, number: int, folder: Path) -> CaseResult:
        mine = folder / "mine.txt"
        mine.write_text(str(number))
        time.sleep(0.02 if number < 6 else 0.001 * (number % 7))
        return CaseResult(LOADED if mine.read_text() == str(number) else FAULT)

    done = list(pool.run_all([("any", number) for number in range(60)], runner, tmp_path, 2))
    assert sorted(one.number for one in done) == list(range(60))
    assert not [one.number for one in done if one.result.outcome == FAULT]


def test_who_waits_for_the_processor_is_not_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that computes on and on is ended; one that takes long because the machine has other work is not."""
    monkeypatch.setattr(pool, "PATIENCE", 0.3)
    monkeypatch.setattr(pool, "SECONDS", 0.5)
    (tmp_path / "0").mkdir()

    def runner(_: str, number: int, folder: Path) -> CaseResult:
        time.sleep(2.5 * (number == 1))
        while number == 2:
            pass
        return CaseResult(LOADED)

    done = pool.run_all([("any", number) for number in range(4)], runner, tmp_path, 1)
    outcomes = {one.number: one.result for one in done}
    assert [outcomes[number].outcome for number in range(4)] == [LOADED, LOADED, FAULT, LOADED]
    assert "no answer" in outcomes[2].words and "in runner" in outcomes[2].words


def test_rounds_are_added_up() -> None:
    """Cases and faults of two seeds, and the slowest of both."""
    rounds = [
        document_of(
            [Done("plan", 1, CaseResult(LOADED), 1.0), Done("onnx", 2, CaseResult(FAULT, "odd"), 3.0)], 7, 10.0, 1
        ),
        document_of([Done("plan", 1, CaseResult(REFUSED), 2.0)], 8, 20.0, 1),
    ]
    found = merge_documents(rounds)
    assert (found["cases"], found["seconds"], found["seeds"], found["faults"]) == (3, 30, [7, 8], {"odd": 1})
    plan = found["families"]["plan"]
    assert (plan["cases"], plan["loaded"], plan["refused"], plan["slowest"]) == (2, 1, 1, 2.0)
    assert [(one["case"], one["seed"]) for one in found["slowest"]] == [("onnx:2", 7), ("plan:1", 8), ("plan:1", 7)]

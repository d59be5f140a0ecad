"""Cases by number: the same family, number and seed make the same file and the same journey."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzzing.archive import zip_damaged
from fuzzing.bombs import xml_bomb, zip_bomb
from fuzzing.case_result import CaseResult, classify_error
from fuzzing.external import external_damaged
from fuzzing.gguf import gguf_damaged
from fuzzing.journeys import JOURNEYS
from fuzzing.leaves import csv_swapped, leaf_swapped, onnx_swapped, tensorflow_swapped, toml_swapped, xml_swapped
from fuzzing.markup import xml_damaged
from fuzzing.raw import MOST, damaged, words_damaged
from fuzzing.seeds import Seed
from fuzzing.tree import json_damaged, toml_damaged
from fuzzing.wire import wire_damaged

Damage = Callable[[Random, bytes, bytes], bytes]
SHARES: Mapping[str, float] = {
    "onnx": 13, "external": 1, "names": 1, "options": 5, "openvino": 10, "tensorflow": 12,
    "tensorflow text": 2, "torch": 6, "hugging face": 0.2, "workload": 5, "piper": 3,
    "pipedream": 4, "gguf": 3, "graph": 3, "problem": 3, "cluster": 6, "cluster line": 3, "topology": 1, "plan": 6,
    "split": 1.8, "profile": 2, "times": 5, "corpus": 1, "policy": 1, "sweep": 1, "inputs": 1,
}  # fmt: skip
"""How many of a hundred cases are of a family."""
_BY_SUFFIX: Mapping[str, Damage] = {
    ".onnx": wire_damaged, ".pb": wire_damaged, ".meta": wire_damaged, ".xml": xml_damaged, ".json": json_damaged,
    ".toml": toml_damaged, ".topo": words_damaged, ".pt2": zip_damaged, ".npz": zip_damaged,
    ".gguf": gguf_damaged,
}  # fmt: skip
_SWAPPED: Mapping[str, Damage] = {
    ".toml": toml_swapped, ".xml": xml_swapped, ".csv": csv_swapped, ".onnx": onnx_swapped,
    ".pb": tensorflow_swapped, ".meta": tensorflow_swapped,
}  # fmt: skip
"""Typed swaps of leaves, by suffix, besides JSON; members of archives have theirs (`zip_damaged`)."""
_SUFFIXES = (*_BY_SUFFIX, ".pbtxt", ".csv", ".txt", ".JSON", "")
_BY_CONTENT = ("cluster", "cluster line", "topology")
"""Families whose files are what the case says, whatever they are called."""
_BOMBS: Mapping[str, Damage] = {".xml": xml_bomb, ".pt2": zip_bomb, ".npz": zip_bomb}
_UNDERSTOOD = 0.75
"""Share of cases that keep the form of their format, so that they get further than its parser."""


_SWAPS = 0.3
"""Share of cases with one leaf of another type."""


@dataclass(frozen=True, slots=True)
class Case:
    """A damaged file, and what it was."""

    family: str
    number: int
    seed: Seed
    suffix: str
    data: bytes

    @property
    def name(self) -> str:
        return f"{self.family}:{self.number}"


def case(family: str, number: int, seeds: tuple[Seed, ...], chance: int) -> tuple[Case, Random]:
    """A case, and the random numbers with which its journey goes on."""
    rng = Random(f"{chance}:{family}:{number}")
    seed = rng.choices(seeds, [(1_000 + len(one.data)) ** -1.5 for one in seeds])[0]
    others = [one for one in seeds if one.suffix == seed.suffix]
    other = rng.choice(others).data
    change = _BY_SUFFIX.get(seed.suffix, damaged) if rng.random() < _UNDERSTOOD else damaged
    is_json = seed.suffix in ("", ".json") and seed.data[:1] in (b"{", b"[")
    swapped = leaf_swapped if is_json else _SWAPPED.get(seed.suffix)
    if change is json_damaged and not is_json:
        change = damaged
    if family == "external":
        change = external_damaged
    elif swapped is not None and rng.random() < _SWAPS:
        change = swapped
    elif seed.suffix in _BOMBS and rng.random() < 0.03:
        change = _BOMBS[seed.suffix]
    data = change(rng, seed.data, other)[:MOST]
    if family == "times" and rng.random() < 0.2:
        data = gzip.compress(data, 1, mtime=0)
    suffix = rng.choice(_SUFFIXES) if rng.random() < 0.06 and family not in _BY_CONTENT else seed.suffix
    return Case(family, number, seed, suffix, data), rng


def run(case: Case, rng: Random, folder: Path) -> CaseResult:
    """Write the case into the folder and go its way."""
    path = folder / f"case{case.suffix}"
    path.write_bytes(case.data)
    try:
        JOURNEYS[case.family](path, case.seed, rng)
    except Exception as error:
        return classify_error(error)
    finally:
        path.unlink(missing_ok=True)
    return classify_error(None)

"""Corpus files (TOML): the problems that a policy is pretrained on, and how."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from placewise.errors import InputError, locate_errors
from placewise.files.records import Record, parse_versioned, read_bytes

LARGEST = 1 << 20
"""Bytes."""
MAX_PROBLEMS, MAX_DEVICES = 100_000, 64

Count = Annotated[int, Field(strict=True, ge=1)]
Size = Annotated[int, Field(strict=True, ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Strict(Record):
    """A record written by hand: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True, allow_inf_nan=False)


class WholeSpan(_Strict):
    """An integer drawn log-uniformly from `least` to `most`."""

    least: Size
    most: Size


class FactorSpan(_Strict):
    """A number drawn log-uniformly from `least` to `most`."""

    least: Factor
    most: Factor


class ModelRecord(_Strict):
    """A workload of the zoo with its dimensions: a number, a list of choices, or a range."""

    model: str = Field(description="name in the zoo, with or without the prefix zoo:")
    weight: Factor = Field(1.0, description="relative frequency of this model")
    graph: tuple[Literal["inference", "training"], ...] = Field(("inference",), min_length=1)
    dims: Mapping[str, Size | tuple[Size, ...] | WholeSpan] = {}
    devices: tuple[str, ...] = Field((), description="clusters (lines or cluster files) instead of random ones")


class RandomClusters(_Strict):
    """How random clusters are drawn."""

    devices: tuple[str, ...] = Field(("V100-16GB",), min_length=1, description="accelerators of the catalogue")
    count: WholeSpan = Field(WholeSpan(least=2, most=8), description="accelerators in a cluster")
    kinds: WholeSpan = Field(WholeSpan(least=1, most=2), description="distinct models of accelerators in a cluster")
    host: Share = Field(0.8, description="fraction of clusters with a CPU")
    speed: FactorSpan = Field(FactorSpan(least=0.5, most=2.0), description="factor on the bandwidth of all links")
    staged: Share = Field(0.5, description="fraction of clusters in which transfers go through host memory")
    tight: Share = Field(0.2, description="fraction of clusters in which the model barely fits")
    room: FactorSpan = Field(
        FactorSpan(least=1.3, most=4.0),
        description="there, total accelerator memory over the model's memory",
    )


class LearningRecord(_Strict):
    """How the policy is trained. Durations are in updates; missing keys take the policy's defaults."""

    updates: Count = 1000
    problems: Count = Field(8, description="problems per update")
    teacher: str = Field("temper", description="placer to imitate; empty: none")
    imitated: Share = Field(0.5, description="fraction of the training that only imitates")
    held: Annotated[float, Field(ge=0)] = Field(0.1, description="weight of the imitation loss afterwards")
    climbed: Size = Field(0, description="ignored; earlier versions learned from tried moves")
    bred: Size = Field(0, description="ignored; earlier versions evolved prior sets")
    jitter: Factor = Field(0.35, description="ignored, like `bred`")
    only: tuple[str, ...] = Field((), description="ignored, like `bred`")
    rewarded: bool = Field(True, description="whether rewards of sampled placements are used after the imitation")
    validated: Size = Field(8, description="additional problems for validation")
    every: Count = Field(100, description="updates between validations")
    patience: Size = Field(0, description="stop after this many validations without improvement; 0: never")


class CorpusFile(_Strict):
    """A corpus. The same file always gives the same problems."""

    format: Literal["placewise-corpus"] = "placewise-corpus"
    version: Literal[1] = 1
    base: str = Field("", description="corpus file in the same folder that provides the missing keys")
    seed: Size = 0
    problems: Annotated[int, Field(strict=True, ge=1, le=MAX_PROBLEMS)] = Field(200, description="training problems")
    in_turn: bool = Field(False, description="take the models in turn instead of drawing them")
    most_ops: Count = Field(5000, description="larger graphs are skipped")
    leave_out: tuple[str, ...] = Field((), description="excluded models (prefixes of names) and devices")
    models: tuple[ModelRecord, ...] = Field(min_length=1)
    clusters: RandomClusters = Field(default_factory=lambda: RandomClusters.model_validate({}))
    executions: tuple[Literal["operator", "contention-free", "subgraph", "sequential"], ...] = Field(
        ("operator",), min_length=1
    )
    policy: str = "gdp"
    options: dict[str, bool | int | float | str] = Field({}, description="options of the policy and of the training")
    training: LearningRecord = Field(default_factory=lambda: LearningRecord.model_validate({}))


def load_corpus(path: str | PathLike[str]) -> CorpusFile:
    """The corpus of a file, merged over its `base` if it has one.

    Raises InputError naming the file, and the line or the key.
    """
    table = _read_table(path)
    base = table.pop("base", "")
    with locate_errors(path):
        if base == "":
            return parse_corpus(table)
        if not isinstance(base, str):
            raise InputError("'base' must be a string", remedy="give the name of the corpus file that this one changes")
        base_table = _read_table(Path(path).parent / base)
        if "base" in base_table:
            raise InputError(f"{base!r} itself has a base", remedy="name that file")
        return parse_corpus(base_table | table)


def _read_table(path: str | PathLike[str]) -> dict[str, Any]:
    data = read_bytes(path, InputError, LARGEST)
    with locate_errors(path):
        try:
            return tomllib.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:  # not text, not TOML, or a number with thousands of digits
            raise InputError(f"is not TOML ({error})", remedy="see docs/formats.md") from None


def parse_corpus(document: Mapping[str, Any]) -> CorpusFile:
    """The corpus of a parsed table. Raises InputError, naming the wrong key."""
    corpus = parse_versioned(CorpusFile, dict(document), InputError)
    for row, model in enumerate(corpus.models):
        for name, size in model.dims.items():
            _require_span(f"models.{row}.dims.{name}", size)
            if size == ():
                raise InputError(f"'models.{row}.dims.{name}' needs 1 or more entries", remedy="see docs/formats.md")
    for name in ("count", "kinds", "speed", "room"):
        _require_span(f"clusters.{name}", getattr(corpus.clusters, name))
    count = corpus.clusters.count
    if not 1 <= count.least <= count.most <= MAX_DEVICES or not corpus.clusters.kinds.least:
        raise InputError(f"'clusters.count' must be from 1 to {MAX_DEVICES}, and 'clusters.kinds' from 1",
                         remedy="see docs/formats.md")  # fmt: skip
    return corpus


def _require_span(key: str, value: object) -> None:
    if isinstance(value, (WholeSpan, FactorSpan)) and value.least > value.most:
        raise InputError(f"{key!r} is from {value.least:g} to {value.most:g}", remedy="give the smaller one first")

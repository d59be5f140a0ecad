"""Corpus files (TOML): which problems a policy is trained on beforehand, and how."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from placewise.errors import InputError
from placewise.files.records import Record, checked, naming, read_bytes

LARGEST = 1 << 20
"""Bytes; a corpus file is a page of text."""
MOST_PROBLEMS, MOST_DEVICES = 100_000, 64

Count = Annotated[int, Field(strict=True, ge=1)]
Size = Annotated[int, Field(strict=True, ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Strict(Record):
    """Written by people: a key that we do not know is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True, allow_inf_nan=False)


class WholeSpan(_Strict):
    """A whole number drawn from `least` to `most`, small ones as likely as large ones twice as far apart."""

    least: Size
    most: Size


class FactorSpan(_Strict):
    """A number drawn from `least` to `most`, in the same way."""

    least: Factor
    most: Factor


class ModelRecord(_Strict):
    """A workload of the zoo with its dimensions: one number, some to choose from, or a span."""

    model: str = Field(description="its name in the zoo, or zoo:NAME")
    weight: Factor = Field(1.0, description="how often it is drawn, beside the others")
    graph: tuple[Literal["inference", "training"], ...] = Field(("inference",), min_length=1)
    dims: Mapping[str, Size | tuple[Size, ...] | WholeSpan] = {}
    devices: tuple[str, ...] = Field((), description="clusters (lines or cluster files) instead of random ones")


class RandomClusters(_Strict):
    """How clusters are drawn."""

    devices: tuple[str, ...] = Field(("V100-16GB",), min_length=1, description="accelerators of the catalogue")
    count: WholeSpan = Field(WholeSpan(least=2, most=8), description="accelerators in a cluster")
    kinds: WholeSpan = Field(WholeSpan(least=1, most=2), description="different ones among them")
    host: Share = Field(0.8, description="how many clusters have a CPU")
    speed: FactorSpan = Field(FactorSpan(least=0.5, most=2.0), description="on the bandwidth of all links")
    staged: Share = Field(0.5, description="in how many clusters everything goes through host memory")
    tight: Share = Field(0.2, description="in how many clusters the model hardly fits")
    room: FactorSpan = Field(
        FactorSpan(least=1.3, most=4.0), description="there, all memory of accelerators over what one would need"
    )


class LearningRecord(_Strict):
    """How the policy is trained. Figures in updates; what is not said is the policy's own default."""

    updates: Count = 1000
    problems: Count = Field(8, description="in one update")
    teacher: str = Field("temper", description="the placer that is imitated; empty: none")
    imitated: Share = Field(0.5, description="share of the training that only imitates")
    held: Annotated[float, Field(ge=0)] = Field(0.1, description="weight of imitating the teacher in the rest of it")
    climbed: Size = Field(0, description="ignored; earlier versions learned from tried moves")
    bred: Size = Field(0, description="new rows of the parameters `only` that are tried in an update; the best stay")
    jitter: Factor = Field(0.35, description="standard deviation of what is new in such a row")
    only: tuple[str, ...] = Field((), description="parameters that are learned; none: all")
    rewarded: bool = Field(True, description="whether rewards of what it draws count as well, after the imitation")
    validated: Size = Field(8, description="problems more, which nobody trains on")
    every: Count = Field(100, description="how often the policy is tried on them")
    patience: Size = Field(0, description="stop where so many trials brought nothing better; 0: never")


class CorpusFile(_Strict):
    """A corpus: the same file gives the same problems."""

    format: Literal["placewise-corpus"] = "placewise-corpus"
    version: Literal[1] = 1
    base: str = Field("", description="the corpus file beside it whose keys it has where it says nothing else")
    seed: Size = 0
    problems: Annotated[int, Field(strict=True, ge=1, le=MOST_PROBLEMS)] = Field(200, description="to train on")
    in_turn: bool = Field(False, description="models one after the other, not drawn")
    most_ops: Count = Field(5000, description="a larger graph is not taken")
    leave_out: tuple[str, ...] = Field((), description="what never occurs: beginnings of names of models, or devices")
    models: tuple[ModelRecord, ...] = Field(min_length=1)
    clusters: RandomClusters = Field(default_factory=lambda: RandomClusters.model_validate({}))
    executions: tuple[Literal["operator", "subgraph", "sequential"], ...] = Field(("operator",), min_length=1)
    policy: str = "gdp"
    options: dict[str, bool | int | float | str] = Field({}, description="of the policy and of training")
    training: LearningRecord = Field(default_factory=lambda: LearningRecord.model_validate({}))


def load_corpus(path: str | PathLike[str]) -> CorpusFile:
    """The corpus of a file, over that of its `base` beside it if it has one.

    Raises InputError naming the file, and the line or the key.
    """
    table = _table(path)
    base = table.pop("base", "")
    with naming(path):
        if base == "":
            return corpus_of(table)
        if not isinstance(base, str):
            raise InputError("'base' must be a text", remedy="give the name of the corpus file that this one changes")
        under = _table(Path(path).parent / base)
        if "base" in under:
            raise InputError(f"{base!r} has a base itself", remedy="name that one")
        return corpus_of(under | table)


def _table(path: str | PathLike[str]) -> dict[str, Any]:
    data = read_bytes(path, InputError, LARGEST)
    with naming(path):
        try:
            return tomllib.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:  # not text, not TOML, or a number of thousands of digits
            raise InputError(f"is not TOML ({error})", remedy="see docs/formats.md") from None


def corpus_of(document: Mapping[str, Any]) -> CorpusFile:
    """The corpus of such a table; raises InputError saying which key is wrong."""
    found = checked(CorpusFile, dict(document), InputError)
    for row, model in enumerate(found.models):
        for name, size in model.dims.items():
            _require_span(f"models.{row}.dims.{name}", size)
            if size == ():
                raise InputError(f"'models.{row}.dims.{name}' needs 1 or more entries", remedy="see docs/formats.md")
    for name in ("count", "kinds", "speed", "room"):
        _require_span(f"clusters.{name}", getattr(found.clusters, name))
    count = found.clusters.count
    if not 1 <= count.least <= count.most <= MOST_DEVICES or not found.clusters.kinds.least:
        raise InputError(f"'clusters.count' must be from 1 to {MOST_DEVICES}, and 'clusters.kinds' from 1",
                         remedy="see docs/formats.md")  # fmt: skip
    return found


def _require_span(key: str, value: object) -> None:
    if isinstance(value, (WholeSpan, FactorSpan)) and value.least > value.most:
        raise InputError(f"{key!r} is from {value.least:g} to {value.most:g}", remedy="give the smaller one first")

"""Policy checkpoints: a header in JSON, which names a file of tensors (safetensors) beside it. Never pickle.

The tensors are written first, under a name of their own, and the header takes the place of the older one at once:
whenever the writer is killed, the header that is there names tensors that are there.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from placewise.errors import MissingExtraError, ModelFileError, OutputError
from placewise.files.atomic import atomic_write
from placewise.files.graph_file import SourceRecord
from placewise.files.plan_file import ToolRecord
from placewise.files.records import Amount, Record, json_bytes, locate_errors, parse_json, parse_versioned, read_bytes

Tensors = Mapping[str, npt.NDArray[Any]]

NAME = "policy.json"
"""The header's name in a checkpoint that is a folder."""


class SectionRecord(Record):
    """One section of the features that the policy reads."""

    name: str
    columns: int = Field(ge=0)


class BudgetRecord(Record):
    """When training ends: whichever comes first."""

    seconds: Amount = Field(None, validate_default=True, description="of training")
    updates: int | None = None
    evaluations: int | None = Field(None, description="placements that were priced and not seen before")


class StepRecord(Record):
    """When training found something better."""

    evaluations: int
    seconds: float = Field(description="of training")
    value: float = Field(description="seconds: the reward's, measured or simulated")


class PolicyFile(Record):
    """The header of a checkpoint. The tensors hold the parameters, Adam's moments, chance, and the prices seen."""

    format: Literal["placewise-policy"] = "placewise-policy"
    version: Literal[1] = 1
    policy: str = Field(description="its name, as of a placer")
    options: dict[str, bool | int | float | str] = Field({}, description="of training and of the network")
    network: int = Field(1, description="version: of one name, only networks of one version understand each other")
    features: tuple[SectionRecord, ...] = Field((), description="what the policy reads of every unit, in this order")
    devices: tuple[str, ...] = Field(description="names, in the order of the policy's answers")
    corpus: dict[str, Any] | None = Field(None, description="the corpus file, where it was trained on many problems")
    score: Amount = Field(
        None, validate_default=True, description="its favourites over the best known, on problems for validation"
    )
    reward: str = Field("simulated", description="simulated, or the runtime that measured")
    seed: int = 0
    budget: BudgetRecord = Field(default_factory=lambda: BudgetRecord.model_validate({}))
    source: SourceRecord | None = Field(None, description="the model file")
    graph_hash: str = Field("", description="sha256 of the graph's structure and shapes")
    problem_hash: str = Field("", description="sha256 of graph, devices, costs, objective and rules")
    updates: int = Field(0, ge=0, description="made so far")
    asked: int = Field(0, ge=0, description="placements that the policy made")
    evaluations: int = Field(0, ge=0, description="those of them that were priced, not seen before")
    seconds: float = Field(0.0, ge=0, description="spent on training")
    figures: dict[str, Any] = Field({}, description="what training goes on from besides: baseline, scale, …")
    value: Amount = Field(None, validate_default=True, description="seconds of the best placement, by the reward")
    assignment: dict[str, str] = Field({}, description="the best placement: op name → device name")
    history: tuple[StepRecord, ...] = ()
    diverged: bool = Field(False, description="training ended since a figure was not finite; these are from before")
    tensors: str = Field("", description="name of the file of tensors, in the same folder")
    sha256: str = Field("", description="of that file")
    tool: ToolRecord | None = None


def header_path(path: str | os.PathLike[str]) -> Path:
    """Where the header of a checkpoint is: the path itself if it ends in .json, else policy.json in that folder."""
    given = Path(path)
    return given if given.suffix == ".json" and not os.path.isdir(given) else given / NAME


def save_policy(header: PolicyFile, tensors: Tensors, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint over an older one, of which something whole is there at every moment.

    Raises OutputError, and MissingExtraError where safetensors is not installed.
    """
    library = import_safetensors()
    header_file = header_path(path)
    if header_file.name == NAME and not header_file.parent.exists():
        with suppress(OSError):
            header_file.parent.mkdir()
    data = library.save({name: np.array(array, order="C") for name, array in tensors.items()})
    name = f"{header_file.stem}-{header.updates:07d}-{secrets.token_hex(4)}.safetensors"
    with locate_errors(path):
        text = json_bytes(header.model_copy(update={"tensors": name, "sha256": hashlib.sha256(data).hexdigest()}))
    with atomic_write(header_file.with_name(name), "wb") as file:
        file.write(data)
    with atomic_write(header_file, "wb") as file:
        file.write(text)
    for older in header_file.parent.glob(f"{header_file.stem}-*.safetensors"):
        if older.name != name and _is_tensor_file(older.name, header_file.stem):
            with suppress(OSError):
                older.unlink()


def load_policy(path: str | os.PathLike[str]) -> tuple[PolicyFile, dict[str, npt.NDArray[Any]]]:
    """The header and the tensors of a checkpoint.

    Raises ModelFileError naming the file, and MissingExtraError where safetensors is not installed.
    """
    library = import_safetensors()
    header = load_header(path)
    header_file = header_path(path)
    if not header.tensors or Path(header.tensors).name != header.tensors:
        raise ModelFileError("names no file of tensors beside it", where=str(header_file), remedy="is the file whole?")
    tensor_file = header_file.with_name(header.tensors)
    data = read_bytes(tensor_file, ModelFileError)
    if hashlib.sha256(data).hexdigest() != header.sha256:
        raise ModelFileError(f"is not the file that {header_file.name} was written with", where=str(tensor_file),
                             remedy="keep the two files of a checkpoint together")  # fmt: skip
    try:
        return header, library.load(data)
    except Exception as error:
        raise ModelFileError(
            f"holds no tensors ({error})", where=str(tensor_file), remedy="is the file whole?"
        ) from None


def load_header(path: str | os.PathLike[str]) -> PolicyFile:
    """The header of a checkpoint. Raises ModelFileError naming the file and the field."""
    header_file = header_path(path)
    data = read_bytes(header_file, ModelFileError)
    with locate_errors(header_file):
        return parse_versioned(PolicyFile, parse_json(data))


def import_safetensors() -> Any:
    """The library that packs tensors. Raises MissingExtraError where it is not installed."""
    try:
        return import_module("safetensors.numpy")
    except ModuleNotFoundError:
        raise MissingExtraError("a checkpoint (safetensors)", "learn") from None


def ensure_checkpoint_writable(path: str | os.PathLike[str]) -> None:
    """Raise OutputError now if a checkpoint plainly cannot be written to `path` later."""
    folder = header_path(path).parent
    existing = folder if folder.exists() or header_path(path).name != NAME else folder.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise OutputError(
            "cannot be written", where=str(path), remedy=f"make the directory {existing}, or choose another place"
        )


def _is_tensor_file(name: str, stem: str) -> bool:
    """Whether a name is one that `save_policy` gives to tensors."""
    parts = name.removeprefix(f"{stem}-").removesuffix(".safetensors").split("-")
    return len(parts) == 2 and parts[0].isdigit() and len(parts[1]) == 8

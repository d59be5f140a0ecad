"""Policy checkpoints: a JSON header that names a safetensors file in the same folder. No pickle.

The tensors are written first, under a new name; then the header is replaced atomically. If the writer is killed, the
existing header still names existing tensors.
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

from placewise.errors import MissingExtraError, ModelFileError, OutputError, locate_errors
from placewise.files.atomic import atomic_write
from placewise.files.graph_file import SourceRecord
from placewise.files.plan_file import ToolRecord
from placewise.files.records import Amount, Record, Whole, json_bytes, read_bytes, read_record

Tensors = Mapping[str, npt.NDArray[Any]]

NAME = "policy.json"
"""The name of the header file if the checkpoint is a folder."""


class SectionRecord(Record):
    """One section of the policy's input features."""

    name: str
    columns: Whole = Field(ge=0)


class BudgetRecord(Record):
    """The training budget: the first limit reached ends the training."""

    seconds: Amount = Field(None, validate_default=True, description="of training")
    updates: Whole | None = None
    evaluations: Whole | None = Field(None, description="new placements that were priced")


class StepRecord(Record):
    """An improvement during training."""

    evaluations: Whole
    seconds: float = Field(description="of training")
    value: float = Field(description="seconds by the reward, measured or simulated")


class PolicyFile(Record):
    """The header of a checkpoint. The tensors are parameters, Adam's moments, random state, and known prices."""

    format: Literal["placewise-policy"] = "placewise-policy"
    version: Literal[1] = 1
    policy: str = Field(description="name of the policy, as in the placer registry")
    options: dict[str, bool | int | float | str] = Field({}, description="options of the training and of the network")
    network: Whole = Field(1, description="version of the network; other versions are incompatible")
    features: tuple[SectionRecord, ...] = Field((), description="the features of every unit, in order")
    devices: tuple[str, ...] = Field(description="device names, in the order of the policy's outputs")
    corpus: dict[str, Any] | None = Field(None, description="the corpus file, if the policy was trained on one")
    score: Amount = Field(
        None, validate_default=True, description="its best placements over the best known, on validation problems"
    )
    reward: str = Field("simulated", description="simulated, or the runtime that measures")
    seed: int = 0
    budget: BudgetRecord = Field(default_factory=lambda: BudgetRecord.model_validate({}))
    source: SourceRecord | None = Field(None, description="the model file")
    graph_hash: str = Field("", description="sha256 of the graph's structure and shapes")
    problem_hash: str = Field("", description="sha256 of graph, devices, costs, objective and rules")
    updates: Whole = Field(0, ge=0, description="updates so far")
    asked: Whole = Field(0, ge=0, description="placements sampled from the policy")
    evaluations: Whole = Field(0, ge=0, description="new placements among them that were priced")
    seconds: float = Field(0.0, ge=0, description="training time so far")
    figures: dict[str, Any] = Field({}, description="further training state: baseline, scale, …")
    value: Amount = Field(None, validate_default=True, description="seconds of the best placement, by the reward")
    assignment: dict[str, str] = Field({}, description="the best placement: op name → device name")
    history: tuple[StepRecord, ...] = ()
    diverged: bool = Field(False, description="training ended with a non-finite value; this is the last finite state")
    tensors: str = Field("", description="name of the tensor file in the same folder")
    sha256: str = Field("", description="of the tensor file")
    tool: ToolRecord | None = None


def header_path(path: str | os.PathLike[str]) -> Path:
    """The path of a checkpoint's header: `path` itself if it ends in .json, else policy.json in that folder."""
    checkpoint = Path(path)
    return checkpoint if checkpoint.suffix == ".json" and not os.path.isdir(checkpoint) else checkpoint / NAME


def save_policy(header: PolicyFile, tensors: Tensors, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint; an older one at this path stays intact until it is replaced.

    Raises OutputError, and MissingExtraError without safetensors.
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

    Raises ModelFileError naming the file, and MissingExtraError without safetensors.
    """
    library = import_safetensors()
    header = load_header(path)
    header_file = header_path(path)
    if not header.tensors or Path(header.tensors).name != header.tensors:
        raise ModelFileError("names no file of tensors", where=str(header_file), remedy="is the file complete?")
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
    return read_record(header_path(path), PolicyFile)


def import_safetensors() -> Any:
    """The module `safetensors.numpy`. Raises MissingExtraError if it is not installed."""
    try:
        return import_module("safetensors.numpy")
    except ModuleNotFoundError:
        raise MissingExtraError("a checkpoint (safetensors)", "learn") from None


def ensure_checkpoint_writable(path: str | os.PathLike[str]) -> None:
    """Raise OutputError early if a checkpoint cannot be written to `path` later."""
    folder = header_path(path).parent
    existing = folder if folder.exists() or header_path(path).name != NAME else folder.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise OutputError(
            "cannot be written", where=str(path), remedy=f"make the directory {existing}, or choose another path"
        )


def _is_tensor_file(name: str, stem: str) -> bool:
    """Whether `save_policy` wrote a file of this name."""
    parts = name.removeprefix(f"{stem}-").removesuffix(".safetensors").split("-")
    return len(parts) == 2 and parts[0].isdigit() and len(parts[1]) == 8

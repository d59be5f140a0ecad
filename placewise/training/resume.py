"""Where a training shall be kept: whether one was begun there, to go on with, or there is room for a new one."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from placewise.errors import InputError
from placewise.files.policy_file import ensure_room, header_of, load_header, safetensors
from placewise.placers.learned.checkpoint import Checkpoint, read_checkpoint


def begun(checkpoint: str | PathLike[str] | None, every: int, *, resume: bool) -> Checkpoint | None:
    """The checkpoint to go on from. Raises InputError and its kin before anything is spent."""
    if every < 1:
        raise InputError(f"a checkpoint every {every} updates", remedy="give one or more")
    if checkpoint is None:
        if resume:
            raise InputError("there is nothing to go on from", remedy="say where it is with --checkpoint")
        return None
    place = header_of(checkpoint)
    if resume:
        if not place.exists():
            raise InputError("there is no checkpoint to go on from", where=str(place), remedy="leave out --resume")
        return read_checkpoint(checkpoint)
    if place.exists():
        raise InputError("a training is kept there already", where=str(place),
                         remedy="go on with it (--resume), or choose another place")  # fmt: skip
    safetensors()
    ensure_room(checkpoint)
    return None


def with_weights(
    weights: str | PathLike[str] | None, policy: str | None, options: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """The policy, and the options, of a training that begins with the weights of a checkpoint, if one is named."""
    if weights is None:
        return policy, dict(options)
    return policy or load_header(weights).policy, {**options, "checkpoint": fspath(weights)}

"""Resume a training from a checkpoint, or make sure that a new one can be written."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from placewise.errors import InputError, PlacerError
from placewise.files.policy_file import ensure_checkpoint_writable, header_path, import_safetensors, load_header
from placewise.placers.learned.checkpoint import Checkpoint, read_checkpoint


def find_checkpoint(checkpoint: str | PathLike[str] | None, every: int, *, resume: bool) -> Checkpoint | None:
    """The checkpoint to resume from, or None for a new training, whose checkpoint can then be written.

    Raises InputError, or a subclass of it, before any training time is spent.
    """
    if every < 1:
        raise InputError(f"a checkpoint every {every} updates", remedy="give one or more")
    if checkpoint is None:
        if resume:
            raise InputError("there is no checkpoint to resume from", remedy="name its path with --checkpoint")
        return None
    place = header_path(checkpoint)
    if resume:
        if not place.exists():
            raise InputError("there is no checkpoint to resume from", where=str(place), remedy="leave out --resume")
        return read_checkpoint(checkpoint)
    if place.exists():
        raise InputError("there is a training already", where=str(place),
                         remedy="continue it (--resume), or choose another place")  # fmt: skip
    import_safetensors()
    ensure_checkpoint_writable(checkpoint)
    return None


def require_same_policy(before: Checkpoint, policy: str | None, seed: int) -> None:
    """Raise PlacerError if a training is to be resumed with another policy (None: any) or seed (0: any)."""
    header, where = before.header, str(header_path(before.path))
    if policy not in (None, header.policy):
        raise PlacerError(f"is of the policy {header.policy!r}, not {policy!r}", where=where,
                          remedy="resume with that policy")  # fmt: skip
    if seed not in (0, header.seed):
        raise PlacerError(f"was trained with the seed {header.seed}, not {seed}", where=where,
                          remedy="leave out the seed")  # fmt: skip


def with_weights(
    weights: str | PathLike[str] | None, policy: str | None, options: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """The policy and the options of a training that starts from the weights of a checkpoint, if one is given."""
    if weights is None:
        return policy, dict(options)
    return policy or load_header(weights).policy, {**options, "checkpoint": fspath(weights)}

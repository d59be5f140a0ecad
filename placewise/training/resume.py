"""Checkpoints of a training: write one, resume from it, or make sure that a new one can be written."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from os import PathLike, fspath
from typing import Any

import numpy.typing as npt

from placewise.errors import InputError, ModelFileError, PlacerError, locate_errors
from placewise.files.graph_file import source_record
from placewise.files.plan_file import ToolRecord
from placewise.files.policy_file import (
    PolicyFile,
    ensure_checkpoint_writable,
    header_path,
    import_safetensors,
    load_header,
)
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.base import Budget
from placewise.placers.learned.checkpoint import (
    Checkpoint,
    problem_digest,
    read_checkpoint,
    require_fit,
    require_policy,
)
from placewise.placers.learned.policy import Policy
from placewise.placers.learned.trainer import Trainer

Arrays = dict[str, npt.NDArray[Any]]


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


def dump_checkpoint(
    trainer: Trainer, name: str, *, reward: str, budget: Budget, spent: float
) -> tuple[PolicyFile, Arrays]:
    """The header and the tensors of a training on one problem; `spent` is its time so far, in seconds."""
    figures, arrays = trainer.state()
    problem, pricing = trainer.policy.view.problem, trainer.pricing
    best = None if pricing.best is None else Placement(pricing.best)
    history = [
        {"evaluations": count, "seconds": seconds, "value": value} for count, seconds, value in figures.pop("curve")
    ]
    options = {key: value for key, value in asdict(trainer.options).items() if key != "checkpoint"}
    return build_checkpoint(
        trainer.policy,
        figures,
        arrays,
        policy=name,
        options=options,
        devices=problem.cluster.names,
        reward=reward,
        seed=trainer.seed,
        budget=budget_record(budget),
        source=source_record(problem.graph.source),
        graph_hash=problem.graph.digest(),
        problem_hash=problem_digest(problem),
        asked=pricing.asked,
        evaluations=pricing.evaluations,
        seconds=spent,
        history=history,
        value=pricing.value,
        assignment={} if best is None else best.assignment(problem.graph, problem.cluster),
        diverged=trainer.diverged,
    )


def build_checkpoint(
    policy: Policy, figures: dict[str, Any], arrays: Arrays, /, *, diverged: bool, **fields: Any
) -> tuple[PolicyFile, Arrays]:
    """The header, with these further fields, and the tensors of a training in this state."""
    if diverged:
        arrays = {key: array for key, array in arrays.items() if not key.startswith("adam/")}
    header = PolicyFile.model_validate(
        {
            "network": policy.version,
            "features": [{"name": key, "columns": width} for key, width in policy.features.layout],
            "updates": figures.pop("updates"),
            "figures": figures,
            "diverged": diverged,
            "tool": ToolRecord(name="placewise", version=version("placewise")),
            **fields,
        }
    )
    return header, arrays


def budget_record(budget: Budget) -> dict[str, Any]:
    """The limits of a budget, as a header has them."""
    return {"seconds": budget.seconds, "updates": budget.iterations, "evaluations": budget.evaluations}


def restore_trainer(before: Checkpoint, trainer: Trainer, name: str, reward: str) -> None:
    """Restore the state of a trainer from a checkpoint. Raises PlacerError naming the first mismatch."""
    header, problem = before.header, trainer.policy.view.problem
    with locate_errors(header_path(before.path)):
        require_policy(header, name)
        if header.corpus is not None:
            raise PlacerError("was trained on a corpus, not on this graph alone", remedy=_WEIGHTS)
        if header.reward != reward:
            raise PlacerError(f"was trained on the reward {header.reward!r}, not {reward!r}",
                              remedy=f"go on with --reward {header.reward}")  # fmt: skip
        if header.graph_hash != problem.graph.digest():
            raise PlacerError(f"was trained on another graph{_describe_source(header, problem)}", remedy=_WEIGHTS)
        require_fit(header, before.arrays, trainer.policy, devices=True)
        if header.problem_hash != problem_digest(problem):
            raise PlacerError(
                "was trained with other costs, another objective or other rules",
                remedy=f"give the model with the same options; {_WEIGHTS}",
            )
        curve = [[step.evaluations, step.seconds, step.value] for step in header.history]
        try:
            trainer.restore({**header.figures, "updates": header.updates, "curve": curve}, before.arrays)
        except (KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
            raise ModelFileError(f"lacks what training goes on from ({error})", remedy="train again") from None
        trainer.began = time.monotonic() - header.seconds


_WEIGHTS = "its weights alone are taken with --from PATH"


def _describe_source(header: PolicyFile, problem: Problem) -> str:
    """What the graph was read from; where that is the same file, what was said of it otherwise."""
    there, here = header.source, problem.graph.source
    if there is None:
        return ""
    if here is None or (here.sha256 or here.path) != (there.sha256 or there.path):
        return f" ({there.path})"
    changed = [f"{name} {value}" for name, value in there.options.items() if here.options.get(name) != value]
    return f" ({there.path}, with {', '.join(changed) or 'other options'})"

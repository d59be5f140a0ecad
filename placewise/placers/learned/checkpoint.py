"""Checkpoints of a training: continue it, or take its weights alone."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.errors import ModelFileError, PlacerError, locate_errors
from placewise.files.graph_file import source_record
from placewise.files.plan_file import ToolRecord
from placewise.files.policy_file import PolicyFile, header_path, load_policy
from placewise.model.columns import Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.base import Budget
from placewise.placers.learned.objectives import to_tensors
from placewise.placers.learned.options import LearningOptions, option_values
from placewise.placers.learned.policy import Policy
from placewise.placers.learned.trainer import Trainer
from placewise.placers.registry import rename_options, require_types

Arrays = Mapping[str, npt.NDArray[Any]]

OF_A_RUN = ("checkpoint", "updates", "patience")
"""Options of one run: how long to train, and from where. They may differ from those of a checkpoint."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A checkpoint as it was read."""

    path: str
    header: PolicyFile
    arrays: Arrays

    def merge_options(self, wanted: LearningOptions) -> LearningOptions:
        """Replace the options that have their defaults, or those of a preset, by the ones of the checkpoint.

        A preset that is not the checkpoint's counts as given, option by option.

        Raises PlacerError for an invalid value in the checkpoint.
        """
        same = wanted.preset == self.header.options["preset"]
        default = type(wanted)(preset=wanted.preset) if same else type(wanted)()
        known = {field.name for field in fields(wanted)} - set(OF_A_RUN)
        kept: dict[str, Any] = {
            name: value
            for name, value in self.header.options.items()
            if name in known and getattr(wanted, name) == getattr(default, name)
        }
        with locate_errors(header_path(self.path)):
            require_types(self.header.policy, type(wanted), kept)
            return replace(wanted, **kept)

    def load_weights(self, policy: Policy, name: str) -> None:
        """Load the weights into a policy. Raises PlacerError naming the first mismatch."""
        with locate_errors(header_path(self.path)):
            _require_policy(self.header, name)
            policy.load_state_dict(_require_fit(self.header, self.arrays, policy, devices=not policy.any_devices))

    def best(self, problem: Problem) -> Ints | None:
        """The best placement [n_ops] of the training; None if there is none, or if it is of another problem."""
        row, header = self.arrays.get("pricing/best"), self.header
        if row is None or header.devices != problem.cluster.names or header.problem_hash != problem_digest(problem):
            return None
        valid = row.shape == (problem.n_ops,) and bool(((row >= 0) & (row < problem.n_devices)).all())
        return row.astype(np.int32) if valid else None

    def resume(self, trainer: Trainer, name: str, reward: str) -> None:
        """Restore the state of a trainer. Raises PlacerError naming the first mismatch."""
        header, problem = self.header, trainer.policy.view.problem
        with locate_errors(header_path(self.path)):
            _require_policy(header, name)
            if header.corpus is not None:
                raise PlacerError("was trained on a corpus, not on this graph alone", remedy=_WEIGHTS)
            if header.reward != reward:
                raise PlacerError(f"was trained on the reward {header.reward!r}, not {reward!r}",
                                  remedy=f"go on with --reward {header.reward}")  # fmt: skip
            if header.graph_hash != problem.graph.digest():
                raise PlacerError(f"was trained on another graph{_made_from(header, problem)}", remedy=_WEIGHTS)
            _require_fit(header, self.arrays, trainer.policy, devices=True)
            if header.problem_hash != problem_digest(problem):
                raise PlacerError(
                    "was trained with other costs, another objective or other rules",
                    remedy=f"give the model with the same options; {_WEIGHTS}",
                )
            curve = [[step.evaluations, step.seconds, step.value] for step in header.history]
            try:
                trainer.restore({**header.figures, "updates": header.updates, "curve": curve}, self.arrays)
            except (KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
                raise ModelFileError(f"lacks what training goes on from ({error})", remedy="train again") from None
            trainer.began = time.monotonic() - header.seconds


_WEIGHTS = "its weights alone are taken with --from PATH"


def read_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Read a checkpoint. Raises ModelFileError, and MissingExtraError if safetensors is not installed."""
    header, arrays = load_policy(path)
    options = {"preset": "default", **rename_options(header.options, LearningOptions)}
    header = header.model_copy(update={"options": options})
    return Checkpoint(str(path), header, arrays)


def dump_checkpoint(
    trainer: Trainer, name: str, *, reward: str, budget: Budget, spent: float
) -> tuple[PolicyFile, dict[str, npt.NDArray[Any]]]:
    """The header and the tensors of a training; `spent` is its time so far, in seconds."""
    figures, arrays = trainer.state()
    problem, pricing = trainer.policy.view.problem, trainer.pricing
    if trainer.diverged:
        arrays = {key: array for key, array in arrays.items() if not key.startswith("adam/")}
    best = None if pricing.best is None else Placement(pricing.best)
    header = PolicyFile.model_validate(
        {
            "policy": name,
            "options": {key: value for key, value in option_values(trainer.options).items() if key != "checkpoint"},
            "network": trainer.policy.version,
            "features": [{"name": key, "columns": width} for key, width in trainer.policy.features.layout],
            "devices": problem.cluster.names,
            "reward": reward,
            "seed": trainer.seed,
            "budget": {
                "seconds": budget.seconds,
                "updates": budget.iterations,
                "evaluations": budget.evaluations,
            },
            "source": source_record(problem.graph.source),
            "graph_hash": problem.graph.digest(),
            "problem_hash": problem_digest(problem),
            "updates": figures.pop("updates"),
            "asked": pricing.asked,
            "evaluations": pricing.evaluations,
            "seconds": spent,
            "history": [
                {"evaluations": count, "seconds": seconds, "value": value}
                for count, seconds, value in figures.pop("curve")
            ],
            "figures": figures,
            "value": pricing.value,
            "assignment": {} if best is None else best.assignment(problem.graph, problem.cluster),
            "diverged": trainer.diverged,
            "tool": ToolRecord(name="placewise", version=version("placewise")),
        }
    )
    return header, arrays


def problem_digest(problem: Problem) -> str:
    """sha256 over everything that determines the price of a placement: graph, devices, costs, objective and rules."""
    state = hashlib.sha256(problem.graph.digest().encode())
    cluster, costs = problem.cluster, problem.costs
    queues = tuple((device.name, device.streams, device.call_overhead) for device in cluster)
    state.update(repr((queues, cluster.transfers, problem.objective, problem.constraints)).encode())
    columns = (
        costs.op_seconds, costs.transfer_seconds, problem.allowed, problem.capacity, problem.block,
        cluster.location, cluster.link_class, cluster.queue,
    )  # fmt: skip
    for column in columns:
        state.update(np.ascontiguousarray(column).tobytes())
    return state.hexdigest()


def _made_from(header: PolicyFile, problem: Problem) -> str:
    """What the graph was read from; where that is the same file, what was said of it otherwise."""
    there, here = header.source, problem.graph.source
    if there is None:
        return ""
    if here is None or (here.sha256 or here.path) != (there.sha256 or there.path):
        return f" ({there.path})"
    changed = [f"{name} {value}" for name, value in there.options.items() if here.options.get(name) != value]
    return f" ({there.path}, with {', '.join(changed) or 'other options'})"


def _require_policy(header: PolicyFile, name: str) -> None:
    if header.policy != name:
        raise PlacerError(f"is of the policy {header.policy!r}, not {name!r}", remedy="take the policy that it is of")


def _require_fit(header: PolicyFile, arrays: Arrays, policy: Policy, *, devices: bool) -> dict[str, Any]:
    """The weights of a checkpoint. Raises PlacerError naming what does not fit the policy: `devices` if they matter."""
    if header.network != policy.version:
        there = f"is of version {header.network} of the network of {header.policy!r}"
        raise PlacerError(f"{there}, and this is version {policy.version}",
                          remedy="train again, or take the Placewise that it was made with")  # fmt: skip
    here = policy.view.problem.cluster.names
    if devices and header.devices != here:
        raise PlacerError(f"was trained for the devices {', '.join(header.devices)}, not for {', '.join(here)}",
                          remedy="give the same devices, or train for these")  # fmt: skip
    mismatch = _compare_features({section.name: section.columns for section in header.features},
                                 dict(policy.features.layout))  # fmt: skip
    if mismatch:
        raise PlacerError(mismatch, remedy="it fits the graphs whose features are alike; train for this one")
    weights, wanted = to_tensors(arrays, "policy/"), policy.state_dict()
    mismatch = _compare_shapes({name: list(value.shape) for name, value in weights.items()},
                               {name: list(value.shape) for name, value in wanted.items()})  # fmt: skip
    if mismatch:
        raise PlacerError(mismatch, remedy="give the options that it was trained with")
    return weights


def _compare_features(there: dict[str, int], here: dict[str, int]) -> str:
    """The first difference between the sections of a checkpoint and those of the policy; empty if there is none."""
    for name, columns in there.items():
        if name not in here:
            return f"has the features {name!r}, which the policy does not read here"
        if columns != here[name]:
            return f"has {columns} columns of the features {name!r}, and this problem {here[name]}"
    missing = next((name for name in here if name not in there), None)
    if missing is not None:
        return f"has no features {missing!r}, which the policy reads here"
    return "" if tuple(there) == tuple(here) else f"has its features in another order: {', '.join(there)}"


def _compare_shapes(there: dict[str, list[int]], here: dict[str, list[int]]) -> str:
    """The first parameter that is missing or has another shape; empty if there is none."""
    for name in (*there, *here):
        if name not in there or name not in here:
            return f"is of another network: only {'the checkpoint' if name in there else 'the policy'} has {name!r}"
    wrong = next((name for name in here if here[name] != there[name]), None)
    return "" if wrong is None else f"has {wrong!r} of shape {there[wrong]}, and the network here {here[wrong]}"

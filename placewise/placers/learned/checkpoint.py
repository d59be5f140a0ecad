"""Checkpoints of trainings, whose weights a policy takes; `placewise.training.resume` writes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from placewise.errors import PlacerError, locate_errors
from placewise.files.policy_file import PolicyFile, header_path, load_policy
from placewise.model.columns import Ints
from placewise.model.problem import Problem
from placewise.placers.learned.objectives import to_tensors
from placewise.placers.learned.options import LearningOptions
from placewise.placers.learned.policy import Policy
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
            require_policy(self.header, name)
            policy.load_state_dict(require_fit(self.header, self.arrays, policy, devices=not policy.any_devices))

    def best(self, problem: Problem) -> Ints | None:
        """The best placement [n_ops] of the training; None if there is none, or if it is of another problem."""
        row, header = self.arrays.get("pricing/best"), self.header
        if row is None or header.devices != problem.cluster.names or header.problem_hash != problem_digest(problem):
            return None
        valid = row.shape == (problem.n_ops,) and bool(((row >= 0) & (row < problem.n_devices)).all())
        return row.astype(np.int32) if valid else None


def read_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Read a checkpoint. Raises ModelFileError, and MissingExtraError if safetensors is not installed."""
    header, arrays = load_policy(path)
    options = {"preset": "default", **rename_options(header.options, LearningOptions)}
    header = header.model_copy(update={"options": options})
    return Checkpoint(str(path), header, arrays)


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


def require_policy(header: PolicyFile, name: str) -> None:
    """Raise PlacerError unless a checkpoint is of this policy."""
    if header.policy != name:
        raise PlacerError(f"is of the policy {header.policy!r}, not {name!r}", remedy="take the policy that it is of")


def require_fit(header: PolicyFile, arrays: Arrays, policy: Policy, *, devices: bool) -> dict[str, Any]:
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

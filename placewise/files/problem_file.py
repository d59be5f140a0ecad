"""Problem files: graph, cluster, costs, objective, constraints and warnings in one columnar file."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field

from placewise.errors import locate_errors
from placewise.files.cluster_record import ClusterRecord, cluster_of, cluster_record
from placewise.files.columns import read_columns, write_columns
from placewise.files.costs_file import CostSources, cost_sources, decode_costs, encode_costs
from placewise.files.graph_file import GraphHeader, decode_graph, encode_graph
from placewise.files.records import Amount, Record, Whole
from placewise.files.ways_columns import WaysHeader, decode_ways, encode_ways
from placewise.model.problem import Constraints, Headroom, Objective, Problem, Rule


class ObjectiveRecord(Record):
    """What is minimized, in seconds."""

    kind: Literal["throughput", "latency", "step"]
    communication: Literal["blocking", "overlap", "duplex"] = Field("blocking", description="for throughput")
    execution: Literal["operator", "contention-free", "subgraph", "sequential"] = Field(
        "operator", description="for latency"
    )
    memory: Literal["live", "resident", "sum"] = Field("live", description="how memory is counted")
    schedule: Literal["1f1b", "gpipe", "auto", "interleaved", "zb-h1", "zb-v"] = Field(
        "1f1b", description="for throughput of training pipelines (1f1b, gpipe), and for step"
    )
    step_samples: Whole = Field(
        0, ge=0, description="samples per synchronization of replicated stages; 0: one per replica"
    )


class RuleRecord(Record):
    """Ops whose name or scope matches a regular expression, and a device."""

    pattern: str
    device: str


class HeadroomRecord(Record):
    """Memory of a device that stays free."""

    device: str = Field(description="device name; empty: every accelerator")
    share: float = Field(0.0, description="share of its memory, if no bytes are given")
    bytes: Amount = 0.0


class ConstraintsRecord(Record):
    """The constraints besides memory, support and colocation."""

    pins: tuple[RuleRecord, ...] = ()
    forbidden: tuple[RuleRecord, ...] = ()
    contiguous: bool = Field(False, description="stages form a chain of ideals")
    headroom: float = Field(0.0, description="share of every accelerator's memory that stays free")
    convex: bool = Field(False, description="no path of forward ops leaves a device and returns to it")
    replicas: Whole = Field(1, ge=0, description="maximum devices per stage; 0: any number")
    together: tuple[tuple[str, ...], ...] = Field((), description="sets of op names that share a device")
    spare: tuple[HeadroomRecord, ...] = Field((), description="free memory per device, instead of the headroom")
    ordered: bool = Field(False, description="stages follow the order of devices in the cluster")
    tensor_parallel: Whole = Field(1, ge=0, description="maximum devices over which an op is split; 0: any number")
    recompute: Literal["auto", "never", "always"] = Field("auto", description="of activations, where ops may be split")
    microbatches: Whole = Field(
        0, ge=0, description="per training step, for step or where ops may be split; 0: the default"
    )
    sequence_parallel: bool = Field(False, description="ops between split products are split by tokens")


class ProblemHeader(Record):
    """The header of a problem file. Arrays are named graph/…, costs/… and, where ops may be split, ways/…."""

    format: Literal["placewise-problem"] = "placewise-problem"
    version: Literal[1] = 1
    graph: GraphHeader
    cluster: ClusterRecord
    costs: CostSources
    objective: ObjectiveRecord
    constraints: ConstraintsRecord
    warnings: tuple[str, ...] = Field((), description="assumptions made when building the problem")
    ways: WaysHeader | None = Field(None, description="how ops may be split; null: they may not")


def save_problem(problem: Problem, path: str | os.PathLike[str]) -> None:
    """Write a problem file. Raises OutputError."""
    graph_header, graph_arrays = encode_graph(problem.graph)
    ways_header, ways_arrays = (None, {}) if problem.ways is None else encode_ways(problem.ways)
    header = ProblemHeader(
        graph=graph_header,
        cluster=cluster_record(problem.cluster),
        costs=cost_sources(problem.costs),
        objective=ObjectiveRecord.model_validate(problem.objective),
        constraints=ConstraintsRecord.model_validate(problem.constraints),
        warnings=problem.warnings,
        ways=ways_header,
    )
    arrays = {f"graph/{name}": array for name, array in graph_arrays.items()}
    arrays |= {f"costs/{name}": array for name, array in encode_costs(problem.costs).items()}
    arrays |= {f"ways/{name}": array for name, array in ways_arrays.items()}
    write_columns(path, header, arrays)


def load_problem(path: str | os.PathLike[str]) -> Problem:
    """The problem in a problem file.

    Raises ModelFileError, GraphError, ClusterError, CostError or InputError, naming the file.
    """
    header, arrays = read_columns(path, ProblemHeader)
    with locate_errors(path):
        graph, cluster = decode_graph(header.graph, arrays.under("graph/")), cluster_of(header.cluster)
        tensors = graph.n_tensors, len(cluster.class_bandwidth)
        ways = None
        if header.ways is not None:
            ways = decode_ways(header.ways, arrays.under("ways/"), graph.n_ops, len(cluster))
        return Problem(
            graph,
            cluster,
            decode_costs(header.costs, arrays.under("costs/"), (graph.n_ops, len(cluster)), tensors),
            Objective(**dict(header.objective)),
            constraints_of(header.constraints),
            header.warnings,
            ways,
        )


def constraints_of(record: ConstraintsRecord) -> Constraints:
    """The constraints of a record. Raises InputError."""
    pins, forbidden = (tuple(Rule(**dict(rule)) for rule in rules) for rules in (record.pins, record.forbidden))
    return Constraints(
        pins, forbidden, record.contiguous, record.headroom, record.convex, record.replicas, record.together,
        tuple(Headroom(**dict(spare)) for spare in record.spare), record.ordered, record.tensor_parallel,
        record.recompute, record.microbatches, record.sequence_parallel,
    )  # fmt: skip

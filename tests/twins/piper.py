"""Piper's problem in plain Python, straight from its definition: what a plan takes, and what it breaks.

Instances are documents as in the files, plans lists of stages as in plan files: `ops`, `data_parallel`,
`tensor_parallel` and `ways` (names of ways by op). All sums are over the document; nothing of Placewise is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

Instance = dict[str, Any]
Stage = dict[str, Any]


def value_of(instance: Instance, plan: Sequence[Stage]) -> float:
    """Seconds per micro-batch of the slowest stage."""
    return max(stage_seconds(instance, stage) for stage in plan)


def stage_seconds(instance: Instance, stage: Stage) -> float:
    """What crosses at both ends of the edges that the stage cuts, its gradients, and its computation."""
    d, bandwidth, microbatches = stage["data_parallel"], instance["bandwidth"], instance["mbsInBatch"]
    inside, crossing = set(stage["ops"]), 0.0
    for edge in instance["edges"]:
        tail, head = str(edge["sourceId"]), str(edge["destId"])
        if tail in inside and head not in inside:
            crossing += 2 * (edge["communicationCost"] + _way(instance, stage, tail)["syncTimeBw"][head])
        if head in inside and tail not in inside:
            crossing += 2 * (edge["communicationCost"] + _way(instance, stage, head)["syncTimeFw"][tail])
    weights = sum(_way(instance, stage, op)["parameterSize"] for op in stage["ops"])
    work = sum(_way(instance, stage, op)["timePerSample"] for op in stage["ops"])
    return crossing / (d * bandwidth) + 4 * (d - 1) / d * weights / microbatches / bandwidth + work / d


def stage_bytes(instance: Instance, plan: Sequence[Stage], number: int) -> float:
    """Bytes on each device of a stage, with as many micro-batches in flight as it has."""
    behind = sum(stage["data_parallel"] for stage in plan[number:])
    in_flight = math.ceil(behind / plan[number]["data_parallel"])
    ways = [_way(instance, plan[number], op) for op in plan[number]["ops"]]
    return sum(in_flight * way["memoryUsageA"] + way["memoryUsageB"] for way in ways)


def broken_rules(instance: Instance, plan: Sequence[Stage], slack: float = 1e-12) -> set[str]:
    """The rules that a plan breaks: order, devices, replicas, memory."""
    found = set()
    stage_of = {op: number for number, stage in enumerate(plan) for op in stage["ops"]}
    if any(stage_of[str(e["sourceId"])] > stage_of[str(e["destId"])] for e in instance["edges"]):
        found.add("order")
    if sum(stage["data_parallel"] * stage["tensor_parallel"] for stage in plan) > instance["maxDevices"]:
        found.add("devices")
    replicas = [stage["data_parallel"] for stage in plan]
    if sum(replicas) > instance["mbsInBatch"] or any(instance["mbsInBatch"] % d for d in replicas):
        found.add("replicas")
    room = instance["maxMemoryPerDevice"] * (1 + slack)
    if any(stage_bytes(instance, plan, number) > room for number in range(len(plan))):
        found.add("memory")
    return found


def _way(instance: Instance, stage: Stage, op: str) -> dict[str, Any]:
    (node,) = (node for node in instance["nodes"] if str(node["id"]) == op)
    listed = node["TMPCs"][str(stage["tensor_parallel"])]
    (way,) = (way for way in listed if way["id"] == stage["ways"][op])
    return dict(way)


def best_value(instance: Instance) -> float:
    """The least value of all plans that keep the rules, one after the other; inf if there is none."""
    names = [str(node["id"]) for node in instance["nodes"]]
    best = math.inf
    for stages in _stage_lists(instance, frozenset(names)):
        listed = [[(op, way["id"]) for way in _ways_of(instance, op, s["tensor_parallel"])]
                  for s in stages for op in s["ops"]]  # fmt: skip
        for chosen in product(*listed):
            plan = [{**s, "ways": {op: way for op, way in chosen if op in s["ops"]}} for s in stages]
            if not broken_rules(instance, plan):
                best = min(best, value_of(instance, plan))
    return best


def _stage_lists(instance: Instance, left: frozenset[str], devices: int = 0) -> Iterator[list[Stage]]:
    """Every list of stages for the ops that are left, with degrees and replicas."""
    if not left:
        yield []
        return
    for size in range(1, len(left) + 1):
        for ops in combinations(sorted(left), size):
            for t in (1, 2, 4):
                if not all(_ways_of(instance, op, t) for op in ops):
                    continue
                for d in range(1, (instance["maxDevices"] - devices) // t + 1):
                    stage = {"ops": list(ops), "tensor_parallel": t, "data_parallel": d}
                    for rest in _stage_lists(instance, left - set(ops), devices + d * t):
                        yield [stage, *rest]


def _ways_of(instance: Instance, op: str, t: int) -> list[dict[str, Any]]:
    (node,) = (node for node in instance["nodes"] if str(node["id"]) == op)
    return list(node["TMPCs"].get(str(t), []))

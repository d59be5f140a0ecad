"""Random instances of Piper, and random plans for them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tiny_problems import Draw

from placewise.model.problem import Problem
from placewise.readers.piper import read_piper

BANDWIDTH = 64.0
WAYS = ("vanilla", "activation recomp")


def random_instance(draw: Draw, *, units: int = 0, devices: int = 0, exact: bool = False) -> dict[str, Any]:
    """An instance of 1 to 6 layers with up to two ways for some degrees; `exact`: of small whole numbers, with ties."""
    n = units or draw.whole(1, 6)
    order = list(range(n))
    names = [str(10 * number + draw.whole(0, 9)) for number in order]
    pairs = [(a, b) for a in order for b in order[a + 1 :] if (b == a + 1 and draw.chance(0.7)) or draw.chance(0.25)]
    edges = [
        {"sourceId": int(names[a]), "destId": int(names[b]), "communicationCost": amount(draw, 16, exact)}
        for a, b in pairs
    ]
    common = [t for t in (1, 2, 4) if draw.chance(0.8)] or [1]
    nodes = []
    for number in order:
        degrees = [t for t in common if draw.chance(0.9)] or common[:1]
        into = [names[a] for a, b in pairs if b == number]
        out = [names[b] for a, b in pairs if a == number]
        nodes.append(
            {
                "id": int(names[number]),
                "name": f"layer {number}",
                "TMPCs": {str(t): _ways(draw, t, into, out, exact) for t in degrees},
            }
        )
    most = sum(max(way["memoryUsageA"] * 2 + way["memoryUsageB"] for t in node["TMPCs"].values() for way in t)
               for node in nodes)  # fmt: skip
    return {
        "maxMemoryPerDevice": float(math.ceil(draw.one((most, most, most, most / 2, most / 3, most / 5)))),
        "maxDevices": devices or draw.one((1, 2, 3, 4, 6, 8, 8, 8)),
        "bandwidth": BANDWIDTH,
        "mbsInBatch": draw.one((1, 4, 6, 8, 12)),
        "nodes": nodes if draw.chance(0.5) else nodes[::-1],
        "edges": edges,
    }


def amount(draw: Draw, most: int, exact: bool) -> float:
    """A number from 0 to `most`: whole where exact ties are wished for, else some tenths or anything."""
    steps = 1 if exact else draw.one((10, 10**6))
    return draw.whole(0, most * steps) / steps


def _ways(draw: Draw, t: int, into: list[str], out: list[str], exact: bool) -> list[dict[str, Any]]:
    fast, weights = amount(draw, 8, exact) / t, amount(draw, 32, exact) / t
    alike = draw.chance(0.7)
    return [
        {
            "id": name,
            "timePerSample": fast * (1.5 if late else 1.0) if draw.chance(0.8) else amount(draw, 8, exact),
            "parameterSize": weights if alike else amount(draw, 32, exact),
            "memoryUsageA": amount(draw, 2 if late else 8, exact),
            "memoryUsageB": amount(draw, 8, exact),
            "syncTimeFw": {name: amount(draw, 8, exact) if t > 1 else 0.0 for name in into},
            "syncTimeBw": {name: amount(draw, 8, exact) if t > 1 else 0.0 for name in out},
        }
        for late, name in enumerate(WAYS[: draw.one((1, 2, 2))])
    ]


def random_plan(draw: Draw, instance: dict[str, Any]) -> list[dict[str, Any]]:
    """Stages with random cuts, degrees, replicas and ways; most break a rule."""
    by_name = {str(node["id"]): node for node in instance["nodes"]}
    left = sorted(by_name, key=int)  # ids ascend along edges
    if draw.chance(0.1):
        left = left[::-1]
    stages, device = [], 0
    while left:
        size = draw.whole(1, len(left))
        ops, left = left[:size], left[size:]
        degrees = [t for t in ("1", "2", "4") if all(t in by_name[op]["TMPCs"] for op in ops)]
        if not degrees:
            left, ops = [*ops[1:], *left], ops[:1]
            degrees = list(by_name[ops[0]]["TMPCs"])
        t = draw.one(degrees)
        d = draw.one((1, 1, 1, 1, 2, 2, 3))
        ways = {op: draw.one(by_name[op]["TMPCs"][t])["id"] for op in ops}
        devices = [f"acc{(device + k) % instance['maxDevices']}" for k in range(d * int(t))]
        device += d * int(t)
        stages.append(
            {"ops": ops, "data_parallel": d, "tensor_parallel": int(t), "ways": ways, "devices": devices}
        )  # fmt: skip
    return stages


def problem_of(instance: dict[str, Any], folder: Path) -> Problem:
    """The instance as it is read from a file."""
    path = folder / "piper.json"
    path.write_text(json.dumps(instance))
    problem = read_piper(path).problem
    assert problem is not None
    return problem


def layers(count: int, devices: int, **top: float) -> dict[str, object]:
    """Layers in a row of 2 s, on two devices 1.25 s, each of 3 bytes per micro-batch and 4 B besides."""
    names = [str(number) for number in range(count)]
    nodes = []
    for number, name in enumerate(names):
        into, out = names[max(number - 1, 0) : number], names[number + 1 : number + 2]
        sync = {"syncTimeFw": dict.fromkeys(into, 0.0), "syncTimeBw": dict.fromkeys(out, 0.0)}
        way = {"id": "vanilla", "parameterSize": 8.0, "memoryUsageA": 3.0, "memoryUsageB": 4.0, **sync}
        ways = {"1": [{**way, "timePerSample": 2.0}], "2": [{**way, "timePerSample": 1.25}]}
        nodes.append({"id": number, "name": f"layer {name}", "TMPCs": ways})
    edges = [{"sourceId": a, "destId": a + 1, "communicationCost": 16.0} for a in range(count - 1)]
    known = {"maxMemoryPerDevice": 1000.0, "maxDevices": devices, "bandwidth": 64.0, "mbsInBatch": 8}
    return {**known, **top, "nodes": nodes, "edges": edges}

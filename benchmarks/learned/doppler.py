"""Doppler on graphs like those of its paper: `python benchmarks/learned/doppler.py` (options: rows.py).

The graphs are ours, built from the description in Yao et al. (ICLR 2026): products of matrices in 2 × 2 tiles, as a
chain, in a feed-forward network, and in the attention block and the layer of a Llama. Leaves are where they are needed.
Devices are P100s or V100s at 80 % of float32's peak and of the memory's bandwidth, with links of their own between
every two, at 80 % of one NVLink. Transfers never queue (`--execution contention-free`), as in the paper's simulator.

*critical path* is the paper's heuristic, doppler's teacher: the median of 25 schedules whose ties are drawn. Policies
and `temper` may price as many distinct placements, `auto` has 10 seconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from methods import Method, judged
from rows import SEEDS, Row, Table, arguments, main_of
from tables import Found, milliseconds, rows_of, values

from placewise.model.builder import GraphBuilder
from placewise.model.cluster import Cluster, Device, Link
from placewise.model.costs import CostTable
from placewise.model.placement import Placement
from placewise.model.problem import Objective, Problem
from placewise.placers.registry import create

Tile = int | None
Tiles = list[list[Tile]]
"""The tensors of a matrix in tiles; None for what lies on every device."""
MACHINES = {"4xP100": (4, 9.5e12, 732e9, 20e9), "8xV100": (8, 15.7e12, 900e9, 25e9)}
"""Devices, FLOP/s, bytes/s of memory, bytes/s of one NVLink."""
REACHED, GRID = 0.8, 2


class Tiled:
    """Builds a graph of tiles, and what its ops and tensors take on one machine."""

    def __init__(self, machine: str) -> None:
        self.count, *speeds = MACHINES[machine]
        self.peak, self.memory, self.link = (REACHED * speed for speed in speeds)
        self.builder, self.seconds, self.bytes = GraphBuilder(), list[float](), list[float]()

    def op(self, kind: str, inputs: list[Tile], rows: int, columns: int, flops: float = 0.0) -> int:
        """An op that reads `inputs` and makes a tile; without `flops`, it is as quick as memory."""
        op = self.builder.add_op(f"{kind.lower()}{len(self.seconds)}", kind)
        for tensor in {tensor for tensor in inputs if tensor is not None}:
            self.builder.add_edge(tensor, op)
        size = 4.0 * rows * columns
        self.seconds.append(max(flops / self.peak, (len(inputs) + 1) * size / self.memory))
        self.bytes.append(size)
        return self.builder.add_tensor(op, shape=(rows, columns), dtype="float32")

    def multiply(self, a: Tiles, b: Tiles, shape: tuple[int, int, int]) -> Tiles:
        """A × B, of m × k and k × n: products of tiles, then their sums."""
        m, k, n = (size // GRID for size in shape)
        made: Tiles = []
        for i in range(GRID):
            made.append([])
            for j in range(GRID):
                parts = [self.op("MatMul", [a[i][p], b[p][j]], m, n, 2.0 * m * k * n) for p in range(GRID)]
                made[-1].append(self.op("Add", list(parts), m, n))
        return made

    def each(self, kind: str, shape: tuple[int, int], *operands: Tiles) -> Tiles:
        """Tile by tile."""
        m, n = (size // GRID for size in shape)
        return [[self.op(kind, [one[i][j] for one in operands], m, n) for j in range(GRID)] for i in range(GRID)]

    def by_rows(self, kind: str, a: Tiles, shape: tuple[int, int]) -> Tiles:
        """A number per row (a maximum, a norm), from partial ones of each tile, then applied to every tile."""
        m, n = shape[0] // GRID, shape[1] // GRID
        found: Tiles = []
        for row in a:
            parts = [self.op(f"{kind}Part", [tile], m, 1) for tile in row]
            whole = self.op(kind, list(parts), m, 1)
            found.append([self.op(f"{kind}Apply", [tile, whole], m, n) for tile in row])
        return found

    def problem(self) -> Problem:
        """The problem, with transfers that never queue."""
        graph = self.builder.build()
        devices = tuple(Device(f"gpu{d}") for d in range(self.count))
        ends = [*(device.name for device in devices), "host"]
        links = tuple(Link(a, b, self.link) for a, b in product(ends, ends) if a != b)
        cluster = Cluster(devices, links, "direct")
        order = [int(name.lstrip("abcdefghijklmnopqrstuvwxyz")) for name in graph.ops.name]
        seconds = np.repeat(np.array(self.seconds)[order][:, None], self.count, axis=1)
        size = np.array(self.bytes)[order][graph.tensors.producer]
        transfer = np.stack((np.zeros(len(size)), size / self.link), axis=1)
        objective = Objective("latency", execution="contention-free", memory="sum")
        return Problem(graph, cluster, CostTable.given(seconds, transfer), objective)


LEAF: Tiles = [[None] * GRID for _ in range(GRID)]


def chain(tiled: Tiled, size: int = 10_000) -> None:
    """A B + C (D E), of square matrices."""
    cube, square = (size,) * 3, (size,) * 2
    left, right = tiled.multiply(LEAF, LEAF, cube), tiled.multiply(LEAF, LEAF, cube)
    tiled.each("Add", square, left, tiled.multiply(LEAF, right, cube))


def feed_forward(tiled: Tiled, batch: int = 1 << 15, width: int = 1 << 11, inner: int = 1 << 13) -> None:
    """Softmax(W₃ ReLU(W₂ ReLU(W₁ x)))."""
    x = LEAF
    for wide in (inner, inner):
        x = tiled.each("Relu", (batch, wide), tiled.multiply(x, LEAF, (batch, width if x is LEAF else inner, wide)))
    tiled.by_rows("Softmax", tiled.multiply(x, LEAF, (batch, inner, width)), (batch, width))


def attention(tiled: Tiled, tokens: int = 4096, width: int = 4096) -> Tiles:
    """Norm, queries, keys and values, softmax of their products, projection, and the sum with the input."""
    square, cube = (tokens, width), (tokens, width, width)
    x = tiled.by_rows("Norm", tiled.each("Input", square, LEAF), square)
    query, key, value = (tiled.each("Rope", square, tiled.multiply(x, LEAF, cube)) for _ in range(3))
    turned = [[key[j][i] for j in range(GRID)] for i in range(GRID)]
    scores = tiled.by_rows("Softmax", tiled.multiply(query, turned, (tokens, width, tokens)), (tokens, tokens))
    seen = tiled.multiply(scores, value, (tokens, tokens, width))
    return tiled.each("Add", square, tiled.multiply(seen, LEAF, cube), x)


def layer(tiled: Tiled, tokens: int = 4096, width: int = 4096, inner: int = 11_008) -> None:
    """The attention block, then Llama's gated feed-forward network."""
    x = attention(tiled, tokens, width)
    normal = tiled.by_rows("Norm", x, (tokens, width))
    gate, up = (tiled.multiply(normal, LEAF, (tokens, width, inner)) for _ in range(2))
    gated = tiled.each("Mul", (tokens, inner), tiled.each("Silu", (tokens, inner), gate), up)
    tiled.each("Add", (tokens, width), tiled.multiply(gated, LEAF, (tokens, inner, width)), x)


GRAPHS: Mapping[str, Callable[[Tiled], object]] = {
    "chain of products": chain, "feed-forward": feed_forward, "Llama block": attention, "Llama layer": layer,
}  # fmt: skip
WORKLOADS = tuple(f"{graph}, {machine}" for machine in MACHINES for graph in GRAPHS)


def problem(workload: str) -> Problem:
    """The problem of a name like ``Llama layer, 4xP100``."""
    graph, _, machine = workload.partition(", ")
    tiled = Tiled(machine)
    GRAPHS[graph](tiled)
    return tiled.problem()


CRITICAL, DEFAULT, ZERO, PAPER = "critical path", "doppler", "doppler, rate 0", "doppler, paper"
PRESETS: Mapping[str, Mapping[str, Any]] = {DEFAULT: {}, ZERO: {"rate": 0.0}, PAPER: {"preset": "paper"}}
PUBLISHED = {"chain of products": 0.53, "feed-forward": 0.23, "Llama block": 0.83, "Llama layer": 0.57}
"""Yao et al., table 2: times of Doppler trained in simulation over those of the critical path, on four real P100s."""
DRAWN, EVALUATIONS, UPDATES, AUTO_SECONDS, PAPER_SECONDS = 25, 600, 600, 10.0, 3600.0
METHODS = (CRITICAL, "heft", "temper", "gdp", "auto", DEFAULT, ZERO, PAPER)


@dataclass(frozen=True)
class Heuristic(Method):
    """The teacher of doppler: the median schedule of those whose ties are drawn, and the best."""

    def run(self, problem: Problem, seed: int) -> dict[str, Any]:
        placer: Any = create("doppler", {"imitation": 1, "samples": DRAWN})
        policy = placer.policy(problem, 0)
        lesson = next(policy.lessons(torch.Generator().manual_seed(seed)))
        device = lesson["device"].gather(1, lesson["order"].argsort(dim=1)).numpy()
        every = sorted(judged(problem, Placement(row)) or np.inf for row in policy.view.placements(device))
        return {"value": statistics.median(every), "best": every[0], "seconds": 0.0, "status": f"median of {DRAWN}"}


def table(options: argparse.Namespace) -> Table:
    """Baselines of all graphs, then the policies seed by seed; the paper's preset last: it is the slowest."""
    count = options.evaluations
    once = (
        Heuristic(CRITICAL, "alone"), Method("heft", "placer", "heft"),
        Method("auto", "placer", "auto", seconds=AUTO_SECONDS),
    )  # fmt: skip
    seeded = (
        Method("temper", "search", "temper", evaluations=count),
        *(Method(name, "policy", "doppler", options=PRESETS[name], evaluations=count) for name in (DEFAULT, ZERO)),
    )
    gdp = Method("gdp", "policy", "gdp", options={"updates": 60}, evaluations=count)
    slow = {**PRESETS[PAPER], "updates": UPDATES}
    paper = Method(PAPER, "policy", "doppler", options=slow, evaluations=count, seconds=PAPER_SECONDS)
    rows = [Row("doppler", name, method) for name in WORKLOADS for method in once]
    for seed in range(SEEDS):
        rows += [Row("doppler", name, method, seed) for name in WORKLOADS for method in seeded]
        rows += [Row("doppler", name, gdp, seed) for name in WORKLOADS]
    rows += [Row("doppler", name, paper) for name in WORKLOADS if "P100" in name]
    return Table("doppler", "Doppler on graphs like those of its paper", tuple(rows), text)


def text(found: Found, command: str) -> str:
    """Milliseconds, then doppler relative to the critical path, beside what the paper reached and what any can."""
    lines = [
        "# Doppler on graphs like those of its paper", "",
        f"`{command}`; milliseconds in execution `contention-free`, medians over seeds (smallest–largest). Policies "
        f"and `temper` price as many distinct placements, `auto` has {AUTO_SECONDS:g} s. *critical path*: the median "
        f"of {DRAWN} schedules whose ties are drawn. *rate 0*: the default, where neither imitation nor rewards change "
        f"the weights. *paper*: one seed, {UPDATES} updates after 2,000 steps of imitation.", "",
        f"| graph | {' | '.join(METHODS)} |", "|---|" + "--:|" * len(METHODS),
    ]  # fmt: skip
    for name in WORKLOADS:
        lines.append(f"| {name} | {' | '.join(milliseconds(found, name, method, 2) for method in METHODS)} |")
    lines += [
        "", "Relative to the critical path. *any*: `auto`'s lower bound, which no placement can beat. *published*: "
        "Doppler trained in simulation, on real P100s (Yao et al., table 2).", "",
        "| graph | doppler | rate 0 | paper | temper | auto | any | published |", "|---|" + "--:|" * 7,
    ]  # fmt: skip
    for name in WORKLOADS:
        base = values(found, name, CRITICAL)
        if base:
            cells = [
                _share(values(found, name, method), base[0]) for method in (DEFAULT, ZERO, PAPER, "temper", "auto")
            ]
            least = [row["bound"] for row in rows_of(found, name, "auto")]
            graph, _, machine = name.partition(", ")
            known = f"{PUBLISHED[graph]:.2f}" if "P100" in machine else ""
            lines.append(f"| {name} | {' | '.join(cells)} | {_share(least, base[0])} | {known} |")
    return "\n".join(lines)


def _share(found: list[float], base: float) -> str:
    return f"{statistics.median(found) / base:.2f}" if found else ""


if __name__ == "__main__":
    sys.exit(main_of(table, arguments(__doc__ or "", evaluations=EVALUATIONS)))

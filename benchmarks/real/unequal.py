"""Pipelines on emulated unequal clusters with real kernels: the plan of `auto` against the even split.

    python benchmarks/real/unequal.py [--only encoder] [--rounds 7] [--seconds 5] [--limit 3600]

Devices are processes of PyTorch on two cores, as slow as a quota of processor time makes them (cgroups), in network
namespaces whose links `tc tbf` shapes: `--bind 'core:0=cores:0;quota=0.6;bandwidth=50MB/s'`; run as root. In each cell
the model is profiled under these limits (`placewise profile --runtime pipelining`), placed for throughput, and streams
of 16 samples run over gloo: the plan, the even split (the best pipeline if all devices were alike and links free), the
best single device, and what people do without a placer, in turns. Predictions are of whole streams, with the fill.
No cell is begun after `--limit` seconds. Writes results/real_unequal.json and .md, and exits with 1 where a plan is
slower than the even split by more than 3 %, or a cell was left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import command, lines_of, protocol_record, ratio, report
from torch import Tensor, nn

import placewise as pw
from placewise._util.cores import pinnable_cores
from placewise.analysis.measure_placements import PLAIN, PLAN, SINGLE, Setting, measure_placements
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.runtimes.measure import Protocol
from placewise.targets.place_for import place_for

EVEN, SLOWER = "even split", 0.97
CLUSTERS = {"two devices": ((0.75, 0.2), "100MB/s"), "four devices": ((0.45, 0.35, 0.6, 0.15), "50MB/s")}
"""Shares of a core, in turns of the first and the second one, and what may leave a device."""
CORE_OF = {"two devices": (0, 1), "four devices": (0, 0, 1, 1)}


class Residual(nn.Module):
    """Blocks of convolutions with residuals, the image halved twice."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 32, 32, 64, 64, 64, 128, 128, 128)
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.down = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2 if b > a else 1, padding=1)
            for a, b in zip((32, *widths[:-1]), widths, strict=True)
        )
        self.same = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for width in widths)

    def forward(self, image: Tensor) -> Tensor:
        x = self.first(image)
        for down, same in zip(self.down, self.same, strict=True):
            x = torch.relu(down(x))
            x = x + torch.relu(same(x))
        return x.mean((2, 3))


def encoder() -> nn.Module:
    """Six layers of an encoder."""
    layers = (nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True) for _ in range(6))
    return nn.Sequential(*layers)


def perceptron() -> nn.Module:
    """Twelve layers."""
    return nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(1024, 1024), nn.ReLU())])


def tapering() -> nn.Module:
    """Layers that become narrower: most work is at the beginning."""
    widths = (2048, 2048, 1536, 1536, 1024, 1024, 768, 768, 512, 512, 256)
    pairs = pairwise(widths)
    return nn.Sequential(*[layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())])


MODELS = {
    "perceptron": (perceptron, (128, 1024)),
    "tapering": (tapering, (128, 2048)),
    "encoder": (encoder, (2, 96, 256)),
    "residual": (Residual, (1, 3, 96, 96)),
}


def even_split(problem: Problem, seconds: float) -> Placement:
    """The best pipeline if all devices were like the first one and links were free."""
    costs = problem.costs
    equal = np.repeat(costs.op_seconds[:, :1], problem.n_devices, axis=1)
    twin = replace(costs, op_seconds=equal, transfer_seconds=np.zeros_like(costs.transfer_seconds))
    found = place_for(problem.with_(costs=twin), "pipelining", "auto", pw.Budget(seconds)).placement
    assert found is not None
    return found


def row(name: str, where: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One model on one cluster."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    path, file = folder / f"{name}.pt2", folder / f"{name}-{where}.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(make().eval(), (torch.randn(shape),)), path)
    (shares, bandwidth), cores = CLUSTERS[where], pinnable_cores()
    binding = {
        f"core:{row}": f"cores:{cores[core]};quota={share};bandwidth={bandwidth}"
        for row, (share, core) in enumerate(zip(shares, CORE_OF[where], strict=True))
    }
    devices = f"{len(shares)}xcore"
    load = os.getloadavg()[0]
    pw.profile(path, devices, file, runtime="pipelining", bind=binding, cache=False)
    problem = pw.build(path, devices, pw.ProblemOptions(objective="throughput", costs=(str(file),)))
    found = place_for(problem, "pipelining", "auto", pw.Budget(options.seconds))
    assert found.placement is not None
    placements = {PLAN: found.placement, EVEN: even_split(problem, options.seconds)}
    protocol = Protocol(rounds=options.rounds, samples=16, in_flight=8, warm_up=16)
    lines = lines_of(measure_placements(problem, placements, Setting("pipelining", binding, protocol=protocol)))
    by = {line["name"]: line for line in lines}
    plain = [line["name"] for line in lines if line["name"] in PLAIN and not line["failure"]]
    best = min(plain, key=lambda other: by[other]["measured"])
    return {
        "model": name,
        "cluster": where,
        "shares": shares,
        "bandwidth": bandwidth,
        "load": [load, os.getloadavg()[0]],
        "protocol": protocol_record(protocol),
        "devices": [sorted(set(placements[which].device.tolist())) for which in (PLAN, EVEN)],
        "over_even": ratio(lines, EVEN, PLAN),
        "over_single": ratio(lines, SINGLE, PLAN),
        "best": best,
        "over_best": ratio(lines, best, PLAN),
        "off": {which: by[which]["predicted"] / by[which]["measured"] - 1 for which in (SINGLE, PLAN, EVEN)},
        "lines": lines,
    }


def text(rows: list[dict[str, Any]], rounds: int) -> str:
    """The table."""
    loads = [load for one in rows for load in one["load"]]
    lines = [
        "# Unequal devices, real kernels",
        "",
        f"`{command()}`; milliseconds per sample of streams of 16 samples, medians of {rounds} rounds in turns (in "
        "brackets the distance of the quartiles as a share). Devices are processes of PyTorch with quotas of a core: "
        + "; ".join(f"{name} {', '.join(f'{s:.0%}' for s in shares)}, links {band}" for name, (shares, band)
                    in CLUSTERS.items())
        + f", on {os.cpu_count()} cores. The load of the machine was {min(loads):.1f} to {max(loads):.1f}, with this; "
        "a device with a quota stands still while another program has its core. Off: predicted by costs of "
        "`placewise profile`, over measured.",
        "",
        "| model | cluster | best device | even split | plan | devices | over even | over best without a placer "
        "| off: device | even | plan |",
        "|---|---|--:|--:|--:|--:|--:|---|--:|--:|--:|",
    ]  # fmt: skip
    for one in rows:
        by = {line["name"]: line for line in one["lines"]}
        times = [f"{by[name]['measured'] * 1e3:.1f} ({by[name]['spread']:.0%})" for name in (SINGLE, EVEN, PLAN)]
        off = [f"{one['off'][name]:+.0%}" for name in (SINGLE, EVEN, PLAN)]
        cells = [one["model"], one["cluster"], *times, str(len(one["devices"][0])), f"**{one['over_even']:.2f}×**"]
        cells += [f"{one['over_best']:.2f}× ({one['best']})", *off]
        lines.append(f"| {' | '.join(cells)} |")
    mean = statistics.geometric_mean(one["over_even"] for one in rows)
    errors = sorted(abs(one["off"][PLAN]) for one in rows)
    lines += ["", f"Geometric mean over the even split: {mean:.2f}×. Errors of the plan's prediction: median "
              f"{statistics.median(errors):.0%}, worst {errors[-1]:.0%}."]  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    """Every model on every cluster; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each search")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which no cell is begun")
    options = parser.parse_args()
    cells, rows = [(name, where) for name in MODELS if options.only in name for where in CLUSTERS], []
    until = time.monotonic() + options.limit
    with tempfile.TemporaryDirectory() as folder:
        for name, where in cells:
            if time.monotonic() < until:
                rows.append(row(name, where, Path(folder), options))
                print({key: rows[-1][key] for key in ("model", "cluster", "over_even", "off")}, flush=True)
    wrong = [
        f"{one['model']}, {one['cluster']}: {one['over_even']:.2f}× the even split"
        for one in rows
        if one["over_even"] < SLOWER
    ]
    if len(rows) < len(cells):
        wrong.append("there was no time for " + "; ".join(map(", ".join, cells[len(rows) :])))
    return report("unequal", rows, wrong, text(rows, options.rounds), ("torch", "placewise"))


if __name__ == "__main__":
    sys.exit(main())

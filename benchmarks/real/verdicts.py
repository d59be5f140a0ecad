"""Verdicts and predictions for latency on two cores, ONNX Runtime: small models, profiled, placed and run.

    python benchmarks/real/verdicts.py [--only fork] [--seconds 2] [--rounds 25] [--limit 1500]

Every model is profiled with its pilots (`placewise profile`), placed by what was measured, and run beside one core and
beside ONNX Runtime with its own two threads, in turns. Two verdicts are recorded: of the plan, before it runs, and of
the run. Predicted against measured: in seconds, and as a ratio to one core in the same rounds, which a machine that is
busy in another way than during the profile changes less. Also what the costs alone say, without what chosen plans took
longer. Rounds in which workers waited for a processor for more than 5 % of a time are repeated. No model is begun after
`--limit` seconds. Writes results/real_verdicts.json and .md. Exits with 1 if a plan is called worth it while ONNX
Runtime with all cores is faster, if the errors of the ratio are above 5 % (median) or 12 % (worst), or if a model was
left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from common import command, lines_of, protocol_record, ratio, report
from onnx import TensorProto, helper, numpy_helper

from placewise.analysis.measure_placements import PLAN, SINGLE, Setting, measure_placements, measured_verdict
from placewise.core.apply_profile import apply_to_problem
from placewise.core.build import build
from placewise.core.place import place
from placewise.model.verdict import OWN_THREADS, Decision
from placewise.placers.base import Budget
from placewise.profiling import pilots
from placewise.profiling.profile import Profiling, profile
from placewise.runtimes.measure import Protocol

DEVICES, WORTH = "2xcore", "The split is worth it"
MEDIAN, WORST, WAIT = 0.05, 0.12, 0.05


class Net:
    """A model under construction: every method adds a node and returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node of any kind with one output."""
        name = f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """Normal numbers, scaled to keep the size of what they multiply."""
        name = f"w{len(self.weights)}"
        fan = max(int(np.prod(shape[1:])) if len(shape) == 4 else shape[0], 1)
        values = (self._rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def conv(self, x: str, into: int, out: int, size: int = 3, group: int = 1) -> str:
        """A convolution that keeps the image's size, and Relu."""
        pads = [size // 2] * 4
        made = self.node("Conv", x, self.weight(out, into // group, size, size), pads=pads, group=group)
        return self.node("Relu", made)

    def dense(self, x: str, into: int, out: int) -> str:
        """A matrix product and Relu."""
        return self.node("Relu", self.node("MatMul", x, self.weight(into, out)))

    def save(self, path: Path, shape: list[int], end: str) -> str:
        """Write the model with the input x of this shape."""
        ends = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info(end, TensorProto.FLOAT, None),
        ]
        graph = helper.make_graph(self.nodes, path.stem, ends[:1], ends[1:], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        return str(path)


def towers(net: Net, width: int, depth: int, count: int) -> str:
    """Towers of matrix products that share nothing until they are added up."""
    ends = []
    for _ in range(count):
        x = "x"
        for _ in range(depth):
            x = net.dense(x, width, width)
        ends.append(x)
    end = ends[0]
    for other in ends[1:]:
        end = net.node("Add", end, other)
    return end


def conv_chain(net: Net, channels: int, depth: int) -> str:
    """Convolutions one after another."""
    x = "x"
    for _ in range(depth):
        x = net.conv(x, channels, channels)
    return x


def image_towers(net: Net, channels: int, depth: int, count: int) -> str:
    """Towers of convolutions that share nothing until they are added up."""
    ends = [conv_chain(net, channels, depth) for _ in range(count)]
    end = ends[0]
    for other in ends[1:]:
        end = net.node("Add", end, other)
    return end


def inception(net: Net, channels: int, blocks: int) -> str:
    """Blocks of four branches of convolutions, concatenated."""
    x, quarter = "x", channels // 4
    for _ in range(blocks):
        one = net.conv(x, channels, quarter, 1)
        three = net.conv(net.conv(x, channels, quarter, 1), quarter, quarter)
        five = net.conv(net.conv(x, channels, quarter, 1), quarter, quarter, 5)
        pooled = net.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
        x = net.node("Concat", one, three, five, net.conv(pooled, channels, quarter, 1), axis=1)
    return x


def residual(net: Net, channels: int, blocks: int) -> str:
    """Residual blocks of two convolutions."""
    x = "x"
    for _ in range(blocks):
        x = net.node("Add", x, net.conv(net.conv(x, channels, channels), channels, channels))
    return x


def separable(net: Net, channels: int, blocks: int) -> str:
    """Depthwise and pointwise convolutions, as in MobileNet."""
    x = "x"
    for _ in range(blocks):
        x = net.conv(net.conv(x, channels, channels, 3, channels), channels, channels, 1)
    return x


def attention(net: Net, width: int, layers: int) -> str:
    """Attention of one head and a feed-forward part, with residuals."""
    x = "x"
    for _ in range(layers):
        query, key, value = (net.node("MatMul", x, net.weight(width, width)) for _ in range(3))
        scores = net.node("Softmax", net.node("MatMul", query, net.node("Transpose", key, perm=[1, 0])), axis=-1)
        x = net.node("Add", x, net.node("MatMul", scores, value))
        x = net.node("Add", x, net.node("MatMul", net.dense(x, width, 4 * width), net.weight(4 * width, width)))
    return x


IMAGE, ROWS = [1, 64, 48, 48], [128, 512]
MODELS: dict[str, tuple[Callable[[Net], str], list[int]]] = {
    "two towers": (lambda net: towers(net, 512, 6, 2), ROWS),
    "four towers": (lambda net: towers(net, 512, 3, 4), ROWS),
    "five uneven towers": (lambda net: net.node("Add", towers(net, 512, 4, 2), towers(net, 512, 2, 3)), ROWS),
    "two deep towers": (lambda net: towers(net, 512, 12, 2), ROWS),
    "two wide towers": (lambda net: towers(net, 1024, 4, 2), [128, 1024]),
    "four deep towers": (lambda net: towers(net, 512, 8, 4), ROWS),
    "six towers": (lambda net: towers(net, 512, 6, 6), ROWS),
    "two image towers": (lambda net: image_towers(net, 64, 6, 2), IMAGE),
    "four image towers": (lambda net: image_towers(net, 64, 4, 4), IMAGE),
    "perceptron": (lambda net: towers(net, 512, 10, 1), ROWS),
    "convolutions": (lambda net: conv_chain(net, 64, 6), IMAGE),
    "inception": (lambda net: inception(net, 64, 5), IMAGE),
    "wide inception": (lambda net: inception(net, 128, 3), [1, 128, 28, 28]),
    "residual": (lambda net: residual(net, 64, 4), IMAGE),
    "separable": (lambda net: separable(net, 64, 8), IMAGE),
    "attention": (lambda net: attention(net, 256, 4), [128, 256]),
}


def row(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One model: built, profiled with pilots, placed and run."""
    make, shape = MODELS[name]
    net = Net()
    path = net.save(folder / f"{name.replace(' ', '_')}.onnx", shape, make(net))
    problem = build(path, DEVICES)
    load = os.getloadavg()[0]
    made = profile(problem, Profiling("onnxruntime", repeats=20, pilots=4))
    priced = apply_to_problem(problem, made)
    result = place(priced, "auto", Budget(options.seconds))
    assert result.placement is not None and result.verdict is not None
    protocol = Protocol(rounds=options.rounds, samples=5, seconds=30.0, least=6, wait=WAIT)
    found = measure_placements(priced, {PLAN: result.placement}, Setting("onnxruntime", protocol=protocol))
    lines = lines_of(found)
    split = len(set(result.placement.device.tolist())) > 1
    over_one = ratio(lines, SINGLE, PLAN)
    single = found.single.predicted
    by_costs, expected = single / result.value, single / result.expected
    return {
        "model": name,
        "load": load,
        "protocol": protocol_record(protocol),
        "dropped": found.of(PLAN).measurement.dropped,
        "split": split,
        "predicted_verdict": result.verdict.sentence,
        "decision": str(result.verdict.decision),
        "measured_verdict": measured_verdict(found, PLAN),
        "value": result.value,
        "expected": result.expected,
        "runs": None if made.runs is None else made.runs.model_dump(),
        "over_one": over_one,
        "over_threads": ratio(lines, OWN_THREADS, PLAN),
        "error_by_costs": over_one / by_costs - 1 if split else 0.0,
        "error": over_one / expected - 1 if split else 0.0,
        "error_in_seconds": result.expected / found.of(PLAN).seconds - 1,
        "lines": lines,
    }


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """Where a verdict is wrong, and where the goals are missed."""
    found = []
    for one in rows:
        worth = str(Decision.WORTH_IT) == one["decision"], one["measured_verdict"].startswith(WORTH)
        if any(worth) and one["over_threads"] < 1:
            which = " and ".join(word for word, says in zip(("the plan", "the run"), worth, strict=True) if says)
            found.append(f"{one['model']}: called worth it by {which}, and the runtime's own threads are faster")
    errors = [abs(one["error"]) for one in rows if one["split"]]
    if errors and statistics.median(errors) > MEDIAN:
        found.append(f"median error of the ratio {statistics.median(errors):.1%}, goal {MEDIAN:.0%}")
    if errors and max(errors) > WORST:
        found.append(f"worst error of the ratio {max(errors):.1%}, goal {WORST:.0%}")
    return found


def text(rows: list[dict[str, Any]], made_by: str) -> str:
    """The table."""
    loads, dropped = [one["load"] for one in rows], sum(one["dropped"] for one in rows)
    kept = sum(len(one["lines"][0]["rounds"]) for one in rows)
    lines = [
        "# Verdicts and predictions on two cores, ONNX Runtime",
        "",
        f"`{made_by}`; milliseconds, medians of rounds in turns; raw figures in real_verdicts.json. The machine has"
        f" two cores; its load was {min(loads):.1f} to {max(loads):.1f}. Of {kept + dropped} rounds, {dropped} were "
        f"dropped: a worker waited for a processor for more than {WAIT:.0%} of a time. Off: measured over "
        "predicted gain over one core, by the costs alone and with what chosen plans took longer (negative: the "
        "prediction was optimistic); off in seconds also holds what the machine did otherwise than during the profile.",
        "",
        "| model | one core | own threads | plan | over one | over own threads | off by costs | off | off in seconds "
        "| dropped | before | after |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for one in rows:
        by = {line["name"]: line for line in one["lines"]}
        times = " | ".join(f"{by[name]['measured'] * 1e3:.2f}" for name in (SINGLE, OWN_THREADS, PLAN))
        off = f"{one['error_by_costs']:+.0%} | {one['error']:+.1%}" if one["split"] else "one core | one core"
        after = "worth it" if one["measured_verdict"].startswith(WORTH) else "do not split"
        after = "one core" if not one["split"] else after
        lines.append(
            f"| {one['model']} | {times} | {one['over_one']:.2f}× | {one['over_threads']:.2f}× | {off} | "
            f"{one['error_in_seconds']:+.0%} | {one['dropped']} | {one['decision']} | {after} |"
        )
    errors = [abs(one["error"]) for one in rows if one["split"]]
    plain = [abs(one["error_by_costs"]) for one in rows if one["split"]]
    worth = sum(one["measured_verdict"].startswith(WORTH) for one in rows)
    be = "is" if worth == 1 else "are"
    lines += ["", f"Of {len(rows)} models, {len(errors)} are split, and {worth} of the splits {be} worth it when run."]
    if errors:
        lines[-1] += (
            f" Errors of the predicted gain: median {statistics.median(errors):.1%}, worst {max(errors):.1%}; by the "
            f"costs alone {statistics.median(plain):.1%} and {max(plain):.1%}."
        )
    return "\n".join(lines)


def main() -> int:
    """Every model; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--seconds", type=float, default=2.0, help="for the placer, and for each search of a pilot")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--limit", type=float, default=1500.0, help="seconds after which no model is begun")
    options = parser.parse_args()
    pilots.SEARCH = options.seconds
    wanted, rows, until = [name for name in MODELS if options.only in name], [], time.monotonic() + options.limit
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            if time.monotonic() < until:
                rows.append(row(name, Path(folder), options))
    wrong = faults(rows)
    if len(rows) < len(wanted):
        wrong.append(f"there was no time for {', '.join(wanted[len(rows) :])}")
    return report("verdicts", rows, wrong, text(rows, command()))


if __name__ == "__main__":
    sys.exit(main())

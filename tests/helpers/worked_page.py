"""What docs/judge.md shows of its instances: tables, pictures and the numbers of its arithmetic.

``python tests/helpers/worked_page.py`` writes tables and pictures into the page; the tests find the page out of date.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from locations import ROOT
from worked_examples import EXAMPLES, Example

from placewise.model.cluster import HOST
from placewise.model.result import Judgement
from placewise.simulate import judge_placement, lower_bound
from placewise.simulate.judge.ranks import upward_ranks

PAGE = ROOT / "docs" / "judge.md"
MODES = ("blocking", "overlap", "duplex")
_BLOCK = re.compile(r"<!-- (instance|picture): ([a-z0-9-]+) -->\n.*?<!-- end -->", re.DOTALL)


def fill(page: str) -> str:
    """The page with every table and picture drawn afresh."""
    drawn = {"instance": table, "picture": lambda example: f"```text\n{draw(example)}\n```"}

    def redrawn(block: re.Match[str]) -> str:
        what, name = block[1], block[2]
        return f"<!-- {what}: {name} -->\n\n{drawn[what](EXAMPLES[name])}\n\n<!-- end -->"

    return _BLOCK.sub(redrawn, page)


def table(example: Example) -> str:
    """The ops of an example, where they are, and the tensors between them, as a Markdown table."""
    graph, costs = example.problem.graph, example.problem.costs
    lines = ["| op | seconds | on | reads | makes |", "|---|---|---|---|---|"]
    for op, name in enumerate(graph.ops.name):
        made = [
            f"{graph.tensors.bytes[t]} B{' (output)' * bool(graph.tensors.output[t])}" for t in graph.outputs_of(op)
        ]
        reads = [graph.tensors.name[t] for t in graph.inputs_of(op).tolist()]
        device = ", ".join(
            example.problem.cluster.names[d] for d in members(example, int(example.placement.device[op]))
        )
        repeats = int(graph.op_repeats[op])
        extra = " (backward)" * bool(graph.ops.backward[op]) + f" (×{repeats})" * (repeats > 1)
        cells = (name + extra, f"{costs.op_seconds[op, 0]:g}", device, ", ".join(reads), ", ".join(made))
        lines.append("| " + " | ".join(cells) + " |")
    inputs = [t for t in range(graph.n_tensors) if graph.tensors.producer[t] < 0]
    if inputs:
        told = " and ".join(f"`{graph.tensors.name[t]}` of {graph.tensors.bytes[t]} B" for t in inputs)
        lines += ["", f"Model input: {told}."]
    return "\n".join(lines)


def members(example: Example, device: int) -> list[int]:
    """The devices that run the stage of one."""
    stage = example.placement.replicas
    return [device] if stage is None else [d for d, e in enumerate(stage.tolist()) if e == device]


def facts(example: Example) -> dict[str, set[float]]:
    """Every number that the page may show of an example, by the label under which it shows it."""
    problem, found = example.problem, defaultdict[str, set[float]](set)
    names = problem.cluster.names
    if problem.objective.kind == "throughput":
        for mode in MODES:
            judged = judge_placement(example.in_mode(mode), example.placement)
            found[f"value({mode})"].add(judged.value)
            for use in judged.devices:
                found[f"{mode}({use.device})"].add(use.load)
                found[f"peak({use.device}, {mode})"].add(use.peak)
            _device_facts(judged, found)
            _phase_facts(example, mode, found)
    else:
        judged = judge_placement(problem, example.placement)
        found["value"].add(judged.value)
        _device_facts(judged, found)
        for use in judged.phases:
            found[f"run({use.phase})"].add(use.seconds)
        if judged.timeline is not None:
            line, places = judged.timeline, (*names, HOST)
            for op, name in enumerate(problem.graph.ops.name):
                found[f"start({name})"].add(float(line.start[op]))
                found[f"finish({name})"].add(float(line.finish[op]))
            for row, tensor in enumerate(line.tensor.tolist()):
                hop = f"{problem.graph.tensors.name[tensor]}, {places[line.source[row]]}→{places[line.target[row]]}"
                found[f"sent({hop})"].add(float(line.sent[row]))
                found[f"arrived({hop})"].add(float(line.arrived[row]))
        for op, rank in enumerate(upward_ranks(problem).tolist()):
            found[f"rank({problem.graph.ops.name[op]})"].add(rank)
    found["bound"].add(lower_bound(problem).value)
    return dict(found)


def _phase_facts(example: Example, mode: str, found: dict[str, set[float]]) -> None:
    judged = judge_placement(example.in_mode(mode, "gpipe"), example.placement)
    found[f"gpipe({mode})"].add(judged.value)
    for use in judged.devices:
        for phase, load in (("forward", use.forward), ("backward", use.backward)):
            if load is not None:
                found[f"{phase}({use.device}, {mode})"].add(load)
    found["gpipe bound"].add(lower_bound(example.in_mode(mode, "gpipe")).value)


def _device_facts(judged: Judgement, found: dict[str, set[float]]) -> None:
    for use in judged.devices:
        found[f"compute({use.device})"].add(use.compute)
        found[f"send({use.device})"].add(use.send)
        found[f"receive({use.device})"].add(use.receive)
        found[f"sync({use.device})"].add(use.sync)
        found[f"resident({use.device})"].add(use.resident)
        found[f"peak({use.device})"].add(use.peak)
    for wire, load in judged.wires.items():
        found[f"wire({wire})"].add(load)


Bar = tuple[float, float, str]


def draw(example: Example) -> str:
    """The picture of an example: when ops and hops run, or how the seconds of one sample add up to loads."""
    if example.problem.objective.kind == "throughput":
        return "\n\n".join(_draw_loads(example, mode) for mode in MODES)
    line, graph = judge_placement(example.problem, example.placement).timeline, example.problem.graph
    assert line is not None
    names = (*example.problem.cluster.names, HOST)
    rows: dict[str, list[Bar]] = {name: [] for name in names[:-1]}
    for op, d in enumerate(example.placement.device.tolist()):
        rows[names[d]].append((float(line.start[op]), float(line.finish[op]), graph.ops.name[op]))
    hops: dict[str, list[Bar]] = defaultdict(list)
    for tensor, source, target, sent, arrived in zip(
        line.tensor.tolist(), line.source.tolist(), line.target.tolist(), line.sent.tolist(), line.arrived.tolist(),
        strict=True,
    ):  # fmt: skip
        hops[f"{names[source]}→{names[target]}"].append((sent, arrived, graph.tensors.name[tensor]))
    return _chart([*rows.items(), *sorted(hops.items())], 4)


def _draw_loads(example: Example, mode: str) -> str:
    """One period in the steady state: what a device does one after another stands in one row."""
    judged = judge_placement(example.in_mode(mode), example.placement)
    rows: list[tuple[str, list[Bar]]] = []
    for use in judged.devices:
        parts = {"compute": use.compute, "send": use.send, "receive": use.receive, "sync": use.sync}
        together = {
            "blocking": [tuple(parts)],
            "overlap": [("compute",), ("send", "receive", "sync")],
            "duplex": [("compute",), ("send", "sync"), ("receive", "sync")],
        }
        for part in together[mode]:
            bars, clock = list[Bar](), 0.0
            for name in part:
                if parts[name]:
                    bars.append((clock, clock + parts[name], name))
                    clock += parts[name]
            if bars:
                rows.append((use.device, bars))
    rows += [(wire, [(0.0, load, "traffic")]) for wire, load in judged.wires.items()]
    return f"{mode}: {judged.value:g} s, set by {judged.bottleneck}\n" + _chart(rows, 5)


def _chart(rows: Sequence[tuple[str, list[Bar]]], scale: int) -> str:
    """Bars in rows, `scale` characters per second; a name that does not fit is cut to its first letter."""
    margin = max(len(label) for label, _ in rows) + 2
    end = max(finish for _, bars in rows for _, finish, _ in bars)
    lines = ["s".ljust(margin) + "".join(f"{second:<{scale}}" for second in range(int(end) + 1))]
    previous = ""
    for label, bars in rows:
        for lane in _lanes(bars):
            text = ""
            for begin, finish, name in lane:
                room = round((finish - begin) * scale) - 2
                shown = name if len(name) <= room else name[0]
                text = text.ljust(round(begin * scale)) + f"├{shown.center(room, '─')}┤"
            lines.append(("" if label == previous else label).ljust(margin) + text)
            previous = label
    return "\n".join(line.rstrip() for line in lines)


def _lanes(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Bars that overlap in time go to different lanes; a row without bars is drawn empty."""
    lanes: list[list[Bar]] = [[]]
    for bar in sorted(bars):
        lane = next((lane for lane in lanes if not lane or lane[-1][1] <= bar[0]), None)
        if lane is None:
            lanes.append(lane := [])
        lane.append(bar)
    return lanes


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text("utf-8")), "utf-8")

"""llama.cpp: -ngl, --tensor-split and --override-tensor (docs/multi-gpu.md, common/arg.cpp, `load_tensors`).

Its layers are a line of which the last ``-ngl`` are on GPUs, in the order of --device, in the proportions of
--tensor-split; the output counts as the last layer, and the input is always in host memory. Weights that a regular
expression of --override-tensor matches are somewhere else: here, the experts of a layer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from placewise.errors import ExportError
from placewise.export.base import Exported, ExportInfo, OptionValues
from placewise.export.commands import numbers, option, printable
from placewise.export.projection import in_stages, line_of, staged
from placewise.export.stack import Stack, seconds_of
from placewise.export.stages import accelerators, needed_stack, shared_weights
from placewise.model.columns import Bools, Ints
from placewise.model.placement import Placement
from placewise.model.problem import Problem

TARGET, HOST = "llama.cpp", "CPU"
NGL, DEVICE, SPLIT, OVERRIDE = "-ngl", "--device", "--tensor-split", "--override-tensor"
_NAMED = re.compile(r"^# (\w+) is (\".*\")", re.MULTILINE)
_EXPERTS = re.compile(r"blk\\\.\((\d+(?:\|\d+)*)\)\\\.ffn_\.\*_exps=(\w+)")
_CUDA = re.compile(r"cuda:(\d{1,4})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class _LayerLine:
    """`line` [n_ops]: 0 for the input embeddings, 1 to n for the layers, n + 1 for the output. `experts` [n_ops] marks
    experts.

    `host` is the device that stands for host memory, −1 if the cluster has none.
    """

    stack: Stack
    line: Ints
    experts: Bools
    host: int


class LlamaCppExporter:
    """One command for llama-server; llama-cli takes the same options."""

    info = ExportInfo(
        TARGET,
        writes="a shell script with one command",
        loaded_by="llama.cpp (llama-server, llama-cli) that has --override-tensor",
        verified="text only",
        cannot_say="anything but the host's layers first, then whole layers per GPU in order; experts by layer",
        takes="transformers whose scopes number their layers",
        suffix=".sh",
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`. `MODEL`, a GGUF file of the same model, is left to whoever runs the script."""
        known = _line(problem, placement)
        gpus = line_of(problem, placement, known.line, accelerators(problem, TARGET))
        if not gpus:
            raise ExportError("the plan uses no accelerator", remedy=f"{TARGET} needs no options then: -ngl 0")
        line, away = _cut(problem, placement, known, gpus)
        device = np.where(known.experts & np.isin(known.line, away), known.host, line[known.line])
        text = "\n".join((*_heading(problem, known), _command(problem, known, line, away), ""))
        return Exported({"llama.sh": text}, Placement(device), (*_notes(known), *shared_weights(problem, device)))

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`. The rule by which layers go to devices is that of `load_tensors`."""
        text = str(exported.files["llama.sh"])
        known = _line(problem, None)
        named = {called: problem.cluster.index(json.loads(name)) for called, name in _NAMED.findall(text)}
        gpus = [_known(named, name) for name in option(text, DEVICE).split(",") if name != "none"]
        split = numbers(option(text, SPLIT), SPLIT) if gpus else []
        if len(split) != len(gpus):
            raise ExportError(f"{SPLIT} has {len(split)} numbers for {len(gpus)} devices")
        host = known.host if known.host >= 0 else next(iter(gpus), -1)
        place = layer_places(known.stack.count, int(option(text, NGL)), split)
        line = np.array([host, *(gpus[gpu] if gpu >= 0 else host for gpu in place)], np.int32)
        device = line[known.line]
        for layers, name in _overrides(text):
            chosen = known.experts & np.isin(known.line, [layer + 1 for layer in layers])
            device[chosen] = host if name == HOST else _known(named, name)
        return device


def layer_places(layers: int, ngl: int, split: Sequence[int]) -> list[int]:
    """The place among the GPUs of every layer and of the output, −1 for the host, as llama.cpp decides."""
    start, count = max(layers + 1 - ngl, 0), min(ngl, layers + 1)
    total = np.float32(sum(split))
    ends = [np.float32(end) / total for end in accumulate(split)]
    places = []
    for layer in range(layers + 1):
        share = np.float32(layer - start) / np.float32(max(count, 1))
        places.append(-1 if layer < start else sum(bool(end <= share) for end in ends))
    return places


def _line(problem: Problem, placement: Placement | None) -> _LayerLine:
    stack = needed_stack(problem, TARGET)
    hosts = np.flatnonzero(problem.cluster.is_host).tolist()
    if placement is not None and hosts:
        hosts.sort(key=lambda host: -int((placement.device == host).sum()))
    marks = np.array(["experts" in inside.split(".") for inside in stack.inside], np.bool_)
    layered = (stack.of >= 0) & (stack.of < stack.count)
    line = np.where(_input(problem, stack), 0, np.maximum(stack.of + 1, 1)).astype(np.int32)
    return _LayerLine(stack, line, marks & layered, hosts[0] if hosts else -1)


def _input(problem: Problem, stack: Stack) -> Bools:
    """Which ops [n_ops] before the layers look up embeddings, or lead to one that does; blocks are whole."""
    graph, maker = problem.graph, problem.graph.tensors.producer
    found = graph.ops.kind.equals("Gather") & (np.diff(graph.weight_offsets) > 0) & (stack.of < 0)
    for op in reversed(range(graph.n_ops)):
        if found[op]:
            sources = maker[graph.inputs_of(op)]
            sources = sources[sources >= 0]
            found[sources[(stack.of[sources] < 0) & (graph.ops.phase[sources] == graph.ops.phase[op])]] = True
    whole: Bools = np.isin(problem.block, problem.block[found])
    return whole


def _cut(problem: Problem, placement: Placement, known: _LayerLine, gpus: Sequence[int]) -> tuple[Ints, list[int]]:
    """The device of every place of the line [layers + 2], and the places whose experts are on the host instead.

    Experts are taken out of the line where most of their seconds are on the host, and stay in it elsewhere.
    """
    seconds, places = seconds_of(problem, placement.device), known.stack.count + 2
    there = known.experts & (placement.device == known.host)
    whole = np.bincount(known.line[known.experts], weights=seconds[known.experts], minlength=places)
    on_host = np.bincount(known.line[there], weights=seconds[there], minlength=places)
    away = np.flatnonzero((on_host > whole / 2) & (whole > 0))
    line = np.where(known.experts & np.isin(known.line, away), 0, known.line).astype(np.int32)
    if known.host < 0:
        cuts = in_stages(problem, placement, np.maximum(line - 1, 0).astype(np.int32), gpus)
        devices, cuts = list(gpus), tuple(cut + (cut > 0) for cut in cuts)
    else:
        devices = [known.host, *gpus]
        cuts = in_stages(problem, placement, line, devices, forced={0: known.host})
    if not cuts:
        raise ExportError("no cut between layers lets every device run every op of its layers")
    found = staged(cuts, devices)
    return found, [place for place in away.tolist() if found[place] != known.host]


def _gpu_names(problem: Problem) -> dict[int, str]:
    """What llama.cpp calls the accelerators: CUDA1 for cuda:1, else CUDA0 and so on by their order."""
    gpus = np.flatnonzero(~problem.cluster.is_host).tolist()
    found = [_CUDA.fullmatch(problem.cluster.names[gpu]) for gpu in gpus]
    return {
        gpu: f"CUDA{int(match[1]) if match and all(found) else place}"
        for place, (gpu, match) in enumerate(zip(gpus, found, strict=True))
    }


def _heading(problem: Problem, known: _LayerLine) -> list[str]:
    source = problem.graph.source
    model = printable(source.path) if source else "a model"
    lines = [f"# {known.stack.count} layers ({printable(known.stack.path)}) of {model}, placed by Placewise"]
    if known.host >= 0:
        lines.append(f"# {HOST} is {json.dumps(problem.cluster.names[known.host])}")
    return lines + [
        f"# {name} is {json.dumps(problem.cluster.names[gpu])}" for gpu, name in _gpu_names(problem).items()
    ]


def _command(problem: Problem, known: _LayerLine, line: Ints, away: Sequence[int]) -> str:
    """The command; `line` [layers + 2] is the device of every place, experts of the places `away` are on the host."""
    on_gpu = [device for device in line[1:].tolist() if device != known.host]
    gpus, names = list(dict.fromkeys(on_gpu)), _gpu_names(problem)
    words = ['llama-server -m "${MODEL:?a GGUF file}"', DEVICE, ",".join(names[gpu] for gpu in gpus) or "none"]
    words += [NGL, str(len(on_gpu))]
    if gpus:
        words += ["--split-mode layer", SPLIT, ",".join(str(on_gpu.count(gpu)) for gpu in gpus)]
    if away:
        layers = "|".join(str(place - 1) for place in away)
        words += [OVERRIDE, rf"'blk\.({layers})\.ffn_.*_exps={HOST}'"]
    return " ".join(words)


def _overrides(text: str) -> list[tuple[list[int], str]]:
    """The layers and the device of every override. Raises ExportError for one that this target does not write."""
    found = []
    if OVERRIDE in text:
        match = _EXPERTS.fullmatch(option(text, OVERRIDE))
        if match is None:
            raise ExportError(f"{OVERRIDE} is {option(text, OVERRIDE)!r}, and names no experts of layers")
        found.append(([int(layer) for layer in match[1].split("|")], match[2]))
    return found


def _known(named: dict[str, int], name: str) -> int:
    if name not in named:
        raise ExportError(f"no comment says which device {name!r} is")
    return named[name]


def _notes(known: _LayerLine) -> tuple[str, ...]:
    if known.host >= 0:
        return ()
    return (
        "llama.cpp keeps the input embedding in host memory, and the cluster has no CPU: here it is on the first GPU",
    )

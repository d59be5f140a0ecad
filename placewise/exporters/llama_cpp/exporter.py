"""llama.cpp: -ngl, --tensor-split, -ncmoe and --override-tensor (docs/multi-gpu.md, common/arg.cpp, `load_tensors`).

Its layers form a sequence. The last ``-ngl`` of them are on GPUs, in the order of --device and the proportions of
--tensor-split; the output counts as the last layer, and the input is always in host memory. -ncmoe leaves the experts
of the first layers there, and --override-tensor those of any layers.
"""

from __future__ import annotations

import json
import re

import numpy as np

from placewise.core.cache_conversions import describe_conversions
from placewise.core.compute_buffer import find_cache_types, find_header
from placewise.core.host_weights import find_lender
from placewise.core.llama_builds import find_build, list_cards
from placewise.errors import ExportError
from placewise.exporters.base import Exported, ExportInfo, OptionValues
from placewise.exporters.commands import parse_numbers, read_option
from placewise.exporters.llama_cpp.buffers import count_plan_buffers
from placewise.exporters.llama_cpp.command import write_command, write_heading
from placewise.exporters.llama_cpp.layers import find_layers, join_embeddings
from placewise.exporters.llama_cpp.layout import (
    Layout,
    count_unused,
    find_layout,
    list_local,
    require_accelerators,
    require_sizes,
)
from placewise.exporters.llama_cpp.packing import GGUF_TYPES, describe_packing
from placewise.exporters.llama_cpp.words import DEVICE, FIRST, HOST, NGL, NO_PIPELINE, OVERRIDE, SPLIT, TARGET
from placewise.exporters.space import Line, Space
from placewise.exporters.stages import shared_weights
from placewise.model.columns import Ints
from placewise.model.cost_error import OFFLOADED
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.readers.gguf.llama_flags import assign_layers
from placewise.readers.gguf.llama_kernels import has_kernel
from placewise.readers.gguf.shape import read_shape
from placewise.readers.gguf.types import find_type

WHOLE = "splits of whole layers in llama.cpp"
FIRST_EXPERTS = "splits in llama.cpp with the experts of the first n layers on the host"
"""What is searched: --override-tensor could move any tensor."""
_NAMED = re.compile(r"^# (\w+) is (\".*\")", re.MULTILINE)
_EXPERTS = re.compile(r"blk\\\.\((\d+(?:\|\d+)*)\)\\\.ffn_\.\*_exps=(\w+)")


class LlamaCppExporter:
    """One command for llama-server; llama-cli takes the same options."""

    info = ExportInfo(
        TARGET,
        writes="a shell script with one command",
        loaded_by="llama.cpp (llama-server, llama-cli) that has -ncmoe and --override-tensor",
        verified="executed",
        cannot_say="anything but the host's layers first, then whole layers per GPU in order; experts by layer",
        takes="transformers whose scopes number their layers",
        suffix=".sh",
        precisions=tuple(GGUF_TYPES),
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`. The user of the script sets `MODEL`, a GGUF file of the same model."""
        layout = find_layout(problem, placement)
        buffers, expressed = count_plan_buffers(layout), layout.placement
        command = write_command(layout) + (f" {OVERRIDE} {NO_PIPELINE}" if buffers.ruled_out else "")
        text = "\n".join((*write_heading(layout), command, ""))
        notes = shared_weights(problem, expressed.device)
        if layout.layers.host < 0:
            embedding = "llama.cpp keeps the input embedding in host memory, and the plan has no CPU"
            notes = (f"{embedding}: here it is on the first GPU", *notes)
        notes = (*notes, *buffers.describe(), *_describe_lender(layout), *describe_packing(problem))
        notes = (*notes, *_describe_cards(layout), *describe_conversions(problem))
        return Exported({"llama.sh": text}, expressed, notes, buffers.sizes)

    def space(self, problem: Problem) -> Space:
        """See `RunningExporter`: a line for every number of first layers whose experts are in host memory."""
        _require_fused(problem)
        layers, gpus = find_layers(problem, None), require_accelerators(problem)
        require_sizes(problem, int(gpus.sum()))
        if layers.host < 0:
            return Space(lines=(Line(join_embeddings(layers.position), gpus),), splits=WHOLE)
        if not gpus.any():
            return Space(lines=(Line(np.zeros(problem.n_ops, np.int32), gpus, layers.host),), splits=WHOLE)
        first, cards = [0, *layers.with_experts], list_local(problem, np.flatnonzero(gpus).tolist())
        lead = find_lender(problem) if OFFLOADED in problem.costs.sources and len(cards) > 1 else -1
        lines = tuple(
            Line(layers.leave_experts(range(1, n + 1)), gpus, layers.host, lead, leads_from=1 if n else 2)
            for n in first
        )
        return Space(lines=lines, splits=FIRST_EXPERTS if layers.experts.any() else WHOLE)

    def project(self, problem: Problem, placement: Placement) -> Placement:
        """See `RunningExporter`. As in `space`, experts that leave their layers are those of the first ones."""
        layout = find_layout(problem, placement)
        layers, line = layout.layers, layout.line
        first = [place for place in layers.with_experts if line[place] != layers.host]
        if said := _describe_lender(layout):
            raise ExportError(said[0])
        return Placement(layers.place(line, first[: len(layout.away)]))

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`. Layers are assigned to devices as `load_tensors` does."""
        text = str(exported.files["llama.sh"])
        layers = find_layers(problem, None)
        named = {called: problem.cluster.index(json.loads(name)) for called, name in _NAMED.findall(text)}
        gpus = [_find_named(named, name) for name in read_option(text, DEVICE).split(",") if name != "none"]
        split = parse_numbers(read_option(text, SPLIT), SPLIT) if SPLIT in text else [1] * len(gpus)
        if len(split) != len(gpus):
            raise ExportError(f"{SPLIT} has {len(split)} numbers for {len(gpus)} devices")
        host = layers.host if layers.host >= 0 else next(iter(gpus), -1)
        place = assign_layers(layers.stack.count, int(read_option(text, NGL)), split, count_unused(problem))
        line = np.array([host, *(gpus[gpu] if gpu >= 0 else host for gpu in place)], np.int32)
        device = line[layers.position]
        for numbers, name in _read_overrides(text):
            experts = layers.experts & np.isin(layers.position, [number + 1 for number in numbers])
            device[experts] = host if name == HOST else _find_named(named, name)
        return device


def _describe_lender(layout: Layout) -> tuple[str, ...]:
    """A note where prompts of what is in host memory are computed on another accelerator than costs say."""
    if layout.lender < 0:
        return ()
    first, names = list_local(layout.problem, layout.accelerators)[0], layout.problem.cluster.names
    others = f"costs are those of {names[layout.lender]}"
    said = f"prompts of what is in host memory are computed on {names[first]}, and {others}"
    return () if first == layout.lender else (said,)


def _describe_cards(layout: Layout) -> tuple[str, ...]:
    """Which card each name in the command means, where the cluster has unlike cards: CUDA counts the fastest first."""
    devices, cards = layout.problem.cluster.devices, list_cards(layout.problem)
    titles = {card: next(iter(devices[card].notes), devices[card].name).partition(":")[0] for card in cards}
    said = [f"{name} is the {titles[card]}" for card, name in layout.accelerators.items() if card in titles]
    if len(set(titles.values())) < 2 or not said:
        return ()
    return (f"{', '.join(said)}: `llama-server --list-devices` says whether yours counts them so",)


def _require_fused(problem: Problem) -> None:
    """Raise ExportError for a cache that only fused attention reads, where the build of the cards has none.

    llama.cpp would compute the attention of these layers on the host, and copy their caches there for every token.
    """
    header, cache, build = find_header(problem), find_cache_types(problem), find_build(problem)
    if header is None or not list_cards(problem) or find_type(cache[1]).block == 1:
        return
    shape = read_shape(header)
    layer = next((layer for layer in range(shape.layers) if not has_kernel(build, shape, layer, cache)), -1)
    if layer >= 0:
        raise ExportError(
            f"llama.cpp's {build} build has no fused attention for heads of {shape.key_widths[layer]} "
            f"entries of a key and {shape.value_widths[layer]} of a value with a cache of {','.join(cache)}, and would "
            "compute it on the host",
            remedy="give another --cache-type, as f16",
        )


def _read_overrides(text: str) -> list[tuple[list[int], str]]:
    """The layers and the device of every override. Raises ExportError for an override in another form."""
    overrides = []
    if f" {FIRST} " in text:
        overrides.append(([*range(int(read_option(text, FIRST)))], HOST))
    if OVERRIDE in text and read_option(text, OVERRIDE) != NO_PIPELINE:
        match = _EXPERTS.fullmatch(read_option(text, OVERRIDE))
        if match is None:
            raise ExportError(f"{OVERRIDE} is {read_option(text, OVERRIDE)!r}, which names no experts of layers")
        overrides.append(([int(layer) for layer in match[1].split("|")], match[2]))
    return overrides


def _find_named(named: dict[str, int], name: str) -> int:
    if name not in named:
        raise ExportError(f"no comment says which device {name!r} is")
    return named[name]

"""llama.cpp: -ngl, --tensor-split, -ncmoe and --override-tensor (docs/multi-gpu.md, common/arg.cpp, `load_tensors`).

Its layers form a sequence. The last ``-ngl`` of them are on GPUs, in the order of --device and the proportions of
--tensor-split; the output counts as the last layer, and the input is always in host memory. -ncmoe leaves the experts
of the first layers there, and --override-tensor those of any layers.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewise._util.llama_defaults import BATCH, MICRO_BATCH
from placewise._util.text import shortened
from placewise._util.units import format_bytes
from placewise.core.cache_conversions import describe_conversions
from placewise.core.compute_buffer import count_buffers, find_cache_types, find_header
from placewise.core.host_weights import find_accelerators, find_lender
from placewise.core.llama_builds import ANY_BUILD, find_build, list_cards
from placewise.errors import ExportError
from placewise.exporters.base import Exported, ExportInfo, OptionValues, asked_precision
from placewise.exporters.commands import parse_numbers, printable, read_option
from placewise.exporters.projection import cut_into_stages, order_devices, stage_devices
from placewise.exporters.space import Line, Space, find_cuts
from placewise.exporters.stack import Stack, op_seconds_on
from placewise.exporters.stages import require_stack, shared_weights
from placewise.model.cluster import RPC, is_rpc
from placewise.model.columns import Bools, Ints
from placewise.model.cost_error import OFFLOADED
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.model.result import CORE
from placewise.readers.gguf.llama_flags import assign_layers, parse_flags
from placewise.readers.gguf.llama_graph import COMPARED
from placewise.readers.gguf.llama_kernels import has_kernel
from placewise.readers.gguf.llama_memory import count_compute, count_copies
from placewise.readers.gguf.shape import read_shape
from placewise.readers.gguf.types import find_type
from placewise.readers.run_dims import find_run_dims
from placewise.simulate import judge_placement

TARGET, HOST = "llama.cpp", "CPU"
CONTEXT, PARALLEL, CACHE_KEYS, CACHE_VALUES = "-c", "-np", "-ctk", "-ctv"
BATCH_FLAG, MICRO_BATCH_FLAG = "-b", "-ub"
SERVERS, THREADS = "--rpc", "-t"
FIT, FIT_TARGET, MARGIN, MEBIBYTE = "--fit", "--fit-target", 1024, 1 << 20
"""Its own placement, the MiB of each device that it leaves free, their default, and bytes of one."""
NGL, DEVICE, SPLIT = "-ngl", "--device", "--tensor-split"
FIRST, OVERRIDE = "-ncmoe", "--override-tensor"
NO_PIPELINE = "without-pipeline=CPU"
"""An override that means no tensor: where one is given, llama.cpp makes no pipeline of micro-batches."""
"""Experts in host memory: those of the first layers, and those of any."""
WHOLE = "splits of whole layers in llama.cpp"
FIRST_EXPERTS = "splits in llama.cpp with the experts of the first n layers on the host"
"""What is searched: --override-tensor could move any tensor."""
_GGUF_TYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
"""What llama-quantize calls each precision."""
_PURE = " (llama-quantize --pure)"
"""Without it, llama-quantize gives the output more bits than Q4_0 has."""
_PACKED = {"mxfp4": "MXFP4_MOE"}
"""What it calls the weights of quantized configurations that it keeps."""
_NAMED = re.compile(r"^# (\w+) is (\".*\")", re.MULTILINE)
_EXPERTS = re.compile(r"blk\\\.\((\d+(?:\|\d+)*)\)\\\.ffn_\.\*_exps=(\w+)")
_NUMBERED = re.compile(r"(?:cuda|rocm|hip):(\d{1,4})", re.IGNORECASE)
MAX_SEQUENCES, MAX_SPLIT = 256, 15
"""The most sequences (``LLAMA_MAX_SEQ``), and the most numbers of --tensor-split: less than ``llama_max_devices()``."""
_NEURAL = "npu"
"""The kind of devices that no build runs."""


@dataclass(frozen=True, slots=True, eq=False)
class _LayerSequence:
    """The `position` [n_ops] of each op: 0 for input embeddings, 1 to n for layers, n + 1 for the output.

    `experts` [n_ops] marks the ops of experts. `host` is the device of the host memory, −1 if the cluster has none.
    """

    stack: Stack
    position: Ints
    experts: Bools
    host: int


@dataclass(frozen=True, slots=True)
class PlanBuffers:
    """The compute buffers of a plan's command: bytes by device, and how many of them each device has no memory for.

    They are approximate for an `architecture` whose buffers were not compared with llama.cpp's log. `ruled_out` says
    that the command keeps llama.cpp from a pipeline of micro-batches, whose buffers do not fit.
    """

    architecture: str
    sizes: Mapping[str, int]
    missing: Mapping[str, int]
    ruled_out: bool = False

    def describe(self) -> tuple[str, ...]:
        """What the buffers take, and on which devices there is less."""
        each = ", ".join(f"{format_bytes(size)} of {name}" for name, size in self.sizes.items())
        notes = [f"the compute buffers of this plan in llama.cpp take {each}"] if each else []
        if notes and self.architecture not in COMPARED:
            name = shortened(self.architecture, 40)
            notes.append(f"these are approximate: llama.cpp's graph of the architecture {name!r} was not compared")
        if self.ruled_out:
            notes.append(
                f"a pipeline of micro-batches has no room: {OVERRIDE} {NO_PIPELINE} moves no tensor, and avoids it"
            )
        for name, size in self.missing.items():
            have = format_bytes(max(self.sizes[name] - size, 0))
            notes.append(f"llama.cpp will lack {format_bytes(size)} of {name}: {have} are left for its compute buffer")
        return tuple(notes)


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
        precisions=tuple(_GGUF_TYPES),
    )

    def export(self, problem: Problem, placement: Placement, options: OptionValues) -> Exported:
        """See `Exporter`. The user of the script sets `MODEL`, a GGUF file of the same model."""
        layers, line, away = _find_line(problem, placement)
        device = _device_of(layers, line, away)
        buffers = find_buffers(problem, Placement(device))
        command = _command(problem, layers, line, away) + (f" {OVERRIDE} {NO_PIPELINE}" if buffers.ruled_out else "")
        text = "\n".join((*_heading(problem, layers, line, away), command, ""))
        notes = shared_weights(problem, device)
        if layers.host < 0:
            embedding = "llama.cpp keeps the input embedding in host memory, and the plan has no CPU"
            notes = (f"{embedding}: here it is on the first GPU", *notes)
        notes = (*notes, *buffers.describe())
        notes = (*notes, *_describe_lender(problem, layers, line, away), *_describe_packing(problem))
        notes = (*notes, *_describe_cards(problem, layers, line, away))
        notes = (*notes, *describe_conversions(problem))
        return Exported({"llama.sh": text}, Placement(device), notes)

    def space(self, problem: Problem) -> Space:
        """See `RunningExporter`: a line for every number of first layers whose experts are in host memory."""
        _require_fused(problem)
        layers, gpus = _find_layers(problem, None), _require_accelerators(problem)
        _require_sizes(problem, int(gpus.sum()))
        if layers.host < 0:
            return Space(lines=(Line(_without_host(layers.position), gpus),), splits=WHOLE)
        if not gpus.any():
            return Space(lines=(Line(np.zeros(problem.n_ops, np.int32), gpus, layers.host),), splits=WHOLE)
        first, cards = [0, *_list_experts(layers)], _list_local(problem, np.flatnonzero(gpus).tolist())
        lead = find_lender(problem) if OFFLOADED in problem.costs.sources and len(cards) > 1 else -1
        lines = tuple(
            Line(_leave(layers, range(1, n + 1)), gpus, layers.host, lead, leads_from=1 if n else 2) for n in first
        )
        return Space(lines=lines, splits=FIRST_EXPERTS if layers.experts.any() else WHOLE)

    def project(self, problem: Problem, placement: Placement) -> Placement:
        """See `RunningExporter`. As in `space`, experts that leave their layers are those of the first ones."""
        layers, line, away = _find_line(problem, placement)
        first = [place for place in _list_experts(layers) if line[place] != layers.host]
        if said := _describe_lender(problem, layers, line, away):
            raise ExportError(said[0])
        return Placement(_device_of(layers, line, first[: len(away)]))

    def read_back(self, exported: Exported, problem: Problem) -> Ints:
        """See `Exporter`. Layers are assigned to devices as `load_tensors` does."""
        text = str(exported.files["llama.sh"])
        layers = _find_layers(problem, None)
        named = {called: problem.cluster.index(json.loads(name)) for called, name in _NAMED.findall(text)}
        gpus = [_named_device(named, name) for name in read_option(text, DEVICE).split(",") if name != "none"]
        split = parse_numbers(read_option(text, SPLIT), SPLIT) if SPLIT in text else [1] * len(gpus)
        if len(split) != len(gpus):
            raise ExportError(f"{SPLIT} has {len(split)} numbers for {len(gpus)} devices")
        host = layers.host if layers.host >= 0 else next(iter(gpus), -1)
        place = assign_layers(layers.stack.count, int(read_option(text, NGL)), split, _count_unused(problem))
        line = np.array([host, *(gpus[gpu] if gpu >= 0 else host for gpu in place)], np.int32)
        device = line[layers.position]
        for numbers, name in _overrides(text):
            experts = layers.experts & np.isin(layers.position, [number + 1 for number in numbers])
            device[experts] = host if name == HOST else _named_device(named, name)
        return device


def _find_layers(problem: Problem, placement: Placement | None) -> _LayerSequence:
    stack = require_stack(problem, TARGET)
    kinds = [device.kind for device in problem.cluster]
    host = "cpu" if "cpu" in kinds else CORE
    hosts = [device for device in np.flatnonzero(problem.allowed.any(axis=0)).tolist() if kinds[device] == host]
    if placement is not None and hosts:
        hosts.sort(key=lambda host: -int((placement.device == host).sum()))
    marks = np.array(["experts" in inside.split(".") for inside in stack.inside], np.bool_)
    layered = (stack.of >= 0) & (stack.of < stack.count)
    line = np.where(_find_embeddings(problem, stack), 0, np.maximum(stack.of + 1, 1)).astype(np.int32)
    return _LayerSequence(stack, line, marks & layered, hosts[0] if hosts else -1)


def _find_embeddings(problem: Problem, stack: Stack) -> Bools:
    """The ops [n_ops] before the layers that look up embeddings or lead to such an op; blocks stay whole."""
    graph, maker = problem.graph, problem.graph.tensors.producer
    embeds = graph.ops.kind.equals("Gather") & (np.diff(graph.weight_offsets) > 0) & (stack.of < 0)
    for op in reversed(range(graph.n_ops)):
        if embeds[op]:
            sources = maker[graph.inputs_of(op)]
            sources = sources[sources >= 0]
            embeds[sources[(stack.of[sources] < 0) & (graph.ops.phase[sources] == graph.ops.phase[op])]] = True
    whole: Bools = np.isin(problem.block, problem.block[embeds])
    return whole


def _find_line(problem: Problem, placement: Placement) -> tuple[_LayerSequence, Ints, list[int]]:
    """The layers, the device of each of their positions, and the positions whose experts are on the host instead."""
    layers = _find_layers(problem, placement)
    gpus = order_devices(problem, placement, layers.position, _require_accelerators(problem))
    if not gpus and (layers.host < 0 or (placement.device != layers.host).any()):
        raise ExportError("the plan uses no accelerator", remedy=f"{TARGET} needs no options then: -ngl 0")
    _require_sizes(problem, len(gpus))
    line, away = _cut(problem, placement, layers, gpus)
    line = _lead(problem, layers, line, away)
    return layers, line, [place for place in away if line[place] != layers.host]


def _lead(problem: Problem, layers: _LayerSequence, line: Ints, away: Sequence[int]) -> Ints:
    """The line on which the accelerator that computes prompts of what is on the host comes before the others.

    llama.cpp computes them on the first that its command names, RPC servers aside. The line as it is where no cuts with
    that order fit.
    """
    placed = np.flatnonzero(line != layers.host)
    placed = placed[placed > 0]
    order = list(dict.fromkeys(line[placed].tolist()))
    lender = find_lender(problem) if _reads_host(problem, layers, line, away) else -1
    if lender not in order or _list_local(problem, order)[0] == lender:
        return line
    order.sort(key=lambda device: device != lender)
    led = line.copy()
    led[placed] = np.repeat(order, [int((line[placed] == device).sum()) for device in order])
    swapped = Placement(_device_of(layers, led, away))
    if judge_placement(problem, swapped).valid:
        return led
    unit, devices = _leave(layers, away), [layers.host, *order]
    cuts = cut_into_stages(problem, swapped, unit, devices, forced={0: layers.host})
    if cuts:
        led = stage_devices((*cuts[:-1], layers.stack.count + 2), devices)
    return led if cuts and judge_placement(problem, Placement(_device_of(layers, led, away))).valid else line


def _describe_lender(problem: Problem, layers: _LayerSequence, line: Ints, away: Sequence[int]) -> tuple[str, ...]:
    """A note where prompts of what is on the host are computed on another accelerator than costs say."""
    if not _reads_host(problem, layers, line, away):
        return ()
    first, lender = _list_local(problem, _list_named(problem, layers, line, away))[0], find_lender(problem)
    names = problem.cluster.names
    said = f"prompts of what is in host memory are computed on {names[first]}, and costs are those of {names[lender]}"
    return () if first == lender else (said,)


def _list_local(problem: Problem, devices: Iterable[int]) -> list[int]:
    """The devices that are no RPC servers."""
    return [device for device in devices if not is_rpc(problem.cluster.names[device])]


def _reads_host(problem: Problem, layers: _LayerSequence, line: Ints, away: Sequence[int]) -> bool:
    """Whether prompts need layers or experts in host memory, and are computed on an accelerator."""
    return OFFLOADED in problem.costs.sources and (bool(away) or layers.host in line[1:])


def _device_of(layers: _LayerSequence, line: Ints, away: Sequence[int]) -> Ints:
    """The device of every op [n_ops]."""
    device: Ints = np.where(layers.experts & np.isin(layers.position, away), layers.host, line[layers.position])
    return device


def _list_experts(layers: _LayerSequence) -> list[int]:
    """The positions that have experts, in order; the first layers of some models have none."""
    found: list[int] = np.unique(layers.position[layers.experts]).tolist()
    return found


def _leave(layers: _LayerSequence, away: Iterable[int]) -> Ints:
    """The position of every op [n_ops], 0 for the experts of the positions `away`."""
    return np.where(layers.experts & np.isin(layers.position, [*away]), 0, layers.position).astype(np.int32)


def _without_host(position: Ints) -> Ints:
    """Positions where the input embeddings are with the first layer."""
    return np.maximum(position - 1, 0).astype(np.int32)


def _cut(problem: Problem, placement: Placement, layers: _LayerSequence, gpus: Sequence[int]) -> tuple[Ints, list[int]]:
    """The device of every position [layers + 2], and the positions whose experts are on the host instead.

    Experts leave their layer if most of their seconds are on the host.
    """
    seconds, places = op_seconds_on(problem, placement.device), layers.stack.count + 2
    there = layers.experts & (placement.device == layers.host)
    whole = np.bincount(layers.position[layers.experts], weights=seconds[layers.experts], minlength=places)
    on_host = np.bincount(layers.position[there], weights=seconds[there], minlength=places)
    away = np.flatnonzero((on_host > whole / 2) & (whole > 0))
    line = _leave(layers, away.tolist())
    if layers.host < 0:
        line = _without_host(line)
    known = find_cuts(problem, placement, line)
    if known is not None and (layers.host < 0 or known[0][0] == layers.host):
        devices, cuts = list(known[0]), known[1]
    elif layers.host < 0:
        devices, cuts = list(gpus), cut_into_stages(problem, placement, line, gpus)
    else:
        devices = [layers.host, *gpus]
        cuts = cut_into_stages(problem, placement, line, devices, forced={0: layers.host})
    if layers.host < 0:
        cuts = tuple(cut + (cut > 0) for cut in cuts)
    if not cuts:
        raise ExportError("no cut between layers lets every device run every op of its layers")
    line = stage_devices((*cuts[:-1], layers.stack.count + 2), devices)
    return line, [place for place in away.tolist() if line[place] != layers.host]


def _require_accelerators(problem: Problem) -> Bools:
    """As `find_accelerators`. Raises ExportError for one that llama.cpp does not run on."""
    if unknown := [device.name for device in problem.cluster if device.kind == _NEURAL]:
        raise ExportError(f"llama.cpp does not run on {unknown[0]}", remedy="leave it out of the devices")
    return find_accelerators(problem)


def _require_sizes(problem: Problem, devices: int) -> None:
    """Raise ExportError for more devices or sequences than llama.cpp takes."""
    dims = find_run_dims(problem.graph.source)
    if dims is not None and dims.streams > MAX_SEQUENCES:
        wrong = f"llama.cpp generates at most {MAX_SEQUENCES} sequences at a time, and not {dims.streams}"
        raise ExportError(wrong, remedy=f"give a --dim batch of {MAX_SEQUENCES} or less")
    if devices > MAX_SPLIT:
        wrong = f"llama.cpp splits a model over at most {MAX_SPLIT} accelerators, and not {devices}"
        raise ExportError(wrong, remedy=f"leave out {devices - MAX_SPLIT}")


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


def _list_named(problem: Problem, layers: _LayerSequence, line: Ints, away: Sequence[int]) -> list[int]:
    """The accelerators of the command: those that have a position of `line` [layers + 2], in order.

    Before them, where it has none, the one that computes prompts of what is on the host.
    """
    used = [device for device in dict.fromkeys(line[1:].tolist()) if device != layers.host]
    lender = find_lender(problem) if _reads_host(problem, layers, line, away) else -1
    return used if lender < 0 or lender in used else [lender, *used]


def _gpu_names(problem: Problem, used: Sequence[int]) -> dict[int, str]:
    """What llama.cpp calls the accelerators in use: RPC0 for the first server in use, CUDA1 for cuda:1, ROCm0.

    Without such names, and in a build for cards of several makers, cards are counted in the order of the cluster, idle
    ones included.
    """
    servers = [gpu for gpu in used if is_rpc(problem.cluster.names[gpu])]
    gpus = list_cards(problem)
    build = find_build(problem)
    matches = [_NUMBERED.fullmatch(problem.cluster.names[gpu]) for gpu in gpus]
    numbered = build != ANY_BUILD and all(matches)
    names = {
        gpu: f"{build}{int(match[1]) if match and numbered else place}"
        for place, (gpu, match) in enumerate(zip(gpus, matches, strict=True))
    } | {server: f"RPC{place}" for place, server in enumerate(servers)}
    return {gpu: names[gpu] for gpu in used}


def _heading(problem: Problem, layers: _LayerSequence, line: Ints, away: Sequence[int]) -> list[str]:
    source = problem.graph.source
    model = printable(source.path) if source else "a model"
    lines = [f"# {layers.stack.count} layers ({printable(layers.stack.path)}) of {model}, placed by Placewise"]
    if layers.host >= 0:
        lines.append(f"# {HOST} is {json.dumps(problem.cluster.names[layers.host])}")
    return lines + [
        f"# {name} is {json.dumps(problem.cluster.names[gpu])}"
        for gpu, name in _gpu_names(problem, _list_named(problem, layers, line, away)).items()
    ]


def _command(problem: Problem, layers: _LayerSequence, line: Ints, away: Sequence[int]) -> str:
    """The command for the devices `line` [layers + 2] of all positions, with the experts of `away` on the host."""
    blocks = [*line[1:].tolist(), *[int(line[-1])] * _count_unused(problem)]
    on_gpu = [device for device in blocks if device != layers.host]
    gpus = _list_named(problem, layers, line, away)
    names = _gpu_names(problem, gpus)
    words = [f"llama-server -m {_name_file(problem)}", *_size_options(problem)]
    if servers := [name.removeprefix(RPC) for name in map(problem.cluster.names.__getitem__, gpus) if is_rpc(name)]:
        words += [SERVERS, ",".join(servers)]
    words += [DEVICE, ",".join(names[gpu] for gpu in gpus) or "none"]
    words += [NGL, str(len(on_gpu))]
    if on_gpu:
        words += ["--split-mode layer", SPLIT, ",".join(str(on_gpu.count(gpu)) for gpu in gpus)]
    if away:
        words += _leave_experts(layers, line, away)
    return " ".join(words)


def _count_unused(problem: Problem) -> int:
    """Layers of multi-token prediction, which llama.cpp counts before the output and does not use."""
    header = find_header(problem)
    return 0 if header is None else read_shape(header).unused


def _leave_experts(layers: _LayerSequence, line: Ints, away: Sequence[int]) -> list[str]:
    """The option that leaves the experts of the positions `away` in host memory, beside those of layers there."""
    elsewhere = [place for place in _list_experts(layers) if place not in away and line[place] != layers.host]
    if max(away) < min(elsewhere, default=len(line)):
        return [FIRST, str(max(away))]
    numbers = "|".join(str(place - 1) for place in away)
    return [OVERRIDE, rf"'blk\.({numbers})\.ffn_.*_exps={HOST}'"]


def find_buffers(problem: Problem, placement: Placement) -> PlanBuffers:
    """The compute buffers that llama.cpp allocates for a placement that it can express; none where they are unknown.

    Where there is no memory for those of a pipeline, it does without: by itself where it finds none, and by the command
    where the user leaves it less than it finds.
    """
    header = find_header(problem)
    if header is None:
        return PlanBuffers("", {}, {})
    layers, line, away = _find_line(problem, placement)
    used = _list_named(problem, layers, line, away)
    names = _gpu_names(problem, used)
    flags = parse_flags(shlex.split(_command(problem, layers, line, away)))
    called = {names[gpu]: gpu for gpu in used} | ({HOST: layers.host} if layers.host >= 0 else {})
    judged = judge_placement(problem, placement)
    has_pipeline = count_copies(header, flags, list(names.values())) > 1
    for pipelined in (True, False) if has_pipeline else (False,):
        counted = count_compute(header, flags, list(names.values()), pipelined=pipelined)
        sizes = {problem.cluster.names[device]: counted[name] for name, device in called.items()}
        missing = {}
        for device in called.values():
            known = problem.cluster.devices[device]
            left = known.memory - known.reserved - judged.devices[device].peak
            if sizes[known.name] > left:
                missing[known.name] = math.ceil(sizes[known.name] - left)
        if not missing:
            break
    return PlanBuffers(header.architecture, sizes, missing, ruled_out=has_pipeline and not pipelined)


def _describe_cards(problem: Problem, layers: _LayerSequence, line: Ints, away: Sequence[int]) -> tuple[str, ...]:
    """Which card each name in the command means, where the cluster has unlike cards: CUDA counts the fastest first."""
    devices, cards = problem.cluster.devices, list_cards(problem)
    titles = {card: next(iter(devices[card].notes), devices[card].name).partition(":")[0] for card in cards}
    named = _gpu_names(problem, _list_named(problem, layers, line, away))
    said = [f"{name} is the {titles[card]}" for card, name in named.items() if card in titles]
    if len(set(titles.values())) < 2 or not said:
        return ()
    return (f"{', '.join(said)}: `llama-server --list-devices` says whether yours counts them so",)


def write_default_command(problem: Problem, free: Mapping[str, int]) -> str:
    """The command that leaves the placement on the same devices to llama.cpp (`--fit`).

    `free` are the free MiB of the devices that llama-server has. A device that is to hold less keeps the rest free.
    Raises ExportError for a device that it does not have.
    """
    gpus = np.flatnonzero(find_accelerators(problem)).tolist()
    if not gpus:
        return " ".join((f"llama-server -m {_name_file(problem)}", *_size_options(problem), DEVICE, "none", NGL, "0"))
    names = {name: gpu for gpu, name in _gpu_names(problem, gpus).items()}
    if missing := [name for name in names if name not in free]:
        raise ExportError(
            f"llama-server has no {' and no '.join(missing)} here", remedy=f"it has {', '.join(free) or 'no cards'}"
        )
    servers = [name.removeprefix(RPC) for name in map(problem.cluster.names.__getitem__, gpus) if is_rpc(name)]
    used = [name for name in free if name in names]
    words = [f"llama-server -m {_name_file(problem)}", *_size_options(problem), FIT, "on"]
    words += [SERVERS, ",".join(servers)] if servers else []
    words += [DEVICE, ",".join(used)] if len(used) < len(free) else []
    whole = float(problem.graph.weights.bytes.sum() + problem.graph.ops.state_bytes.sum())
    whole += count_buffers(problem).accelerator
    limits = {name: float(problem.capacity[names[name]]) for name in used}
    margins = [
        max(free[name] - int(limit) // MEBIBYTE, MARGIN) if limit < whole else MARGIN for name, limit in limits.items()
    ]
    words += [FIT_TARGET, ",".join(map(str, margins))] if max(margins) > MARGIN else []
    return " ".join(words)


def _name_file(problem: Problem) -> str:
    """The file of the model, for a shell; a variable that the user sets where the plan is of another format."""
    source, kind = problem.graph.source, _GGUF_TYPES.get(asked_precision(problem), "")
    if source is not None and source.format == "gguf":
        return shlex.quote(source.path)
    if packed := _find_packing(problem):
        kind = _PACKED.get(packed, "")
    pure = _PURE if kind == _GGUF_TYPES["int4"] else ""
    file = f"a GGUF file of type {kind}{pure}" if kind else "a GGUF file"
    return f'"${{MODEL:?{file}}}"'


def _find_packing(problem: Problem) -> str:
    """How the configuration of a model says that its weights are quantized; "" where it does not."""
    source = problem.graph.source
    return "" if source is None else str(source.options.get("quantization", ""))


def _describe_packing(problem: Problem) -> tuple[str, ...]:
    """A note where no GGUF file has the weights of a quantized configuration."""
    packed = _find_packing(problem)
    if not packed or packed in _PACKED:
        return ()
    size = format_bytes(float(problem.graph.weights.bytes.sum()))
    said = f"no GGUF file has weights of {shortened(packed, 40)}, of which the plan counts {size}"
    return (f"{said}: place the file that you convert, or the configuration without them and --precision int4",)


def _size_options(problem: Problem) -> list[str]:
    """The context of all sequences together, their number, the micro-batch and the types of the cache, as the plan has
    them.

    Without a number, llama-server serves four at a time, whose sliding windows need more cache than one's.
    """
    source = problem.graph.source
    dims = find_run_dims(source)
    if source is None or dims is None:
        return []
    words = [f"{CONTEXT} {dims.cache_positions}", f"{PARALLEL} {dims.streams}"]
    if dims.ubatch > BATCH:
        words.append(f"{BATCH_FLAG} {dims.ubatch}")
    if dims.ubatch != MICRO_BATCH:
        words.append(f"{MICRO_BATCH_FLAG} {dims.ubatch}")
    if kinds := str(source.options.get("cache_type", "")).split(",") if "cache_type" in source.options else []:
        words += [f"{CACHE_KEYS} {kinds[0]} {CACHE_VALUES} {kinds[-1]}"]
    kinds_of_devices = {device.kind for device in problem.cluster}
    return [*words, f"{THREADS} 1"] if CORE in kinds_of_devices and "cpu" not in kinds_of_devices else words


def _overrides(text: str) -> list[tuple[list[int], str]]:
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


def _named_device(named: dict[str, int], name: str) -> int:
    if name not in named:
        raise ExportError(f"no comment says which device {name!r} is")
    return named[name]

"""The layout of a plan in llama.cpp: the host's layers first, then whole layers per accelerator, in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewise.core.compute_buffer import find_header
from placewise.core.host_weights import find_accelerators, find_lender, is_apple
from placewise.core.llama_builds import ANY_BUILD, find_build, list_cards
from placewise.errors import ExportError
from placewise.exporters.llama_cpp.layers import LayerSequence, find_layers, join_embeddings
from placewise.exporters.llama_cpp.words import TARGET
from placewise.exporters.projection import cut_into_stages, order_devices, stage_devices
from placewise.exporters.space import find_cuts
from placewise.exporters.stack import op_seconds_on
from placewise.model.cluster import is_rpc
from placewise.model.columns import Bools, Ints
from placewise.model.cost_error import OFFLOADED
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.readers.gguf.shape import read_shape
from placewise.readers.run_dims import find_run_dims
from placewise.simulate import judge_placement

MAX_SEQUENCES, MAX_SPLIT = 256, 15
"""The most sequences (``LLAMA_MAX_SEQ``), and the most numbers of --tensor-split: less than ``llama_max_devices()``."""
_NUMBERED = re.compile(r"(?:cuda|rocm|hip):(\d{1,4})", re.IGNORECASE)
_NEURAL = "npu"
"""The kind of devices that no build runs."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The device of each position of the `layers` (`line` [layers + 2]), and those whose experts are on the host
    instead (`away`).

    `accelerators` are those that the command names, in order, with what llama.cpp calls each. The `lender` is the one
    that costs of prompts of what is in host memory mean: −1 where there are none.
    """

    problem: Problem
    layers: LayerSequence
    line: Ints
    away: Sequence[int]
    lender: int
    accelerators: Mapping[int, str]

    @property
    def placement(self) -> Placement:
        return Placement(self.layers.place(self.line, self.away))


def find_layout(problem: Problem, placement: Placement) -> Layout:
    """The layout nearest to a placement. Raises ExportError where llama.cpp has none."""
    layers = find_layers(problem, placement)
    gpus = order_devices(problem, placement, layers.position, require_accelerators(problem))
    if not gpus and (layers.host < 0 or (placement.device != layers.host).any()):
        raise ExportError("the plan uses no accelerator", remedy=f"{TARGET} needs no options then: -ngl 0")
    require_sizes(problem, len(gpus))
    line, away = _cut(problem, placement, layers, gpus)
    lender = find_lender(problem) if OFFLOADED in problem.costs.sources else -1
    if _reads_host(layers, line, away):
        line = _lead(problem, layers, line, away, lender)
    away = [place for place in away if line[place] != layers.host]
    lender = lender if _reads_host(layers, line, away) else -1
    used = [device for device in dict.fromkeys(line[1:].tolist()) if device != layers.host]
    named = used if lender < 0 or lender in used else [lender, *used]
    return Layout(problem, layers, line, away, lender, name_accelerators(problem, named))


def name_accelerators(problem: Problem, used: Sequence[int]) -> dict[int, str]:
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


def list_local(problem: Problem, devices: Iterable[int]) -> list[int]:
    """The devices that are no RPC servers."""
    return [device for device in devices if not is_rpc(problem.cluster.names[device])]


def count_unused(problem: Problem) -> int:
    """Layers of multi-token prediction, which llama.cpp counts before the output and does not use."""
    header = find_header(problem)
    return 0 if header is None else read_shape(header).unused


def require_accelerators(problem: Problem) -> Bools:
    """As `find_accelerators`. Raises ExportError for one that llama.cpp does not run on, and for several in one machine
    of which one is Apple's: Metal has a single device there (``ggml_backend_metal_reg``).
    """
    if unknown := [device.name for device in problem.cluster if device.kind == _NEURAL]:
        raise ExportError(f"llama.cpp does not run on {unknown[0]}", remedy="leave it out of the devices")
    devices = problem.cluster.devices
    used = [devices[card] for card in list_cards(problem) if problem.allowed[:, card].any()]
    if len(used) > 1 and any(map(is_apple, used)):
        cards = [device.name for device in used]
        wrong = f"a machine with a GPU of Apple has no other card for llama.cpp, and {', '.join(cards)} are several"
        raise ExportError(wrong, remedy="start its RPC server on other machines, and write rpc:ADDRESS for them")
    return find_accelerators(problem)


def require_sizes(problem: Problem, devices: int) -> None:
    """Raise ExportError for more devices or sequences than llama.cpp takes."""
    dims = find_run_dims(problem.graph.source)
    if dims is not None and dims.streams > MAX_SEQUENCES:
        wrong = f"llama.cpp generates at most {MAX_SEQUENCES} sequences at a time, and not {dims.streams}"
        raise ExportError(wrong, remedy=f"give a --dim batch of {MAX_SEQUENCES} or less")
    if devices > MAX_SPLIT:
        wrong = f"llama.cpp splits a model over at most {MAX_SPLIT} accelerators, and not {devices}"
        raise ExportError(wrong, remedy=f"leave out {devices - MAX_SPLIT}")


def _cut(problem: Problem, placement: Placement, layers: LayerSequence, gpus: Sequence[int]) -> tuple[Ints, list[int]]:
    """The device of every position [layers + 2], and the positions whose experts are on the host instead.

    Experts leave their layer if most of their seconds are on the host.
    """
    seconds, places = op_seconds_on(problem, placement.device), layers.stack.count + 2
    there = layers.experts & (placement.device == layers.host)
    whole = np.bincount(layers.position[layers.experts], weights=seconds[layers.experts], minlength=places)
    on_host = np.bincount(layers.position[there], weights=seconds[there], minlength=places)
    away = np.flatnonzero((on_host > whole / 2) & (whole > 0))
    unit = layers.leave_experts(away.tolist())
    if layers.host < 0:
        unit = join_embeddings(unit)
    known = find_cuts(problem, placement, unit)
    if known is not None and (layers.host < 0 or known[0][0] == layers.host):
        devices, cuts = list(known[0]), known[1]
    elif layers.host < 0:
        devices, cuts = list(gpus), cut_into_stages(problem, placement, unit, gpus)
    else:
        devices = [layers.host, *gpus]
        cuts = cut_into_stages(problem, placement, unit, devices, forced={0: layers.host})
    if layers.host < 0:
        cuts = tuple(cut + (cut > 0) for cut in cuts)
    if not cuts:
        raise ExportError("no cut between layers lets every device run every op of its layers")
    line = stage_devices((*cuts[:-1], places), devices)
    return line, [place for place in away.tolist() if line[place] != layers.host]


def _reads_host(layers: LayerSequence, line: Ints, away: Sequence[int]) -> bool:
    """Whether layers or experts are in host memory."""
    return bool(away) or layers.host in line[1:]


def _lead(problem: Problem, layers: LayerSequence, line: Ints, away: Sequence[int], lender: int) -> Ints:
    """The line on which the `lender` comes before the other accelerators.

    llama.cpp computes prompts of what is on the host on the first that its command names, RPC servers aside. The line
    as it is where no cuts with that order fit.
    """
    placed = np.flatnonzero(line != layers.host)
    placed = placed[placed > 0]
    order = list(dict.fromkeys(line[placed].tolist()))
    if lender not in order or list_local(problem, order)[0] == lender:
        return line
    order.sort(key=lambda device: device != lender)
    led = line.copy()
    led[placed] = np.repeat(order, [int((line[placed] == device).sum()) for device in order])
    swapped = Placement(layers.place(led, away))
    if judge_placement(problem, swapped).valid:
        return led
    unit, devices = layers.leave_experts(away), [layers.host, *order]
    cuts = cut_into_stages(problem, swapped, unit, devices, forced={0: layers.host})
    if cuts:
        led = stage_devices((*cuts[:-1], layers.stack.count + 2), devices)
    return led if cuts and judge_placement(problem, Placement(layers.place(led, away))).valid else line

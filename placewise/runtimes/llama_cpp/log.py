"""What llama.cpp's log says of buffers, layers and tensors (LLAMA_LOG_INFO and LLAMA_LOG_DEBUG in its src/)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

MEBIBYTE = 1 << 20
ROUNDED = 0.005 * MEBIBYTE
"""Bytes by which a size of the log may be off: it has two digits of mebibytes."""
_SIZE = re.compile(
    r"(?:load_tensors|llama_\w+|sched_reserve): +(\S+) +(model|KV|RS|compute|output) buffer size = +([\d.]+) MiB"
)
_EXACT = re.compile(r": +(\S+) compute buffer size is +([\d.]+) MiB")
_LAYER = re.compile(r"layer +(\d+) assigned to device (\S+?),")
_OVERRIDDEN = re.compile(r"tensor (\S+) \(\d+ MiB \S+\) buffer type overridden to (\S+)")
_ERROR = re.compile(r"^(?:[\d.]+ E +|(?=error\b)|\S+\.\w+:\d+: )(.+)", re.MULTILINE)
"""A line of level E, of a wrong option, or of `ggml_abort`, which names a line of llama.cpp's sources."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes of buffers by buffer type, and where the log says that layers and overridden tensors went.

    `layers` has the device of every layer, the output last. `buffers` counts the buffers of each kind.
    """

    weights: Mapping[str, float]
    cache: Mapping[str, float]
    compute: Mapping[str, float]
    buffers: Mapping[str, int]
    layers: tuple[str, ...]
    overridden: Mapping[str, str]


def find_first_error(log: str, otherwise: str = "") -> str:
    """The first line of a log that reports an error, without its time; without one, `otherwise` or the last line."""
    errors = _ERROR.findall(log)
    lines = [line for line in log.splitlines() if line.strip()]
    return ((errors or [otherwise])[0] or (lines or ["it logged nothing"])[-1]).strip()[:300]


def parse_log(text: str) -> Allocation:
    """What a log of verbosity 5 says; empty where it says nothing."""
    found: dict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    buffers: defaultdict[str, int] = defaultdict(int)
    for place, kind, size in _SIZE.findall(text):
        kind = "KV" if kind == "RS" else kind
        found[kind][place] += float(size) * MEBIBYTE
        buffers[kind] += 1
    layers = {int(number): device for number, device in _LAYER.findall(text)}
    compute = dict(found["compute"])
    compute.update({place: float(size) * MEBIBYTE for place, size in _EXACT.findall(text)})
    return Allocation(
        dict(found["model"]),
        dict(found["KV"]),
        compute,
        dict(buffers),
        tuple(layers[number] for number in sorted(layers)),
        dict(_OVERRIDDEN.findall(text)),
    )

"""Shared parts of targets that are commands: comments that name the device of each stage, and option parsing."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from itertools import pairwise

from placewise.errors import ExportError
from placewise.exporters.stages import Stages
from placewise.model.cluster import Cluster
from placewise.model.problem import Problem

_STAGE = re.compile(r"^# stage (\d+) is ", re.MULTILINE)
_CUDA = re.compile(r"cuda:(\d+)", re.IGNORECASE)


def heading(problem: Problem, stages: Stages) -> list[str]:
    """Comment lines with the model, and with the device or devices and the layers of every stage."""
    source = problem.graph.source
    model = printable(source.path) if source else "a model"
    lines = [f"# {stages.stack.count} layers ({printable(stages.stack.path)}) of {model}, placed by Placewise"]
    start = 0
    for stage, (devices, layers) in enumerate(zip(stages.devices, stages.layers, strict=True)):
        names = [problem.cluster.names[device] for device in devices]
        here = f"layers {start} to {start + layers - 1}"
        if not layers:
            here = "what comes after the last layer" if start else "what comes before the first layer"
        shown = json.dumps(names if problem.ways is not None else names[0])
        lines.append(f"# stage {stage} is {shown}: {here}{name_nodes(problem.cluster, devices)}")
        start += layers
    return lines


def name_nodes(cluster: Cluster, devices: Sequence[int]) -> str:
    """The nodes of some devices, for the end of a comment: " (node 0)"; "" where none has any."""
    nodes = dict.fromkeys(cluster.nodes[device] for device in devices)
    names = ", ".join(printable(node).replace('"', "'") for node in nodes if node)
    return f" ({names})" if names else ""


def count_nodes(cluster: Cluster, devices: Sequence[int]) -> int:
    """In how many nodes the devices are; those outside of nodes count as one."""
    return len({cluster.nodes[device] for device in devices})


def read_devices(text: str) -> list[list[str]]:
    """The devices of each stage that `heading` wrote. Raises ExportError for stages out of order."""
    matches = list(_STAGE.finditer(text))
    if [int(match[1]) for match in matches] != list(range(len(matches))):
        raise ExportError("the comments do not number the stages from 0")
    found = [json.JSONDecoder().raw_decode(text, match.end())[0] for match in matches]
    return [[names] if isinstance(names, str) else names for names in found]


def set_visible_devices(cluster: Cluster, devices: Sequence[int]) -> str:
    """``CUDA_VISIBLE_DEVICES=1,0 `` for devices of one node that all have names like ``cuda:1``, else ""."""
    names = [cluster.names[device] for device in devices]
    if count_nodes(cluster, devices) > 1:
        return ""
    numbers = [match[1] for name in names if (match := _CUDA.fullmatch(name))]
    return f"CUDA_VISIBLE_DEVICES={','.join(numbers)} " if len(numbers) == len(names) else ""


def read_option(text: str, name: str) -> str:
    """The value of an option or variable of the command in a script. Raises ExportError unless there is one."""
    words = shlex.split(text, comments=True)
    values = [value for word, value in pairwise(words) if word == name]
    values += [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    if len(values) != 1:
        raise ExportError(f"{name} occurs {len(values)} times in the command instead of once")
    return values[0]


def require_stages(text: str, name: str, count: int) -> None:
    """Raise ExportError unless the option `name` of the command says that there are `count` stages."""
    asked = read_option(text, name)
    if asked != str(count):
        raise ExportError(f"the command has {name} {asked}, but layers for {count} stages")


def parse_numbers(text: str, what: str) -> list[int]:
    """``4,5`` → [4, 5]. Raises ExportError."""
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        raise ExportError(f"{what} is {text!r}, not a list of numbers")
    return [int(number) for number in text.split(",")]


def printable(text: str) -> str:
    """A text for a one-line comment, with unprintable characters escaped."""
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in text)

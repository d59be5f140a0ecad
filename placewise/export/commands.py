"""What exports that are commands have in common: they say in comments which device each stage is on."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from itertools import pairwise

from placewise.errors import ExportError
from placewise.export.stages import Stages
from placewise.model.problem import Problem

_STAGE = re.compile(r"^# stage (\d+) is (\".*\")", re.MULTILINE)
_CUDA = re.compile(r"cuda:(\d+)", re.IGNORECASE)


def heading(problem: Problem, stages: Stages) -> list[str]:
    """Comments: the model, and the device and layers of every stage."""
    source = problem.graph.source
    model = printable(source.path) if source else "a model"
    lines = [f"# {stages.stack.count} layers ({printable(stages.stack.path)}) of {model}, placed by Placewise"]
    start = 0
    for stage, (device, layers) in enumerate(zip(stages.devices, stages.layers, strict=True)):
        name = json.dumps(problem.cluster.names[device])
        here = f"layers {start} to {start + layers - 1}"
        if not layers:
            here = "what comes after the last layer" if start else "what comes before the first layer"
        lines.append(f"# stage {stage} is {name}: {here}")
        start += layers
    return lines


def devices_read(text: str) -> list[str]:
    """The devices of the stages that `heading` wrote, in order. Raises ExportError for stages out of order."""
    found = [(int(number), json.loads(name)) for number, name in _STAGE.findall(text)]
    if [number for number, _ in found] != list(range(len(found))):
        raise ExportError("the comments do not number the stages from 0")
    return [name for _, name in found]


def visible(names: Sequence[str]) -> str:
    """``CUDA_VISIBLE_DEVICES=1,0 `` where all devices are called like ``cuda:1``, else "": who runs it must set it."""
    numbers = [match[1] for name in names if (match := _CUDA.fullmatch(name))]
    return f"CUDA_VISIBLE_DEVICES={','.join(numbers)} " if len(numbers) == len(names) else ""


def option(text: str, name: str) -> str:
    """The value of an option or variable of the one command in a script. Raises ExportError unless it has one."""
    words = [word for line in text.splitlines() if not line.startswith("#") for word in shlex.split(line)]
    after = [value for word, value in pairwise(words) if word == name]
    values = after + [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    if len(values) != 1:
        raise ExportError(f"{name} stands {len(values)} times in the command instead of once")
    return values[0]


def numbers(text: str, what: str) -> list[int]:
    """``4,5`` → [4, 5]. Raises ExportError."""
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        raise ExportError(f"{what} is {text!r}, and no list of numbers")
    return [int(number) for number in text.split(",")]


def printable(text: str) -> str:
    """A text for a comment: what cannot be printed in one line is written out."""
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in text)

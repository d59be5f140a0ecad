"""The options that several commands share, as annotated types."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from placewise._util.option_table import PROBLEM_OPTIONS, OptionInfo
from placewise._util.units import parse_count
from placewise.errors import InputError

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions
    from placewise.model.problem import Rule
    from placewise.placers.base import Budget

_MODEL = typer.Argument(
    help="ONNX, .pt2, OpenVINO .xml, TensorFlow .pb, GGUF, a Hugging Face config.json, 'hf:NAME', 'zoo:NAME', a "
    "published workload (JSON), a PipeDream profile, a graph or problem file (.npz)."
)
Model = Annotated[str, _MODEL]
OptionalModel = Annotated[str | None, _MODEL]
PlanPath = Annotated[Path, typer.Argument(help="Plan file, or a published split.")]
Devices = Annotated[
    str | None,
    typer.Option("--devices", "-d", help="'2xA100-80GB,cpu', 'this', a TOML file, or memory per device as JSON."),
]
MovedModel = Annotated[str | None, typer.Option("--model", help="The model file, if it has moved.")]
Target = Annotated[
    str | None, typer.Option("--for", help="Search only plans that this tool can express and run, as vllm.")
]
Placer = Annotated[str, typer.Option(help="The placer; 'auto' combines them.", rich_help_panel="Search")]
PlacerOptions = Annotated[
    list[str] | None, typer.Option("--option", help="NAME=VALUE for the placer.", rich_help_panel="Search")
]
TimeLimit = Annotated[
    str | None, typer.Option(help="Stop the search after this time, as 60s.", rich_help_panel="Search")
]
Gap = Annotated[str, typer.Option(help="Stop the search at this gap, as 1%.", rich_help_panel="Search")]
Seed = Annotated[int, typer.Option(help="Random seed: the same seed gives the same answer.", rich_help_panel="Search")]
Threads = Annotated[
    int | None, typer.Option(help="Threads for searches (default: all cores).", rich_help_panel="Search")
]
TrustModel = Annotated[
    bool, typer.Option("--trust-model", help="Load a .pt2 file even if that runs code from the file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no warnings.")]


_TYPES: dict[str, Any] = {
    "text": str | None,
    "whole": int | None,
    "switch": bool,
    "negation": bool,
    "either": bool | None,
}
"""What a flag of each kind is on the command line; the others may be repeated."""


def annotated(option: OptionInfo) -> Any:
    """The type of a parameter that typer reads as this option."""
    shown = typer.Option(
        option.flag,
        *option.aliases,
        help=option.help,
        rich_help_panel=option.panel or None,
        min=0 if option.kind == "whole" else None,
    )
    return Annotated[list[str] | None if option.repeats else _TYPES[option.kind], shown]


_PROBLEM = {
    option.name: inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if option.kind in ("switch", "negation") else None,
        annotation=annotated(option),
    )
    for option in PROBLEM_OPTIONS
}
"""Every option of a problem as a parameter of a command."""


def with_problem_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command with the options of a problem (those of `names`, or all) instead of `problem_options`."""
    chosen = {name: _PROBLEM[name] for name in names or _PROBLEM}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = dict[str, inspect.Parameter]()
        for name, parameter in _parameters(command).items():
            parameters |= chosen if name == "problem_options" else {name: parameter}

        @functools.wraps(command)
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in chosen}
            command(problem_options=read_problem_options(values), **given)

        run.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
        run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
        return run

    return decorate


def read_problem_options(values: Mapping[str, Any]) -> ProblemOptions:
    """What the flags say, as `ProblemOptions`. Raises InputError."""
    from placewise.core.options import ProblemOptions

    read = {option.name: _read(option, values[option.name]) for option in PROBLEM_OPTIONS if option.name in values}
    return ProblemOptions(**{name: value for name, value in read.items() if value is not None})


def _read(option: OptionInfo, value: Any) -> Any:
    """The value of a flag as Python has it; None where it is not given."""
    if not value and option.kind not in ("either", "whole", "text"):
        return None
    if option.kind == "rules":
        return _rules(value, option.flag)
    if option.kind == "sizes":
        return parse_dims(value)
    if option.kind == "amounts":
        return _memory(value)
    if option.kind == "texts":
        return list(value)
    return False if option.kind == "negation" else value


def _parameters(command: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function by name, all by keyword, with their types as objects."""
    hints = get_type_hints(command, localns={"ProblemOptions": Any}, include_extras=True)
    return {
        name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
    }


def budget_of(time_limit: str | None, gap: str, seed: int, threads: int | None) -> Budget:
    """The shared search options as a `Budget`. Raises InputError."""
    from placewise.core.search_limits import budget_from

    return budget_from(time_limit, gap, seed, threads)


def parse_dims(texts: list[str] | None) -> dict[str, int]:
    """``["batch=8", "context=32k"]`` → {"batch": 8, "context": 32768}. Raises InputError."""
    dims: dict[str, int] = {}
    for name, value in _pairs(texts, "--dim"):
        size = parse_count(value)
        if name in dims and size != dims[name]:
            raise InputError(f"--dim {name} is given twice, as {dims[name]} and {value}", remedy="give it once")
        if size is None or not size < 2**40:
            raise InputError(f"--dim {name}={value} is not a size", remedy="write it like --dim batch=8")
        dims[name] = size
    return dims


def bindings(texts: list[str] | None) -> dict[str, str]:
    """``["npu=openvino:NPU"]`` → {"npu": "openvino:NPU"}: the first '=' counts. Raises InputError."""
    found: dict[str, str] = {}
    for text in texts or []:
        name, sign, place = text.partition("=")
        if not sign or not name or not place:
            raise InputError(f"--bind {text!r} names no place", remedy="write it like --bind cpu=cores:0-3")
        found[name] = place
    return found


def typed(texts: list[str] | None) -> dict[str, Any]:
    """``["max_ideals=1000"]`` → {"max_ideals": 1000}: whole numbers, numbers, true and false, else text."""
    found: dict[str, Any] = {}
    for text in texts or []:
        name, sign, value = text.partition("=")
        if not sign:
            raise InputError(f"--option {text!r} has no '='", remedy="write it like --option max_ideals=100000")
        found[name] = {"true": True, "false": False}.get(value.lower(), _number(value))
    return found


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _memory(texts: list[str] | None) -> dict[str, Any]:
    """``["cuda:0=20GiB"]`` or ``['{"cuda:0": "20GiB"}']`` → {"cuda:0": "20GiB"}. Raises InputError."""
    found: dict[str, Any] = {}
    for text in texts or []:
        if text.lstrip().startswith("{"):
            try:
                found |= json.loads(text)
            except (ValueError, RecursionError) as error:
                remedy = """write it like --max-memory '{"cuda:0": "20GiB"}'"""
                raise InputError(f"--max-memory is not JSON ({error})", remedy=remedy) from None
        else:
            found |= _pairs([text], "--max-memory")
    return found


def _rules(texts: list[str] | None, option: str) -> tuple[Rule, ...] | None:
    """Every rule, in order; None if none is given."""
    from placewise.model.problem import Rule

    return tuple(Rule(pattern, device) for pattern, device in _pairs(texts, option)) if texts else None


def _pairs(texts: list[str] | None, option: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts or []:
        name, sign, value = text.rpartition("=")
        if not sign or not name or not value:
            lacks = "'='" if not sign else "name before '='" if not name else "value after '='"
            raise InputError(f"{option} {text!r} has no {lacks}", remedy=f"write it like {option} name=value")
        pairs.append((name, value))
    return pairs

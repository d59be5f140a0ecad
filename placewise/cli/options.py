"""The options that several commands share, as annotated types."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from placewise.errors import InputError

if TYPE_CHECKING:
    from placewise.core.options import ProblemOptions
    from placewise.model.problem import Rule
    from placewise.placers.base import Budget

_MODEL = typer.Argument(
    help="ONNX, .pt2, OpenVINO .xml, TensorFlow .pb, a Hugging Face config.json, 'hf:NAME', 'zoo:NAME', a "
    "published workload (JSON), a PipeDream profile, a graph or problem file (.npz)."
)
Model = Annotated[str, _MODEL]
OptionalModel = Annotated[str | None, _MODEL]
PlanPath = Annotated[Path, typer.Argument(help="Plan file, or a published split.")]
Devices = Annotated[
    str | None,
    typer.Option("--devices", "-d", help="'2xA100-80GB,cpu', 'this', a TOML file, or memory per device as JSON."),
]
ObjectiveName = Annotated[str | None, typer.Option("--objective", help="latency or throughput.")]
Execution = Annotated[
    str | None,
    typer.Option(help="How latency is executed: operator, subgraph or sequential.", rich_help_panel="Meaning"),
]
Communication = Annotated[
    str | None, typer.Option(help="Throughput: blocking, overlap or duplex.", rich_help_panel="Meaning")
]
Schedule = Annotated[
    str | None,
    typer.Option(
        help="Throughput of training: 1f1b, or gpipe, which flushes between forward and backward.",
        rich_help_panel="Meaning",
    ),
]
Memory = Annotated[str | None, typer.Option(help="How memory is counted: live or sum.", rich_help_panel="Meaning")]
Contiguous = Annotated[
    bool | None, typer.Option("--contiguous/--free", help="Must stages form a chain?", rich_help_panel="Meaning")
]
Convex = Annotated[
    bool,
    typer.Option("--convex", help="No chain, but no path may leave a device and return.", rich_help_panel="Meaning"),
]
Replicas = Annotated[
    str | None,
    typer.Option(help="Throughput: how many equal devices may share a stage, or 'any'.", rich_help_panel="Meaning"),
]
StepSamples = Annotated[
    int | None,
    typer.Option(min=0, help="Samples per synchronization of replicas; 0: one per replica.", rich_help_panel="Meaning"),
]
View = Annotated[
    str | None, typer.Option(help="folded or raw: with constants folded away or kept.", rich_help_panel="Meaning")
]
GraphName = Annotated[
    str | None,
    typer.Option("--graph", help="inference or training: with a backward pass and an optimizer (default: inference)."),
]
Optimizer = Annotated[
    str | None, typer.Option(help="Of a training graph: sgd, momentum or adam.", rich_help_panel="Meaning")
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(help="REGEX: weights whose name matches are not trained; may be repeated.", rich_help_panel="Meaning"),
]
Dtype = Annotated[
    str | None,
    typer.Option(help="Element type of zoo: and hf: models, as bfloat16.", rich_help_panel="Meaning"),
]
Dims = Annotated[list[str] | None, typer.Option("--dim", help="A symbolic dimension, as batch=8; may be repeated.")]
Pins = Annotated[
    list[str] | None,
    typer.Option("--pin", help="REGEX=DEVICE: ops whose name or scope matches go there.", rich_help_panel="Rules"),
]
Forbidden = Annotated[
    list[str] | None,
    typer.Option("--forbid", help="REGEX=DEVICE: ops whose name or scope matches stay away.", rich_help_panel="Rules"),
]
Together = Annotated[
    list[str] | None,
    typer.Option(
        "--together",
        "--no-split",
        help="REGEX: ops in whose scope or name it finds the same text share a device, or the class of modules that "
        "stay whole, as BertLayer; may be repeated.",
        rich_help_panel="Rules",
    ),
]
Headroom = Annotated[
    list[str] | None,
    typer.Option(
        help="Memory to keep free of every accelerator, as 10% or 2GiB, or of one: cuda:0=2GiB; may be repeated.",
        rich_help_panel="Rules",
    ),
]
MaxMemory = Annotated[
    list[str] | None,
    typer.Option(
        help="DEVICE=SIZE: what may be used of a device, 0 for nothing; may be repeated. Or all of them as JSON.",
        rich_help_panel="Rules",
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(help="DEVICE or REGEX: devices to leave out; may be repeated.", rich_help_panel="Rules"),
]
Offload = Annotated[
    bool, typer.Option("--no-offload", help="Nothing may be on a CPU or a disk.", rich_help_panel="Rules")
]
InOrder = Annotated[
    bool, typer.Option("--in-order", help="Stages in the order of the devices of -d.", rich_help_panel="Meaning")
]
Unsupported = Annotated[
    list[str] | None,
    typer.Option(help="REGEX=DEVICE: kinds of op that a device cannot run.", rich_help_panel="Rules"),
]
Costs = Annotated[
    list[str] | None,
    typer.Option(
        help="Measured op times: CSV or JSON, a profile of ours, of ONNX Runtime, OpenVINO or PyTorch, or a cost table "
        "(.npz); may be repeated, and DEVICE=FILE says whose they are.",
        rich_help_panel="Meaning",
    ),
]
TimeLimit = Annotated[str | None, typer.Option(help="Stop after this long, as 60s.", rich_help_panel="Search")]
Gap = Annotated[str, typer.Option(help="Stop at this gap, as 1%.", rich_help_panel="Search")]
Seed = Annotated[int, typer.Option(help="Same seed, same answer.", rich_help_panel="Search")]
Threads = Annotated[
    int | None, typer.Option(help="Threads for searches; all cores by default.", rich_help_panel="Search")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress and no warnings.")]


def wishes_of(
    objective: ObjectiveName = None,
    dim: Dims = None,
    execution: Execution = None,
    communication: Communication = None,
    memory: Memory = None,
    contiguous: Contiguous = None,
    convex: Convex = False,
    replicas: Replicas = None,
    step_samples: StepSamples = None,
    schedule: Schedule = None,
    view: View = None,
    costs: Costs = None,
    graph: GraphName = None,
    optimizer: Optimizer = None,
    freeze: Freeze = None,
    dtype: Dtype = None,
    pin: Pins = None,
    forbid: Forbidden = None,
    together: Together = None,
    headroom: Headroom = None,
    max_memory: MaxMemory = None,
    exclude: Exclude = None,
    no_offload: Offload = False,
    unsupported: Unsupported = None,
    in_order: InOrder = False,
) -> ProblemOptions:
    """The options that say what is wanted, as `ProblemOptions`. Raises InputError."""
    from placewise.core.options import ProblemOptions

    most: Any = replicas
    room: Any = headroom or None
    limits: Any = _memory(max_memory)
    return ProblemOptions(
        objective, execution, communication, memory, contiguous, room,
        _rules(pin, "--pin"), _rules(forbid, "--forbid"), parse_dims(dim), view, tuple(costs or ()), graph,
        convex or None, replicas=most, step_samples=step_samples, schedule=schedule, dtype=dtype, optimizer=optimizer,
        frozen=tuple(freeze or ()), together=tuple(together) if together else None, max_memory=limits,
        exclude=tuple(exclude or ()), offload=False if no_offload else None,
        unsupported=_rules(unsupported, "--unsupported"), ordered=in_order or None,
    )  # fmt: skip


def wishing(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `wishes_of` in the place of its parameter `problem_options`, which they fill."""
    shared, parameters = _parameters(wishes_of), dict[str, inspect.Parameter]()
    for name, parameter in _parameters(command).items():
        parameters |= shared if name == "problem_options" else {name: parameter}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        problem_options = wishes_of(**{name: given.pop(name) for name in shared})
        command(problem_options=problem_options, **given)

    run.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return run


def _parameters(command: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function by name, all by keyword, with their types as objects."""
    hints = get_type_hints(command, localns={"ProblemOptions": Any}, include_extras=True)
    return {
        name: parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
    }


def budget_of(time_limit: str | None, gap: str, seed: int, threads: int | None) -> Budget:
    """The shared search options as a `Budget`. Raises InputError."""
    from placewise._util.units import parse_fraction, parse_seconds
    from placewise.placers.base import Budget

    seconds = parse_seconds(time_limit) if time_limit is not None else float("inf")
    return Budget(seconds, gap=parse_fraction(gap), seed=seed, threads=threads)


def parse_dims(texts: list[str] | None) -> dict[str, int]:
    """``["batch=8"]`` → {"batch": 8}. Raises InputError."""
    dims: dict[str, int] = {}
    for name, value in _pairs(texts, "--dim"):
        if name in dims and value != str(dims[name]):
            raise InputError(f"--dim {name} is given twice, as {dims[name]} and {value}", remedy="give it once")
        if not value.isascii() or not value.isdigit() or not int(value) < 2**40:
            raise InputError(f"--dim {name}={value} is no size", remedy="write it like --dim batch=8")
        dims[name] = int(value)
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

"""What the user asks for of a problem, as the command line and the Python interface take it: the one place that checks.

Whatever is not of the right type, or cannot be read as it, is an InputError that names the wish and the remedy. The
types of the fields are what they hold afterwards: a headroom may be given as "10%", rules as a mapping or as pairs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, TypedDict

import numpy as np

from placewise._util.option_table import PROBLEM_OPTIONS
from placewise._util.regex import compiled
from placewise._util.units import parse_bytes, parse_fraction
from placewise.errors import InputError
from placewise.model.problem import Headroom, Rule
from placewise.transform.precision import PRECISIONS

Rules = Mapping[str, str] | Iterable[Rule | tuple[str, str]]
"""Regular expressions and devices: a mapping, or rules or pairs where one expression has several devices."""

_TEXTS = (
    "objective", "execution", "communication", "memory", "view", "graph", "schedule", "optimizer", "recompute",
)  # fmt: skip
_SAME_PRECISION = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
MOST = 1 << 40
"""More than any dimension or number of samples."""


class ProblemKeywords(TypedDict, total=False):
    """The options of a problem as `place` and its kin take them by keyword; see `ProblemOptions`."""

    objective: str | None
    execution: str | None
    communication: str | None
    memory: str | None
    contiguous: bool | None
    convex: bool | None
    in_order: bool | None
    replicas: int | str | None
    tensor_parallel: int | str | None
    sequence_parallel: bool | None
    recompute: str | None
    microbatches: int | None
    step_samples: int | None
    schedule: str | None
    graph: str | None
    optimizer: str | None
    freeze: str | Sequence[str]
    dims: Mapping[str, int]
    view: str | None
    precision: str | None
    cache_type: str | None
    dtype: str | None
    tf32: bool | None
    costs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    pins: Rules | None
    forbid: Rules | None
    together: str | Sequence[str | Sequence[str]] | None
    headroom: float | str | Mapping[str, float | str] | Sequence[str] | None
    max_memory: Mapping[Any, float | str]
    exclude: str | Sequence[str]
    offload: bool | None
    supported: Rules | None
    unsupported: Rules | None
    cache: bool | None


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """What the user asks of a problem. None means the default of the model's format.

    Parameters
    ----------
    objective : {"latency", "throughput", "step"}
        Default: throughput for published workloads, else latency.
    execution : {"operator", "contention-free", "subgraph", "sequential"}
        How latency is executed (`Objective`). Default: operator.
    communication : {"blocking", "overlap", "duplex"}
        Of throughput (`Objective`). Default: blocking.
    memory : {"live", "resident", "sum"}
        How memory is counted (`Objective`). Default: live.
    contiguous : bool
        Whether stages form a chain. Default: True for throughput, False for latency.
    convex : bool
        No chain, but no path may leave a device and return. Default: False.
    in_order : bool
        Whether stages follow each other in the order of the devices. Default: False.
    replicas : int or "any"
        The most devices per stage, for throughput; 0 and "any" mean any number. Default: 1.
    tensor_parallel : int or "any"
        The most devices over which an op may be split; 0 and "any" mean any number. With it, `recompute` or
        `microbatches`, stages may also be replicated and recomputed, and the plan has `stages` (docs/judge.md).
        Default: ops are not split.
    sequence_parallel : bool
        Whether what lies between split products (norms, residual sums) is split by tokens, and all-gathers and
        reduce-scatters take the place of all-reduces: in every stage that splits its ops (docs/sharding.md). It needs
        `tensor_parallel`. Default: False.
    recompute : {"auto", "never", "always"}
        Whether training recomputes activations. Default: auto, which decides unit by unit.
    microbatches : int
        Micro-batches per training step, each a batch of the model. Default: 32.
    step_samples : int
        Samples per synchronization of replicas; 0 means one per replica. Default: 0.
    schedule : {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "auto"}
        Of a training pipeline; those after gpipe are for the objective step. Default: 1f1b; for step, auto.
    graph : {"inference", "training"}
        With "training", the model gets a backward pass and an optimizer (docs/training.md). Default: inference.
    optimizer : {"sgd", "momentum", "adam"}
        Of a training graph. Default: adam.
    freeze : str or sequence of str
        Regular expressions, searched in the names of weights: these are not trained.
    dims : mapping of str to int
        Sizes of symbolic dimensions, like ``{"batch": 8}``.
    view : {"folded", "raw"}
        Whether constants are folded away or kept. Default: folded.
    precision : {"fp32", "tf32", "fp16", "bf16", "fp64", "fp8", "int8", "int4"}
        What the runtime is taken to cast the model to (docs/costs.md); names of element types, like "bfloat16", mean
        the same. `dtype` is another name of this option. Default: what the model is in.
    cache_type : str
        GGUF: the type of the KV cache, as "q8_0", or of keys and values, as "q8_0,q4_0". Default: "f16".
    tf32 : bool
        Whether tensor cores multiply float32 in TF32. Default: as the runtime of the model's format does.
    costs : path or sequence of paths
        Files of measured or given op times, the later over the earlier, over the estimates (docs/measured.md).
    pins, forbid : mapping of str to str, or sequence of pairs
        Regular expressions and devices: ops whose name or scope matches go there, or stay away. Every rule holds.
    together : sequence of str or of tuples
        Ops that share a device: a regular expression makes one set per text that it finds in scopes or names, a class
        of modules ("BertLayer") one per module, a tuple is a set of names.
    headroom : float, str, mapping or sequence
        Memory to keep free of every accelerator: a share (0.1, "10%") or a size ("2GiB"); or by device, like
        ``{"cuda:0": "2GiB"}`` or ``["5%", "cuda:0=10%"]``. Default: 0; for llama.cpp, its compute buffer.
    max_memory : mapping of str to float or str
        Bytes, or sizes like "20GiB", that may be used of a device; 0 means not this one.
    exclude : str or sequence of str
        Regular expressions: devices to leave out.
    offload : bool
        With False, nothing may be on a CPU or a disk. Default: True.
    supported : mapping of str to str, or sequence of pairs
        Regular expressions of op kinds, and devices that can run no others. Default: every kind.
    unsupported : mapping of str to str, or sequence of pairs
        Regular expressions of op kinds, and devices that cannot run them.
    cache : bool
        Whether traced graphs and measured times are kept for the next time, and those that were kept are used.
        Default: True.
    spare : tuple of Headroom
        What `headroom` says of single devices, once it is read.

    Raises
    ------
    InputError
        If a value is not of its type, or cannot be read as it.

    Examples
    --------
    >>> ProblemOptions(headroom="10%", dims={"batch": 8}).headroom
    0.1

    """

    objective: str | None = None
    execution: str | None = None
    communication: str | None = None
    memory: str | None = None
    contiguous: bool | None = None
    headroom: float | None = None
    pins: tuple[Rule, ...] | None = None
    forbid: tuple[Rule, ...] | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    view: str | None = None
    costs: tuple[str, ...] = ()
    graph: str | None = None
    convex: bool | None = None
    schedule: str | None = None
    replicas: int | None = None
    tensor_parallel: int | None = None
    sequence_parallel: bool | None = None
    recompute: str | None = None
    microbatches: int | None = None
    step_samples: int | None = None
    precision: str | None = None
    cache_type: str | None = None
    tf32: bool | None = None
    optimizer: str | None = None
    freeze: tuple[str, ...] = ()
    together: tuple[str | tuple[str, ...], ...] | None = None
    spare: tuple[Headroom, ...] = ()
    max_memory: Mapping[str, float] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    offload: bool | None = None
    supported: tuple[Rule, ...] | None = None
    unsupported: tuple[Rule, ...] | None = None
    in_order: bool | None = None
    cache: bool | None = None
    dtype: InitVar[str | None] = None

    def __post_init__(self, dtype: str | None) -> None:
        if dtype is not None:
            if self.precision is not None:
                raise InputError("dtype and precision are one option", remedy="give precision alone")
            object.__setattr__(self, "precision", dtype)
        for name in _TEXTS:
            _text(name, getattr(self, name))
        clean: dict[str, Any] = {
            name: _truth(name, getattr(self, name))
            for name in ("contiguous", "convex", "offload", "in_order", "cache", "tf32", "sequence_parallel")
        }
        clean |= {name: _rules(name, getattr(self, name)) for name in ("pins", "forbid", "supported", "unsupported")}
        clean["precision"] = _precision(self.precision, self.tf32)
        clean["headroom"], spares = _headroom(self.headroom)
        clean["spare"] = spares or self.spare
        clean["max_memory"] = _memory(self.max_memory)
        clean["exclude"] = _patterns("exclude", self.exclude)
        clean["dims"] = _dims(self.dims)
        several = (self.costs,) if isinstance(self.costs, (str, os.PathLike)) else _several("costs", self.costs)
        clean["costs"] = tuple(_path("costs", path) for path in several if path != "")
        clean["freeze"] = _patterns("freeze", self.freeze)
        clean["together"] = None if self.together is None else _sets(self.together)
        clean["step_samples"] = None if self.step_samples is None else _whole("step_samples", self.step_samples, 0)
        if self.replicas is not None:
            clean["replicas"] = _whole("replicas", {"any": 0}.get(str(self.replicas), self.replicas), 0, ", or 'any'")
        if self.tensor_parallel is not None:
            most = {"any": 0}.get(str(self.tensor_parallel), self.tensor_parallel)
            clean["tensor_parallel"] = _whole("tensor_parallel", most, 0, ", or 'any'")
        if self.microbatches is not None:
            clean["microbatches"] = _whole("microbatches", self.microbatches, 1)
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    @property
    def splits(self) -> bool:
        """Whether ops may be split, or stages recomputed: then a problem has ways to run its units."""
        microbatches = None if self.objective == "step" else self.microbatches
        given = (self.tensor_parallel, self.recompute, microbatches, self.sequence_parallel or None)
        return any(value is not None for value in given)


def _text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise InputError(f"{name} is {_shown(value)}", remedy="give a text, or nothing for the default")


def canonical_precision(name: str) -> str:
    """The precision that a name or an element type means."""
    return _SAME_PRECISION.get(name, name)


def _precision(value: object, tf32: object) -> str | None:
    """The canonical name of a precision."""
    _text("precision", value)
    if value is None:
        return None
    name = canonical_precision(str(value))
    if name not in PRECISIONS:
        raise InputError(f"there is no precision {_shown(value)}", remedy=f"choose {', '.join(PRECISIONS)}")
    if tf32 is not None and ((name == "tf32" and not tf32) or (name not in ("fp32", "tf32") and tf32)):
        flag = "--tf32" if tf32 else "--no-tf32"
        raise InputError(f"--precision {name} and {flag} contradict each other", remedy="leave out one of them")
    return name


def _truth(name: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} is {_shown(value)}", remedy="give True or False, or nothing for the default")
    return None if value is None else bool(value)


def _headroom(value: Any) -> tuple[float | None, tuple[Headroom, ...]]:
    """The share of every accelerator, where only that is given, else what each amount is and of which device.

    A share of 0 is both, so that it counts as given.
    """
    if value is None:
        return None, ()
    if isinstance(value, Mapping):
        parsed = tuple(_spare(str(device), amount) for device, amount in value.items())
    else:
        several = isinstance(value, (list, tuple)) and value and all(isinstance(text, str) for text in value)
        parsed = tuple(_spare(*_of_device(amount)) for amount in (value if several else [value]))
    if len({spare.device for spare in parsed}) < len(parsed):
        raise InputError(f"headroom is {_shown(value)}", remedy="give one amount for each device")
    if len(parsed) == 1 and not parsed[0].device and not parsed[0].bytes:
        return parsed[0].share, () if parsed[0].share else parsed
    return None, parsed


def _of_device(amount: object) -> tuple[str, object]:
    device, _, rest = amount.rpartition("=") if isinstance(amount, str) else ("", "", amount)
    return device.strip(), rest


def _spare(device: str, amount: object) -> Headroom:
    if isinstance(amount, bool) or not isinstance(amount, (str, Real)):
        remedy = "give a share, like '10%' or 0.1, or a size, like '2GiB'"
        raise InputError(f"headroom is {_shown(amount)}", remedy=remedy)
    is_size = isinstance(amount, str) and amount.strip().endswith("B")
    try:
        parsed = (parse_bytes if is_size else parse_fraction)(amount if isinstance(amount, str) else float(amount))
    except InputError:
        problem = f"{amount!r} is neither a share nor a size"
        raise InputError(problem, where="headroom", remedy="write it like '10%' or '2GiB'") from None
    return Headroom(device, bytes=parsed) if is_size else Headroom(device, share=parsed)


def _memory(value: object) -> dict[str, float]:
    if not isinstance(value, Mapping):
        raise InputError(f"max_memory is {_shown(value)}", remedy="give a mapping like {'cuda:0': '20GiB'}")
    parsed: dict[str, float] = {}
    for name, size in value.items():
        if isinstance(size, bool) or not isinstance(size, (str, Real)) or isinstance(name, bool):
            raise InputError(f"the max_memory of {name!r} is {_shown(size)}", remedy="give a size, like '20GiB'")
        try:
            parsed[str(name).strip()] = parse_bytes(size if isinstance(size, str) else float(size))
        except InputError as error:
            raise error.at(f"max_memory of {name!r}") from None
    return parsed


def _whole(name: str, value: object, least: int, other: str = "") -> int:
    """A whole number, also as a text of digits: that is how the command line has it."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 15:
        value = int(value)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral) or not least <= int(value) < MOST:
        raise InputError(f"{name} is {_shown(value)}", remedy=f"give a whole number, {least} or more{other}")
    return int(value)


def _dims(value: object) -> dict[str, int]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InputError(f"dims is {_shown(value)}", remedy="give names and sizes, like {'batch': 8}")
    return {name: _whole(f"the dimension {name!r}", size, 0) for name, size in value.items()}


def _several(name: str, value: object) -> tuple[object, ...]:
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{name} is {_shown(value)}", remedy="give a text, or a list of them")
    return tuple(value)


def _patterns(name: str, value: object) -> tuple[str, ...]:
    texts = _several(name, (value,) if isinstance(value, str) else value)
    for text in texts:
        try:
            compiled(text if isinstance(text, str) else "(")
        except InputError:
            raise InputError(f"{name} holds {_shown(text)}", remedy="give regular expressions") from None
    return tuple(map(str, texts))


def _sets(value: object) -> tuple[str | tuple[str, ...], ...]:
    parsed: list[str | tuple[str, ...]] = []
    for item in _several("together", (value,) if isinstance(value, str) else value):
        if isinstance(item, (list, tuple)) and all(isinstance(op, str) for op in item):
            parsed.append(tuple(item))
        else:
            parsed += _patterns("together", item if isinstance(item, str) else (item,))
    return tuple(parsed)


def _path(name: str, value: object) -> str:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str):
        raise InputError(f"{name} is {_shown(value)}", remedy="give the path of a file")
    return path


def _rules(name: str, value: object) -> tuple[Rule, ...] | None:
    if value is None:
        return None
    remedy = "give a mapping of regular expressions to devices, or a list of such pairs"
    if isinstance(value, (str, np.ndarray)) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {_shown(value)}", remedy=remedy)
    parsed = []
    for item in value.items() if isinstance(value, Mapping) else value:
        pair = (item.pattern, item.device) if isinstance(item, Rule) else item
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise InputError(f"{name} holds {_shown(item)}", remedy=remedy)
        parsed.append(Rule(*pair))
    return tuple(parsed)


def _shown(value: object) -> str:
    """A value in a message: short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


NO_OPTIONS = ProblemOptions()


def options_from(keywords: Mapping[str, Any]) -> ProblemOptions:
    """Options from keyword arguments. Raises InputError for a name that does not exist, with the nearest that does."""
    known = [*(option.name for option in PROBLEM_OPTIONS), "dtype"]
    for name in keywords:
        if name not in known:
            near = get_close_matches(name, known, 1, 0.6)
            remedy = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(known)}"
            raise InputError(f"there is no option {name!r}", remedy=remedy)
    return ProblemOptions(**keywords)

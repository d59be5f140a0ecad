"""A PyTorch program as plain data: what programs, archives and recordings have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"  # what torch.export writes where it lost the path


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape, element type (a name of `DTYPES`) and strides (elements; None where unknown) of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ValueRef:
    """An argument that is a value of the listing: a tensor, or a number that only the run finds out."""

    name: str


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One call: `target` as ``namespace::name.overload``, `arguments` by the schema's names, `results` by value.

    Arguments are refs, numbers, texts, None, or lists of these. `scope` is the module path, `origin` the number of
    the node, `mutates` the names of the values that the call writes to in place, and `extra` attributes of its op.
    """

    name: str
    target: str
    arguments: Mapping[str, Any]
    results: tuple[str, ...]
    scope: str = ""
    origin: int = -1
    mutates: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def op(self) -> str:
        """``namespace::name``, without the overload."""
        return self.target.partition(".")[0]

    @property
    def refs(self) -> list[str]:
        """The values among the arguments, in order, those inside lists too."""
        return list(refs_in(list(self.arguments.values())))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that is a parameter, buffer or constant: `name` in the model, `storage` equal where two share memory.

    `trainable` is true for parameters that want a gradient.
    """

    value: str
    name: str
    storage: object
    trainable: bool


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """Calls in the order in which they run; `metas` holds every tensor, `inputs` and `outputs` are values.

    `written` are values whose contents the model leaves behind in a buffer or in an input.
    """

    metas: Mapping[str, TensorMeta]
    parameters: tuple[Parameter, ...]
    inputs: tuple[str, ...]
    calls: tuple[TracedCall, ...]
    outputs: tuple[str, ...]
    written: tuple[str, ...] = ()


def refs_in(argument: Any) -> Iterator[str]:
    """The names of the values in an argument, lists and mappings included."""
    if isinstance(argument, ValueRef):
        yield argument.name
    elif isinstance(argument, (list, tuple)):
        for item in argument:
            yield from refs_in(item)
    elif isinstance(argument, Mapping):
        for item in argument.values():
            yield from refs_in(item)


def class_of(name: str) -> str:
    """``BertLayer`` for ``transformers.models.bert.modeling_bert.BertLayer@1``."""
    return name.partition("@")[0].rpartition(".")[2]


def clean_scope(path: str) -> str:
    """``model.layers.3`` for ``L['self'].model.layers.3@1``; "" for the model itself and where there is no path."""
    return "" if path == NO_MODULE else path.removeprefix("L['self']").lstrip(".").partition("@")[0]

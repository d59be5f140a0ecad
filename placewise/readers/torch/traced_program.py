"""A PyTorch program as plain data: the common form of exported programs, archives and recordings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"  # written by torch.export if it lost the path


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape, dtype (a name in `DTYPES`) and strides (in elements; None if unknown) of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ValueRef:
    """An argument that is a value of the program: a tensor, or a number known only at run time."""

    name: str


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A call of `target` (``namespace::name.overload``) with `arguments` by schema name; `results` are value names.

    Arguments are refs, numbers, strings, None, or lists of these. `scope` is the module path, `origin` the number of
    the call, `mutates` the values that it modifies in place, and `extra` additional attributes of its op.
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
        """The values among the arguments, in order, including those in lists."""
        return list(refs_in(list(self.arguments.values())))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter, buffer or constant: `name` in the model; `storage` is equal if two share memory.

    `trainable` is true for parameters that require gradients.
    """

    value: str
    name: str
    storage: object
    trainable: bool


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """Calls in execution order; `metas` describes all tensors, `inputs` and `outputs` are value names.

    `written` are values that the model stores in a buffer or an input.
    """

    metas: Mapping[str, TensorMeta]
    parameters: tuple[Parameter, ...]
    inputs: tuple[str, ...]
    calls: tuple[TracedCall, ...]
    outputs: tuple[str, ...]
    written: tuple[str, ...] = ()


def refs_in(argument: Any) -> Iterator[str]:
    """The names of the values in an argument, including those in lists and mappings."""
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

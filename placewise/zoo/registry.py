"""The zoo by name: `names`, `describe`, `generate`."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from placewise.errors import InputError
from placewise.model.graph import Graph, Source
from placewise.zoo import cells, images, random, rnnlm, transformer, translation, wavenet
from placewise.zoo.net import NetBuilder
from placewise.zoo.workload import Workload

DTYPES = ("float32", "float16", "bfloat16", "float64")

ENTRIES: Mapping[str, Workload] = MappingProxyType(
    {
        entry.name: entry
        for family in (rnnlm, translation, transformer, images, cells, wavenet, random)
        for entry in family.ENTRIES
    }
)
_NO_DIMS: Mapping[str, int] = MappingProxyType({})


def names() -> tuple[str, ...]:
    """The names of all workloads."""
    return tuple(ENTRIES)


def describe(name: str) -> Workload:
    """A workload's summary, paper and hyper-parameters; `str` of it is one line. Raises InputError."""
    if name not in ENTRIES:
        raise InputError(f"the zoo has no {name!r}", remedy=f"{_suggest(name)}it has {', '.join(ENTRIES)}")
    return ENTRIES[name]


def _suggest(name: str) -> str:
    """Names that the user may mean: those with this prefix, else the most similar one."""
    longer = [known for known in ENTRIES if name and known.startswith(name)]
    near = longer or get_close_matches(name, ENTRIES, n=1)
    return f"did you mean {' or '.join(near)}? " if near else ""


def generate(name: str, dims: Mapping[str, int] = _NO_DIMS, dtype: str = "float32", *, training: bool = False) -> Graph:
    """Generate the forward graph of a workload.

    `dims` replaces hyper-parameters (`describe(name).dims`); weights and activations have the floating-point type
    `dtype`. With `training` the graph includes what runs in training only: dropout, auxiliary classifiers. Raises
    InputError for an unknown name, dimension or type, and for sizes that do not fit or are excessive.
    """
    entry = describe(name)
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}", where=f"zoo:{name}", remedy=f"choose {', '.join(DTYPES)}")
    sizes = entry.sizes(dims)
    options = {"dims": dict(dims), "dtype": dtype, "training": training}
    source = Source(f"zoo:{name}", "", "zoo", options)
    try:
        if entry.graph is not None:
            return entry.graph(sizes, dtype).with_source(source)
        net = NetBuilder(dtype, training=training)
        if entry.build is not None:
            entry.build(net, sizes)
        return net.builder.build(source)
    except InputError as error:
        raise error.at(f"zoo:{name}") from None

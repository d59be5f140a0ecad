"""trace_module: an nn.Module with example inputs → its graph, by torch.export, else by running it once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from placewise.errors import InputError, MissingExtraError
from placewise.model.graph import Source
from placewise.readers.base import ImportedModel
from placewise.readers.torch.assemble import assemble
from placewise.readers.torch.inline import inlined
from placewise.readers.torch.sizes import is_from_data

if TYPE_CHECKING:
    from torch import nn

FORMAT = "torch-module"
RECORDED = "torch-modules"
"""`Source.format` of graphs that were recorded because torch.export failed."""


def trace_module(
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    name: str = "",
) -> ImportedModel:
    """The raw view of one forward pass of `module`, in the mode (training or not) that it is in.

    `args` and `kwargs` are example inputs; only their shapes and types count, and a module on the meta device gets
    them there. `dims` lengthens or shortens them: ``{"input_ids:0": 8}`` makes axis 0 of `input_ids` 8, and
    ``"batch"`` is axis 0 of all inputs. Nothing is computed and no memory is taken, unless torch.export fails: then
    the module runs once, as it is, every op that it calls is recorded, and the first warning says so
    (`Source.format` is then `RECORDED`).

    Raises InputError for a module or inputs that do not go together, MissingExtraError without PyTorch.
    """
    try:
        from placewise.readers.torch import example, export, record
    except ImportError:
        raise MissingExtraError("reading PyTorch models", "torch") from None
    module = example.unwrapped(module)
    called = name or type(module).__name__
    dims = dict(dims or {})
    try:
        of_data = {key: number for key, number in dims.items() if is_from_data(key)}
        of_inputs = {key: number for key, number in dims.items() if key not in of_data}
        case = example.prepared(module, args, {} if kwargs is None else kwargs, of_inputs)
        listing, reason = export.exported(case, of_data)
        if listing is None:
            listing = record.recorded(case, reason)
        if not listing.calls:
            raise InputError("it calls no operation", remedy="give a module that computes something")
    except InputError as error:
        raise error.at(called) from None
    source = Source(called, "", RECORDED if reason else FORMAT, options={"dims": dims}, view="raw")
    return ImportedModel(assemble(inlined(listing), source), warnings=_warnings(reason))


def _warnings(reason: str) -> tuple[str, ...]:
    if not reason:
        return ()
    return (
        f"torch.export cannot take this module ({reason}): the graph is what one run of it called, layer by layer; "
        "branches not taken are missing, and so is what depends on another op through Python numbers alone",
    )

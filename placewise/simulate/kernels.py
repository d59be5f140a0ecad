"""How Placewise compiles: the one decorator of its numba kernels, and the line that explains the wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

Function = Callable[..., Any]
log = logging.getLogger("placewise")

_LEAN: dict[str, Any] = {"nogil": True, "_nrt": False}
_KERNEL: dict[str, Any] = {"cache": True, "no_cfunc_wrapper": True}
_INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""No way in from Python for what only kernels call: to unpack large named tuples takes long to compile."""


class _CompileNotice(event.Listener):
    """Says once that kernels are being compiled; later runs load them from numba's cache."""

    said = False

    def on_start(self, event: event.Event) -> None:
        if not _CompileNotice.said:
            _CompileNotice.said = True
            log.warning("compiling kernels (only once: they are cached on disk)")

    def on_end(self, event: event.Event) -> None:
        return


def kernel(function: Function) -> Function:
    """Compile on first call, cache on disk, release the interpreter lock while running."""
    compiled: Function = numba.njit(nogil=True, **_KERNEL)(function)
    return compiled


def helper(function: Function) -> Function:
    """A function that only kernels call, never Python: compiled into them, cached with them.

    A call that is not inlined copies what it is given, so that a helper for a hot loop takes the columns that it
    reads and not a whole `Arrays`.
    """
    compiled: Function = numba.njit(nogil=True, **_INNER)(function)
    return compiled


def lean_kernel(function: Function) -> Function:
    """A kernel that makes no arrays: references to its arrays are not counted.

    numba counts every array that is taken out of a named tuple, with atomic adds: where helpers are given such tuples
    in a hot loop, that is most of the time. What it calls is best lean too.
    """
    compiled: Function = numba.njit(**_LEAN, **_KERNEL)(function)
    return compiled


def lean_helper(function: Function) -> Function:
    """A helper that makes no arrays, for lean kernels."""
    compiled: Function = numba.njit(**_LEAN, **_INNER)(function)
    return compiled


def inlined(function: Function) -> Function:
    """A lean helper that is copied into its callers, so that handing it large named tuples costs nothing."""
    compiled: Function = numba.njit(forceinline=True, **_LEAN, **_INNER)(function)
    return compiled


def spliced(function: Function) -> Function:
    """A lean helper whose code is put into its callers before they are compiled: for what one kernel calls once."""
    compiled: Function = numba.njit(inline="always", **_LEAN, **_INNER)(function)
    return compiled


event.register("numba:compile", _CompileNotice())  # type: ignore[no-untyped-call]

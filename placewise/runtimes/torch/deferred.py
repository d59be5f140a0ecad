"""A worker's object that is made after the worker started, so that several are made side by side."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """Stands for an object of the class ``module:Class`` once `make` was asked for."""

    def __init__(self) -> None:
        self._made: Any = None

    def make(self, served: str, args: tuple[Any, ...]) -> None:
        module, _, name = served.partition(":")
        self._made = getattr(import_module(module), name)(*args)

    def do(self, method: str, args: tuple[Any, ...]) -> Any:
        return getattr(self._made, method)(*args)

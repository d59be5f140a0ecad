"""Workers in this very process: every call runs at once, in order. A call that raises Death kills its worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from placewise.errors import RunError
from placewise.processes.pool import WorkerHandle


class Death(BaseException):
    """Kills a worker."""


class LocalHandle:
    """An object of this process."""

    def __init__(self) -> None:
        self.alive, self.object = True, None
        self.answers: list[tuple[str, Any]] = []

    def tell(self, method: str, *args: Any) -> None:
        try:
            if self.object is None:
                module, _, name = method.partition(":")
                self.object = getattr(import_module(module), name)(*args)
                self.answers.append(("ok", None))
            else:
                self.answers.append(("ok", getattr(self.object, method)(*args)))
        except Death as death:
            self.answers.append(("death", str(death)))
        except Exception as error:
            self.answers.append(("error", str(error)))

    def answer(self) -> Any:
        kind, value = self.answers.pop(0)
        self.alive = kind != "death"
        if kind != "ok":
            raise RunError(value)
        return value

    def kill(self) -> None:
        self.alive = False


class LocalBackend:
    """This process."""

    def start_worker(self, served: str, *args: Any, name: str, measures: bool) -> LocalHandle:
        handle = LocalHandle()
        handle.tell(served, *args)
        return handle

    def ready(self, handles: Sequence[WorkerHandle], seconds: float) -> Sequence[WorkerHandle]:
        return [handle for handle in handles if handle.answers]


@dataclass(frozen=True)
class Here:
    """Workers in this process."""

    controllers: int = 2
    workers: int = 2
    limit: float = 60.0

    def backend(self) -> LocalBackend:
        return LocalBackend()

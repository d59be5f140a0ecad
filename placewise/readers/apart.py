"""Read ONNX files in a process of their own: the onnx package runs native code on whatever a file holds.

A model of a few bytes can keep its shape inference busy for ever, or make it ask for all memory. The process has limits
of both, and waits for the next file. This module imports no numpy: a command starts the process first, which then loads
the onnx package while the command loads the rest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from placewise import errors
from placewise.errors import InputError, InternalError, ModelFileError, RunError
from placewise.processes.worker import START, Worker

if TYPE_CHECKING:
    from placewise.readers.base import ImportedModel

MIN_SECONDS, SECONDS_PER_BYTE, MAX_SECONDS = 10.0, 20e-6, 3600.0
"""How long reading may take; a model of 10,000 ops has 3 MB and takes 1.5 s."""
MIN_MEMORY, MEMORY_PER_BYTE = 2 << 30, 8
"""Bytes that the process may allocate."""
_REMEDY = "export or download the model again"
_idle: list[Worker] = []
_lock = threading.Lock()


class Reader:
    """What the process does."""

    def __init__(self) -> None:
        from placewise.readers.onnx import read_onnx

        self._read_onnx = read_onnx

    def read(self, path: str, folder: str, dims: Mapping[str, int], memory: int) -> tuple[str, Any]:
        """The model at a path relative to `folder`, or what is wrong with it."""
        with suppress(OSError):
            os.chdir(folder)
        _limit_memory(memory)
        try:
            return "", self._read_onnx(Path(path), dims=dims)
        except InputError as error:
            return type(error).__name__, (error.problem, error.where, error.remedy)


def start_reader() -> None:
    """Start a process, unless one waits: `read_onnx_apart` finds it ready, or waits for the rest of its imports."""
    with _lock:
        if not _idle:
            _idle.append(_new_worker())


def read_onnx_apart(path: Path, *, dims: Mapping[str, int] = MappingProxyType({})) -> ImportedModel:
    """As `read_onnx`. Raises ModelFileError also where reading takes too long or too much memory, or crashes."""
    size = os.stat(path).st_size
    seconds = min(MIN_SECONDS + SECONDS_PER_BYTE * size, MAX_SECONDS)
    memory = MIN_MEMORY + MEMORY_PER_BYTE * size
    with _borrow_worker() as worker:
        try:
            fault, answer = worker.ask("read", str(path), _working_folder(), dict(dims), memory, timeout=seconds)
        except RunError as error:
            raise _explain(error, seconds, alive=worker.alive).at(str(path)) from None
    if fault:
        problem, where, remedy = answer
        raise getattr(errors, fault)(problem, where=where, remedy=remedy)
    model: ImportedModel = answer
    return model


@contextmanager
def _borrow_worker() -> Iterator[Worker]:
    """The process that waits, or a new one. It is ended if its answer is not waited for."""
    with _lock:
        worker = _idle.pop() if _idle else None
    if worker is not None and not worker.alive:
        worker.close()
        worker = None
    worker = worker or _new_worker()
    try:
        if not worker.ready:
            worker.answer(START)
        yield worker
    except InputError:
        raise
    except BaseException:
        worker.kill()
        raise
    finally:
        with _lock:
            kept = worker.alive and not _idle
            if kept:
                _idle.append(worker)
        if not kept:
            worker.close()


def _new_worker() -> Worker:
    lean = {"OPENBLAS_NUM_THREADS": "1"}  # its threads are a third of what importing numpy costs
    return Worker("placewise.readers.apart:Reader", name="the ONNX reader", environment=lean, start=None)


def _explain(error: RunError, seconds: float, *, alive: bool) -> ModelFileError:
    """What it means for the file that the process failed. Raises InternalError for a mistake of ours."""
    text = str(error)
    if "memory ran out" in text:
        return ModelFileError("reading it takes more memory than a model of this size may need", remedy=_REMEDY)
    if alive:
        raise InternalError(text)
    if "did not answer" in text:
        return ModelFileError(f"reading it does not end within {seconds:.0f} s", remedy=_REMEDY)
    return ModelFileError(f"the onnx package fails on it: {text}", remedy=_REMEDY)


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _limit_memory(size: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if hard < 0 else min(size, hard), hard))


def _forget_workers() -> None:
    """In a forked process: the workers are those of its parent."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)

"""Fold and save a model in OpenVINO in a process of its own: its native code reads whatever a user's file holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from placewise.errors import ExportError, RunError
from placewise.model.graph import Graph, Source
from placewise.processes.scratch import scratch_folder
from placewise.processes.worker import Worker
from placewise.readers.openvino.folded_model import FoldedModel, Shapes, import_openvino, input_shapes, load_folded

MODEL, WEIGHTS = "model.xml", "model.bin"
MIN_SECONDS, SECONDS_PER_BYTE = 120.0, 100e-9
MIN_MEMORY, MEMORY_PER_BYTE = 8 << 30, 8
"""What one request may take, by the bytes of the file and of its weights."""


class FoldServer:
    """The object in the process: one model."""

    def open(self, path: str, file_format: str, shapes: Shapes) -> tuple[FoldedModel, tuple[str, ...]]:
        self._model, listing, notes = load_folded(Path(path), file_format, shapes)
        return listing, notes

    def save(self, folder: str) -> None:
        """Write the model as IR into a folder."""
        import_openvino().save_model(self._model, Path(folder) / MODEL, compress_to_fp16=False)


class FoldProcess:
    """The process, and the model that a graph was read from in it.

    Raises ExportError where OpenVINO crashes on the file or takes longer, or more memory, than a file of this size may
    need; RunError if it cannot read it.
    """

    def __init__(self, graph: Graph, source: Source) -> None:
        size = os.stat(source.path).st_size + int(graph.weights.bytes.clip(0).sum())
        self._path, self._seconds = source.path, MIN_SECONDS + SECONDS_PER_BYTE * size
        self._worker = Worker(
            "placewise.exporters.openvino_process:FoldServer",
            name="OpenVINO",
            memory=MIN_MEMORY + MEMORY_PER_BYTE * size,
        )
        try:
            path = os.path.abspath(source.path)
            self.listing, self.notes = self._ask("open", path, source.format, input_shapes(graph))
        except BaseException:
            self._worker.kill()
            raise

    def save(self) -> dict[str, bytes]:
        """The files of the model as IR."""
        with scratch_folder() as folder:
            self._ask("save", str(folder))
            return {name: (folder / name).read_bytes() for name in (MODEL, WEIGHTS)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            return self._worker.ask(method, *args, timeout=self._seconds)
        except RunError as error:
            if self._worker.alive and "memory ran out" not in str(error):
                raise
            raise ExportError(f"OpenVINO fails on this model: {error}", where=self._path) from None

"""The object in the worker: a program that is split into pieces for its lanes, and the threads that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt
import torch

from placewise.readers.torch.cutting import build_piece, inputs_of, outputs_of, weights_of
from placewise.runtimes.torch.arrays import array_of, tensor_of
from placewise.runtimes.torch.lanes import Lanes
from placewise.runtimes.torch.payload import LanePlace, Payload
from placewise.runtimes.torch.split_program import load_program, set_tf32, split_program
from placewise.runtimes.torch.task_graph import LaneTask, TaskGraph


class LaneServer:
    """Runs a program on `lanes`. Raises RunError for a program or a placement that cannot run."""

    def __init__(self, payload: Payload, lanes: Sequence[LanePlace]) -> None:
        self._lanes = Lanes(lanes)
        set_tf32(payload.tf32)
        self._load(payload)

    def move(self, payload: Payload) -> list[int]:
        """Run another placement from now on; the number of pieces of each lane."""
        self._graph.close()
        self._load(payload)
        return self.pieces()

    def _load(self, payload: Payload) -> None:
        program, lanes = load_program(payload), self._lanes.places
        values, moved = weights_of(program), dict[tuple[str, str], torch.Tensor]()
        split = split_program(program, payload, values)
        self._inputs = inputs_of(program)
        tasks = []
        for lane, nodes, makes in split.pieces:
            piece = build_piece(program, nodes, makes, values, device=lanes[lane].device, moved=moved)
            tasks.append(LaneTask(lane, piece.module, piece.reads, piece.makes))
        self._constant = {name: array_of(values[name]) for name in outputs_of(program) if name in values}
        self._counts = [sum(task.lane == lane for task in tasks) for lane in range(len(lanes))]
        self._graph = TaskGraph(
            tasks,
            [partial(self._lanes.enter, lane) for lane in range(len(lanes))],
            [name for name in outputs_of(program) if name not in values],
            send=self._lanes.send,
            receive=self._lanes.receive,
            wait=self._lanes.wait,
            strict=split.writes,
        )

    def pieces(self) -> list[int]:
        """The number of pieces of each lane."""
        return self._counts

    def run(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """The outputs for one sample."""
        outputs, _ = self._graph.run([self._to_tensors(inputs)])
        return {name: array_of(value.cpu()) for name, value in outputs[0].items()} | self._constant

    def time(self, samples: Sequence[Mapping[str, npt.NDArray[Any]]], in_flight: int) -> list[float]:
        """Seconds of each sample alone, or, with several in flight, the mean per sample of the stream."""
        tensors = [self._to_tensors(sample) for sample in samples]
        if in_flight > 1:
            return [self._graph.run(tensors, in_flight)[1] / max(len(tensors), 1)]
        return [self._graph.run([sample])[1] for sample in tensors]

    def close(self) -> None:
        """End the threads of the lanes."""
        self._graph.close()

    def _to_tensors(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        missing = [name for name in self._inputs if name not in inputs]
        tensors = {name: tensor_of(array) for name, array in inputs.items()}
        if self._lanes.has_gpu:
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return tensors | dict.fromkeys(missing)

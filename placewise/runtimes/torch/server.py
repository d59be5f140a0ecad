"""What the worker holds: a program, cut into pieces for its lanes, and the threads that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy.typing as npt
import torch

from placewise.readers.torch.cutting import build_piece, inputs_of, outputs_of, weights_of
from placewise.runtimes.torch.arrays import array_of, tensor_of
from placewise.runtimes.torch.lanes import Lanes
from placewise.runtimes.torch.loading import load
from placewise.runtimes.torch.payload import LanePlace, Payload
from placewise.runtimes.torch.split_program import cut_up
from placewise.runtimes.torch.task_graph import Flow, Task


class Server:
    """Runs a program on `lanes`; raises RunError for what cannot run so."""

    def __init__(self, handed: Payload, lanes: Sequence[LanePlace]) -> None:
        self._lanes = Lanes(lanes)
        self._take(handed)

    def move(self, handed: Payload) -> list[int]:
        """Run another placement from now on; what `pieces` says then."""
        self._flow.close()
        self._take(handed)
        return self.pieces()

    def _take(self, handed: Payload) -> None:
        program, lanes = load(handed), self._lanes.places
        held, moved = weights_of(program), dict[tuple[str, str], torch.Tensor]()
        cut = cut_up(program, handed, held)
        self._inputs = inputs_of(program)
        tasks = []
        for lane, nodes, makes in cut.pieces:
            piece = build_piece(program, nodes, makes, held, device=lanes[lane].device, moved=moved)
            tasks.append(Task(lane, piece.module, piece.reads, piece.makes))
        self._constant = {name: array_of(held[name]) for name in outputs_of(program) if name in held}
        outputs = [name for name in outputs_of(program) if name not in held]
        self.counts = [sum(task.lane == lane for task in tasks) for lane in range(len(lanes))]
        self._flow = Flow(
            tasks,
            [partial(self._lanes.enter, lane) for lane in range(len(lanes))],
            outputs,
            send=self._lanes.send,
            receive=self._lanes.receive,
            strict=cut.writes,
        )

    def pieces(self) -> list[int]:
        """How many pieces each lane has."""
        return self.counts

    def run(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """The outputs for one sample."""
        outputs, _ = self._flow.run([self._given(inputs)])
        return {name: array_of(value.cpu()) for name, value in outputs[0].items()} | self._constant

    def time(self, samples: Sequence[Mapping[str, npt.NDArray[Any]]], in_flight: int) -> list[float]:
        """Seconds of each sample alone, or, with several in flight, the mean per sample of the stream."""
        given = [self._given(sample) for sample in samples]
        if in_flight > 1:
            return [self._flow.run(given, in_flight)[1] / max(len(given), 1)]
        return [self._flow.run([sample])[1] for sample in given]

    def close(self) -> None:
        """End the threads of the lanes."""
        self._flow.close()

    def _given(self, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        missing = [name for name in self._inputs if name not in inputs]
        return {name: tensor_of(array) for name, array in inputs.items()} | dict.fromkeys(missing)

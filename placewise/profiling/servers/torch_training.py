"""Time every call of a torch.export program while it trains: forward, backward, and the optimizer's updates."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch

from placewise.costing.measured.table import TimingRow
from placewise.errors import RunError
from placewise.profiling.servers.clocks import Clock
from placewise.profiling.servers.torch import ProgramServer, TimingInterpreter
from placewise.profiling.servers.trained_ops import TrainedOps
from placewise.profiling.servers.window import ProfiledRuns, TimeWindow, time_in_turns
from placewise.readers.torch.cutting import calls_of
from placewise.readers.torch.pipeline_trainer import WholeTrainer, make_optimizer
from placewise.runtimes.binding import Place
from placewise.runtimes.inputs import Arrays
from placewise.runtimes.torch.payload import Payload
from placewise.runtimes.torch.split_program import load_program

LOSS = "loss"


class TorchTrainingServer(ProgramServer):
    """Times a training step of one micro-batch at one place.

    The backward pass of a call is that of the nodes of autograd that the call made; sums of gradients into those of a
    weight count for the first call that reads it. Every weight's update is timed on its own. The learning rate is 0.
    """

    def __init__(self, path: str, ops: TrainedOps, place: Place, trusted: bool = False, tf32: str = "nothing") -> None:
        super().__init__(place, tf32)
        self._ops = ops
        program = load_program(Payload(path, path, {}, {}, {}, trusted))
        self._numbers = {node.name: number for number, node in enumerate(calls_of(program))}
        plan = {
            "shapes": ops.shapes, "frozen": ops.frozen, "seed": 0, "microbatches": 1,
            "optimizer": ops.optimizer, "learning_rate": 0.0,
        }  # fmt: skip
        try:
            self._trainer = WholeTrainer(program, plan, device=self._device)
        except ValueError as error:
            raise RunError(f"it cannot train: {error}") from None
        self._optimizers = {
            name: make_optimizer(plan, [parameter]) for name, parameter in self._trainer.parameters.items()
        }

    def measure(self, inputs: Arrays, window: TimeWindow) -> ProfiledRuns:
        """Time the whole step, and every call, in turns; the median of every call. Inputs are drawn as in training."""
        row = self._trainer.source.microbatch(1, 0)
        tensors = [value.to(self._device) for value in row.inputs]
        timing = _TimedStep(self._trainer, self._clock)
        updates: dict[str, list[float]] = {name: [] for name in self._optimizers}

        def whole() -> None:
            self._trainer.loss(self._trainer.module(*tensors), None).backward()  # type: ignore[no-untyped-call]
            for optimizer in self._optimizers.values():
                optimizer.step()
            self._clock.wait()

        def apart() -> None:
            timing.run(tensors)
            for name, optimizer in self._optimizers.items():
                begin = self._clock.mark()
                optimizer.step()
                end = self._clock.mark()
                self._clock.wait()
                updates[name].append(self._clock.seconds(begin, end))

        try:
            seconds, _ = time_in_turns([whole, apart], window)
        except (RuntimeError, NotImplementedError) as error:
            raise RunError(f"PyTorch cannot train it: {str(error).splitlines()[0][:300]}") from None
        rows = [self._row(name, times) for name, times in timing.seconds.items()]
        rows += [self._update_row(name, times) for name, times in updates.items()]
        return ProfiledRuns(tuple(seconds), tuple(row for row in rows if row.ops), 0.0)

    def _row(self, name: tuple[str, bool], times: list[float]) -> TimingRow:
        call, backward = name
        if call == LOSS:
            ops = self._ops.loss_backward if backward else self._ops.loss
        else:
            ops = (self._ops.backward if backward else self._ops.forward).get(self._numbers.get(call, -1), ())
        return TimingRow(f"{call}/grad" if backward else call, float(median(times[1:])), ops=ops)

    def _update_row(self, name: str, times: list[float]) -> TimingRow:
        names = [name, *(other for other, own in self._trainer.aliases.items() if own == name)]
        ops = tuple(op for known in names for op in self._ops.updates.get(known, ()))
        return TimingRow(f"{name}/update", float(median(times[1:])), ops=ops)


class _TimedStep:
    """Forward and backward passes, call by call; `seconds` of each run by call, forward or backward."""

    def __init__(self, trainer: WholeTrainer, clock: Clock) -> None:
        self._trainer, self._clock = trainer, clock
        self.seconds: dict[tuple[str, bool], list[float]] = {}
        self._marks: list[tuple[tuple[str, bool], Any, Any]] = []

    def run(self, tensors: list[torch.Tensor]) -> None:
        """Run once; sums over the parts of a call."""
        interpreter = _NotingInterpreter(self._trainer.module, self._clock)
        results = interpreter.run(*tensors)
        begin = self._clock.mark()
        loss = self._trainer.loss(results, None)
        end = self._clock.mark()
        self._marks = [((name, False), low, high) for name, low, high in interpreter.marks]
        self._marks.append(((LOSS, False), begin, end))
        seen: set[Any] = set()
        for name, made in [*interpreter.made, (LOSS, loss)]:
            for value in made if isinstance(made, (tuple, list)) else (made,):
                self._watch(name, value, seen)
        loss.backward()  # type: ignore[no-untyped-call]
        self._clock.wait()
        sums: dict[tuple[str, bool], float] = {}
        for key, low, high in self._marks:
            sums[key] = sums.get(key, 0.0) + self._clock.seconds(low, high)
        for key, total in sums.items():
            self.seconds.setdefault(key, []).append(total)

    def _watch(self, name: str, value: Any, seen: set[Any]) -> None:
        """Note when the nodes of autograd run that this call made, and no earlier one."""
        waiting = [value.grad_fn] if isinstance(value, torch.Tensor) and value.grad_fn is not None else []
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            self._time_node(name, node)
            waiting += [before for before, _ in node.next_functions if before is not None]

    def _time_node(self, name: str, node: Any) -> None:
        begins: list[Any] = []
        node.register_prehook(lambda *_: begins.append(self._clock.mark()))
        node.register_hook(lambda *_: self._marks.append(((name, True), begins.pop(), self._clock.mark())))


class _NotingInterpreter(TimingInterpreter):
    """Keeps what every call makes, in order."""

    def __init__(self, module: torch.fx.GraphModule, clock: Clock) -> None:
        super().__init__(module, clock)
        self.made: list[tuple[str, Any]] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            self.made.append((n.name, result))
        return result

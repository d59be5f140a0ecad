"""The tasks of one training step: what every device does under a schedule, and what passes between stages."""

from __future__ import annotations

from dataclasses import dataclass, field

from placewise.errors import RunError
from placewise.model.placement import Placement
from placewise.model.result import Violation
from placewise.runtimes.emulated.builder import ProgramBuilder
from placewise.runtimes.emulated.program import TaskOp
from placewise.simulate.step.judge import find_schedule
from placewise.simulate.step.orders import Task, device_orders, join_orders, tasks_before
from placewise.simulate.step.pipelines import pipeline_of
from placewise.simulate.step.program import hops_by_reader
from placewise.simulate.step.simulate import sync_seconds
from placewise.simulate.step.stage_costs import NOWHERE, Hop, Hops, Pipeline, StageCosts, cost_stages, sum_by


def add_step_tasks(b: ProgramBuilder, placement: Placement) -> None:
    """Tasks of all micro-batches on all copies of the pipeline, then gradients that are shared, then the update.

    A device follows the order of the schedule; a link or a wire takes what is ready first, and what leaves host memory
    is not ready before what its receiver needs earlier has come over the link. Every task is a step that
    reads what others hand on, so that a task that ran too early would be found out. Raises RunError if the placement
    is no pipeline.
    """
    pipeline = pipeline_of(b.problem, placement, find_schedule(b.problem, placement))
    if isinstance(pipeline, Violation):
        raise RunError(f"the placement is no pipeline: {pipeline.message}")
    b.forget_ops()
    copies = [_Copy(b, pipeline, copy) for copy in range(len(pipeline.replicas))]
    for copy in copies:
        copy.add_microbatches(b.problem.constraints.microbatches // len(copies))
    update = sum_by(pipeline.stage_places(), copies[0].costs.update, len(pipeline.devices))
    _add_updates(b, copies, sync_seconds(b.problem, pipeline).tolist(), update.tolist())


@dataclass(slots=True)
class _Sent:
    """Something that a task makes and that may pass over links: its tensor, and the task after which it is there."""

    tensor: int
    task: int


@dataclass(slots=True)
class _Copy:
    """One copy of the pipeline, and the last task of each of its devices."""

    b: ProgramBuilder
    pipeline: Pipeline
    copy: int
    costs: StageCosts = field(init=False)
    devices: tuple[int, ...] = field(init=False)
    places: list[int] = field(init=False)
    last: dict[int, _Sent] = field(default_factory=dict)
    moved: dict[tuple[int, int], _Sent] = field(default_factory=dict)
    handed: dict[tuple[int, int], dict[int, _Sent]] = field(default_factory=dict)
    queued: dict[tuple[int, int], int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.costs = cost_stages(self.b.problem, self.pipeline, self.copy)
        self.devices, self.places = self.pipeline.replicas[self.copy], self.pipeline.stage_places()

    def add_microbatches(self, microbatches: int) -> None:
        """All tasks, each after the one before it on its device, and the transfers between them."""
        b, costs, count = self.b, self.costs, self.pipeline.n_stages
        hops, needed = costs.passed, hops_by_reader(costs.passed.hops)
        made_by: dict[int, list[int]] = {}
        for h, hop in enumerate(hops.hops):
            made_by.setdefault(hop.source, []).append(h)
        orders = self.pipeline.orders or device_orders(self.pipeline.schedule, len(self.devices), microbatches)
        at: dict[Task, _Sent] = {}
        for task in join_orders(orders, count - 1):
            own, i, place = task.kind * count + task.stage, task.microbatch, self.places[task.stage]
            device = self.devices[place]
            needs = [self._on_device(at[other], device) for other in tasks_before(task, count - 1)]
            for h in needed.get(own, ()):
                if hops.hops[h].by_receiver:
                    self._fetch(h, hops.hops[h], i, place)
                needs.append(self._on_device(self.moved[h, i], device))
            needs += [self.last[place]] if place in self.last else []
            made = {-1: b.new_tensor(0)}
            made |= {h: b.new_tensor(int(hops.bytes[h])) for h in made_by.get(own, ())}
            number = self._work(device, float(costs.seconds[own]), needs, tuple(made.values()))
            at[task] = self.last[place] = _Sent(made[-1], number)
            position = self.done[place] = self.done.get(place, 0) + 1
            self.handed[own, i] = {h: _Sent(tensor, number) for h, tensor in made.items()}
            for h in made_by.get(own, ()):
                if not hops.hops[h].by_receiver:
                    self.moved[h, i] = self._carry(hops, h, self.handed[own, i][h], (position, place))

    def exchange(self, hops: Hops) -> dict[int, list[_Sent]]:
        """What passes once per step after the last tasks of devices, link by link in order; by the target's place."""
        b, moved, arrived = self.b, dict[int, _Sent](), dict[int, list[_Sent]]()
        for h, hop in enumerate(hops.hops):
            before = moved[hop.after] if hop.after != NOWHERE else self.last[self.places[hop.source]]
            sent = _Sent(b.new_tensor(int(hops.bytes[h])), before.task)
            peer = b.place(self.devices[self.places[hop.source]]) if hop.after == NOWHERE else b.host
            made = b.add(peer, 0.0, (before.task,), steps=(self._hold(before, peer, (sent.tensor,)),))
            place = self.places[hop.end]
            moved[h] = self._carry(hops, h, _Sent(sent.tensor, made), (self.done[place] + 1, place))
            for reader in hop.readers:
                arrived.setdefault(self.places[reader], []).append(moved[h])
        return arrived

    def add_task(self, place: int, seconds: float, needs: list[_Sent]) -> _Sent:
        """A task of the device at a place, after its last one and what else it needs."""
        device = self.devices[place]
        needs = [self._on_device(sent, device) for sent in needs] + [self.last[place]] * (place in self.last)
        tensor = self.b.new_tensor(0)
        self.last[place] = _Sent(tensor, self._work(device, seconds, needs, (tensor,)))
        return self.last[place]

    def _work(self, device: int, seconds: float, needs: list[_Sent], makes: tuple[int, ...]) -> int:
        step = self.b.new_step(tuple(dict.fromkeys(sent.tensor for sent in needs)), makes)
        engine = self.b.resource(device, "compute")
        waits = [sent.task for sent in needs]
        return self.b.add(device, seconds, waits, resource=engine, order=(step.op, -1, -1), steps=(step,))

    def _on_device(self, sent: _Sent, device: int) -> _Sent:
        self.b.hold(sent.task, device, sent.tensor)
        return sent

    def _hold(self, sent: _Sent, peer: int, makes: tuple[int, ...]) -> TaskOp:
        self.b.hold(sent.task, peer, sent.tensor)
        return self.b.new_step((sent.tensor,), makes)

    def _fetch(self, h: int, hop: Hop, i: int, place: int) -> None:
        """A transfer out of host memory: of a model input, of what came there, or of what a CPU made."""
        b, hops = self.b, self.costs.passed
        if hop.after != NOWHERE:
            there = self.moved[hop.after, i]
            tensor = b.new_tensor(int(hops.bytes[h]))
            made = b.add(b.host, 0.0, (there.task,), steps=(self._hold(there, b.host, (tensor,)),))
            sent = _Sent(tensor, made)
        elif hop.source == NOWHERE:
            sent = _Sent(b.new_tensor(int(hops.bytes[h]), given=True), -1)
        else:
            sent = self.handed[hop.source, i][h]
        self.moved[h, i] = self._carry(hops, h, sent, (self.done.get(place, 0) + 1, place))

    def _carry(self, hops: Hops, h: int, sent: _Sent, turn: tuple[int, int]) -> _Sent:
        """A transfer in the queue of its link, or of the wire that the link shares; outputs arrive in host memory.

        Of those that are ready at the same moment, the one of the least `turn` goes first: the place of the task that
        makes or needs it among those of its device, and the place of the device along the pipeline.
        """
        b, hop = self.b, hops.hops[h]
        source, target = hop.link
        wire = b.wire(source, target)
        peer, name = (source, f"to {target}") if wire < 0 else (wire, "wire")
        if peer >= b.host or sent.task < 0:
            b.hold(sent.task, peer, sent.tensor)
        queue = b.resource(peer, name, fifo=True)
        seconds = float(hops.seconds[h])
        kind = int(b.problem.cluster.link_class[source, target])
        latency = min(float(b.problem.cluster.class_latency[kind]), seconds)
        order = (turn[0], turn[1] * len(self.pipeline.replicas) + self.copy, h)
        after = (sent.task, self.queued.get(hop.link, -1) if hop.by_receiver else -1)
        task = b.add(peer, seconds, after, resource=queue, order=order, sends=sent.tensor, latency=latency)
        self.queued[hop.link] = task
        if hop.target == NOWHERE:
            b.hold(task, b.host, sent.tensor)
        return _Sent(sent.tensor, task)


def _add_updates(b: ProgramBuilder, copies: list[_Copy], sync: list[float], update: list[float]) -> None:
    """Gradients of tied weights, sums of gradients over copies, and the optimizer, on every device."""
    arrived = [copy.exchange(copy.costs.gradients) for copy in copies]
    places = sorted(copies[0].last)
    for copy, here in zip(copies, arrived, strict=True) if len(copies) > 1 else ():
        for place, needs in here.items():
            copy.add_task(place, 0.0, needs)
        here.clear()
    for place in places:
        together = [copy.last[place] for copy in copies]
        for copy, here in zip(copies, arrived, strict=True):
            needs = [*here.get(place, ()), *(sent for sent in together if sent is not copy.last[place])]
            copy.add_task(place, sync[place], needs)
    for place in places:
        for copy in copies:
            copy.add_task(place, update[place], [])
    for copy in copies:
        for place, needs in copy.exchange(copy.costs.renewals).items():
            copy.add_task(place, 0.0, needs)
    for copy in copies:
        for place in places:
            b.outputs.append(_bring_home(b, copy.last[place], copy.devices[place]))


def _bring_home(b: ProgramBuilder, sent: _Sent, device: int) -> int:
    """Tell the host of the last task of a device."""
    b.hold(sent.task, b.host, sent.tensor)
    b.add(b.host, 0.0, (sent.task,), order=(b.n_tasks, sent.tensor, device))
    return sent.tensor

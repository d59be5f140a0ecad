"""Puts the tasks of a placement together and deals them out to the processes of an emulated cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

import numpy as np

from placewise.errors import RunError
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.runtimes.emulated.program import (
    ADMITTED,
    PeerProgram,
    Resource,
    ResourceTask,
    TaskOp,
    value_of_input,
    value_of_op,
)
from placewise.simulate.in_place import in_place_ops

Group = tuple[int, ...]
"""Processes of which one runs a sample: the devices that share a stage, or just one process."""


@dataclass(slots=True)
class _Draft:
    members: Group
    seconds: float
    resource: str
    key: Group
    order: tuple[int, int, int]
    after: dict[int, None]
    steps: tuple[TaskOp, ...]
    sends: int
    latency: float
    stage: int = 0
    holds: dict[tuple[Group, int], None] = field(default_factory=dict)


class ProgramBuilder:
    """The tasks of a placement. Processes are numbered: devices, host memory, shared wires.

    `share` is the part of every tensor's bytes that really moves.
    """

    def __init__(self, problem: Problem, placement: Placement) -> None:
        self.problem, self.device, self.share = problem, placement.device, 1.0
        self.host = problem.n_devices
        cluster, stage = problem.cluster, placement.replicas
        self.count = self.host + 1 + len(cluster.wires)
        self.groups: list[Group] = [(peer,) for peer in range(self.count)]
        if stage is not None:
            for device in range(self.host):
                self.groups[device] = tuple(np.flatnonzero(stage == stage[device]).tolist())
        self.size = np.maximum(problem.graph.tensors.bytes, 0).astype(np.int64).tolist()
        self._location = cluster.location.tolist()
        self._drafts: list[_Draft] = []
        self._inputs: dict[tuple[Group, int], None] = {}
        self._resources: dict[tuple[int, str], Resource] = {}
        self.readers = [
            problem.graph.consumers[first:last].tolist()
            for first, last in zip(problem.graph.consumer_offsets[:-1], problem.graph.consumer_offsets[1:], strict=True)
        ]
        self.outputs: list[int] = np.flatnonzero(problem.graph.tensors.output).tolist()
        self.producer: list[int] = problem.graph.tensors.producer.tolist()
        self.output: list[bool] = problem.graph.tensors.output.tolist()
        self.makes = [
            tuple(range(first, last))
            for first, last in zip(problem.graph.out_offsets[:-1], problem.graph.out_offsets[1:], strict=True)
        ]
        self._in_place = in_place_ops(problem.graph)
        self.reads: list[list[int]] = [[] for _ in range(problem.n_ops)]
        for tensor, readers in enumerate(self.readers):
            for reader in readers:
                self.reads[reader].append(tensor)
        self._given = list(range(int(problem.graph.out_offsets[0])))
        self._flow = [TaskOp(op, tuple(self.reads[op]), self.makes[op]) for op in range(problem.n_ops)]

    @property
    def n_tasks(self) -> int:
        return len(self._drafts)

    def forget_ops(self) -> None:
        """Begin with no tensors: tasks will be steps of `new_step`, and devices that share a stage all work."""
        self.groups = [(peer,) for peer in range(self.count)]
        self.size, self.output, self.producer = [], [], []
        self.outputs, self._given, self._flow = [], [], []

    def new_tensor(self, nbytes: int, *, given: bool = False) -> int:
        """The number of a tensor of so many bytes; `given`: it is an input."""
        self.size.append(nbytes)
        self.output.append(False)
        self.producer.append(-1)
        self._given += [len(self.size) - 1] * given
        return len(self.size) - 1

    def new_step(self, reads: tuple[int, ...], makes: tuple[int, ...]) -> TaskOp:
        """A step that comes after all steps so far."""
        self._flow.append(TaskOp(len(self._flow), reads, makes))
        return self._flow[-1]

    def expected_outputs(self, sample: int) -> tuple[int, ...]:
        """What stands for the outputs of a sample: every op after the tensors that it reads."""
        values = dict.fromkeys(self._given, value_of_input(sample))
        for step in self._flow:
            value = value_of_op(step.op, ((tensor, values[tensor]) for tensor in step.reads))
            values.update(dict.fromkeys(step.makes, value))
        return tuple(values[tensor] for tensor in self.outputs)

    def bytes_moved(self) -> int:
        """The bytes of all tensors that go from one process to another, per sample."""
        return sum(
            self.size[tensor]
            for draft in self._drafts
            for group, tensor in draft.holds
            if group != draft.members and group[0] <= self.host
        )

    def place(self, device: int) -> int:
        """The location of a device: itself, or host memory."""
        return int(self._location[device])

    def source_of(self, tensor: int) -> int:
        """Where a tensor is made; model inputs are in host memory."""
        maker = self.producer[tensor]
        return self.host if maker < 0 else self.place(int(self.device[maker]))

    def targets_of(self, tensor: int) -> list[int]:
        """The other locations that need a tensor, ascending."""
        found = {self.place(int(self.device[reader])) for reader in self.readers[tensor]}
        if self.output[tensor]:
            found.add(self.host)
        return sorted(found - {self.source_of(tensor)})

    def cpus_of(self, tensor: int) -> list[int]:
        """The CPUs that read a tensor and do not make it."""
        maker = self.producer[tensor]
        made = int(self.device[maker]) if maker >= 0 else -1
        found = {int(self.device[reader]) for reader in self.readers[tensor]}
        return sorted(cpu for cpu in found if self.place(cpu) == self.host and cpu != made)

    def resource(self, peer: int, name: str, slots: int = 1, *, fifo: bool = False, eager: bool = False) -> str:
        """A resource of a process, made where it is first named."""
        for member in self.groups[peer]:
            self._resources.setdefault((member, name), Resource(slots, fifo, eager))
        return name

    def wire(self, source: int, target: int) -> int:
        """The process of the wire on the way from one location to another; −1 if the link is private."""
        wires = {
            int(self.problem.cluster.wire[one, other])
            for one in self.groups[source]
            for other in self.groups[target]
            if one != other
        }
        if len(wires) > 1:
            raise RunError("replicas whose links load different wires cannot be emulated")
        wire = wires.pop()
        return wire if wire < 0 else self.host + 1 + wire

    def hop_seconds(self, tensor: int, source: int, target: int) -> tuple[float, float]:
        """The seconds of a tensor on a link, and those of them before its first byte arrives."""
        cluster = self.problem.cluster
        kind = int(cluster.link_class[source, target])
        seconds = float(self.problem.costs.transfer_seconds[tensor, kind])
        return seconds, min(float(cluster.class_latency[kind]), seconds)

    def step(self, op: int) -> TaskOp:
        """An op with the tensors that it reads and makes."""
        makes = self.makes[op]
        overwrites: list[int] = []
        if makes and self._in_place[op]:
            here = self.device[op]
            for tensor in self.reads[op]:
                maker = self.producer[tensor]
                stays = all(self.device[reader] == here for reader in self.readers[tensor]) and not self.output[tensor]
                if maker >= 0 and self.device[maker] == here and stays and self.size[tensor] == self.size[makes[0]]:
                    overwrites.append(tensor)
        return TaskOp(op, tuple(self.reads[op]), makes, tuple(overwrites))

    def add(
        self,
        peer: int,
        seconds: float,
        after: Iterable[int],
        *,
        resource: str = "",
        key: Sequence[int] = (),
        order: tuple[int, int, int] = (-1, -1, -1),
        ops: Sequence[int] = (),
        steps: tuple[TaskOp, ...] = (),
        sends: int = -1,
        latency: float = 0.0,
    ) -> int:
        """A task of a process (or of all that share its stage) that waits for others; its number."""
        steps = steps or tuple(self.step(op) for op in ops)
        waits = dict.fromkeys(number for number in after if number >= 0)
        made = _Draft(self.groups[peer], seconds, resource, tuple(key), order, waits, steps, sends, latency)
        self._drafts.append(made)
        return len(self._drafts) - 1

    def add_hop(
        self,
        tensor: int,
        source: int,
        target: int,
        after: Iterable[int],
        *,
        peer: int,
        resource: str = "",
        key: Sequence[int] = (),
        free: bool = False,
    ) -> int:
        """A transfer, by a process, of a tensor from one location to another; `free`: it takes no time."""
        seconds, latency = (0.0, 0.0) if free else self.hop_seconds(tensor, source, target)
        order = (self.producer[tensor], tensor, target)
        return self.add(peer, seconds, after, resource=resource, key=key, order=order, sends=tensor, latency=latency)

    def wait_for(self, task: int, after: Iterable[int]) -> None:
        """Make a task wait for more tasks."""
        self._drafts[task].after.update(dict.fromkeys(number for number in after if number >= 0))

    def number_stages(self) -> None:
        """Give every task its stage: the most tasks that come one after the other before it."""
        before = {number: draft.after for number, draft in enumerate(self._drafts)}
        for number in TopologicalSorter(before).static_order():
            self._drafts[number].stage = 1 + max((self._drafts[other].stage for other in before[number]), default=-1)

    def hold(self, task: int, peer: int, tensor: int) -> None:
        """A tensor is in the memory of a process from the end of a task on (−1: from the start of the sample)."""
        if task >= 0:
            self._drafts[task].holds[self.groups[peer], tensor] = None
        else:
            self._inputs[self.groups[peer], tensor] = None

    def finish(self) -> list[PeerProgram]:
        """The program of every process."""
        dependents: dict[int, list[int]] = defaultdict(list)
        for number, draft in enumerate(self._drafts):
            for other in draft.after or (ADMITTED,):
                dependents[other].append(number)
        groups = list(dict.fromkeys(draft.members for draft in self._drafts))
        programs = []
        for peer in range(self.count):
            members = self.groups[peer]
            rows = [number for number, draft in enumerate(self._drafts) if draft.members == members]
            programs.append(self._program_of(peer, members, rows, dependents))
        admits = tuple(
            members
            for members in groups
            if members != (self.host,)
            and (
                any(self._drafts[number].members == members for number in dependents[ADMITTED])
                or any(group == members for group, _ in self._inputs)
            )
        )
        head = programs[self.host]
        programs[self.host] = PeerProgram(
            head.tasks, head.resources, head.waiters, head.brings, head.orders, head.uses, head.size, head.kept,
            head.told, 0, 1, head.stages, len(groups), admits, tuple(self.outputs),
        )  # fmt: skip
        return programs

    def _program_of(
        self, peer: int, members: Group, rows: Sequence[int], dependents: Mapping[int, Sequence[int]]
    ) -> PeerProgram:
        names = [name for owner, name in self._resources if owner == peer]
        numbers = {name: number for number, name in enumerate(names)}
        own = set(rows)
        waiters: dict[int, list[int]] = defaultdict(list)
        for number in rows:
            for other in self._drafts[number].after or (ADMITTED,):
                waiters[other].append(number)
        brings: dict[int, list[int]] = defaultdict(list)
        for number, draft in enumerate(self._drafts):
            if number not in own:
                brings[number] = [tensor for group, tensor in draft.holds if group == members]
        brings[ADMITTED] = [tensor for group, tensor in self._inputs if group == members]
        brings = {number: tensors for number, tensors in brings.items() if tensors}
        told = {number for number in (*waiters, *brings) if number >= 0 and number not in own}
        uses: dict[int, int] = defaultdict(int)
        for number in rows:
            draft = self._drafts[number]
            for tensor in (draft.sends, *(tensor for step in draft.steps for tensor in step.reads)):
                uses[tensor] += tensor >= 0
        host = peer < self.host and self.place(peer) == self.host
        made = {tensor for number in rows for step in self._drafts[number].steps for tensor in step.makes}
        kept = frozenset(tensor for tensor in made if self.output[tensor]) if host else frozenset()
        counted = peer < self.host
        size = {tensor: self.size[tensor] for tensor in {*made, *uses} if tensor >= 0} if counted else {}
        return PeerProgram(
            tasks=tuple(self._task(number, numbers, dependents[number]) for number in rows),
            resources=tuple(self._resources[peer, name] for name in names),
            waiters={number: tuple(found) for number, found in waiters.items()},
            brings={number: tuple(found) for number, found in brings.items()},
            orders={number: self._drafts[number].order for number in told},
            uses=dict(uses),
            size=size,
            kept=kept,
            told=len(told),
            turn=members.index(peer),
            turns=len(members),
            stages=1 + max((draft.stage for draft in self._drafts), default=0),
        )

    def _task(self, number: int, resources: Mapping[str, int], dependents: Sequence[int]) -> ResourceTask:
        draft = self._drafts[number]
        listeners = dict.fromkeys(self._drafts[other].members for other in dependents)
        listeners.update(dict.fromkeys(group for group, _ in draft.holds))
        tells = []
        for group in listeners:
            if group != draft.members:
                tensors = tuple(tensor for holder, tensor in draft.holds if holder == group)
                moves = group[0] <= self.host
                size = sum(int(self.size[tensor] * self.share) for tensor in tensors) if moves else 0
                tells.append((group, tensors, size))
        return ResourceTask(
            number, resources.get(draft.resource, -1), draft.seconds, draft.key, draft.order, len(draft.after),
            draft.steps, draft.sends, draft.latency, draft.stage, tuple(tells),
        )  # fmt: skip

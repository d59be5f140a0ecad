"""A training step by its definition (docs/judge.md): loops over ops, an event simulation with a clock, and bytes.

Nothing is shared with the judge but the problem, the order of each device's tasks and the roles of ops.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from placewise.model.problem import Problem

Task = tuple[int, int, int]
"""Kind (0 forward, 1 backward, 2 gradients of weights), stage, micro-batch."""
UPDATE = 3
GRADIENT, RENEWAL = 3, 4
"""In place of a kind of task, in what passes once per step."""
End = tuple[int, int] | str | None
"""Of a transfer: kind and stage of a task, "host" for what is forwarded or read there, None for the model's inputs and
outputs.
"""
Row = tuple[End, End, tuple[int, int], float, float]
"""A transfer: both ends, its link, its seconds and its bytes."""


class Link:
    """A queue of transfers: in the order of requests, or in an order that is fixed."""

    def __init__(self, fixed: Sequence[tuple[Row, int]] | None = None) -> None:
        self.fixed = None if fixed is None else list(fixed)
        self.asked: dict[tuple[Row, int], float] = {}
        self.freed = 0.0

    def head(self) -> tuple[float, tuple[Row, int]] | None:
        """The transfer whose turn it is, if it is there, and since when."""
        if self.fixed is None:
            return next(((since, job) for job, since in self.asked.items()), None)
        if self.fixed and self.fixed[0] in self.asked:
            return max(self.asked[self.fixed[0]], self.freed), self.fixed[0]
        return None

    def take(self, job: tuple[Row, int]) -> None:
        """Its turn has come."""
        del self.asked[job]
        if self.fixed is not None:
            self.fixed.remove(job)


def _order_of(end: End) -> tuple[int, int]:
    return end if isinstance(end, tuple) else (-1, -1)


class PlainStep:
    """One step of a pipeline without replicas."""

    def __init__(
        self, problem: Problem, orders: Sequence[Sequence[Task]], stage: Sequence[int], device: Sequence[int],
        roles: Sequence[int], microbatches: int,
    ) -> None:  # fmt: skip
        self.problem, self.orders, self.m = problem, orders, microbatches
        self.stage, self.device, self.n = list(stage), list(device), len(device)
        splits = any(task[0] == 2 for order in orders for task in order)
        self.roles = list(roles)
        self.kind = [1 if role == 2 and not splits else role for role in roles]
        self.host = problem.n_devices
        self.of_device = {d: k for k, d in enumerate(dict.fromkeys(device))}
        self.seconds = {(k, s): 0.0 for k in range(4) for s in range(self.n)}
        for op in range(problem.n_ops):
            s = self.stage[op]
            self.seconds[self.kind[op], s] += float(problem.costs.op_seconds[op, device[s]])
        self._find_messages()
        self.value = self._run()

    def place(self, op: int) -> int:
        """The location of an op; the host for a model input."""
        return self.host if op < 0 else int(self.problem.cluster.location[self.device[self.stage[op]]])

    def _rank(self, task: tuple[int, int]) -> tuple[int, int]:
        return task[0], task[1] if task[0] == 0 else -task[1]

    def _find_messages(self) -> None:
        """What passes per micro-batch and once: tensors by the tasks at both ends, and the links that they take."""
        graph = self.problem.graph
        self.passed: dict[tuple[object, object, int, int], list[int]] = {}
        self.once: list[tuple[int, int, int]] = []
        for tensor in range(graph.n_tensors):
            maker = int(graph.tensors.producer[tensor])
            first: dict[int, tuple[int, int]] = {}
            later: dict[int, tuple[int, int, int]] = {}
            for reader in graph.consumers_of(tensor).tolist():
                there = self.place(reader)
                tied = maker >= 0 and self.roles[maker] == self.roles[reader] == 2
                if maker >= 0 and (self.kind[reader] == UPDATE or (tied and self.stage[maker] != self.stage[reader])):
                    later.setdefault(there, (tensor, maker, reader))
                elif self.kind[reader] != UPDATE:
                    task = (self.kind[reader], self.stage[reader])
                    first[there] = min(first.get(there, task), task, key=self._rank)
            here = self.place(maker)
            source = None if maker < 0 else (self.kind[maker], self.stage[maker])
            for there, task in first.items():
                if there != here:
                    self.passed.setdefault((source, task, here, there), []).append(tensor)
            if graph.tensors.output[tensor] and maker >= 0 and here != self.host and self.kind[maker] != UPDATE:
                self.passed.setdefault((source, None, here, self.host), []).append(tensor)
            self.once += [use for there, use in later.items() if there != here]

    def _hop(self, tensors: Sequence[int], here: int, there: int) -> float:
        kind = self.problem.cluster.link_class[here, there]
        return sum(float(self.problem.costs.transfer_seconds[t, kind]) for t in tensors)

    def _plan_transfers(self) -> list[tuple[object, Row]]:
        """Each transfer of a micro-batch, with what it comes after: a task, or the hop to host memory."""
        staged = self.problem.cluster.transfers == "staged"
        size = self.problem.graph.tensors.bytes
        found: list[tuple[object, Row]] = []
        self.homes: list[tuple[End, End]] = []
        leaving: dict[End, dict[int, set[int]]] = {}
        for (source, target, here, there), tensors in self.passed.items():
            nbytes = float(sum(max(0, int(size[t])) for t in tensors))
            if staged and here != self.host:
                leaving.setdefault(source, {}).setdefault(here, set()).update(tensors)
                if there == self.host and target is not None:
                    self.homes.append((source, target))
            if staged and there != self.host:
                hop, gate = (self.host, there), "up" if here != self.host else "task"
                found.append(((gate, source), (source, target, hop, self._hop(tensors, *hop), nbytes)))
            elif not staged:
                hop = (here, there)
                found.append((("task", source), (source, target, hop, self._hop(tensors, *hop), nbytes)))
        for source, places in leaving.items():
            for here, moved in places.items():
                hop, nbytes = (here, self.host), float(sum(max(0, int(size[t])) for t in moved))
                found.append((("task", source), (source, "host", hop, self._hop(sorted(moved), *hop), nbytes)))
        return sorted(found, key=lambda one: (_order_of(one[1][0]), _order_of(one[1][1])))

    def _plan_exchange(self) -> list[tuple[object, Row]]:
        """The same for what passes once per step; gradients come after all tasks of a device, new values after its
        update.
        """
        staged = self.problem.cluster.transfers == "staged"
        sums: dict[tuple[object, End, End, tuple[int, int]], set[int]] = {}
        for tensor, maker, reader in self.once:
            what = RENEWAL if self.kind[maker] == UPDATE else GRADIENT
            here, there = self.place(maker), self.place(reader)
            source, target = (what, self.stage[maker]), (what, self.stage[reader])
            made = ("updated" if what == RENEWAL else "done", self.device[source[1]])
            if not staged:
                sums.setdefault((made, source, target, (here, there)), set()).add(tensor)
                continue
            if here != self.host:
                sums.setdefault((made, source, "host", (here, self.host)), set()).add(tensor)
                if there == self.host:
                    self.homes.append((source, target))
            if there != self.host:
                gate = ("up", source) if here != self.host else made
                sums.setdefault((gate, source, target, (self.host, there)), set()).add(tensor)
        found = [(gate, (a, b, hop, self._hop(sorted(t), *hop), 0.0)) for (gate, a, b, hop), t in sums.items()]
        return sorted(found, key=lambda one: (_order_of(one[1][0]), _order_of(one[1][1])))

    def _run(self) -> float:
        passes, exchange = self._plan_transfers(), self._plan_exchange()
        requests: dict[object, list[Row]] = {}
        for gate, row in passes + exchange:
            requests.setdefault(gate, []).append(row)
        links: dict[tuple[int, int], Link] = {}
        wires: dict[object, list[tuple[int, int]]] = {}
        for link in dict.fromkeys(row[2] for _, row in passes + exchange):
            once = [(row, 0) for _, row in exchange if row[2] == link]
            links[link] = Link([*self._needed(link, passes), *once] if link[0] == self.host else None)
            wire = int(self.problem.cluster.wire[link])
            wires.setdefault(link if wire < 0 else wire, []).append(link)
        self.starts: dict[Task, float] = {}
        self.ends: dict[Task, float] = {}
        self.moved: list[tuple[End, End, int, float, float, float, tuple[int, int]]] = []
        arrived: set[tuple[End, End, int]] = set()
        awaited = dict.fromkeys(self.of_device, 0)
        for target in [row[1] for _, row in exchange] + [reader for _, reader in self.homes]:
            if isinstance(target, tuple) and target[0] == GRADIENT:
                awaited[self.device[target[1]]] += 1
        update = dict.fromkeys(self.of_device, 0.0)
        for s, d in enumerate(self.device):
            update[d] += self.seconds[UPDATE, s]
        at, busy, taken, now, number = [0] * len(self.orders), [False] * len(self.orders), set[object](), 0.0, 0
        updated: set[int] = set()
        events: list[tuple[float, int, str, tuple[Any, ...]]] = []

        def push(time: float, what: str, payload: tuple[Any, ...]) -> None:
            nonlocal number
            heapq.heappush(events, (time, number, what, payload))
            number += 1

        def ask(gate: object, i: int) -> None:
            for row in requests.get(gate, []):
                links[row[2]].asked[row, i] = now

        def ready(task: Task) -> bool:
            kind, s, i = task
            needs: list[Task] = [(0, s - 1, i)] if kind == 0 and s else []
            if kind == 1:
                needs = [(0, s, i), *([(1, s + 1, i)] if s < self.n - 1 else [])]
            if kind == 2:
                needs = [(1, s, i)]
            comes = [row for rows in requests.values() for row in rows if row[1] == (kind, s)]
            return (
                all(need in self.ends and self.ends[need] <= now for need in needs)
                and all((row[0], row[1], i) in arrived for row in comes)
                and all((source, "host", i) in arrived for source, reader in self.homes if reader == (kind, s))
            )

        def start_tasks() -> None:
            for device, order in enumerate(self.orders):
                if not busy[device] and at[device] < len(order) and ready(order[at[device]]):
                    task = order[at[device]]
                    busy[device] = True
                    self.starts[task] = now
                    push(now + self.seconds[task[:2]], "task", (device, task))
            for d, device in self.of_device.items():
                if d not in updated and at[device] == len(self.orders[device]) and not awaited[d]:
                    updated.add(d)
                    push(now + update[d], "update", (d,))

        def start_transfers() -> None:
            for wire, own in wires.items():
                heads = [(head, link) for link in own if (head := links[link].head()) is not None]
                if wire not in taken and heads:
                    (_, job), link = min(heads, key=lambda one: (one[0][0], self._turn(*one[0][1])))
                    links[link].take(job)
                    taken.add(wire)
                    push(now + job[0][3], "hop", (wire, now, *job))

        for i in range(self.m):
            ask(("task", None), i)
        start_tasks()
        start_transfers()
        while events:
            now, _, what, payload = heapq.heappop(events)
            if what == "task":
                device, (kind, s, i) = payload
                busy[device], at[device] = False, at[device] + 1
                self.ends[kind, s, i] = now
                ask(("task", (kind, s)), i)
                if at[device] == len(self.orders[device]):
                    ask(("done", self.device[s]), 0)
            elif what == "update":
                ask(("updated", *payload), 0)
            else:
                wire, begun, (source, target, link, _, nbytes), i = payload
                taken.remove(wire)
                links[link].freed = now
                once = isinstance(source, tuple) and source[0] >= GRADIENT
                if not once:
                    self.moved.append((source, target, i, begun, now, nbytes, link))
                arrived.add((source, target, i))
                read = [target]
                if target == "host":
                    ask(("up", source), i)
                    read = [reader for of, reader in self.homes if of == source]
                for reader in read if once else ():
                    if reader[0] == GRADIENT:
                        awaited[self.device[reader[1]]] -= 1
            start_tasks()
            if not events or events[0][0] > now:
                start_transfers()
        assert all(k == len(order) for k, order in zip(at, self.orders, strict=True)), "tasks wait for each other"
        assert len(updated) == len(self.of_device) and not any(link.asked for link in links.values())
        return now

    def _turn(self, row: Row, i: int) -> tuple[object, ...]:
        """What decides between transfers that a wire could take since the same moment: the place of the task that needs
        it, if it leaves host memory, or makes it, in the list of its device, then the device, then the other end.
        """
        end, other = (row[1], row[0]) if row[2][0] == self.host else (row[0], row[1])
        assert isinstance(end, tuple)
        place = self.of_device[self.device[end[1]]]
        order = self.orders[place]
        return (order.index((*end, i)) if end[0] < GRADIENT else len(order)), place, _order_of(other)

    def _needed(self, link: tuple[int, int], passes: Sequence[tuple[object, Row]]) -> list[tuple[Row, int]]:
        """The transfers of a link from the host, in the order in which their receiver's tasks come."""
        ordered: list[tuple[Row, int]] = []
        for k, order in enumerate(self.orders):
            if self.problem.cluster.location[list(self.of_device)[k]] == link[1]:
                for kind, s, i in order:
                    ordered += [(row, i) for _, row in passes if row[2] == link and row[1] == (kind, s)]
        return ordered

    def peaks(self) -> dict[int, float]:
        """The most bytes of each device beyond what it holds throughout, by looking at every moment."""
        moments = sorted(
            {*self.starts.values(), *self.ends.values(), *(m[3] for m in self.moved), *(m[4] for m in self.moved)}
        )
        return {d: max(self._held(d, moment) for moment in moments) for d in self.of_device}

    def _held(self, d: int, moment: float) -> float:
        order = self.orders[self.of_device[d]]
        held, last = 0.0, dict[tuple[int, int], int]()
        running = next((t for t in order if self.starts[t] <= moment < self.ends[t]), None)
        for kind, s, i in order:
            if self.ends[kind, s, i] <= moment:
                last[s, i] = kind
        if running is not None:
            last.pop(running[1:], None)
            held += self._alive(running[0], running[1])
        held += sum(self._kept(kind, s) for (s, _), kind in last.items())
        for source, target, i, start, end, nbytes, link in self.moved:
            sender, receiver = isinstance(source, tuple), isinstance(target, tuple)
            if sender and link[0] != self.host and self.device[source[1]] == d:  # type: ignore[index]
                held += nbytes if self.ends[(*source, i)] <= moment < end else 0.0  # type: ignore[misc]
            if receiver and self.device[target[1]] == d:  # type: ignore[index]
                held += nbytes if start <= moment < self.starts[(*target, i)] else 0.0  # type: ignore[misc]
        return held

    def _spans(self, s: int) -> list[tuple[int, tuple[int, int] | None, dict[int, int], bool]]:
        """Tensors on a stage: bytes, kind and op that make it (None: from elsewhere), last reader by kind, leaves."""
        graph, found = self.problem.graph, []
        for tensor in range(graph.n_tensors):
            maker = int(graph.tensors.producer[tensor])
            if maker >= 0 and self.kind[maker] == UPDATE:
                continue
            own = maker >= 0 and self.stage[maker] == s
            readers: dict[int, int] = {}
            leaves = bool(graph.tensors.output[tensor])
            for reader in graph.consumers_of(tensor).tolist():
                tied = (
                    maker >= 0
                    and self.roles[maker] == self.roles[reader] == 2
                    and self.stage[maker] != self.stage[reader]
                )
                if self.kind[reader] == UPDATE or tied:
                    continue
                if self.stage[reader] == s:
                    readers[self.kind[reader]] = max(readers.get(self.kind[reader], -1), reader)
                elif maker >= 0:
                    leaves = True
            if own or readers:
                nbytes = max(0, int(graph.tensors.bytes[tensor]))
                found.append((nbytes, (self.kind[maker], maker) if own else None, readers, leaves and own))
        return found

    def _kept(self, kind: int, s: int) -> float:
        """Bytes of a micro-batch that stay on a stage after a task."""
        total = 0
        for nbytes, made, readers, _ in self._spans(s):
            begin = made[0] if made else min(readers)
            total += nbytes if begin <= kind < max([begin, *readers]) else 0
        return float(total)

    def _alive(self, kind: int, s: int) -> float:
        """The most bytes of a micro-batch while its task runs, op by op."""
        ops = [op for op in range(self.problem.n_ops) if self.kind[op] == kind and self.stage[op] == s]
        most = max(self._kept(kind, s), self._kept(kind - 1, s) if kind else 0.0)
        for op in ops:
            total = 0
            for nbytes, made, readers, leaves in self._spans(s):
                begin = made[0] if made else min(readers)
                end = max([begin, *readers])
                if not begin <= kind <= end or (made and made[0] == kind and op < made[1]):
                    continue
                here = bool(made) and made[0] == kind  # type: ignore[index]
                until = max(readers.get(kind, -1), made[1] if here and made else -1)
                if end > kind or (leaves and here) or op <= until:
                    total += nbytes
            most = max(most, float(total))
        return most

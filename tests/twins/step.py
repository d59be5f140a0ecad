"""A training step by its definition (docs/judge.md): loops over ops, an event simulation with a clock, and bytes.

Nothing is shared with the judge but the problem, the order of each device's tasks and the roles of ops. Wires that
links share are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from placewise.model.problem import Problem

Task = tuple[int, int, int]
"""Kind (0 forward, 1 backward, 2 gradients of weights), stage, micro-batch."""
UPDATE = 3


class Link:
    """A queue of transfers: in the order of requests, or in an order that is fixed."""

    def __init__(self, fixed: Sequence[tuple[object, ...]] | None = None) -> None:
        self.fixed = None if fixed is None else list(fixed)
        self.waiting: list[tuple[object, ...]] = []
        self.busy = False

    def next(self) -> tuple[object, ...] | None:
        """The transfer that starts next, if it is there."""
        if self.busy:
            return None
        if self.fixed is None:
            return self.waiting.pop(0) if self.waiting else None
        if self.fixed and self.fixed[0] in self.waiting:
            job = self.fixed.pop(0)
            self.waiting.remove(job)
            return job
        return None


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

    def _plan_transfers(self) -> None:
        """Each transfer as (link, key, seconds, bytes), by the task after which it starts."""
        staged = self.problem.cluster.transfers == "staged"
        size = self.problem.graph.tensors.bytes
        self.up: dict[object, tuple[tuple[int, int], float, float]] = {}
        self.down: list[tuple[object, object, tuple[int, int], float, float]] = []
        self.direct: list[tuple[object, object, tuple[int, int], float, float]] = []
        self.homes: list[tuple[object, object]] = []
        leaving: dict[object, set[int]] = {}
        for (source, target, here, there), tensors in self.passed.items():
            nbytes = float(sum(max(0, int(size[t])) for t in tensors))
            if staged and here != self.host:
                leaving.setdefault((source, here), set()).update(tensors)
                if there == self.host and target is not None:
                    self.homes.append((source, target))
            if staged and there != self.host:
                hop = (self.host, there)
                self.down.append((source, target, hop, self._hop(tensors, *hop), nbytes))
            elif not staged:
                self.direct.append((source, target, (here, there), self._hop(tensors, here, there), nbytes))
        for (source, here), found in leaving.items():  # type: ignore[misc]
            hop = (here, self.host)
            nbytes = float(sum(max(0, int(size[t])) for t in found))
            self.up[source] = (hop, self._hop(sorted(found), *hop), nbytes)

    def _run(self) -> float:
        self._plan_transfers()
        links: dict[tuple[int, int], Link] = {}
        from_host = self.down + [one for one in self.direct if one[2][0] == self.host]
        for link in {hop for _, _, hop, _, _ in from_host}:
            links[link] = Link(self._needed(link, from_host))
        requests: dict[object, list[tuple[object, ...]]] = {}
        for source, target, link, seconds, nbytes in sorted(from_host + self.direct, key=repr):
            if (source, target, link, seconds, nbytes) in from_host:
                gate = ("up", source) if source in self.up and link[0] == self.host else ("task", source)
            else:
                gate = ("task", source)
            if (source, target, link, seconds, nbytes) not in [row[1] for row in requests.get(gate, [])]:
                requests.setdefault(gate, []).append((link, (source, target, link, seconds, nbytes)))
        self.starts: dict[Task, float] = {}
        self.ends: dict[Task, float] = {}
        self.moved: list[tuple[object, object, int, float, float, float, tuple[int, int]]] = []
        arrived: set[tuple[object, object, int]] = set()
        at, busy, now, number = [0] * len(self.orders), [False] * len(self.orders), 0.0, 0
        events: list[tuple[float, int, str, tuple[object, ...]]] = []
        begun: dict[object, float] = {}

        def push(time: float, what: str, payload: tuple[object, ...]) -> None:
            nonlocal number
            heapq.heappush(events, (time, number, what, payload))
            number += 1

        def ask(gate: object, i: int) -> None:
            for link, row in requests.get(gate, []):
                links.setdefault(link, Link()).waiting.append((row, i))  # type: ignore[arg-type]

        def ready(task: Task) -> bool:
            kind, s, i = task
            needs: list[Task] = [(0, s - 1, i)] if kind == 0 and s else []
            if kind == 1:
                needs = [(0, s, i), *([(1, s + 1, i)] if s < self.n - 1 else [])]
            if kind == 2:
                needs = [(1, s, i)]
            comes = [row for rows in requests.values() for _, row in rows if row[1] == (kind, s)]  # type: ignore[index]
            return (
                all(need in self.ends and self.ends[need] <= now for need in needs)
                and all(
                    (row[0], row[1], i) in arrived
                    for row in comes  # type: ignore[index]
                )
                and all((source, "host", i) in arrived for source, reader in self.homes if reader == (kind, s))
            )

        def start() -> None:
            for device, order in enumerate(self.orders):
                if not busy[device] and at[device] < len(order) and ready(order[at[device]]):
                    task = order[at[device]]
                    busy[device] = True
                    self.starts[task] = now
                    push(now + self.seconds[task[:2]], "task", (device, task))
            for name, link in links.items():
                job = link.next()
                if job is not None:
                    link.busy = True
                    begun[name] = now
                    push(now + float(job[0][3]), "hop", (name, *job))  # type: ignore[index]

        for i in range(self.m):
            ask(("task", None), i)
        start()
        while events:
            now, _, what, payload = heapq.heappop(events)
            if what == "task":
                device, task = payload
                busy[device], at[device] = False, at[device] + 1  # type: ignore[index]
                self.ends[task] = now  # type: ignore[index]
                kind, s, i = task  # type: ignore[misc]
                if (kind, s) in self.up:
                    hop, seconds, nbytes = self.up[kind, s]
                    row = ((kind, s), "host", hop, seconds, nbytes)
                    links.setdefault(hop, Link()).waiting.append((row, i))
                ask(("task", (kind, s)), i)
            else:
                name, row, i = payload
                source, target, link, _, nbytes = row  # type: ignore[misc]
                links[name].busy = False  # type: ignore[index]
                self.moved.append((source, target, i, begun[name], now, nbytes, link))  # type: ignore[arg-type]
                if target == "host":
                    arrived.add((source, target, i))  # type: ignore[arg-type]
                    ask(("up", source), i)  # type: ignore[arg-type]
                else:
                    arrived.add((source, target, i))  # type: ignore[arg-type]
            start()
        assert all(k == len(order) for k, order in zip(at, self.orders, strict=True)), "tasks wait for each other"
        return self._finish(now)

    def _needed(self, link: tuple[int, int], rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
        """The transfers of a link from the host, in the order in which their receiver's tasks come."""
        ordered = []
        for k, order in enumerate(self.orders):
            if self.problem.cluster.location[list(self.of_device)[k]] != link[1]:
                continue
            for kind, s, i in order:
                own = [row for row in rows if row[2] == link and row[1] == (kind, s)]
                ordered += [(row, i) for row in sorted(own, key=lambda row: (row[0] is not None, row[0] or ()))]
        return ordered

    def _finish(self, now: float) -> float:
        """The end of the step: tied gradients, updates, new weights."""
        done = {
            d: max((self.ends[t] for t in order), default=0.0)
            for d, order in zip(self.of_device, self.orders, strict=True)
        }
        free: dict[tuple[int, int], float] = {}
        for _, _, _, _, end, _, link in self.moved:
            free[link] = max(free.get(link, 0.0), end)
        arrived = self._exchange([use for use in self.once if self.kind[use[1]] != UPDATE], done, free)
        update = dict.fromkeys(done, 0.0)
        for s, d in enumerate(self.device):
            update[d] += self.seconds[UPDATE, s]
        updated = {d: max(done[d], arrived.get(d, 0.0)) + update[d] for d in done}
        renewed = self._exchange([use for use in self.once if self.kind[use[1]] == UPDATE], updated, free)
        return max([now, *updated.values(), *renewed.values()])

    def _exchange(
        self, uses: Sequence[tuple[int, int, int]], done: Mapping[int, float], free: dict[tuple[int, int], float]
    ) -> dict[int, float]:
        """When each device has what others send it once per step."""
        staged, arrived = self.problem.cluster.transfers == "staged", dict[int, float]()
        sums: dict[tuple[int, object, tuple[int, int]], set[int]] = {}
        homes: set[tuple[int, int]] = set()
        for tensor, maker, reader in uses:
            here, there, s, t = self.place(maker), self.place(reader), self.stage[maker], self.stage[reader]
            if staged:
                if here != self.host:
                    sums.setdefault((s, "host", (here, self.host)), set()).add(tensor)
                    homes |= {(s, t)} if there == self.host else set()
                if there != self.host:
                    sums.setdefault((s, t, (self.host, there)), set()).add(tensor)
            else:
                sums.setdefault((s, t, (here, there)), set()).add(tensor)
        up: dict[int, float] = {}
        for (s, t, link), tensors in sorted(sums.items(), key=lambda item: (item[0][1] != "host", repr(item[0]))):
            ready = max(up.get(s, 0.0), done[self.device[s]])
            free[link] = max(ready, free.get(link, 0.0)) + self._hop(sorted(tensors), *link)
            if t == "host":
                up[s] = free[link]
                for t_home in (t for of, t in homes if of == s):
                    d = self.device[t_home]
                    arrived[d] = max(arrived.get(d, 0.0), up[s])
            else:
                d = self.device[t]  # type: ignore[call-overload]
                arrived[d] = max(arrived.get(d, 0.0), free[link])
        return arrived

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

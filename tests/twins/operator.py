"""`operator` latency as a discrete-event simulation over heapq.

At every moment, first everything that happens then: ops finish (in the order of their index) and send, tensors
land in host memory and go on, ops hear of their last input. Then every device with a free stream starts, of the
ops whose inputs are there, the one of smallest priority, and so on until it has no stream or no such op.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import frexp, inf

from placewise.model.problem import Problem
from twins.plain import Plain, Run, Transfer


def upward_ranks(problem: Problem) -> list[float]:
    """Longest remaining path at mean cost: over the devices that may run an op, and pairs of devices."""
    plain = Plain(problem)
    pairs = [(a, b) for a in plain.location for b in plain.location]
    for d in range(plain.host):
        pairs.remove((plain.location[d], plain.location[d]))
    share = [0.0] * len(problem.cluster.class_bandwidth)
    for a, b in pairs:
        for source, target in ((a, plain.host), (plain.host, b)) if plain.staged else ((a, b),):
            share[plain.link_class[source][target]] += 1
    share = [count / max(len(pairs), 1) for count in share]
    rank = [0.0] * plain.n_ops
    for op in reversed(range(plain.n_ops)):
        total = count = longest = 0.0
        for seconds, allowed in zip(plain.seconds[op], plain.allowed[op], strict=True):
            if allowed:
                total += seconds
                count += 1
        for tensor in plain.makes[op]:
            mean = 0.0
            for seconds, part in zip(plain.transfer[tensor], share, strict=True):
                mean += seconds * part
            longest = max([longest, *(mean + rank[reader] for reader in plain.readers[tensor])])
        rank[op] = total / max(count, 1) + longest
    return rank


class Operator:
    """Prepared once per problem, then called per placement: a list of devices."""

    def __init__(self, problem: Problem, order: list[int] | None = None) -> None:
        self.plain = Plain(problem)
        ranks = upward_ranks(problem)
        step = 2.0 ** (frexp(max(ranks, default=0.0))[1] - 40)
        key = [-round(rank / step) for rank in ranks] if order is None else order
        self.by_priority = sorted(range(self.plain.n_ops), key=lambda op: (key[op], op))
        self.priority = [0] * self.plain.n_ops
        for place, op in enumerate(self.by_priority):
            self.priority[op] = place
        self.missing = [0] * self.plain.n_ops
        for readers in self.plain.readers:
            for op in readers:
                self.missing[op] += 1

    def __call__(self, device: list[int], transfers: list[Transfer] | None = None) -> tuple[float, list[float]]:
        """The makespan and when each op starts; hops are added to `transfers`, if it is given."""
        plain, priority, by_priority = self.plain, self.priority, self.by_priority
        n_ops, host, staged = plain.n_ops, plain.host, plain.staged
        makes, all_readers, output, transfer = plain.makes, plain.readers, plain.output, plain.transfer
        where = [plain.location[d] for d in device]
        free = dict.fromkeys((q for row in plain.queue for q in row), 0.0)
        missing = self.missing.copy()
        ready_at = [0.0] * n_ops
        ready: list[list[int]] = [[] for _ in range(host)]
        idle = plain.streams.copy()
        start = [inf] * n_ops
        awake: set[int] = set()
        # (when, op, -1): op finished; (when, op, tensor): its tensor is in host memory; (when, n_ops, op): op is ready.
        events: list[tuple[float, int, int]] = []
        makespan, now, left = 0.0, 0.0, n_ops

        def move(tensor: int, source: int, targets: list[int], arrival: dict[int, float]) -> None:
            costs, queues, classes = transfer[tensor], plain.queue[source], plain.link_class[source]
            for target in targets:
                queue = queues[target]
                sent = free[queue]
                if sent < now or not plain.waits:
                    sent = now
                arrival[target] = free[queue] = sent + costs[classes[target]]
                if transfers is not None:
                    transfers.append((tensor, source, target, sent, arrival[target]))

        def hear(tensor: int, arrival: dict[int, float]) -> None:
            for op in all_readers[tensor]:
                moment = arrival.get(where[op])
                if moment is None:
                    continue
                if moment > ready_at[op]:
                    ready_at[op] = moment
                missing[op] -= 1
                if not missing[op]:
                    if ready_at[op] > now:
                        heappush(events, (ready_at[op], n_ops, op))
                    else:
                        heappush(ready[device[op]], priority[op])
                        awake.add(device[op])

        for op in range(n_ops):
            if not missing[op]:
                heappush(ready[device[op]], priority[op])
                awake.add(device[op])
        for tensor in plain.inputs:
            arrival = {host: 0.0}
            move(tensor, host, sorted({where[op] for op in all_readers[tensor]} - {host}), arrival)
            hear(tensor, arrival)
        while True:
            while events and events[0][0] <= now:
                _, op, what = heappop(events)
                if op == n_ops:
                    heappush(ready[device[what]], priority[what])
                    awake.add(device[what])
                    continue
                source = where[op]
                if what >= 0:
                    arrival = {host: now}
                    targets = {where[reader] for reader in all_readers[what]}
                    targets.discard(host)
                    targets.discard(source)
                    move(what, host, sorted(targets), arrival)
                    hear(what, arrival)
                    continue
                idle[device[op]] += 1
                awake.add(device[op])
                left -= 1
                for tensor in makes[op]:
                    targets = {where[reader] for reader in all_readers[tensor]}
                    if output[tensor]:
                        targets.add(host)
                    targets.discard(source)
                    arrival = {source: now}
                    if targets:
                        if staged and source != host:
                            landed: dict[int, float] = {}
                            move(tensor, source, [host], landed)
                            heappush(events, (landed[host], op, tensor))
                            home = landed[host]
                        else:
                            move(tensor, source, sorted(targets), arrival)
                            home = arrival.get(host, now)
                        if output[tensor] and home > makespan:
                            makespan = home
                    hear(tensor, arrival)
            for d in awake:
                queue, seconds = ready[d], plain.seconds
                while idle[d] and queue:
                    op = by_priority[heappop(queue)]
                    idle[d] -= 1
                    start[op] = now
                    finish = now + seconds[op][d]
                    if finish > makespan:
                        makespan = finish
                    heappush(events, (finish, op, -1))
            awake.clear()
            if not events or events[0][0] == inf:
                return (makespan if not left else inf), start
            now = events[0][0]


def operator_makespan(problem: Problem, device: list[int], order: list[int] | None = None) -> Run:
    """The makespan of one placement, when each op starts, and every hop of a tensor."""
    transfers: list[Transfer] = []
    value, start = Operator(problem, order)(device, transfers)
    return Run(value, start, transfers)

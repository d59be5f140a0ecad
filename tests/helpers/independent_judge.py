"""A second judge, written from docs/judge.md alone: it shares no line, and no author, with `simulate` and the twins.

`judge_independently(problem, placement)` gives the value in seconds and the kinds of rules that are broken. It reads a
problem's tables and nothing that is derived from them by the judge; sums are Python's.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from placewise.model.placement import Placement
from placewise.model.problem import Problem

IN_PLACE = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Relu", "Sigmoid", "Clip", "Softmax", "Cast"}
INPUT = FINISHED = HOST_OP = -1


@dataclass(frozen=True, slots=True)
class IndependentJudgement:
    """What a placement is worth, the rules that it breaks, and the bytes that each device needs."""

    value: float
    broken: frozenset[str]
    bytes: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A problem as plain lists."""

    problem: Problem
    host: int
    location: list[int]
    maker: list[int]
    size: list[int]
    output: list[bool]
    readers: list[list[int]]
    reads: list[list[int]]
    makes: list[list[int]]
    seconds: list[list[float]]
    move: list[list[float]]
    link: list[list[int]]
    wire: list[list[str]]
    backward: list[bool]
    phase: list[int]
    rank: list[Fraction]

    def cost(self, tensor: int, a: int, b: int) -> float:
        """Seconds of a tensor from one location to another over one link."""
        return self.move[tensor][self.link[a][b]]

    def route(self, a: int, b: int) -> list[tuple[int, int]]:
        """The hops from one location to another."""
        if a == b:
            return []
        if self.problem.cluster.transfers == "direct" or self.host in (a, b):
            return [(a, b)]
        return [(a, self.host), (self.host, b)]

    def origin(self, tensor: int, device: Sequence[int]) -> int:
        """Where a tensor is made: model inputs are in host memory."""
        return self.host if self.maker[tensor] == INPUT else self.location[device[self.maker[tensor]]]

    def needed(self, tensor: int, device: Sequence[int]) -> list[int]:
        """The locations, in order, to which a tensor must cross."""
        places = {self.location[device[op]] for op in self.readers[tensor]}
        places |= {self.host} if self.output[tensor] else set()
        return sorted(places - {self.origin(tensor, device)})

    def before(self, op: int) -> set[int]:
        """The ops that make what an op reads."""
        return {self.maker[tensor] for tensor in self.reads[op]} - {INPUT}


@lru_cache(maxsize=4)
def case_of(problem: Problem) -> Case:
    """The lists of a problem, and the upward ranks of its ops."""
    graph, cluster = problem.graph, problem.cluster
    n_ops, host = graph.n_ops, len(cluster)
    location = [host if device.is_host else number for number, device in enumerate(cluster)]
    reads = [[int(t) for t in graph.inputs_of(op)] for op in range(n_ops)]
    readers: list[list[int]] = [sorted({op for op in range(n_ops) if t in reads[op]}) for t in range(graph.n_tensors)]
    maker = graph.tensors.producer.tolist()
    makes = [[t for t in range(graph.n_tensors) if maker[t] == op] for op in range(n_ops)]
    case = Case(
        problem, host, location, maker, graph.tensors.bytes.tolist(), graph.tensors.output.tolist(), readers, reads,
        makes, problem.costs.op_seconds.tolist(), problem.costs.transfer_seconds.tolist(),
        cluster.link_class.tolist(), _wires(problem), graph.ops.backward.tolist(), graph.ops.phase.tolist(), [],
    )  # fmt: skip
    case.rank.extend(_upward_ranks(case))
    return case


def _wires(problem: Problem) -> list[list[str]]:
    """The wire of each ordered pair of locations: its link's, or that of the halves of its way through the host."""
    cluster, host = problem.cluster, len(problem.cluster)
    place = {name: number for number, name in enumerate(cluster.names)} | {"host": host}
    own = {(place[link.source], place[link.target]): link.shared for link in cluster.links}
    table = [[""] * (host + 1) for _ in range(host + 1)]
    for a in range(host + 1):
        for b in range(host + 1):
            halves = own.get((a, host), ""), own.get((host, b), "")
            table[a][b] = own[a, b] if (a, b) in own else halves[0] or halves[1]
    return table


def _upward_ranks(case: Case) -> list[Fraction]:
    """The longest way from each op to the end at mean cost, exactly."""
    n_ops, places = len(case.reads), case.location
    pairs = [(places[a], places[b]) for a in range(len(places)) for b in range(len(places)) if a != b]

    def crossing(tensor: int) -> Fraction:
        total = sum((Fraction(case.cost(tensor, *hop)) for pair in pairs for hop in case.route(*pair)), Fraction())
        return total / len(pairs) if pairs else total

    rank = [Fraction()] * n_ops
    for op in reversed(range(n_ops)):
        able = [Fraction(case.seconds[op][d]) for d in range(len(places)) if case.problem.allowed[op, d]]
        after = [crossing(t) + rank[reader] for t in case.makes[op] for reader in case.readers[t]]
        rank[op] = (sum(able, Fraction()) / len(able) if able else Fraction()) + max(after, default=Fraction())
    return rank


def judge_independently(problem: Problem, placement: Placement) -> IndependentJudgement:
    """Value, broken rules and bytes of a placement in which every op has a device."""
    case, device = case_of(problem), placement.device.tolist()
    call = None if placement.call is None else placement.call.tolist()
    order = None if placement.order is None else placement.order.tolist()
    sharing = list(range(len(problem.cluster))) if placement.replicas is None else placement.replicas.tolist()
    if problem.objective.kind == "throughput":
        value, schedule = _max_load(case, device, sharing), Schedule.in_pieces([0] * len(device), device)
    elif problem.objective.execution == "operator":
        value, schedule = _operator(case, device, order)
    elif problem.objective.execution == "subgraph":
        value, schedule = _subgraph(case, device, call)
    else:
        value, schedule = _sequential(case, device)
    held = [_bytes(case, device, schedule, d) for d in range(len(problem.cluster))]
    held = [max(held[sharing[d]], held[d]) for d in range(len(held))]
    return IndependentJudgement(value, frozenset(_broken(case, device, sharing, value, held)), tuple(held))


# --- throughput


def _stages(case: Case, device: Sequence[int], sharing: Sequence[int]) -> dict[int, list[int]]:
    """The members of each stage, by the device that the placement names."""
    used = set(device)
    return {s: [s, *(d for d, of in enumerate(sharing) if of == s and d != s)] for s in used}


def _max_load(case: Case, device: Sequence[int], sharing: Sequence[int]) -> float:
    objective, stages = case.problem.objective, _stages(case, device, sharing)
    flushes = objective.schedule == "gpipe"
    load: dict[tuple[bool, str, object], float] = defaultdict(float)
    for op, home in enumerate(device):
        for member in stages[home]:
            load[case.backward[op] and flushes, "compute", member] += case.seconds[op][home] / len(stages[home])
    for tensor, maker in enumerate(case.maker):
        later = flushes and maker != INPUT and case.backward[maker]
        for a, b, share in _crossings(case, tensor, device, stages):
            seconds = case.cost(tensor, a, b) * share
            load[later, "send", a] += seconds
            load[later, "receive", b] += seconds
            if case.wire[a][b]:
                load[later, "wire", case.wire[a][b]] += seconds
    if any(case.backward):
        for stage, members in stages.items():
            _synchronize(case, [op for op, home in enumerate(device) if home == stage], members, load, flushes)
    value = 0.0
    for later in (False, True):
        paces = [load[later, "wire", wire] for wire in {link.shared for link in case.problem.cluster.links}]
        paces += [_pace(objective.communication, load, later, d) for d in range(case.host)]
        value += max(paces)
    return value


def _pace(mode: str, load: dict[tuple[bool, str, object], float], later: bool, d: int) -> float:
    """The load of a device in one phase."""
    compute, send, receive, sync = (load[later, what, d] for what in ("compute", "send", "receive", "sync"))
    if mode == "blocking":
        return compute + send + receive + sync
    return max(compute, send + receive + sync) if mode == "overlap" else max(compute, send + sync, receive + sync)


def _crossings(
    case: Case, tensor: int, device: Sequence[int], stages: dict[int, list[int]]
) -> Iterator[tuple[int, int, float]]:
    """Each hop of a tensor between members of stages, and its share of the samples; the host is one member."""
    maker, host = case.maker[tensor], case.host
    at_host = maker == INPUT or case.location[device[maker]] == host
    sources = [host] if at_host else stages[device[maker]]
    goals = {device[op] for op in case.readers[tensor] if case.location[device[op]] != host}
    goals -= set() if at_host else {device[maker]}
    to_host = not at_host and (
        case.output[tensor] or any(case.location[device[op]] == host for op in case.readers[tensor])
    )
    staged = case.problem.cluster.transfers == "staged"
    if to_host or (staged and goals and not at_host):
        yield from ((a, host, 1 / len(sources)) for a in sources)
    for goal in sorted(goals):
        ends = [host] if staged else sources
        yield from ((a, b, 1 / len(ends) / len(stages[goal])) for a in ends for b in stages[goal])


def _synchronize(
    case: Case, ops: list[int], members: list[int], load: dict[tuple[bool, str, object], float], flushes: bool
) -> None:
    """What the ring of a stage's gradients takes of one sample, on its members and on wires."""
    r, host, cluster = len(members), case.host, case.problem.cluster
    if r == 1 or case.location[members[0]] == host:
        return
    ring = sorted(members)
    hops = [(a, b) for a, b in pairwise([*ring, ring[0]])]
    if cluster.transfers == "staged":
        hops = [hop for a, b in hops for hop in ((a, host), (host, b))]
    traffic = 2 * (r - 1) / r * sum(_weights(case, ops)) / (case.problem.objective.step_samples or r)
    for member in members:
        load[flushes, "sync", member] += max(traffic / _speed(case, *hop) for hop in hops)
    for hop in hops:
        if case.wire[hop[0]][hop[1]]:
            load[flushes, "wire", case.wire[hop[0]][hop[1]]] += traffic / _speed(case, *hop)


def _speed(case: Case, a: int, b: int) -> float:
    return float(case.problem.cluster.class_bandwidth[case.link[a][b]])


# --- latency


@dataclass(frozen=True, slots=True)
class Schedule:
    """The piece of each op among those of its device, the order of ops on each device, and in `operator` the times."""

    piece: list[int]
    order: dict[int, list[int]]
    start: list[float]
    finish: list[float]
    end: float

    @staticmethod
    def in_pieces(piece: list[int], device: Sequence[int]) -> Schedule:
        order: dict[int, list[int]] = defaultdict(list)
        for op in sorted(range(len(device)), key=lambda op: (piece[op], op)):
            order[device[op]].append(op)
        return Schedule(piece, order, [], [], math.inf)


def _operator(case: Case, device: Sequence[int], order: Sequence[int] | None) -> tuple[float, Schedule]:
    """Moment by moment: what ends, by maker, an op before its tensors; and then the starts."""
    n_ops, host, now, end = len(device), case.host, 0.0, 0.0
    key: list[tuple[Fraction | int, int]] = [(order[op] if order else -case.rank[op], op) for op in range(n_ops)]
    staged = case.problem.cluster.transfers == "staged"
    streams = [entry.streams for entry in case.problem.cluster]
    present = {(tensor, host) for tensor, maker in enumerate(case.maker) if maker == INPUT}
    free: dict[object, float] = defaultdict(float)
    start, finish, waiting = [math.inf] * n_ops, [math.inf] * n_ops, set(range(n_ops))
    events: list[tuple[float, int, int, int]] = []

    def send(tensor: int, a: int, goals: Sequence[int]) -> None:
        for b in goals:
            queue = case.wire[a][b] or (a, b)
            free[queue] = max(free[queue], now) + case.cost(tensor, a, b)
            heapq.heappush(events, (free[queue], case.maker[tensor], tensor, b))

    def leave(tensor: int) -> None:
        home, goals = case.origin(tensor, device), case.needed(tensor, device)
        send(tensor, home, [host] if staged and home != host and goals else goals)

    for tensor in (t for t, maker in enumerate(case.maker) if maker == INPUT):
        leave(tensor)
    while True:
        while events and events[0][0] == now < math.inf:
            _, maker, tensor, goal = heapq.heappop(events)
            if tensor == FINISHED:
                end = max(end, now)
                streams[device[maker]] += 1
                present |= {(made, case.location[device[maker]]) for made in case.makes[maker]}
                for made in case.makes[maker]:
                    leave(made)
                continue
            present.add((tensor, goal))
            end = max(end, now) if goal == host and case.output[tensor] else end
            if staged and goal == host:
                send(tensor, host, [place for place in case.needed(tensor, device) if place != host])
        ready = [op for op in waiting if all((t, case.location[device[op]]) in present for t in case.reads[op])]
        for op in sorted(ready, key=lambda op: key[op]):
            if streams[device[op]]:
                streams[device[op]] -= 1
                waiting.discard(op)
                start[op], finish[op] = now, now + case.seconds[op][device[op]]
                heapq.heappush(events, (finish[op], op, FINISHED, 0))
        if not events or events[0][0] == math.inf:
            break
        now = events[0][0]
    ordered: dict[int, list[int]] = defaultdict(list)
    for op in sorted(range(n_ops), key=lambda op: (start[op], op)):
        ordered[device[op]].append(op)
    return (math.inf if math.inf in finish else end), Schedule([], ordered, start, finish, end)


def _depths(case: Case, device: Sequence[int]) -> list[int]:
    """How often, at most, a path to each op has entered its device, less one."""
    entered: list[dict[int, int]] = []
    for op, home in enumerate(device):
        most: dict[int, int] = defaultdict(int, {home: 1})
        for before in case.before(op):
            for place, times in entered[before].items():
                most[place] = max(most[place], times + (place == home and device[before] != home))
        entered.append(most)
    return [entered[op][home] - 1 for op, home in enumerate(device)]


def _subgraph(case: Case, device: Sequence[int], call: Sequence[int] | None) -> tuple[float, Schedule]:
    n_ops, host = len(device), case.host
    number = list(call) if call else _depths(case, device)
    on_host = [case.location[device[op]] == host for op in range(n_ops)]
    unit = [(HOST_OP, op) if on_host[op] else (device[op], number[op]) for op in range(n_ops)]
    ops_of: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op in range(n_ops):
        ops_of[unit[op]].append(op)
    waits = {
        u: {unit[case.maker[t]] for t in _outside(case, ops_of[u], unit) if case.maker[t] != INPUT} for u in ops_of
    }
    for earlier, later in pairwise(sorted(u for u in ops_of if u[0] != HOST_OP)):
        waits[later] |= {earlier} if earlier[0] == later[0] else set()
    piece = [0 if on_host[op] else number[op] for op in range(n_ops)]
    end: dict[tuple[int, int], float] = {}
    while len(end) < len(ops_of):
        ready = [u for u in ops_of if u not in end and waits[u] <= end.keys()]
        if not ready:
            return math.inf, Schedule.in_pieces(piece, device)
        for u in ready:
            end[u] = max((end[before] for before in waits[u]), default=0.0) + _spent(case, device, unit, u, ops_of[u])
    return max(end.values(), default=0.0), Schedule.in_pieces(piece, device)


def _outside(case: Case, ops: list[int], unit: Sequence[tuple[int, int]]) -> list[int]:
    """The distinct tensors that the ops of a unit read and do not make."""
    return sorted({t for op in ops for t in case.reads[op] if case.maker[t] == INPUT or case.maker[t] not in ops})


def _spent(
    case: Case, device: Sequence[int], unit: Sequence[tuple[int, int]], u: tuple[int, int], ops: list[int]
) -> float:
    """The seconds of a call: overhead, what it receives, its ops, what it sends; of an op on the host its own."""
    total = sum(case.seconds[op][device[op]] for op in ops)
    if u[0] == HOST_OP:
        return total
    home, host, direct = u[0], case.host, case.problem.cluster.transfers == "direct"
    total += case.problem.cluster.devices[home].call_overhead
    for t in _outside(case, ops, unit):
        source = case.origin(t, device)
        total += case.cost(t, source if direct and source != home else host, home)
    for t in (t for op in ops for t in case.makes[op]):
        others = {unit[reader] for reader in case.readers[t]} - {u}
        calls = [other[0] for other in others if other[0] != HOST_OP]
        at_host = case.output[t] or len(calls) < len(others)
        ways = [host if place == home else place for place in calls] + [host] * at_host
        total += sum(case.cost(t, home, way) for way in (ways if direct else [host] * bool(ways)))
    return total


def _sequential(case: Case, device: Sequence[int]) -> tuple[float, Schedule]:
    number: list[int] = []
    for op, home in enumerate(device):
        number.append(max((number[before] + (device[before] != home) for before in case.before(op)), default=0))
    present = {(t, case.host) for t in range(len(case.maker)) if case.maker[t] == INPUT}
    value = 0.0

    def fetch(tensor: int, goal: int) -> float:
        spent = 0.0
        for a, b in case.route(case.origin(tensor, device), goal):
            spent += 0.0 if (tensor, b) in present else case.cost(tensor, a, b)
            present.add((tensor, b))
        return spent

    for piece in sorted(set(zip(number, device, strict=True))):
        ops = [op for op in range(len(device)) if (number[op], device[op]) == piece]
        home = case.location[piece[1]]
        present |= {(t, home) for op in ops for t in case.makes[op]}
        value += case.problem.cluster.devices[piece[1]].call_overhead
        value += sum(fetch(t, home) for op in ops for t in case.reads[op])
        value += sum(case.seconds[op][piece[1]] for op in ops)
    value += sum(fetch(t, case.host) for t, output in enumerate(case.output) if output)
    return value, Schedule.in_pieces(number, device)


# --- memory


def _weights(case: Case, ops: Iterable[int]) -> list[int]:
    """Bytes of the distinct weights of some ops, tied ones once."""
    weights = case.problem.graph.weights
    storage, size = weights.storage.tolist(), weights.bytes.tolist()
    used = {storage[w] for op in ops for w in case.problem.graph.weights_of(op).tolist()}
    return [max(size[w] for w in range(len(size)) if storage[w] == one) for one in used]


def _resident(case: Case, device: Sequence[int], d: int) -> float:
    ops = [op for op, home in enumerate(device) if home == d]
    return float(sum(int(case.problem.graph.ops.state_bytes[op]) for op in ops) + sum(_weights(case, ops)))


def _bytes(case: Case, device: Sequence[int], schedule: Schedule, d: int) -> float:
    """Resident bytes of a device, and in the model `live` the most bytes of tensors at once."""
    resident, ops = _resident(case, device, d), schedule.order.get(d, [])
    never_ends = math.inf in schedule.finish
    if case.problem.objective.memory != "live" or not ops or never_ends:
        return resident
    position = {op: at for at, op in enumerate(ops)}
    alive = [0.0] * len(ops)
    for tensor in range(len(case.maker)):
        first, last, copies = _held(case, device, schedule, d, tensor, ops, position)
        for at in range(first, last + 1):
            alive[at] += copies * case.size[tensor]
    for at, op in enumerate(ops):
        alive[at] -= _saved(case, device, position, op)
    return resident + max(alive)


def _held(
    case: Case, device: Sequence[int], schedule: Schedule, d: int, tensor: int, ops: list[int],
    position: dict[int, int],
) -> tuple[int, int, int]:  # fmt: skip
    """The first and the last position at which a tensor is on a device, and in how many copies."""
    objective, maker = case.problem.objective, case.maker[tensor]
    here = [position[op] for op in case.readers[tensor] if op in position]
    elsewhere = [op for op in case.readers[tensor] if op not in position]
    on_host = case.location[d] == case.host
    copies = 2 if objective.kind == "throughput" and objective.communication != "blocking" else 1

    def at(moment: float) -> int:
        return max([0, *(k for k, op in enumerate(ops) if schedule.start[op] <= moment)])

    def piece_of(at: int) -> list[int]:
        return [k for k, op in enumerate(ops) if schedule.piece[op] == schedule.piece[ops[at]]]

    if maker not in position:
        if not here:
            return 0, -1, 0
        if schedule.piece:
            return piece_of(min(here))[0], max(here), copies
        return min(at(schedule.finish[maker] if maker != INPUT else 0.0), max(here)), max(here), copies
    first = position[maker]
    goes_home = case.output[tensor] and not on_host
    leaves = bool(elsewhere or goes_home)
    last = max([first, *here])
    if leaves and schedule.piece:
        last = max(last, piece_of(first)[-1])
    elif leaves:
        last = max([last, *(at(schedule.start[op]) for op in elsewhere)] + [at(schedule.end)] * goes_home)
    return first, len(ops) - 1 if case.output[tensor] and on_host else last, copies if leaves else 1


def _saved(case: Case, device: Sequence[int], position: dict[int, int], op: int) -> int:
    """What an op saves by writing its first result where an operand was."""
    graph = case.problem.graph
    if graph.ops.kind[op] not in IN_PLACE or not case.makes[op]:
        return 0
    size = case.size[case.makes[op][0]]
    for tensor in case.reads[op]:
        readers = [position.get(reader, math.inf) for reader in case.readers[tensor]]
        free = case.maker[tensor] in position and not case.output[tensor] and max(readers) == position[op]
        if free and case.size[tensor] == size and all(reader in position for reader in case.readers[tensor]):
            return size
    return 0


# --- rules


def _broken(
    case: Case, device: Sequence[int], sharing: Sequence[int], value: float, held: Sequence[float]
) -> Iterator[str]:
    problem, rules = case.problem, case.problem.constraints
    if any(not problem.allowed[op, d] for op, d in enumerate(device)):
        yield "not allowed"
    if any(
        device[a] != device[b] for a in range(len(device)) for b in range(a) if problem.block[a] == problem.block[b]
    ):
        yield "colocation"
    if any(held[d] > problem.capacity[d] for d in range(case.host)):
        yield "memory"
    arrows = {(device[a], device[b]) for a, b in _stage_edges(case) if device[a] != device[b]}
    if rules.contiguous and _circular(arrows, case.host):
        yield "contiguity"
    elif rules.ordered and any(a > b for a, b in arrows):
        yield "order"
    if rules.convex and _returns(case, device):
        yield "convexity"
    if (
        problem.objective.execution == "subgraph"
        and problem.objective.kind == "latency"
        and math.isinf(value)
        and all(math.isfinite(case.seconds[op][d]) for op, d in enumerate(device))
    ):
        yield "calls"
    if any(not _may_share(case, members) for members in _stages(case, device, sharing).values()):
        yield "replicas"


def _stage_edges(case: Case) -> Iterator[tuple[int, int]]:
    """What a forward op reads; and turned around, between backward ops, what a group of backward ops makes or reads."""
    block, backward = case.problem.block, case.backward
    n_ops = len(backward)
    forward = [any(block[other] == block[op] and not backward[other] for other in range(n_ops)) for op in range(n_ops)]
    for reader in range(n_ops):
        for maker in case.before(reader):
            if case.phase[maker] != case.phase[reader]:
                continue
            if not backward[reader]:
                yield maker, reader
            elif backward[maker] and not (forward[maker] and forward[reader]):
                yield reader, maker


def _circular(arrows: set[tuple[int, int]], count: int) -> bool:
    left = set(range(count))
    while left:
        free = [d for d in left if not any(b == d and a in left for a, b in arrows)]
        if not free:
            return True
        left -= set(free)
    return False


def _returns(case: Case, device: Sequence[int]) -> bool:
    """Whether a path of forward ops leaves a device and comes back."""
    left: list[set[int]] = []
    for op, home in enumerate(device):
        gone: set[int] = set()
        for before in case.before(op):
            if not case.backward[op] and not case.backward[before] and case.phase[op] == case.phase[before]:
                gone |= left[before] | ({device[before]} if device[before] != home else set())
        if home in gone:
            return True
        left.append(gone)
    return False


def _may_share(case: Case, members: list[int]) -> bool:
    """Whether so many devices may share a stage, and are equal."""
    problem, host = case.problem, case.host
    if len(members) == 1:
        return True
    first, others = members[0], [place for place in range(host + 1) if place not in members]
    inner = {case.link[case.location[a]][case.location[b]] for a in members for b in members if a != b}
    return (
        len(members) <= problem.max_replicas
        and len(inner) == 1
        and all(_times_on(case, d) == _times_on(case, first) for d in members)
        and all(problem.capacity[d] == problem.capacity[first] for d in members)
        and all(
            case.link[case.location[d]][place] == case.link[case.location[first]][place]
            and case.link[place][case.location[d]] == case.link[place][case.location[first]]
            for place in others for d in members
        )
    )  # fmt: skip


def _times_on(case: Case, d: int) -> list[float]:
    """The seconds of every op on a device, inf where it may not run."""
    return [case.seconds[op][d] if case.problem.allowed[op, d] else math.inf for op in range(len(case.reads))]

"""Peak memory: for every device, go through its ops in running order and add up what is alive at each."""

from __future__ import annotations

from math import inf, isinf

from placewise.model.graph import Graph
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.simulate.in_place import IN_PLACE, VIEWS
from twins.operator import operator_makespan
from twins.plain import Plain
from twins.sequential import piece_numbers
from twins.subgraph import alternation_depth


def resident_memory(problem: Problem, device: list[int]) -> list[int]:
    """State of the ops, and each weight storage once per device."""
    weights = problem.graph.weights
    size: dict[int, int] = {}
    for bytes_, storage in zip(weights.bytes.tolist(), weights.storage.tolist(), strict=True):
        size[storage] = max(size.get(storage, 0), bytes_)
    total = []
    for d in range(problem.n_devices):
        ops = [op for op in range(problem.n_ops) if device[op] == d]
        held = {int(weights.storage[w]) for op in ops for w in problem.graph.weights_of(op)}
        state = sum(int(problem.graph.ops.state_bytes[op]) for op in ops)
        total.append(state + sum(size[storage] for storage in held))
    return total


def peak_memory(problem: Problem, placement: Placement) -> list[float]:
    """Resident bytes and, in the `live` model, the most bytes of activations alive at once on each device."""
    device = placement.device.tolist()
    resident = resident_memory(problem, device)
    if problem.objective.memory == "sum":
        return [float(total) for total in resident]
    plain = Plain(problem)
    key, finish, end = _running_order(problem, plain, placement)
    if isinf(end):
        return [float(total) for total in resident]
    peaks = []
    for d in range(problem.n_devices):
        ops = sorted((op for op in range(problem.n_ops) if device[op] == d), key=lambda op: (key[op], op))
        spans = _spans(problem, plain, device, d, ops, key, finish, end) if ops else []
        alive = [sum(size for first, last, size in spans if first <= k <= last) for k in range(len(ops))]
        peaks.append(float(resident[d] + max(alive, default=0)))
    return peaks


def _running_order(
    problem: Problem, plain: Plain, placement: Placement
) -> tuple[list[float], list[float] | None, float]:
    """A sort key per op: its start and, with it, its finish and the makespan; or the number of its piece."""
    device, objective = placement.device.tolist(), problem.objective
    if objective.kind == "throughput":
        return [0.0] * len(device), None, 0.0
    if objective.execution == "sequential":
        return [float(number) for number in piece_numbers(plain, device)], None, 0.0
    if objective.execution == "subgraph":
        call = alternation_depth(plain, device) if placement.call is None else placement.call.tolist()
        hosted = [plain.location[d] == plain.host for d in device]
        return [-1.0 if alone else float(number) for number, alone in zip(call, hosted, strict=True)], None, 0.0
    order = None if placement.order is None else placement.order.tolist()
    run = operator_makespan(problem, device, order)
    finish = [begin + plain.seconds[op][device[op]] for op, begin in enumerate(run.start)]
    return run.start, finish, inf if inf in finish else run.value


def _spans(
    problem: Problem,
    plain: Plain,
    device: list[int],
    d: int,
    ops: list[int],
    key: list[float],
    finish: list[float] | None,
    end: float,
) -> list[tuple[int, int, int]]:
    """(first, last, bytes): the positions among the ops of device `d` between which each tensor is held there."""
    objective, on_host = problem.objective, problem.cluster.devices[d].is_host
    buffers = 2 if objective.kind == "throughput" and objective.communication != "blocking" else 1
    position = {op: place for place, op in enumerate(ops)}
    opens = {key[op]: place for place, op in reversed(list(enumerate(ops)))}
    closes = {key[op]: place for place, op in enumerate(ops)}

    def working_on(moment: float) -> int:
        return max((place for place, op in enumerate(ops) if key[op] <= moment), default=0)

    spans: dict[int, tuple[int, int, int]] = {}
    dying: dict[int, list[int]] = {place: [] for place in range(len(ops))}
    for tensor, readers in enumerate(plain.readers):
        maker, size = plain.maker[tensor], plain.size[tensor]
        here = [position[op] for op in readers if device[op] == d]
        if maker >= 0 and device[maker] == d:
            away = [op for op in readers if device[op] != d]
            last = max([position[maker], *here])
            goes_home = plain.output[tensor] and not on_host
            if away or goes_home:
                if finish is None:
                    last = max(last, closes[key[maker]])
                else:
                    last = max(last, working_on(max([key[op] for op in away] + [end] * goes_home)))
            if plain.output[tensor] and on_host:
                last = len(ops) - 1
            sent = bool(away or goes_home)
            if here and not sent and not plain.output[tensor]:
                dying[last].append(tensor)
            spans[tensor] = (position[maker], last, size * (buffers if sent else 1))
        elif here:
            last = max(here)
            if finish is None:
                first = opens[key[ops[min(here)]]]
            else:
                first = min(working_on(finish[maker] if maker >= 0 else 0.0), last)
            spans[tensor] = (first, last, size * buffers)
    for place, tensors in dying.items():
        made = plain.makes[ops[place]]
        equal = [tensor for tensor in tensors if made and plain.size[tensor] == plain.size[made[0]]]
        if equal and works_in_place(problem.graph, ops[place]):
            first, last, size = spans[equal[0]]
            spans[equal[0]] = (first, last - 1, size)
    return list(spans.values())


def works_in_place(graph: Graph, op: int) -> bool:
    """Whether an op is a view, is computed in place, or is a part of the convolution that it reads from."""
    kind, attributes = graph.ops.kind[op], graph.ops.attributes[op]
    makers = [int(graph.tensors.producer[tensor]) for tensor in graph.inputs_of(op)]
    before = [maker for maker in makers if maker >= 0]

    def convolved(maker: int) -> bool:
        return graph.ops.kind[maker] in ("Conv", "ConvTranspose")

    def folded(maker: int) -> bool:
        feeds = [int(graph.tensors.producer[tensor]) for tensor in graph.inputs_of(maker)]
        return graph.ops.kind[maker] == "BatchNormalization" and any(m >= 0 and convolved(m) for m in feeds)

    if attributes.get("view") or (kind in VIEWS and not attributes.get("copied")):
        return True
    if graph.source is not None and graph.source.format not in ("onnx", "openvino", "tensorflow", "zoo", "workload"):
        return False
    if kind in ("Add", "Sum"):
        return any(convolved(maker) or folded(maker) for maker in before)
    return kind in IN_PLACE or (kind == "BatchNormalization" and any(convolved(maker) for maker in before))

"""The order in which each device of a training pipeline works, under each schedule.

GPipe (Huang et al., NeurIPS 2019); 1F1B (Narayanan et al., SOSP 2019); interleaved 1F1B (Narayanan et al., SC 2021);
ZB-H1 and ZB-V (Qi et al., ICLR 2024 and NeurIPS 2024). The orders are those of `torch.distributed.pipelining`, which a
test compares. Devices are numbered along the pipeline. Interleaved 1F1B and ZB-V give every device two stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from placewise.errors import InternalError

FORWARD, BACKWARD, WEIGHT = range(3)
"""What a task computes: activations; gradients (without those of weights, where they are a task); those of weights."""

FLAT = ("gpipe", "1f1b", "zb-h1")
"""Schedules that give every device one stage."""
CHUNKED = ("interleaved", "zb-v")
"""Schedules that give every device two stages."""
SCHEDULES = (*FLAT, *CHUNKED)
CHUNKS = 2
"""Stages per device under the schedules of `CHUNKED`."""
SPLITS_BACKWARD = ("zb-h1", "zb-v")
"""Schedules in which the gradients of weights are tasks of their own."""


class Task(NamedTuple):
    """What a device does next: a kind of task, for a stage and a micro-batch."""

    kind: int
    stage: int
    microbatch: int


Order = tuple[Task, ...]


def count_stages(schedule: str, n_devices: int) -> int:
    """How many stages a pipeline of so many devices has."""
    return n_devices * (CHUNKS if schedule in CHUNKED else 1)


def device_of_stage(schedule: str, stage: int, n_devices: int) -> int:
    """The device, along the pipeline, that runs a stage: in a loop (interleaved), or there and back (ZB-V)."""
    if schedule == "zb-v" and stage >= n_devices:
        return 2 * n_devices - 1 - stage
    return stage % n_devices


def refuse_microbatches(schedule: str, n_devices: int, microbatches: int) -> str:
    """Why a schedule cannot run so many micro-batches on so many devices; "" if it can."""
    if schedule == "interleaved" and microbatches % n_devices:
        return f"interleaved needs micro-batches in multiples of the {n_devices} devices, not {microbatches}"
    return ""


@lru_cache(maxsize=256)
def device_orders(schedule: str, n_devices: int, microbatches: int) -> tuple[Order, ...]:
    """What each device of the pipeline does, in order.

    Raises InternalError for an unknown schedule, or micro-batches that it cannot run.
    """
    if schedule not in SCHEDULES or refuse_microbatches(schedule, n_devices, microbatches):
        raise InternalError(f"no order of {microbatches} micro-batches on {n_devices} devices under {schedule!r}")
    make = {"gpipe": _gpipe, "1f1b": _one_f_one_b, "zb-h1": _zb_h1, "interleaved": _interleaved, "zb-v": _zb_v}
    return tuple(tuple(make[schedule](device, n_devices, microbatches)) for device in range(n_devices))


def _gpipe(device: int, n_devices: int, microbatches: int) -> Iterator[Task]:
    for kind in (FORWARD, BACKWARD):
        yield from (Task(kind, device, i) for i in range(microbatches))


def _one_f_one_b(device: int, n_devices: int, microbatches: int) -> Iterator[Task]:
    ahead = min(n_devices - 1 - device, microbatches)
    yield from (Task(FORWARD, device, i) for i in range(ahead))
    for i in range(microbatches):
        if ahead + i < microbatches:
            yield Task(FORWARD, device, ahead + i)
        yield Task(BACKWARD, device, i)


def _zb_h1(device: int, n_devices: int, microbatches: int) -> Iterator[Task]:
    """1F1B, but the gradients of weights wait until `device` more micro-batches have gone back."""
    for task in _one_f_one_b(device, n_devices, microbatches):
        yield task
        if task.kind == BACKWARD and task.microbatch >= device:
            yield Task(WEIGHT, device, task.microbatch - device)
    yield from (Task(WEIGHT, device, i) for i in range(max(0, microbatches - device), microbatches))


def _interleaved(device: int, n_devices: int, microbatches: int) -> Iterator[Task]:
    """Rounds of as many micro-batches as devices: through the first stage, then through the second."""
    total = CHUNKS * microbatches

    def task(kind: int, number: int) -> Task:
        round_, place = divmod(number, CHUNKS * n_devices)
        chunk, i = divmod(place, n_devices)
        chunk = CHUNKS - 1 - chunk if kind == BACKWARD else chunk
        return Task(kind, chunk * n_devices + device, round_ * n_devices + i)

    ahead = min((CHUNKS - 1) * n_devices + 2 * (n_devices - 1 - device), total)
    yield from (task(FORWARD, number) for number in range(ahead))
    for number in range(total):
        if ahead + number < total:
            yield task(FORWARD, ahead + number)
        yield task(BACKWARD, number)


def _zb_v(device: int, n_devices: int, microbatches: int) -> Iterator[Task]:
    """The order of ZB-V for 2 n − 1 micro-batches at least, without those that are not there."""
    full = max(2 * n_devices - 1, microbatches)
    return (task for task in _full_zb_v(device, n_devices, full) if task.microbatch < microbatches)


def _full_zb_v(device: int, n_devices: int, microbatches: int) -> Iterator[Task]:
    stages = device, 2 * n_devices - 1 - device
    done = {(kind, chunk): 0 for kind in range(3) for chunk in range(2)}

    def run(kind: int, chunk: int) -> Task:
        number = done[kind, chunk]
        done[kind, chunk] += 1
        return Task(kind, stages[chunk], number)

    def back(chunk: int) -> Iterator[Task]:
        yield run(BACKWARD, chunk)
        yield run(WEIGHT, chunk)

    to_end = n_devices - device
    yield from (run(FORWARD, 0) for _ in range(2 * to_end - 1))
    for _ in range(device):
        yield run(FORWARD, 1)
        yield run(FORWARD, 0)
    for _ in range(to_end):
        yield run(FORWARD, 1)
        yield from back(1)
    while done[FORWARD, 1] < done[FORWARD, 0] or done[FORWARD, 0] < microbatches:
        if done[FORWARD, 0] < microbatches:
            yield run(FORWARD, 0)
        yield from back(0)
        yield run(FORWARD, 1)
        yield from back(1)
    for _ in range(device):
        yield run(BACKWARD, 0)
        yield run(BACKWARD, 1)
    for _ in range(to_end):
        yield from back(0)
    for chunk in (1, 0):
        while done[WEIGHT, chunk] < done[BACKWARD, chunk]:
            yield run(WEIGHT, chunk)


@lru_cache(maxsize=256)
def global_order(schedule: str, n_devices: int, microbatches: int) -> Order:
    """All tasks of a pipeline, each after those of its device and those that it waits for."""
    return join_orders(device_orders(schedule, n_devices, microbatches), count_stages(schedule, n_devices) - 1)


def join_orders(orders: Sequence[Order], last: int) -> Order:
    """The tasks of all devices, each after those of its device and those that it waits for; `last` is the last stage.

    A forward task waits for that of the stage before, a backward task for that of the stage behind and for its own
    forward task, and gradients of weights for their backward task. Raises InternalError for orders that never end.
    """
    done, at = set[Task](), [0] * len(orders)
    result: list[Task] = []
    waiting = sum(map(len, orders))
    while len(result) < waiting:
        before = len(result)
        for device, order in enumerate(orders):
            while at[device] < len(order) and done.issuperset(tasks_before(order[at[device]], last)):
                done.add(order[at[device]])
                result.append(order[at[device]])
                at[device] += 1
        if len(result) == before:
            raise InternalError(f"{waiting - before} tasks of {len(orders)} devices wait for each other")
    return tuple(result)


def tasks_before(task: Task, last: int) -> list[Task]:
    """The tasks of the same micro-batch that a task waits for; `last` is the last stage."""
    kind, stage, i = task
    if kind == FORWARD:
        return [Task(FORWARD, stage - 1, i)] if stage else []
    if kind == WEIGHT:
        return [Task(BACKWARD, stage, i)]
    return [Task(FORWARD, stage, i), *([Task(BACKWARD, stage + 1, i)] if stage < last else [])]

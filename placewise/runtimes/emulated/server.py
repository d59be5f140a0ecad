"""The object in a process of an emulated cluster: a device, host memory, or a wire that links share."""

from __future__ import annotations

import gc
import heapq
import select
import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from placewise.errors import RunError
from placewise.runtimes.emulated.program import (
    ADMITTED,
    DONE,
    HEADER,
    LAST,
    VALUE,
    PeerProgram,
    Report,
    ResourceTask,
    SharedClock,
    join_stages,
    value_of_input,
    value_of_op,
)

CHUNK, CHUNKS = 1 << 17, 32
"""Bytes of a part of a tensor, unless it takes more than this many parts."""
_END, _TOLD = 0, 1
Values = tuple[int, ...]


class PeerServer:
    """One process; `links` are the descriptors of its sockets to the others, by their numbers."""

    def __init__(self, number: int, host: int, links: Mapping[int, int]) -> None:
        self._number, self._host = number, host
        self._sockets = {peer: socket.socket(fileno=fd) for peer, fd in links.items()}
        for link in self._sockets.values():
            link.setblocking(False)
        self._program = PeerProgram()

    def load(self, program: PeerProgram) -> None:
        """Take a placement's part over."""
        self._program = program

    def stream(self, clock: SharedClock, samples: int, in_flight: int) -> Report:
        """Run samples from the clock's start on, so many in flight."""
        gc.collect()
        gc.disable()
        try:
            return Stream(self._number, self._host, self._sockets, self._program, clock, samples, in_flight).run()
        finally:
            gc.enable()


class Stream:
    """The samples of one run, as one process sees them.

    Whatever ends here or is told from elsewhere is an event of a moment. Events are handled when the clock has passed
    their moment, in the judge's order: all that ends at a moment, then what can start. A task starts when the last of
    what it waits for is there and its resource is free, and ends that many seconds later, whenever this process wakes.
    """

    def __init__(
        self,
        number: int,
        host: int,
        sockets: Mapping[int, socket.socket],
        program: PeerProgram,
        clock: SharedClock,
        samples: int,
        in_flight: int,
    ) -> None:
        self._number, self._host, self._sockets = number, host, sockets
        self._program, self._clock, self._samples = program, clock, samples
        self._tasks = {task.number: task for task in program.tasks}
        self._rounds = {task.number: join_stages(task.stage, program.stages, in_flight) for task in program.tasks}
        self._free = [[0.0] * resource.slots for resource in program.resources]
        self._ready: list[list[Any]] = [[] for _ in program.resources]
        self._events: list[Any] = []
        self._outgoing: list[Any] = []
        self._buffers = {peer: deque[memoryview]() for peer in sockets}
        self._incoming = {peer: bytearray() for peer in sockets}
        self._order = 0
        self._missing: dict[tuple[int, int], int] = {}
        self._since: dict[tuple[int, int], float] = {}
        self._unfinished: dict[int, int] = {}
        self._values: dict[int, dict[int, int]] = {}
        self._uses: dict[int, dict[int, int]] = {}
        self._held: dict[tuple[int, int], list[bytes]] = {}
        self._bytes = self._peak = self._moved = 0
        self._late, self._ended = 0.0, 0.0
        self._spans: list[tuple[int, int, float, float]] = []
        self._parties: dict[int, int] = {}
        self._done: dict[int, float] = {}
        self._outputs: dict[int, tuple[int, ...]] = {}
        self._admitted = min(in_flight, samples)
        self._source = memoryview(bytes(CHUNK))
        mine = range(program.turn, samples, program.turns)
        self._left = len(program.tasks) * len(mine)
        self._told_left = program.told * len(mine)
        if number != host and ADMITTED in {*program.waiters, *program.brings}:
            self._told_left += sum(sample >= in_flight for sample in mine)
        for sample in mine:
            if sample < in_flight:
                self._push(0.0, (-1, -1, sample), _TOLD, ADMITTED, sample, ())

    def run(self) -> Report:
        """Handle events until every task has run for every sample."""
        while not self._finished():
            self._advance()
            self._send_due()
            if self._finished():
                break
            self._wait()
        while any(self._buffers.values()):
            self._wait()
        return Report(tuple(self._spans), self._ended, self._peak, self._late, self._moved, self._done, self._outputs)

    def _finished(self) -> bool:
        waiting = self._number == self._host and len(self._done) < self._samples
        return not (self._left or self._told_left or self._outgoing or waiting)

    def _real(self, moment: float) -> float:
        return self._clock.start + moment * self._clock.scale

    def _push(
        self, moment: float, order: tuple[int, int, int], what: int, number: int, sample: int, values: Values
    ) -> None:
        self._order += 1
        heapq.heappush(self._events, (moment, order, self._order, what, number, sample, values))

    def _advance(self) -> None:
        clock, events = self._clock, self._events
        while events and self._real(events[0][0]) + clock.guard <= time.monotonic():
            moment = events[0][0]
            while events and events[0][0] <= moment:
                self._handle(*heapq.heappop(events))
            self._start_ready()

    def _handle(
        self, moment: float, _: tuple[int, int, int], __: int, what: int, number: int, sample: int, values: Values
    ) -> None:
        clock = self._clock
        behind = time.monotonic() - clock.guard - self._real(moment)
        self._late = max(self._late, behind)
        if behind > clock.slack:
            moment += (behind - clock.slack) / clock.scale
        if number == DONE:
            self._count_done(sample, moment)
            return
        if what == _END:
            self._end(self._tasks[number], sample, moment)
        else:
            brings = self._program.brings.get(number, ())
            if number == ADMITTED:
                values = (value_of_input(sample),) * len(brings)
            for tensor, value in zip(brings, values, strict=True):
                self._values.setdefault(sample, {})[tensor] = value
                self._hold(sample, tensor)
        self._arrive(number, sample, moment)

    def _arrive(self, number: int, sample: int, moment: float) -> None:
        """A task has ended, here or elsewhere, with all that it brings: other tasks may be ready."""
        program = self._program
        for waiter in program.waiters.get(number, ()):
            key = waiter, sample
            missing = self._missing.pop(key, self._tasks[waiter].waits or 1) - 1
            since = max(moment, self._since.pop(key, 0.0))
            if missing:
                self._missing[key], self._since[key] = missing, since
            else:
                self._make_ready(self._tasks[waiter], sample, since)

    def _make_ready(self, task: ResourceTask, sample: int, since: float) -> None:
        if task.resource < 0:
            self._start(task, sample, since)
            return
        resource = self._program.resources[task.resource]
        self._order += 1
        if resource.eager:
            key: tuple[float, ...] = (since, self._order)
        else:
            key = (since, sample, *task.order) if resource.fifo else (sample + self._rounds[task.number], *task.key)
        heapq.heappush(self._ready[task.resource], (key, task.number, sample, since))
        if resource.eager:
            self._start_on(task.resource)

    def _start_ready(self) -> None:
        for number, resource in enumerate(self._program.resources):
            if not resource.eager:
                self._start_on(number)

    def _start_on(self, number: int) -> None:
        free, ready = self._free[number], self._ready[number]
        while free and ready:
            _, task, sample, since = heapq.heappop(ready)
            self._start(self._tasks[task], sample, max(since, heapq.heappop(free)))

    def _start(self, task: ResourceTask, sample: int, moment: float) -> None:
        end = moment + task.seconds
        values = self._compute(task, sample)
        self._spans.append((task.number, sample, moment, end))
        for members, tensors, size in task.tells:
            told = b"".join(VALUE.pack(values[tensor]) for tensor in tensors)
            self._schedule(members[sample % len(members)], task, sample, moment, end, told, size)
        if not task.seconds and task.resource >= 0 and self._program.resources[task.resource].eager:
            self._end(task, sample, end)
            self._arrive(task.number, sample, end)
        else:
            self._push(end, task.order, _END, task.number, sample, ())

    def _compute(self, task: ResourceTask, sample: int) -> Mapping[int, int]:
        """What is known of the tensors here, after a task. Raises RunError if one that it needs is not here."""
        values = self._values.setdefault(sample, {})
        try:
            if task.sends >= 0:
                values[task.sends]
            for step in task.steps:
                value = value_of_op(step.op, ((tensor, values[tensor]) for tensor in step.reads))
                for tensor in step.makes:
                    values[tensor] = value
                self._run_step(step.reads, step.makes, step.overwrites, sample, frees=len(task.steps) > 1)
        except KeyError as missing:
            raise RunError(f"an op started before the tensor {missing.args[0]} was there") from None
        return values

    def _run_step(
        self, reads: tuple[int, ...], makes: tuple[int, ...], overwrites: tuple[int, ...], sample: int, *, frees: bool
    ) -> None:
        uses = self._uses.get(sample, {})
        reused = next((tensor for tensor in overwrites if uses.get(tensor) == 1), -1)
        if reused >= 0:
            self._use(sample, reused)
        for tensor in makes:
            self._hold(sample, tensor)
        if frees:
            for tensor in reads:
                if tensor != reused:
                    self._use(sample, tensor)

    def _end(self, task: ResourceTask, sample: int, moment: float) -> None:
        if task.resource >= 0:
            heapq.heappush(self._free[task.resource], moment)
            if self._program.resources[task.resource].eager:
                self._start_on(task.resource)
        if task.sends >= 0:
            self._use(sample, task.sends)
        elif len(task.steps) == 1:
            for tensor in task.steps[0].reads:
                self._use(sample, tensor)
        for step in task.steps:
            for tensor in step.makes:
                if not self._program.uses.get(tensor, 0):
                    self._release(sample, tensor)
        self._ended = time.monotonic()
        self._left -= 1
        left = self._unfinished.pop(sample, len(self._program.tasks)) - 1
        if left:
            self._unfinished[sample] = left
            return
        self._forget(sample)
        if self._number == self._host:
            self._push(moment, (-1, -1, sample), _TOLD, DONE, sample, ())
        else:
            self._queue(moment, self._host, DONE, sample, moment, 0, b"", last=True)

    def _hold(self, sample: int, tensor: int) -> None:
        uses = self._uses.setdefault(sample, {})
        if tensor not in uses:
            uses[tensor] = self._program.uses.get(tensor, 0) + (tensor in self._program.kept)
            self._bytes += self._program.size.get(tensor, 0)
            self._peak = max(self._peak, self._bytes)

    def _use(self, sample: int, tensor: int) -> None:
        uses = self._uses.get(sample, {})
        if tensor in uses:
            uses[tensor] -= 1
            if uses[tensor] <= 0:
                self._release(sample, tensor)

    def _release(self, sample: int, tensor: int) -> None:
        if self._uses.get(sample, {}).pop(tensor, None) is not None:
            self._bytes -= self._program.size.get(tensor, 0)
            self._held.pop((sample, tensor), None)

    def _forget(self, sample: int) -> None:
        for tensor in tuple(self._uses.get(sample, ())):
            self._release(sample, tensor)
        self._uses.pop(sample, None)
        values = self._values.pop(sample, {})
        if self._number == self._host:
            self._outputs[sample] = tuple(
                values.get(tensor, value_of_input(sample)) for tensor in self._program.outputs
            )

    def _count_done(self, sample: int, moment: float) -> None:
        self._parties[sample] = self._parties.get(sample, 0) + 1
        if self._parties[sample] < self._program.parties:
            return
        self._done[sample] = time.monotonic()
        if self._admitted == self._samples:
            return
        sample, self._admitted = self._admitted, self._admitted + 1
        self._push(moment, (-1, -1, sample), _TOLD, ADMITTED, sample, ())
        for members in self._program.admits:
            self._queue(moment, members[sample % len(members)], ADMITTED, sample, moment, 0, b"", last=True)

    def _queue(
        self, at: float, peer: int, number: int, sample: int, moment: float, size: int, values: bytes, *, last: bool
    ) -> None:
        self._order += 1
        heapq.heappush(self._outgoing, (self._real(at), self._order, peer, number, sample, moment, size, values, last))

    def _schedule(
        self, peer: int, task: ResourceTask, sample: int, begin: float, end: float, values: bytes, size: int
    ) -> None:
        """Tell a process of a task's end when it comes; its bytes leave in parts, evenly over its seconds."""
        count = min(max(-(-size // CHUNK), 1), CHUNKS)
        part, begin = -(-size // count), begin + task.latency
        for number in range(count):
            length, last = max(min(part, size - number * part), 0), number == count - 1
            at = end if last else begin + (end - begin) * (number + 1) / count
            self._queue(at, peer, task.number, sample, end, length, values if last else b"", last=last)

    def _send_due(self) -> None:
        clock, outgoing = self._clock, self._outgoing
        while outgoing and outgoing[0][0] <= (now := time.monotonic()):
            at, _, peer, number, sample, moment, length, values, last = heapq.heappop(outgoing)
            if last and now - at > clock.slack:
                moment += (now - at - clock.slack) / clock.scale
            buffer, flags = self._buffers[peer], (length + len(values)) | (LAST if last else 0)
            buffer.append(memoryview(HEADER.pack(number, sample, flags, moment) + values))
            self._moved += length
            while length:
                buffer.append(self._source[: min(length, CHUNK)])
                length -= min(length, CHUNK)
            self._flush(peer)

    def _flush(self, peer: int) -> None:
        buffer = self._buffers[peer]
        while buffer:
            try:
                sent = self._sockets[peer].send(buffer[0])
            except BlockingIOError:
                return
            except OSError:
                buffer.clear()  # the process is gone, and the parent says so
                return
            if sent < len(buffer[0]):
                buffer[0] = buffer[0][sent:]
            else:
                buffer.popleft()

    def _wait(self) -> None:
        """Sleep until something is due, arrives, or can be sent."""
        until = min(
            self._real(self._events[0][0]) + self._clock.guard if self._events else float("inf"),
            self._outgoing[0][0] if self._outgoing else float("inf"),
        )
        writing = [link for peer, link in self._sockets.items() if self._buffers[peer]]
        timeout = None if until == float("inf") else max(until - time.monotonic(), 0.0)
        links = list(self._sockets.values())
        readable, writable, _ = select.select(links, writing, [], timeout)
        for peer, link in tuple(self._sockets.items()):
            if link in writable:
                self._flush(peer)
            if link in readable:
                self._receive(peer, link)

    def _receive(self, peer: int, link: socket.socket) -> None:
        try:
            data = link.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            time.sleep(0.01)  # the process is gone: the parent ends this one
            return
        buffer = self._incoming[peer]
        buffer += data
        first = 0
        while len(buffer) - first >= HEADER.size:
            number, sample, flags, moment = HEADER.unpack_from(buffer, first)
            last = first + HEADER.size + (flags & ~LAST)
            if len(buffer) < last:
                break
            self._take(number, sample, flags, moment, bytes(buffer[first + HEADER.size : last]))
            first = last
        del buffer[:first]

    def _take(self, number: int, sample: int, flags: int, moment: float, data: bytes) -> None:
        """A part of a message is here: its bytes are kept, and its last part makes it an event."""
        program, values = self._program, ()
        brings = program.brings.get(number, ()) if number >= 0 else ()
        if flags & LAST:
            own = VALUE.size * len(brings)
            values, data = tuple(value for (value,) in VALUE.iter_unpack(data[:own])), data[own:]
        for tensor in brings if data else ():
            self._hold(sample, tensor)
            self._held.setdefault((sample, tensor), []).append(data)
        if flags & LAST:
            self._told_left -= number != DONE
            self._push(moment, program.orders.get(number, (-1, -1, sample)), _TOLD, number, sample, values)

"""torch.profiler's trace: the Chrome JSON of `export_chrome_trace`, also of several steps and with CUDA kernels.

Operators appear in order, nested in each other (category "cpu_op"); a correlation links kernels to the calls that
launched them. Traces do not name the module of an operator, so only the order identifies it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placewise.costing.measured.content import events
from placewise.costing.measured.table import TimingRow, Timings, median_over_runs, read_seconds, spread_over_runs
from placewise.errors import CostError

DEEPEST = 200
_MICRO = 1e-6
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_STEP = "ProfilerStep#"


@dataclass(slots=True)
class OperatorEvent:
    """An operator that ran: start and end (microseconds), seconds, and the operators inside it."""

    name: str
    start: float
    end: float
    seconds: float
    inner: list[OperatorEvent] = field(default_factory=list)
    launched: float = 0.0


@dataclass(slots=True)
class _Trace:
    calls: dict[object, list[OperatorEvent]] = field(default_factory=lambda: defaultdict(list))
    steps: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    launches: dict[object, tuple[object, float]] = field(default_factory=dict)
    kernels: list[tuple[object, str, float]] = field(default_factory=list)


def read_torch(path: Path, is_known: Callable[[str], bool], is_run: Callable[[Sequence[str]], bool]) -> Timings:
    """Operators in execution order, with medians over steps; times are those of kernels if there are any.

    Operators that `is_known` rejects are replaced by the operators inside them. If a trace has no steps but repeats
    itself, each repetition is a step, or several if `is_run` recognizes them as one run of the model. Raises CostError.
    """
    trace = _Trace()
    for number, event in enumerate(events(path)):
        if event.get("ph") == "X":
            _record_event(trace, event, f"event {number}")
    outer = {thread: _nest_calls(calls) for thread, calls in trace.calls.items()}
    calls = sorted((call for calls in outer.values() for call in calls), key=lambda call: call.start)
    if not calls:
        raise CostError("holds no operators", remedy="record with ProfilerActivity.CPU")
    stray = _assign_kernels(trace, outer)
    flat = [part for call in calls for part in _flatten(call, is_known, bool(trace.kernels))]
    device = "cuda" if trace.kernels else "cpu"
    steps, notes = _split_by_step(flat, trace) if trace.steps else (_split_repetitions(flat, is_run), ())
    rows = [
        TimingRow(call.name, median_over_runs(times), device=device, spread=spread_over_runs(times))
        for place, call in enumerate(steps[0])
        for times in [[step[place].seconds for step in steps]]
    ]
    rows += [TimingRow(name, seconds / len(steps), device=device) for name, seconds in stray.items()]
    count = len(steps)
    form = f"torch.profiler trace of {count} {'step' if count == 1 else 'steps'}"
    return Timings(form, tuple(rows), in_order=True, notes=notes)


def _record_event(trace: _Trace, event: Mapping[str, Any], place: str) -> None:
    category, args = event.get("cat"), event.get("args")
    args = args if isinstance(args, Mapping) else {}
    name = str(event.get("name", ""))
    if category not in ("cpu_op", "user_annotation", *_ON_DEVICE, *_LAUNCHES):
        return
    start, seconds = event.get("ts"), read_seconds(event.get("dur"), place, unit=_MICRO)
    if not isinstance(start, (int, float)) or isinstance(start, bool):
        raise CostError("has no number 'ts'", where=place, remedy="give the trace as the profiler wrote it")
    if category == "cpu_op":
        trace.calls[str(event.get("tid"))].append(OperatorEvent(name, start, start + seconds / _MICRO, seconds))
    elif category == "user_annotation" and name.startswith(_STEP):
        trace.steps.append(start)
        trace.ends.append(start + seconds / _MICRO)
    elif category in _LAUNCHES and "correlation" in args:
        trace.launches[str(args["correlation"])] = str(event.get("tid")), start
    elif category in _ON_DEVICE:
        trace.kernels.append((str(args.get("correlation")), name, seconds))


def _nest_calls(calls: list[OperatorEvent]) -> list[OperatorEvent]:
    """The outermost calls of one thread, with the others nested in them."""
    outer: list[OperatorEvent] = []
    stack: list[OperatorEvent] = []
    for call in sorted(calls, key=lambda call: (call.start, -call.end)):
        while stack and call.start >= stack[-1].end:
            stack.pop()
        if len(stack) > DEEPEST:
            raise CostError("its operators are nested too deeply", remedy="give the trace as the profiler wrote it")
        (stack[-1].inner if stack else outer).append(call)
        stack.append(call)
    return outer


def _assign_kernels(trace: _Trace, outer: Mapping[object, list[OperatorEvent]]) -> dict[str, float]:
    """Add kernel times to the calls that launched them; return the seconds of the other kernels, by name."""
    stray: dict[str, float] = defaultdict(float)
    starts = {thread: [call.start for call in calls] for thread, calls in outer.items()}
    for correlation, name, seconds in trace.kernels:
        thread, moment = trace.launches.get(correlation, ("", 0.0))
        place = bisect_right(starts.get(thread, []), moment) - 1
        call = outer[thread][place] if place >= 0 and outer[thread][place].end >= moment else None
        if call is None:
            stray[name] += seconds
            continue
        while inner := next((part for part in call.inner if part.start <= moment <= part.end), None):
            call = inner
        call.launched += seconds
    return stray


def _flatten(call: OperatorEvent, is_known: Callable[[str], bool], on_device: bool) -> list[OperatorEvent]:
    """The call itself if its name is known or nothing inside is; else its parts, and the rest of its time."""
    total = _sum_launched(call) if on_device else call.seconds
    if is_known(call.name) or not any(_is_known_within(inner, is_known) for inner in call.inner):
        return [OperatorEvent(call.name, call.start, call.end, total)]
    parts = [part for inner in call.inner for part in _flatten(inner, is_known, on_device)]
    rest = max(total - sum(part.seconds for part in parts), 0.0)
    return [*parts, OperatorEvent(call.name, call.start, call.end, rest)]


def _is_known_within(call: OperatorEvent, is_known: Callable[[str], bool]) -> bool:
    return is_known(call.name) or any(_is_known_within(inner, is_known) for inner in call.inner)


def _sum_launched(call: OperatorEvent) -> float:
    return call.launched + sum(_sum_launched(inner) for inner in call.inner)


def _split_by_step(calls: list[OperatorEvent], trace: _Trace) -> tuple[list[list[OperatorEvent]], tuple[str, ...]]:
    """The steps with the most frequent sequence of operators."""
    order = sorted(zip(trace.steps, trace.ends, strict=True))
    starts = [start for start, _ in order]
    steps: dict[int, list[OperatorEvent]] = defaultdict(list)
    for call in calls:
        step = bisect_right(starts, call.start) - 1
        if step >= 0 and call.start < order[step][1]:
            steps[step].append(call)
    if not steps:
        raise CostError("holds no operators inside its steps", remedy="call profiler.step() after every step")
    sequences = {step: tuple(call.name for call in events) for step, events in steps.items()}
    usual = Counter(sequences.values()).most_common(1)[0][0]
    alike = [steps[step] for step in sorted(steps) if sequences[step] == usual]
    others = len(steps) - len(alike)
    return alike, (f"{others} of its {len(steps)} steps ran other operators and are ignored",) if others else ()


def _split_repetitions(
    calls: list[OperatorEvent], is_run: Callable[[Sequence[str]], bool]
) -> list[list[OperatorEvent]]:
    """Split the calls where they repeat; a model with internal repeats stays whole if `is_run` recognizes it."""
    names = [call.name for call in calls]
    period = find_period(names)
    counts = [count for count in range(1, len(names) // period + 1) if len(names) // period % count == 0]
    lengths = (len(names) // count for count in counts)
    length = next((length for length in lengths if is_run(names[:length])), period)
    return [calls[start : start + length] for start in range(0, len(calls), length)]


def find_period(names: Sequence[str]) -> int:
    """The length of the shortest prefix that, repeated, gives all of `names`.

    By the failure function: D. E. Knuth, J. H. Morris and V. R. Pratt, Fast Pattern Matching in Strings, 1977.
    """
    borders = [0] * len(names)
    for place in range(1, len(names)):
        border = borders[place - 1]
        while border and names[border] != names[place]:
            border = borders[border - 1]
        borders[place] = border + (names[border] == names[place])
    period = len(names) - borders[-1]
    return period if len(names) % period == 0 else len(names)

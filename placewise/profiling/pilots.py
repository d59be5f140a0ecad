"""Pilots: placements that run when a model is profiled, to see what op times alone do not say.

Op times come from runs of the whole model in one piece. A plan cuts it: every border is a call, a hand-over to another
worker, which may have to wake up, a conversion of layouts on both sides, and kernels that are not fused; and devices
that work at the same time slow each other down. The first pilots, a plan chosen by op times and placements drawn around
it, teach what a tensor that crosses a border costs. Then plans are chosen again, by the costs that know borders, and
run: they tell how much longer a *chosen* plan takes than the costs say. Nothing is fitted to these, so that they show
the bias of the choice itself, which picks whatever the costs favour.

Every pilot runs in turns with one device alone, and so does the whole model with the runtime's own threads on all
cores: what counts is the ratio to the single device in the same rounds, not the state of the machine. Rounds in which
a worker waited for a processor that another program had are repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from placewise.core.apply_profile import apply_to_problem, with_borders
from placewise.core.place import place
from placewise.errors import RunError
from placewise.files.profile_file import PilotRecord, ProfileFile, RunsRecord
from placewise.model.costs import transfer_seconds_of
from placewise.model.placement import Placement
from placewise.model.problem import Problem
from placewise.placers.base import Budget
from placewise.runtimes import registry
from placewise.runtimes.base import Job, PreparedPlacement, Runtime, match_execution
from placewise.runtimes.binding import Place
from placewise.runtimes.measure import Protocol, input_source, measure
from placewise.runtimes.paired import PairedRatio, compare_rounds, least_rounds, summarize_ratios
from placewise.runtimes.plain import all_cores, on_all_cores
from placewise.simulate import judge_placement

CHOSEN, SEARCH = 3, 2.0
"""Plans that are chosen and run after the borders are known, and seconds of the search for each."""
BATCH = 2
"""Pilots that are ready at the same time, beside the single device and the plain runtime: each holds the model."""
PROTOCOL = Protocol(rounds=9, samples=3, seconds=20.0, least=least_rounds(), wait=0.05)
OF_CHOSEN = replace(PROTOCOL, rounds=25)
"""More rounds of the plans that are chosen: what is expected of any plan hangs on their few figures."""
_SINGLE, _OWN = "single", "own"
_SECONDS = (0.0, 5e-6, 1e-5, 2e-5, 4e-5, 6e-5, 9e-5, 1.3e-4, 2e-4, 3e-4, 5e-4)
_PER_BYTE = (0.0, 2e-11, 5e-11, 1e-10, 2e-10, 4e-10, 8e-10, 1.6e-9)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A pilot that ran: its placement, its pieces, its seconds by its ratio to the single device, and their error."""

    placement: Placement
    pieces: int
    seconds: float
    error: float = 0.0


def run_pilots(
    problem: Problem,
    profile: ProfileFile,
    places: Sequence[Place],
    count: int,
    *,
    seed: int,
    seconds: float,
    trust_model: bool = False,
) -> RunsRecord | None:
    """What runs of whole placements say beside a profile; `count` of them teach what borders cost.

    None where fewer than two of the profiled devices have cores of their own. A pilot that fails is left out; a worker
    that does not answer within `seconds` fails. Raises RunError if the single device fails.
    """
    runtime = registry.create(profile.runtime)
    known = {device.name for device in profile.devices}
    rows = [row for row, place in enumerate(places) if place.kind == "cores" and place.device in known]
    apart = len(all_cores([places[row] for row in rows])) == sum(len(places[row].cores) for row in rows)
    if len(rows) < 2 or not apart or not problem.n_ops:
        return None
    priced = match_execution(apply_to_problem(problem, profile), runtime.info, pipelined=False)
    first = int(rows[int(np.argmin([priced.costs.op_seconds[:, row].sum() for row in rows]))])
    single = Placement.on(first, problem.n_ops)
    job = Job(priced, single, tuple(places), seconds=seconds, trust_model=trust_model)
    base = judge_placement(priced, single).value
    with ExitStack() as stack:
        ready: dict[str, PreparedPlacement] = {_SINGLE: runtime.prepare(job)}
        stack.callback(ready[_SINGLE].close)
        whole = on_all_cores(job)
        with suppress(RunError):
            if whole is not None:
                ready[_OWN] = runtime.prepare(whole)
                stack.callback(ready[_OWN].close)
        own: list[list[float]] = []
        run = partial(_run_batches, runtime, job, ready, base, own)
        taught = run(_draw_pilots(priced, rows, count, seed), PROTOCOL) if count else []
        border = _fit_borders(priced, known, taught)
        bordered = _with_borders(priced, known, *border)
        chosen = run(_choose_plans(bordered, CHOSEN, seed) if count else [], OF_CHOSEN)
    plain = summarize_ratios(list(chain.from_iterable(own))) if own else None
    pilots = [*(_record(bordered, one, chosen=False) for one in taught), *(
        _record(bordered, one, chosen=True) for one in chosen
    )]  # fmt: skip
    latency, per_byte = border
    return RunsRecord(
        own_threads=None if plain is None else base * plain.ratio,
        own_threads_error=0.0 if plain is None else max(plain.error, *(_apart(batch, plain) for batch in own)),
        cores=0 if plain is None else len(all_cores(places)),
        border_seconds=latency,
        border_bytes_per_second=1 / per_byte if per_byte else 0.0,
        pilots=tuple(pilots),
    )


def _apart(batch: Sequence[float], whole: PairedRatio) -> float:
    """How far the median of one batch is from that of all: a machine may change between batches."""
    return abs(float(np.median(batch)) / whole.ratio - 1)


def _draw_pilots(problem: Problem, rows: Sequence[int], count: int, seed: int) -> list[Placement]:
    """A plan that the costs choose, and others: it with a few blocks moved, and stretches of random length."""
    rng = np.random.default_rng(seed)
    found = _choose_plans(problem, 1, seed)
    home = np.full(problem.n_blocks, rows[0], np.int32)
    if found:
        home[problem.block] = found[0].device
    while len(found) < count:
        if len(found) % 3 == 1:
            blocks = home.copy()
            moved = rng.choice(problem.n_blocks, min(problem.n_blocks, int(rng.integers(2, 8))), replace=False)
            blocks[moved] = rng.choice(rows, len(moved))
        else:
            stretch = np.arange(problem.n_blocks) // int(rng.integers(2, max(problem.n_blocks // 3, 3)))
            blocks = rng.choice(rows, int(stretch.max()) + 1).astype(np.int32)[stretch]
        found.append(Placement(blocks.astype(np.int32)[problem.block]))
    return found


def _choose_plans(problem: Problem, count: int, seed: int) -> list[Placement]:
    """Different plans on more than one device that a search chooses, each with another seed; none if it splits none."""
    found: list[Placement] = []
    for number in range(count):
        placement = place(problem, "auto", Budget(SEARCH, seed=seed + number)).placement
        if placement is not None and len(np.unique(placement.device)) > 1 and placement not in found:
            found.append(placement)
    return found


def _run_batches(
    runtime: Runtime,
    job: Job,
    ready: dict[str, PreparedPlacement],
    base: float,
    own: list[list[float]],
    placements: Sequence[Placement],
    protocol: Protocol,
) -> list[_Run]:
    """Run placements a few at a time, in turns with what is `ready`; the plain runtime's ratios go to `own`."""
    fresh, found = input_source(job.problem.graph), list[_Run]()
    limited = any(place.quota < 1 for place in job.places)  # who waits for a quota is not disturbed
    protocol = replace(protocol, wait=float("inf")) if limited else protocol
    for first in range(0, max(len(placements), 1 if not own else 0), BATCH):
        with ExitStack() as stack:
            some: dict[str, tuple[Placement, PreparedPlacement]] = {}
            for number, placement in enumerate(placements[first : first + BATCH]):
                with suppress(RunError):
                    prepared = runtime.prepare(job.on(placement))
                    stack.callback(prepared.close)
                    some[str(number)] = placement, prepared
            timed = {
                one.name: one
                for one in measure(ready | {name: one for name, (_, one) in some.items()}, fresh, protocol)
            }
        if timed[_SINGLE].failure:
            raise RunError(timed[_SINGLE].failure)
        rounds = {name: one.rounds for name, one in timed.items() if one.rounds}
        own += [np.divide(rounds[_OWN], rounds[_SINGLE]).tolist()] if _OWN in rounds else []
        for name, (placement, prepared) in some.items():
            if name in rounds:
                over = compare_rounds(rounds[name], rounds[_SINGLE])
                found.append(_Run(placement, sum(prepared.realised.pieces), base * over.ratio, over.error))
    return found


def _fit_borders(problem: Problem, names: set[str], runs: Sequence[_Run]) -> tuple[float, float]:
    """Seconds per tensor that crosses a border, and per byte of it, with the least error on runs (mean absolute log).

    Without runs, those of the links as they are.
    """
    crossing = [link for link in problem.cluster.links if names.issuperset((link.source, link.target))]
    best = (crossing[0].latency, 1 / crossing[0].bandwidth) if crossing else (0.0, 0.0)
    if not runs or not crossing:
        return best

    def loss(border: tuple[float, float]) -> float:
        priced = _with_borders(problem, names, *border)
        ratios = [judge_placement(priced, run.placement).value / run.seconds for run in runs]
        return float(np.abs(np.log(ratios)).mean())

    lowest = loss(best)
    for border in ((seconds, per_byte) for seconds in _SECONDS for per_byte in _PER_BYTE):
        error = loss(border)
        if error < lowest:
            lowest, best = error, border
    return best


def _with_borders(problem: Problem, names: set[str], seconds: float, per_byte: float) -> Problem:
    """The problem whose devices `names` pay this for every tensor from another of them."""
    cluster = with_borders(problem.cluster, names, seconds, 1 / per_byte if per_byte else 0.0)
    transfers = transfer_seconds_of(problem.graph, cluster)
    return problem.with_(cluster=cluster, costs=replace(problem.costs, transfer_seconds=transfers))


def _record(problem: Problem, run: _Run, *, chosen: bool) -> PilotRecord:
    predicted = judge_placement(problem, run.placement).value
    return PilotRecord(chosen=chosen, pieces=run.pieces, predicted=predicted, measured=run.seconds, error=run.error)

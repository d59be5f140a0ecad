"""The placers that `auto` runs for a problem, in order: quick ones, the main method, others, searches, proofs.

A placer that does not support the problem, or whose extra is not installed, is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal

from placewise.coarsen.scopes import join_parts
from placewise.model.problem import Problem

FEW_OPS = 10
"""With this many ops or fewer, one program is solved with its proof, if that takes no more than `LITTLE_WORK`."""
LITTLE_WORK = 4
"""CP-SAT's deterministic time: about as many seconds."""
FEW_BLOCKS = 15
"""With this many groups of ops or fewer, `exhaustive` may try all placements."""
LAST_RESORT = "pack"
MANY_OPS = 3000
"""From this size on, searches also work on coarser graphs."""
HUGE_OPS = 200_000
"""From this size on, quick placers take seconds each: for latency list schedulers come first, and slow placers never
run."""
SMALL_WINDOWS = 300
"""With more ops, the programs of `windows` in `operator` execution are too slow to pay."""
PROVED_BLOCKS = {"staged": 1500, "direct": 400}
"""On larger problems a set cover proves next to nothing in minutes; with direct links its prices are loose."""
CHAIN_BLOCKS, CHAIN_PROOF_SHARE = 250, 0.25
"""The same for stages in a chain, bounded by the proof for any shape; and its share of the time that is left, as
that of relaxed bounds before it."""
CUT_BLOCKS = 50_000
"""On larger problems the minimum cuts of relaxed bounds take minutes."""
CUT_SECONDS = 30.0
"""With less time, cuts run for throughput only, and on graphs that they cut at once."""
TRIED_COUNTS = 6
"""How many numbers of devices list schedulers try, the powers of two first."""


MANY_REPEATED, REPEATED_SHARE = 10_000, 0.75
"""With more ops than this, the share of the time for moving all repetitions of a part together for latency."""
BLOCKS_PER_PART, PARTS_SHARE = 8, 0.2
"""With no more ops, and with so many blocks per part on average, whole parts of the model move for this share of the
time that is left."""
CHAIN_DP_SHARE, PROOF_SHARE = 0.3, 0.6
"""Of the time that is left, for the dynamic program where stages form a chain, and for a proof over few ideals: where
that does not end, it has proved little."""
CHAIN_SHARE, CHAIN_WINDOWS_SHARE, CHAIN_OPS = 0.25, 0.3, 10_000
"""Of the time that is left, for stages in a chain where any sets are allowed, and then for windows on that chain: often
a better start on graphs of some thousand ops. On larger ones the search for a chain takes longer than that."""


COUNTING = frozenset(("cover", "cpsat", "local", "multilevel", LAST_RESORT, "windows"))
"""The placers that a budget of iterations limits; others do the same each time."""

Shape = Literal["contiguous", "convex", "any", "parts"]
"""Of stages; or `parts`: the ops of every small part of the model stay on one device."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A placer with its options, its share of the remaining time, and the most work of a solver in it.

    With a `shape` it solves the problem of that shape. If that is tighter, its placements keep the problem's rules;
    with `any`, its bound holds for the problem. It starts from scratch, or if `hinted` from the best placements.
    A quick placer that is `needed` runs whenever it can end in time, whatever share of the time is left to quick ones.
    """

    placer: str
    options: dict[str, Any] = field(default_factory=dict)
    share: float = 1.0
    work: int | None = None
    shape: Shape | None = None
    needed: bool = False
    hinted: bool = False


def quick(problem: Problem) -> tuple[Turn, ...]:
    """Placers that take milliseconds on graphs of some hundred ops: naive ones, then heuristics of the literature."""
    latency = problem.objective.kind == "latency"
    heft = Turn("heft", needed=latency)  # the cheapest list scheduler, for latency far better than anything naive
    if problem.constraints.ordered:
        return Turn("single"), *((Turn("exhaustive"),) if problem.n_blocks <= FEW_BLOCKS else ())
    if latency and problem.n_ops > HUGE_OPS:
        return Turn("single"), heft, Turn("etf", {"by": "start"}), Turn("etf"), Turn("critical_path"), Turn("topo")
    exhaustive = [Turn("exhaustive")] if problem.n_blocks <= FEW_BLOCKS or problem.n_devices == 1 else []
    turns = [Turn("balanced"), Turn("topo"), Turn("expert", {"hint": False})]
    lists = [Turn("etf"), Turn("etf", {"by": "start"})]
    if not latency:
        return (Turn("single"), *exhaustive, *turns, heft, *lists)
    counts = _counts(problem.n_devices)
    fewer = [Turn(lister, {"devices": count}) for count in counts for lister in ("heft", "etf")]
    return (Turn("single"), *exhaustive, heft, *turns, Turn("greedy"), *lists, Turn("critical_path"), *fewer)


def tighter(problem: Problem) -> Shape | None:
    """The next tighter shape of stages, for throughput; None if there is none."""
    rules = problem.constraints
    if problem.objective.kind == "latency" or rules.contiguous:
        return None
    return "contiguous" if rules.convex else "convex"


def main(problem: Problem, seconds: float) -> tuple[Turn, ...]:
    """The exact or nearly exact method of the objective, and the last resort where memory is tight.

    Without a limit of `seconds`, throughput problems with stages of any shape were solved for a chain before.
    """
    if problem.constraints.ordered:
        dp = () if problem.objective.kind == "latency" else (Turn("dp", share=0.5),)
        return *dp, Turn("in_order", share=0.5), Turn(LAST_RESORT)
    if problem.objective.kind == "latency":
        first = {"subgraph": (Turn("paths", share=0.25),), "sequential": (Turn("two_way"),)}
        moved = problem.objective.op_by_op and problem.n_ops > MANY_REPEATED
        repeated = (Turn("multilevel", {"repeated": "only"}, share=REPEATED_SHARE),) if moved else ()
        return (*first.get(problem.objective.execution, ()), Turn(LAST_RESORT), *repeated)
    if problem.constraints.contiguous:
        return Turn("dp", {"proof_share": PROOF_SHARE}, share=CHAIN_DP_SHARE), Turn(LAST_RESORT)
    if not isfinite(seconds):
        return (Turn(LAST_RESORT),)
    large = MANY_OPS < problem.n_ops <= CHAIN_OPS
    chain = Turn("multilevel", share=CHAIN_SHARE, shape="contiguous")
    windows = Turn("windows", {"search": 0.0}, share=CHAIN_WINDOWS_SHARE, shape="contiguous", hinted=True)
    return Turn("dp", share=0.15), *((chain, windows) if large else ()), Turn(LAST_RESORT)


def others(problem: Problem, seconds: float) -> tuple[Turn, ...]:
    """Graph partitioners: seldom better, but different starting points for searches.

    PipeDream, m-SCT and the max-load split never improved a row of benchmarks/results/quality.json; `compare` has them.
    """
    slow = problem.objective.kind == "latency" or problem.n_ops > MANY_OPS
    if problem.n_ops > HUGE_OPS or (seconds < CUT_SECONDS and slow):
        return ()
    return Turn("metis", share=0.1), Turn("mincut", share=0.1)


def searches(problem: Problem) -> tuple[Turn, ...]:
    """Searches from the best placements so far, repeated while there is time."""
    many = (Turn("multilevel", {"repeated": "never"}),) if problem.n_ops > MANY_OPS else ()
    if problem.objective.kind == "latency":
        operator = problem.objective.op_by_op
        solved = () if operator and problem.n_ops > SMALL_WINDOWS else (Turn("windows", {"search": 0.0}),)
        return (*many, *solved, Turn("local", {"bound": False}))
    return (*many, Turn("local"), Turn("windows", {"search": 0.0}))


def by_parts(problem: Problem) -> tuple[Turn, ...]:
    """Searches for latency that move whole parts of the model, where parts have many blocks."""
    if problem.n_ops > MANY_REPEATED or join_parts(problem).n_blocks * BLOCKS_PER_PART > problem.n_blocks:
        return ()
    turns = Turn("multilevel", {"repeated": "never"}), Turn("local", {"bound": False})
    return tuple(replace(turn, shape="parts", hinted=True) for turn in turns)


def proofs(problem: Problem) -> tuple[Turn, ...]:
    """Placers that may prove a placement optimal, or bound how far it is from the optimum."""
    few, rules = problem.n_ops <= FEW_OPS, problem.constraints
    if problem.objective.kind == "latency":
        return (Turn("cpsat", {"search": 0.0}, work=LITTLE_WORK),) if few else ()
    if rules.convex and not rules.contiguous:
        return (Turn("cpsat"),)
    if few and not rules.contiguous:
        return Turn("cpsat", work=LITTLE_WORK), Turn("cover")
    if rules.contiguous and not rules.ordered:
        relaxed = (Turn("dp", {"max_ideals": 0}, share=CHAIN_PROOF_SHARE),) if problem.n_blocks <= CUT_BLOCKS else ()
        small = problem.n_blocks <= CHAIN_BLOCKS and problem.max_replicas == 1
        return *relaxed, *((Turn("cover", share=CHAIN_PROOF_SHARE, shape="any"),) if small else ())
    return (Turn("cover"),) if problem.n_blocks <= PROVED_BLOCKS[problem.cluster.transfers] else ()


def works(iterations: int | None) -> tuple[int | None, ...]:
    """The iterations of each pass without a time limit: 1, 2, 4 and so on, no more than `iterations` in all.

    The passes of a smaller budget are the first ones of a larger budget.
    """
    if not iterations:
        return (iterations,)
    return tuple(1 << number for number in range((iterations + 1).bit_length() - 1))


def _counts(n_devices: int) -> list[int]:
    """Numbers of devices to try, fewer than all: each, or with many devices the powers of two."""
    if n_devices <= TRIED_COUNTS + 1:
        return list(range(2, n_devices))
    return [1 << power for power in range(1, n_devices.bit_length()) if 1 << power < n_devices]

"""The kernels in C++ (native/). Written by scripts/write_native_stub.py; do not edit."""

"""
Kernels in C++: each is documented where it is bound, in native/*/bindings.cpp.
"""

import numpy
from numpy.typing import NDArray

class StopFlag:
    """Set by one thread, seen by kernels that run in others."""

    def __init__(self) -> None: ...
    def set(self) -> None:
        """End every kernel that was handed this flag, within 50 ms."""

    def clear(self) -> None: ...
    def is_set(self) -> bool: ...

class Problem:
    """
    The columns of one problem, checked once and read in place; see placewise.simulate.problem_arrays.Arrays for their meaning.
    """

    def __init__(
        self,
        op_seconds: NDArray[numpy.float64],
        transfer: NDArray[numpy.float64],
        producer: NDArray[numpy.int32],
        output: NDArray[numpy.bool_],
        out_offsets: NDArray[numpy.int64],
        consumer_offsets: NDArray[numpy.int64],
        consumers: NDArray[numpy.int32],
        consumed: NDArray[numpy.int32],
        location: NDArray[numpy.int32],
        link_class: NDArray[numpy.int32],
        queue: NDArray[numpy.int32],
        wire: NDArray[numpy.int32],
        streams: NDArray[numpy.int32],
        call_overhead: NDArray[numpy.float64],
        staged: bool,
        n_queues: int,
        n_wires: int,
    ) -> None: ...
    @property
    def n_ops(self) -> int: ...
    @property
    def n_devices(self) -> int: ...

def operator_makespans(
    problem: Problem,
    priority: NDArray[numpy.int32],
    by_priority: NDArray[numpy.int32],
    placements: NDArray[numpy.int32],
    first: int,
    last: int,
    values: NDArray[numpy.float64],
) -> None:
    """
    Makespans of rows `first` to `last` of placements [K, n_ops] in `operator` execution, into `values` [K].
    """

def operator_timeline(
    problem: Problem, priority: NDArray[numpy.int32], by_priority: NDArray[numpy.int32], device: NDArray[numpy.int32]
) -> tuple[float, NDArray[numpy.float64], NDArray[numpy.float64], NDArray[numpy.float64]]:
    """
    The makespan of one placement [n_ops], starts and ends of its ops, and its hops [n_hops, 5].
    """

def max_loads(
    problem: Problem, placements: NDArray[numpy.int32], mode: int, first: int, last: int, values: NDArray[numpy.float64]
) -> None:
    """
    Max-loads of rows `first` to `last` of placements [K, n_ops], into `values` [K]; mode 0 is blocking, 1 overlap, 2 duplex.
    """

def pipeline_loads(
    problem: Problem, device: NDArray[numpy.int32]
) -> tuple[NDArray[numpy.float64], NDArray[numpy.float64], NDArray[numpy.float64], NDArray[numpy.float64]]:
    """
    Seconds of compute, sends and receives per location [n_devices + 1], and of traffic per wire.
    """

def subgraph_calls(problem: Problem, device: NDArray[numpy.int32]) -> NDArray[numpy.int32]:
    """
    The fewest calls of a placement [n_ops]: the number of each op's call on its accelerator, −1 on hosts.
    """

def subgraph_makespans(
    problem: Problem, placements: NDArray[numpy.int32], first: int, last: int, values: NDArray[numpy.float64]
) -> None:
    """
    Makespans of rows `first` to `last` of placements [K, n_ops] in `subgraph` execution, into `values` [K].
    """

def subgraph_timeline(
    problem: Problem, device: NDArray[numpy.int32], call: NDArray[numpy.int32]
) -> tuple[float, NDArray[numpy.float64], NDArray[numpy.float64], NDArray[numpy.float64]]:
    """
    The makespan of one placement with these calls, starts and ends of its ops, and its hops [n_hops, 5].
    """

def sequential_pieces(problem: Problem, device: NDArray[numpy.int32]) -> NDArray[numpy.int32]:
    """
    The number of each op's piece [n_ops]; ops of one number and one device form a piece.
    """

def sequential_makespans(
    problem: Problem,
    in_offsets: NDArray[numpy.int64],
    in_tensors: NDArray[numpy.int32],
    placements: NDArray[numpy.int32],
    first: int,
    last: int,
    values: NDArray[numpy.float64],
) -> None:
    """
    Makespans of rows `first` to `last` of placements [K, n_ops] in `sequential` execution, into `values` [K].
    """

def sequential_timeline(
    problem: Problem, in_offsets: NDArray[numpy.int64], in_tensors: NDArray[numpy.int32], device: NDArray[numpy.int32]
) -> tuple[float, NDArray[numpy.float64], NDArray[numpy.float64], NDArray[numpy.float64]]:
    """
    The makespan of one placement, starts and ends of its ops, and its hops [n_hops, 5].
    """

def upward_ranks(
    problem: Problem, op_seconds: NDArray[numpy.float64], tensor_seconds: NDArray[numpy.float64]
) -> NDArray[numpy.float64]:
    """The longest path that remains from each op [n_ops], itself included."""

def downward_ranks(
    problem: Problem, op_seconds: NDArray[numpy.float64], tensor_seconds: NDArray[numpy.float64]
) -> NDArray[numpy.float64]:
    """The longest path to each op [n_ops], itself not included."""

def longest_path(problem: Problem, weight: NDArray[numpy.float64]) -> NDArray[numpy.int32]:
    """The ops of a path with the largest sum of weights [n_ops], in order."""

def return_path(
    problem: Problem, backward: NDArray[numpy.bool_], phase: NDArray[numpy.int32], device: NDArray[numpy.int32]
) -> NDArray[numpy.int32]:
    """
    The ops of a path that leaves a device and comes back, empty where there is none.
    """

def strong_components(offsets: NDArray[numpy.int64], heads: NDArray[numpy.int32]) -> tuple[NDArray[numpy.int32], int]:
    """
    The strong component of each node of a graph, numbered topologically, and how many there are.
    """

def locate_beside_path(
    problem: Problem, path: NDArray[numpy.int32]
) -> tuple[NDArray[numpy.int32], NDArray[numpy.int32]]:
    """
    Two columns [n_ops]: the last position of the path [m] that leads to each op, −1 for none, and the first that it leads to, m for none.
    """

def spreading_tree(
    edge_offsets: NDArray[numpy.int64],
    edge_nodes: NDArray[numpy.int32],
    node_offsets: NDArray[numpy.int64],
    node_edges: NDArray[numpy.int32],
    length: NDArray[numpy.float64],
    weight: NDArray[numpy.float64],
    root: int,
) -> tuple[float, NDArray[numpy.int32], NDArray[numpy.float64]]:
    """
    The excess above 1 of the weight [n_nodes] of some nodes near a root, the edges of a tree that reaches them, and how much of the excess each must carry; 0 if no such tree costs less than its excess at these lengths [n_edges].
    """

class PathCutter:
    """
    Cuts a path of m ops into segments on accelerators and ops on the host.
    """

    def __init__(self, host: NDArray[numpy.float64], fits: NDArray[numpy.bool_], tied: NDArray[numpy.bool_]) -> None:
        """
        `host` [m] seconds on the host, `fits` [m + 1, m + 1] whether path[i:j] fits on one accelerator, `tied` [m + 1] whether what meets at a position shares a device.
        """

    def find_shortest(self, seconds: NDArray[numpy.float64]) -> tuple[float, list[tuple[int, int]]]:
        """
        The least seconds where path[i:j] takes seconds[i, j], and the segments (i, j), the last first.
        """

class GroupGraph:
    """
    An acyclic graph of groups in a topological order, checked once and read in place; columns as in placewise.coarsen.quotient.Quotient.
    """

    def __init__(
        self,
        tail: NDArray[numpy.int32],
        head: NDArray[numpy.int32],
        flow: NDArray[numpy.float64],
        seconds: NDArray[numpy.float64],
        bytes: NDArray[numpy.float64],
        key: NDArray[numpy.int64],
    ) -> None: ...

def join_sole_successors(graph: GroupGraph, most_seconds: float, most_bytes: float) -> NDArray[numpy.int32]:
    """
    Labels [n]: groups join their only successor, as far as keys and limits allow.
    """

def cut_intervals(graph: GroupGraph, most_seconds: float, most_bytes: float) -> NDArray[numpy.int32]:
    """
    Labels [n]: neighbours in the order of the groups, as many together as keys and limits allow.
    """

def cluster_heavy_edges(
    graph: GroupGraph, size: NDArray[numpy.float64], most_seconds: float, most_bytes: float
) -> NDArray[numpy.int32]:
    """
    Labels [n] of clusters along edges of much flow for the sizes [n] of both ends, light groups choosing first.
    """

def latest_levels(graph: GroupGraph) -> NDArray[numpy.int64]:
    """
    The level [n] of each group, as late as its readers allow; the last is n.
    """

def divide_at_anchors(
    graph: GroupGraph,
    signature: NDArray[numpy.uint64],
    outer: NDArray[numpy.int32],
    left: NDArray[numpy.bool_],
    anchors: NDArray[numpy.int64],
) -> tuple[NDArray[numpy.int64], NDArray[numpy.uint64], NDArray[numpy.int64], float]:
    """
    The first anchor that needs each group [n], the sum of signatures and the number of groups of each part [n_anchors + 1], and the flow between parts.
    """

def count_rounds(
    offsets: NDArray[numpy.int64], readers: NDArray[numpy.int32], rank: NDArray[numpy.int64]
) -> NDArray[numpy.int64]:
    """
    How often, at most, a path to each op [n_ops] went from a part of higher rank to one of lower rank.
    """

class GroupNeeds:
    """
    What groups of ops need wherever they run, checked once and read in place: `allowed` [n_groups, n_devices]; `reserved` [n_groups], the device where a place is reserved or −1; bytes of `state` and of what no other group uses, `own`; storages by group; bytes per storage; bytes of `capacity` per device.
    """

    def __init__(
        self,
        allowed: NDArray[numpy.bool_],
        reserved: NDArray[numpy.int32],
        state: NDArray[numpy.int64],
        own: NDArray[numpy.int64],
        storage_offsets: NDArray[numpy.int64],
        storages: NDArray[numpy.int32],
        storage_bytes: NDArray[numpy.int64],
        capacity: NDArray[numpy.int64],
    ) -> None: ...

class IdleIntervals:
    """When one resource is idle, remembering so many gaps."""

    def __init__(self, most_gaps: int) -> None: ...
    def __len__(self) -> int: ...
    def first_fit(self, ready: float, seconds: float) -> float:
        """
        The earliest time from `ready` on at which the resource is idle for so many seconds.
        """

    def book(self, begin: float, seconds: float) -> None:
        """Take the time from `begin` on, which `first_fit` found."""

def schedule_earliest(
    problem: Problem,
    groups: GroupNeeds,
    group: NDArray[numpy.int32],
    input_offsets: NDArray[numpy.int64],
    input_tensors: NDArray[numpy.int32],
    rank: NDArray[numpy.int32],
    by_rank: NDArray[numpy.int32],
    favourite_child: NDArray[numpy.int32] | None,
    weight: float,
    seconds: float = float("inf"),
    stop: StopFlag | None = None,
) -> tuple[NDArray[numpy.int32], int]:
    """
    ETF or, with favourite children [n_ops], SCT: devices [n_ops], −1 for none, and how many ops have one, fewer than all if memory or time ran out; `weight` 1 goes by finish, 0 by start.
    """

def schedule_by_insertion(
    problem: Problem,
    groups: GroupNeeds,
    group: NDArray[numpy.int32],
    input_offsets: NDArray[numpy.int64],
    input_tensors: NDArray[numpy.int32],
    rank: NDArray[numpy.int32],
    by_rank: NDArray[numpy.int32],
    wanted: NDArray[numpy.int32],
    seconds: float = float("inf"),
    stop: StopFlag | None = None,
) -> tuple[NDArray[numpy.int32], int]:
    """
    HEFT or, with devices that are `wanted` [n_ops], CPOP: devices [n_ops], −1 for none, and how many ops have one, fewer than all if memory or time ran out.
    """

def fill_in_order(
    groups: GroupNeeds,
    amount: NDArray[numpy.float64],
    devices: NDArray[numpy.int32],
    n_first: int,
    share: float,
    stages: bool,
) -> tuple[NDArray[numpy.int32], int]:
    """
    m-TOPO: groups in order fill the first `n_first` of `devices` up to `share` each, then the others; the devices [n_groups], −1 for none, and how many groups have one.
    """

class MoveSpace:
    """Blocks as moves see them, checked once and read in place."""

    def __init__(
        self,
        *,
        allowed: NDArray[numpy.bool_],
        devices: NDArray[numpy.int32],
        capacity: NDArray[numpy.float64],
        state_bytes: NDArray[numpy.int64],
        storage_bytes: NDArray[numpy.int64],
        storage_offsets: NDArray[numpy.int64],
        storages: NDArray[numpy.int32],
        user_offsets: NDArray[numpy.int64],
        users: NDArray[numpy.int32],
        neighbour_offsets: NDArray[numpy.int64],
        neighbours: NDArray[numpy.int32],
    ) -> None:
        """
        allowed [n_blocks, n_devices]; the devices worth choosing; bytes of devices, blocks and storages; CSR rows: the storages of blocks, the users of storages, the neighbours of blocks.
        """

    @property
    def n_blocks(self) -> int: ...
    @property
    def n_devices(self) -> int: ...

class MoveProposer:
    """Random neighbours of assignments that somebody else prices."""

    def __init__(self, space: MoveSpace, seeds: NDArray[numpy.uint64]) -> None:
        """One random generator per assignment."""

    def propose(self, devices: NDArray[numpy.int32]) -> NDArray[numpy.int32]:
        """
        A neighbour of each of the assignments [K, n_blocks], one per seed; the same where none that fits was found.
        """

class LatencySearchProblem:
    """What all chains of a latency search share."""

    def __init__(
        self,
        problem: Problem,
        space: MoveSpace,
        *,
        priority: NDArray[numpy.int32],
        by_priority: NDArray[numpy.int32],
        block: NDArray[numpy.int32],
        least_seconds: NDArray[numpy.float64],
        in_place_bytes: NDArray[numpy.int64],
        tensor_bytes: NDArray[numpy.int64],
        is_host: NDArray[numpy.bool_],
        part: NDArray[numpy.int32],
        part_offsets: NDArray[numpy.int64],
        part_blocks: NDArray[numpy.int32],
        live: bool,
        shaped: bool,
    ) -> None:
        """
        Columns of ops, tensors and devices, and parts of the model on several levels; see placewise.placers.local_search.latency_chains.ScopeLevels.
        """

    @property
    def activation_bytes(self) -> float:
        """Bytes of all tensors."""

class LatencyChain:
    """
    One chain of moves; chains of one problem may run side by side on threads.
    """

    def __init__(self, search: LatencySearchProblem, assignment: NDArray[numpy.int32], seed: int) -> None:
        """
        A chain at an assignment [n_blocks]; it has no value before it has run.
        """

    def begin(self, assignment: NDArray[numpy.int32]) -> None:
        """Go on from another assignment [n_blocks]."""

    def run(
        self, moves: int, ops: int = 1152921504606846976, seconds: float = float("inf"), stop: StopFlag | None = None
    ) -> bool:
        """
        Make so many moves, or until so many ops are simulated; True if a candidate awaits a verdict.
        """

    def resolve(self, valid: bool, seconds: float = float("inf"), stop: StopFlag | None = None) -> bool:
        """
        Take or drop the candidate that awaits a verdict on the shape of its stages, and go on as `run` does.
        """

    @property
    def temperature(self) -> float:
        """Seconds."""

    @temperature.setter
    def temperature(self, arg: float, /) -> None: ...
    @property
    def value(self) -> float:
        """The makespan of the assignment, inf before the first run."""

    @property
    def candidate_value(self) -> float:
        """What the last candidate was priced at."""

    @property
    def best_value(self) -> float: ...
    @property
    def awaits_verdict(self) -> bool: ...
    @property
    def n_tried(self) -> int:
        """Moves so far."""

    @property
    def n_simulated(self) -> int:
        """Ops simulated so far."""

    @property
    def n_checkpoints(self) -> int: ...
    @property
    def checkpoint(self) -> int:
        """From which the last candidate was priced, −1: from time 0."""

    @property
    def best(self) -> NDArray[numpy.int32]:
        """[n_blocks]"""

    @property
    def assignment(self) -> NDArray[numpy.int32]:
        """[n_blocks], with the moves of a candidate that awaits a verdict."""

    @property
    def used_bytes(self) -> NDArray[numpy.int64]:
        """Resident bytes [n_devices]."""

    @property
    def start(self) -> NDArray[numpy.float64]:
        """When ops start [n_ops] in the recorded schedule."""

    @property
    def critical_path(self) -> NDArray[numpy.int32]:
        """
        Ops that each waited for the next, from the end of the recorded schedule on.
        """

    def price(self, checkpoint: int = -1, limit: float = float("inf")) -> float:
        """
        The makespan of the assignment, simulated from a checkpoint on; inf if it is above the limit.
        """

    def fits(self, capacity: NDArray[numpy.float64], priced: bool = False) -> bool:
        """
        Whether resident bytes and live activations fit [n_devices] bytes, under the schedule that was recorded or priced last; for problems where activations count.
        """

class ThroughputCosts:
    """
    What a pipeline of groups costs, checked once and read in place; see placewise.placers.shared.throughput_search.pipeline_costs.PipelineCosts for the columns.
    """

    def __init__(
        self,
        seconds: NDArray[numpy.int64],
        kind: NDArray[numpy.int32],
        transfer: NDArray[numpy.int64],
        phase: NDArray[numpy.int8],
        producer: NDArray[numpy.int32],
        readers: NDArray[numpy.int32],
        output: NDArray[numpy.bool_],
        consumer_offsets: NDArray[numpy.int64],
        consumers: NDArray[numpy.int32],
        use_offsets: NDArray[numpy.int64],
        uses: NDArray[numpy.int32],
        make_offsets: NDArray[numpy.int64],
        makes: NDArray[numpy.int32],
        size: NDArray[numpy.int64],
        storage_offsets: NDArray[numpy.int64],
        storages: NDArray[numpy.int32],
        storage_bytes: NDArray[numpy.int64],
        capacity: NDArray[numpy.int64],
        location: NDArray[numpy.int32],
        link_class: NDArray[numpy.int32],
        wire: NDArray[numpy.int32],
        after_offsets: NDArray[numpy.int64],
        after: NDArray[numpy.int32],
        before_offsets: NDArray[numpy.int64],
        before: NDArray[numpy.int32],
        staged: bool,
        shaped: bool,
        ordered: bool,
        mode: int,
        n_phases: int,
        n_wires: int,
    ) -> None: ...
    @property
    def n_groups(self) -> int: ...
    @property
    def n_devices(self) -> int: ...

class Clusters:
    """Groups that a search moves as one, at several sizes."""

    def __init__(
        self,
        tail: NDArray[numpy.int32],
        head: NDArray[numpy.int32],
        work: NDArray[numpy.float64],
        limits: NDArray[numpy.float64],
    ) -> None:
        """
        Join groups (tail, head), those first in order first, while their `work` [n_groups] together is at most the limit of a level.
        """

    @property
    def labels(self) -> NDArray[numpy.int32]:
        """The cluster of each group at each level [n_levels, n_groups]."""

    def groups(self, cluster: int) -> NDArray[numpy.int32]:
        """The groups of a cluster, ascending."""

class PipelineState:
    """Loads and memory of an assignment of groups to devices."""

    def __init__(self, costs: ThroughputCosts, assignment: NDArray[numpy.int32]) -> None: ...
    @property
    def assignment(self) -> NDArray[numpy.int32]:
        """The device of each group [n_groups]."""

    @property
    def max_load(self) -> int:
        """Of all phases together, in the costs' units."""

    @property
    def missing_bytes(self) -> int:
        """Bytes that are missing on all devices together."""

    @property
    def memory(self) -> NDArray[numpy.int64]:
        """Resident bytes [n_devices]."""

    def loads(self, phase: int = 0) -> NDArray[numpy.int64]:
        """Of one phase, the load of every device and then of every wire."""

    @property
    def sums(self) -> NDArray[numpy.int64]:
        """
        Phase by phase compute, sends and receives of each location, and the wires; then the memory.
        """

    @property
    def counts(self) -> NDArray[numpy.int64]:
        """
        Groups [n_devices], readers [n_tensors, n_devices + 1] and holders [n_storages, n_devices].
        """

    def try_move(self, group: int, device: int) -> NDArray[numpy.int64]:
        """The sums after a move, which is not made."""

    def move(self, group: int, device: int) -> None:
        """Move a group to another device."""

class ThroughputWalk:
    """Annealing of groups over devices, from one assignment [n_groups]."""

    def __init__(
        self,
        costs: ThroughputCosts,
        clusters: Clusters,
        assignment: NDArray[numpy.int32],
        seed: int,
        positions: NDArray[numpy.int32],
        tradable: NDArray[numpy.int32],
    ) -> None:
        """
        `positions` [n_devices] in a chain of stages; `tradable` [k, 2]: devices that may trade what they have.
        """

    def run(
        self, steps: int, hot: float, cold: float, seconds: float = float("inf"), stop: StopFlag | None = None
    ) -> None:
        """
        Propose `steps` moves, or until `seconds` or `stop` end it, while temperatures, as shares of the max-load, fall from `hot` to `cold`.
        """

    def run_for(self, seconds: float, hot: float, cold: float, stop: StopFlag | None = None) -> None:
        """Propose moves for so many seconds; temperatures follow the clock."""

    @property
    def incumbent(self) -> NDArray[numpy.int32]:
        """The best assignment [n_groups] so far."""

    @property
    def quality(self) -> tuple[int, int]:
        """Missing bytes and the max-load of the incumbent: smaller is better."""

    @property
    def n_evaluated(self) -> int:
        """How many moves were evaluated so far."""

    @property
    def feasible_max_load(self) -> int | None:
        """
        The max-load of the incumbent if it fits in memory, else None; may be read while the walk runs.
        """

class StageCosts:
    """
    What stages cost, checked once and read in place; see placewise.placers.shared.stages.stage_costs.ComponentCosts for the meaning of its columns.
    """

    def __init__(
        self,
        seconds: NDArray[numpy.int64],
        size: NDArray[numpy.int64],
        weight: NDArray[numpy.int64],
        producer: NDArray[numpy.int32],
        readers: NDArray[numpy.int32],
        output: NDArray[numpy.bool_],
        mirrored: NDArray[numpy.bool_],
        consumer_offsets: NDArray[numpy.int64],
        consumers: NDArray[numpy.int32],
        enter: NDArray[numpy.int64],
        leave: NDArray[numpy.int64],
        use_offsets: NDArray[numpy.int64],
        uses: NDArray[numpy.int32],
        make_offsets: NDArray[numpy.int64],
        makes: NDArray[numpy.int32],
        storage_offsets: NDArray[numpy.int64],
        storages: NDArray[numpy.int32],
        storage_bytes: NDArray[numpy.int64],
        rate: NDArray[numpy.int32],
        capacity: NDArray[numpy.int64],
        n_devices: NDArray[numpy.int32],
        most: NDArray[numpy.int32],
        pace: NDArray[numpy.float64],
        mode: int,
        ordered: bool,
    ) -> None: ...

class Ideals:
    """
    Ideals (sets of components closed under predecessors), each once, by size: the empty one is first, and the full one last where all of them are there.
    """

    def __len__(self) -> int: ...
    @property
    def n_components(self) -> int: ...
    @property
    def complete(self) -> bool:
        """Whether all ideals of the graph are there."""

    def members(self, ideal: int) -> NDArray[numpy.bool_]:
        """A mask [n_components] of the components of one ideal."""

    def steps(self, ideal: int) -> list[tuple[int, int]]:
        """
        Pairs of a component that can be added to an ideal and the ideal that this leads to.
        """

def enumerate_ideals(
    offsets: NDArray[numpy.int64],
    successors: NDArray[numpy.int32],
    most: int,
    seconds: float = float("inf"),
    stop: StopFlag | None = None,
) -> Ideals:
    """
    The ideals of a graph whose nodes stand in topological order, given as rows of successors; incomplete if there are more than `most` or if they take longer than so many seconds.
    """

def prefix_ideals(n: int) -> Ideals:
    """The ideals of a path of n components."""

def work_left(ideals: Ideals, work: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """The work [n_ideals] outside each ideal; `work` [n_components]."""

def cut_left(
    costs: StageCosts,
    ideals: Ideals,
    enter: NDArray[numpy.int64],
    leave: NDArray[numpy.int64],
    seconds: float = float("inf"),
    stop: StopFlag | None = None,
) -> NDArray[numpy.int64]:
    """
    What the devices that run the rest pay at least for the tensors between each ideal and the rest [n_ideals]; `enter` and `leave` [n_tensors] are what each costs at least. Where time ends it says 0.
    """

class ChainStage:
    """
    A stage of a chain: the ideals before and behind it, and the members of its class of devices that run it.
    """

    @property
    def before(self) -> int: ...
    @property
    def behind(self) -> int: ...
    @property
    def device_class(self) -> int: ...
    @property
    def first_member(self) -> int: ...
    @property
    def n_members(self) -> int: ...

class StageExpansion:
    """
    The dynamic program over ideals: it grows stages from every ideal, and is called again and again until it is done. `work_left` [n_ideals] and `work_room` [n_states] are in a common measure: at a max-load T the devices that a state leaves do at most work_room · T of the work that an ideal leaves.
    """

    def __init__(
        self, costs: StageCosts, ideals: Ideals, work_left: NDArray[numpy.int64], work_room: NDArray[numpy.float64]
    ) -> None: ...
    def restrict_states(self, unfinished: NDArray[numpy.bool_], spare: NDArray[numpy.bool_]) -> None:
        """
        The states [n_states] that cannot be the last, and the classes [n_classes] of which one device less in use is never worse.
        """

    def bound_phases(
        self,
        forward_left: NDArray[numpy.int64],
        forward_room: NDArray[numpy.float64],
        both_left: NDArray[numpy.int64],
        both_room: NDArray[numpy.float64],
    ) -> None:
        """
        Where costs have two phases: `work_left` and `work_room` of forward loads within a limit, and of all loads within a total.
        """

    def start(self, beat: int, forward_limit: int = 2305843009213693952, both_limit: int = 2305843009213693952) -> None:
        """
        Look for a chain of max-load below `beat`, in units of the costs; forward loads are at most `forward_limit`, and the sum of both phases' loads is below `both_limit`.
        """

    def expand(self, seconds: float = float("inf"), stop: StopFlag | None = None) -> bool:
        """Go on for so many seconds; whether all ideals are done."""

    @property
    def n_done(self) -> int:
        """How many ideals are done."""

    @property
    def found(self) -> bool:
        """Whether there is a chain below the value to beat."""

    @property
    def best(self) -> int:
        """The max-load of the best chain, or the value to beat."""

    @property
    def next_forward_limit(self) -> int:
        """The least greater forward limit that could find more."""

    def chain(self) -> list[ChainStage]:
        """The stages of the best chain, the last one first."""

def device_states(n_devices: NDArray[numpy.int32], ordered: bool) -> tuple[NDArray[numpy.int32], NDArray[numpy.int64]]:
    """
    How many devices of each class every state counts [n_states, n_classes], and by how much one more moves its number [n_classes].
    """

class RowCosts:
    """
    A line of n components, d devices in a row and the tensors between them, checked once and read in place: seconds [n, d], size [n], capacity and pays [d], price [n_tensors, n_link_classes], link [d + 1, d + 1] with host memory last, the positions of the producer, the first and the last reader of each tensor, and rows of tensors that each position reads and makes.
    """

    def __init__(
        self,
        seconds: NDArray[numpy.float64],
        size: NDArray[numpy.int64],
        capacity: NDArray[numpy.float64],
        pays: NDArray[numpy.bool_],
        price: NDArray[numpy.float64],
        link: NDArray[numpy.int32],
        producer: NDArray[numpy.int32],
        first: NDArray[numpy.int32],
        last: NDArray[numpy.int32],
        output: NDArray[numpy.bool_],
        use_offsets: NDArray[numpy.int64],
        uses: NDArray[numpy.int32],
        make_offsets: NDArray[numpy.int64],
        makes: NDArray[numpy.int32],
        mode: int,
    ) -> None: ...

def split_row(row: RowCosts, seconds: float = float("inf"), stop: StopFlag | None = None) -> NDArray[numpy.int32]:
    """
    The place in the row [n] of each component in the best split of the line, [0] if there is none.
    """

def least_path_load(
    load: NDArray[numpy.float64],
    most: NDArray[numpy.float64],
    slopes: NDArray[numpy.float64],
    weight: NDArray[numpy.float64],
    pace: NDArray[numpy.float64],
    host_load: NDArray[numpy.float64],
    host_most: NDArray[numpy.float64],
    host_slopes: NDArray[numpy.float64],
    host_without: NDArray[numpy.float64],
    work: float,
    low: float,
    n_devices: int,
    n_hosts: int,
    precision: float,
    begins: NDArray[numpy.int32],
    seconds: float = float("inf"),
    stop: StopFlag | None = None,
) -> float:
    """
    A max-load below which a path of m positions cannot be cut into segments, at least `low`, found to a relative `precision`; `begins` [m + 1] gets where the segment that ends at each position begins, −1 for none, −2 − begin on a host. Tables are [m + 1, m + 1], `most` one per slope.
    """

def last_ready_first(
    offsets: NDArray[numpy.int64],
    successors: NDArray[numpy.int32],
    sources: NDArray[numpy.int64],
    stage: NDArray[numpy.int32],
) -> NDArray[numpy.int32]:
    """
    The position [n] of each node of an acyclic graph when what became ready last comes next, stage [n] by stage.
    """

def biconnected_components(
    offsets: NDArray[numpy.int64], others: NDArray[numpy.int32], edges: NDArray[numpy.int32], n_edges: int
) -> NDArray[numpy.int32]:
    """
    The biconnected component of each undirected edge; rows of vertices hold the other end and the number of every edge.
    """

def unite_by_label(label: NDArray[numpy.int32], item: NDArray[numpy.int32], n_items: int) -> NDArray[numpy.int32]:
    """
    A dense number per item [n_items], the same for items that share a label in any row.
    """

class StageSearch:
    """
    Pipelines of units that may be split, repeated and recomputed: a dynamic program over ideals. Columns are those of placewise.model.ways.Ways, and are read in place.
    """

    def __init__(
        self,
        way_offsets: NDArray[numpy.int64],
        degree: NDArray[numpy.int32],
        seconds: NDArray[numpy.float64],
        gradient_bytes: NDArray[numpy.float64],
        bytes_in_flight: NDArray[numpy.float64],
        bytes_fixed: NDArray[numpy.float64],
        tensor_unit: NDArray[numpy.int32],
        tensor_bytes: NDArray[numpy.float64],
        reader_offsets: NDArray[numpy.int64],
        readers: NDArray[numpy.int32],
        sync_bytes: NDArray[numpy.float64],
        workspace: NDArray[numpy.float64],
        class_counts: NDArray[numpy.int32],
        class_figures: NDArray[numpy.float64],
        replicas: NDArray[numpy.int32],
        microbatches: float,
        passes: float,
        gradient_factor: float,
        in_flight: int,
        charges_sender: bool,
        successor_offsets: NDArray[numpy.int64],
        successors: NDArray[numpy.int32],
        most: int,
        seconds_limit: float = float("inf"),
        stop: StopFlag | None = None,
    ) -> None:
        """
        `class_counts` [n_classes, 2]: devices, and devices per node. `class_figures` [n_classes, 8]: bytes, price, then bandwidth and latency between stages, inside a node, and across nodes. `replicas` ascend. `in_flight`: 0 one, 1 one forward one backward, 2 all.
        """

    @property
    def complete(self) -> bool: ...
    @property
    def n_ideals(self) -> int: ...
    @property
    def relaxed(self) -> bool:
        """
        Whether a choice of ways was relaxed: what is found may not fit, and proofs still hold.
        """

    @property
    def found_value(self) -> float:
        """
        What was found last takes so many seconds: its slowest stage, or the sum of all.
        """

    @property
    def least_load(self) -> float:
        """Seconds per micro-batch: work over the devices, by their prices."""

    def search(
        self, limit: float, sums: bool = False, seconds: float = float("inf"), stop: StopFlag | None = None
    ) -> int:
        """
        0: found a pipeline whose stages take at most `limit` seconds each (with `sums`: the one with the least sum of seconds, below `limit`); 1: there is none; 2: it was stopped.
        """

    def stages(self) -> tuple[NDArray[numpy.int32], NDArray[numpy.int32], NDArray[numpy.int32]]:
        """
        The stages that were found last [n_stages, 4]: device class, degree, replicas, micro-batches in flight; the stage and the way [n_units] of every unit.
        """

class LabelSearch:
    """
    Sets of blocks of high price within limits: paths through a decision diagram of `order` [n_layers], `base` [n_layers + 1], `child` [n_nodes, 2] and `cost` [n_nodes, 2, n_resources]; `price` [n_blocks], `limits` of the first resources.
    """

    def __init__(
        self,
        order: NDArray[numpy.int32],
        base: NDArray[numpy.int64],
        child: NDArray[numpy.int32],
        cost: NDArray[numpy.int64],
        price: NDArray[numpy.int64],
        limits: NDArray[numpy.int64],
    ) -> None: ...
    def bound(self, multipliers: NDArray[numpy.float64]) -> float:
        """
        Set the multipliers [n_limits]; the most that any set is worth less its cost at these.
        """

    def bound_cost(self) -> NDArray[numpy.int64]:
        """What the set that attains the last bound costs [n_limits]."""

    def run(
        self,
        target: float,
        width: int,
        beam: bool,
        most_labels: int,
        seconds: float = float("inf"),
        stop: StopFlag | None = None,
    ) -> bool:
        """
        Find sets that may pass `target`, by up to `width` labels per node; False if it was cut short.
        """

    @property
    def values(self) -> NDArray[numpy.int64]:
        """The prices [n_sets] of the sets that were found."""

    def sets(self, numbers: NDArray[numpy.int64]) -> NDArray[numpy.uint8]:
        """Some sets [k, n_blocks], as 0 and 1, by their numbers [k]."""

def shift_late(
    predecessor_offsets: NDArray[numpy.int64], predecessors: NDArray[numpy.int32], rank: NDArray[numpy.int32]
) -> None:
    """
    Raise ranks [n], in place and as little as possible, until no edge leads back.
    """

def shift_early(
    successor_offsets: NDArray[numpy.int64], successors: NDArray[numpy.int32], rank: NDArray[numpy.int32]
) -> None:
    """
    Lower ranks [n], in place and as little as possible, until no edge leads back.
    """

def fill_ranks(
    predecessor_offsets: NDArray[numpy.int64],
    predecessors: NDArray[numpy.int32],
    successor_offsets: NDArray[numpy.int64],
    successors: NDArray[numpy.int32],
    rank: NDArray[numpy.int32],
) -> None:
    """
    Give nodes of rank −1, in place, the highest rank [n] of their predecessors, else the lowest of their successors, else 0.
    """

def random_order(
    successor_offsets: NDArray[numpy.int64], successors: NDArray[numpy.int32], seed: int
) -> NDArray[numpy.int32]:
    """The position [n] of each node in a topological order drawn at random."""

def stage_ends(
    state: NDArray[numpy.int64],
    storage_offsets: NDArray[numpy.int64],
    storages: NDArray[numpy.int32],
    stored: NDArray[numpy.int64],
    room: float,
    runs: NDArray[numpy.bool_],
) -> NDArray[numpy.int64]:
    """
    The first position [n + 1] of a line that a stage of `room` bytes cannot hold which begins at each.
    """

def split_line(ends: NDArray[numpy.int64], count: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """
    Stages [n_stages, (class, start, end)] that reach the end of a line, none if nothing does; `ends` [n_classes, n + 1] by class of device, `count` [n_classes] devices of each.
    """

class MemoryRepair:
    """
    Moves blocks between devices until their bytes fit; columns as in placewise.placers.shared.memory_repair.PackingInstance, `limit` [n_devices] bytes.
    """

    def __init__(
        self,
        own: NDArray[numpy.int64],
        storage_offsets: NDArray[numpy.int64],
        storages: NDArray[numpy.int32],
        stored: NDArray[numpy.int64],
        runs: NDArray[numpy.bool_],
        seconds: NDArray[numpy.float64],
        neighbour_offsets: NDArray[numpy.int64],
        neighbours: NDArray[numpy.int32],
        traffic: NDArray[numpy.float64],
        limit: NDArray[numpy.int64],
    ) -> None: ...
    def run(
        self,
        assignment: NDArray[numpy.int32],
        seed: int,
        work: int,
        seconds: float = float("inf"),
        stop: StopFlag | None = None,
    ) -> bool:
        """
        Move blocks of an assignment [n_blocks], in place, until all devices keep their limits; whether they do.
        """

    def fill(self, order: NDArray[numpy.int64], even: bool) -> NDArray[numpy.int32]:
        """
        Assign the blocks in an order [n_blocks] to the device with most room, or the least enough if not `even`.
        """

def fractal_dimensions(
    offsets: NDArray[numpy.int64], neighbours: NDArray[numpy.int32], reach: int
) -> NDArray[numpy.float64]:
    """
    The slope [n] of log N(v, r) over log r, N the nodes within r edges of v, seen on walks of `reach` nodes.
    """

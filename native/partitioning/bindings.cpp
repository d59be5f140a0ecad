#include <algorithm>
#include <cmath>
#include <utility>

#include "common/exclusive.hpp"
#include "common/ndarrays.hpp"
#include "partitioning/component_order.hpp"
#include "partitioning/line_split.hpp"
#include "partitioning/memory_repair.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

using Offsets = In<std::int64_t>;
using Targets = In<std::int32_t>;
constexpr std::int64_t MAX_STATES = std::int64_t{1} << 20;

void late_ranks(const Offsets& offsets, const Targets& predecessors, const Out<std::int32_t>& rank) {
    shift_late(neighbours(offsets, predecessors, static_cast<Index>(rank.shape(0))), view(rank));
}

void early_ranks(const Offsets& offsets, const Targets& successors, const Out<std::int32_t>& rank) {
    shift_early(neighbours(offsets, successors, static_cast<Index>(rank.shape(0))), view(rank));
}

void missing_ranks(const Offsets& predecessor_offsets, const Targets& predecessors, const Offsets& successor_offsets,
                   const Targets& successors, const Out<std::int32_t>& rank) {
    const auto n = static_cast<Index>(rank.shape(0));
    fill_ranks(neighbours(predecessor_offsets, predecessors, n), neighbours(successor_offsets, successors, n),
               view(rank));
}

auto random_positions(const Offsets& offsets, const Targets& successors, std::uint64_t seed) {
    require(offsets.shape(0) > 0, "offsets have another length than their rows");
    const Adjacency rows = neighbours(offsets, successors, static_cast<Index>(offsets.shape(0)) - 1);
    SplitMix64 rng(seed);
    return to_numpy(random_order(rows, rng));
}

auto ends_of_stages(const In<std::int64_t>& state, const Offsets& offsets, const Targets& storages,
                    const In<std::int64_t>& stored, double room, const In<bool>& runs) {
    const Line line{view(state), ragged(offsets, storages, static_cast<Index>(state.shape(0))), view(stored)};
    require(within(line.storages.values, 0, static_cast<std::int64_t>(line.stored.size())), "no such storage");
    require(runs.shape(0) == state.shape(0), "columns of a line differ in length");
    return to_numpy(stage_ends(line, room, view(runs)));
}

auto stages_of(const In<std::int64_t, 2>& ends, const In<std::int64_t>& count) {
    const auto table = view(ends);
    const auto devices = view(count);
    require(table.rows() == static_cast<Index>(devices.size()), "ends are not one row per class");
    require(table.columns() > 0, "a line has an end for each position");
    require(within(devices, 0, MAX_STATES), "a class has too many devices");
    std::int64_t states = 1;
    for (const std::int64_t number : devices) {
        states *= number + 1;
        require(states <= MAX_STATES, "too many devices of too many classes");
    }
    for (Index kind = 0; kind < table.rows(); ++kind) {
        require(within(std::span(table.row(kind)), 0, table.columns()), "a stage ends beyond its line");
    }
    const std::vector<Stage> stages = split_line(table, devices);
    Table<std::int64_t> rows(static_cast<Index>(stages.size()), 3);
    for (Index i = 0; i < rows.rows(); ++i) {
        rows(i, 0) = stages[i].kind;
        rows(i, 1) = stages[i].start;
        rows(i, 2) = stages[i].end;
    }
    return to_numpy(std::move(rows));
}

BlockColumns checked_blocks(const In<std::int64_t>& own, const Offsets& storage_offsets, const Targets& storages,
                            const In<std::int64_t>& stored, const In<bool, 2>& runs, const In<double, 2>& seconds,
                            const Offsets& neighbour_offsets, const Targets& neighbours, const In<double>& traffic) {
    const auto n = static_cast<Index>(own.shape(0));
    const BlockColumns blocks{view(own),     ragged(storage_offsets, storages, n),
                              view(stored),  view(runs),
                              view(seconds), placewise::neighbours(neighbour_offsets, neighbours, n),
                              view(traffic)};
    require(blocks.runs.rows() == n && blocks.seconds.rows() == n &&
                blocks.runs.columns() == blocks.seconds.columns() &&
                blocks.traffic.size() == blocks.neighbours.values.size(),
            "columns of blocks differ in length");
    require(within(blocks.storages.values, 0, static_cast<std::int64_t>(blocks.stored.size())), "no such storage");
    require_bytes(blocks.own);
    require_bytes(blocks.stored);
    for (Index block = 0; block < n; ++block) {
        const auto row = blocks.runs.row(block);
        require(std::find(row.begin(), row.end(), true) != row.end(), "a block may run nowhere");
    }
    return blocks;
}

// A repair and the arrays that it reads.
class BoundMemoryRepair : public MemoryRepair, private Exclusive {
public:
    BoundMemoryRepair(const In<std::int64_t>& own, const Offsets& storage_offsets, const Targets& storages,
                      const In<std::int64_t>& stored, const In<bool, 2>& runs, const In<double, 2>& seconds,
                      const Offsets& neighbour_offsets, const Targets& neighbours, const In<double>& traffic,
                      const In<std::int64_t>& limit)
        : MemoryRepair(checked_blocks(own, storage_offsets, storages, stored, runs, seconds, neighbour_offsets,
                                      neighbours, traffic),
                       view(limit)),
          owners_(nb::make_tuple(own, storage_offsets, storages, stored, runs, seconds, neighbour_offsets, neighbours,
                                 traffic)),
          n_blocks_(static_cast<Index>(own.shape(0))) {
        require(limit.shape(0) == runs.shape(1), "limits are not one per device");
    }

    bool repair(const Out<std::int32_t>& assignment, std::uint64_t seed, std::int64_t work, double seconds,
                const StopFlag* stop) {
        require(static_cast<Index>(assignment.shape(0)) == n_blocks_, "an assignment has one device per block");
        const Turn turn(*this);
        nb::gil_scoped_release unlocked;
        Interrupt interrupt(seconds, stop);
        return run(view(assignment), seed, work, interrupt);
    }

    auto filled(const In<std::int64_t>& order, bool even) {
        const auto blocks = view(order);
        std::vector<char> seen(n_blocks_);
        const char* message = "an order does not name every block once";
        require(static_cast<Index>(blocks.size()) == n_blocks_ && within(blocks, 0, n_blocks_), message);
        for (const std::int64_t block : blocks) require(!std::exchange(seen[block], 1), message);
        std::vector<std::int32_t> assignment(n_blocks_);
        const Turn turn(*this);
        fill(assignment, blocks, even);
        return to_numpy(std::move(assignment));
    }

private:
    nb::object owners_;
    Index n_blocks_;
};

}  // namespace

void bind_partitioning(nb::module_& m) {
    m.def("shift_late", &late_ranks, "predecessor_offsets"_a.noconvert(), "predecessors"_a.noconvert(),
          "rank"_a.noconvert(), "Raise ranks [n], in place and as little as possible, until no edge leads back.");
    m.def("shift_early", &early_ranks, "successor_offsets"_a.noconvert(), "successors"_a.noconvert(),
          "rank"_a.noconvert(), "Lower ranks [n], in place and as little as possible, until no edge leads back.");
    m.def("fill_ranks", &missing_ranks, "predecessor_offsets"_a.noconvert(), "predecessors"_a.noconvert(),
          "successor_offsets"_a.noconvert(), "successors"_a.noconvert(), "rank"_a.noconvert(),
          "Give nodes of rank −1, in place, the highest rank [n] of their predecessors, else the lowest of their "
          "successors, else 0.");
    m.def("random_order", &random_positions, "successor_offsets"_a.noconvert(), "successors"_a.noconvert(), "seed"_a,
          "The position [n] of each node in a topological order drawn at random.");
    m.def("stage_ends", &ends_of_stages, "state"_a.noconvert(), "storage_offsets"_a.noconvert(),
          "storages"_a.noconvert(), "stored"_a.noconvert(), "room"_a, "runs"_a.noconvert(),
          "The first position [n + 1] of a line that a stage of `room` bytes cannot hold which begins at each.");
    m.def("split_line", &stages_of, "ends"_a.noconvert(), "count"_a.noconvert(),
          "Stages [n_stages, (class, start, end)] that reach the end of a line, none if nothing does; `ends` "
          "[n_classes, n + 1] by class of device, `count` [n_classes] devices of each.");
    nb::class_<BoundMemoryRepair>(m, "MemoryRepair",
                                  "Moves blocks between devices until their bytes fit; columns as in "
                                  "placewise.placers.shared.memory_repair.PackingInstance, `limit` [n_devices] bytes.")
        .def(nb::init<const In<std::int64_t>&, const Offsets&, const Targets&, const In<std::int64_t>&,
                      const In<bool, 2>&, const In<double, 2>&, const Offsets&, const Targets&, const In<double>&,
                      const In<std::int64_t>&>(),
             "own"_a.noconvert(), "storage_offsets"_a.noconvert(), "storages"_a.noconvert(), "stored"_a.noconvert(),
             "runs"_a.noconvert(), "seconds"_a.noconvert(), "neighbour_offsets"_a.noconvert(),
             "neighbours"_a.noconvert(), "traffic"_a.noconvert(), "limit"_a.noconvert())
        .def("run", &BoundMemoryRepair::repair, "assignment"_a.noconvert(), "seed"_a, "work"_a, "seconds"_a = INFINITY,
             "stop"_a.none() = nb::none(),
             "Move blocks of an assignment [n_blocks], in place, until all devices keep their limits; whether they do.")
        .def("fill", &BoundMemoryRepair::filled, "order"_a.noconvert(), "even"_a,
             "Assign the blocks in an order [n_blocks] to the device with most room, or the least enough if not "
             "`even`.");
}

}  // namespace placewise

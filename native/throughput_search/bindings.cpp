#include <nanobind/stl/optional.h>

#include <cmath>
#include <optional>
#include <utility>

#include "common/exclusive.hpp"
#include "common/ndarrays.hpp"
#include "throughput_search/bound_costs.hpp"
#include "throughput_search/clusters.hpp"
#include "throughput_search/pipeline_state.hpp"
#include "throughput_search/walk.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

using Costs = BoundThroughputCosts;

void init_costs(Costs* self, const In<std::int64_t, 2>& seconds, const In<std::int32_t>& kind,
                const In<std::int64_t, 2>& transfer, const In<std::int8_t>& phase, const In<std::int32_t>& producer,
                const In<std::int32_t>& readers, const In<bool>& output, const In<std::int64_t>& consumer_offsets,
                const In<std::int32_t>& consumers, const In<std::int64_t>& use_offsets, const In<std::int32_t>& uses,
                const In<std::int64_t>& make_offsets, const In<std::int32_t>& makes, const In<std::int64_t>& size,
                const In<std::int64_t>& storage_offsets, const In<std::int32_t>& storages,
                const In<std::int64_t>& storage_bytes, const In<std::int64_t>& capacity,
                const In<std::int32_t>& location, const In<std::int32_t, 2>& link_class,
                const In<std::int32_t, 2>& wire, const In<std::int64_t>& after_offsets, const In<std::int32_t>& after,
                const In<std::int64_t>& before_offsets, const In<std::int32_t>& before, bool staged, bool shaped,
                bool ordered, int mode, Index n_phases, Index n_wires) {
    new (self) Costs(seconds, kind, transfer, phase, producer, readers, output, {consumer_offsets, consumers},
                     {use_offsets, uses}, {make_offsets, makes}, size, {storage_offsets, storages}, storage_bytes,
                     capacity, location, link_class, wire, {after_offsets, after}, {before_offsets, before}, staged,
                     shaped, ordered, mode, n_phases, n_wires);
}

void init_clusters(Clusters* self, const In<std::int32_t>& tail, const In<std::int32_t>& head, const In<double>& work,
                   const In<double>& limits) {
    const auto n = static_cast<Index>(work.shape(0));
    require(tail.shape(0) == head.shape(0), "pairs have two ends");
    require(within(view(tail), 0, n) && within(view(head), 0, n), "a pair names no group");
    require(limits.shape(0) > 0, "clusters need one level or more");
    nb::gil_scoped_release unlocked;
    new (self) Clusters(view(tail), view(head), view(work), view(limits));
}

auto labels_of(const Clusters& clusters) {
    return to_numpy(Table<std::int32_t>(clusters.labels()));
}

auto groups_of(const Clusters& clusters, Index cluster) {
    require(0 <= cluster && cluster < clusters.n_clusters(), "no such cluster");
    const auto groups = clusters.groups(cluster);
    return to_numpy(std::vector<std::int32_t>(groups.begin(), groups.end()));
}

void init_state(PipelineState* self, const Costs& costs, const In<std::int32_t>& assignment) {
    new (self) PipelineState(costs, costs.assignment(assignment));
}

auto assignment_of(const PipelineState& state) {
    return to_numpy(std::vector<std::int32_t>(state.assignment));
}

auto memory_of(const PipelineState& state) {
    return to_numpy(std::vector<std::int64_t>(state.sums().memory));
}

auto loads_of(const PipelineState& state, Index phase) {
    const ThroughputCosts& costs = state.costs();
    require(0 <= phase && phase < costs.n_phases, "no such phase");
    std::vector<std::int64_t> loads;
    for (Index d = 0; d < costs.n_devices(); ++d) loads.push_back(state.sums().load(phase, d, costs.mode));
    const auto wires = state.sums().wires(phase);
    loads.insert(loads.end(), wires.begin(), wires.end());
    return to_numpy(std::move(loads));
}

auto flatten(const ThroughputCosts& costs, const PipelineSums& sums) {
    std::vector<std::int64_t> values;
    for (Index phase = 0; phase < costs.n_phases; ++phase) {
        for (Index location = 0; location < costs.n_locations(); ++location) {
            const PipelineSums::Location& at = sums.at(phase, location);
            values.insert(values.end(), {at.compute, at.send, at.receive});
        }
        values.insert(values.end(), sums.wires(phase).begin(), sums.wires(phase).end());
    }
    values.insert(values.end(), sums.memory.begin(), sums.memory.end());
    return to_numpy(std::move(values));
}

auto sums_of(const PipelineState& state) {
    return flatten(state.costs(), state.sums());
}

auto counts_of(const PipelineState& state) {
    const ThroughputCosts& costs = state.costs();
    std::vector<std::int64_t> counts(state.n_groups().begin(), state.n_groups().end());
    for (Index tensor = 0; tensor < costs.n_tensors(); ++tensor) {
        for (Index location = 0; location < costs.n_locations(); ++location) {
            counts.push_back(state.n_readers(tensor, location));
        }
    }
    for (Index storage = 0; storage < costs.n_storages(); ++storage) {
        for (Index d = 0; d < costs.n_devices(); ++d) counts.push_back(state.n_holders(storage, d));
    }
    return to_numpy(std::move(counts));
}

Move move_of(const PipelineState& state, Index group, Index device) {
    const ThroughputCosts& costs = state.costs();
    require(0 <= group && group < costs.n_groups(), "no such group");
    require(0 <= device && device < costs.n_devices(), "no such device");
    require(costs.can_run(group, device), "a group moves where it may not run");
    const std::int32_t origin = state.assignment[group];
    require(origin != device, "a group moves to where it is");
    return {static_cast<std::int32_t>(group), origin, static_cast<std::int32_t>(device)};
}

auto try_move(PipelineState& state, Index group, Index device) {
    state.charge(move_of(state, group, device));
    auto sums = flatten(state.costs(), state.trial());
    state.discard();
    return sums;
}

void make_move(PipelineState& state, Index group, Index device) {
    state.apply(move_of(state, group, device));
    state.assignment[group] = static_cast<std::int32_t>(device);
    state.keep();
}

// A walk that refuses to be read, or to be run again, while it runs in another thread.
class BoundWalk : private Exclusive {
public:
    BoundWalk(const Costs& costs, const Clusters& clusters, const In<std::int32_t>& assignment, std::uint64_t seed,
              const In<std::int32_t>& positions, const In<std::int32_t, 2>& tradable)
        : tradable_(tradable),
          walk_(costs, checked(costs, clusters), costs.assignment(assignment), checked_positions(costs, positions),
                checked_pairs(costs, tradable), seed) {}

    void run(Index steps, double hot, double cold, double seconds, const StopFlag* stop) {
        require(steps >= 0, "steps are no count");
        require_temperatures(hot, cold);
        const Turn turn(*this, "a walk is under way");
        nb::gil_scoped_release unlocked;
        Interrupt interrupt(seconds, stop);
        walk_.run(steps, hot, cold, interrupt);
    }

    void run_for(double seconds, double hot, double cold, const StopFlag* stop) {
        require(std::isfinite(seconds), "a walk by the clock needs an end");
        require_temperatures(hot, cold);
        const Turn turn(*this, "a walk is under way");
        nb::gil_scoped_release unlocked;
        Interrupt interrupt(seconds, stop);
        walk_.run_for(seconds, hot, cold, interrupt);
    }

    // To be read with the interpreter lock, without which no walk begins.
    const ThroughputWalk& at_rest() {
        const Turn turn(*this, "a walk is under way");
        return walk_;
    }

    std::optional<std::int64_t> feasible_max_load() const {
        const std::int64_t value = walk_.feasible_max_load();
        return value < ThroughputCosts::NEVER ? std::optional(value) : std::nullopt;
    }

private:
    static void require_temperatures(double hot, double cold) {
        require(std::isfinite(hot) && std::isfinite(cold) && hot > 0 && cold > 0, "a temperature is not positive");
    }
    static const Clusters& checked(const Costs& costs, const Clusters& clusters) {
        require(clusters.n_groups() == costs.n_groups(), "clusters are of other groups");
        return clusters;
    }
    static std::span<const std::int32_t> checked_positions(const Costs& costs, const In<std::int32_t>& positions) {
        const auto at = view(positions);
        std::vector<char> taken(costs.n_devices());
        require(static_cast<Index>(at.size()) == costs.n_devices(), "positions are not one per device");
        require(within(at, 0, costs.n_devices()), "a position is not within the chain");
        for (const std::int32_t position : at) require(!std::exchange(taken[position], 1), "a position comes twice");
        return at;
    }
    static TableView<const std::int32_t> checked_pairs(const Costs& costs, const In<std::int32_t, 2>& pairs) {
        const auto table = view(pairs);
        require(table.columns() == 2, "pairs have two devices");
        for (Index pair = 0; pair < table.rows(); ++pair) {
            require(within(table.row(pair), 0, costs.n_devices()), "a pair names no device");
        }
        return table;
    }

    In<std::int32_t, 2> tradable_;  // keeps the array behind the view
    ThroughputWalk walk_;
};

auto incumbent_of(BoundWalk& walk) {
    return to_numpy(walk.at_rest().incumbent());
}

TupleOf<std::int64_t, std::int64_t> quality_of(BoundWalk& walk) {
    const PipelineQuality quality = walk.at_rest().quality();
    return nb::make_tuple(quality.missing_bytes, quality.max_load);
}

void bind_state(nb::module_& m) {
    nb::class_<PipelineState>(m, "PipelineState", "Loads and memory of an assignment of groups to devices.")
        .def("__init__", &init_state, "costs"_a, "assignment"_a.noconvert(), nb::keep_alive<1, 2>())
        .def_prop_ro("assignment", &assignment_of, nb::rv_policy::move, "The device of each group [n_groups].")
        .def_prop_ro("max_load", &PipelineState::max_load, "Of all phases together, in the costs' units.")
        .def_prop_ro(
            "missing_bytes", [](const PipelineState& state) { return state.missing_bytes(state.sums()); },
            "Bytes that are missing on all devices together.")
        .def_prop_ro("memory", &memory_of, nb::rv_policy::move, "Resident bytes [n_devices].")
        .def("loads", &loads_of, "phase"_a = 0, "Of one phase, the load of every device and then of every wire.")
        .def_prop_ro("sums", &sums_of, nb::rv_policy::move,
                     "Phase by phase compute, sends and receives of each location, and the wires; then the memory.")
        .def_prop_ro("counts", &counts_of, nb::rv_policy::move,
                     "Groups [n_devices], readers [n_tensors, n_devices + 1] and holders [n_storages, n_devices].")
        .def("try_move", &try_move, "group"_a, "device"_a, "The sums after a move, which is not made.")
        .def("move", &make_move, "group"_a, "device"_a, "Move a group to another device.");
}

void bind_walk(nb::module_& m) {
    nb::class_<BoundWalk>(m, "ThroughputWalk", "Annealing of groups over devices, from one assignment [n_groups].")
        .def(nb::init<const Costs&, const Clusters&, const In<std::int32_t>&, std::uint64_t, const In<std::int32_t>&,
                      const In<std::int32_t, 2>&>(),
             "costs"_a, "clusters"_a, "assignment"_a.noconvert(), "seed"_a, "positions"_a.noconvert(),
             "tradable"_a.noconvert(), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
             "`positions` [n_devices] in a chain of stages; `tradable` [k, 2]: devices that may trade what they have.")
        .def("run", &BoundWalk::run, "steps"_a, "hot"_a, "cold"_a, "seconds"_a = INFINITY, "stop"_a = nb::none(),
             "Propose `steps` moves, or until `seconds` or `stop` end it, while temperatures, as shares of the "
             "max-load, fall from `hot` to `cold`.")
        .def("run_for", &BoundWalk::run_for, "seconds"_a, "hot"_a, "cold"_a, "stop"_a = nb::none(),
             "Propose moves for so many seconds; temperatures follow the clock.")
        .def_prop_ro("incumbent", &incumbent_of, nb::rv_policy::move, "The best assignment [n_groups] so far.")
        .def_prop_ro("quality", &quality_of, "Missing bytes and the max-load of the incumbent: smaller is better.")
        .def_prop_ro(
            "n_evaluated", [](BoundWalk& walk) { return walk.at_rest().n_evaluated(); },
            "How many moves were evaluated so far.")
        .def_prop_ro("feasible_max_load", &BoundWalk::feasible_max_load,
                     "The max-load of the incumbent if it fits in memory, else None; may be read while the walk runs.");
}

}  // namespace

void bind_throughput_search(nb::module_& m) {
    nb::class_<Costs>(m, "ThroughputCosts",
                      "What a pipeline of groups costs, checked once and read in place; see "
                      "placewise.placers.shared.throughput_search.pipeline_costs.PipelineCosts for the columns.")
        .def("__init__", &init_costs, "seconds"_a.noconvert(), "kind"_a.noconvert(), "transfer"_a.noconvert(),
             "phase"_a.noconvert(), "producer"_a.noconvert(), "readers"_a.noconvert(), "output"_a.noconvert(),
             "consumer_offsets"_a.noconvert(), "consumers"_a.noconvert(), "use_offsets"_a.noconvert(),
             "uses"_a.noconvert(), "make_offsets"_a.noconvert(), "makes"_a.noconvert(), "size"_a.noconvert(),
             "storage_offsets"_a.noconvert(), "storages"_a.noconvert(), "storage_bytes"_a.noconvert(),
             "capacity"_a.noconvert(), "location"_a.noconvert(), "link_class"_a.noconvert(), "wire"_a.noconvert(),
             "after_offsets"_a.noconvert(), "after"_a.noconvert(), "before_offsets"_a.noconvert(),
             "before"_a.noconvert(), "staged"_a, "shaped"_a, "ordered"_a, "mode"_a, "n_phases"_a, "n_wires"_a)
        .def_prop_ro("n_groups", &Costs::n_groups)
        .def_prop_ro("n_devices", &Costs::n_devices);
    nb::class_<Clusters>(m, "Clusters", "Groups that a search moves as one, at several sizes.")
        .def("__init__", &init_clusters, "tail"_a.noconvert(), "head"_a.noconvert(), "work"_a.noconvert(),
             "limits"_a.noconvert(),
             "Join groups (tail, head), those first in order first, while their `work` [n_groups] together is at most "
             "the limit of a level.")
        .def_prop_ro("labels", &labels_of, nb::rv_policy::move,
                     "The cluster of each group at each level [n_levels, n_groups].")
        .def("groups", &groups_of, "cluster"_a, "The groups of a cluster, ascending.");
    bind_state(m);
    bind_walk(m);
}

}  // namespace placewise

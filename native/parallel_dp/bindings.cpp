#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "common/exclusive.hpp"
#include "common/interrupt.hpp"
#include "common/ndarrays.hpp"
#include "parallel_dp/stage_search.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

constexpr double FOREVER = std::numeric_limits<double>::infinity();

// The columns of a search, which it reads in place, and the ideals of its units.
class BoundStageSearch : public Exclusive {
public:
    BoundStageSearch(const StageProblem& problem, const Adjacency& successors, Index most, Interrupt& interrupt)
        : ideals_(Ideals::enumerate(successors, most, interrupt)) {
        if (ideals_.complete()) search_.emplace(problem, ideals_, interrupt);
        if (interrupt.stopped()) search_.reset();
    }

    const Ideals& ideals() const { return ideals_; }
    bool complete() const { return search_.has_value(); }
    StageSearch& search() {
        require(search_.has_value(), "not all ideals are there");
        return *search_;
    }

private:
    Ideals ideals_;
    std::optional<StageSearch> search_;
};

void create_search(BoundStageSearch* self, const In<std::int64_t>& way_offsets, const In<std::int32_t>& degree,
                   const In<double, 2>& seconds, const In<double>& gradient_bytes, const In<double>& bytes_in_flight,
                   const In<double>& bytes_fixed, const In<std::int32_t>& tensor_unit, const In<double>& tensor_bytes,
                   const In<std::int64_t>& reader_offsets, const In<std::int32_t>& readers,
                   const In<double, 2>& sync_bytes, const In<double>& workspace,
                   const In<std::int32_t, 2>& class_counts, const In<double, 2>& class_figures,
                   const In<std::int32_t>& replicas, double microbatches, double passes, double gradient_factor,
                   int in_flight, bool charges_sender, const In<std::int64_t>& successor_offsets,
                   const In<std::int32_t>& successors, Index most, double limit, const StopFlag* stop) {
    require(way_offsets.shape(0) > 1, "there are no units");
    const auto n_units = static_cast<Index>(way_offsets.shape(0)) - 1;
    const auto n_ways = degree.shape(0), n_tensors = tensor_unit.shape(0), n_classes = class_counts.shape(0);
    (void)ragged(way_offsets, degree, n_units);
    require(seconds.shape(0) == n_ways && seconds.shape(1) == n_classes && gradient_bytes.shape(0) == n_ways &&
                bytes_in_flight.shape(0) == n_ways && bytes_fixed.shape(0) == n_ways && sync_bytes.shape(0) == n_ways &&
                sync_bytes.shape(1) == n_tensors && tensor_bytes.shape(0) == n_tensors,
            "columns of ways and tensors differ in length");
    require(0 < n_classes && n_classes <= static_cast<std::size_t>(StageSearch::MAX_CLASSES) &&
                class_counts.shape(1) == 2 && class_figures.shape(0) == n_classes && class_figures.shape(1) == 8,
            "a class of devices has two counts and eight figures, and there are few classes");
    std::vector<std::int32_t> degrees(degree.data(), degree.data() + n_ways);
    std::ranges::sort(degrees);
    degrees.erase(std::unique(degrees.begin(), degrees.end()), degrees.end());
    require(workspace.shape(0) == degrees.size() && are_amounts(view(workspace)), "workspace is one amount per degree");
    require(within(view(degree), 1, 1 << 20) && within(view(replicas), 1, 1 << 20), "a degree is no number of devices");
    require(degrees.empty() || replicas.shape(0) == 0 ||
                static_cast<Index>(degrees.back()) * *std::ranges::max_element(view(replicas)) < (Index{1} << 30),
            "too many replicas of too high a degree");
    require(within(view(tensor_unit), 0, n_units), "a tensor has no unit");
    const std::span<const double> all_seconds(seconds.data(), n_ways * n_classes);
    require(are_amounts(all_seconds, true) && are_amounts(view(gradient_bytes)) && are_amounts(view(bytes_in_flight)) &&
                are_amounts(view(bytes_fixed)) && are_amounts(view(tensor_bytes)) &&
                are_amounts({sync_bytes.data(), n_ways * n_tensors}),
            "an amount is negative or missing");
    require(microbatches >= 1 && microbatches < 1e9 && passes >= 0 && gradient_factor >= 0 && 0 <= in_flight &&
                in_flight <= 2,
            "the rules of a step are not known");
    require(1 <= most && most < (Index{1} << 31), "so many ideals cannot be numbered");
    const Adjacency readers_of = ragged(reader_offsets, readers, static_cast<Index>(n_tensors));
    require(within(readers_of.values, 0, n_units), "a tensor is read by no unit");
    StageProblem problem{n_units,
                         view(way_offsets),
                         view(degree),
                         view(seconds),
                         view(gradient_bytes),
                         view(bytes_in_flight),
                         view(bytes_fixed),
                         view(tensor_unit),
                         view(tensor_bytes),
                         readers_of,
                         view(sync_bytes),
                         view(workspace),
                         {},
                         view(replicas),
                         microbatches,
                         passes,
                         gradient_factor,
                         static_cast<InFlight>(in_flight),
                         charges_sender};
    for (Index c = 0; c < static_cast<Index>(n_classes); ++c) {
        const auto count = view(class_counts).row(c);
        const auto figure = view(class_figures).row(c);
        require(0 <= count[0] && count[0] < (1 << 24) && 1 <= count[1], "a class has no such number of devices");
        for (const double value : figure) require(value >= 0.0, "a figure of a class is negative or missing");
        problem.classes.push_back({count[0],
                                   count[1],
                                   figure[0],
                                   figure[1],
                                   {figure[2], figure[3]},
                                   {figure[4], figure[5]},
                                   {figure[6], figure[7]}});
    }
    const Adjacency after = neighbours(successor_offsets, successors, n_units);
    for (Index unit = 0; unit < n_units; ++unit) {
        require(within(after[unit], unit + 1, n_units), "units do not stand in topological order");
    }
    nb::gil_scoped_release unlocked;
    Interrupt interrupt(limit, stop);
    new (self) BoundStageSearch(problem, after, most, interrupt);
}

int within_limit(BoundStageSearch& self, double limit, bool sums, double seconds, const StopFlag* stop) {
    require(limit >= 0.0, "a limit is negative or missing");
    const Exclusive::Turn turn(self);
    nb::gil_scoped_release unlocked;
    Interrupt interrupt(seconds, stop, 4096);
    return static_cast<int>(sums ? self.search().least_sum(limit, interrupt) : self.search().within(limit, interrupt));
}

// Stages [n_stages, 4] from the first to the last: device class, degree, replicas, micro-batches in flight; and the
// stage and the way [n_units] of every unit (no ways where only a relaxed choice fits).
TupleOf<Made<std::int32_t, 2>, Made<std::int32_t>, Made<std::int32_t>> found_stages(BoundStageSearch& self) {
    const Exclusive::Turn turn(self);
    const auto& stages = self.search().stages();
    const Ideals& ideals = self.ideals();
    Table<std::int32_t> rows(static_cast<Index>(stages.size()), 4);
    std::vector<std::int32_t> stage(ideals.n_components(), -1);
    for (Index s = 0; s < static_cast<Index>(stages.size()); ++s) {
        rows(s, 0) = stages[s].device_class;
        rows(s, 1) = stages[s].degree;
        rows(s, 2) = stages[s].replicas;
        rows(s, 3) = stages[s].in_flight;
        for (Index unit = 0; unit < ideals.n_components(); ++unit) {
            if (ideals.holds(stages[s].ideal, unit) && !ideals.holds(stages[s].before, unit)) {
                stage[unit] = static_cast<std::int32_t>(s);
            }
        }
    }
    return nb::make_tuple(to_numpy(std::move(rows)), to_numpy(std::move(stage)), to_numpy(self.search().choose_ways()));
}

}  // namespace

void bind_parallel_dp(nb::module_& m) {
    nb::class_<BoundStageSearch>(
        m, "StageSearch",
        "Pipelines of units that may be split, repeated and recomputed: a dynamic program over "
        "ideals. Columns are those of placewise.model.ways.Ways, and are read in place.")
        .def("__init__", &create_search, "way_offsets"_a.noconvert(), "degree"_a.noconvert(), "seconds"_a.noconvert(),
             "gradient_bytes"_a.noconvert(), "bytes_in_flight"_a.noconvert(), "bytes_fixed"_a.noconvert(),
             "tensor_unit"_a.noconvert(), "tensor_bytes"_a.noconvert(), "reader_offsets"_a.noconvert(),
             "readers"_a.noconvert(), "sync_bytes"_a.noconvert(), "workspace"_a.noconvert(),
             "class_counts"_a.noconvert(), "class_figures"_a.noconvert(), "replicas"_a.noconvert(), "microbatches"_a,
             "passes"_a, "gradient_factor"_a, "in_flight"_a, "charges_sender"_a, "successor_offsets"_a.noconvert(),
             "successors"_a.noconvert(), "most"_a, "seconds_limit"_a = FOREVER, "stop"_a = nb::none(),
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(),
             nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>(), nb::keep_alive<1, 9>(),
             nb::keep_alive<1, 10>(), nb::keep_alive<1, 11>(), nb::keep_alive<1, 12>(), nb::keep_alive<1, 13>(),
             nb::keep_alive<1, 16>(),
             "`class_counts` [n_classes, 2]: devices, and devices per node. `class_figures` [n_classes, 8]: bytes, "
             "price, then bandwidth and latency between stages, inside a node, and across nodes. `replicas` ascend. "
             "`in_flight`: 0 one, 1 one forward one backward, 2 all.")
        .def_prop_ro("complete", [](const BoundStageSearch& self) { return self.complete(); })
        .def_prop_ro("n_ideals", [](const BoundStageSearch& self) { return self.ideals().size(); })
        .def_prop_ro(
            "relaxed", [](BoundStageSearch& self) { return alone(self, [&] { return self.search().relaxed(); }); },
            "Whether a choice of ways was relaxed: what is found may not fit, and proofs still hold.")
        .def_prop_ro(
            "found_value",
            [](BoundStageSearch& self) { return alone(self, [&] { return self.search().found_value(); }); },
            "What was found last takes so many seconds: its slowest stage, or the sum of all.")
        .def_prop_ro(
            "least_load",
            [](BoundStageSearch& self) { return alone(self, [&] { return self.search().least_load(); }); },
            "Seconds per micro-batch: work over the devices, by their prices.")
        .def("search", &within_limit, "limit"_a, "sums"_a = false, "seconds"_a = FOREVER, "stop"_a = nb::none(),
             "0: found a pipeline whose stages take at most `limit` seconds each (with `sums`: the one with the least "
             "sum of seconds, below `limit`); 1: there is none; 2: it was stopped.")
        .def("stages", &found_stages,
             "The stages that were found last [n_stages, 4]: device class, degree, replicas, micro-batches in flight; "
             "the stage and the way [n_units] of every unit.");
}

}  // namespace placewise

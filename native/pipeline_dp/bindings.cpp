#include "pipeline_dp/bindings.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <limits>
#include <utility>

#include "common/exclusive.hpp"
#include "common/interrupt.hpp"
#include "common/union_find.hpp"
#include "pipeline_dp/ideals.hpp"
#include "pipeline_dp/orders.hpp"
#include "pipeline_dp/path_segments.hpp"
#include "pipeline_dp/stage_expansion.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

constexpr double FOREVER = std::numeric_limits<double>::infinity();

template <class T>
std::vector<T> copied(const In<T>& array) {
    return {array.data(), array.data() + array.shape(0)};
}

// Rows of edges between n nodes.
Adjacency edges_of(const Longs& offsets, const Ints& heads) {
    require(offsets.shape(0) > 0, "offsets are empty");
    const auto n = static_cast<Index>(offsets.shape(0)) - 1;
    require(within(view(heads), 0, n), "an edge leads to no node");
    return ragged(offsets, heads, n);
}

Ideals enumerate_ideals(const Longs& offsets, const Ints& successors, Index most, double seconds,
                        const StopFlag* stop) {
    const Adjacency after = edges_of(offsets, successors);
    for (Index node = 0; node < after.size(); ++node) {
        require(within(after[node], node + 1, after.size()), "nodes do not stand in topological order");
    }
    require(most < (Index{1} << 31), "so many ideals cannot be numbered");
    nb::gil_scoped_release unlocked;
    Interrupt interrupt(seconds, stop);
    return Ideals::enumerate(after, most, interrupt);
}

Ideals prefix_ideals(Index n) {
    require(0 <= n && n < (Index{1} << 17), "a path is too long to list its ideals");
    return Ideals::prefixes(n);
}

void require_ideal(const Ideals& ideals, Index ideal) {
    require(0 <= ideal && ideal < ideals.size(), "no such ideal");
}

nb::typed<nb::object, Made<bool>> members(const Ideals& ideals, Index ideal) {
    require_ideal(ideals, ideal);
    std::vector<std::uint8_t> mask(ideals.n_components());
    for (Index c = 0; c < ideals.n_components(); ++c) mask[c] = ideals.holds(ideal, c);
    return nb::cast(to_numpy(std::move(mask))).attr("view")("bool");
}

std::vector<std::pair<std::int32_t, std::int32_t>> steps(const Ideals& ideals, Index ideal) {
    require_ideal(ideals, ideal);
    std::vector<std::pair<std::int32_t, std::int32_t>> found;
    for (const auto [component, target] : ideals.steps(ideal)) found.emplace_back(component, target);
    return found;
}

auto bound_work_left(const Ideals& ideals, const Longs& work) {
    require(static_cast<Index>(work.shape(0)) == ideals.n_components() && is_bounded(view(work)),
            "work is one amount per component");
    return to_numpy(work_left(ideals, view(work)));
}

auto bound_cut_left(const BoundStageCosts& costs, const Ideals& ideals, const Longs& enter, const Longs& leave,
                    double seconds, const StopFlag* stop) {
    const auto tensors = static_cast<std::size_t>(costs.n_tensors());
    require(
        enter.shape(0) == tensors && leave.shape(0) == tensors && is_bounded(view(enter)) && is_bounded(view(leave)),
        "transfers are one amount per tensor");
    require(costs.n() == ideals.n_components(), "the ideals are those of another graph");
    std::vector<std::int64_t> cut;
    {
        nb::gil_scoped_release unlocked;
        Interrupt interrupt(seconds, stop, 64);
        cut = cut_left(costs, ideals, view(enter), view(leave), interrupt);
    }
    return to_numpy(std::move(cut));
}

TupleOf<Made<std::int32_t, 2>, Made<std::int64_t>> device_states(const Ints& n_devices, bool ordered) {
    require(within(view(n_devices), 0, 1 << 30), "a class has no such number of devices");
    double n_states = 1.0;
    for (const std::int32_t count : view(n_devices)) n_states *= ordered ? 1.0 : count + 1.0;
    require(n_states < 1e8, "too many states");
    DeviceStates states(view(n_devices), ordered);
    return nb::make_tuple(to_numpy(std::move(states.used)), to_numpy(std::move(states.stride)));
}

Remainder remainder(const Longs& left, const In<double>& room, Index n_ideals, Index n_states) {
    require(static_cast<Index>(left.shape(0)) == n_ideals && static_cast<Index>(room.shape(0)) == n_states,
            "what is left is one figure per ideal, room one per state");
    for (const double figure : view(room)) require(std::isfinite(figure), "room is not finite");
    return {copied(left), copied(room)};
}

// An expansion that one thread uses at a time.
class BoundExpansion : public StageExpansion, public Exclusive {
public:
    using StageExpansion::StageExpansion;
};

void create_expansion(BoundExpansion* self, const BoundStageCosts& costs, const Ideals& ideals, const Longs& work_left,
                      const In<double>& work_room) {
    require(costs.n() == ideals.n_components() && ideals.complete(), "the ideals are not all those of this graph");
    require(costs.n_classes() > 0, "there are no devices");
    require(static_cast<double>(costs.n_states()) * static_cast<double>(ideals.size()) < 2e8, "too many states");
    new (self) BoundExpansion(costs, ideals, remainder(work_left, work_room, ideals.size(), costs.n_states()));
}

void restrict_states(BoundExpansion& expansion, const In<bool>& unfinished, const In<bool>& spare) {
    const Exclusive::Turn turn(expansion);
    require(static_cast<Index>(unfinished.shape(0)) == expansion.n_states() &&
                static_cast<Index>(spare.shape(0)) == expansion.n_classes(),
            "unfinished is one figure per state, spare one per class");
    const auto states = view(unfinished), classes = view(spare);
    expansion.restrict_states({states.begin(), states.end()}, {classes.begin(), classes.end()});
}

void bound_phases(BoundExpansion& expansion, const Longs& forward_left, const In<double>& forward_room,
                  const Longs& both_left, const In<double>& both_room) {
    const Exclusive::Turn turn(expansion);
    const Index n_ideals = expansion.n_ideals(), n_states = expansion.n_states();
    expansion.bound_phases(remainder(forward_left, forward_room, n_ideals, n_states),
                           remainder(both_left, both_room, n_ideals, n_states));
}

void start(BoundExpansion& expansion, std::int64_t beat, std::int64_t forward_limit, std::int64_t both_limit) {
    const std::int64_t limits[] = {beat, forward_limit, both_limit};
    require(within(std::span<const std::int64_t>(limits), 0, NEVER + 1), "a limit is negative or more than never");
    const Exclusive::Turn turn(expansion);
    expansion.start(beat, forward_limit, both_limit);
}

bool expand(BoundExpansion& expansion, double seconds, const StopFlag* stop) {
    const Exclusive::Turn turn(expansion);
    require(expansion.has_bounds(), "costs of two phases need bounds of both");
    nb::gil_scoped_release unlocked;
    Interrupt interrupt(seconds, stop);
    return expansion.expand(interrupt);
}

auto split_row(const BoundRowCosts& row, double seconds, const StopFlag* stop) {
    std::vector<std::int32_t> place;
    {
        nb::gil_scoped_release unlocked;
        Interrupt interrupt(seconds, stop);
        place = RowSplit(row).run(interrupt);
    }
    return to_numpy(std::move(place));
}

double least_path_load(const In<double, 2>& load, const In<double, 3>& most, const In<double>& slopes,
                       const In<double, 2>& weight, const In<double>& pace, const In<double, 2>& host_load,
                       const In<double, 3>& host_most, const In<double>& host_slopes, const In<double>& host_without,
                       double work, double low, Index n_devices, Index n_hosts, double precision,
                       const Out<std::int32_t>& begins, double seconds, const StopFlag* stop) {
    const auto rows = static_cast<Index>(load.shape(0));
    const auto slices = static_cast<Index>(slopes.shape(0));
    const auto square = [&](const auto& table, std::size_t first) {
        return table.shape(first) == load.shape(0) && table.shape(first + 1) == load.shape(0);
    };
    require(rows > 1 && square(load, 0) && square(weight, 0) && square(host_load, 0) && square(host_most, 1) &&
                begins.shape(0) == load.shape(0),
            "segments are those of different paths");
    require(most.shape(0) == slopes.shape(0) && square(most, 1) && host_most.shape(0) == host_slopes.shape(0) &&
                host_without.shape(0) == host_slopes.shape(0),
            "there is one bound on the work per slope and segment");
    require(0 < n_devices && n_devices < (1 << 16) && 0 <= n_hosts && n_hosts < (1 << 8),
            "there are no devices, or too many");
    require(1e-13 <= precision && precision <= 1, "no such precision is found");
    require(are_amounts({load.data(), load.size()}, true) && are_amounts({host_load.data(), host_load.size()}, true) &&
                low >= 0.0 && std::isfinite(low) && work >= 0.0,
            "a load or work is negative or missing");
    const HostBounds hosts = {view(host_load),
                              {host_most.data(), static_cast<Index>(host_slopes.shape(0)) * rows, rows},
                              view(host_slopes),
                              view(host_without),
                              n_hosts};
    const SegmentBounds bounds = {
        view(load), {most.data(), slices * rows, rows}, view(slopes), view(weight), view(pace), work, low, n_devices,
        hosts};
    nb::gil_scoped_release unlocked;
    Interrupt interrupt(seconds, stop);
    PathSegments segments(bounds);
    const double least = segments.least_load(precision, interrupt);
    std::ranges::copy(segments.begins(), begins.data());
    return least;
}

auto bound_last_ready_first(const Longs& offsets, const Ints& successors, const Longs& sources, const Ints& stage) {
    const Adjacency edges = edges_of(offsets, successors);
    require(within(view(sources), 0, edges.size()), "a source is no node");
    require(static_cast<Index>(stage.shape(0)) == edges.size() && within(view(stage), 0, edges.size()),
            "every node has one of as many stages as there are nodes");
    std::vector<char> seen(edges.size());
    for (const std::int32_t source : view(sources)) require(!std::exchange(seen[source], 1), "a source is named twice");
    return to_numpy(last_ready_first(edges, view(sources), view(stage)));
}

auto bound_biconnected_components(const Longs& offsets, const Ints& others, const Ints& edges, Index n_edges) {
    const HalfEdges graph = {edges_of(offsets, others), view(edges)};
    require(0 <= n_edges && edges.shape(0) == others.shape(0) && within(graph.edges, 0, n_edges),
            "half an edge has no number");
    return to_numpy(biconnected_components(graph, n_edges));
}

auto unite_by_label(const Ints& label, const Ints& item, Index n_items) {
    const auto labels = view(label), items = view(item);
    require(labels.size() == items.size() && 0 <= n_items && n_items < (Index{1} << 31) && within(items, 0, n_items),
            "every label has an item");
    require(within(labels, 0, static_cast<Index>(labels.size())), "there are more labels than rows");
    UnionFind sets(n_items);
    std::vector<std::int32_t> first(labels.size(), -1);
    for (std::size_t row = 0; row < labels.size(); ++row) {
        if (first[labels[row]] < 0) first[labels[row]] = items[row];
        sets.unite(first[labels[row]], items[row]);
    }
    return to_numpy(sets.labels().first);
}

void bind_ideals(nb::module_& m) {
    nb::class_<Ideals>(m, "Ideals",
                       "Ideals (sets of components closed under predecessors), each once, by size: the empty one is "
                       "first, and the full one last where all of them are there.")
        .def("__len__", &Ideals::size)
        .def_prop_ro("n_components", &Ideals::n_components)
        .def_prop_ro("complete", &Ideals::complete, "Whether all ideals of the graph are there.")
        .def("members", &members, "ideal"_a, "A mask [n_components] of the components of one ideal.")
        .def("steps", &steps, "ideal"_a,
             "Pairs of a component that can be added to an ideal and the ideal that this leads to.");
    m.def("enumerate_ideals", &enumerate_ideals, "offsets"_a.noconvert(), "successors"_a.noconvert(), "most"_a,
          "seconds"_a = FOREVER, "stop"_a = nb::none(),
          "The ideals of a graph whose nodes stand in topological order, given as rows of successors; incomplete if "
          "there are more than `most` or if they take longer than so many seconds.");
    m.def("prefix_ideals", &prefix_ideals, "n"_a, "The ideals of a path of n components.");
    m.def("work_left", &bound_work_left, "ideals"_a, "work"_a.noconvert(),
          "The work [n_ideals] outside each ideal; `work` [n_components].");
    m.def("cut_left", &bound_cut_left, "costs"_a, "ideals"_a, "enter"_a.noconvert(), "leave"_a.noconvert(),
          "seconds"_a = FOREVER, "stop"_a = nb::none(),
          "What the devices that run the rest pay at least for the tensors between each ideal and the rest "
          "[n_ideals]; `enter` and `leave` [n_tensors] are what each costs at least. Where time ends it says 0.");
}

void bind_expansion(nb::module_& m) {
    nb::class_<ChainStage>(m, "ChainStage",
                           "A stage of a chain: the ideals before and behind it, and the members of its class of "
                           "devices that run it.")
        .def_ro("before", &ChainStage::before)
        .def_ro("behind", &ChainStage::behind)
        .def_ro("device_class", &ChainStage::device_class)
        .def_ro("first_member", &ChainStage::first_member)
        .def_ro("n_members", &ChainStage::n_members);
    nb::class_<BoundExpansion>(m, "StageExpansion",
                               "The dynamic program over ideals: it grows stages from every ideal, and is called "
                               "again and again until it is done. `work_left` [n_ideals] and `work_room` [n_states] "
                               "are in a common measure: at a max-load T the devices that a state leaves do at most "
                               "work_room · T of the work that an ideal leaves.")
        .def("__init__", &create_expansion, "costs"_a, "ideals"_a, "work_left"_a.noconvert(), "work_room"_a.noconvert(),
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
        .def("restrict_states", &restrict_states, "unfinished"_a.noconvert(), "spare"_a.noconvert(),
             "The states [n_states] that cannot be the last, and the classes [n_classes] of which one device less in "
             "use is never worse.")
        .def("bound_phases", &bound_phases, "forward_left"_a.noconvert(), "forward_room"_a.noconvert(),
             "both_left"_a.noconvert(), "both_room"_a.noconvert(),
             "Where costs have two phases: `work_left` and `work_room` of forward loads within a limit, and of all "
             "loads within a total.")
        .def("start", &start, "beat"_a, "forward_limit"_a = NEVER, "both_limit"_a = NEVER,
             "Look for a chain of max-load below `beat`, in units of the costs; forward loads are at most "
             "`forward_limit`, and the sum of both phases' loads is below `both_limit`.")
        .def("expand", &expand, "seconds"_a = FOREVER, "stop"_a = nb::none(),
             "Go on for so many seconds; whether all ideals are done.")
        .def_prop_ro(
            "n_done", [](BoundExpansion& e) { return alone(e, [&] { return e.n_done(); }); },
            "How many ideals are done.")
        .def_prop_ro(
            "found", [](BoundExpansion& e) { return alone(e, [&] { return e.found(); }); },
            "Whether there is a chain below the value to beat.")
        .def_prop_ro(
            "best", [](BoundExpansion& e) { return alone(e, [&] { return e.best(); }); },
            "The max-load of the best chain, or the value to beat.")
        .def_prop_ro(
            "next_forward_limit", [](BoundExpansion& e) { return alone(e, [&] { return e.next_forward_limit(); }); },
            "The least greater forward limit that could find more.")
        .def(
            "chain", [](BoundExpansion& e) { return alone(e, [&] { return e.chain(); }); },
            "The stages of the best chain, the last one first.");
}

}  // namespace

void bind_pipeline_dp(nb::module_& m) {
    nb::class_<BoundStageCosts>(
        m, "StageCosts",
        "What stages cost, checked once and read in place; see "
        "placewise.placers.shared.stages.stage_costs.ComponentCosts for the meaning of its columns.")
        .def(
            nb::init<const In<std::int64_t, 2>&, const Longs&, const Longs&, const Ints&, const Ints&, const In<bool>&,
                     const In<bool>&, const Longs&, const Ints&, const In<std::int64_t, 2>&, const In<std::int64_t, 2>&,
                     const Longs&, const Ints&, const Longs&, const Ints&, const Longs&, const Ints&, const Longs&,
                     const Ints&, const Longs&, const Ints&, const Ints&, const In<double, 2>&, int, bool>(),
            "seconds"_a.noconvert(), "size"_a.noconvert(), "weight"_a.noconvert(), "producer"_a.noconvert(),
            "readers"_a.noconvert(), "output"_a.noconvert(), "mirrored"_a.noconvert(), "consumer_offsets"_a.noconvert(),
            "consumers"_a.noconvert(), "enter"_a.noconvert(), "leave"_a.noconvert(), "use_offsets"_a.noconvert(),
            "uses"_a.noconvert(), "make_offsets"_a.noconvert(), "makes"_a.noconvert(), "storage_offsets"_a.noconvert(),
            "storages"_a.noconvert(), "storage_bytes"_a.noconvert(), "rate"_a.noconvert(), "capacity"_a.noconvert(),
            "n_devices"_a.noconvert(), "most"_a.noconvert(), "pace"_a.noconvert(), "mode"_a, "ordered"_a);
    bind_ideals(m);
    bind_expansion(m);
    m.def("device_states", &device_states, "n_devices"_a.noconvert(), "ordered"_a,
          "How many devices of each class every state counts [n_states, n_classes], and by how much one more moves "
          "its number [n_classes].");
    nb::class_<BoundRowCosts>(m, "RowCosts",
                              "A line of n components, d devices in a row and the tensors between them, checked once "
                              "and read in place: seconds [n, d], size [n], capacity and pays [d], price [n_tensors, "
                              "n_link_classes], link [d + 1, d + 1] with host memory last, the positions of the "
                              "producer, the first and the last reader of each tensor, and rows of tensors that each "
                              "position reads and makes.")
        .def(nb::init<const In<double, 2>&, const Longs&, const In<double>&, const In<bool>&, const In<double, 2>&,
                      const In<std::int32_t, 2>&, const Ints&, const Ints&, const Ints&, const In<bool>&, const Longs&,
                      const Ints&, const Longs&, const Ints&, int>(),
             "seconds"_a.noconvert(), "size"_a.noconvert(), "capacity"_a.noconvert(), "pays"_a.noconvert(),
             "price"_a.noconvert(), "link"_a.noconvert(), "producer"_a.noconvert(), "first"_a.noconvert(),
             "last"_a.noconvert(), "output"_a.noconvert(), "use_offsets"_a.noconvert(), "uses"_a.noconvert(),
             "make_offsets"_a.noconvert(), "makes"_a.noconvert(), "mode"_a);
    m.def("split_row", &split_row, "row"_a, "seconds"_a = FOREVER, "stop"_a = nb::none(),
          "The place in the row [n] of each component in the best split of the line, [0] if there is none.");
    m.def("least_path_load", &least_path_load, "load"_a.noconvert(), "most"_a.noconvert(), "slopes"_a.noconvert(),
          "weight"_a.noconvert(), "pace"_a.noconvert(), "host_load"_a.noconvert(), "host_most"_a.noconvert(),
          "host_slopes"_a.noconvert(), "host_without"_a.noconvert(), "work"_a, "low"_a, "n_devices"_a, "n_hosts"_a,
          "precision"_a, "begins"_a.noconvert(), "seconds"_a = FOREVER, "stop"_a = nb::none(),
          "A max-load below which a path of m positions cannot be cut into segments, at least `low`, found to a "
          "relative `precision`; `begins` [m + 1] "
          "gets where the segment that ends at each position begins, −1 for none, −2 − begin on a host. Tables are "
          "[m + 1, m + 1], `most` one per slope.");
    m.def("last_ready_first", &bound_last_ready_first, "offsets"_a.noconvert(), "successors"_a.noconvert(),
          "sources"_a.noconvert(), "stage"_a.noconvert(),
          "The position [n] of each node of an acyclic graph when what became ready last comes next, stage [n] by "
          "stage.");
    m.def("biconnected_components", &bound_biconnected_components, "offsets"_a.noconvert(), "others"_a.noconvert(),
          "edges"_a.noconvert(), "n_edges"_a,
          "The biconnected component of each undirected edge; rows of vertices hold the other end and the number of "
          "every edge.");
    m.def("unite_by_label", &unite_by_label, "label"_a.noconvert(), "item"_a.noconvert(), "n_items"_a,
          "A dense number per item [n_items], the same for items that share a label in any row.");
}

}  // namespace placewise

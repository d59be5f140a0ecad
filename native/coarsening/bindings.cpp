#include <algorithm>
#include <numeric>

#include "coarsening/anchors.hpp"
#include "coarsening/chains.hpp"
#include "coarsening/heavy_edges.hpp"
#include "coarsening/rounds.hpp"
#include "common/ndarrays.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

// A graph and the arrays that it reads.
class BoundGroupGraph : public GroupGraph {
public:
    BoundGroupGraph(const In<std::int32_t>& tail, const In<std::int32_t>& head, const In<double>& flow,
                    const In<double>& seconds, const In<double>& bytes, const In<std::int64_t>& key)
        : GroupGraph{{{}, view(head)}, view(flow), view(seconds), view(bytes), view(key)},
          owners_(nb::make_tuple(head, flow, seconds, bytes, key)),
          offsets_(key.shape(0) + 1) {
        const auto n = static_cast<std::int64_t>(key.shape(0));
        const auto tails = view(tail);
        require(tail.shape(0) == head.shape(0) && flow.shape(0) == head.shape(0), "columns of edges differ in length");
        require(within(tails, 0, n) && within(view(head), 0, n), "an edge leads to no group");
        require(std::is_sorted(tails.begin(), tails.end()), "edges are not sorted by tail");
        for (const std::int32_t group : tails) ++offsets_[group + 1];
        std::partial_sum(offsets_.begin(), offsets_.end(), offsets_.begin());
        successors.offsets = offsets_;
        require_column(seconds.shape(0));
        require_column(bytes.shape(0));
    }
    BoundGroupGraph(const BoundGroupGraph&) = delete;

    void require_column(std::size_t length) const {
        require(static_cast<Index>(length) == size(), "columns of groups differ in length");
    }

private:
    nb::object owners_;
    std::vector<std::int64_t> offsets_;
};

auto sole_successor_labels(const BoundGroupGraph& graph, double most_seconds, double most_bytes) {
    return to_numpy(join_sole_successors(graph, {most_seconds, most_bytes}));
}

auto interval_labels(const BoundGroupGraph& graph, double most_seconds, double most_bytes) {
    return to_numpy(cut_intervals(graph, {most_seconds, most_bytes}));
}

auto heavy_edge_labels(const BoundGroupGraph& graph, const In<double>& size, double most_seconds, double most_bytes) {
    graph.require_column(size.shape(0));
    std::vector<std::int32_t> cluster;
    {
        nb::gil_scoped_release unlocked;
        Interrupt interrupt;
        cluster = HeavyEdges(graph, view(size), {most_seconds, most_bytes}).run(interrupt);
    }
    return to_numpy(std::move(cluster));
}

auto levels_of(const BoundGroupGraph& graph) {
    return to_numpy(latest_levels(graph));
}

TupleOf<Made<std::int64_t>, Made<std::uint64_t>, Made<std::int64_t>, double> anchor_parts(
    const BoundGroupGraph& graph, const In<std::uint64_t>& signature, const In<std::int32_t>& outer,
    const In<bool>& left, const In<std::int64_t>& anchors) {
    graph.require_column(signature.shape(0));
    graph.require_column(outer.shape(0));
    graph.require_column(left.shape(0));
    require(within(view(anchors), 0, graph.size()), "an anchor is no group");
    AnchorParts parts = divide_at_anchors(graph, view(signature), view(outer), view(left), view(anchors));
    return nb::make_tuple(to_numpy(std::move(parts.part)), to_numpy(std::move(parts.content)),
                          to_numpy(std::move(parts.size)), parts.crossing);
}

auto rounds_of(const In<std::int64_t>& offsets, const In<std::int32_t>& readers, const In<std::int64_t>& rank) {
    return to_numpy(count_rounds(neighbours(offsets, readers, static_cast<Index>(rank.shape(0))), view(rank)));
}

}  // namespace

void bind_coarsening(nb::module_& m) {
    nb::class_<BoundGroupGraph>(m, "GroupGraph",
                                "An acyclic graph of groups in a topological order, checked once and read in place; "
                                "columns as in placewise.coarsen.quotient.Quotient.")
        .def(nb::init<const In<std::int32_t>&, const In<std::int32_t>&, const In<double>&, const In<double>&,
                      const In<double>&, const In<std::int64_t>&>(),
             "tail"_a.noconvert(), "head"_a.noconvert(), "flow"_a.noconvert(), "seconds"_a.noconvert(),
             "bytes"_a.noconvert(), "key"_a.noconvert());
    m.def("join_sole_successors", &sole_successor_labels, "graph"_a, "most_seconds"_a, "most_bytes"_a,
          "Labels [n]: groups join their only successor, as far as keys and limits allow.");
    m.def("cut_intervals", &interval_labels, "graph"_a, "most_seconds"_a, "most_bytes"_a,
          "Labels [n]: neighbours in the order of the groups, as many together as keys and limits allow.");
    m.def("cluster_heavy_edges", &heavy_edge_labels, "graph"_a, "size"_a.noconvert(), "most_seconds"_a, "most_bytes"_a,
          "Labels [n] of clusters along edges of much flow for the sizes [n] of both ends, light groups choosing "
          "first.");
    m.def("latest_levels", &levels_of, "graph"_a,
          "The level [n] of each group, as late as its readers allow; the last is n.");
    m.def("divide_at_anchors", &anchor_parts, "graph"_a, "signature"_a.noconvert(), "outer"_a.noconvert(),
          "left"_a.noconvert(), "anchors"_a.noconvert(),
          "The first anchor that needs each group [n], the sum of signatures and the number of groups of each part "
          "[n_anchors + 1], and the flow between parts.");
    m.def("count_rounds", &rounds_of, "offsets"_a.noconvert(), "readers"_a.noconvert(), "rank"_a.noconvert(),
          "How often, at most, a path to each op [n_ops] went from a part of higher rank to one of lower rank.");
}

}  // namespace placewise

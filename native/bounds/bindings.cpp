#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bounds/path_cutting.hpp"
#include "bounds/spreading_tree.hpp"
#include "judge/bindings.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

TupleOf<Made<std::int32_t>, Made<std::int32_t>> locate(const BoundProblem& p, const In<std::int32_t>& path) {
    const auto ops = view(path);
    require(within(ops, 0, p.n_ops()), "a path names no op of this problem");
    PathPositions found = locate_beside_path(p, ops);
    return nb::make_tuple(to_numpy(std::move(found.after)), to_numpy(std::move(found.before)));
}

TupleOf<double, Made<std::int32_t>, Made<double>> spreading_tree(
    const In<std::int64_t>& edge_offsets, const In<std::int32_t>& edge_nodes, const In<std::int64_t>& node_offsets,
    const In<std::int32_t>& node_edges, const In<double>& length, const In<double>& weight, std::int32_t root) {
    const auto n_edges = static_cast<Index>(length.shape(0)), n_nodes = static_cast<Index>(weight.shape(0));
    const Adjacency members = ragged(edge_offsets, edge_nodes, n_edges);
    const Adjacency incident = ragged(node_offsets, node_edges, n_nodes);
    require(within(members.values, 0, n_nodes), "an edge has no such node");
    require(within(incident.values, 0, n_edges), "a node has no such edge");
    require(0 <= root && root < n_nodes, "the root is no node");
    SpreadingTree tree = grow_spreading_tree(members, incident, view(length), view(weight), root);
    return nb::make_tuple(tree.excess, to_numpy(std::move(tree.edges)), to_numpy(std::move(tree.use)));
}

// A cutter and the columns that it reads.
class BoundPathCutter {
public:
    BoundPathCutter(const In<double>& host, const In<bool, 2>& fits, const In<bool>& tied)
        : owners_(nb::make_tuple(host, fits, tied)),
          side_(check(host, fits, tied)),
          cutter_(view(host), view(fits), view(tied)) {}

    TupleOf<double, std::vector<std::pair<Index, Index>>> find_shortest(const In<double, 2>& seconds) {
        const auto table = view(seconds);
        require(table.rows() == side_ && table.columns() == side_, "seconds are no table of segments");
        std::vector<std::pair<Index, Index>> segments;
        const double value = cutter_.find_shortest(table, segments);
        return nb::make_tuple(value, segments);
    }

private:
    static Index check(const In<double>& host, const In<bool, 2>& fits, const In<bool>& tied) {
        const std::size_t side = host.shape(0) + 1;
        require(fits.shape(0) == side && fits.shape(1) == side && tied.shape(0) == side,
                "columns of a path differ in length");
        return static_cast<Index>(side);
    }

    nb::object owners_;
    Index side_;
    PathCutter cutter_;
};

}  // namespace

void bind_bounds(nb::module_& m) {
    m.def("locate_beside_path", &locate, "problem"_a, "path"_a.noconvert(),
          "Two columns [n_ops]: the last position of the path [m] that leads to each op, −1 for none, and the first "
          "that it leads to, m for none.");
    m.def(
        "spreading_tree", &spreading_tree, "edge_offsets"_a.noconvert(), "edge_nodes"_a.noconvert(),
        "node_offsets"_a.noconvert(), "node_edges"_a.noconvert(), "length"_a.noconvert(), "weight"_a.noconvert(),
        "root"_a,
        "The excess above 1 of the weight [n_nodes] of some nodes near a root, the edges of a tree that reaches them, "
        "and how much of the excess each must carry; 0 if no such tree costs less than its excess at these lengths "
        "[n_edges].");
    nb::class_<BoundPathCutter>(m, "PathCutter",
                                "Cuts a path of m ops into segments on accelerators and ops on the host.")
        .def(nb::init<const In<double>&, const In<bool, 2>&, const In<bool>&>(), "host"_a.noconvert(),
             "fits"_a.noconvert(), "tied"_a.noconvert(),
             "`host` [m] seconds on the host, `fits` [m + 1, m + 1] whether path[i:j] fits on one accelerator, `tied` "
             "[m + 1] whether what meets at a position shares a device.")
        .def("find_shortest", &BoundPathCutter::find_shortest, "seconds"_a.noconvert(),
             "The least seconds where path[i:j] takes seconds[i, j], and the segments (i, j), the last first.");
}

}  // namespace placewise

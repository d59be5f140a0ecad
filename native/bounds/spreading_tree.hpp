// Trees in a hypergraph that prove how much its parts must be apart.
#pragma once

#include <span>
#include <vector>

#include "common/views.hpp"

namespace placewise {

// What a set of nodes proves if no part that holds its root weighs more than 1: Σ use(e) over the edges e that are cut
// is at least `excess`, the weight of the set above 1. No edge is used by more than that.
struct SpreadingTree {
    double excess = 0.0;
    std::vector<std::int32_t> edges;
    std::vector<double> use;
};

// Of the sets of nodes nearest to `root`, the one whose uses cost least per excess at these lengths of the edges: less
// than 1, or none. `members` are the nodes of each edge, `incident` the edges of each node, `weight` is [n_nodes].
SpreadingTree grow_spreading_tree(const Adjacency& members, const Adjacency& incident, std::span<const double> length,
                                  std::span<const double> weight, std::int32_t root);

}  // namespace placewise

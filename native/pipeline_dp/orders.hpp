// Linear-time passes over a graph around the dynamic programs: a line that goes deep, and what hangs together twice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/views.hpp"

namespace placewise {

// The position [n] of each node in a topological order in which what became ready last comes next; −1 for nodes on a
// cycle. Of nodes that become ready together the first among the successors comes last, and so it is with the
// `sources`, which wait for nothing. Nodes of a smaller `stage` [n] come before all others.
std::vector<std::int32_t> last_ready_first(const Adjacency& successors, std::span<const std::int64_t> sources,
                                           std::span<const std::int32_t> stage);

// One end of an undirected edge: the vertex at the other end, and the number of the edge.
struct HalfEdges {
    Adjacency others;                     // of each vertex
    std::span<const std::int32_t> edges;  // beside the values of `others`
};

// The biconnected component of each of n edges (Hopcroft and Tarjan 1973, without recursion).
std::vector<std::int32_t> biconnected_components(const HalfEdges& graph, Index n_edges);

}  // namespace placewise

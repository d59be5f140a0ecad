// The graph that groupings work on: an acyclic graph of groups, numbered in a topological order.
#pragma once

#include <span>

#include "common/views.hpp"

namespace placewise {

struct GroupGraph {
    Adjacency successors;               // distinct, ascending
    std::span<const double> flow;       // seconds of traffic on each edge
    std::span<const double> seconds;    // [n]
    std::span<const double> bytes;      // [n]
    std::span<const std::int64_t> key;  // [n] only groups of one key may become one

    Index size() const { return successors.size(); }
    // The edges of a group, as indices into `successors.values` and `flow`.
    IndexRange edges(Index group) const { return {successors.offsets[group], successors.offsets[group + 1]}; }
};

// The most that one group may take.
struct GroupLimits {
    double seconds;
    double bytes;
};

}  // namespace placewise

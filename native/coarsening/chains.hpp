// Groups that follow each other: along edges to a sole successor, and along the order of all groups.
#pragma once

#include <vector>

#include "coarsening/group_graph.hpp"

namespace placewise {

// The label [n] of each group: that of its only successor, as far as keys and limits allow.
std::vector<std::int32_t> join_sole_successors(const GroupGraph& graph, const GroupLimits& limits);

// Labels [n] of intervals of the groups, as many together as keys and limits allow.
std::vector<std::int32_t> cut_intervals(const GroupGraph& graph, const GroupLimits& limits);

}  // namespace placewise

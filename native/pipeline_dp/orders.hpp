// A line of the components for the dynamic programs that goes deep, in linear time.
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

}  // namespace placewise

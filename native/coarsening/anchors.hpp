// A graph cut at anchors: a group goes with the first anchor that needs it, so that the parts are differences of a
// chain of ideals and no cycle can come of them.
#pragma once

#include <span>
#include <vector>

#include "coarsening/group_graph.hpp"

namespace placewise {

// The level [n] of each group, as late as its readers allow; the last is n.
std::vector<std::int64_t> latest_levels(const GroupGraph& graph);

struct AnchorParts {
    std::vector<std::int64_t> part;      // [n] the number of the first anchor that needs each group; that of the
                                         // anchors for those that none needs or that do not count
    std::vector<std::uint64_t> content;  // [n_anchors + 1] sums of the signatures in each part
    std::vector<std::int64_t> size;      // [n_anchors + 1] groups
    double crossing = 0.0;               // flow between parts
};

// Cut what counts of a graph, `left` [n], at `anchors`, ascending; only edges inside one `outer` [n] group bind.
// `signature` [n] says what a group is.
AnchorParts divide_at_anchors(const GroupGraph& graph, std::span<const std::uint64_t> signature,
                              std::span<const std::int32_t> outer, std::span<const bool> left,
                              std::span<const std::int64_t> anchors);

}  // namespace placewise

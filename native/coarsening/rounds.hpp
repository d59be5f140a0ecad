// Rounds: groups that wait for each other in a circle run several times.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "common/views.hpp"

namespace placewise {

// How often, at most, a path to each op [n_ops] went from a part of higher `rank` [n_ops] to one of lower rank; ops
// stand in topological order.
inline std::vector<std::int64_t> count_rounds(const Adjacency& readers, std::span<const std::int64_t> rank) {
    std::vector<std::int64_t> rounds(rank.size());
    for (Index op = 0; op < readers.size(); ++op) {
        for (const std::int32_t reader : readers[op]) {
            rounds[reader] = std::max(rounds[reader], rounds[op] + (rank[reader] < rank[op]));
        }
    }
    return rounds;
}

}  // namespace placewise

#include "partitioning/component_order.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace placewise {

void shift_late(const Adjacency& predecessors, std::span<std::int32_t> rank) {
    for (Index node = 0; node < predecessors.size(); ++node) {
        std::int32_t latest = rank[node];
        for (const std::int32_t before : predecessors[node]) latest = std::max(latest, rank[before]);
        rank[node] = latest;
    }
}

void shift_early(const Adjacency& successors, std::span<std::int32_t> rank) {
    for (Index node = successors.size() - 1; node >= 0; --node) {
        std::int32_t earliest = rank[node];
        for (const std::int32_t after : successors[node]) earliest = std::min(earliest, rank[after]);
        rank[node] = earliest;
    }
}

void fill_ranks(const Adjacency& predecessors, const Adjacency& successors, std::span<std::int32_t> rank) {
    const Index n = predecessors.size();
    for (Index node = 0; node < n; ++node) {
        if (rank[node] >= 0) continue;
        std::int32_t highest = -1;
        for (const std::int32_t before : predecessors[node]) highest = std::max(highest, rank[before]);
        rank[node] = highest;
    }
    for (Index node = n - 1; node >= 0; --node) {
        if (rank[node] >= 0) continue;
        std::int32_t lowest = INT32_MAX;
        for (const std::int32_t after : successors[node]) {
            if (rank[after] >= 0) lowest = std::min(lowest, rank[after]);
        }
        if (lowest < INT32_MAX) rank[node] = lowest;
    }
    for (std::int32_t& value : rank) value = std::max(value, 0);
}

std::vector<std::int32_t> random_order(const Adjacency& successors, SplitMix64& rng) {
    const Index n = successors.size();
    std::vector<std::int32_t> missing(n), ready, position(n, 0);
    for (const std::int32_t after : successors.values) ++missing[after];
    for (Index node = 0; node < n; ++node) {
        if (missing[node] == 0) ready.push_back(static_cast<std::int32_t>(node));
    }
    for (std::int32_t place = 0; !ready.empty(); ++place) {
        std::swap(ready[rng.below(static_cast<std::int64_t>(ready.size()))], ready.back());
        const std::int32_t node = ready.back();
        ready.pop_back();
        position[node] = place;
        for (const std::int32_t after : successors[node]) {
            if (--missing[after] == 0) ready.push_back(after);
        }
    }
    return position;
}

}  // namespace placewise

#include "coarsening/anchors.hpp"

#include <algorithm>

namespace placewise {

std::vector<std::int64_t> latest_levels(const GroupGraph& graph) {
    std::vector<std::int64_t> level(graph.size());
    for (Index node = graph.size() - 1; node >= 0; --node) {
        std::int64_t latest = graph.size();
        for (const std::int32_t reader : graph.successors[node]) latest = std::min(latest, level[reader] - 1);
        level[node] = latest;
    }
    return level;
}

AnchorParts divide_at_anchors(const GroupGraph& graph, std::span<const std::uint64_t> signature,
                              std::span<const std::int32_t> outer, std::span<const bool> left,
                              std::span<const std::int64_t> anchors) {
    const auto n_anchors = static_cast<std::int64_t>(anchors.size());
    AnchorParts parts{std::vector<std::int64_t>(graph.size(), n_anchors), std::vector<std::uint64_t>(n_anchors + 1),
                      std::vector<std::int64_t>(n_anchors + 1)};
    for (std::int64_t number = 0; number < n_anchors; ++number) parts.part[anchors[number]] = number;
    for (Index node = graph.size() - 1; node >= 0; --node) {
        if (!left[node]) continue;
        const auto binds = [&](std::int32_t reader) { return left[reader] && outer[reader] == outer[node]; };
        std::int64_t first = parts.part[node];
        for (const std::int32_t reader : graph.successors[node]) {
            if (binds(reader)) first = std::min(first, parts.part[reader]);
        }
        parts.part[node] = first;
        for (const Index edge : graph.edges(node)) {
            const std::int32_t reader = graph.successors.values[edge];
            if (binds(reader) && parts.part[reader] != first) parts.crossing += graph.flow[edge];
        }
        parts.content[first] += signature[node];
        ++parts.size[first];
    }
    return parts;
}

}  // namespace placewise

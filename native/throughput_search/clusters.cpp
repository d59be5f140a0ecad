#include "throughput_search/clusters.hpp"

#include "common/union_find.hpp"

namespace placewise {

Clusters::Clusters(std::span<const std::int32_t> tail, std::span<const std::int32_t> head, std::span<const double> work,
                   std::span<const double> limits)
    : label_(static_cast<Index>(limits.size()), static_cast<Index>(work.size())) {
    UnionFind sets(n_groups());
    std::vector<double> total(work.begin(), work.end());
    std::vector<std::int32_t> count(work.size(), 1);
    members_.resize(limits.size() * work.size());
    for (Index level = 0; level < n_levels(); ++level) {
        for (std::size_t pair = 0; pair < tail.size(); ++pair) {
            const std::int32_t one = sets.find(tail[pair]), other = sets.find(head[pair]);
            if (one == other || total[one] + total[other] > limits[level]) continue;
            if (count[one] + count[other] > MAX_GROUPS) continue;
            const std::int32_t root = sets.unite(one, other), joined = root == one ? other : one;
            total[root] += total[joined];
            count[root] += count[joined];
        }
        const auto [labels, n_labels] = sets.labels();
        add_level(level, labels, n_labels);
    }
}

// Number the clusters of a level behind those of the levels before, and sort the groups into them.
void Clusters::add_level(Index level, std::span<const std::int32_t> labels, std::int32_t n_labels) {
    const Index first = static_cast<Index>(offsets_.size()) - 1;
    offsets_.resize(offsets_.size() + n_labels, 0);
    for (const std::int32_t label : labels) ++offsets_[first + label + 1];
    for (Index cluster = first; cluster < first + n_labels; ++cluster) offsets_[cluster + 1] += offsets_[cluster];
    std::vector<std::int64_t> end(offsets_.begin() + first, offsets_.end());
    for (Index group = 0; group < n_groups(); ++group) {
        label_(level, group) = static_cast<std::int32_t>(first + labels[group]);
        members_[end[labels[group]]++] = static_cast<std::int32_t>(group);
    }
}

}  // namespace placewise

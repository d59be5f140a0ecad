// Groups that a search moves as one: joined along the costliest tensors, at several sizes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/views.hpp"

namespace placewise {

class Clusters {
public:
    // No cluster has more groups: moves of more are too slow to try often.
    static constexpr std::int32_t MAX_GROUPS = 1 << 12;

    // Pairs of groups (tail, head), those to be joined first in front; `work` [n_groups]; one level of clusters per
    // limit of the work in one of them, ascending.
    Clusters(std::span<const std::int32_t> tail, std::span<const std::int32_t> head, std::span<const double> work,
             std::span<const double> limits);

    Index n_levels() const { return label_.rows(); }
    Index n_groups() const { return label_.columns(); }
    Index n_clusters() const { return static_cast<Index>(offsets_.size()) - 1; }
    const Table<std::int32_t>& labels() const { return label_; }
    // The cluster of a group at one level, and the groups of a cluster, ascending.
    std::int32_t at(Index level, Index group) const { return label_(level, group); }
    std::span<const std::int32_t> groups(Index cluster) const { return Adjacency{offsets_, members_}[cluster]; }

private:
    void add_level(Index level, std::span<const std::int32_t> labels, std::int32_t n_labels);

    Table<std::int32_t> label_;  // [n_levels, n_groups]
    std::vector<std::int64_t> offsets_{0};
    std::vector<std::int32_t> members_;
};

}  // namespace placewise

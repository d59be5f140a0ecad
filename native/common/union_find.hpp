// Disjoint sets (Tarjan 1975): path halving; the root of a set is its least member.
#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace placewise {

class UnionFind {
public:
    explicit UnionFind(std::int64_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), 0); }

    std::int32_t find(std::int32_t item) {
        while (parent_[item] != item) {
            parent_[item] = parent_[parent_[item]];
            item = parent_[item];
        }
        return item;
    }

    // Join the sets of two items; the root of both, which is the lesser of their roots.
    std::int32_t unite(std::int32_t one, std::int32_t other) {
        one = find(one);
        other = find(other);
        if (other < one) std::swap(one, other);
        parent_[other] = one;
        return one;
    }

    // Dense labels of the sets, numbered by their least members, and how many there are.
    std::pair<std::vector<std::int32_t>, std::int32_t> labels() {
        std::vector<std::int32_t> label(parent_.size());
        std::int32_t count = 0;
        for (std::int32_t item = 0; item < static_cast<std::int32_t>(parent_.size()); ++item) {
            const std::int32_t root = find(item);
            label[item] = root == item ? count++ : label[root];
        }
        return {std::move(label), count};
    }

private:
    std::vector<std::int32_t> parent_;
};

}  // namespace placewise

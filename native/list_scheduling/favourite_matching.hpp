// Favourite children on graphs that are too large for the linear program: a greedy matching of makers and readers.
#pragma once

#include <span>
#include <vector>

namespace placewise {

// Of the pairs (tail, head) in `order` each whose ends are both free; the favourite child of every op, −1 for none.
inline std::vector<std::int32_t> match_favourites(std::span<const std::int32_t> tail,
                                                  std::span<const std::int32_t> head,
                                                  std::span<const std::int64_t> order, std::size_t n_ops) {
    std::vector<std::int32_t> child(n_ops, -1);
    std::vector<std::uint8_t> has_parent(n_ops);
    for (const std::int64_t pair : order) {
        if (child[tail[pair]] >= 0 || has_parent[head[pair]]) continue;
        child[tail[pair]] = head[pair];
        has_parent[head[pair]] = 1;
    }
    return child;
}

}  // namespace placewise

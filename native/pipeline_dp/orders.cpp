#include "pipeline_dp/orders.hpp"

#include <algorithm>

namespace placewise {

std::vector<std::int32_t> last_ready_first(const Adjacency& successors, std::span<const std::int64_t> sources,
                                           std::span<const std::int32_t> stage) {
    std::vector<std::int32_t> position(successors.size(), -1), waiting(successors.size());
    std::vector<std::int32_t> next_ready(successors.size());  // stacks of ready nodes, as linked lists
    std::vector<std::int32_t> last(stage.empty() ? 1 : std::ranges::max(stage) + 1, -1);
    for (const std::int32_t node : successors.values) ++waiting[node];
    const auto push = [&](std::int32_t node) {
        next_ready[node] = last[stage[node]];
        last[stage[node]] = node;
    };
    for (const std::int64_t source : sources) push(static_cast<std::int32_t>(source));
    std::int32_t placed = 0;
    for (std::size_t at = 0; at < last.size() && placed < static_cast<std::int32_t>(position.size());) {
        const std::int32_t node = last[at];
        if (node < 0) {
            ++at;
            continue;
        }
        last[at] = next_ready[node];
        position[node] = placed++;
        for (const std::int32_t after : successors[node]) {
            if (--waiting[after] == 0) push(after);
        }
    }
    return position;
}

}  // namespace placewise

#include "judge/graph_order.hpp"

#include <algorithm>

namespace placewise {

std::pair<std::vector<std::int32_t>, std::int32_t> strong_components(const Adjacency& successors) {
    const auto n = static_cast<std::int32_t>(successors.size());
    std::vector<std::int32_t> component(n, -1), reached(n, -1), lowest(n), path, waiting;
    std::vector<std::int64_t> following(successors.offsets.begin(), successors.offsets.end() - 1);
    std::int32_t clock = 0, count = 0;
    for (std::int32_t root = n - 1; root >= 0; --root) {
        if (reached[root] >= 0) continue;
        path.assign(1, root);
        while (!path.empty()) {
            const std::int32_t node = path.back();
            if (reached[node] < 0) {
                reached[node] = lowest[node] = clock++;
                waiting.push_back(node);
            }
            bool descended = false;
            while (following[node] < successors.offsets[node + 1] && !descended) {
                const std::int32_t target = successors.values[following[node]++];
                if (reached[target] < 0) {
                    path.push_back(target);
                    descended = true;
                } else if (component[target] < 0) {
                    lowest[node] = std::min(lowest[node], reached[target]);
                }
            }
            if (descended) continue;
            if (lowest[node] == reached[node]) {
                std::int32_t member = -1;
                while (member != node) {
                    member = waiting.back();
                    waiting.pop_back();
                    component[member] = count;
                }
                ++count;
            }
            path.pop_back();
            if (!path.empty()) lowest[path.back()] = std::min(lowest[path.back()], lowest[node]);
        }
    }
    for (std::int32_t& number : component) number = count - 1 - number;
    return {std::move(component), count};
}

}  // namespace placewise

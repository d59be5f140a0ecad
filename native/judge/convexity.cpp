#include "judge/convexity.hpp"

#include <algorithm>

namespace placewise {

std::vector<std::int32_t> find_return_path(const Problem& p, std::span<const bool> backward,
                                           std::span<const std::int32_t> phase, std::span<const std::int32_t> device) {
    std::vector<char> used(p.n_devices(), 0);
    for (const std::int32_t d : device) {
        if (d >= 0) used[d] = 1;
    }
    std::vector<std::int32_t> via(p.n_ops());  // the op before each op on a path that has left the device
    for (std::int32_t d = 0; d < p.n_devices(); ++d) {
        if (!used[d]) continue;
        std::fill(via.begin(), via.end(), -1);
        for (std::int32_t op = 0; op < p.n_ops(); ++op) {
            if (backward[op] || (device[op] != d && via[op] < 0)) continue;
            for (const std::int32_t reader : p.readers_of(op)) {
                if (backward[reader] || phase[reader] != phase[op]) continue;
                if (device[reader] != d) {
                    via[reader] = op;
                } else if (device[op] != d) {
                    std::vector<std::int32_t> path{reader, op};
                    while (device[path.back()] != d) path.push_back(via[path.back()]);
                    std::reverse(path.begin(), path.end());
                    return path;
                }
            }
        }
    }
    return {};
}

}  // namespace placewise

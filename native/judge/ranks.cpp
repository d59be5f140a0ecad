#include "judge/ranks.hpp"

#include <algorithm>

namespace placewise {

std::vector<double> upward_ranks(const Problem& p, std::span<const double> op_seconds,
                                 std::span<const double> tensor_seconds) {
    std::vector<double> rank(p.n_ops());
    for (Index op = p.n_ops() - 1; op >= 0; --op) {
        double longest = 0.0;
        for (const Index tensor : p.outputs_of(op)) {
            for (const std::int32_t reader : p.consumers[tensor]) {
                longest = std::max(longest, tensor_seconds[tensor] + rank[reader]);
            }
        }
        rank[op] = op_seconds[op] + longest;
    }
    return rank;
}

std::vector<double> downward_ranks(const Problem& p, std::span<const double> op_seconds,
                                   std::span<const double> tensor_seconds) {
    std::vector<double> rank(p.n_ops());
    for (Index op = 0; op < p.n_ops(); ++op) {
        for (const Index tensor : p.outputs_of(op)) {
            for (const std::int32_t reader : p.consumers[tensor]) {
                rank[reader] = std::max(rank[reader], rank[op] + op_seconds[op] + tensor_seconds[tensor]);
            }
        }
    }
    return rank;
}

std::vector<std::int32_t> longest_path(const Problem& p, std::span<const double> weight) {
    if (p.n_ops() == 0) return {};
    std::vector<double> reach(weight.begin(), weight.end());
    std::vector<std::int32_t> before(p.n_ops(), -1);
    std::int32_t last = 0;
    for (std::int32_t op = 0; op < p.n_ops(); ++op) {
        if (reach[op] > reach[last]) last = op;
        for (const std::int32_t reader : p.readers_of(op)) {
            if (before[reader] < 0 || reach[op] + weight[reader] > reach[reader]) {
                reach[reader] = reach[op] + weight[reader];
                before[reader] = op;
            }
        }
    }
    std::vector<std::int32_t> path;
    for (std::int32_t op = last; op >= 0; op = before[op]) path.push_back(op);
    std::reverse(path.begin(), path.end());
    return path;
}

}  // namespace placewise

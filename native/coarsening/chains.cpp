#include "coarsening/chains.hpp"

#include <numeric>

namespace placewise {

std::vector<std::int32_t> join_sole_successors(const GroupGraph& graph, const GroupLimits& limits) {
    std::vector<std::int32_t> label(graph.size());
    std::iota(label.begin(), label.end(), 0);
    std::vector<double> seconds(graph.seconds.begin(), graph.seconds.end());
    std::vector<double> bytes(graph.bytes.begin(), graph.bytes.end());
    for (Index node = graph.size() - 1; node >= 0; --node) {
        if (graph.successors.length(node) != 1) continue;
        const std::int32_t root = label[graph.successors[node].front()];
        if (graph.key[root] != graph.key[node] || seconds[root] + seconds[node] > limits.seconds) continue;
        if (bytes[root] + bytes[node] > limits.bytes) continue;
        label[node] = root;
        seconds[root] += seconds[node];
        bytes[root] += bytes[node];
    }
    return label;
}

std::vector<std::int32_t> cut_intervals(const GroupGraph& graph, const GroupLimits& limits) {
    std::vector<std::int32_t> label(graph.size());
    double seconds = 0.0, bytes = 0.0;
    std::int32_t last = -1;
    for (Index node = 0; node < graph.size(); ++node) {
        seconds += graph.seconds[node];
        bytes += graph.bytes[node];
        const bool other = node == 0 || graph.key[node] != graph.key[node - 1];
        if (other || seconds > limits.seconds || bytes > limits.bytes) {
            seconds = graph.seconds[node];
            bytes = graph.bytes[node];
            ++last;
        }
        label[node] = last;
    }
    return label;
}

}  // namespace placewise

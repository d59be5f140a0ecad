#include "coarsening/heavy_edges.hpp"

#include <algorithm>
#include <numeric>

namespace placewise {

HeavyEdges::HeavyEdges(const GroupGraph& graph, std::span<const double> size, const GroupLimits& limits)
    : graph_(graph), limits_(limits), nodes_(graph.size()), clusters_(graph.size()) {
    for (Index i = 0; i < graph.size(); ++i) {
        nodes_[i].cluster = static_cast<std::int32_t>(i);
        clusters_[i] = {NONE, graph.seconds[i], graph.bytes[i], size[i]};
    }
    find_levels();
    reverse_edges();
}

void HeavyEdges::find_levels() {
    for (Index node = 0; node < graph_.size(); ++node) {
        for (const std::int32_t head : graph_.successors[node]) {
            nodes_[head].level = std::max(nodes_[head].level, nodes_[node].level + 1);
        }
    }
}

void HeavyEdges::reverse_edges() {
    back_offsets_.assign(graph_.size() + 1, 0);
    for (const std::int32_t head : graph_.successors.values) ++back_offsets_[head + 1];
    std::partial_sum(back_offsets_.begin(), back_offsets_.end(), back_offsets_.begin());
    back_.resize(graph_.successors.values.size());
    std::vector<std::int64_t> next(back_offsets_.begin(), back_offsets_.end() - 1);
    for (Index node = 0; node < graph_.size(); ++node) {
        for (const Index edge : graph_.edges(node)) {
            back_[next[graph_.successors.values[edge]]++] = {static_cast<std::int32_t>(node), graph_.flow[edge]};
        }
    }
}

// Whether a single node may join the cluster of a neighbour, on its lower level if `low`, without making a cycle.
bool HeavyEdges::may_join(const Node& node, std::int32_t neighbour, bool low) const {
    const Node& other = nodes_[neighbour];
    const std::int32_t tied = low ? node.below : node.above;
    if (other.level != (low ? node.level + 1 : node.level - 1)) return false;
    const std::int32_t lower_level = clusters_[other.cluster].lower_level;
    if (lower_level == NONE) return tied == NONE && (low ? other.above : other.below) == NONE;
    return lower_level == (low ? node.level : node.level - 1) && (tied == NONE || tied == other.cluster);
}

HeavyEdges::Choice HeavyEdges::choose(std::int32_t index) const {
    const Node& node = nodes_[index];
    const Cluster& alone = clusters_[node.cluster];
    Choice best;
    const auto consider = [&](std::int32_t neighbour, double flow, bool low) {
        if (!may_join(node, neighbour, low) || graph_.key[neighbour] != graph_.key[index]) return;
        const Cluster& cluster = clusters_[nodes_[neighbour].cluster];
        if (cluster.seconds + alone.seconds > limits_.seconds || cluster.bytes + alone.bytes > limits_.bytes) return;
        const double rating = flow / (cluster.size * alone.size);
        if (rating > best.rating) best = {neighbour, low, rating};
    };
    if (node.below != SEVERAL) {
        for (const Index edge : graph_.edges(index)) consider(graph_.successors.values[edge], graph_.flow[edge], true);
    }
    if (node.above != SEVERAL) {
        for (Index edge = back_offsets_[index]; edge < back_offsets_[index + 1]; ++edge) {
            consider(back_[edge].node, back_[edge].flow, false);
        }
    }
    return best;
}

// Note at the neighbours of a node, now on the lower level of a cluster if `low`, that they may join no other there.
void HeavyEdges::tie_neighbours(std::int32_t index, bool low, std::int32_t cluster) {
    const auto tie = [cluster](std::int32_t& tied) { tied = tied == NONE || tied == cluster ? cluster : SEVERAL; };
    const std::int32_t level = nodes_[index].level;
    if (low) {
        for (const std::int32_t head : graph_.successors[index]) {
            if (nodes_[head].level == level + 1) tie(nodes_[head].above);
        }
    } else {
        for (Index edge = back_offsets_[index]; edge < back_offsets_[index + 1]; ++edge) {
            Node& tail = nodes_[back_[edge].node];
            if (tail.level == level - 1) tie(tail.below);
        }
    }
}

void HeavyEdges::join(std::int32_t index, const Choice& choice) {
    Node& node = nodes_[index];
    const std::int32_t number = nodes_[choice.neighbour].cluster;
    Cluster& cluster = clusters_[number];
    const Cluster& alone = clusters_[node.cluster];
    if (cluster.lower_level == NONE) {
        cluster.lower_level = choice.low ? node.level : node.level - 1;
        tie_neighbours(choice.neighbour, !choice.low, number);
    }
    cluster.seconds += alone.seconds;
    cluster.bytes += alone.bytes;
    cluster.size += alone.size;
    node.cluster = number;
    tie_neighbours(index, choice.low, number);
}

std::vector<std::int32_t> HeavyEdges::run(Interrupt& interrupt) {
    std::vector<std::int32_t> order(graph_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t one, std::int32_t other) { return graph_.seconds[one] < graph_.seconds[other]; });
    for (const std::int32_t node : order) {
        if (clusters_[nodes_[node].cluster].lower_level != NONE) continue;
        if (interrupt.stop()) break;
        const Choice choice = choose(node);
        if (choice.neighbour != NONE) join(node, choice);
    }
    std::vector<std::int32_t> cluster(graph_.size());
    for (Index i = 0; i < graph_.size(); ++i) cluster[i] = nodes_[i].cluster;
    return cluster;
}

}  // namespace placewise

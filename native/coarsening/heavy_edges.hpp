// Clusters along heavy edges, light groups choosing first: an edge is worth its flow over the product of both ends'
// sizes, so that groups stay of a size.
//
// No cycle can come of it (Herrmann, Özkaya, Uçar, Kaya and Çatalyürek, SIAM J. Scientific Computing 41, 2019, theorem
// 4.2): a cluster spans two adjacent levels of the graph, a level being the longest path to it, and no edge goes from
// the lower level of one cluster to the upper level of another one that spans the same two.
#pragma once

#include <span>
#include <vector>

#include "coarsening/group_graph.hpp"
#include "common/interrupt.hpp"

namespace placewise {

class HeavyEdges {
public:
    // `size` [n]: what groups count for, positive.
    HeavyEdges(const GroupGraph& graph, std::span<const double> size, const GroupLimits& limits);

    // The cluster [n] of each group, by the number of one of its groups.
    std::vector<std::int32_t> run(Interrupt& interrupt);

private:
    static constexpr std::int32_t NONE = -1, SEVERAL = -2;

    struct Edge {
        std::int32_t node;
        double flow;
    };
    struct Node {
        std::int32_t cluster;
        std::int32_t level = 0;
        std::int32_t below = NONE;  // the cluster that has this node as a neighbour if it joins on its lower level,
        std::int32_t above = NONE;  // or on its upper one: it may join no other there
    };
    struct Cluster {
        std::int32_t lower_level = NONE;  // NONE for one of a single node
        double seconds;
        double bytes;
        double size;
    };
    // A neighbour whose cluster a node joins, on its lower level if `low`.
    struct Choice {
        std::int32_t neighbour = NONE;
        bool low = false;
        double rating = 0.0;
    };

    void find_levels();
    void reverse_edges();
    bool may_join(const Node& node, std::int32_t neighbour, bool low) const;
    Choice choose(std::int32_t node) const;
    void tie_neighbours(std::int32_t node, bool low, std::int32_t cluster);
    void join(std::int32_t node, const Choice& choice);

    const GroupGraph& graph_;
    GroupLimits limits_;
    std::vector<Node> nodes_;
    std::vector<Cluster> clusters_;           // by number: there are as many as nodes
    std::vector<std::int64_t> back_offsets_;  // [n + 1] into `back_`
    std::vector<Edge> back_;                  // edges to predecessors
};

}  // namespace placewise

#include "bounds/spreading_tree.hpp"

#include <algorithm>
#include <array>

#include "common/min_heap.hpp"

namespace placewise {

namespace {

constexpr double REACH = 1.0;  // nodes at this distance or more are as good as apart
constexpr double SURE = 1e-6;  // what a tree must cost less than its excess by
constexpr std::array WEIGHTS = {1.15, 1.4, 2.0, 3.0};

// The nodes nearest to a root in their order, with the edge and the node through which each was reached.
struct Ball {
    std::vector<std::int32_t> order, via, parent;
    std::vector<double> distance;
};

Ball grow_ball(const Adjacency& members, const Adjacency& incident, std::span<const double> length, std::size_t n,
               std::int32_t root) {
    Ball ball;
    ball.via.assign(n, -1);
    ball.parent.assign(n, -1);
    ball.distance.assign(n, REACH);
    std::vector<char> done(n, 0), used(length.size(), 0);
    MinHeap<> queue;
    ball.distance[root] = 0.0;
    queue.push({0.0, root});
    while (!queue.empty()) {
        const auto [at, item] = queue.pop();
        const auto node = static_cast<std::int32_t>(item);
        if (done[node]) continue;
        done[node] = 1;
        ball.order.push_back(node);
        for (const std::int32_t edge : incident[node]) {
            if (used[edge]) continue;
            used[edge] = 1;
            const double reached = at + length[edge];
            for (const std::int32_t next : members[edge]) {
                if (reached >= ball.distance[next]) continue;
                ball.distance[next] = reached;
                ball.via[next] = edge;
                ball.parent[next] = node;
                queue.push({reached, next});
            }
        }
    }
    return ball;
}

// The sizes of the sets that are tried: where the excess beyond distances is largest, at some weights, and all.
std::vector<std::size_t> choose_sizes(const Ball& ball, std::span<const double> weight) {
    std::vector<std::size_t> sizes;
    double total = 0.0, spread = 0.0, most = 0.0;
    std::size_t best = 0, next = 0;
    for (std::size_t k = 0; k < ball.order.size(); ++k) {
        const std::int32_t node = ball.order[k];
        total += weight[node];
        spread += weight[node] * ball.distance[node];
        if (total - 1.0 - spread > most) {
            most = total - 1.0 - spread;
            best = k + 1;
        }
        if (next < WEIGHTS.size() && total >= WEIGHTS[next]) {
            sizes.push_back(k + 1);
            while (next < WEIGHTS.size() && total >= WEIGHTS[next]) ++next;
        }
    }
    sizes.push_back(best);
    sizes.push_back(ball.order.size());
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    return sizes;
}

}  // namespace

SpreadingTree grow_spreading_tree(const Adjacency& members, const Adjacency& incident, std::span<const double> length,
                                  std::span<const double> weight, std::int32_t root) {
    const Ball ball = grow_ball(members, incident, length, weight.size(), root);
    std::vector<double> below(weight.size()), use(length.size(), 0.0);
    SpreadingTree tree;
    double least = 1.0 - SURE;
    for (const std::size_t size : choose_sizes(ball, weight)) {
        double excess = -1.0;
        for (std::size_t k = 0; k < size; ++k) {
            below[ball.order[k]] = weight[ball.order[k]];
            excess += weight[ball.order[k]];
        }
        if (excess < SURE) continue;
        std::vector<std::int32_t> edges;
        for (std::size_t k = size; k-- > 1;) {
            const std::int32_t node = ball.order[k], edge = ball.via[node];
            if (use[edge] == 0.0 && below[node] > 0.0) edges.push_back(edge);
            use[edge] += below[node];
            below[ball.parent[node]] += below[node];
        }
        double cost = 0.0;
        for (const std::int32_t edge : edges) {
            use[edge] = std::min(use[edge], excess);
            cost += use[edge] * length[edge];
        }
        if (cost < least * excess) {
            least = cost / excess;
            tree.excess = excess;
            tree.edges = edges;
            tree.use.clear();
            for (const std::int32_t edge : edges) tree.use.push_back(use[edge]);
        }
        for (const std::int32_t edge : edges) use[edge] = 0.0;
    }
    return tree;
}

}  // namespace placewise

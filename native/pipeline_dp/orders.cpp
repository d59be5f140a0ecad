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

namespace {

class BiconnectedSearch {
public:
    BiconnectedSearch(const HalfEdges& graph, Index n_edges)
        : graph_(graph), component_(n_edges, -1), taken_(n_edges), visits_(graph.others.size()) {
        for (Index vertex = 0; vertex < graph.others.size(); ++vertex) {
            visits_[vertex].following = graph.others.offsets[vertex];
        }
    }

    std::vector<std::int32_t> run() {
        for (std::int32_t root = 0; root < static_cast<std::int32_t>(visits_.size()); ++root) {
            if (visits_[root].reached < 0) search(root);
        }
        return std::move(component_);
    }

private:
    struct Visit {
        Index following = 0;  // the next row of the vertex
        std::int32_t reached = -1;
        std::int32_t lowest = 0;
        std::int32_t via = -1;  // the edge that led to the vertex
    };

    void enter(std::int32_t vertex, std::int32_t edge) {
        Visit& visit = visits_[vertex];
        visit.reached = visit.lowest = clock_++;
        visit.via = edge;
        path_.push_back(vertex);
    }

    void search(std::int32_t root) {
        enter(root, -1);
        while (!path_.empty()) {
            const std::int32_t vertex = path_.back();
            if (visits_[vertex].following < graph_.others.offsets[vertex + 1]) {
                follow(vertex, visits_[vertex].following++);
                continue;
            }
            path_.pop_back();
            if (!path_.empty()) leave(vertex, path_.back());
        }
    }

    void follow(std::int32_t vertex, Index row) {
        const std::int32_t edge = graph_.edges[row], other = graph_.others.values[row];
        if (taken_[edge]) return;
        taken_[edge] = 1;
        waiting_.push_back(edge);
        if (visits_[other].reached < 0) {
            enter(other, edge);
        } else {
            visits_[vertex].lowest = std::min(visits_[vertex].lowest, visits_[other].reached);
        }
    }

    // Back from a vertex to the one above: if nothing below leads past that, the edges since then are a component.
    void leave(std::int32_t vertex, std::int32_t above) {
        visits_[above].lowest = std::min(visits_[above].lowest, visits_[vertex].lowest);
        if (visits_[vertex].lowest < visits_[above].reached) return;
        while (component_[visits_[vertex].via] < 0) {
            component_[waiting_.back()] = found_;
            waiting_.pop_back();
        }
        ++found_;
    }

    const HalfEdges& graph_;
    std::vector<std::int32_t> component_;
    std::vector<std::uint8_t> taken_;
    std::vector<Visit> visits_;
    std::vector<std::int32_t> path_;
    std::vector<std::int32_t> waiting_;  // edges whose component is not known yet
    std::int32_t clock_ = 0;
    std::int32_t found_ = 0;
};

}  // namespace

std::vector<std::int32_t> biconnected_components(const HalfEdges& graph, Index n_edges) {
    return BiconnectedSearch(graph, n_edges).run();
}

}  // namespace placewise

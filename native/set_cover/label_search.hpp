// The sets of highest price that fit a device: labels through a decision diagram, pruned by what may still come.
//
// A label is a partial set at a node: what it has used of each resource, and its price so far. Of two labels at a node,
// one that used less and is worth more makes the other superfluous. With multipliers λ ≥ 0, a label can end at most
// with its price plus λ · (what is left) plus the best price minus λ · cost from its node on, which one sweep backwards
// gives for all nodes (Lagrangian bounds in resource-constrained paths: Handler and Zang, Networks 10, 1980).
//
// With one resource, labels start at both ends and are joined where they meet, since their number grows with every
// block that they decide (Righini and Salani, Discrete Optimization 3, 2006).
#pragma once

#include <span>
#include <vector>

#include "common/interrupt.hpp"
#include "common/views.hpp"

namespace placewise {

// Layer i decides block order[i]; a path from node 0 to the last node is a set, and what it costs is the sum along it.
struct DecisionDiagram {
    std::span<const std::int32_t> order;  // [n_layers]
    std::span<const std::int64_t> base;   // [n_layers + 1] layer i has the nodes base[i] … base[i + 1] − 1
    TableView<const std::int32_t> child;  // [n_nodes, 2] for a block that is out, and one that is in; −1: not allowed
    std::span<const std::int64_t> cost;   // [n_nodes, 2, n_resources]
    Index n_resources = 0;

    Index n_layers() const { return static_cast<Index>(order.size()); }
    Index n_nodes() const { return child.rows(); }
    const std::int64_t* costs(Index node, int side) const { return cost.data() + (2 * node + side) * n_resources; }
    // The nodes of a layer; after the last layer comes the end.
    IndexRange nodes(Index layer) const {
        return {base[layer], layer < n_layers() ? base[layer + 1] : base[layer] + 1};
    }
};

struct LabelOptions {
    double target;      // sets that are worth no more are not looked for
    Index width;        // labels that a node may keep
    bool beam = false;  // beyond it the less promising are dropped; else neighbours are merged, and values are bounds
    Index most_labels = 0;
};

class LabelSearch {
public:
    static constexpr Index MAX_RESOURCES = 4;

    // `price` [n_blocks], Σ |price| below 2^52; of the diagram's resources the first count, as many as `limits` has.
    LabelSearch(const DecisionDiagram& diagram, std::span<const std::int64_t> price,
                std::span<const std::int64_t> limits);

    // The most that any set is worth less λ · its cost, for multipliers λ [n_limits], which `run` prunes with.
    double bound(std::span<const double> multipliers);
    // What the set that attains the last bound costs [n_limits].
    std::vector<std::int64_t> bound_cost() const;
    // Extend labels until those from both ends meet; false if it was interrupted or made too many.
    bool run(const LabelOptions& options, Interrupt& interrupt);
    // The prices of the sets above the target that were found, and the blocks of one of them.
    const std::vector<std::int64_t>& values() const { return values_; }
    std::vector<std::int32_t> blocks_of(Index set) const;

private:
    struct Arc {
        std::int32_t from;
        std::int32_t side;
    };
    struct Pair {
        std::int64_t forward;
        std::int64_t backward;
    };
    template <int RESOURCES>
    struct Frontier;

    template <int RESOURCES>
    bool extend(const LabelOptions& options, Interrupt& interrupt);
    template <int RESOURCES>
    bool step(Frontier<RESOURCES>& frontier, const LabelOptions& options, Interrupt& interrupt) const;
    template <int RESOURCES>
    bool join(const Frontier<RESOURCES>& forward, const Frontier<RESOURCES>& backward, double target,
              Interrupt& interrupt);
    void sweep_forwards();
    double worth(Index node, int side) const;

    DecisionDiagram diagram_;
    std::span<const std::int64_t> price_;
    std::vector<std::int64_t> limits_;
    std::vector<std::int64_t> arcs_before_;  // [n_nodes + 1] offsets into arcs_
    std::vector<Arc> arcs_;                  // of every node, those that lead to it
    std::vector<double> multipliers_;
    std::vector<double> ahead_;   // [n_nodes] the most that any way to the end is worth, less λ · its cost
    std::vector<double> behind_;  // [n_nodes] the same from the root
    std::vector<std::int32_t> forward_, backward_;  // of every label: 2 · the label that it extends + the side taken
    Index meeting_ = 0;                             // the layer where labels are joined
    std::vector<Pair> pairs_;                       // the labels of each set
    std::vector<std::int64_t> values_;
};

}  // namespace placewise

// Ideals (sets of components closed under predecessors) of an acyclic graph, as a graph of their own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/interrupt.hpp"
#include "common/views.hpp"
#include "pipeline_dp/stage_costs.hpp"

namespace placewise {

// Every ideal once, by size: the empty one is first, the full one last.
class Ideals {
public:
    // Adding a component to an ideal gives another.
    struct Step {
        std::int32_t component;
        std::int32_t target;
    };

    // Breadth first from the empty set; successors are larger than their node. It is incomplete if there are more than
    // `most`, if the steps between them take too much memory, or if it was interrupted.
    static Ideals enumerate(const Adjacency& successors, Index most, Interrupt& interrupt);
    // The ideals of a path of n components.
    static Ideals prefixes(Index n);

    Index size() const { return static_cast<Index>(offsets_.size()) - 1; }
    Index n_components() const { return n_; }
    bool complete() const { return complete_; }
    bool holds(Index ideal, Index component) const {
        return words_[ideal * width_ + (component >> 6)] >> (component & 63) & 1;
    }
    std::span<const Step> steps(Index ideal) const {
        return {steps_.data() + offsets_[ideal], steps_.data() + offsets_[ideal + 1]};
    }

private:
    friend class IdealEnumeration;
    explicit Ideals(Index n) : n_(n), width_(std::max<Index>(1, (n + 63) / 64)) {}

    Index n_;
    Index width_;  // words of 64 components per ideal
    bool complete_ = true;
    std::vector<std::uint64_t> words_;  // [n_ideals · width]
    std::vector<Index> offsets_;        // [n_ideals + 1] where the steps of each begin
    std::vector<Step> steps_;
};

// The work [n_ideals] of the components outside each ideal; `work` [n].
std::vector<std::int64_t> work_left(const Ideals& ideals, std::span<const std::int64_t> work);

// What the devices that run the rest pay at least for the tensors between each ideal and the rest [n_ideals]; `enter`
// and `leave` [n_tensors] are what a tensor costs at least where it is needed and where it is made.
std::vector<std::int64_t> cut_left(const StageCosts& costs, const Ideals& ideals, std::span<const std::int64_t> enter,
                                   std::span<const std::int64_t> leave, Interrupt& interrupt);

}  // namespace placewise

// Prior probabilities of where each group of ops is assigned, and the draws that searches make from them.
#pragma once

#include "common/random.hpp"
#include "common/views.hpp"

namespace placewise {

// A view of probabilities [n_groups, n_devices], rows of which add up to 1. Without rows there are no priors.
class AssignmentPriors {
public:
    // Where there are priors, one move in so many begins with a draw from them.
    static constexpr Index MOVES_PER_DRAW = 4;
    // The most groups that are looked at for one whose device is unlikely.
    static constexpr int ATTEMPTS = 8;

    AssignmentPriors() = default;
    explicit AssignmentPriors(TableView<const double> probability) : probability_(probability) {}

    bool empty() const { return probability_.rows() == 0; }
    double operator()(Index group, Index device) const { return probability_(group, device); }
    TableView<const double> table() const { return probability_; }

    // A random group, those sooner whose devices in `assignment` [n_groups] are unlikely.
    Index sample_unlikely(std::span<const std::int32_t> assignment, SplitMix64& rng) const {
        const auto n = static_cast<Index>(assignment.size());
        Index group = rng.below(n);
        for (int attempt = 0; attempt < ATTEMPTS; ++attempt) {
            if (rng.uniform() >= probability_(group, assignment[group])) break;
            group = rng.below(n);
        }
        return group;
    }

    // The device at which the probabilities of a group, added device by device, exceed `quantile`.
    Index sample_device(Index group, double quantile) const { return find_quantile(group, quantile, -1, 0); }

    // The same among all devices but the group's own; its own if no other one is possible.
    Index sample_other_device(Index group, Index own, double quantile) const {
        return find_quantile(group, quantile * (1.0 - probability_(group, own)), own, own);
    }

    // Whether a group goes from its own device to another one, as often as their two probabilities say; `uniform` is
    // a draw from 0 to below 1.
    bool accept_prior(Index group, Index own, Index device, double uniform) const {
        const double here = probability_(group, own), there = probability_(group, device);
        return uniform * (here + there) < there;
    }

private:
    Index find_quantile(Index group, double quantile, Index excluded, Index found) const {
        const auto row = probability_.row(group);
        double total = 0.0;
        for (Index device = 0; device < probability_.columns(); ++device) {
            if (row[device] <= 0.0 || device == excluded) continue;
            total += row[device];
            found = device;
            if (total > quantile) break;
        }
        return found;
    }

    TableView<const double> probability_;
};

}  // namespace placewise

// Which way each unit of a stage runs: the least seconds whose bytes fit, a knapsack with one choice per unit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/views.hpp"

namespace placewise {

// One way to run a unit: its seconds and its bytes.
struct Option {
    double seconds;
    double bytes;
    std::int32_t way;

    bool operator==(const Option& other) const { return seconds == other.seconds && bytes == other.bytes; }
};

class WayChoice {
public:
    // Forget all units; `capacity` bytes may be used.
    void start(double capacity);
    // A unit and its options, of which there is at least one. Units of the same kind have equal options; −1: no other
    // unit is of its kind.
    void add_unit(std::int32_t kind, std::span<const Option> options);

    // The least sum of seconds whose bytes fit, infinite if none do. It is a lower bound where `relaxed()`.
    double least_seconds();
    // The way [n_units added] of each unit, in the order in which they were added, for a sum that fits.
    std::vector<std::int32_t> choose();
    // Whether fronts grew so large that they were thinned since the last call of `start`.
    bool relaxed() const { return relaxed_; }

private:
    struct Kind {  // units with equal options, which ascend in seconds and descend in bytes
        std::vector<Option> options;
        std::vector<Index> members;
    };
    struct Step {  // what is decided at once
        std::vector<Index> members;
        std::vector<Option> choices;
    };
    struct Point {
        double seconds;
        double bytes;
        std::int32_t before;  // the point of the front before this step
        std::int32_t choice;
    };

    void group_kinds();
    void list_steps();
    double solve(bool optimistic);
    std::vector<Point> without_beaten(std::vector<Point>& points, bool optimistic);
    std::span<const std::vector<Option>> units() const { return {units_.data(), n_units_}; }

    double capacity_ = 0.0;
    std::vector<std::vector<Option>> units_;  // the first `n_units_` of them; the others are kept for later
    std::size_t n_units_ = 0;
    std::vector<std::int32_t> kind_of_;
    std::vector<Kind> kinds_;
    std::vector<Step> steps_;
    std::vector<std::vector<Point>> fronts_;  // before the first step, and after each
    std::int32_t best_ = 0;                   // the point of the last front that is chosen
    bool relaxed_ = false;
};

}  // namespace placewise

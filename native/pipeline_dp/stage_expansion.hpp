// The dynamic program over ideals of Tarnawski et al. (NeurIPS 2020, section 5): it grows stages from every ideal.
//
// value(I, s) is the least max-load of any way to run the ideal I on the devices that state s counts; a stage from I
// to J on one more device, or on several that share it, leads to max(value(I, s), load(J − I)). Only what can still
// beat the best known value is grown: stages whose compute and unavoidable communication stay below it, from states
// whose devices that are left can do the work that is left. Where costs have a second half, the forward phase, it is
// the backward loads that are minimized, among stages whose forward load keeps a limit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/interrupt.hpp"
#include "pipeline_dp/growing_stage.hpp"
#include "pipeline_dp/ideals.hpp"
#include "pipeline_dp/stage_costs.hpp"

namespace placewise {

// How many devices of each class are in use, or where stages follow the order of the devices, how many of them in this
// order are used or left out.
struct DeviceStates {
    DeviceStates(std::span<const std::int32_t> n_devices, bool ordered);

    Table<std::int32_t> used;   // [n_states, n_classes]
    std::vector<Index> stride;  // [n_classes] one more device of a class is so many states on
};

// What the devices that a state leaves can do of what an ideal leaves, in a common measure: at most `room` times the
// max-load.
struct Remainder {
    std::vector<std::int64_t> left;  // [n_ideals]
    std::vector<double> room;        // [n_states]
};

// One stage of a chain: the ideals before and behind it, and its devices, which are members of one class.
struct ChainStage {
    Index before;
    Index behind;
    Index device_class;
    Index first_member;
    Index n_members;
};

class StageExpansion {
public:
    StageExpansion(const StageCosts& costs, const Ideals& ideals, Remainder work);

    // States that cannot be the last [n_states], and classes of which one device less in use is never worse.
    void restrict_states(std::vector<std::uint8_t> unfinished, std::vector<std::uint8_t> spare);
    // Where costs have two phases: the same of forward loads within their limit, and of all loads within theirs.
    void bound_phases(Remainder forward, Remainder both);

    // Look for a chain with a max-load below `beat`. Where costs have two phases, its forward loads are `forward_limit`
    // at most, and the sum of both loads is below `both_limit`.
    void start(std::int64_t beat, std::int64_t forward_limit = NEVER, std::int64_t both_limit = NEVER);
    // Go on until the interrupt, by one step at least; whether all is done.
    bool expand(Interrupt& interrupt);

    Index n_ideals() const { return cells_.rows(); }
    Index n_states() const { return cells_.columns(); }
    Index n_classes() const { return costs_.n_classes(); }
    bool has_bounds() const { return !two_phases_ || (!forward_.left.empty() && !both_.left.empty()); }
    Index n_done() const { return base_; }
    bool found() const { return best_state_ >= 0; }
    // The max-load of the best chain; the value to beat if there is none yet.
    std::int64_t best() const { return best_; }
    // The least greater forward limit that could find more.
    std::int64_t next_forward_limit() const { return next_forward_limit_; }
    // The stages of the best chain, the last one first.
    std::vector<ChainStage> chain() const;

private:
    struct Cell {
        std::int64_t value = NEVER;  // NEVER where there is no way
        std::int32_t parent = -1;    // the ideal before the last stage
        std::int32_t parent_state = -1;
    };
    struct LiveState {
        Index state;
        std::int64_t value;
    };
    struct Visit {
        const Ideals::Step* next;  // the next way to grow the ideal
        const Ideals::Step* end;
        std::int32_t component;  // the one that led to it
    };

    bool begin_base();
    void push(Index ideal, std::int32_t component);
    void advance();
    bool is_possible(const GrowingStage::Footprint& bytes) const;
    bool price(Index target);
    bool price_on(Index device_class, Index target, bool growing);
    bool keeps_phases(Index device_class, Index members, std::int64_t load, std::int64_t least, bool& growing);
    void reach(Index target, Index device_class, Index members, std::int64_t load);
    bool fits_phases(Index target, Index state);
    Index most_in_room(Index target, Index device_class) const;
    bool does_the_rest(Index ideal, Index state) const;

    const StageCosts& costs_;
    const Ideals& ideals_;
    Index full_;  // the number of the full ideal
    bool two_phases_;
    DeviceStates states_;
    Remainder work_;
    Remainder forward_;
    Remainder both_;
    std::vector<std::uint8_t> unfinished_;
    std::vector<std::uint8_t> spare_;

    Table<Cell> cells_;  // [n_ideals, n_states]
    std::int64_t best_ = NEVER;
    Index best_state_ = -1;
    std::int64_t forward_limit_ = NEVER;
    std::int64_t next_forward_limit_ = NEVER;
    std::int64_t both_limit_ = NEVER;

    Index base_ = 0;  // the ideal from which stages grow
    GrowingStage stage_;
    std::vector<Visit> path_;
    std::vector<std::int32_t> reached_from_;  // [n_ideals] the last base from which each was reached
    std::vector<LiveState> live_;             // states of the base that are worth growing from
    std::vector<Index> usable_;               // [n_classes] the most devices of a class that any of them leaves
    std::uint32_t step_work_ = 1;             // about how long a step from the base takes, for the interrupt
    double most_room_ = 0.0;
};

}  // namespace placewise

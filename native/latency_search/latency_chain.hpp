// One Metropolis chain of moves (Metropolis et al. 1953): a candidate is priced from the first moment that it touches,
// and kept or taken back.
#pragma once

#include "common/interrupt.hpp"
#include "latency_search/block_assignment.hpp"
#include "latency_search/checkpointed_schedule.hpp"
#include "latency_search/live_memory.hpp"
#include "latency_search/move_operators.hpp"

namespace placewise {

class LatencyChain {
public:
    LatencyChain(const LatencySearchProblem& search, std::span<const std::int32_t> device, std::uint64_t seed);
    LatencyChain(const LatencyChain&) = delete;
    LatencyChain& operator=(const LatencyChain&) = delete;

    // Go on from another assignment [n_blocks].
    void begin(std::span<const std::int32_t> device);

    // Make so many moves, or until so many ops are simulated. True if a candidate awaits a verdict on its shape: then
    // `resolve` takes it or drops it and goes on, and says the same.
    bool run(Index moves, Index ops, Interrupt& interrupt);
    bool resolve(bool valid, Interrupt& interrupt);

    double temperature = 0.0;
    double value() const { return value_; }
    double candidate_value() const { return candidate_value_; }
    double best_value() const { return best_value_; }
    bool awaits_verdict() const { return awaits_verdict_; }
    Index n_tried() const { return n_tried_; }
    Index n_simulated() const { return schedule_.n_simulated(); }
    Index n_checkpoints() const { return recorded_ ? schedule_.n_checkpoints() : 0; }
    Index checkpoint() const { return checkpoint_; }
    const BlockAssignment& assignment() const { return assignment_; }
    std::span<const std::int32_t> best() const { return best_; }
    const CheckpointedSchedule& schedule() const { return schedule_; }

    // The parts of a move, for those who look at one assignment: its makespan from a checkpoint on, inf if above
    // `limit`; whether its live activations fit `capacity` under the schedule that was recorded or priced last.
    double price(Index checkpoint, double limit, Interrupt& interrupt);
    bool fits(std::span<const double> capacity, bool priced);

private:
    bool go_on(Interrupt& interrupt);
    bool try_move(Interrupt& interrupt);
    void accept(Interrupt& interrupt);
    void refuse();
    void record(Index checkpoint, Interrupt& interrupt);

    const LatencySearchProblem& search_;
    SplitMix64 rng_;
    BlockAssignment assignment_;
    CheckpointedSchedule schedule_;
    LiveMemory memory_;
    MoveOperators operators_;
    std::vector<std::int32_t> best_;
    double value_;
    double candidate_value_;
    double best_value_;
    Index checkpoint_ = -1;  // from which the last candidate was priced
    bool recorded_ = false;  // whether the schedule is that of the assignment
    bool awaits_verdict_ = false;
    Index n_tried_ = 0;
    Index most_tried_ = 0;
    Index most_simulated_ = 0;
};

}  // namespace placewise

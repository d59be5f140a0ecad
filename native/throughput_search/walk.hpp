// Annealing of groups over devices: the least max-load, by random moves (Kirkpatrick, Gelatt and Vecchi 1983).
//
// The energy is a power mean of the loads of devices and wires, close to their maximum but with a slope for those
// below it. Memory that is missing weighs more than any load: it never grows, and once nothing is missing no move may
// change that. The incumbent is not copied when it is met: a journal of the moves since then leads back to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "common/interrupt.hpp"
#include "throughput_search/move_proposer.hpp"
#include "throughput_search/pipeline_state.hpp"

namespace placewise {

// Missing bytes and the max-load, in the costs' units: smaller is better, in this order.
struct PipelineQuality {
    std::int64_t missing_bytes;
    std::int64_t max_load;
    auto operator<=>(const PipelineQuality&) const = default;
};

class ThroughputWalk {
public:
    ThroughputWalk(const ThroughputCosts& costs, const Clusters& clusters, std::span<const std::int32_t> assignment,
                   std::span<const std::int32_t> positions, TableView<const std::int32_t> tradable, std::uint64_t seed);

    // So many moves, or until interrupted, while temperatures, as shares of the max-load, fall from `hot` to `cold`.
    void run(Index steps, double hot, double cold, Interrupt& interrupt);
    // The same for so many seconds, with temperatures that follow the clock.
    void run_for(double seconds, double hot, double cold, Interrupt& interrupt);

    std::vector<std::int32_t> incumbent() const;
    PipelineQuality quality() const { return incumbent_quality_; }
    Index n_evaluated() const { return n_evaluated_; }
    // The max-load of the incumbent where no memory is missing, else NEVER; other threads may read it meanwhile.
    std::int64_t feasible_max_load() const { return feasible_max_load_.load(std::memory_order_relaxed); }

private:
    struct Energy {
        double power;  // the 32nd power of a share of the unit
        std::int64_t max_load;
    };

    void anneal(Index steps, double hot, double cold, Interrupt& interrupt);
    Energy measure(const PipelineSums& sums) const;
    bool accepts(const Energy& candidate, double temperature);
    void evaluate(std::span<const Move> moves, double temperature);
    void accept(std::span<const Move> moves, const Energy& candidate, std::int64_t missing);
    void record_incumbent(PipelineQuality quality);
    void journal(std::span<const Move> moves);
    void rescale(std::int64_t max_load);

    const ThroughputCosts& costs_;
    PipelineState state_;
    GroupMoveProposer proposer_;
    double unit_ = 1.0;  // what loads are measured in
    Energy energy_{0.0, 0};
    std::int64_t missing_bytes_ = 0;
    PipelineQuality incumbent_quality_;
    std::vector<std::int32_t> saved_incumbent_;  // valid where the journal was full
    std::vector<Move> journal_;                  // accepted since the incumbent
    std::size_t journal_capacity_;
    bool journaling_ = true;
    Index n_evaluated_ = 0;
    std::atomic<std::int64_t> feasible_max_load_{ThroughputCosts::NEVER};
};

}  // namespace placewise

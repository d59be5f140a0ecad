// Live activations in `operator` execution: whether an assignment fits under the schedule that it was simulated with.
//
// The same account as placewise/simulate/judge/memory.py, for one schedule, without making a timeline.
#pragma once

#include <vector>

#include "latency_search/block_assignment.hpp"
#include "latency_search/checkpointed_schedule.hpp"

namespace placewise {

class LiveMemory {
public:
    LiveMemory(const LatencySearchProblem& search, const BlockAssignment& assignment);

    // Whether resident bytes and the peak of live activations together stay within `capacity` [n_devices]; never
    // where some op does not start.
    bool fits(const StartTimes& times, std::span<const double> capacity);

private:
    void order_ops(const StartTimes& times);
    Index last_started(const StartTimes& times, Index device, double moment) const;
    void add_tensor(Index tensor, const StartTimes& times);
    void hold(Index first, Index last, double nbytes);

    const LatencySearchProblem& search_;
    const BlockAssignment& assignment_;
    std::vector<Index> first_;            // [n_devices + 1] where the ops of each device begin in `order_`
    std::vector<std::int32_t> order_;     // [n_ops] device by device, by start, then number
    std::vector<std::int32_t> position_;  // [n_ops] where each op is in `order_`
    std::vector<double> change_;          // [n_ops + 1] bytes more from one op to the next
    std::vector<std::uint8_t> replaced_;  // [n_ops] whether the first result took the place of an operand
    std::vector<Index> last_use_;         // [n_devices] of the tensor at hand, −1 between tensors
};

}  // namespace placewise

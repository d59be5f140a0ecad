// What list schedulers share: the ops that are placed so far, when they finish, what was sent, and what memory is left.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "judge/problem.hpp"
#include "list_scheduling/group_memory.hpp"
#include "list_scheduling/idle_intervals.hpp"

namespace placewise {

inline constexpr double INFINITE_SECONDS = std::numeric_limits<double>::infinity();

// A problem to schedule. Ops with a smaller rank come first.
struct ListProblem {
    const Problem& problem;
    const GroupNeeds& groups;
    std::span<const std::int32_t> group;    // [n_ops]
    Adjacency inputs;                       // the tensors that each op reads, in the order of its arguments
    std::span<const std::int32_t> rank;     // [n_ops] a permutation
    std::span<const std::int32_t> by_rank;  // its inverse
};

// One op on one device: when and on which of its streams it would run.
struct Trial {
    Index device = -1;
    Index stream = 0;
    double start = 0.0;
    double finish = INFINITE_SECONDS;
};

// A schedule under construction. Transfers take the first gap on their link's queue: they are booked in the order of
// their readers, while the judge sends a tensor when its maker finishes.
class ListSchedule {
public:
    // [n_ops] −1 for ops that found no device.
    std::vector<std::int32_t>& device() { return device_; }

protected:
    explicit ListSchedule(const ListProblem& list);

    // Call `ready` for every op that reads nothing that other ops make.
    template <class Ready>
    void start(Ready&& ready) {
        for (Index op = 0; op < problem().n_ops(); ++op) {
            if (missing_[op] == 0) ready(op);
        }
    }

    // When everything that `op` reads can be on devices first … last − 1, into `ready` [n_devices]; books nothing.
    void estimate_arrivals(Index op, Index first, Index last, std::span<double> ready);
    // The same for one device, and its transfers are booked.
    double send_inputs(Index op, Index device);

    // Let `op` end on its device; call `ready` for every reader that misses nothing any more.
    template <class Ready>
    void complete(Index op, Index device, double end, Ready&& ready) {
        device_[op] = static_cast<std::int32_t>(device);
        finish_[op] = end;
        for (const std::int32_t reader : problem().readers_of(op)) {
            if (--missing_[reader] == 0) ready(reader);
        }
    }

    bool is_ready(Index op) const { return missing_[op] == 0; }
    bool may_run(Index op, Index device) const { return device_[op] < 0 && memory_.may_be(list_.group[op], device); }
    std::int32_t home(Index op) const { return memory_.home(list_.group[op]); }
    // Let the group of `op` follow its first op.
    void settle_group(Index op, Index device) {
        if (home(op) < 0) memory_.place(list_.group[op], device);
    }

    const Problem& problem() const { return list_.problem; }
    double seconds(Index op, Index device) const { return list_.problem.op_seconds(op, device); }

    const ListProblem list_;
    GroupMemory memory_;

private:
    struct Source {
        std::int32_t place;
        double ready;
    };
    Source source_of(Index tensor) const;
    double hop_end(Index tensor, std::int32_t source, std::int32_t target, double ready) const;
    double send(Index tensor, std::int32_t source, std::int32_t target, double ready);

    std::vector<std::int32_t> device_;
    std::vector<double> finish_;         // [n_ops]
    std::vector<std::int32_t> missing_;  // [n_ops] inputs that are not made yet
    Table<double> arrival_;              // [n_tensors, n_devices + 1] at each location, −1: not sent there
    std::vector<IdleIntervals> links_;   // [n_queues]
};

}  // namespace placewise

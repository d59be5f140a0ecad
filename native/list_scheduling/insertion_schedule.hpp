// HEFT and CPOP (Topcuoglu, Hariri and Wu, IEEE TPDS 13 (2002)): ops by rank, each where it finishes first, in the
// first gap that is long enough. Devices of several streams have gaps on each.
#pragma once

#include "common/index_set.hpp"
#include "common/interrupt.hpp"
#include "list_scheduling/list_schedule.hpp"

namespace placewise {

class InsertionSchedule : public ListSchedule {
public:
    // `wanted` [n_ops] is the device that an op goes to if its group may, −1: where it finishes first.
    InsertionSchedule(const ListProblem& list, std::span<const std::int32_t> wanted);

    // Place ops until all are, memory runs out, or it is stopped; how many ops have a device.
    Index run(Interrupt& interrupt);

private:
    Trial try_device(Index op, Index device, double ready) const;
    Index earliest_finish(Index op);

    std::span<const std::int32_t> wanted_;
    std::vector<Index> first_stream_;     // [n_devices + 1]
    std::vector<IdleIntervals> streams_;  // those of device d are first_stream_[d] … first_stream_[d + 1] − 1
    IndexSet ready_;                      // the ranks of ready ops
    std::vector<double> arrival_at_;      // [n_devices] of the inputs of the op at hand
};

}  // namespace placewise

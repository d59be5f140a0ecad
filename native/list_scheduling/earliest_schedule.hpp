// ETF and SCT: always the ready op and device that come first, as time goes on.
//
// Hwang, Chow, Anger and Lee, SIAM J. Computing 18 (1989); with memory as m-ETF, and with favourite children as m-SCT,
// in Jeon et al., "Baechi", SoCC 2020.
#pragma once

#include "common/interrupt.hpp"
#include "common/min_heap.hpp"
#include "list_scheduling/list_schedule.hpp"

namespace placewise {

// Of ops that could start at once on a device the one with the least weight · seconds is first, of those whose inputs
// arrive later the one with the least arrival + weight · seconds; ties go to the smaller rank. A device of one stream
// whose last op has a favourite child that may still come is reserved for it: others count there from when they are
// urgent, that is, when they could start on any device. At equal times the favourite goes first.
class EarliestSchedule : public ListSchedule {
public:
    // `weight` 1 takes the pair that finishes first, 0 the one that starts first. `favourite_child` [n_ops] is −1 for
    // none; if it is empty, no device is ever reserved.
    EarliestSchedule(const ListProblem& list, std::span<const std::int32_t> favourite_child, double weight);

    // Place ops until all are, memory runs out, or it is stopped; how many ops have a device.
    Index run(Interrupt& interrupt);

private:
    // The ranks of ready ops; some may have gone elsewhere since.
    struct ReadyQueue {
        MinHeap<Timed> waiting;    // those that cannot start yet, by arrival + weight · seconds
        MinHeap<Timed> startable;  // those that can start as soon as the device is idle, by weight · seconds
    };
    struct DeviceState {
        ReadyQueue by_arrival;
        ReadyQueue by_urgency;        // of a reserved device
        std::vector<double> streams;  // when each is idle
        double idle_at = 0.0;         // when the first of them is
        std::int32_t favourite = -1;  // the op that the device is reserved for, −1: none
    };
    struct Candidate {
        double time = INFINITE_SECONDS;
        Index rank;
        Index device = -1;
        Index op = -1;
        bool before(const Candidate& other) const {
            return time < other.time || (time == other.time && rank < other.rank);
        }
    };

    void enqueue(Index op);
    void refresh(ReadyQueue& queue, Index device, bool reserved);
    Candidate earliest();
    double run_on(Index device, Index op);

    std::span<const std::int32_t> favourite_child_;
    double weight_;
    std::vector<DeviceState> devices_;
    Table<double> ready_at_;         // [n_ops, n_devices] when all inputs can be there
    std::vector<double> urgent_at_;  // [n_ops] when they can be anywhere; empty without favourites
    std::vector<Index> fresh_;       // ops that became ready
};

}  // namespace placewise

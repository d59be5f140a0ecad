// `operator` latency: every device runs one op at a time (or its streams), transfers overlap compute.
//
// A tensor leaves when its producer finishes, one queue per ordered pair of locations (links that share a wire share
// a queue), first in first out, by (finish, producer, tensor, destination); staged tensors pass host memory and queue
// there a second time. Model inputs are in host memory at time 0, model outputs must reach it. A device that has a
// free stream starts, of the ops whose inputs are all there, the one with the smallest priority; it never idles while
// one is ready. At equal times arrivals come before starts.
#pragma once

#include <span>
#include <vector>

#include "common/index_set.hpp"
#include "common/min_heap.hpp"
#include "judge/hops.hpp"
#include "judge/problem.hpp"

namespace placewise {

// Prices placements one after the other, in the same memory.
class OperatorSchedule {
public:
    // `priority` [n_ops] is the rank of each op, a permutation; `by_priority` is its inverse.
    OperatorSchedule(const Problem& problem, std::span<const std::int32_t> priority,
                     std::span<const std::int32_t> by_priority);

    // The makespan of a placement [n_ops], inf if an op cannot run where it is; `start` [n_ops] gets the starts.
    double run(std::span<const std::int32_t> device, std::span<double> start, HopLog* log = nullptr);

private:
    struct OpState {
        double ready_at;
        double seconds;
        std::int32_t priority;
        std::int32_t missing;
        std::int32_t device;
        std::int32_t place;
    };
    struct Queue {
        IndexSet ready;  // priorities of ops that can start
        Index n_ready = 0;
        MinHeap<Timed> waiting;  // ops whose last input is on its way
        Index free_streams = 0;

        // When the next op may start, inf if that waits for an event.
        double next_start(double now) const;
    };
    // An op finished (`tensor` < 0), or its staged tensor is in host memory. Ties go by op, its end first, then by
    // tensor.
    struct Event {
        double time;
        std::int32_t op;
        std::int32_t tensor;
        bool operator<(const Event& other) const {
            if (time != other.time) return time < other.time;
            return op < other.op || (op == other.op && tensor < other.tensor);
        }
    };

    void reset(std::span<const std::int32_t> device, std::span<double> start);
    double send(Index tensor, std::int32_t source, std::int32_t target, double now, HopLog* log);
    std::span<const std::int32_t> find_targets(Index tensor, std::int32_t source);
    void wake_readers(Index tensor, double now);
    void enqueue(const OpState& op, double now);
    double release(Index tensor, std::int32_t source, bool finished, double now, HopLog* log);
    void start_ops(std::int32_t device, double now, std::span<double> start);

    const Problem& problem_;
    std::span<const std::int32_t> priority_;
    std::span<const std::int32_t> by_priority_;
    std::vector<OpState> ops_;
    std::vector<Queue> queues_;       // one per device
    std::vector<double> next_start_;  // [n_devices] of its queue
    MinHeap<Event> events_;
    std::vector<double> link_free_;  // [n_queues] when the last transfer of each queue arrives
    std::vector<char> needed_;       // [n_devices + 1]
    std::vector<std::int32_t> targets_;
    std::vector<double> arrived_;  // [n_devices + 1] when the tensor at hand reached each location, −1 if not yet
};

}  // namespace placewise

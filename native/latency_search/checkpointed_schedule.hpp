// The schedule of `operator` execution of one assignment, simulated from any checkpoint on.
//
// The rules are those of the judge (judge/operator_schedule.hpp), and so is every sum, so that values are equal to the
// last bit. Priorities do not depend on the assignment; so nothing differs before the first op ends whose tensors a
// moved op reads, and a candidate is priced from the last checkpoint before that.
#pragma once

#include <vector>

#include "common/index_set.hpp"
#include "common/interrupt.hpp"
#include "common/min_heap.hpp"
#include "latency_search/block_assignment.hpp"

namespace placewise {

// When ops start, and in which order.
struct StartTimes {
    std::vector<double> start;           // [n_ops]
    std::vector<std::int32_t> sequence;  // the ops in the order of their starts
    Index n_started = 0;                 // the sequence is complete where this is n_ops
};

class CheckpointedSchedule {
public:
    CheckpointedSchedule(const LatencySearchProblem& search, const BlockAssignment& assignment);

    // The makespan of the assignment; writes down the schedule, and takes the checkpoints behind `checkpoint` again.
    // −1 begins at time 0. What was written is of no use if the interrupt says stop.
    double record(Index checkpoint, Interrupt& interrupt);

    // The makespan of the assignment, inf as soon as it is surely above `limit`: an op starts so late that what must
    // follow it, or the rest of its device's work, does not end in time.
    double price(Index checkpoint, double limit, Interrupt& interrupt);

    // The last checkpoint of the recorded schedule before anything that the moves of the assignment touch.
    Index checkpoint_before_moves() const;
    Index n_checkpoints() const { return n_checkpoints_; }

    const StartTimes& recorded() const { return recorded_; }
    const StartTimes& priced() const { return priced_; }
    // Where an op stands in the recorded sequence.
    Index position(Index op) const { return position_[op]; }
    // Ops of the recorded schedule, each of which the next one waited for, from the last to the first.
    std::span<const std::int32_t> critical_path() const { return critical_path_; }
    // How many ops were simulated in all.
    Index n_simulated() const { return n_simulated_; }

private:
    struct OpProgress {
        double ready_at;          // the latest arrival so far
        std::int32_t missing;     // inputs that have not arrived
        std::int32_t last_input;  // the tensor that arrived latest, −1 for none
    };
    struct DeviceQueue {
        Index n_ready = 0;
        Index free_streams = 0;
        double started_seconds = 0.0;  // of all ops that have started
        MinHeap<Timed> waiting;        // priorities of ops whose last input is, or was, on its way
        std::int32_t last_ended = -1;  // the op that ended last
        IndexSet ready;                // priorities of ops that can start
    };
    // An op ends, or (key > end_event) one of its tensors is in host memory; ties go to the smaller key.
    struct Event {
        double time;
        std::int32_t key;
        std::int32_t op;
        bool operator<(const Event& other) const {
            return time < other.time || (time == other.time && key < other.key);
        }
    };
    // A moment of a simulation; checkpoints are copies of it.
    struct State {
        double now = 0.0;
        double makespan = 0.0;
        std::int32_t last_op = -1;  // what the makespan waits for
        Index n_ended = 0;
        Index n_started = 0;
        std::vector<OpProgress> ops;
        std::vector<DeviceQueue> queues;      // one per device
        std::vector<double> next_start;       // [n_devices] when each may start an op, inf while it has no stream
        std::vector<double> link_free;        // [n_queues] when the last transfer of each queue arrives
        std::vector<std::int32_t> last_sent;  // [n_queues] the last tensor of each queue, −1 for none
        MinHeap<Event> events;
    };
    // What an op waited for before it started: a tensor, the end of another op, or nothing.
    struct Cause {
        std::int32_t tensor = -1;
        std::int32_t op = -1;
    };

    void begin();
    void find_critical_path();
    template <bool RECORD>
    double simulate(double limit, Interrupt& interrupt);
    template <bool RECORD>
    double send(Index tensor, std::int32_t source, std::int32_t target, double now);
    template <bool RECORD>
    void release(Index tensor, std::int32_t source, bool finished, std::int32_t op, double now);
    template <bool RECORD>
    double send_to_targets(Index tensor, std::int32_t source, bool finished, std::int32_t op, double now);
    template <bool RECORD>
    bool start_ready_ops(Index device, double now, double limit);
    void deliver(Index tensor, std::int32_t reader, double there, double now);
    void enqueue(Index op, double ready_at, double now);
    void update_next_start(Index device, double now);
    std::int32_t end_event(Index op) const { return static_cast<std::int32_t>(op + problem_.out_offsets[op]); }

    const LatencySearchProblem& search_;
    const Problem& problem_;
    const BlockAssignment& assignment_;
    State state_;
    std::vector<State> checkpoints_;
    Index n_checkpoints_ = 0;
    Index n_simulated_ = 0;

    std::vector<double> arrived_;        // [n_devices + 1] where the tensor at hand is, −1 between calls
    std::vector<std::int32_t> targets_;  // the locations that need the tensor at hand

    StartTimes recorded_;
    StartTimes priced_;
    std::vector<std::int32_t> position_;      // [n_ops] in the recorded sequence
    std::vector<std::int32_t> ended_before_;  // [n_ops] how many ops ended before each
    std::vector<Cause> cause_;                // [n_ops]
    std::vector<std::int32_t> queued_after_;  // [n_tensors] the tensor that each waited for in a queue, or −1
    std::vector<std::int32_t> critical_path_;
};

}  // namespace placewise

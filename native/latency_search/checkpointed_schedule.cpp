#include "latency_search/checkpointed_schedule.hpp"

#include <algorithm>
#include <limits>

namespace placewise {

namespace {

constexpr double INF = std::numeric_limits<double>::infinity();
// By how much sums in another order may differ.
constexpr double ROUNDING = 1e-9;
constexpr Index MAX_CHECKPOINTS = 16;
// The most bytes that the checkpoints of one chain may take: large graphs get fewer.
constexpr Index CHECKPOINT_BYTES = Index{64} << 20;

}  // namespace

CheckpointedSchedule::CheckpointedSchedule(const LatencySearchProblem& search, const BlockAssignment& assignment)
    : search_(search),
      problem_(search.problem),
      assignment_(assignment),
      arrived_(search.n_devices() + 1, -1.0),
      position_(search.n_ops(), 0),
      ended_before_(search.n_ops(), 0),
      cause_(search.n_ops()),
      queued_after_(problem_.n_tensors(), -1) {
    const Index n = search.n_ops();
    for (StartTimes* times : {&recorded_, &priced_}) {
        times->start.assign(n, 0.0);
        times->sequence.assign(n, 0);
    }
    critical_path_.reserve(n + 1);
    state_.ops.resize(n);
    state_.queues.resize(search.n_devices());
    for (DeviceQueue& queue : state_.queues) queue.ready = IndexSet(n);
    state_.next_start.resize(search.n_devices());
    state_.link_free.resize(problem_.n_queues);
    state_.last_sent.resize(problem_.n_queues);
    const Index op_bytes = sizeof(OpProgress) * std::max<Index>(n, 1);
    checkpoints_.resize(std::clamp<Index>(CHECKPOINT_BYTES / op_bytes, 2, MAX_CHECKPOINTS));
}

// The state at time 0: what reads nothing is ready, model inputs are on their way.
void CheckpointedSchedule::begin() {
    const Problem& p = problem_;
    State& s = state_;
    s.now = s.makespan = 0.0;
    s.last_op = -1;
    s.n_ended = s.n_started = 0;
    for (Index d = 0; d < p.n_devices(); ++d) {
        DeviceQueue& queue = s.queues[d];
        queue.n_ready = 0;
        queue.free_streams = p.streams[d];
        queue.started_seconds = 0.0;
        queue.waiting.clear();
        queue.last_ended = -1;
        queue.ready.clear();
    }
    std::fill(s.next_start.begin(), s.next_start.end(), INF);
    std::fill(s.link_free.begin(), s.link_free.end(), 0.0);
    std::fill(s.last_sent.begin(), s.last_sent.end(), -1);
    s.events.clear();
    const Adjacency inputs = search_.inputs();
    for (Index op = 0; op < p.n_ops(); ++op) {
        s.ops[op] = {0.0, static_cast<std::int32_t>(inputs.length(op)), -1};
        if (s.ops[op].missing == 0) enqueue(op, 0.0, 0.0);
    }
    for (const Index tensor : p.inputs()) release<false>(tensor, p.host(), true, -1, 0.0);
}

// Send one hop, in the queue of its link if that has one; when it arrives.
template <bool RECORD>
double CheckpointedSchedule::send(Index tensor, std::int32_t source, std::int32_t target, double now) {
    const std::int32_t queue = problem_.queue(source, target);
    if (queue < 0) return now + problem_.hop_seconds(tensor, source, target);
    double& free = state_.link_free[queue];
    if constexpr (RECORD) {
        if (free > now) queued_after_[tensor] = state_.last_sent[queue];
        state_.last_sent[queue] = static_cast<std::int32_t>(tensor);
    }
    free = std::max(now, free) + problem_.hop_seconds(tensor, source, target);
    return free;
}

void CheckpointedSchedule::enqueue(Index op, double ready_at, double now) {
    const std::int32_t device = assignment_.site(op).device;
    DeviceQueue& queue = state_.queues[device];
    if (ready_at <= now) {
        queue.ready.insert(search_.priority[op]);
        ++queue.n_ready;
    } else {
        queue.waiting.push({ready_at, search_.priority[op]});
    }
    if (queue.free_streams > 0) state_.next_start[device] = std::min(state_.next_start[device], ready_at);
}

void CheckpointedSchedule::update_next_start(Index device, double now) {
    const DeviceQueue& queue = state_.queues[device];
    double& next = state_.next_start[device];
    if (queue.free_streams == 0) {
        next = INF;
    } else if (queue.n_ready > 0) {
        next = now;
    } else {
        next = queue.waiting.empty() ? INF : queue.waiting.top().time;
    }
}

// An input of an op is `there` at that time; queue the op if it misses nothing any more.
inline void CheckpointedSchedule::deliver(Index tensor, std::int32_t reader, double there, double now) {
    OpProgress& op = state_.ops[reader];
    if (there > op.ready_at) {
        op.ready_at = there;
        op.last_input = static_cast<std::int32_t>(tensor);
    }
    if (--op.missing == 0) enqueue(reader, op.ready_at, now);
}

// A tensor was made at `source` by `op`, or (not `finished`) its staged copy has reached host memory. Readers at
// `source` have it at once; it is sent to all others, to the locations in ascending order.
template <bool RECORD>
void CheckpointedSchedule::release(Index tensor, std::int32_t source, bool finished, std::int32_t op, double now) {
    const Problem& p = problem_;
    const std::int32_t host = p.host();
    if constexpr (RECORD) queued_after_[tensor] = -1;
    const auto need = [this](std::int32_t place) {
        if (arrived_[place] == 0.0) return;
        arrived_[place] = 0.0;
        targets_.push_back(place);
    };
    for (const std::int32_t reader : p.consumers[tensor]) {
        const std::int32_t place = assignment_.site(reader).place;
        if (place != source) {
            need(place);
        } else if (finished) {
            deliver(tensor, reader, now, now);
        }
    }
    if (p.output[tensor] && source != host) need(host);
    double home = now;
    if (!targets_.empty()) {
        home = send_to_targets<RECORD>(tensor, source, finished, op, now);
        for (const std::int32_t target : targets_) arrived_[target] = -1.0;
        targets_.clear();
    }
    if (finished && p.output[tensor] && home > state_.makespan) {
        state_.makespan = home;
        state_.last_op = op;
    }
}

// Send a tensor to `targets_`, and tell its readers there; when it is in host memory, if it is sent there.
template <bool RECORD>
double CheckpointedSchedule::send_to_targets(Index tensor, std::int32_t source, bool finished, std::int32_t op,
                                             double now) {
    const Problem& p = problem_;
    const std::int32_t host = p.host();
    if (finished && p.staged && source != host) {
        const double home = send<RECORD>(tensor, source, host, now);
        state_.events.push({home, static_cast<std::int32_t>(op + 1 + tensor), op});
        return home;
    }
    std::sort(targets_.begin(), targets_.end());
    const std::int32_t origin = finished ? source : host;
    for (const std::int32_t target : targets_) {
        arrived_[target] = target == origin ? now : send<RECORD>(tensor, origin, target, now);
    }
    for (const std::int32_t reader : p.consumers[tensor]) {
        const std::int32_t place = assignment_.site(reader).place;
        if (place != source) deliver(tensor, reader, arrived_[place], now);
    }
    return arrived_[host];
}

// Whether the schedule can still end before `limit` after a device has started what it can at this moment.
template <bool RECORD>
bool CheckpointedSchedule::start_ready_ops(Index device, double now, double limit) {
    State& s = state_;
    DeviceQueue& queue = s.queues[device];
    StartTimes& times = RECORD ? recorded_ : priced_;
    while (!queue.waiting.empty() && queue.waiting.top().time <= now) {
        queue.ready.insert(queue.waiting.pop().item);
        ++queue.n_ready;
    }
    while (queue.free_streams > 0 && queue.n_ready > 0) {
        const std::int32_t op = search_.by_priority[queue.ready.pop_min()];
        --queue.n_ready;
        --queue.free_streams;
        times.start[op] = now;
        times.sequence[s.n_started] = op;
        const double seconds = assignment_.site(op).seconds, finish = now + seconds;
        if constexpr (RECORD) {
            const OpProgress& progress = s.ops[op];
            position_[op] = static_cast<std::int32_t>(s.n_started);
            cause_[op] = progress.ready_at >= now ? Cause{progress.last_input, -1} : Cause{-1, queue.last_ended};
        } else {
            const double rest = assignment_.work(device) - queue.started_seconds;
            const bool late = finish + search_.least_after(op) > limit;
            if (late || rest > (limit - now) * problem_.streams[device]) return false;
        }
        ++s.n_started;
        queue.started_seconds += seconds;
        if (finish > s.makespan) {
            s.makespan = finish;
            s.last_op = op;
        }
        s.events.push({finish, end_event(op), op});
    }
    update_next_start(device, now);
    return true;
}

template <bool RECORD>
double CheckpointedSchedule::simulate(double limit, Interrupt& interrupt) {
    const Problem& p = problem_;
    State& s = state_;
    const Index most = static_cast<Index>(checkpoints_.size());
    double now = s.now;
    while (now < INF) {
        if (interrupt.stop()) return INF;
        if constexpr (RECORD) {
            if (n_checkpoints_ < most && s.n_ended >= n_checkpoints_ * p.n_ops() / most) {
                s.now = now;
                checkpoints_[n_checkpoints_++] = s;
            }
        }
        while (!s.events.empty() && s.events.top().time <= now) {
            const Event event = s.events.pop();
            const std::int32_t op = event.op;
            const BlockAssignment::OpSite& site = assignment_.site(op);
            if (event.key != end_event(op)) {
                release<RECORD>(event.key - op - 1, site.place, false, op, now);
                continue;
            }
            DeviceQueue& queue = s.queues[site.device];
            if (queue.free_streams++ == 0) update_next_start(site.device, now);
            if constexpr (RECORD) {
                ended_before_[op] = static_cast<std::int32_t>(s.n_ended);
                queue.last_ended = op;
            }
            ++s.n_ended;
            for (const Index tensor : p.outputs_of(op)) release<RECORD>(tensor, site.place, true, op, now);
        }
        double next = INF;
        for (Index d = 0; d < p.n_devices(); ++d) {
            if (s.next_start[d] <= now && !start_ready_ops<RECORD>(d, now, limit)) return INF;
            next = std::min(next, s.next_start[d]);
        }
        now = s.events.empty() ? next : std::min(next, s.events.top().time);
    }
    return s.n_ended == p.n_ops() ? s.makespan : INF;
}

double CheckpointedSchedule::record(Index checkpoint, Interrupt& interrupt) {
    if (checkpoint < 0) {
        begin();
    } else {
        state_ = checkpoints_[checkpoint];
    }
    n_checkpoints_ = checkpoint + 1;
    n_simulated_ -= state_.n_started;
    recorded_.n_started = 0;
    const double makespan = simulate<true>(INF, interrupt);
    recorded_.n_started = state_.n_started;
    n_simulated_ += state_.n_started;
    if (!interrupt.stopped()) find_critical_path();
    return makespan;
}

double CheckpointedSchedule::price(Index checkpoint, double limit, Interrupt& interrupt) {
    if (checkpoint < 0) {
        begin();
    } else {
        state_ = checkpoints_[checkpoint];
    }
    if (search_.live) {
        priced_.start = recorded_.start;
        std::copy_n(recorded_.sequence.begin(), state_.n_started, priced_.sequence.begin());
    }
    n_simulated_ -= state_.n_started;
    priced_.n_started = 0;
    const double makespan = simulate<false>(limit * (1 + ROUNDING), interrupt);
    priced_.n_started = state_.n_started;
    n_simulated_ += state_.n_started;
    return makespan;
}

Index CheckpointedSchedule::checkpoint_before_moves() const {
    auto untouched = static_cast<std::int32_t>(search_.n_ops());
    for (const BlockAssignment::Move& move : assignment_.moves()) {
        for (const std::int32_t op : search_.members()[move.block]) {
            const auto inputs = search_.inputs()[op];
            if (inputs.empty()) return -1;
            for (const std::int32_t tensor : inputs) {
                const std::int32_t maker = problem_.producer[tensor];
                if (maker < 0) return -1;
                untouched = std::min(untouched, ended_before_[maker]);
            }
        }
    }
    Index k = n_checkpoints_ - 1;
    while (k >= 0 && checkpoints_[k].n_ended > untouched) --k;
    return k;
}

// An op waited for its last input, or for the op before it on its device; a tensor for its maker, or in a queue for
// the tensor before it.
void CheckpointedSchedule::find_critical_path() {
    const auto most = static_cast<std::size_t>(search_.n_ops());
    critical_path_.clear();
    std::int32_t op = state_.last_op;
    while (op >= 0 && critical_path_.size() < most) {
        critical_path_.push_back(op);
        const Cause cause = cause_[op];
        op = cause.op;
        if (cause.tensor < 0) continue;
        op = problem_.producer[cause.tensor];
        const std::int32_t ahead = queued_after_[cause.tensor];
        const std::int32_t other = ahead < 0 ? -1 : problem_.producer[ahead];
        if (other < 0 || op < 0 || ended_before_[other] > ended_before_[op]) continue;
        if (critical_path_.size() < most && other != op) critical_path_.push_back(op);
        op = other;
    }
}

}  // namespace placewise

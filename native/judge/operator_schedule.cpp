#include "judge/operator_schedule.hpp"

#include <algorithm>
#include <limits>

namespace placewise {

namespace {
constexpr double INF = std::numeric_limits<double>::infinity();
}

OperatorSchedule::OperatorSchedule(const Problem& problem, std::span<const std::int32_t> priority,
                                   std::span<const std::int32_t> by_priority)
    : problem_(problem),
      priority_(priority),
      by_priority_(by_priority),
      ops_(problem.n_ops()),
      queues_(problem.n_devices()),
      next_start_(problem.n_devices()),
      link_free_(problem.n_queues),
      needed_(problem.n_devices() + 1, 0),
      arrived_(problem.n_devices() + 1) {
    for (Queue& queue : queues_) queue.ready = IndexSet(problem.n_ops());
}

void OperatorSchedule::reset(std::span<const std::int32_t> device, std::span<double> start) {
    const Problem& p = problem_;
    for (Index op = 0; op < p.n_ops(); ++op) {
        const std::int32_t d = device[op];
        ops_[op] = {0.0, p.op_seconds(op, d), priority_[op], 0, d, p.location[d]};
        start[op] = INF;
    }
    for (const std::int32_t reader : p.consumers.values) ++ops_[reader].missing;
    for (Index d = 0; d < p.n_devices(); ++d) {
        Queue& queue = queues_[d];
        queue.ready.clear();
        queue.n_ready = 0;
        queue.waiting.clear();
        queue.free_streams = p.streams[d];
        next_start_[d] = INF;
    }
    events_.clear();
    std::fill(link_free_.begin(), link_free_.end(), 0.0);
}

// Send one hop, in the queue of its link if that has one; when it arrives.
double OperatorSchedule::send(Index tensor, std::int32_t source, std::int32_t target, double now, HopLog* log) {
    const std::int32_t queue = problem_.queue(source, target);
    const double begin = queue < 0 ? now : std::max(now, link_free_[queue]);
    const double arrival = begin + problem_.hop_seconds(tensor, source, target);
    if (queue >= 0) link_free_[queue] = arrival;
    note_hop(log, {static_cast<std::int32_t>(tensor), source, target, begin, arrival});
    return arrival;
}

// The locations other than `source` where `tensor` is needed, ascending.
std::span<const std::int32_t> OperatorSchedule::find_targets(Index tensor, std::int32_t source) {
    targets_.clear();
    auto need = [&](std::int32_t place) {
        if (place == source || needed_[place]) return;
        needed_[place] = 1;
        targets_.push_back(place);
    };
    for (const std::int32_t reader : problem_.consumers[tensor]) need(ops_[reader].place);
    if (problem_.output[tensor]) need(problem_.host());
    for (const std::int32_t place : targets_) needed_[place] = 0;
    if (targets_.size() > 1) std::sort(targets_.begin(), targets_.end());
    return targets_;
}

double OperatorSchedule::Queue::next_start(double now) const {
    if (free_streams == 0) return INF;
    if (n_ready > 0) return now;
    return waiting.empty() ? INF : waiting.top().time;
}

void OperatorSchedule::enqueue(const OpState& op, double now) {
    Queue& queue = queues_[op.device];
    if (op.ready_at <= now) {
        queue.ready.insert(op.priority);
        ++queue.n_ready;
    } else {
        queue.waiting.push({op.ready_at, op.priority});
    }
    next_start_[op.device] = queue.next_start(now);
}

// Tell the readers of `tensor` where it has arrived; queue those that miss nothing any more.
void OperatorSchedule::wake_readers(Index tensor, double now) {
    for (const std::int32_t reader : problem_.consumers[tensor]) {
        OpState& op = ops_[reader];
        const double there = arrived_[op.place];
        if (there < 0) continue;
        op.ready_at = std::max(op.ready_at, there);
        if (--op.missing == 0) enqueue(op, now);
    }
}

// A tensor was made at `source`, or (not `finished`) its staged copy has reached host memory; when it is there.
double OperatorSchedule::release(Index tensor, std::int32_t source, bool finished, double now, HopLog* log) {
    const Problem& p = problem_;
    const auto targets = find_targets(tensor, source);
    std::fill(arrived_.begin(), arrived_.end(), -1.0);
    double home = 0.0;
    if (!finished) {
        for (const std::int32_t target : targets) {
            arrived_[target] = target == p.host() ? now : send(tensor, p.host(), target, now, log);
        }
    } else if (p.staged && !targets.empty() && source != p.host()) {
        arrived_[source] = now;
        home = send(tensor, source, p.host(), now, log);
        events_.push({home, p.producer[tensor], static_cast<std::int32_t>(tensor)});
    } else {
        arrived_[source] = now;
        for (const std::int32_t target : targets) arrived_[target] = send(tensor, source, target, now, log);
        home = arrived_[p.host()];
    }
    wake_readers(tensor, now);
    return p.output[tensor] ? home : 0.0;
}

// Start the ops of one device that are ready, as many as it has free streams.
void OperatorSchedule::start_ops(std::int32_t device, double now, std::span<double> start) {
    Queue& queue = queues_[device];
    while (!queue.waiting.empty() && queue.waiting.top().time <= now) {
        queue.ready.insert(queue.waiting.pop().item);
        ++queue.n_ready;
    }
    for (; queue.free_streams > 0 && queue.n_ready > 0; --queue.free_streams, --queue.n_ready) {
        const std::int32_t op = by_priority_[queue.ready.pop_min()];
        start[op] = now;
        events_.push({now + ops_[op].seconds, op, -1});
    }
    next_start_[device] = queue.next_start(now);
}

double OperatorSchedule::run(std::span<const std::int32_t> device, std::span<double> start, HopLog* log) {
    const Problem& p = problem_;
    const auto n_devices = static_cast<std::int32_t>(p.n_devices());
    reset(device, start);
    for (OpState& op : ops_) {
        if (op.missing == 0) enqueue(op, 0.0);
    }
    for (const Index tensor : p.inputs()) release(tensor, p.host(), true, 0.0, log);
    double makespan = 0.0, now = 0.0;
    Index done = 0;
    while (now < INF) {
        while (!events_.empty() && events_.top().time <= now) {
            const Event event = events_.pop();
            const OpState& op = ops_[event.op];
            if (event.tensor >= 0) {
                release(event.tensor, op.place, false, now, log);
                continue;
            }
            ++queues_[op.device].free_streams;
            next_start_[op.device] = queues_[op.device].next_start(now);
            ++done;
            makespan = std::max(makespan, now);
            for (const Index tensor : p.outputs_of(event.op)) {
                makespan = std::max(makespan, release(tensor, op.place, true, now, log));
            }
        }
        double upcoming = events_.empty() ? INF : events_.top().time;
        for (std::int32_t d = 0; d < n_devices; ++d) {
            if (next_start_[d] <= now) {
                start_ops(d, now, start);
                if (!events_.empty()) upcoming = std::min(upcoming, events_.top().time);
            }
            upcoming = std::min(upcoming, next_start_[d]);
        }
        now = upcoming;
    }
    return done == p.n_ops() ? makespan : INF;
}

}  // namespace placewise

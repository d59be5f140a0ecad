#include "list_scheduling/earliest_schedule.hpp"

namespace placewise {

EarliestSchedule::EarliestSchedule(const ListProblem& list, std::span<const std::int32_t> favourite_child,
                                   double weight)
    : ListSchedule(list),
      favourite_child_(favourite_child),
      weight_(weight),
      devices_(list.problem.n_devices()),
      ready_at_(list.problem.n_ops(), list.problem.n_devices()),
      urgent_at_(favourite_child.size()) {
    for (Index d = 0; d < problem().n_devices(); ++d) devices_[d].streams.assign(problem().streams[d], 0.0);
}

// Put a ready op on the queues of every device that its group may use.
void EarliestSchedule::enqueue(Index op) {
    const bool favourites = !favourite_child_.empty();
    const Index n_devices = problem().n_devices(), settled = home(op);
    const auto arrival = ready_at_.row(op);
    if (settled < 0 || favourites) {
        estimate_arrivals(op, 0, n_devices, arrival);
    } else {
        estimate_arrivals(op, settled, settled + 1, arrival);
    }
    if (favourites) urgent_at_[op] = *std::max_element(arrival.begin(), arrival.end());
    for (Index d = 0; d < n_devices; ++d) {
        if (!list_.groups.allowed(list_.group[op], d) || (settled >= 0 && settled != d)) continue;
        const double weighted = weight_ * seconds(op, d);
        devices_[d].by_arrival.waiting.push({arrival[d] + weighted, list_.rank[op]});
        if (favourites) devices_[d].by_urgency.waiting.push({urgent_at_[op] + weighted, list_.rank[op]});
    }
}

// Make the heads of a device's queue true: drop what went elsewhere or does not fit, move what has arrived.
void EarliestSchedule::refresh(ReadyQueue& queue, Index device, bool reserved) {
    const double idle_at = devices_[device].idle_at;
    while (!queue.waiting.empty()) {
        const Index op = list_.by_rank[queue.waiting.top().item];
        const bool open = may_run(op, device);
        if (open && (reserved ? urgent_at_[op] : ready_at_(op, device)) > idle_at) break;
        queue.waiting.pop();
        if (open) queue.startable.push({weight_ * seconds(op, device), list_.rank[op]});
    }
    while (!queue.startable.empty() && !may_run(list_.by_rank[queue.startable.top().item], device)) {
        queue.startable.pop();
    }
}

// The pair of a ready op and a device that comes first; no device if memory is too short for all of them.
EarliestSchedule::Candidate EarliestSchedule::earliest() {
    Candidate best{.rank = problem().n_ops()};
    for (Index d = 0; d < problem().n_devices(); ++d) {
        DeviceState& state = devices_[d];
        if (state.favourite >= 0 && !may_run(state.favourite, d)) state.favourite = -1;
        const Index favourite = state.favourite;
        if (favourite >= 0 && is_ready(favourite)) {
            const double time = std::max(ready_at_(favourite, d), state.idle_at) + weight_ * seconds(favourite, d);
            if (time <= best.time) best = {time, -1, d, favourite};
        }
        ReadyQueue& queue = favourite >= 0 ? state.by_urgency : state.by_arrival;
        refresh(queue, d, favourite >= 0);
        const auto consider = [&](const MinHeap<Timed>& heap, double since) {
            if (heap.empty()) return;
            const auto [time, rank] = heap.top();
            const Candidate candidate{time + since, rank, d, list_.by_rank[rank]};
            if (candidate.before(best)) best = candidate;
        };
        consider(queue.waiting, 0.0);
        consider(queue.startable, state.idle_at);
    }
    return best;
}

// Run an op on the first stream of a device that is idle; when it finishes.
double EarliestSchedule::run_on(Index device, Index op) {
    DeviceState& state = devices_[device];
    double& stream = *std::min_element(state.streams.begin(), state.streams.end());
    stream = std::max(stream, send_inputs(op, device)) + seconds(op, device);
    const double end = stream;
    state.idle_at = *std::min_element(state.streams.begin(), state.streams.end());
    if (!favourite_child_.empty() && state.streams.size() == 1) state.favourite = favourite_child_[op];
    return end;
}

Index EarliestSchedule::run(Interrupt& interrupt) {
    const auto note = [&](Index op) { fresh_.push_back(op); };
    start(note);
    for (Index placed = 0; placed < problem().n_ops(); ++placed) {
        if (interrupt.stop()) return placed;
        for (const Index op : fresh_) enqueue(op);
        fresh_.clear();
        const Candidate chosen = earliest();
        if (chosen.device < 0) return placed;
        settle_group(chosen.op, chosen.device);
        complete(chosen.op, chosen.device, run_on(chosen.device, chosen.op), note);
    }
    return problem().n_ops();
}

}  // namespace placewise

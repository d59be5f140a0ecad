#include "list_scheduling/insertion_schedule.hpp"

#include <numeric>

namespace placewise {

InsertionSchedule::InsertionSchedule(const ListProblem& list, std::span<const std::int32_t> wanted)
    : ListSchedule(list),
      wanted_(wanted),
      first_stream_(list.problem.n_devices() + 1),
      ready_(list.problem.n_ops()),
      arrival_at_(list.problem.n_devices()) {
    const auto& streams = list.problem.streams;
    std::partial_sum(streams.begin(), streams.end(), first_stream_.begin() + 1, std::plus<Index>());
    const auto most_streams = streams.empty() ? 0 : *std::max_element(streams.begin(), streams.end());
    streams_.assign(first_stream_.back(), IdleIntervals(most_gaps_each(streams.size() * most_streams)));
}

// An op whose inputs are on `device` at `ready`, on the stream that is the first to have time.
Trial InsertionSchedule::try_device(Index op, Index device, double ready) const {
    const double duration = seconds(op, device);
    Trial best{device, first_stream_[device], INFINITE_SECONDS, INFINITE_SECONDS};
    for (Index stream = first_stream_[device]; stream < first_stream_[device + 1]; ++stream) {
        const double start = streams_[stream].first_fit(ready, duration);
        if (start < best.start) best = {device, stream, start, start + duration};
    }
    return best;
}

// The device on which an op whose group has no home finishes first, −1 if there is room on none.
Index InsertionSchedule::earliest_finish(Index op) {
    estimate_arrivals(op, 0, problem().n_devices(), arrival_at_);
    Trial best;
    for (Index device = 0; device < problem().n_devices(); ++device) {
        if (!memory_.fits(list_.group[op], device)) continue;
        const Trial trial = try_device(op, device, arrival_at_[device]);
        if (trial.finish < best.finish) best = trial;
    }
    return best.device;
}

Index InsertionSchedule::run(Interrupt& interrupt) {
    const auto enqueue = [&](Index op) { ready_.insert(list_.rank[op]); };
    start(enqueue);
    for (Index placed = 0; placed < problem().n_ops(); ++placed) {
        if (interrupt.stop()) return placed;
        const Index op = list_.by_rank[ready_.pop_min()];
        Index device = home(op);
        if (device < 0) device = wanted_[op];
        if (device < 0 || !memory_.may_be(list_.group[op], device)) device = earliest_finish(op);
        if (device < 0) return placed;
        settle_group(op, device);
        const Trial chosen = try_device(op, device, send_inputs(op, device));
        streams_[chosen.stream].book(chosen.start, seconds(op, device));
        complete(op, device, chosen.finish, enqueue);
    }
    return problem().n_ops();
}

}  // namespace placewise

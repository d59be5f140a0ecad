#include "list_scheduling/list_schedule.hpp"

namespace placewise {

ListSchedule::ListSchedule(const ListProblem& list)
    : list_(list),
      memory_(list.groups),
      device_(list.problem.n_ops(), -1),
      finish_(list.problem.n_ops()),
      missing_(list.problem.n_ops()),
      arrival_(list.problem.n_tensors(), list.problem.n_devices() + 1, -1.0),
      links_(list.problem.n_queues, IdleIntervals(most_gaps_each(list.problem.n_queues))) {
    for (Index op = 0; op < problem().n_ops(); ++op) {
        for (const std::int32_t reader : problem().readers_of(op)) ++missing_[reader];
    }
}

// Where a tensor was made, and when.
ListSchedule::Source ListSchedule::source_of(Index tensor) const {
    const std::int32_t maker = problem().producer[tensor];
    if (maker < 0) return {problem().host(), 0.0};
    return {problem().location[device_[maker]], finish_[maker]};
}

// When a tensor that is ready at `source` can be at `target`: at once if it is there.
double ListSchedule::hop_end(Index tensor, std::int32_t source, std::int32_t target, double ready) const {
    const double there = arrival_(tensor, target);
    if (there >= 0) return there;
    const double seconds = problem().hop_seconds(tensor, source, target);
    const std::int32_t queue = problem().queue(source, target);
    return (queue < 0 ? ready : links_[queue].first_fit(ready, seconds)) + seconds;
}

double ListSchedule::send(Index tensor, std::int32_t source, std::int32_t target, double ready) {
    double& there = arrival_(tensor, target);
    if (there >= 0) return there;
    const double seconds = problem().hop_seconds(tensor, source, target);
    const std::int32_t queue = problem().queue(source, target);
    if (queue < 0) return there = ready + seconds;
    const double begin = links_[queue].first_fit(ready, seconds);
    links_[queue].book(begin, seconds);
    return there = begin + seconds;
}

void ListSchedule::estimate_arrivals(Index op, Index first, Index last, std::span<double> ready) {
    const std::int32_t host = problem().host();
    std::fill(ready.begin() + first, ready.begin() + last, 0.0);
    for (const std::int32_t tensor : list_.inputs[op]) {
        const Source made = source_of(tensor);
        Source copy = made;
        bool staged = false;
        for (Index device = first; device < last; ++device) {
            const std::int32_t target = problem().location[device];
            double there = made.ready;
            if (target != made.place) {
                if (problem().staged && !staged && made.place != host && target != host) {
                    copy = {host, hop_end(tensor, made.place, host, made.ready)};
                    staged = true;
                }
                const Source& from = target == host ? made : copy;
                there = hop_end(tensor, from.place, target, from.ready);
            }
            ready[device] = std::max(ready[device], there);
        }
    }
}

double ListSchedule::send_inputs(Index op, Index device) {
    const std::int32_t host = problem().host(), target = problem().location[device];
    double ready = 0.0;
    for (const std::int32_t tensor : list_.inputs[op]) {
        Source from = source_of(tensor);
        if (problem().staged && from.place != target && from.place != host && target != host) {
            from = {host, send(tensor, from.place, host, from.ready)};
        }
        const double there = from.place == target ? from.ready : send(tensor, from.place, target, from.ready);
        ready = std::max(ready, there);
    }
    return ready;
}

}  // namespace placewise

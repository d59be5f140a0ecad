#include "judge/sequential_schedule.hpp"

#include <algorithm>
#include <numeric>

namespace placewise {

namespace {

// Sort ops by a column of values below `count`; equal ones stay as they are.
void counting_sort(std::vector<std::int32_t>& ops, std::span<const std::int32_t> key, Index count) {
    std::vector<Index> next(count + 1, 0);
    for (const std::int32_t op : ops) ++next[key[op] + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    std::vector<std::int32_t> sorted(ops.size());
    for (const std::int32_t op : ops) sorted[next[key[op]]++] = op;
    ops.swap(sorted);
}

}  // namespace

void cut_pieces(const Problem& p, std::span<const std::int32_t> device, std::span<std::int32_t> piece) {
    std::fill(piece.begin(), piece.end(), 0);
    for (Index op = 0; op < p.n_ops(); ++op) {
        for (const std::int32_t reader : p.readers_of(op)) {
            piece[reader] = std::max(piece[reader], piece[op] + (device[reader] != device[op]));
        }
    }
}

SequentialSchedule::SequentialSchedule(const Problem& problem, const Adjacency& inputs)
    : problem_(problem),
      inputs_(inputs),
      piece_(problem.n_ops()),
      order_(problem.n_ops()),
      held_(problem.n_tensors() * (problem.n_devices() + 1)) {}

void SequentialSchedule::sort_pieces(std::span<const std::int32_t> device) {
    cut_pieces(problem_, device, piece_);
    std::iota(order_.begin(), order_.end(), 0);
    counting_sort(order_, device, problem_.n_devices());
    counting_sort(order_, piece_, problem_.n_ops());
}

void SequentialSchedule::move(Index tensor, std::int32_t source, std::int32_t target, HopLog* log) {
    const double sent = clock_;
    clock_ += problem_.hop_seconds(tensor, source, target);
    held(tensor, target) = 1;
    note_hop(log, {static_cast<std::int32_t>(tensor), source, target, sent, clock_});
}

// Bring a tensor to a location that has never had it, from `source` or, staged, through host memory.
void SequentialSchedule::fetch(Index tensor, std::int32_t source, std::int32_t target, HopLog* log) {
    const std::int32_t host = problem_.host();
    const bool passes_host = problem_.staged && target != host;
    if (passes_host && !held(tensor, host)) move(tensor, source, host, log);
    move(tensor, passes_host ? host : source, target, log);
}

double SequentialSchedule::run(std::span<const std::int32_t> device, std::span<double> start, std::span<double> finish,
                               HopLog* log) {
    const Problem& p = problem_;
    sort_pieces(device);
    clock_ = 0.0;
    const auto source_of = [&](Index tensor) {
        const std::int32_t maker = p.producer[tensor];
        return maker < 0 ? p.host() : p.location[device[maker]];
    };
    std::fill(held_.begin(), held_.end(), 0);
    for (Index tensor = 0; tensor < p.n_tensors(); ++tensor) held(tensor, source_of(tensor)) = 1;
    for (std::size_t first = 0; first < order_.size();) {
        const std::int32_t d = device[order_[first]], number = piece_[order_[first]], place = p.location[d];
        std::size_t last = first;
        for (; last < order_.size() && device[order_[last]] == d && piece_[order_[last]] == number; ++last) {
            for (const std::int32_t tensor : inputs_[order_[last]]) {
                if (!held(tensor, place)) fetch(tensor, source_of(tensor), place, log);
            }
        }
        clock_ += p.call_overhead[d];
        for (; first < last; ++first) {
            const std::int32_t op = order_[first];
            start[op] = clock_;
            clock_ += p.op_seconds(op, d);
            finish[op] = clock_;
        }
    }
    for (Index tensor = 0; tensor < p.n_tensors(); ++tensor) {
        if (p.output[tensor] && !held(tensor, p.host())) fetch(tensor, source_of(tensor), p.host(), log);
    }
    return clock_;
}

}  // namespace placewise

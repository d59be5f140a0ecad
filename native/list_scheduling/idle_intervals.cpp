#include "list_scheduling/idle_intervals.hpp"

#include <algorithm>

namespace placewise {

namespace {
constexpr std::size_t GAPS_LOOKED_AT = 64;
constexpr std::size_t MAX_GAPS = 1024;
constexpr std::size_t GAPS_OF_ALL = std::size_t{1} << 22;
}  // namespace

std::size_t most_gaps_each(std::size_t resources) {
    return std::max<std::size_t>(std::min(MAX_GAPS, GAPS_OF_ALL / std::max<std::size_t>(resources, 1)), 8);
}

std::size_t IdleIntervals::first_ending_after(double moment) const {
    const auto found = std::partition_point(gaps_.begin(), gaps_.end(), [&](Gap gap) { return gap.end <= moment; });
    return static_cast<std::size_t>(found - gaps_.begin());
}

double IdleIntervals::first_gap(double ready, double seconds) const {
    const std::size_t first = first_ending_after(ready);
    const std::size_t last = std::min(gaps_.size(), first + GAPS_LOOKED_AT);
    for (std::size_t at = first; at < last; ++at) {
        const double begin = std::max(ready, gaps_[at].start);
        if (begin + seconds <= gaps_[at].end) return begin;
    }
    return free_from_;
}

void IdleIntervals::book(double begin, double seconds) {
    if (seconds <= 0) return;
    const double until = begin + seconds;
    if (begin >= free_from_) {
        if (begin > free_from_) insert(gaps_.size(), {free_from_, begin});
        free_from_ = until;
        return;
    }
    const std::size_t at = first_ending_after(begin);
    if (at == gaps_.size()) return;
    Gap& gap = gaps_[at];
    const double start = gap.start;
    if (until < gap.end) {
        gap.start = until;
        if (start < begin) insert(at, {start, begin});
    } else if (start < begin) {
        gap.end = begin;
    } else {
        gaps_.erase(gaps_.begin() + static_cast<std::ptrdiff_t>(at));
    }
}

// One more gap before gap `at`; where there are too many, the first one is forgotten.
void IdleIntervals::insert(std::size_t at, Gap gap) {
    const auto place = gaps_.begin() + static_cast<std::ptrdiff_t>(at);
    if (gaps_.size() < most_gaps_) {
        gaps_.insert(place, gap);
    } else if (at > 0) {
        std::move(gaps_.begin() + 1, place, gaps_.begin());
        *(place - 1) = gap;
    }
}

}  // namespace placewise

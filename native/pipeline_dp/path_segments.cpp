#include "pipeline_dp/path_segments.hpp"

#include <algorithm>
#include <limits>

#include "pipeline_dp/stage_costs.hpp"

namespace placewise {

PathSegments::PathSegments(const SegmentBounds& bounds)
    : bounds_(bounds),
      length_(bounds.load.rows() - 1),
      cells_(length_ + 1, bounds.n_devices + 1),
      begins_(length_ + 1, -1) {}

double PathSegments::least_load(Index steps, Interrupt& interrupt) {
    double low = bounds_.work / static_cast<double>(bounds_.n_devices) * (1 - 1e-12);
    if (is_possible(low, interrupt)) return low;
    double high = std::max(low, 1.0);
    while (high < static_cast<double>(NEVER) && !is_possible(high, interrupt)) {
        if (interrupt.stopped()) return low;
        low = high;
        high *= 2;
    }
    for (Index step = 0; step < steps; ++step) {
        const double middle = (low + high) / 2;
        const bool possible = is_possible(middle, interrupt);
        if (interrupt.stopped()) return low;
        (possible ? high : low) = middle;
    }
    is_possible(high, interrupt);
    return low;
}

// Whether the path can be cut into segments of loads within `limit` on which all the work can be done.
bool PathSegments::is_possible(double limit, Interrupt& interrupt) {
    const SegmentBounds& b = bounds_;
    const auto n_slopes = static_cast<Index>(b.slopes.size());
    std::ranges::fill(cells_.cells(), Cell{-std::numeric_limits<double>::infinity(), -1, 0});
    cells_(0, 0).done = 0.0;
    const auto work = static_cast<std::uint32_t>(1 + b.n_devices * static_cast<Index>(b.pace.size()) / 8);
    for (Index i = 0; i < length_; ++i) {
        const auto from = cells_.row(i);
        for (Index j = i + 1; j <= length_; ++j) {
            if (interrupt.stop(work)) return false;
            const auto to = cells_.row(j);
            for (Index members = 1; members < static_cast<Index>(b.pace.size()); ++members) {
                const double within = static_cast<double>(members) * (limit - b.pace[members] * b.weight(i, j));
                if (b.load(i, j) > within) continue;
                double able = within;
                for (Index k = 0; k < n_slopes; ++k) {
                    able = std::min(able, b.most(k * (length_ + 1) + i, j) + b.slopes[k] * within);
                }
                for (Index used = 0; used + members <= b.n_devices; ++used) {
                    const double total = from[used].done + able;
                    if (total > to[used + members].done) {
                        to[used + members] = {total, static_cast<std::int32_t>(i), static_cast<std::int32_t>(members)};
                    }
                }
            }
        }
    }
    Index used = 1;
    const auto enough = [&] {
        return cells_(length_, used).done + static_cast<double>(b.n_devices - used) * limit >= b.work * (1 - 1e-9);
    };
    while (used <= b.n_devices && !enough()) ++used;
    if (used > b.n_devices) return false;
    std::ranges::fill(begins_, -1);
    for (Index j = length_; j > 0;) {
        const Cell& last = cells_(j, used);
        begins_[j] = last.begin;
        used -= last.n_members;
        j = last.begin;
    }
    return true;
}

}  // namespace placewise

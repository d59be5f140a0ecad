#include "pipeline_dp/path_segments.hpp"

#include <algorithm>
#include <limits>

#include "pipeline_dp/stage_costs.hpp"

namespace placewise {

// What a stage does within `limit` at most: the least of all most(k, i, j) + slopes(k) · limit, and `able`.
static double least_line(const TableView<const double>& most, std::span<const double> slopes, Index rows, Index i,
                         Index j, double limit, double able) {
    for (Index k = 0; k < static_cast<Index>(slopes.size()); ++k) {
        able = std::min(able, most(k * rows + i, j) + slopes[k] * limit);
    }
    return able;
}

PathSegments::PathSegments(const SegmentBounds& bounds)
    : bounds_(bounds),
      length_(bounds.load.rows() - 1),
      n_hosts_(bounds.host.n_devices),
      cells_(length_ + 1, (bounds.n_devices + 1) * (n_hosts_ + 1)),
      begins_(length_ + 1, -1) {}

double PathSegments::least_load(double precision, Interrupt& interrupt) {
    double low = bounds_.low;
    if (is_possible(low, interrupt)) return low;
    double step = std::max(low, 1.0) * precision;
    double high = low + step;
    while (high < static_cast<double>(NEVER) && !is_possible(high, interrupt)) {
        if (interrupt.stopped()) return low;
        low = high;
        step *= 2;
        high = low + step;
    }
    bool known = true;  // the segments are those of `high`
    while (high - low > precision * high) {
        const double middle = (low + high) / 2;
        known = is_possible(middle, interrupt);
        if (interrupt.stopped()) return low;
        (known ? high : low) = middle;
    }
    if (!known) is_possible(high, interrupt);
    return low;
}

// Whether the path can be cut into segments of loads within `limit` on which all the work can be done.
bool PathSegments::is_possible(double limit, Interrupt& interrupt) {
    const SegmentBounds& b = bounds_;
    const Index columns = n_hosts_ + 1;
    std::ranges::fill(cells_.cells(), Cell{-std::numeric_limits<double>::infinity(), -1, 0});
    cells_(0, 0).done = 0.0;
    const auto work = static_cast<std::uint32_t>(1 + cells_.row(0).size() * b.pace.size() / 8);
    for (Index i = 0; i < length_; ++i) {
        const auto from = cells_.row(i);
        for (Index j = i + 1; j <= length_; ++j) {
            if (interrupt.stop(work)) return false;
            const auto to = cells_.row(j);
            for (Index members = 1; members < static_cast<Index>(b.pace.size()); ++members) {
                const double within = static_cast<double>(members) * (limit - b.pace[members] * b.weight(i, j));
                if (b.load(i, j) > within) continue;
                const double able = least_line(b.most, b.slopes, length_ + 1, i, j, within, within);
                const Index step = members * columns;
                for (Index at = 0; at + step < static_cast<Index>(to.size()); ++at) {
                    const double total = from[at].done + able;
                    if (total > to[at + step].done) {
                        to[at + step] = {total, static_cast<std::int32_t>(i), static_cast<std::int32_t>(members)};
                    }
                }
            }
            if (n_hosts_ > 0 && b.host.load(i, j) <= limit) add_hosts(i, j, limit);
        }
    }
    double beside = n_hosts_ > 0 ? b.work : 0.0;
    for (Index k = 0; k < static_cast<Index>(b.host.slopes.size()); ++k) {
        beside = std::min(beside, b.host.without[k] + b.host.slopes[k] * limit);
    }
    const auto last = cells_.row(length_);
    for (Index at = 0; at < static_cast<Index>(last.size()); ++at) {
        const auto unused = static_cast<double>(b.n_devices - at / columns);
        const auto free_hosts = static_cast<double>(n_hosts_ - at % columns);
        if (last[at].done + unused * limit + free_hosts * beside >= b.work * (1 - 1e-9)) {
            trace(at);
            return true;
        }
    }
    return false;
}

// The same for a host whose segment goes from i to j.
void PathSegments::add_hosts(Index i, Index j, double limit) {
    const HostBounds& host = bounds_.host;
    const double able = least_line(host.most, host.slopes, length_ + 1, i, j, limit, bounds_.work);
    const auto from = cells_.row(i);
    const auto to = cells_.row(j);
    for (Index at = 0; at + 1 < static_cast<Index>(to.size()); ++at) {
        if (at % (n_hosts_ + 1) == n_hosts_) continue;
        const double total = from[at].done + able;
        if (total > to[at + 1].done) to[at + 1] = {total, static_cast<std::int32_t>(i), 0};
    }
}

// The segments that lead to a cell of the last row, into `begins_`.
void PathSegments::trace(Index at) {
    std::ranges::fill(begins_, -1);
    for (Index j = length_; j > 0;) {
        const Cell& last = cells_(j, at);
        begins_[j] = last.n_members > 0 ? last.begin : -2 - last.begin;
        at -= last.n_members > 0 ? last.n_members * (n_hosts_ + 1) : 1;
        j = last.begin;
    }
}

}  // namespace placewise

#include "bounds/path_cutting.hpp"

#include <algorithm>
#include <limits>

namespace placewise {

namespace {
constexpr double INF = std::numeric_limits<double>::infinity();
}

PathPositions locate_beside_path(const Problem& p, std::span<const std::int32_t> path) {
    const auto length = static_cast<std::int32_t>(path.size());
    PathPositions found{std::vector<std::int32_t>(p.n_ops(), -1), std::vector<std::int32_t>(p.n_ops(), length)};
    for (std::int32_t place = 0; place < length; ++place) found.after[path[place]] = found.before[path[place]] = place;
    for (Index op = 0; op < p.n_ops(); ++op) {
        for (const std::int32_t reader : p.readers_of(op)) {
            found.after[reader] = std::max(found.after[reader], found.after[op]);
        }
    }
    for (Index op = p.n_ops() - 1; op >= 0; --op) {
        for (const std::int32_t reader : p.readers_of(op)) {
            found.before[op] = std::min(found.before[op], found.before[reader]);
        }
    }
    return found;
}

PathCutter::PathCutter(std::span<const double> host, TableView<const bool> fits, std::span<const bool> tied)
    : host_(host),
      fits_(fits),
      tied_(tied),
      at_(host.size() + 1),
      run_(fits.rows(), fits.columns()),
      came_(fits.rows(), fits.columns()),
      last_(host.size() + 1) {}

// Fill in what leads where. A run that began earlier than another, and is no quicker, has less room left: no use.
void PathCutter::relax(TableView<const double> seconds) {
    const auto m = static_cast<Index>(host_.size());
    std::fill(at_.begin(), at_.end(), INF);
    std::fill(run_.cells().begin(), run_.cells().end(), INF);
    std::fill(last_.begin(), last_.end(), -1);
    const auto enter = [&](Index i, Index j) {
        if (run_(i, j) < at_[j]) {
            at_[j] = run_(i, j);
            last_[j] = static_cast<std::int32_t>(i);
        }
    };
    at_[0] = 0.0;
    for (Index j = 0; j < m; ++j) {
        if (!tied_[j]) {
            for (Index i = 0; i < j; ++i) enter(i, j);
        }
        at_[j + 1] = at_[j] + host_[j];
        double least = INF;
        for (Index i = j; i >= (tied_[j] ? 0 : j); --i) {
            const double reached = tied_[j] ? run_(i, j) : at_[j];
            if (reached >= least || (tied_[j] && i == j)) continue;
            least = reached;
            for (Index k = j + 1; k <= m && fits_(i, k); ++k) {
                if (reached + seconds(j, k) < run_(i, k)) {
                    run_(i, k) = reached + seconds(j, k);
                    came_(i, k) = static_cast<std::int32_t>(j);
                }
            }
        }
    }
    for (Index i = 0; i < m; ++i) enter(i, m);
}

double PathCutter::find_shortest(TableView<const double> seconds, std::vector<std::pair<Index, Index>>& segments) {
    relax(seconds);
    segments.clear();
    const double value = at_.back();
    if (!(value < INF)) return value;
    Index j = static_cast<Index>(host_.size()), run = -1;
    while (j > 0) {
        if (run < 0) run = last_[j];
        if (run < 0) {
            --j;
            continue;
        }
        const Index i = came_(run, j);
        segments.emplace_back(i, j);
        j = i;
        if (!tied_[i]) run = -1;
    }
    return value;
}

}  // namespace placewise

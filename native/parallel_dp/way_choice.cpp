#include "parallel_dp/way_choice.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

namespace placewise {

namespace {

constexpr std::size_t MOST_POINTS = 1 << 14;
constexpr double INF = std::numeric_limits<double>::infinity();
// Sums that exceed the capacity by their own rounding fit; the rules allow a little more, so what fits here keeps them.
constexpr double ROUNDING = 9e-13;

}  // namespace

void WayChoice::start(double capacity) {
    capacity_ = capacity * (1 + ROUNDING);
    n_units_ = 0;
    kind_of_.clear();
    relaxed_ = false;
}

// Options are kept by seconds, and every further one needs fewer bytes.
void WayChoice::add_unit(std::int32_t kind, std::span<const Option> options) {
    if (n_units_ == units_.size()) units_.emplace_back();
    std::vector<Option>& kept = units_[n_units_++];
    kept.assign(options.begin(), options.end());
    kind_of_.push_back(kind);
    if (kept.size() < 2) return;
    std::ranges::sort(kept, [](const Option& a, const Option& b) {
        return std::tie(a.seconds, a.bytes, a.way) < std::tie(b.seconds, b.bytes, b.way);
    });
    std::size_t n = 1;
    for (std::size_t i = 1; i < kept.size(); ++i) {
        if (kept[i].bytes < kept[n - 1].bytes) kept[n++] = kept[i];
    }
    kept.resize(n);
}

// Units with equal options are one kind, so that fronts grow with the number of kinds and not of units.
void WayChoice::group_kinds() {
    kinds_.clear();
    std::vector<std::int32_t> group(n_units_ + 1, -1);  // by kind, where numbers are small
    for (Index unit = 0; unit < static_cast<Index>(n_units_); ++unit) {
        const std::int32_t kind = kind_of_[unit];
        if (kind >= static_cast<std::int32_t>(group.size())) group.resize(kind + 1, -1);
        if (kind < 0 || group[kind] < 0) {
            if (kind >= 0) group[kind] = static_cast<std::int32_t>(kinds_.size());
            kinds_.push_back({units_[unit], {unit}});
        } else {
            kinds_[group[kind]].members.push_back(unit);
        }
    }
}

double WayChoice::least_seconds() {
    double seconds = 0.0, bytes = 0.0, least_bytes = 0.0;
    for (const auto& options : units()) {
        if (options.empty()) return INF;
        seconds += options.front().seconds;
        bytes += options.front().bytes;
        least_bytes += options.back().bytes;
    }
    if (bytes <= capacity_) return seconds;
    if (least_bytes > capacity_) return INF;
    return solve(true);
}

std::vector<std::int32_t> WayChoice::choose() {
    std::vector<std::int32_t> chosen(n_units_);
    double bytes = 0.0;
    for (std::size_t unit = 0; unit < n_units_; ++unit) {
        chosen[unit] = units_[unit].front().way;
        bytes += units_[unit].front().bytes;
    }
    if (bytes <= capacity_) return chosen;
    if (solve(false) == INF) return {};
    std::int32_t at = best_;
    for (auto step = static_cast<Index>(steps_.size()) - 1; step >= 0; --step) {
        const Point& point = fronts_[step + 1][at];
        const std::vector<Index>& members = steps_[step].members;
        for (Index m = 0; m < static_cast<Index>(members.size()); ++m) {
            const std::vector<Option>& options = units_[members[m]];
            // Of several members, the choice is how many of them take the second of two options.
            const std::int32_t option =
                members.size() == 1 ? point.choice : static_cast<std::int32_t>(m < point.choice);
            chosen[members[m]] = options[option].way;
        }
        at = point.before;
    }
    return chosen;
}

// All members of a kind with two options are one step, whose choice is how many take the second; else each is its own.
void WayChoice::list_steps() {
    steps_.clear();
    for (const Kind& kind : kinds_) {
        if (kind.options.size() != 2 || kind.members.size() == 1) {
            for (const Index member : kind.members) steps_.push_back({{member}, kind.options});
            continue;
        }
        const Option fast = kind.options[0], slim = kind.options[1];
        const auto n = static_cast<std::int32_t>(kind.members.size());
        Step step{kind.members, {}};
        for (std::int32_t taken = 0; taken <= n; ++taken) {
            step.choices.push_back({fast.seconds * (n - taken) + slim.seconds * taken,
                                    fast.bytes * (n - taken) + slim.bytes * taken, taken});
        }
        steps_.push_back(std::move(step));
    }
}

// Step by step, the points (seconds, bytes) that no other point beats in both. Where there are too many of them, each
// pair keeps one: optimistic, with the least of both; otherwise a point that exists.
double WayChoice::solve(bool optimistic) {
    group_kinds();
    list_steps();
    double rest = 0.0;  // the least bytes of the steps that are still to come
    for (const Step& step : steps_) rest += step.choices.back().bytes;
    fronts_.assign(1, {{0.0, 0.0, -1, -1}});
    std::vector<Point> grown;
    for (const Step& step : steps_) {
        rest -= step.choices.back().bytes;
        grown.clear();
        const std::vector<Point>& front = fronts_.back();
        for (std::int32_t at = 0; at < static_cast<std::int32_t>(front.size()); ++at) {
            for (std::int32_t c = 0; c < static_cast<std::int32_t>(step.choices.size()); ++c) {
                const double bytes = front[at].bytes + step.choices[c].bytes;
                if (bytes + rest > capacity_ * (1 + 1e-12)) continue;
                grown.push_back({front[at].seconds + step.choices[c].seconds, bytes, at, c});
            }
        }
        fronts_.push_back(without_beaten(grown, optimistic));
    }
    const std::vector<Point>& last = fronts_.back();
    const auto fits = std::ranges::find_if(last, [&](const Point& point) { return point.bytes <= capacity_; });
    best_ = static_cast<std::int32_t>(fits - last.begin());
    return fits == last.end() ? INF : fits->seconds;
}

std::vector<WayChoice::Point> WayChoice::without_beaten(std::vector<Point>& points, bool optimistic) {
    std::ranges::sort(points, [](const Point& a, const Point& b) {
        return std::tie(a.seconds, a.bytes, a.before, a.choice) < std::tie(b.seconds, b.bytes, b.before, b.choice);
    });
    std::vector<Point> kept;
    for (const Point& point : points) {
        if (kept.empty() || point.bytes < kept.back().bytes) kept.push_back(point);
    }
    if (kept.size() <= MOST_POINTS) return kept;
    relaxed_ = true;
    std::vector<Point> thinned;
    for (std::size_t i = 0; i < kept.size(); i += 2) {
        thinned.push_back(kept[i]);
        if (i + 1 == kept.size()) break;
        if (optimistic) thinned.back().bytes = kept[i + 1].bytes;
        if (!optimistic && i + 2 >= kept.size()) thinned.back() = kept[i + 1];
    }
    return thinned;
}

}  // namespace placewise

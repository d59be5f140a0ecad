#include "pipeline_dp/stage_expansion.hpp"

#include <algorithm>
#include <utility>

namespace placewise {

namespace {

// Floating point must not prune what is only just good enough.
constexpr double SLACK = 1 + 1e-9;

// What each of the members of a stage does of it; a division costs more than all the rest.
std::int64_t share(std::int64_t seconds, Index members) {
    return members == 1 ? seconds : seconds / members;
}

}  // namespace

DeviceStates::DeviceStates(std::span<const std::int32_t> n_devices, bool ordered) : stride(n_devices.size(), 1) {
    const auto n_classes = static_cast<Index>(n_devices.size());
    Index n_states = 1;
    if (ordered) {
        n_states = n_classes + 1;
    } else {
        for (Index k = n_classes - 1; k >= 0; --k) {
            stride[k] = n_states;
            n_states *= n_devices[k] + 1;
        }
    }
    used = Table<std::int32_t>(n_states, n_classes);
    for (Index s = 0; s < n_states; ++s) {
        for (Index k = 0; k < n_classes; ++k) {
            used(s, k) = static_cast<std::int32_t>(ordered ? s > k : s / stride[k] % (n_devices[k] + 1));
        }
    }
}

StageExpansion::StageExpansion(const StageCosts& costs, const Ideals& ideals, Remainder work)
    : costs_(costs),
      ideals_(ideals),
      full_(ideals.size() - 1),
      two_phases_(costs.two_phases()),
      states_(costs.n_devices, costs.ordered),
      work_(std::move(work)),
      unfinished_(states_.used.rows()),
      spare_(costs.n_classes(), 1),
      cells_(ideals.size(), states_.used.rows()),
      stage_(costs),
      reached_from_(ideals.size()),
      usable_(costs.n_classes()) {
    path_.reserve(costs.n() + 1);
    live_.reserve(states_.used.rows());
    cells_(0, 0).value = 0;
}

void StageExpansion::restrict_states(std::vector<std::uint8_t> unfinished, std::vector<std::uint8_t> spare) {
    unfinished_ = std::move(unfinished);
    spare_ = std::move(spare);
}

void StageExpansion::bound_phases(Remainder forward, Remainder both) {
    forward_ = std::move(forward);
    both_ = std::move(both);
}

void StageExpansion::start(std::int64_t beat, std::int64_t forward_limit, std::int64_t both_limit) {
    best_ = beat;
    best_state_ = -1;
    forward_limit_ = forward_limit;
    next_forward_limit_ = NEVER;
    both_limit_ = both_limit;
    if (base_ == 0 && path_.empty()) return;  // nothing was written yet
    std::ranges::fill(cells_.cells(), Cell());
    cells_(0, 0).value = 0;
    for (; !path_.empty(); path_.pop_back()) {
        if (path_.size() > 1) stage_.remove(path_.back().component);
    }
    base_ = 0;
    std::ranges::fill(reached_from_, -1);
}

bool StageExpansion::expand(Interrupt& interrupt) {
    while (base_ < full_) {
        std::uint32_t work = step_work_;
        if (!path_.empty()) {
            advance();
            if (path_.empty()) ++base_;
        } else {
            work = static_cast<std::uint32_t>(1 + states_.used.rows() / 64);
            if (!begin_base()) ++base_;
        }
        if (interrupt.stop(work)) break;
    }
    return base_ == full_;
}

// List the states of the base that are worth growing from; whether there are any.
bool StageExpansion::begin_base() {
    const auto row = cells_.row(base_);
    const Index n_classes = costs_.n_classes();
    std::ranges::fill(usable_, 0);
    live_.clear();
    most_room_ = 0.0;
    for (Index s = 0; s < states_.used.rows(); ++s) {
        const auto used = states_.used.row(s);
        bool dominated = false;
        for (Index k = 0; k < n_classes; ++k) {
            if (spare_[k] && used[k] > 0 && row[s - states_.stride[k]].value <= row[s].value) {
                row[s].value = row[s - states_.stride[k]].value;
                dominated = true;
            }
        }
        if (dominated || row[s].value >= best_ || !does_the_rest(base_, s)) continue;
        live_.push_back({s, row[s].value});
        most_room_ = std::max(most_room_, work_.room[s]);
        for (Index k = 0; k < n_classes; ++k) {
            const Index unused = costs_.n_devices[k] - used[k];
            usable_[k] = std::max(usable_[k], std::min<Index>(unused, costs_.most[k]));
        }
    }
    if (live_.empty()) return false;
    step_work_ = static_cast<std::uint32_t>(1 + std::ranges::max(usable_) * static_cast<Index>(live_.size()) / 16);
    stage_.begin(ideals_, base_);
    push(base_, -1);
    return true;
}

// At the best known max-load, the devices that a state leaves can do the work that an ideal leaves.
bool StageExpansion::does_the_rest(Index ideal, Index state) const {
    return static_cast<double>(work_.left[ideal]) <= work_.room[state] * static_cast<double>(best_) * SLACK;
}

void StageExpansion::push(Index ideal, std::int32_t component) {
    const auto steps = ideals_.steps(ideal);
    path_.push_back({steps.data(), steps.data() + steps.size(), component});
}

// One step of the depth-first search: the next way to grow the stage, or one component back.
void StageExpansion::advance() {
    Visit& visit = path_.back();
    if (visit.next == visit.end) {
        if (path_.size() > 1) stage_.remove(visit.component);
        path_.pop_back();
        return;
    }
    const auto [component, target] = *visit.next++;
    if (reached_from_[target] == base_) return;
    reached_from_[target] = static_cast<std::int32_t>(base_);
    stage_.preview(component);
    if (!is_possible(stage_.footprint(stage_.depth() + 1))) return;
    stage_.add(component);
    if (price(target)) {
        push(target, component);
    } else {
        stage_.remove(component);
    }
}

// Whether the stage that was previewed can be run below the best known max-load, whatever its transfers.
bool StageExpansion::is_possible(const GrowingStage::Footprint& bytes) const {
    for (Index k = 0; k < costs_.n_classes(); ++k) {
        const std::int64_t seconds = stage_.seconds(stage_.depth() + 1, k);
        if (seconds < NEVER && usable_[k] > 0 && bytes.size <= costs_.capacity[k] &&
            share(seconds, usable_[k]) < best_) {
            return true;
        }
    }
    return false;
}

// Offer the stage up to `target` to the live states; whether it is worth growing further.
bool StageExpansion::price(Index target) {
    const GrowingStage::Footprint& bytes = stage_.footprint(stage_.depth());
    bool growing = false;
    for (Index k = 0; k < costs_.n_classes(); ++k) {
        if (stage_.seconds(stage_.depth(), k) >= NEVER || bytes.size > costs_.capacity[k]) continue;
        growing = price_on(k, target, growing);
    }
    return growing;
}

bool StageExpansion::price_on(Index k, Index target, bool growing) {
    const std::int64_t seconds = stage_.seconds(stage_.depth(), k);
    const GrowingStage::Transfers paid = stage_.transfers(costs_.rate[k]);
    const auto weight = static_cast<double>(stage_.footprint(stage_.depth()).weight);
    const auto sync_of = [&](Index members) {
        return members == 1 ? 0 : static_cast<std::int64_t>(weight * costs_.pace(k, members));
    };
    const auto least_of = [&](Index members, std::int64_t sync) {
        return member_load(seconds, paid.enter_always, paid.leave_always, sync, members, costs_.mode);
    };
    const std::int64_t alone = least_of(1, 0);
    const Index first = alone < best_ ? 1 : alone / std::max<std::int64_t>(best_, 1) + 1;
    Index last = usable_[k];
    if (last > 1 && !two_phases_) {
        for (Index members = last; members >= first && !growing; --members) {
            growing = least_of(members, sync_of(members)) < best_;
        }
        last = most_in_room(target, k);
    }
    for (Index members = first; members <= last; ++members) {
        const std::int64_t sync = sync_of(members);
        const std::int64_t load = member_load(seconds, paid.enter, paid.leave, sync, members, costs_.mode);
        const std::int64_t least = least_of(members, sync);
        if (two_phases_ && least < best_ && !keeps_phases(k, members, load, least, growing)) continue;
        growing |= least < best_;
        if (load < best_) reach(target, k, members, load);
    }
    return growing;
}

// Whether a stage keeps the limits of both phases, from its backward load and what no component can take from that.
bool StageExpansion::keeps_phases(Index k, Index members, std::int64_t load, std::int64_t least, bool& growing) {
    const Index column = k + costs_.n_classes();
    const std::int64_t seconds = stage_.seconds(stage_.depth(), column);
    std::int64_t forward = share(seconds, members), always = forward;
    if (costs_.rate[column] >= 0) {
        const GrowingStage::Transfers paid = stage_.transfers(costs_.rate[column]);
        forward = member_load(seconds, paid.enter, paid.leave, 0, members, costs_.mode);
        always = member_load(seconds, paid.enter_always, paid.leave_always, 0, members, costs_.mode);
    }
    if (least + always >= both_limit_) return false;
    const bool can_fit = always <= forward_limit_;
    growing |= can_fit;
    if (load < best_ && forward <= forward_limit_ && load + forward < both_limit_) return true;
    if (!can_fit) {
        next_forward_limit_ = std::min(next_forward_limit_, always);
    } else if (load < best_ && load + forward < both_limit_) {
        next_forward_limit_ = std::min(next_forward_limit_, forward);
    }
    return false;
}

// Record what a stage on members of a class leads to, from every live state.
void StageExpansion::reach(Index target, Index k, Index members, std::int64_t load) {
    const Index stride = members * states_.stride[k];
    const auto row = cells_.row(target);
    for (const LiveState& live : live_) {
        if (states_.used(live.state, k) + members > costs_.n_devices[k]) continue;
        const std::int64_t value = std::max(live.value, load);
        const Index after = costs_.ordered ? k + 1 : live.state + stride;
        if (value >= std::min(best_, row[after].value)) continue;
        if (target == full_ && unfinished_[after]) continue;
        if (two_phases_ && !fits_phases(target, after)) continue;
        if (!does_the_rest(target, after)) continue;
        row[after] = {value, static_cast<std::int32_t>(base_), static_cast<std::int32_t>(live.state)};
        if (target == full_) {
            best_ = value;
            best_state_ = after;
        }
    }
}

// Whether the devices that a state leaves can do what an ideal leaves, within the limits of both phases.
bool StageExpansion::fits_phases(Index ideal, Index state) {
    if (static_cast<double>(both_.left[ideal]) > both_.room[state] * SLACK * static_cast<double>(both_limit_)) {
        return false;
    }
    const auto left = static_cast<double>(forward_.left[ideal]);
    const double room = forward_.room[state] * SLACK;
    if (left <= room * static_cast<double>(forward_limit_)) return true;
    if (room > 0 && left < room * static_cast<double>(next_forward_limit_)) {
        next_forward_limit_ = std::max(forward_limit_ + 1, static_cast<std::int64_t>(left / room));
    }
    return false;
}

// The most devices of a class that a stage up to an ideal may have, so that the others can do what is left.
Index StageExpansion::most_in_room(Index target, Index k) const {
    const double price = work_.room[0] - work_.room[states_.stride[k]];
    if (price <= 0) return usable_[k];
    const auto best = static_cast<double>(std::max<std::int64_t>(best_, 1));
    const double needed = static_cast<double>(work_.left[target]) / (best * SLACK);
    return static_cast<Index>(std::clamp((most_room_ - needed) / price + 1e-6, 0.0, static_cast<double>(usable_[k])));
}

std::vector<ChainStage> StageExpansion::chain() const {
    std::vector<ChainStage> stages;
    Index ideal = full_, state = best_state_;
    while (ideal > 0 && state >= 0) {
        const Cell& cell = cells_(ideal, state);
        const auto now = states_.used.row(state), before = states_.used.row(cell.parent_state);
        const Index k = costs_.ordered ? state - 1 : std::ranges::mismatch(now, before).in1 - now.begin();
        stages.push_back({cell.parent, ideal, k, before[k], now[k] - before[k]});
        ideal = cell.parent;
        state = cell.parent_state;
    }
    return stages;
}

}  // namespace placewise

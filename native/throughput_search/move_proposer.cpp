#include "throughput_search/move_proposer.hpp"

#include <algorithm>
#include <utility>

namespace placewise {

namespace {
// The most groups that are looked at for one that has a neighbor elsewhere.
constexpr int BORDER_ATTEMPTS = 16;
// The most draws for a group that is on a given device.
constexpr int RESIDENT_ATTEMPTS = 12;
}  // namespace

GroupMoveProposer::GroupMoveProposer(const ThroughputCosts& costs, const Clusters& clusters,
                                     std::span<const std::int32_t> positions, TableView<const std::int32_t> tradable,
                                     std::uint64_t seed)
    : costs_(costs),
      clusters_(clusters),
      tradable_(tradable),
      rng_(seed),
      positions_(positions.begin(), positions.end()),
      max_moves_(2 * costs.n_groups() + 1),
      n_groups_(costs.n_groups()),
      cursor_(static_cast<Index>(seed % static_cast<std::uint64_t>(std::max<Index>(costs.n_groups(), 1)))) {}

std::span<const Move> GroupMoveProposer::propose(PipelineState& state) {
    assignment_ = state.assignment;
    const auto device = assignment_;
    moves_.clear();
    exchanged_pair_ = -1;
    if (tradable_.rows() > 0 && pick(64 + 4 * n_groups_) == 0) {
        exchange_devices();
        return moves_;
    }
    const auto [group, neighbor] = pick_group();
    const std::int32_t here = device[group];
    std::int32_t there = neighbor < 0 ? here : device[neighbor];
    if (there == here || pick(10) == 0) {
        if (neighbor >= 0 && pick(2) == 0) return {};
        there = static_cast<std::int32_t>(pick(costs_.n_devices()));
    }
    if (there == here || !can_run(group, there)) return {};
    if (costs_.chained && !costs_.ordered && state.n_groups()[there] == 0) reposition_empty(there, here);
    propose_from({static_cast<std::int32_t>(group), here, there});
    return moves_;
}

void GroupMoveProposer::propose_from(Move shift) {
    const Index kind = pick(32);
    if (kind < 9 && !must_take_along(shift.group, shift.target)) {
        assign(shift.group, shift.target);
    } else if (kind < 15) {
        swap(shift);
    } else if (kind < 20) {
        follow(shift);
    } else if (kind < 24) {
        move_cluster(clusters_.at(pick(clusters_.n_levels()), shift.group), shift.origin, shift.target);
    } else if (kind < 27) {
        trade_clusters(shift);
    } else if (kind < 29) {
        cross_border(shift);
    } else if (kind < 30) {
        follow_path(shift);
    } else {
        move_stretch(shift);
    }
}

void GroupMoveProposer::revert(PipelineState& state) {
    for (auto move = moves_.rbegin(); move != moves_.rend(); ++move) state.assignment[move->group] = move->origin;
    if (exchanged_pair_ >= 0) exchange_positions(exchanged_pair_);
}

void GroupMoveProposer::undo() {
    for (auto move = moves_.rbegin(); move != moves_.rend(); ++move) assignment_[move->group] = move->origin;
    moves_.clear();
}

// A random group that shares a tensor with this one, or −1.
inline Index GroupMoveProposer::pick_neighbor(Index group) {
    const auto inputs = costs_.inputs[group], outputs = costs_.outputs[group];
    const auto n_inputs = static_cast<Index>(inputs.size()), n_outputs = static_cast<Index>(outputs.size());
    if (n_inputs + n_outputs == 0) return -1;
    const Index chosen = pick(n_inputs + n_outputs);
    const std::int32_t tensor = chosen < n_inputs ? inputs[chosen] : outputs[chosen - n_inputs];
    if (chosen < n_inputs && costs_.producer[tensor] >= 0 && pick(10) < 7) return costs_.producer[tensor];
    const auto consumers = costs_.consumers[tensor];
    return consumers.empty() ? -1 : consumers[pick(static_cast<Index>(consumers.size()))];
}

// A group and a neighbor: half of the time the next of those found to have one elsewhere.
GroupMoveProposer::Candidate GroupMoveProposer::pick_group() {
    const auto device = assignment_;
    Index group = pick(n_groups_);
    Index neighbor = pick_neighbor(group);
    if (pick(2) == 0) return {group, neighbor};
    for (int attempt = 0; attempt < BORDER_ATTEMPTS; ++attempt) {
        if (neighbor >= 0 && device[neighbor] != device[group]) break;
        cursor_ = cursor_ + 1 < n_groups_ ? cursor_ + 1 : 0;
        group = cursor_;
        neighbor = pick_neighbor(group);
    }
    return {group, neighbor};
}

// How many: few most often, but twice as many are never much less likely.
Index GroupMoveProposer::pick_size(Index most) {
    Index top = 1;
    while (top < most && pick(4) > 0) top *= 2;
    return std::min(most, top - pick((top + 1) / 2));
}

// A random group on a device, or −1 if a few draws find none.
Index GroupMoveProposer::pick_resident(std::int32_t device) {
    for (int attempt = 0; attempt < RESIDENT_ATTEMPTS; ++attempt) {
        const Index group = pick(n_groups_);
        if (assignment_[group] == device) return group;
    }
    return -1;
}

// Whether other groups must move with this one, so that the stages remain a chain.
bool GroupMoveProposer::must_take_along(Index group, std::int32_t target) const {
    if (!costs_.chained) return false;
    const auto position = [&](std::int32_t other) { return positions_[assignment_[other]]; };
    const std::int32_t here = position(static_cast<std::int32_t>(group)), there = positions_[target];
    if (here < there) {
        const auto later = costs_.successors[group];
        return std::any_of(later.begin(), later.end(), [&](std::int32_t other) { return position(other) < there; });
    }
    const auto earlier = costs_.predecessors[group];
    return std::any_of(earlier.begin(), earlier.end(), [&](std::int32_t other) { return position(other) > there; });
}

inline void GroupMoveProposer::assign(Index group, std::int32_t target) {
    std::int32_t& device = assignment_[group];
    moves_.push_back({static_cast<std::int32_t>(group), device, target});
    device = target;
}

// Move a group with what must follow; false, and all undone, if that is impossible.
inline bool GroupMoveProposer::move_group(Index group, std::int32_t target) {
    assign(group, target);
    return !costs_.chained || take_along(moves_.size() - 1, target);
}

// Move what must follow the move `first` to the same device.
bool GroupMoveProposer::take_along(std::size_t first, std::int32_t target) {
    const std::int32_t there = positions_[target];
    const auto most = static_cast<std::size_t>(std::min(Index{2} << pick(9), n_groups_));
    const bool goes_later = positions_[moves_[first].origin] < there;
    const Adjacency& followers = goes_later ? costs_.successors : costs_.predecessors;
    for (std::size_t at = first; at < moves_.size(); ++at) {
        for (const std::int32_t other : followers[moves_[at].group]) {
            const std::int32_t position = positions_[assignment_[other]];
            if (position == there || (position < there) != goes_later) continue;
            if (moves_.size() - first >= most || moves_.size() >= max_moves_ || !can_run(other, target)) {
                undo();
                return false;
            }
            assign(other, target);
        }
    }
    return true;
}

void GroupMoveProposer::swap(Move shift) {
    const bool moved = move_group(shift.group, shift.target);
    const Index other = pick_resident(shift.target);
    if (!moved) return;
    const std::int32_t back = pick(10) < 7 ? shift.origin : static_cast<std::int32_t>(pick(costs_.n_devices()));
    if (other >= 0 && other != shift.group && back != shift.target && can_run(other, back)) move_group(other, back);
}

void GroupMoveProposer::follow(Move shift) {
    if (!move_group(shift.group, shift.target)) return;
    const Index wanted = pick_size(128);
    const auto most = static_cast<std::size_t>(std::min(wanted, n_groups_));
    for (Index attempt = 0; attempt < 2 * wanted && moves_.size() < most; ++attempt) {
        const Index moved = moves_[pick(static_cast<Index>(moves_.size()))].group;
        const Index neighbor = pick_neighbor(moved);
        if (neighbor < 0 || assignment_[neighbor] != shift.origin || !can_run(neighbor, shift.target)) continue;
        if (!move_group(neighbor, shift.target)) return;
    }
}

// All groups of a cluster that are at the origin and may run at the target go there; false, and all undone, if what
// must follow cannot.
bool GroupMoveProposer::move_cluster(Index cluster, std::int32_t origin, std::int32_t target) {
    for (const std::int32_t group : clusters_.groups(cluster)) {
        if (assignment_[group] != origin || !can_run(group, target) || moves_.size() >= max_moves_) continue;
        if (!move_group(group, target)) return false;
    }
    return true;
}

// A cluster goes there, and another of its size comes back.
void GroupMoveProposer::trade_clusters(Move shift) {
    const Index level = pick(clusters_.n_levels());
    const Index other = pick_resident(shift.target);
    const Index mine = clusters_.at(level, shift.group);
    if (!move_cluster(mine, shift.origin, shift.target) || other < 0) return;
    const Index theirs = clusters_.at(level, other);
    if (theirs != mine) move_cluster(theirs, shift.target, shift.origin);
}

void GroupMoveProposer::cross_border(Move shift) {
    if (!move_group(shift.group, shift.target)) return;
    const Index wanted = pick_size(32);
    const auto most = static_cast<std::size_t>(std::min(wanted, n_groups_));
    Index group = shift.group;
    for (Index attempt = 0; attempt < 4 * wanted && moves_.size() < most; ++attempt) {
        group = group + 1 < n_groups_ ? group + 1 : 0;
        if (assignment_[group] != shift.origin || !can_run(group, shift.target)) continue;
        const Index neighbor = pick_neighbor(group);
        if (neighbor < 0 || assignment_[neighbor] != shift.target) continue;
        if (!move_group(group, shift.target)) return;
    }
}

void GroupMoveProposer::follow_path(Move shift) {
    if (!move_group(shift.group, shift.target)) return;
    Index group = shift.group;
    for (Index left = pick_size(64); left > 0; --left) {
        const auto outputs = costs_.outputs[group];
        if (outputs.empty()) return;
        const auto consumers = costs_.consumers[outputs[pick(static_cast<Index>(outputs.size()))]];
        if (consumers.empty()) return;
        group = consumers[pick(static_cast<Index>(consumers.size()))];
        if (assignment_[group] != shift.origin || !can_run(group, shift.target)) continue;
        if (moves_.size() < max_moves_ && !move_group(group, shift.target)) return;
    }
}

void GroupMoveProposer::move_stretch(Move shift) {
    if (!move_group(shift.group, shift.target)) return;
    const Index end = std::min(shift.group + pick_size(256), n_groups_);
    for (Index group = shift.group + 1; group < end; ++group) {
        if (assignment_[group] != shift.origin || !can_run(group, shift.target)) continue;
        if (!move_group(group, shift.target)) return;
    }
}

// Two devices trade all groups, and their positions in the chain.
void GroupMoveProposer::exchange_devices() {
    const Index pair = pick(tradable_.rows());
    const std::int32_t one = tradable_(pair, 0), other = tradable_(pair, 1);
    for (Index group = 0; group < n_groups_; ++group) {
        const std::int32_t here = assignment_[group];
        if (here != one && here != other) continue;
        const std::int32_t there = here == one ? other : one;
        if (!can_run(group, there)) {
            undo();
            return;
        }
        assign(group, there);
    }
    exchange_positions(pair);
    exchanged_pair_ = pair;
}

void GroupMoveProposer::exchange_positions(Index pair) {
    std::swap(positions_[tradable_(pair, 0)], positions_[tradable_(pair, 1)]);
}

// An empty device takes the position right before or behind another one, at random.
void GroupMoveProposer::reposition_empty(std::int32_t device, std::int32_t beside) {
    const std::int32_t old = positions_[device];
    std::int32_t now = positions_[beside];
    if (old < now && pick(2) == 0) {
        --now;
    } else if (old > now && pick(2) == 0) {
        ++now;
    }
    for (std::int32_t& position : positions_) {
        if (old < position && position <= now) {
            --position;
        } else if (now <= position && position < old) {
            ++position;
        }
    }
    positions_[device] = now;
}

}  // namespace placewise

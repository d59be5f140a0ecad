#include "latency_search/block_assignment.hpp"

#include <algorithm>

namespace placewise {

BlockAssignment::BlockAssignment(const LatencySearchProblem& search, std::span<const std::int32_t> device)
    : search_(search),
      device_(device.begin(), device.end()),
      sites_(search.n_ops()),
      used_bytes_(search.n_devices(), 0),
      work_(search.n_devices(), 0.0),
      n_ops_on_(search.n_devices(), 0),
      n_users_(static_cast<Index>(search.space.storage_bytes.size()), search.n_devices(), 0) {
    moves_.reserve(2 * device_.size());
    for (Index block = 0; block < search.n_blocks(); ++block) hold(block, device_[block]);
    refresh_work();
}

// The bytes and ops of a block come to a device.
void BlockAssignment::hold(Index block, std::int32_t target) {
    const MoveSpace& space = search_.space;
    const Problem& p = search_.problem;
    device_[block] = target;
    used_bytes_[target] += space.state_bytes[block];
    for (const std::int32_t storage : space.storages[block]) {
        if (n_users_(storage, target)++ == 0) used_bytes_[target] += space.storage_bytes[storage];
    }
    const auto members = search_.members()[block];
    for (const std::int32_t op : members) sites_[op] = {p.op_seconds(op, target), target, p.location[target]};
    n_ops_on_[target] += static_cast<Index>(members.size());
}

void BlockAssignment::release(Index block, std::int32_t old) {
    const MoveSpace& space = search_.space;
    used_bytes_[old] -= space.state_bytes[block];
    for (const std::int32_t storage : space.storages[block]) {
        if (--n_users_(storage, old) == 0) used_bytes_[old] -= space.storage_bytes[storage];
    }
    n_ops_on_[old] -= search_.members().length(block);
}

void BlockAssignment::put(Index block, std::int32_t target) {
    const std::int32_t old = device_[block];
    for (const std::int32_t op : search_.members()[block]) {
        work_[old] -= search_.problem.op_seconds(op, old);
        work_[target] += search_.problem.op_seconds(op, target);
    }
    release(block, old);
    hold(block, target);
}

void BlockAssignment::assign(std::span<const std::int32_t> device) {
    moves_.clear();
    for (Index block = 0; block < search_.n_blocks(); ++block) {
        if (device_[block] != device[block]) put(block, device[block]);
    }
    refresh_work();
}

void BlockAssignment::move(Index block, std::int32_t target) {
    if (device_[block] == target || !search_.space.allowed(block, target) || moves_.size() == 2 * device_.size()) {
        return;
    }
    moves_.push_back({static_cast<std::int32_t>(block), device_[block]});
    put(block, target);
}

void BlockAssignment::undo_moves() {
    for (; !moves_.empty(); moves_.pop_back()) put(moves_.back().block, moves_.back().origin);
}

void BlockAssignment::refresh_work() {
    std::fill(work_.begin(), work_.end(), 0.0);
    for (const OpSite& site : sites_) work_[site.device] += site.seconds;
}

bool BlockAssignment::fits() const {
    for (std::size_t d = 0; d < used_bytes_.size(); ++d) {
        if (static_cast<double>(used_bytes_[d]) > search_.space.capacity[d]) return false;
    }
    return true;
}

}  // namespace placewise

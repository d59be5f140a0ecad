#include "list_scheduling/group_memory.hpp"

namespace placewise {

GroupMemory::GroupMemory(const GroupNeeds& needs)
    : needs_(needs),
      home_(needs.n_groups(), -1),
      stored_(static_cast<Index>(needs.storage_bytes.size()), needs.n_devices()),
      free_(needs.capacity.begin(), needs.capacity.end()) {
    for (Index group = 0; group < needs.n_groups(); ++group) {
        if (needs.reserved[group] >= 0) hold(group, needs.reserved[group]);
    }
}

// The bytes that a group still needs on a device, where some of its storages may be already.
std::int64_t GroupMemory::missing_bytes(Index group, Index device) const {
    std::int64_t bytes = needs_.state[group];
    for (const std::int32_t storage : needs_.storages[group]) {
        if (!stored_(storage, device)) bytes += needs_.storage_bytes[storage];
    }
    return bytes;
}

void GroupMemory::hold(Index group, Index device) {
    free_[device] -= missing_bytes(group, device);
    for (const std::int32_t storage : needs_.storages[group]) stored_(storage, device) = 1;
}

void GroupMemory::place(Index group, Index device) {
    home_[group] = static_cast<std::int32_t>(device);
    const std::int32_t reserved = needs_.reserved[group];
    if (reserved == device) return;
    hold(group, device);
    if (reserved >= 0) free_[reserved] += needs_.own[group];
}

}  // namespace placewise

// Where colocation groups are so far, and the memory that this leaves on every device.
#pragma once

#include <span>
#include <vector>

#include "common/views.hpp"

namespace placewise {

// What groups of ops need wherever they run. A place may be reserved for a group: its memory is taken from the start,
// and free for others as soon as the group has gone elsewhere.
struct GroupNeeds {
    TableView<const bool> allowed;                // [n_groups, n_devices]
    std::span<const std::int32_t> reserved;       // [n_groups] the device where a place is reserved, −1: none
    std::span<const std::int64_t> state;          // [n_groups] bytes
    std::span<const std::int64_t> own;            // [n_groups] bytes of state and of storages that no other group uses
    Adjacency storages;                           // of each group
    std::span<const std::int64_t> storage_bytes;  // [n_storages]
    std::span<const std::int64_t> capacity;       // [n_devices] bytes

    Index n_groups() const { return allowed.rows(); }
    Index n_devices() const { return allowed.columns(); }
};

class GroupMemory {
public:
    explicit GroupMemory(const GroupNeeds& needs);

    // The device of a group, −1 while it has none.
    std::int32_t home(Index group) const { return home_[group]; }
    std::vector<std::int32_t>& homes() { return home_; }

    // Whether a group without a home may go to `device`: a place is reserved for it there, or there is room.
    bool fits(Index group, Index device) const {
        return needs_.allowed(group, device) &&
               (needs_.reserved[group] == device || missing_bytes(group, device) <= free_[device]);
    }

    // Whether a group has its home on `device`, or may still have it there.
    bool may_be(Index group, Index device) const {
        return home_[group] == device || (home_[group] < 0 && fits(group, device));
    }

    // Give a group without a home that of `device`, and the place that was reserved for it elsewhere to others.
    void place(Index group, Index device);

private:
    std::int64_t missing_bytes(Index group, Index device) const;
    void hold(Index group, Index device);

    const GroupNeeds& needs_;
    std::vector<std::int32_t> home_;
    Table<std::uint8_t> stored_;      // [n_storages, n_devices]
    std::vector<std::int64_t> free_;  // [n_devices] bytes that are neither used nor reserved
};

}  // namespace placewise

// m-TOPO (Jeon et al., "Baechi", SoCC 2020, section 3): groups in their order, one device after the other.
#pragma once

#include "list_scheduling/group_memory.hpp"

namespace placewise {

// The devices that are filled one after the other, each up to `share` bytes.
struct FillOrder {
    std::span<const std::int32_t> devices;
    Index n_first;  // so many share the groups; the others take what these cannot hold, up to their memory
    double share;
    bool stages;  // a device has one contiguous stage: no group may go elsewhere alone
};

class SequentialFill {
public:
    // `amount` [n_groups] are the bytes that count for a group's share.
    SequentialFill(const GroupNeeds& needs, std::span<const double> amount, const FillOrder& order);

    // Place the groups in the order of their numbers; how many have a home, fewer than all if none is left.
    Index run();
    std::vector<std::int32_t>& homes() { return memory_.homes(); }

private:
    bool within_share(Index group) const;
    bool open_next_device(Index group);
    Index first_with_room(Index group) const;

    const GroupNeeds& needs_;
    std::span<const double> amount_;
    FillOrder order_;
    GroupMemory memory_;
    std::vector<std::uint8_t> opened_;  // [devices]
    Index current_ = -1;                // which of the devices is being filled
    double used_ = 0.0;                 // of its share
};

}  // namespace placewise

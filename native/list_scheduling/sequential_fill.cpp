#include "list_scheduling/sequential_fill.hpp"

namespace placewise {

SequentialFill::SequentialFill(const GroupNeeds& needs, std::span<const double> amount, const FillOrder& order)
    : needs_(needs), amount_(amount), order_(order), memory_(needs), opened_(order.devices.size()) {}

bool SequentialFill::within_share(Index group) const {
    return current_ >= 0 && used_ + amount_[group] <= order_.share && memory_.fits(group, order_.devices[current_]);
}

// Go on with the first device that was not opened yet and holds the group. What merely may not run on the current one
// does not end it, unless stages are contiguous.
bool SequentialFill::open_next_device(Index group) {
    if (!order_.stages && current_ >= 0 && !needs_.allowed(group, order_.devices[current_])) return false;
    const Index last = order_.stages ? static_cast<Index>(order_.devices.size()) : order_.n_first;
    for (Index next = 0; next < last; ++next) {
        if (opened_[next] || !memory_.fits(group, order_.devices[next])) continue;
        opened_[next] = 1;
        current_ = next;
        used_ = 0.0;
        return true;
    }
    return false;
}

Index SequentialFill::first_with_room(Index group) const {
    for (const std::int32_t device : order_.devices) {
        if (memory_.fits(group, device)) return device;
    }
    return -1;
}

Index SequentialFill::run() {
    for (Index group = 0; group < needs_.n_groups(); ++group) {
        if (!within_share(group) && !open_next_device(group)) {
            if (!order_.stages) {
                const Index aside = first_with_room(group);
                if (aside < 0) return group;
                memory_.place(group, aside);
                continue;
            }
            if (current_ < order_.n_first || !memory_.fits(group, order_.devices[current_])) return group;
        }
        memory_.place(group, order_.devices[current_]);
        used_ += amount_[group];
    }
    return needs_.n_groups();
}

}  // namespace placewise

// Loads and memory of an assignment of groups to devices, kept up to date while groups move, in O(degree) per move.
//
// All sums are whole numbers, so that they are exact in any order: exactly the judge's loads.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "throughput_search/costs.hpp"

namespace placewise {

struct Move {
    std::int32_t group;
    std::int32_t origin;
    std::int32_t target;
};

// What an assignment costs: times of every location and wire, phase by phase, and bytes of every device.
class PipelineSums {
public:
    struct Location {
        std::int64_t compute = 0;
        std::int64_t send = 0;
        std::int64_t receive = 0;
    };

    explicit PipelineSums(const ThroughputCosts& costs)
        : memory(costs.n_devices()),
          locations_(costs.n_phases * costs.n_locations()),
          wires_(costs.n_phases * costs.n_wires),
          n_locations_(costs.n_locations()),
          n_wires_(costs.n_wires) {}

    Location& at(Index phase, Index location) { return locations_[phase * n_locations_ + location]; }
    const Location& at(Index phase, Index location) const { return locations_[phase * n_locations_ + location]; }
    std::int64_t& wire(Index phase, Index wire) { return wires_[phase * n_wires_ + wire]; }
    std::span<const std::int64_t> wires(Index phase) const {
        return {wires_.data() + phase * n_wires_, static_cast<std::size_t>(n_wires_)};
    }
    std::int64_t load(Index phase, Index device, Communication mode) const {
        const Location& sums = at(phase, device);
        return combine_load(sums.compute, sums.send, sums.receive, mode);
    }

    // Take over the sums of another assignment of the same groups.
    void copy(const PipelineSums& other) {
        std::copy(other.locations_.begin(), other.locations_.end(), locations_.begin());
        std::copy(other.wires_.begin(), other.wires_.end(), wires_.begin());
        std::copy(other.memory.begin(), other.memory.end(), memory.begin());
    }

    std::vector<std::int64_t> memory;  // [n_devices] resident bytes

private:
    std::vector<Location> locations_;  // [n_phases, n_locations]
    std::vector<std::int64_t> wires_;  // [n_phases, n_wires]
    Index n_locations_;
    Index n_wires_;
};

class PipelineState {
public:
    PipelineState(const ThroughputCosts& costs, std::span<const std::int32_t> assignment);

    // The device of each group. Moves write here first; the sums and counts follow by `apply`, or it is taken back.
    std::vector<std::int32_t> assignment;

    const ThroughputCosts& costs() const { return costs_; }
    const PipelineSums& sums() const { return sums_; }
    // What the sums become by the moves charged since the last `keep` or `discard`.
    const PipelineSums& trial() const { return trial_; }
    std::span<const std::int64_t> n_groups() const { return n_groups_; }
    std::int32_t n_readers(Index tensor, Index location) const { return tensors_(tensor, location); }
    std::int32_t n_holders(Index storage, Index device) const { return holders_(storage, device); }
    std::int64_t missing_bytes(const PipelineSums& sums) const;
    // Of all phases together, in the costs' units.
    std::int64_t max_load() const;

    // Charge a move to the trial sums alone; move a group in the counts alone; both.
    void charge(Move move) { transfer_group<true, false>(move); }
    void count(Move move) { transfer_group<false, true>(move); }
    void apply(Move move) { transfer_group<true, true>(move); }
    void keep() { sums_.copy(trial_); }
    void discard() { trial_.copy(sums_); }

private:
    template <bool charged, bool counted>
    void transfer_group(Move move);
    void charge_reader(Index tensor, const std::int32_t* readers, std::int32_t from, std::int32_t to);
    void charge_producer(Index tensor, const std::int32_t* readers, std::int32_t from, std::int32_t to);
    void charge_hop(Index tensor, Index source, Index target, std::int64_t sign);
    void add_tensor(Index tensor);

    const ThroughputCosts& costs_;
    PipelineSums sums_;
    PipelineSums trial_;
    // [n_tensors, n_locations + 1] readers of each tensor at each location; the last column is where it is made.
    Table<std::int32_t> tensors_;
    Table<std::int32_t> holders_;         // [n_storages, n_devices] groups that hold a storage
    std::vector<std::int64_t> n_groups_;  // [n_devices]
};

}  // namespace placewise

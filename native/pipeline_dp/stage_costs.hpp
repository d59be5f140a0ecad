// What stages of a pipeline cost, in whole units: an immutable view of the columns of
// placewise.placers.shared.stages.stage_costs.ComponentCosts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "common/views.hpp"
#include "judge/max_load.hpp"

namespace placewise {

// More than any sum of costs: the time of a component on a class that may not run it.
inline constexpr std::int64_t NEVER = std::int64_t{1} << 61;

// Components, the tensors between them and classes of devices that are alike. Rate r says what tensors cost where they
// enter and leave the devices of a class; classes of host devices have rate −1 and pay nothing. `mirrored` marks
// tensors that may flow from later components to earlier ones. Where phases add up, `seconds` and `rate` hold the
// backward phase of every class and after it the forward phase.
struct StageCosts {
    TableView<const std::int64_t> seconds;   // [n, n_phases · n_classes], NEVER where not allowed
    std::span<const std::int64_t> size;      // [n] bytes
    std::span<const std::int64_t> weight;    // [n] how many of them are weights
    std::span<const std::int32_t> producer;  // [n_tensors] −1: host memory
    std::span<const std::int32_t> readers;   // [n_tensors] how many components read it, and one more for an output
    std::span<const bool> output;            // [n_tensors]
    std::span<const bool> mirrored;          // [n_tensors]
    Adjacency consumers;                     // of each tensor
    TableView<const std::int64_t> enter;     // [n_tensors, n_rates]
    TableView<const std::int64_t> leave;     // [n_tensors, n_rates]
    Adjacency uses;                          // tensors that a component reads
    Adjacency makes;                         // tensors that it makes
    Adjacency storages;                      // storages that it shares with others
    std::span<const std::int64_t> storage_bytes;
    std::span<const std::int32_t> rate;       // [n_phases · n_classes]
    std::span<const std::int64_t> capacity;   // [n_classes]
    std::span<const std::int32_t> n_devices;  // [n_classes]
    std::span<const std::int32_t> most;       // [n_classes] how many devices may share a stage
    TableView<const double> pace;             // [n_classes, most members + 1] units per byte of weights
    Communication mode = Communication::blocking;
    bool ordered = false;  // stages follow each other as the classes do, of which each is one device

    Index n() const { return seconds.rows(); }
    Index n_classes() const { return static_cast<Index>(n_devices.size()); }
    Index n_rates() const { return enter.columns(); }
    Index n_tensors() const { return static_cast<Index>(producer.size()); }
    bool two_phases() const { return static_cast<Index>(rate.size()) > n_classes(); }
};

// The load of a device, from what it computes, receives and sends.
template <class Amount>
Amount combine(Amount seconds, Amount enter, Amount leave, Communication mode) {
    switch (mode) {
        case Communication::blocking:
            return seconds + enter + leave;
        case Communication::overlap:
            return std::max(seconds, enter + leave);
        default:
            return std::max(seconds, std::max(enter, leave));
    }
}

// The load of each of the members of a stage, from the stage's own sums and its synchronization.
inline std::int64_t member_load(std::int64_t seconds, std::int64_t enter, std::int64_t leave, std::int64_t sync,
                                Index members, Communication mode) {
    if (members == 1) return combine(seconds, enter, leave, mode);
    switch (mode) {
        case Communication::blocking:
            return (seconds + enter + leave) / members + sync;
        case Communication::overlap:
            return std::max(seconds / members, (enter + leave) / members + sync);
        default:
            return std::max(seconds / members, std::max(enter, leave) / members + sync);
    }
}

}  // namespace placewise

// What a pipeline of groups of ops costs, in whole units of time: an immutable view of the columns of
// placewise.placers.shared.throughput_search.pipeline_costs.PipelineCosts.
//
// Locations are device indices, and `host()` for host memory. With the schedule `gpipe` there are two phases, whose
// largest loads add up.
#pragma once

#include <span>

#include "common/views.hpp"
#include "judge/max_load.hpp"

namespace placewise {

struct ThroughputCosts {
    // The time of a group on a device that may not run it.
    static constexpr std::int64_t NEVER = std::int64_t{1} << 61;

    TableView<const std::int64_t> seconds;    // [n_groups, n_phases · n_kinds], phase by phase
    std::span<const std::int32_t> kind;       // [n_devices] the column of each device
    TableView<const std::int64_t> transfer;   // [n_tensors, n_link_classes]
    std::span<const std::int8_t> phase;       // [n_tensors]
    std::span<const std::int32_t> producer;   // [n_tensors], −1 for the host
    std::span<const std::int32_t> n_readers;  // [n_tensors] consumers, and one more if the host wants the tensor
    std::span<const bool> output;             // [n_tensors]
    Adjacency consumers;                      // the distinct consumers of each tensor, its producer excepted
    Adjacency inputs;                         // the tensors that a group reads
    Adjacency outputs;                        // the tensors that it makes
    std::span<const std::int64_t> bytes;      // [n_groups]
    Adjacency storages;                       // the shared storages that a group holds
    std::span<const std::int64_t> storage_bytes;
    std::span<const std::int64_t> capacity;    // [n_devices] bytes
    std::span<const std::int32_t> location;    // [n_devices]
    TableView<const std::int32_t> link_class;  // [n_devices + 1, n_devices + 1], as is the next
    TableView<const std::int32_t> wire;        // −1: a link of its own
    Adjacency successors;                      // groups that a chain of stages must have later
    Adjacency predecessors;                    // … and earlier
    bool staged = false;                       // transfers pass through host memory
    bool chained = false;                      // stages must form a chain
    bool ordered = false;                      // … and follow each other as the devices do
    Communication mode = Communication::blocking;
    Index n_phases = 1;
    Index n_kinds = 1;
    Index n_wires = 0;

    Index n_groups() const { return seconds.rows(); }
    Index n_devices() const { return static_cast<Index>(kind.size()); }
    Index n_locations() const { return n_devices() + 1; }
    Index n_tensors() const { return transfer.rows(); }
    Index n_storages() const { return static_cast<Index>(storage_bytes.size()); }
    std::int32_t host() const { return static_cast<std::int32_t>(n_devices()); }

    bool can_run(Index group, Index device) const { return seconds(group, kind[device]) < NEVER; }
    std::int64_t run_time(Index group, Index device, Index phase) const {
        return seconds(group, phase * n_kinds + kind[device]);
    }
    std::int64_t hop_time(Index tensor, Index source, Index target) const {
        return transfer(tensor, link_class(source, target));
    }
};

}  // namespace placewise

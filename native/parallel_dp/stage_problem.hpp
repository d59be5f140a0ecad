// A pipeline whose units may be split over devices, repeated, and recomputed: what the dynamic program reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/views.hpp"

namespace placewise {

// Bytes per second and seconds per message.
struct Route {
    double bandwidth;
    double latency;

    double seconds(double bytes) const { return latency + bytes / bandwidth; }
};

// Devices that are alike: how many, the bytes of each, and how fast they exchange tensors with other stages and
// gradients with each other, inside a node and across nodes.
struct DeviceClass {
    std::int32_t count;
    std::int32_t node_size;
    double capacity;
    double price;  // of a device, where work over devices bounds the load from below
    Route boundary;
    Route inside;
    Route across;
};

enum class InFlight { ONE, ONE_F_ONE_B, ALL };

// Columns are those of placewise.model.ways.Ways.
struct StageProblem {
    Index n_units;
    std::span<const std::int64_t> way_offsets;  // [n_units + 1]
    std::span<const std::int32_t> degree;       // [n_ways]
    TableView<const double> seconds;            // [n_ways, n_classes]
    std::span<const double> gradient_bytes;     // [n_ways]
    std::span<const double> bytes_in_flight;    // [n_ways]
    std::span<const double> bytes_fixed;        // [n_ways]
    std::span<const std::int32_t> tensor_unit;  // [n_tensors]
    std::span<const double> tensor_bytes;       // [n_tensors]
    Adjacency readers;                          // [n_tensors]
    TableView<const double> sync_bytes;         // [n_ways, n_tensors]
    std::span<const double> workspace;          // [n_degrees] that each device of a split keeps free
    std::vector<DeviceClass> classes;
    std::span<const std::int32_t> replicas;  // how many replicas a stage may have, ascending
    double microbatches;
    double passes;
    double gradient_factor;
    InFlight in_flight;
    bool charges_sender;  // whether the stage that makes a tensor pays for sending it as well

    Index n_tensors() const { return static_cast<Index>(tensor_unit.size()); }
    Index n_classes() const { return static_cast<Index>(classes.size()); }
};

}  // namespace placewise

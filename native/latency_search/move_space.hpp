// The blocks of a problem as moves see them: where they may run, what they keep in memory, who their neighbours are.
#pragma once

#include "common/views.hpp"

namespace placewise {

// A block is a set of ops that must stay together. Read-only, shared by all searches of a problem.
struct MoveSpace {
    TableView<const bool> allowed;                // [n_blocks, n_devices]
    std::span<const std::int32_t> devices;        // those worth choosing from
    std::span<const double> capacity;             // [n_devices] bytes
    std::span<const std::int64_t> state_bytes;    // [n_blocks]
    std::span<const std::int64_t> storage_bytes;  // [n_storages] weights, kept once per device that has a user
    Adjacency storages;                           // the storages of each block
    Adjacency users;                              // the blocks that use each storage
    Adjacency neighbours;                         // the blocks that share a tensor with each block

    Index n_blocks() const { return allowed.rows(); }
    Index n_devices() const { return allowed.columns(); }
};

}  // namespace placewise

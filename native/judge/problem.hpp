// A problem as kernels read it: an immutable view of the columns of placewise.simulate.problem_arrays.Arrays.
#pragma once

#include "common/views.hpp"

namespace placewise {

// Tensors are sorted by producer: those of op v are out_offsets[v] … out_offsets[v + 1] − 1, and those before
// out_offsets[0] are model inputs. Locations are device indices, and `host()` for host memory.
// Without queues (n_queues = 0), `queue` is −1 everywhere, and transfers never wait for each other.
struct Problem {
    TableView<const double> op_seconds;      // [n_ops, n_devices], inf where a device cannot run an op
    TableView<const double> transfer;        // [n_tensors, n_link_classes]
    std::span<const std::int32_t> producer;  // [n_tensors], −1 for model inputs
    std::span<const bool> output;            // [n_tensors]
    std::span<const std::int64_t> out_offsets;
    Adjacency consumers;                       // the distinct consumers of each tensor
    std::span<const std::int32_t> consumed;    // the tensor of each entry of `consumers`
    std::span<const std::int32_t> location;    // [n_devices]
    TableView<const std::int32_t> link_class;  // [n_devices + 1, n_devices + 1], as are the next two
    TableView<const std::int32_t> queue;
    TableView<const std::int32_t> wire;  // −1: a link of its own
    std::span<const std::int32_t> streams;
    std::span<const double> call_overhead;
    bool staged = false;
    Index n_queues = 0;
    Index n_wires = 0;

    Index n_ops() const { return op_seconds.rows(); }
    Index n_devices() const { return op_seconds.columns(); }
    Index n_tensors() const { return transfer.rows(); }
    std::int32_t host() const { return static_cast<std::int32_t>(op_seconds.columns()); }
    bool is_host(std::int32_t device) const { return location[device] == host(); }

    IndexRange inputs() const { return {0, out_offsets[0]}; }
    IndexRange outputs_of(Index op) const { return {out_offsets[op], out_offsets[op + 1]}; }
    // The readers of all tensors of an op, one tensor after the other: an op may occur more than once.
    std::span<const std::int32_t> readers_of(Index op) const {
        const Index first = consumers.offsets[out_offsets[op]];
        return consumers.values.subspan(first, consumers.offsets[out_offsets[op + 1]] - first);
    }
    double hop_seconds(Index tensor, Index source, Index target) const {
        return transfer(tensor, link_class(source, target));
    }
};

}  // namespace placewise

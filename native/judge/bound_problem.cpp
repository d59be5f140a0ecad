#include <algorithm>

#include "judge/bindings.hpp"

namespace placewise {

BoundProblem::BoundProblem(const In<double, 2>& op_seconds, const In<double, 2>& transfer,
                           const In<std::int32_t>& producer, const In<bool>& output,
                           const In<std::int64_t>& out_offsets, const In<std::int64_t>& consumer_offsets,
                           const In<std::int32_t>& consumers, const In<std::int32_t>& consumed,
                           const In<std::int32_t>& location, const In<std::int32_t, 2>& link_class,
                           const In<std::int32_t, 2>& queue, const In<std::int32_t, 2>& wire,
                           const In<std::int32_t>& streams, const In<double>& call_overhead, bool staged,
                           Index n_queues, Index n_wires)
    : owners_(nb::make_tuple(op_seconds, transfer, producer, output, out_offsets, consumer_offsets, consumers, consumed,
                             location, link_class, queue, wire, streams, call_overhead)) {
    this->op_seconds = view(op_seconds);
    this->transfer = view(transfer);
    this->producer = view(producer);
    this->output = view(output);
    this->out_offsets = view(out_offsets);
    this->consumers = ragged(consumer_offsets, consumers, n_tensors());
    this->consumed = view(consumed);
    this->location = view(location);
    this->link_class = view(link_class);
    this->queue = view(queue);
    this->wire = view(wire);
    this->streams = view(streams);
    this->call_overhead = view(call_overhead);
    this->staged = staged;
    this->n_queues = n_queues;
    this->n_wires = n_wires;
    check();
}

void BoundProblem::check() const {
    const auto n = static_cast<std::size_t>(n_ops()), devices = static_cast<std::size_t>(n_devices());
    const auto tensors = static_cast<std::size_t>(n_tensors());
    require(producer.size() == tensors && output.size() == tensors, "columns of tensors differ in length");
    require(location.size() == devices && streams.size() == devices && call_overhead.size() == devices,
            "columns of devices differ in length");
    require(devices > 0 || n == 0, "there are ops, and no devices");
    require(within(streams, 1, 1 << 20), "a device runs no such number of ops at once");
    require(0 <= n_queues && n_queues < (1 << 24) && 0 <= n_wires && n_wires < (1 << 24), "too many queues or wires");
    require(out_offsets.size() == n + 1 && out_offsets.back() == n_tensors() && out_offsets.front() >= 0 &&
                std::is_sorted(out_offsets.begin(), out_offsets.end()),
            "out_offsets do not cover the tensors");
    require(within(consumers.values, 0, n_ops()), "a consumer is no op");
    require(within(location, 0, n_devices() + 1), "a location is no device and not the host");
    const Index places = n_devices() + 1;
    const auto table = [&](const TableView<const std::int32_t>& cells, Index low, Index high, const char* message) {
        require(cells.rows() == places && cells.columns() == places, message);
        for (Index row = 0; row < places; ++row) require(within(std::span(cells.row(row)), low, high), message);
    };
    table(link_class, 0, transfer.columns(), "link_class is no table of classes");
    table(queue, -1, n_queues, "queue is no table of queues");
    const auto require_queue = [&](std::int32_t source, std::int32_t target) {
        require(source == target || n_queues == 0 || queue(source, target) >= 0, "a link has no queue");
    };
    for (const std::int32_t source : location) {
        require_queue(source, host());
        require_queue(host(), source);
        for (const std::int32_t target : location) {
            if (!staged) require_queue(source, target);
        }
    }
    table(wire, -1, n_wires, "wire is no table of wires");
    for (Index op = 0; op < n_ops(); ++op) {
        for (const Index tensor : outputs_of(op)) {
            require(producer[tensor] == op, "tensors are not sorted by producer");
            for (const std::int32_t reader : consumers[tensor]) {
                require(reader > op, "ops do not stand in topological order");
            }
        }
    }
    require(consumed.size() == consumers.values.size(), "consumed is not one tensor per consumer");
    for (Index tensor = 0; tensor < n_tensors(); ++tensor) {
        for (Index row = consumers.offsets[tensor]; row < consumers.offsets[tensor + 1]; ++row) {
            require(consumed[row] == tensor, "consumed is not one tensor per consumer");
        }
    }
    for (const Index tensor : inputs()) require(producer[tensor] < 0, "tensors are not sorted by producer");
}

std::span<const std::int32_t> BoundProblem::placement(const In<std::int32_t>& device) const {
    const auto placed = view(device);
    require(static_cast<Index>(placed.size()) == n_ops(), "a placement has one device per op");
    require(within(placed, 0, n_devices()), "a placement names no device of this problem");
    return placed;
}

TableView<const std::int32_t> BoundProblem::placements(const In<std::int32_t, 2>& rows, Index first, Index last,
                                                       std::span<double> values) const {
    const auto table = view(rows);
    require(table.columns() == n_ops(), "a placement has one device per op");
    require(0 <= first && first <= last && last <= table.rows() && last <= static_cast<Index>(values.size()),
            "no such rows of placements");
    for (Index k = first; k < last; ++k) {
        require(within(std::span(table.row(k)), 0, n_devices()), "a placement names no device of this problem");
    }
    return table;
}

void BoundProblem::require_permutation(std::span<const std::int32_t> rank,
                                       std::span<const std::int32_t> inverse) const {
    const auto n = static_cast<std::size_t>(n_ops());
    require(rank.size() == n && inverse.size() == n, "priorities are not one per op");
    require(within(rank, 0, n_ops()), "priorities are no permutation");
    for (std::size_t op = 0; op < n; ++op) {
        require(inverse[rank[op]] == static_cast<std::int32_t>(op), "priorities are no permutation");
    }
}

}  // namespace placewise

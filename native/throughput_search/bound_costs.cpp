#include "throughput_search/bound_costs.hpp"

#include <algorithm>
#include <functional>
#include <vector>

namespace placewise {

BoundThroughputCosts::BoundThroughputCosts(
    const In<std::int64_t, 2>& seconds, const In<std::int32_t>& kind, const In<std::int64_t, 2>& transfer,
    const In<std::int8_t>& phase, const In<std::int32_t>& producer, const In<std::int32_t>& readers,
    const In<bool>& output, const RaggedArrays& consumers, const RaggedArrays& uses, const RaggedArrays& makes,
    const In<std::int64_t>& size, const RaggedArrays& storages, const In<std::int64_t>& storage_bytes,
    const In<std::int64_t>& capacity, const In<std::int32_t>& location, const In<std::int32_t, 2>& link_class,
    const In<std::int32_t, 2>& wire, const RaggedArrays& after, const RaggedArrays& before, bool staged, bool shaped,
    bool ordered, int mode, Index n_phases, Index n_wires)
    : owners_(nb::make_tuple(seconds, kind, transfer, phase, producer, readers, output, consumers.offsets,
                             consumers.values, uses.offsets, uses.values, makes.offsets, makes.values, size,
                             storages.offsets, storages.values, storage_bytes, capacity, location, link_class, wire,
                             after.offsets, after.values, before.offsets, before.values)) {
    require(n_phases == 1 || n_phases == 2, "a pipeline has one phase or two");
    require(0 <= mode && mode <= 2, "no such communication mode");
    this->seconds = view(seconds);
    this->kind = view(kind);
    this->transfer = view(transfer);
    this->phase = view(phase);
    this->producer = view(producer);
    this->n_readers = view(readers);
    this->output = view(output);
    this->bytes = view(size);
    this->storage_bytes = view(storage_bytes);
    this->capacity = view(capacity);
    this->location = view(location);
    this->link_class = view(link_class);
    this->wire = view(wire);
    this->staged = staged;
    this->chained = shaped;
    this->ordered = ordered;
    this->mode = static_cast<Communication>(mode);
    this->n_phases = n_phases;
    this->n_kinds = this->seconds.columns() / n_phases;
    this->n_wires = n_wires;
    this->consumers = rows(consumers, n_tensors(), n_groups());
    this->inputs = rows(uses, n_groups(), n_tensors());
    this->outputs = rows(makes, n_groups(), n_tensors());
    this->storages = rows(storages, n_groups(), n_storages());
    this->successors = rows(after, n_groups(), n_groups());
    this->predecessors = rows(before, n_groups(), n_groups());
    check_tensors();
    check_sums();
    check_devices();
}

// Unlike those of `ragged`, rows may begin behind the first value: tensors of the host come before those of groups.
Adjacency BoundThroughputCosts::rows(const RaggedArrays& arrays, Index n_rows, Index n_items) const {
    const auto offsets = view(arrays.offsets);
    const auto values = view(arrays.values);
    require(static_cast<Index>(offsets.size()) == n_rows + 1, "offsets have another length than their rows");
    require(offsets.front() >= 0 && std::is_sorted(offsets.begin(), offsets.end()) &&
                offsets.back() == static_cast<Index>(values.size()),
            "offsets do not cover their values");
    require(within(values, 0, n_items), "rows name what does not exist");
    return {offsets, values};
}

void BoundThroughputCosts::check_tensors() const {
    const auto tensors = static_cast<std::size_t>(n_tensors());
    require(phase.size() == tensors && producer.size() == tensors && n_readers.size() == tensors &&
                output.size() == tensors,
            "columns of tensors differ in length");
    require(within(phase, 0, n_phases), "a tensor has no phase of this pipeline");
    require(within(producer, -1, n_groups()), "a producer is no group");
    std::vector<std::int64_t> next_input(inputs.offsets.begin(), inputs.offsets.end());
    std::vector<std::int64_t> next_output(outputs.offsets.begin(), outputs.offsets.end());
    const auto take = [](std::vector<std::int64_t>& next, const Adjacency& rows, Index group, Index tensor) {
        return next[group] < rows.offsets[group + 1] && rows.values[next[group]++] == tensor;
    };
    for (Index tensor = 0; tensor < n_tensors(); ++tensor) {
        const auto readers = consumers[tensor];
        require(n_readers[tensor] == static_cast<Index>(readers.size()) + output[tensor],
                "the readers of a tensor are not its consumers and the host");
        for (std::size_t i = 0; i < readers.size(); ++i) {
            require(i == 0 || readers[i - 1] < readers[i], "the consumers of a tensor do not ascend");
            require(readers[i] != producer[tensor], "a group reads what it makes");
            require(take(next_input, inputs, readers[i], tensor), "uses are not those of the consumers");
        }
        require(producer[tensor] < 0 || take(next_output, outputs, producer[tensor], tensor),
                "a group does not make the tensors of which it is the producer");
    }
    for (Index group = 0; group < n_groups(); ++group) {
        require(next_input[group] == inputs.offsets[group + 1], "uses are not those of the consumers");
        require(next_output[group] == outputs.offsets[group + 1], "a group makes a tensor of another one");
    }
}

// Groups hold a storage once, and all sums stay within 64 bits.
void BoundThroughputCosts::check_sums() const {
    require(static_cast<Index>(bytes.size()) == n_groups(), "columns of groups differ in length");
    require(seconds.columns() % n_phases == 0, "seconds are not one row per phase");
    double time = 0.0, memory = 0.0;
    const auto largest = [](std::span<const std::int64_t> row, bool never) {
        std::int64_t most = 0;
        for (const std::int64_t value : row) {
            require(0 <= value && value <= NEVER, "a cost is negative or too large");
            if (value < NEVER || !never) most = std::max(most, value);
        }
        return static_cast<double>(most);
    };
    for (Index group = 0; group < n_groups(); ++group) {
        time += static_cast<double>(n_phases) * largest(seconds.row(group), true);
        memory += largest(bytes.subspan(group, 1), false);
        const auto held = storages[group];
        require(std::adjacent_find(held.begin(), held.end(), std::greater_equal<>()) == held.end(),
                "the storages of a group do not ascend");
    }
    for (Index tensor = 0; tensor < n_tensors(); ++tensor) {
        time += static_cast<double>(n_locations()) * largest(transfer.row(tensor), false);
    }
    for (Index i = 0; i < n_storages(); ++i) memory += largest(storage_bytes.subspan(i, 1), false);
    largest(capacity, false);
    require(time <= 2.0 * NEVER && memory <= 2.0 * NEVER, "costs together are too large");
}

void BoundThroughputCosts::check_devices() const {
    const auto devices = static_cast<std::size_t>(n_devices());
    require(capacity.size() == devices && location.size() == devices, "columns of devices differ in length");
    require(within(kind, 0, n_kinds), "a device is of no kind");
    require(within(location, 0, n_locations()), "a location is no device and not the host");
    const auto check = [&](const TableView<const std::int32_t>& table, Index low, Index high, const char* message) {
        require(table.rows() == n_locations() && table.columns() == n_locations(), message);
        for (Index row = 0; row < table.rows(); ++row) require(within(table.row(row), low, high), message);
    };
    check(link_class, 0, transfer.columns(), "link_class is no table of classes");
    check(wire, -1, n_wires, "wire is no table of wires");
}

std::span<const std::int32_t> BoundThroughputCosts::assignment(const In<std::int32_t>& device) const {
    const auto assigned = view(device);
    require(static_cast<Index>(assigned.size()) == n_groups(), "an assignment has one device per group");
    require(within(assigned, 0, n_devices()), "an assignment names no device of these costs");
    for (Index group = 0; group < n_groups(); ++group) {
        require(can_run(group, assigned[group]), "a group is assigned where it may not run");
    }
    return assigned;
}

}  // namespace placewise

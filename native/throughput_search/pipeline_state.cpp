#include "throughput_search/pipeline_state.hpp"

namespace placewise {

PipelineState::PipelineState(const ThroughputCosts& costs, std::span<const std::int32_t> assigned)
    : assignment(assigned.begin(), assigned.end()),
      costs_(costs),
      sums_(costs),
      trial_(costs),
      tensors_(costs.n_tensors(), costs.n_locations() + 1),
      holders_(costs.n_storages(), costs.n_devices()),
      n_groups_(costs.n_devices()) {
    for (Index group = 0; group < costs.n_groups(); ++group) {
        const std::int32_t device = assignment[group], location = costs.location[device];
        for (Index phase = 0; phase < costs.n_phases; ++phase) {
            trial_.at(phase, device).compute += costs.run_time(group, device, phase);
        }
        trial_.memory[device] += costs.bytes[group];
        ++n_groups_[device];
        for (const std::int32_t storage : costs.storages[group]) {
            if (holders_(storage, device)++ == 0) trial_.memory[device] += costs.storage_bytes[storage];
        }
        for (const std::int32_t tensor : costs.inputs[group]) ++tensors_(tensor, location);
    }
    for (Index tensor = 0; tensor < costs.n_tensors(); ++tensor) add_tensor(tensor);
    keep();
}

// Charge the hops of a tensor whose consumers are counted already.
void PipelineState::add_tensor(Index tensor) {
    const ThroughputCosts& c = costs_;
    const std::int32_t producer = c.producer[tensor], host = c.host();
    const std::int32_t source = producer < 0 ? host : c.location[assignment[producer]];
    tensors_(tensor, host) += c.output[tensor];
    tensors_(tensor, c.n_locations()) = source;
    if (c.staged && c.n_readers[tensor] > tensors_(tensor, source)) charge_hop(tensor, source, host, 1);
    for (Index location = 0; location < c.n_locations(); ++location) {
        if (tensors_(tensor, location) == 0 || location == source) continue;
        charge_hop(tensor, c.staged ? host : source, location, 1);
    }
}

std::int64_t PipelineState::missing_bytes(const PipelineSums& sums) const {
    std::int64_t missing = 0;
    for (Index device = 0; device < costs_.n_devices(); ++device) {
        missing += std::max<std::int64_t>(sums.memory[device] - costs_.capacity[device], 0);
    }
    return missing;
}

std::int64_t PipelineState::max_load() const {
    std::int64_t total = 0;
    for (Index phase = 0; phase < costs_.n_phases; ++phase) {
        std::int64_t worst = 0;
        for (Index d = 0; d < costs_.n_devices(); ++d) worst = std::max(worst, sums_.load(phase, d, costs_.mode));
        for (const std::int64_t traffic : sums_.wires(phase)) worst = std::max(worst, traffic);
        total += worst;
    }
    return total;
}

// Charge a transfer to both ends and its wire, or take the charge back. Inside a location it is free.
inline void PipelineState::charge_hop(Index tensor, Index source, Index target, std::int64_t sign) {
    const Index phase = costs_.n_phases == 1 ? 0 : costs_.phase[tensor];
    const std::int64_t time = sign * costs_.hop_time(tensor, source, target);
    trial_.at(phase, source).send += time;
    trial_.at(phase, target).receive += time;
    if (costs_.n_wires == 0) return;
    if (const std::int32_t wire = costs_.wire(source, target); wire >= 0) trial_.wire(phase, wire) += time;
}

// One reader of a tensor goes from a location to another one.
inline void PipelineState::charge_reader(Index tensor, const std::int32_t* readers, std::int32_t from,
                                         std::int32_t to) {
    const std::int32_t source = readers[costs_.n_locations()];
    std::int32_t sender = source;
    if (costs_.staged) {
        sender = costs_.host();
        const std::int32_t n_away = costs_.n_readers[tensor] - readers[source];
        if (from == source && n_away == 0) charge_hop(tensor, source, sender, 1);
        if (to == source && n_away == 1) charge_hop(tensor, source, sender, -1);
    }
    if (from != source && readers[from] == 1) charge_hop(tensor, sender, from, -1);
    if (to != source && readers[to] == 0) charge_hop(tensor, sender, to, 1);
}

// The producer of a tensor goes from a location to another one.
inline void PipelineState::charge_producer(Index tensor, const std::int32_t* readers, std::int32_t from,
                                           std::int32_t to) {
    if (!costs_.staged) {
        for (Index location = 0; location < costs_.n_locations(); ++location) {
            if (readers[location] == 0) continue;
            if (location != from) charge_hop(tensor, from, location, -1);
            if (location != to) charge_hop(tensor, to, location, 1);
        }
        return;
    }
    const std::int32_t host = costs_.host(), all = costs_.n_readers[tensor];
    if (all > readers[from]) charge_hop(tensor, from, host, -1);
    if (all > readers[to]) charge_hop(tensor, to, host, 1);
    if (readers[from] > 0) charge_hop(tensor, host, from, 1);
    if (readers[to] > 0) charge_hop(tensor, host, to, -1);
}

template <bool charged, bool counted>
void PipelineState::transfer_group(Move move) {
    const ThroughputCosts& c = costs_;
    const auto [group, here, there] = move;
    if constexpr (charged) {
        for (Index phase = 0; phase < c.n_phases; ++phase) {
            trial_.at(phase, here).compute -= c.run_time(group, here, phase);
            trial_.at(phase, there).compute += c.run_time(group, there, phase);
        }
        trial_.memory[here] -= c.bytes[group];
        trial_.memory[there] += c.bytes[group];
    }
    if constexpr (counted) {
        --n_groups_[here];
        ++n_groups_[there];
    }
    for (const std::int32_t storage : c.storages[group]) {
        std::int32_t& old_holders = holders_(storage, here);
        std::int32_t& new_holders = holders_(storage, there);
        if constexpr (charged) {
            if (old_holders == 1) trial_.memory[here] -= c.storage_bytes[storage];
            if (new_holders == 0) trial_.memory[there] += c.storage_bytes[storage];
        }
        if constexpr (counted) {
            --old_holders;
            ++new_holders;
        }
    }
    const std::int32_t from = c.location[here], to = c.location[there];
    if (from == to) return;
    for (const std::int32_t tensor : c.inputs[group]) {
        std::int32_t* readers = tensors_.row(tensor).data();
        if constexpr (charged) charge_reader(tensor, readers, from, to);
        if constexpr (counted) {
            --readers[from];
            ++readers[to];
        }
    }
    for (const std::int32_t tensor : c.outputs[group]) {
        std::int32_t* readers = tensors_.row(tensor).data();
        if constexpr (charged) charge_producer(tensor, readers, from, to);
        if constexpr (counted) readers[c.n_locations()] = to;
    }
}

template void PipelineState::transfer_group<true, false>(Move move);
template void PipelineState::transfer_group<false, true>(Move move);
template void PipelineState::transfer_group<true, true>(Move move);

}  // namespace placewise

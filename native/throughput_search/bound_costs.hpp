// The costs that Python handed over: columns that were checked once and are kept alive as long as they are read.
#pragma once

#include "common/ndarrays.hpp"
#include "throughput_search/costs.hpp"

namespace placewise {

// Offsets and values of ragged rows, as Python has them.
struct RaggedArrays {
    In<std::int64_t> offsets;
    In<std::int32_t> values;
};

class BoundThroughputCosts : public ThroughputCosts {
public:
    BoundThroughputCosts(const In<std::int64_t, 2>& seconds, const In<std::int32_t>& kind,
                         const In<std::int64_t, 2>& transfer, const In<std::int8_t>& phase,
                         const In<std::int32_t>& producer, const In<std::int32_t>& readers, const In<bool>& output,
                         const RaggedArrays& consumers, const RaggedArrays& uses, const RaggedArrays& makes,
                         const In<std::int64_t>& size, const RaggedArrays& storages,
                         const In<std::int64_t>& storage_bytes, const In<std::int64_t>& capacity,
                         const In<std::int32_t>& location, const In<std::int32_t, 2>& link_class,
                         const In<std::int32_t, 2>& wire, const RaggedArrays& after, const RaggedArrays& before,
                         bool staged, bool shaped, bool ordered, int mode, Index n_phases, Index n_wires);

    // An argument of kernels, checked: the device of each group, where it may run.
    std::span<const std::int32_t> assignment(const In<std::int32_t>& device) const;

private:
    Adjacency rows(const RaggedArrays& arrays, Index n_rows, Index n_items) const;
    void check_tensors() const;
    void check_sums() const;
    void check_devices() const;

    nb::object owners_;  // the arrays behind the views
};

}  // namespace placewise

// The views that Python handed over: columns that were checked once and are kept alive as long as these are.
#pragma once

#include "common/ndarrays.hpp"
#include "pipeline_dp/row_split.hpp"
#include "pipeline_dp/stage_costs.hpp"

namespace placewise {

using Longs = In<std::int64_t>;
using Ints = In<std::int32_t>;

// Sums of everything must stay far below what 64 bits hold; of a table, those of the largest cell in every row.
bool is_bounded(TableView<const std::int64_t> table);
bool is_bounded(std::span<const std::int64_t> column);

class BoundStageCosts : public StageCosts {
public:
    BoundStageCosts(const In<std::int64_t, 2>& seconds, const Longs& size, const Longs& weight, const Ints& producer,
                    const Ints& readers, const In<bool>& output, const In<bool>& mirrored,
                    const Longs& consumer_offsets, const Ints& consumers, const In<std::int64_t, 2>& enter,
                    const In<std::int64_t, 2>& leave, const Longs& use_offsets, const Ints& uses,
                    const Longs& make_offsets, const Ints& makes, const Longs& storage_offsets, const Ints& storages,
                    const Longs& storage_bytes, const Ints& rate, const Longs& capacity, const Ints& n_devices,
                    const Ints& most, const In<double, 2>& pace, int mode, bool ordered);

    Index n_states() const { return n_states_; }

private:
    void check();

    Index n_states_ = 1;
    nb::object owners_;  // the arrays behind the views
};

class BoundRowCosts : public RowCosts {
public:
    BoundRowCosts(const In<double, 2>& seconds, const Longs& size, const In<double>& capacity, const In<bool>& pays,
                  const In<double, 2>& price, const In<std::int32_t, 2>& link, const Ints& producer, const Ints& first,
                  const Ints& last, const In<bool>& output, const Longs& use_offsets, const Ints& uses,
                  const Longs& make_offsets, const Ints& makes, int mode);

private:
    void check() const;

    nb::object owners_;
};

}  // namespace placewise

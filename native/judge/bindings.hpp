// The problem that Python handed over: columns that were checked once and are kept alive as long as it is.
#pragma once

#include <vector>

#include "common/ndarrays.hpp"
#include "judge/problem.hpp"

namespace placewise {

class BoundProblem : public Problem {
public:
    BoundProblem(const In<double, 2>& op_seconds, const In<double, 2>& transfer, const In<std::int32_t>& producer,
                 const In<bool>& output, const In<std::int64_t>& out_offsets, const In<std::int64_t>& consumer_offsets,
                 const In<std::int32_t>& consumers, const In<std::int32_t>& consumed, const In<std::int32_t>& location,
                 const In<std::int32_t, 2>& link_class, const In<std::int32_t, 2>& queue,
                 const In<std::int32_t, 2>& wire, const In<std::int32_t>& streams, const In<double>& call_overhead,
                 bool staged, Index n_queues, Index n_wires);

    // Arguments of kernels, checked: a placement [n_ops], and rows `first` to `last` of placements [K, n_ops].
    std::span<const std::int32_t> placement(const In<std::int32_t>& device) const;
    TableView<const std::int32_t> placements(const In<std::int32_t, 2>& rows, Index first, Index last,
                                             std::span<double> values) const;
    void require_permutation(std::span<const std::int32_t> rank, std::span<const std::int32_t> inverse) const;

private:
    void check() const;

    nb::object owners_;  // the arrays behind the views
};

}  // namespace placewise

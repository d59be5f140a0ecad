// Longest paths through a graph whose ops and tensors take given seconds.
#pragma once

#include <span>
#include <vector>

#include "judge/problem.hpp"

namespace placewise {

// Longest remaining path from each op, itself included (HEFT, Topcuoglu et al. 2002).
std::vector<double> upward_ranks(const Problem& problem, std::span<const double> op_seconds,
                                 std::span<const double> tensor_seconds);

// Longest path to each op, itself not included.
std::vector<double> downward_ranks(const Problem& problem, std::span<const double> op_seconds,
                                   std::span<const double> tensor_seconds);

// The ops of a path with the largest Σ weight [n_ops], in order.
std::vector<std::int32_t> longest_path(const Problem& problem, std::span<const double> weight);

}  // namespace placewise

// Convex placements: no path leaves a device and comes back.
#pragma once

#include <span>
#include <vector>

#include "judge/problem.hpp"

namespace placewise {

// The ops of a path that leaves a device and comes back to it, empty where there is none. Only forward ops of one
// phase count. `device` [n_ops] is −1 for ops that are on no device; `backward` and `phase` are [n_ops].
std::vector<std::int32_t> find_return_path(const Problem& problem, std::span<const bool> backward,
                                           std::span<const std::int32_t> phase, std::span<const std::int32_t> device);

}  // namespace placewise

// Orders and cycles of plain directed graphs, given as successors per node (CSR).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/views.hpp"

namespace placewise {

// The strong component of each node, numbered topologically, and how many there are (Tarjan 1972, with an explicit
// stack). Roots are tried from the last to the first, so nodes that already stand in topological order keep their
// numbers.
std::pair<std::vector<std::int32_t>, std::int32_t> strong_components(const Adjacency& successors);

}  // namespace placewise

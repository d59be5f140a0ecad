// Walks through a graph of units that say where a unit stands, and how fast the graph grows around it.
#pragma once

#include <vector>

#include "common/interrupt.hpp"
#include "common/views.hpp"

namespace placewise {

// The slope [n] of log N(v, r) over log r for each node, N the nodes within r edges of v (Duan et al., NeurIPS 2024,
// section 2.2): by least squares over r = 1, 2, …, until a walk has seen `reach` nodes; 0 where it sees fewer than two
// distances.
std::vector<double> fractal_dimensions(const Adjacency& neighbours, Index reach, Interrupt& interrupt);

// The number [n] of each node depth first, a node after all that lead to it; nodes on cycles and behind them come last.
std::vector<std::int64_t> depth_first_numbers(const Adjacency& successors);

}  // namespace placewise

// Walks through a graph of units that say how fast it grows around each unit.
#pragma once

#include <vector>

#include "common/interrupt.hpp"
#include "common/views.hpp"

namespace placewise {

// The slope [n] of log N(v, r) over log r for each node, N the nodes within r edges of v (Duan et al., NeurIPS 2024,
// section 2.2): by least squares over r = 1, 2, …, until a walk has seen `reach` nodes; 0 where it sees fewer than two
// distances.
std::vector<double> fractal_dimensions(const Adjacency& neighbours, Index reach, Interrupt& interrupt);

}  // namespace placewise

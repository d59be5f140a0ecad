// Ranks and topological orders of an acyclic graph whose nodes are numbered in a topological order.
#pragma once

#include <span>
#include <vector>

#include "common/random.hpp"
#include "common/views.hpp"

namespace placewise {

// Raise ranks [n] as little as possible, until no edge leads back to a smaller one.
void shift_late(const Adjacency& predecessors, std::span<std::int32_t> rank);

// Lower ranks [n] as little as possible, until no edge leads back to a smaller one.
void shift_early(const Adjacency& successors, std::span<std::int32_t> rank);

// Nodes of rank −1 take the highest rank of their predecessors, else the lowest of their successors, else 0.
void fill_ranks(const Adjacency& predecessors, const Adjacency& successors, std::span<std::int32_t> rank);

// The position [n] of each node in a topological order drawn at random: each next one uniformly of those that can come.
std::vector<std::int32_t> random_order(const Adjacency& successors, SplitMix64& rng);

}  // namespace placewise

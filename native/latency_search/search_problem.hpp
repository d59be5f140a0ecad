// What all chains of a latency search share: the problem, priorities, blocks, and what bounds and moves look up.
#pragma once

#include <vector>

#include "judge/problem.hpp"
#include "latency_search/move_space.hpp"

namespace placewise {

// Sets of blocks that belong together, on several levels: layers, steps, ….
struct ModelParts {
    TableView<const std::int32_t> part;     // [n_levels, n_blocks], −1 for none
    TableView<const std::int64_t> offsets;  // [n_levels, most parts + 1]
    TableView<const std::int32_t> blocks;   // [n_levels, n_blocks] by part

    Index n_levels() const { return part.rows(); }
    std::span<const std::int32_t> blocks_of(Index level, Index part_number) const {
        const Index first = offsets(level, part_number);
        return blocks.row(level).subspan(first, offsets(level, part_number + 1) - first);
    }
};

// The columns that Python hands over; [n_ops] where nothing else is said.
struct SearchColumns {
    std::span<const std::int32_t> priority;
    std::span<const std::int32_t> by_priority;
    std::span<const std::int32_t> block;
    std::span<const double> least_seconds;         // of each op on the best device that may run it
    std::span<const std::int64_t> in_place_bytes;  // of the first result if it may replace an operand, −1 if not
    std::span<const std::int64_t> tensor_bytes;    // [n_tensors]
    std::span<const bool> is_host;                 // [n_devices]
    ModelParts parts;
    bool live = false;    // whether live activations count as memory
    bool shaped = false;  // whether somebody else must judge the shape of stages
};

// Immutable; the members that own memory are derived from the columns.
class LatencySearchProblem : public SearchColumns {
public:
    LatencySearchProblem(const Problem& problem, const MoveSpace& space, const SearchColumns& columns);

    const Problem& problem;
    const MoveSpace& space;

    Adjacency inputs() const { return {input_offsets_, inputs_}; }     // the distinct tensors that each op reads
    Adjacency members() const { return {member_offsets_, members_}; }  // the ops of each block
    double least_after(Index op) const { return least_after_[op]; }    // seconds that at least follow the end of op
    double activation_bytes() const { return activation_bytes_; }      // of all tensors

    Index n_ops() const { return problem.n_ops(); }
    Index n_blocks() const { return space.n_blocks(); }
    Index n_devices() const { return problem.n_devices(); }

private:
    std::vector<std::int64_t> input_offsets_;
    std::vector<std::int32_t> inputs_;
    std::vector<std::int64_t> member_offsets_;
    std::vector<std::int32_t> members_;
    std::vector<double> least_after_;
    double activation_bytes_ = 0.0;
};

}  // namespace placewise

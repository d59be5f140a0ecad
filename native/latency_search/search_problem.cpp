#include "latency_search/search_problem.hpp"

#include <algorithm>
#include <numeric>

namespace placewise {

namespace {

// Counts per row become offsets of rows.
void accumulate_offsets(std::vector<std::int64_t>& offsets) {
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
}

}  // namespace

LatencySearchProblem::LatencySearchProblem(const Problem& problem, const MoveSpace& space, const SearchColumns& columns)
    : SearchColumns(columns),
      problem(problem),
      space(space),
      input_offsets_(problem.n_ops() + 1, 0),
      inputs_(problem.consumers.values.size()),
      member_offsets_(space.n_blocks() + 1, 0),
      members_(problem.n_ops()),
      least_after_(problem.n_ops(), 0.0) {
    const Problem& p = problem;
    for (const std::int32_t reader : p.consumers.values) ++input_offsets_[reader + 1];
    accumulate_offsets(input_offsets_);
    std::vector<std::int64_t> next(input_offsets_);
    for (Index tensor = 0; tensor < p.n_tensors(); ++tensor) {
        for (const std::int32_t reader : p.consumers[tensor]) {
            inputs_[next[reader]++] = static_cast<std::int32_t>(tensor);
        }
    }
    for (const std::int32_t number : block) ++member_offsets_[number + 1];
    accumulate_offsets(member_offsets_);
    next = member_offsets_;
    for (Index op = 0; op < p.n_ops(); ++op) members_[next[block[op]]++] = static_cast<std::int32_t>(op);
    for (Index op = p.n_ops() - 1; op >= 0; --op) {
        for (const std::int32_t reader : p.readers_of(op)) {
            least_after_[op] = std::max(least_after_[op], least_seconds[reader] + least_after_[reader]);
        }
    }
    for (const std::int64_t nbytes : tensor_bytes) activation_bytes_ += static_cast<double>(nbytes);
}

}  // namespace placewise

// The cheapest way to cut a path of ops into segments on accelerators and ops on the host.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "common/views.hpp"
#include "judge/problem.hpp"

namespace placewise {

// Where every op stands to a path: the last position of the path that leads to it (−1: none), and the first position
// that it leads to (`path.size()`: none). An op of the path has its own position in both.
struct PathPositions {
    std::vector<std::int32_t> after;
    std::vector<std::int32_t> before;
};
PathPositions locate_beside_path(const Problem& problem, std::span<const std::int32_t> path);

// A shortest path over the positions of a path of m ops. Segment (i, j) is path[i:j].
class PathCutter {
public:
    // `host` [m] seconds of each op on the host; `fits` [m + 1, m + 1] whether path[i:j] fits on one accelerator;
    // `tied` [m + 1] whether what meets at a position must be on one accelerator, or both on the host.
    PathCutter(std::span<const double> host, TableView<const bool> fits, std::span<const bool> tied);

    // The least seconds if a segment takes seconds(i, j), and the segments that reach it, the last first.
    double find_shortest(TableView<const double> seconds, std::vector<std::pair<Index, Index>>& segments);

private:
    void relax(TableView<const double> seconds);

    std::span<const double> host_;
    TableView<const bool> fits_;
    std::span<const bool> tied_;
    std::vector<double> at_;          // [m + 1] to a position behind a host op, or, if not tied, behind anything
    Table<double> run_;               // [m + 1, m + 1] to position j on the accelerator that was entered at i
    Table<std::int32_t> came_;        // where the last segment of run_(i, j) begins
    std::vector<std::int32_t> last_;  // the i of the run behind at_[j], −1 for a host op
};

}  // namespace placewise

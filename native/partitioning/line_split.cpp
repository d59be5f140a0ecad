#include "partitioning/line_split.hpp"

#include <algorithm>

namespace placewise {

std::vector<std::int64_t> stage_ends(const Line& line, double room, std::span<const bool> runs) {
    const Index n = line.size();
    std::vector<std::int64_t> ends(n + 1);
    std::vector<std::int32_t> uses(line.stored.size());
    double held = 0.0;
    Index end = 0;
    for (Index start = 0; start <= n; ++start) {
        for (end = std::max(end, start); end < n && runs[end]; ++end) {
            auto more = static_cast<double>(line.state[end]);
            for (const std::int32_t storage : line.storages[end]) {
                if (uses[storage] == 0) more += static_cast<double>(line.stored[storage]);
            }
            if (held + more > room) break;
            held += more;
            for (const std::int32_t storage : line.storages[end]) ++uses[storage];
        }
        ends[start] = end;
        if (start == end) continue;
        held -= static_cast<double>(line.state[start]);
        for (const std::int32_t storage : line.storages[start]) {
            if (--uses[storage] == 0) held -= static_cast<double>(line.stored[storage]);
        }
    }
    return ends;
}

std::vector<Stage> split_line(const TableView<const std::int64_t>& ends, std::span<const std::int64_t> count) {
    const Index n = ends.columns() - 1;
    // A state is how many devices of each class are used, as digits of mixed radix.
    struct State {
        std::int64_t reach = 0;
        Index kind = -1;  // of the last stage
        Index before = 0;
    };
    Index n_states = 1;
    for (const std::int64_t devices : count) n_states *= devices + 1;
    std::vector<State> states(n_states);
    Index state = 0;
    while (states[state].reach < n) {
        if (++state == n_states) return {};
        Index rest = state, step = 1;
        for (Index kind = 0; kind < ends.rows(); ++kind) {
            const Index radix = count[kind] + 1;
            if (rest % radix > 0) {
                const std::int64_t end = ends(kind, states[state - step].reach);
                if (end > states[state].reach) states[state] = {end, kind, state - step};
            }
            rest /= radix;
            step *= radix;
        }
    }
    std::vector<Stage> stages;
    for (; states[state].kind >= 0; state = states[state].before) {
        stages.push_back({states[state].kind, states[states[state].before].reach, states[state].reach});
    }
    std::reverse(stages.begin(), stages.end());
    return stages;
}

}  // namespace placewise

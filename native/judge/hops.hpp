// The log of hops: what kernels of latency write down when somebody wants to see a timeline.
#pragma once

#include <cstdint>
#include <vector>

namespace placewise {

struct Hop {
    std::int32_t tensor;
    std::int32_t source;
    std::int32_t target;
    double sent;
    double arrived;
};

using HopLog = std::vector<Hop>;

inline void note_hop(HopLog* log, Hop hop) {
    if (log != nullptr) log->push_back(hop);
}

}  // namespace placewise

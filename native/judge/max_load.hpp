// Max-load of a pipeline in its steady state (Tarnawski et al. 2020).
//
// A tensor crosses to a location at most once. Staged: the producing accelerator sends it to host memory once, each
// accelerator that needs it receives it once. Direct: it is sent once per destination, at that link's speed, and
// received there. A shared wire carries the sum of its transfers.
#pragma once

#include <span>
#include <vector>

#include "judge/problem.hpp"

namespace placewise {

enum class Communication { blocking, overlap, duplex };

// The load of a device whose compute, sends and receives take so long.
template <class Time>
inline Time combine_load(Time compute, Time send, Time receive, Communication mode) {
    switch (mode) {
        case Communication::blocking:
            return compute + send + receive;
        case Communication::overlap:
            return compute > send + receive ? compute : send + receive;
        default: {
            const Time most = send > receive ? send : receive;
            return compute > most ? compute : most;
        }
    }
}

class PipelineLoads {
public:
    explicit PipelineLoads(const Problem& problem);

    // Compute, send and receive of each location [n_devices + 1] and traffic of each wire, of a placement [n_ops].
    void add(std::span<const std::int32_t> device);
    double max_load(std::span<const std::int32_t> device, Communication mode);

    std::vector<double> compute, send, receive, wires;

private:
    void add_compute(std::span<const std::int32_t> device);
    void find_targets(Index window);
    void add_transfers(Index window);
    void charge(double seconds, std::int32_t source, std::int32_t target);

    const Problem& problem_;
    std::vector<std::int32_t> place_;     // [n_ops] the location of each op
    std::vector<std::uint64_t> targets_;  // [n_tensors] the locations of its readers in a window of 64
    std::vector<char> sent_;              // [n_tensors] whether a staged tensor went to the host
    std::vector<double> sums_;            // [4, n_devices]
};

}  // namespace placewise

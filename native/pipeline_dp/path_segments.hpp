// A path through a graph is cut into segments, one per stage: the least max-load for which that can be.
//
// Segment (i, j) holds the positions i … j − 1 of the path. Its load is at least load(i, j), and within a max-load T
// its stage does at most most(k, i, j) + slopes(k) · T of the work, for every k. Hosts have tables of their own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/interrupt.hpp"
#include "common/views.hpp"

namespace placewise {

struct HostBounds {
    TableView<const double> load;     // [m + 1, m + 1]
    TableView<const double> most;     // [n_slopes · (m + 1), m + 1]
    std::span<const double> slopes;   // [n_slopes]
    std::span<const double> without;  // [n_slopes] as `most`, of a stage without a position of the path
    Index n_devices = 0;
};

struct SegmentBounds {
    TableView<const double> load;    // [m + 1, m + 1]
    TableView<const double> most;    // [n_slopes · (m + 1), m + 1]
    std::span<const double> slopes;  // [n_slopes]
    TableView<const double> weight;  // [m + 1, m + 1] bytes that members of a stage synchronize
    std::span<const double> pace;    // [most members + 1] units per byte, by the number of members
    double work = 0.0;               // of all components
    double low = 0.0;                // no smaller max-load is possible
    Index n_devices = 0;             // beside the hosts
    HostBounds host;
};

class PathSegments {
public:
    explicit PathSegments(const SegmentBounds& bounds);

    // A max-load below which the path cannot be cut, found to a relative `precision`. Interrupted: a smaller one that
    // holds as well.
    double least_load(double precision, Interrupt& interrupt);
    // Where the segment that ends at each position begins, at the last max-load that was possible; −1: no segment;
    // −2 − begin: a segment on a host.
    std::span<const std::int32_t> begins() const { return begins_; }

private:
    struct Cell {
        double done;             // the most work on segments up to a position, on so many devices and hosts
        std::int32_t begin;      // where the last segment begins
        std::int32_t n_members;  // and how many devices share it; 0: it is on a host
    };

    bool is_possible(double limit, Interrupt& interrupt);
    void add_hosts(Index i, Index j, double limit);
    void trace(Index at);

    const SegmentBounds& bounds_;
    Index length_;  // m
    Index n_hosts_;
    Table<Cell> cells_;  // [m + 1, (n_devices + 1) · (n_hosts + 1)]
    std::vector<std::int32_t> begins_;
};

}  // namespace placewise

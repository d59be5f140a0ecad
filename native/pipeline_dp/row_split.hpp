// The best split of one line of components over devices that stand in a row, at the true links between neighbours.
//
// Each stage pays for what crosses to the stages beside it at the link that joins their devices. Exact where tensors
// only go to the next stage or the one before; elsewhere a tensor that goes further is charged as if it stopped there.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/interrupt.hpp"
#include "pipeline_dp/stage_costs.hpp"

namespace placewise {

// A line of n components and d devices in a row; device d stands for none.
struct RowCosts {
    TableView<const double> seconds;         // [n, d], inf where not allowed
    std::span<const std::int64_t> size;      // [n]
    std::span<const double> capacity;        // [d]
    std::span<const bool> pays;              // [d]
    TableView<const double> price;           // [n_tensors, n_link_classes]
    TableView<const std::int32_t> link;      // [d + 1, d + 1] link classes; host memory is last
    std::span<const std::int32_t> producer;  // [n_tensors] position, −1 for the host
    std::span<const std::int32_t> first;     // [n_tensors] position of the first reader
    std::span<const std::int32_t> last;      // [n_tensors]
    std::span<const bool> output;            // [n_tensors]
    Adjacency uses;                          // tensors that each position reads
    Adjacency makes;                         // tensors that it makes
    Communication mode = Communication::blocking;

    Index n() const { return seconds.rows(); }
    Index none() const { return seconds.columns(); }
};

class RowSplit {
public:
    explicit RowSplit(const RowCosts& row);

    // The place in the row [n] of each component in the best split that was found before the interrupt; empty if none.
    std::vector<std::int32_t> run(Interrupt& interrupt);

private:
    // The best way to everything before a position, with the last stage on one device and the next one on another.
    struct Cell {
        double value = std::numeric_limits<double>::infinity();
        std::int32_t begin = -1;   // where the last stage begins
        std::int32_t before = -1;  // the device of the stage before it
    };
    // Seconds, by link class, of what crosses the ends of a stage in each direction.
    struct Crossing {
        double from_before = 0, from_behind = 0, to_behind = 0, to_before = 0, from_host = 0, to_host = 0;
    };

    Cell& cell(Index position, Index own, Index behind) {
        return cells_[(position * (row_.none() + 1) + own) * (row_.none() + 1) + behind];
    }
    void extend(Index begin, Index position);
    void charge(double Crossing::* direction, Index tensor, double sign);
    bool offer(Index begin, Index position, Index own);
    void end_stage(Index begin, Index position, Index own, Index before);
    std::vector<std::int32_t> trace();

    const RowCosts& row_;
    std::vector<Cell> cells_;         // [n + 1, d + 1, d + 1]
    std::vector<Crossing> crossing_;  // [n_link_classes]
    std::vector<double> compute_;     // [d] seconds of the stage
    std::vector<Index> received_by_;  // [n_tensors] where the last stage that received each begins, −1: none
    double best_ = std::numeric_limits<double>::infinity();
    Index last_device_ = -1;
};

}  // namespace placewise

// `sequential` latency (OpenVINO HETERO, one request): one piece at a time over all devices.
//
// A piece is what one device runs without interruption: an op's piece is numbered by how often the paths to it change
// device, so that pieces never wait for each other in a circle. Pieces run by number, then by device; before a piece,
// the tensors that it needs and that its device has never had are moved, one after another. The value is Σ ops +
// Σ transfers + overhead per piece; model outputs are brought home at the end.
#pragma once

#include <span>
#include <vector>

#include "judge/hops.hpp"
#include "judge/problem.hpp"

namespace placewise {

// Into `piece` [n_ops]: the number of each op's piece; ops of one number and one device form a piece.
void cut_pieces(const Problem& problem, std::span<const std::int32_t> device, std::span<std::int32_t> piece);

// Prices placements one after the other, in the same memory.
class SequentialSchedule {
public:
    // `inputs` are the tensors that each op reads, by argument position.
    SequentialSchedule(const Problem& problem, const Adjacency& inputs);

    // The makespan of a placement [n_ops]; `start` and `finish` [n_ops] get the times of ops.
    double run(std::span<const std::int32_t> device, std::span<double> start, std::span<double> finish,
               HopLog* log = nullptr);

private:
    void sort_pieces(std::span<const std::int32_t> device);
    void move(Index tensor, std::int32_t source, std::int32_t target, HopLog* log);
    void fetch(Index tensor, std::int32_t source, std::int32_t target, HopLog* log);
    char& held(Index tensor, std::int32_t place) { return held_[tensor * (problem_.n_devices() + 1) + place]; }

    const Problem& problem_;
    Adjacency inputs_;
    double clock_ = 0.0;
    std::vector<std::int32_t> piece_;  // [n_ops]
    std::vector<std::int32_t> order_;  // ops by piece, then by device
    std::vector<char> held_;           // [n_tensors, n_devices + 1] where a tensor has been
};

}  // namespace placewise

// The device of every block of one chain, with the bytes, work and ops of every device; moves can be undone.
#pragma once

#include <vector>

#include "latency_search/search_problem.hpp"

namespace placewise {

class BlockAssignment {
public:
    struct Move {
        std::int32_t block;
        std::int32_t origin;
    };
    // Where an op runs, and how long.
    struct OpSite {
        double seconds;
        std::int32_t device;
        std::int32_t place;
    };

    BlockAssignment(const LatencySearchProblem& search, std::span<const std::int32_t> device);

    // Take another assignment [n_blocks].
    void assign(std::span<const std::int32_t> device);
    // Move a block, if it may run there.
    void move(Index block, std::int32_t target);
    // Back to the assignment before the moves that nobody has kept.
    void undo_moves();
    void keep_moves() { moves_.clear(); }
    // Sum the work of devices anew: moves back and forth leave rounding errors.
    void refresh_work();

    bool fits() const;
    std::span<const std::int32_t> device() const { return device_; }
    std::int32_t operator[](Index block) const { return device_[block]; }
    std::span<const Move> moves() const { return moves_; }
    const OpSite& site(Index op) const { return sites_[op]; }
    std::span<const std::int64_t> used_bytes() const { return used_bytes_; }
    double work(Index device) const { return work_[device]; }
    Index n_ops_on(Index device) const { return n_ops_on_[device]; }

private:
    void put(Index block, std::int32_t target);
    void hold(Index block, std::int32_t target);
    void release(Index block, std::int32_t old);

    const LatencySearchProblem& search_;
    std::vector<std::int32_t> device_;  // [n_blocks]
    std::vector<OpSite> sites_;         // [n_ops]
    std::vector<std::int64_t> used_bytes_;
    std::vector<double> work_;  // [n_devices] seconds of all its ops
    std::vector<Index> n_ops_on_;
    Table<std::int32_t> n_users_;  // [n_storages, n_devices]
    std::vector<Move> moves_;      // at most 2 n_blocks
};

}  // namespace placewise

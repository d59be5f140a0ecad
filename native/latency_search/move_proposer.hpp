// Random neighbours of assignments, for searches whose candidates somebody else prices.
//
// A move takes a connected set of blocks, or a stretch of the line of ops, to another device: most often to that of a
// neighbour, so that less is transferred; sometimes the neighbour's blocks come back in exchange, so that full devices
// can trade.
#pragma once

#include <vector>

#include "common/interrupt.hpp"
#include "common/random.hpp"
#include "latency_search/connected_sets.hpp"

namespace placewise {

class MoveProposer {
public:
    // One random generator per assignment.
    MoveProposer(const MoveSpace& space, std::span<const std::uint64_t> seeds);

    // A neighbour of the k-th assignment [n_blocks] that fits into memory, or the same one where a few tries found
    // none.
    void propose(Index k, std::span<const std::int32_t> device, std::span<std::int32_t> candidate,
                 Interrupt& interrupt);
    Index n_assignments() const { return static_cast<Index>(rngs_.size()); }

private:
    Index draw_size(SplitMix64& rng) const;
    std::pair<std::int32_t, Index> draw_target(std::span<const std::int32_t> device, Index seed, SplitMix64& rng) const;
    void make_move(std::span<std::int32_t> device, SplitMix64& rng);
    void move_stretch(std::span<std::int32_t> device, Index seed, std::int32_t target, SplitMix64& rng) const;
    void send(std::span<std::int32_t> device, std::span<const std::int32_t> blocks, std::int32_t target) const;
    bool fits(std::span<const std::int32_t> device);

    const MoveSpace& space_;
    std::vector<SplitMix64> rngs_;
    ConnectedSets sets_;
    std::vector<std::int32_t> chosen_;
    std::vector<std::int32_t> returned_;
    std::vector<double> used_bytes_;      // [n_devices]
    std::vector<Index> counted_storage_;  // [n_devices] the storage that was counted last
};

}  // namespace placewise

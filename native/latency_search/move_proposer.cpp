#include "latency_search/move_proposer.hpp"

#include <algorithm>
#include <utility>

namespace placewise {

namespace {
constexpr int TRIES = 8;
}

MoveProposer::MoveProposer(const MoveSpace& space, std::span<const std::uint64_t> seeds)
    : space_(space), sets_(space), used_bytes_(space.n_devices()), counted_storage_(space.n_devices()) {
    for (const std::uint64_t seed : seeds) rngs_.emplace_back(seed);
}

void MoveProposer::propose(Index k, std::span<const std::int32_t> device, std::span<std::int32_t> candidate,
                           Interrupt& interrupt) {
    SplitMix64& rng = rngs_[k];
    std::copy(device.begin(), device.end(), candidate.begin());
    if (device.empty()) return;
    for (int attempt = 0; attempt < TRIES && !interrupt.stop(); ++attempt) {
        make_move(candidate, rng);
        if (!std::equal(device.begin(), device.end(), candidate.begin()) && fits(candidate)) return;
        std::copy(device.begin(), device.end(), candidate.begin());
    }
}

// How many blocks to move: one half of the time, else up to any power of two.
Index MoveProposer::draw_size(SplitMix64& rng) const {
    Index most = 1;
    while (most < space_.n_blocks() && rng.below(2) == 0) most *= 2;
    return 1 + rng.below(most);
}

// A device for `seed`, a neighbour's most often, else any; and the neighbour, −1 for none.
std::pair<std::int32_t, Index> MoveProposer::draw_target(std::span<const std::int32_t> device, Index seed,
                                                         SplitMix64& rng) const {
    const auto neighbours = space_.neighbours[seed];
    if (!neighbours.empty() && rng.below(3) > 0) {
        const std::int32_t other = neighbours[rng.below(static_cast<Index>(neighbours.size()))];
        if (device[other] != device[seed]) return {device[other], other};
    }
    return {space_.devices[rng.below(static_cast<Index>(space_.devices.size()))], -1};
}

// Move the blocks that may run on `target`.
void MoveProposer::send(std::span<std::int32_t> device, std::span<const std::int32_t> blocks,
                        std::int32_t target) const {
    for (const std::int32_t block : blocks) {
        if (space_.allowed(block, target)) device[block] = target;
    }
}

// Move the blocks from `seed` on along the line, all or those on the device of `seed`.
void MoveProposer::move_stretch(std::span<std::int32_t> device, Index seed, std::int32_t target,
                                SplitMix64& rng) const {
    const std::int32_t origin = device[seed];
    const Index last = std::min(seed + draw_size(rng), space_.n_blocks());
    const bool same = rng.below(2) == 0;
    for (Index block = seed; block < last; ++block) {
        if (space_.allowed(block, target) && (device[block] == origin || !same)) device[block] = target;
    }
}

void MoveProposer::make_move(std::span<std::int32_t> device, SplitMix64& rng) {
    const Index seed = rng.below(space_.n_blocks());
    const auto [target, neighbour] = draw_target(device, seed, rng);
    const std::int32_t origin = device[seed];
    const Index kind = rng.below(4);
    if (kind == 0) return move_stretch(device, seed, target, rng);
    sets_.grow(device, seed, draw_size(rng), rng, chosen_);
    returned_.clear();
    if (kind == 1 && neighbour >= 0) sets_.grow(device, neighbour, draw_size(rng), rng, returned_);
    send(device, chosen_, target);
    send(device, returned_, origin);
}

// Whether resident bytes stay within every device.
bool MoveProposer::fits(std::span<const std::int32_t> device) {
    std::fill(used_bytes_.begin(), used_bytes_.end(), 0.0);
    std::fill(counted_storage_.begin(), counted_storage_.end(), -1);
    for (Index block = 0; block < space_.n_blocks(); ++block) {
        used_bytes_[device[block]] += static_cast<double>(space_.state_bytes[block]);
    }
    for (Index storage = 0; storage < space_.users.size(); ++storage) {
        for (const std::int32_t user : space_.users[storage]) {
            const std::int32_t d = device[user];
            if (std::exchange(counted_storage_[d], storage) == storage) continue;
            used_bytes_[d] += static_cast<double>(space_.storage_bytes[storage]);
        }
    }
    return std::equal(used_bytes_.begin(), used_bytes_.end(), space_.capacity.begin(),
                      [](double used, double capacity) { return used <= capacity; });
}

}  // namespace placewise

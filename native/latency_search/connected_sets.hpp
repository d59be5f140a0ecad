// Connected sets of blocks on one device: what most moves take elsewhere.
#pragma once

#include <vector>

#include "common/random.hpp"
#include "latency_search/move_space.hpp"

namespace placewise {

class ConnectedSets {
public:
    explicit ConnectedSets(const MoveSpace& space) : space_(space), member_(space.n_blocks(), 0) {}

    // A connected set of at most `most` blocks on the device of `seed`, found breadth first, into `chosen`.
    void grow(std::span<const std::int32_t> device, Index seed, Index most, SplitMix64& rng,
              std::vector<std::int32_t>& chosen) {
        const std::int32_t home = device[seed];
        chosen.assign(1, static_cast<std::int32_t>(seed));
        member_[seed] = 1;
        for (std::size_t at = 0; at < chosen.size() && static_cast<Index>(chosen.size()) < most; ++at) {
            const auto neighbours = space_.neighbours[chosen[at]];
            const auto count = static_cast<Index>(neighbours.size());
            const Index first = rng.below(count > 0 ? count : 1);
            for (Index i = 0; i < count && static_cast<Index>(chosen.size()) < most; ++i) {
                const std::int32_t other = neighbours[first + i < count ? first + i : first + i - count];
                if (device[other] != home || member_[other]) continue;
                member_[other] = 1;
                chosen.push_back(other);
            }
        }
        for (const std::int32_t block : chosen) member_[block] = 0;
    }

private:
    const MoveSpace& space_;
    std::vector<std::uint8_t> member_;  // [n_blocks], zeros between calls
};

}  // namespace placewise

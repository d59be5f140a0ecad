// Blocks moved between devices until their bytes fit: eviction, then a local search over shifts and exchanges, in which
// excess travels from device to device like an ejection chain and random kicks go on where no pair of blocks helps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/interrupt.hpp"
#include "common/random.hpp"
#include "common/views.hpp"

namespace placewise {

// What blocks weigh and where they may be; bytes are whole. A storage that several blocks use is held once per device.
struct BlockColumns {
    std::span<const std::int64_t> own;     // [n_blocks] state, and weights that no other block uses
    Adjacency storages;                    // shared storages of each block
    std::span<const std::int64_t> stored;  // [n_storages] bytes
    TableView<const bool> runs;            // [n_blocks, n_devices]
    TableView<const double> seconds;       // [n_blocks, n_devices]
    Adjacency neighbours;                  // blocks that exchange tensors with each block
    std::span<const double> traffic;       // seconds of these, one per neighbour

    Index size() const { return static_cast<Index>(own.size()); }
};

class MemoryRepair {
public:
    // `limit` [n_devices]: the bytes that each may hold. Every block may run somewhere.
    MemoryRepair(const BlockColumns& blocks, std::span<const std::int64_t> limit);

    // Move blocks of an assignment [n_blocks], in place, until all devices keep their limits; whether they do. The
    // local search looks at about `work` blocks; cut short, it leaves the assignment with the least excess.
    bool run(std::span<std::int32_t> assignment, std::uint64_t seed, std::int64_t work, Interrupt& interrupt);

    // Assign all blocks anew, in the given `order`: where most room is left if `even`, else the least enough; where
    // none has room, the one that has most.
    void fill(std::span<std::int32_t> assignment, std::span<const std::int64_t> order, bool even);

private:
    // `block` goes to the device `target` and, if it is not −1, `other` comes back; `rate` says how badly that suits.
    struct Exchange {
        Index block = -1;
        Index other = -1;
        Index target = -1;
        double rate = 0.0;
    };
    struct Eviction {
        double price;  // seconds per byte
        Index block;
    };

    Index n_devices() const { return static_cast<Index>(limit_.size()); }
    std::int64_t excess() const;
    bool fits(Index block, Index device) const { return load_[device] + gain(block, device) <= limit_[device]; }
    std::int64_t gain(Index block, Index device) const;
    std::int64_t relief(Index block, Index device) const;
    double cost(Index block, Index device) const;
    void put(Index block, Index device);
    void take(Index block);
    void move(Index block, Index device);

    void reset(std::span<std::int32_t> assignment);
    void place_strays();
    Index best_refuge(Index block) const;
    void evict(Index source, Interrupt& interrupt);
    void evict_all(Interrupt& interrupt);

    bool search(std::uint64_t seed, std::int64_t work, Interrupt& interrupt);
    Index draw_overloaded(SplitMix64& rng) const;
    void list_blocks();
    void find_exchange(Index source, Index target, std::int64_t step, SplitMix64& rng, Exchange& best) const;

    BlockColumns blocks_;
    std::vector<std::int64_t> limit_;
    std::vector<std::int64_t> load_;  // [n_devices] bytes
    Table<std::int32_t> uses_;        // [n_devices, n_storages] blocks that use each
    std::span<std::int32_t> assignment_;
    std::vector<std::int64_t> by_size_;  // blocks, largest first
    std::vector<std::int64_t> start_;    // [n_devices + 1] into `listed_`
    std::vector<std::int64_t> listed_;   // blocks by device, largest first
    std::vector<std::int64_t> barred_;   // [n_blocks] the step after which each may move again
    std::vector<Eviction> evictions_;
};

}  // namespace placewise

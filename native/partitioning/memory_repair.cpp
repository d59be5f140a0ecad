#include "partitioning/memory_repair.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace placewise {

namespace {

constexpr double INF = std::numeric_limits<double>::infinity();
constexpr std::int64_t UNLIMITED = std::int64_t{1} << 60;
// What a step of the local search costs at least, so that there are not too many of them where blocks are few.
constexpr std::int64_t MIN_WORK = 2'000;
constexpr double KICK = 0.03;

}  // namespace

MemoryRepair::MemoryRepair(const BlockColumns& blocks, std::span<const std::int64_t> limit)
    : blocks_(blocks),
      limit_(limit.begin(), limit.end()),
      load_(limit.size()),
      uses_(n_devices(), blocks.storages.values.empty() ? 0 : static_cast<Index>(blocks.stored.size())) {}

std::int64_t MemoryRepair::excess() const {
    std::int64_t total = 0;
    for (Index d = 0; d < n_devices(); ++d) total += std::max<std::int64_t>(load_[d] - limit_[d], 0);
    return total;
}

// Bytes that a device would need for a block that is not there.
std::int64_t MemoryRepair::gain(Index block, Index device) const {
    std::int64_t total = blocks_.own[block];
    for (const std::int32_t storage : blocks_.storages[block]) {
        if (uses_(device, storage) == 0) total += blocks_.stored[storage];
    }
    return total;
}

// Bytes that a device would be rid of without a block that is there.
std::int64_t MemoryRepair::relief(Index block, Index device) const {
    std::int64_t total = blocks_.own[block];
    for (const std::int32_t storage : blocks_.storages[block]) {
        if (uses_(device, storage) == 1) total += blocks_.stored[storage];
    }
    return total;
}

// Seconds of a block on a device: its ops, and its tensors to and from elsewhere.
double MemoryRepair::cost(Index block, Index device) const {
    double seconds = blocks_.seconds(block, device);
    const Index first = blocks_.neighbours.offsets[block], last = blocks_.neighbours.offsets[block + 1];
    for (Index row = first; row < last; ++row) {
        if (assignment_[blocks_.neighbours.values[row]] != device) seconds += blocks_.traffic[row];
    }
    return seconds;
}

void MemoryRepair::put(Index block, Index device) {
    load_[device] += blocks_.own[block];
    for (const std::int32_t storage : blocks_.storages[block]) {
        if (uses_(device, storage)++ == 0) load_[device] += blocks_.stored[storage];
    }
    assignment_[block] = static_cast<std::int32_t>(device);
}

void MemoryRepair::take(Index block) {
    const Index device = assignment_[block];
    load_[device] -= blocks_.own[block];
    for (const std::int32_t storage : blocks_.storages[block]) {
        if (--uses_(device, storage) == 0) load_[device] -= blocks_.stored[storage];
    }
}

void MemoryRepair::move(Index block, Index device) {
    take(block);
    put(block, device);
}

// Load every device with the blocks that may be where they are; the device of all others becomes −1.
void MemoryRepair::reset(std::span<std::int32_t> assignment) {
    assignment_ = assignment;
    std::fill(load_.begin(), load_.end(), 0);
    std::fill(uses_.cells().begin(), uses_.cells().end(), 0);
    for (Index block = 0; block < blocks_.size(); ++block) {
        const std::int32_t d = assignment[block];
        if (0 <= d && d < n_devices() && blocks_.runs(block, d)) {
            put(block, d);
        } else {
            assignment[block] = -1;
        }
    }
}

// Blocks without a device go where there is room and they are quick, else where the fewest bytes are missing.
void MemoryRepair::place_strays() {
    for (Index block = 0; block < blocks_.size(); ++block) {
        if (assignment_[block] >= 0) continue;
        Index best = -1;
        double least = INF;
        bool enough = false;
        for (Index d = 0; d < n_devices(); ++d) {
            if (!blocks_.runs(block, d)) continue;
            const std::int64_t missing = load_[d] + gain(block, d) - limit_[d];
            const double price = missing <= 0 ? cost(block, d) : static_cast<double>(missing);
            if (best < 0 || (missing <= 0 && !enough) || ((missing <= 0) == enough && price < least)) {
                best = d;
                least = price;
                enough = missing <= 0;
            }
        }
        put(block, best);
    }
}

// The device with room for a block where it costs least; −1 if no other has room.
Index MemoryRepair::best_refuge(Index block) const {
    Index best = -1;
    double least = INF;
    for (Index d = 0; d < n_devices(); ++d) {
        if (d == assignment_[block] || !blocks_.runs(block, d) || !fits(block, d)) continue;
        const double price = cost(block, d);
        if (price < least) {
            best = d;
            least = price;
        }
    }
    return best;
}

// Move blocks from a device that is too full to those that have room, cheapest per byte first.
void MemoryRepair::evict(Index source, Interrupt& interrupt) {
    evictions_.clear();
    for (Index block = 0; block < blocks_.size(); ++block) {
        if (assignment_[block] != source) continue;
        if (interrupt.stop()) return;
        const std::int64_t freed = relief(block, source);
        if (freed <= 0 && blocks_.storages.length(block) == 0) continue;
        const Index refuge = best_refuge(block);
        if (refuge < 0) continue;
        const double more = cost(block, refuge) - cost(block, source);
        evictions_.push_back({more / static_cast<double>(std::max<std::int64_t>(freed, 1)), block});
    }
    std::stable_sort(evictions_.begin(), evictions_.end(),
                     [](const Eviction& one, const Eviction& other) { return one.price < other.price; });
    for (const Eviction& eviction : evictions_) {
        if (load_[source] <= limit_[source]) return;
        const Index refuge = best_refuge(eviction.block);
        if (refuge >= 0) move(eviction.block, refuge);
    }
}

// Evict from all devices that are too full, the fullest first, as long as that helps.
void MemoryRepair::evict_all(Interrupt& interrupt) {
    std::vector<Index> full;
    for (std::int64_t before = excess(); before > 0;) {
        full.clear();
        for (Index d = 0; d < n_devices(); ++d) {
            if (load_[d] > limit_[d]) full.push_back(d);
        }
        std::stable_sort(full.begin(), full.end(), [&](Index one, Index other) {
            return load_[one] - limit_[one] > load_[other] - limit_[other];
        });
        for (const Index d : full) evict(d, interrupt);
        const std::int64_t after = excess();
        if (after >= before || interrupt.stopped()) return;
        before = after;
    }
}

bool MemoryRepair::run(std::span<std::int32_t> assignment, std::uint64_t seed, std::int64_t work,
                       Interrupt& interrupt) {
    reset(assignment);
    place_strays();
    evict_all(interrupt);
    if (excess() == 0) return true;
    std::int64_t needed = 0, room = 0;
    for (const std::int64_t bytes : blocks_.own) needed = std::min(needed + bytes, UNLIMITED);
    for (const std::int64_t bytes : limit_) room = std::min(room + bytes, UNLIMITED);
    return blocks_.size() > 0 && needed <= room && search(seed, work, interrupt);
}

// One of the devices that are too full, each as likely.
Index MemoryRepair::draw_overloaded(SplitMix64& rng) const {
    Index source = -1;
    std::int64_t seen = 0;
    for (Index d = 0; d < n_devices(); ++d) {
        if (load_[d] > limit_[d] && rng.below(++seen) == 0) source = d;
    }
    return source;
}

void MemoryRepair::list_blocks() {
    std::fill(start_.begin(), start_.end(), 0);
    for (const std::int32_t d : assignment_) ++start_[d + 1];
    for (Index d = 0; d < n_devices(); ++d) start_[d + 1] += start_[d];
    for (const std::int64_t block : by_size_) listed_[start_[assignment_[block]]++] = block;
    for (Index d = n_devices(); d > 0; --d) start_[d] = start_[d - 1];
    start_[0] = 0;
}

// Of the pairs of a block of `source` and one of `target`, or none, that whose difference comes nearest to what the one
// must lose and the other can take.
void MemoryRepair::find_exchange(Index source, Index target, std::int64_t step, SplitMix64& rng, Exchange& best) const {
    const std::int64_t lose = load_[source] - limit_[source], free = limit_[target] - load_[target];
    const std::int64_t low = std::max<std::int64_t>(std::min(lose, free), 1), high = std::max(lose, free);
    const double wish = static_cast<double>(low) + (high > low ? rng.uniform() * static_cast<double>(high - low) : 0.0);
    const Index first = start_[target], last = start_[target + 1];
    const auto consider = [&](Index block, Index other) {
        const std::int64_t moved = blocks_.own[block] - (other >= 0 ? blocks_.own[other] : 0);
        if (moved == 0 && blocks_.storages.length(block) == 0) return;
        const std::int64_t miss = std::max<std::int64_t>({low - moved, moved - high, 0});
        const double rate = static_cast<double>(miss) + 1e-9 * std::abs(static_cast<double>(moved) - wish);
        if (rate < best.rate) best = {block, other, target, rate};
    };
    Index cursor = first;
    for (Index row = start_[source]; row < start_[source + 1]; ++row) {
        const Index block = listed_[row];
        if (!blocks_.runs(block, target) || barred_[block] > step) continue;
        while (cursor < last && blocks_.own[block] - blocks_.own[listed_[cursor]] < low) ++cursor;
        for (const Index place : {cursor - 1, cursor}) {
            if (place < first || place >= last) continue;
            const Index other = listed_[place];
            if (blocks_.runs(other, source) && barred_[other] <= step) consider(block, other);
        }
        consider(block, -1);
    }
}

// Shift and exchange blocks between pairs of devices until no device has too much; whether that came about.
bool MemoryRepair::search(std::uint64_t seed, std::int64_t work, Interrupt& interrupt) {
    SplitMix64 rng(seed);
    const Index n = blocks_.size();
    by_size_.resize(n);
    std::iota(by_size_.begin(), by_size_.end(), 0);
    std::stable_sort(by_size_.begin(), by_size_.end(),
                     [&](Index one, Index other) { return blocks_.own[one] > blocks_.own[other]; });
    start_.resize(n_devices() + 1);
    listed_.resize(n);
    barred_.assign(n, 0);
    std::vector<std::int32_t> best(assignment_.begin(), assignment_.end());
    std::int64_t least_excess = excess();
    for (std::int64_t step = 1; work > 0 && !interrupt.look(); ++step) {
        const std::int64_t over = excess();
        if (over == 0) return true;
        if (over < least_excess) {
            least_excess = over;
            std::copy(assignment_.begin(), assignment_.end(), best.begin());
        }
        const Index source = draw_overloaded(rng);
        list_blocks();
        work -= 4 * n + MIN_WORK;
        Exchange chosen;
        chosen.rate = INF;
        for (Index target = 0; target < n_devices(); ++target) {
            if (target == source) continue;
            find_exchange(source, target, step, rng, chosen);
            work -= 3 * (start_[source + 1] - start_[source]) + (start_[target + 1] - start_[target]);
        }
        const std::int64_t until = step + 3 + rng.below(8) + std::min<std::int64_t>(n / 8, 20);
        const auto transfer = [&](Index block, Index device) {
            move(block, device);
            barred_[block] = until;
        };
        if (chosen.block < 0 || rng.uniform() < KICK) {
            const Index stray = rng.below(n), device = rng.below(n_devices());
            if (blocks_.runs(stray, device) && assignment_[stray] != device) transfer(stray, device);
            continue;
        }
        if (chosen.other >= 0) transfer(chosen.other, source);
        transfer(chosen.block, chosen.target);
    }
    if (excess() == 0) return true;
    std::copy(best.begin(), best.end(), assignment_.begin());
    return false;
}

void MemoryRepair::fill(std::span<std::int32_t> assignment, std::span<const std::int64_t> order, bool even) {
    std::fill(assignment.begin(), assignment.end(), -1);
    reset(assignment);
    for (const std::int64_t block : order) {
        Index best = -1;
        std::int64_t most = 0;
        bool enough = false;
        for (Index d = 0; d < n_devices(); ++d) {
            if (!blocks_.runs(block, d)) continue;
            const std::int64_t left = limit_[d] - load_[d] - gain(block, d);
            const bool better = even || left < 0 ? left > most : left < most;
            if (best < 0 || (left >= 0 && !enough) || ((left >= 0) == enough && better)) {
                best = d;
                most = left;
                enough = left >= 0;
            }
        }
        put(block, best);
    }
}

}  // namespace placewise

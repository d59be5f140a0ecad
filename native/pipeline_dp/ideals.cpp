#include "pipeline_dp/ideals.hpp"

#include <algorithm>
#include <bit>

#include "common/random.hpp"

namespace placewise {

namespace {

// Where graphs branch more than this on average, their ideals are too many to be listed anyway.
constexpr Index MAX_STEPS_PER_IDEAL = 12;

}  // namespace

// Finds every ideal once, by a hash table of their Zobrist keys.
class IdealEnumeration {
public:
    IdealEnumeration(const Adjacency& successors, Index most)
        : successors_(successors),
          predecessors_(successors.size()),
          most_(most),
          found_(successors.size()),
          component_keys_(successors.size()),
          slots_(4096, -1) {
        SplitMix64 rng(0);
        for (std::uint64_t& key : component_keys_) key = rng.bits();
        found_.words_.assign(found_.width_, 0);
        ready_.assign(found_.width_, 0);
        keys_.assign(1, 0);
        for (Index component = 0; component < found_.n_; ++component) {
            for (const std::int32_t after : successors_[component]) {
                predecessors_[after].push_back(static_cast<std::int32_t>(component));
            }
            if (predecessors_[component].empty()) ready_[component >> 6] |= bit(component);
        }
        slots_[0] = 0;
    }

    Ideals run(Interrupt& interrupt) {
        Index at = 0;
        while (found_.complete_ && at < count()) expand(at++, interrupt);
        found_.offsets_.resize(count() + 1, static_cast<Index>(found_.steps_.size()));
        return std::move(found_);
    }

private:
    static std::uint64_t bit(Index component) { return std::uint64_t{1} << (component & 63); }
    Index count() const { return static_cast<Index>(keys_.size()); }

    // All steps from one ideal, by component.
    void expand(Index ideal, Interrupt& interrupt) {
        found_.offsets_.push_back(static_cast<Index>(found_.steps_.size()));
        for (Index w = 0; w < found_.width_; ++w) {
            for (std::uint64_t left = ready_[ideal * found_.width_ + w]; left != 0; left &= left - 1) {
                const Index component = 64 * w + std::countr_zero(left);
                const Index target = find_or_add(ideal, component);
                if (count() > most_ || static_cast<Index>(found_.steps_.size()) >= MAX_STEPS_PER_IDEAL * most_ ||
                    interrupt.stop()) {
                    found_.complete_ = false;
                    return;
                }
                found_.steps_.push_back({static_cast<std::int32_t>(component), static_cast<std::int32_t>(target)});
            }
        }
    }

    Index find_or_add(Index ideal, Index component) {
        const std::uint64_t key = keys_[ideal] ^ component_keys_[component];
        const std::size_t mask = slots_.size() - 1;
        std::size_t slot = key & mask;
        for (; slots_[slot] >= 0; slot = (slot + 1) & mask) {
            if (keys_[slots_[slot]] == key && is_successor(slots_[slot], ideal, component)) return slots_[slot];
        }
        const Index target = count();
        slots_[slot] = static_cast<std::int32_t>(target);
        add(ideal, component, key);
        if (3 * keys_.size() > slots_.size()) grow_table();
        return target;
    }

    // Whether `other` is `ideal` and one component more.
    bool is_successor(Index other, Index ideal, Index component) const {
        const std::uint64_t* one = found_.words_.data() + ideal * found_.width_;
        const std::uint64_t* two = found_.words_.data() + other * found_.width_;
        for (Index w = 0; w < found_.width_; ++w) {
            if (two[w] != (w == component >> 6 ? one[w] | bit(component) : one[w])) return false;
        }
        return true;
    }

    void add(Index ideal, Index component, std::uint64_t key) {
        const Index width = found_.width_, row = count() * width, word = component >> 6;
        keys_.push_back(key);
        found_.words_.resize(row + width);
        ready_.resize(row + width);
        std::copy_n(found_.words_.begin() + ideal * width, width, found_.words_.begin() + row);
        std::copy_n(ready_.begin() + ideal * width, width, ready_.begin() + row);
        found_.words_[row + word] |= bit(component);
        ready_[row + word] ^= bit(component);
        for (const std::int32_t after : successors_[component]) {
            const auto& before = predecessors_[after];
            const bool free = std::all_of(before.begin(), before.end(), [&](std::int32_t c) {
                return (found_.words_[row + (c >> 6)] & bit(c)) != 0;
            });
            if (free) ready_[row + (after >> 6)] |= bit(after);
        }
    }

    void grow_table() {
        slots_.assign(4 * slots_.size(), -1);
        const std::size_t mask = slots_.size() - 1;
        for (Index ideal = 0; ideal < count(); ++ideal) {
            std::size_t slot = keys_[ideal] & mask;
            while (slots_[slot] >= 0) slot = (slot + 1) & mask;
            slots_[slot] = static_cast<std::int32_t>(ideal);
        }
    }

    const Adjacency& successors_;
    std::vector<std::vector<std::int32_t>> predecessors_;  // of each component
    Index most_;
    Ideals found_;
    std::vector<std::uint64_t> component_keys_;
    std::vector<std::uint64_t> keys_;   // [n_ideals]
    std::vector<std::uint64_t> ready_;  // [n_ideals · width] what can be added to each
    std::vector<std::int32_t> slots_;   // ideals by their keys; −1: free
};

Ideals Ideals::enumerate(const Adjacency& successors, Index most, Interrupt& interrupt) {
    return IdealEnumeration(successors, most).run(interrupt);
}

Ideals Ideals::prefixes(Index n) {
    Ideals found(n);
    found.words_.assign((n + 1) * found.width_, 0);
    for (Index i = 0; i < n; ++i) {
        const auto row = found.words_.begin() + i * found.width_;
        std::copy_n(row, found.width_, row + found.width_);
        row[found.width_ + (i >> 6)] |= std::uint64_t{1} << (i & 63);
        found.offsets_.push_back(i);
        found.steps_.push_back({static_cast<std::int32_t>(i), static_cast<std::int32_t>(i + 1)});
    }
    found.offsets_.insert(found.offsets_.end(), 2, n);
    return found;
}

std::vector<std::int64_t> work_left(const Ideals& ideals, std::span<const std::int64_t> work) {
    std::vector<std::int64_t> left(ideals.size());
    for (const std::int64_t own : work) left[0] += own;
    for (Index ideal = 0; ideal < ideals.size(); ++ideal) {
        for (const auto [component, target] : ideals.steps(ideal)) left[target] = left[ideal] - work[component];
    }
    return left;
}

namespace {

// What changes at the cut around an ideal when a component joins it.
std::int64_t cut_change(const StageCosts& costs, const Ideals& ideals, Index ideal, Index component,
                        std::span<const std::int64_t> enter, std::span<const std::int64_t> leave) {
    const auto readers_in = [&](Index tensor) {
        Index inside = 0;
        for (const std::int32_t reader : costs.consumers[tensor]) inside += ideals.holds(ideal, reader);
        return inside;
    };
    std::int64_t change = 0;
    for (const std::int32_t tensor : costs.uses[component]) {
        const Index inside = readers_in(tensor), maker = costs.producer[tensor];
        if (maker < 0 || ideals.holds(ideal, maker)) {
            if (inside + 1 == costs.consumers.length(tensor)) change -= enter[tensor];
        } else if (inside == 0 && !costs.output[tensor]) {
            change += leave[tensor];
        }
    }
    for (const std::int32_t tensor : costs.makes[component]) {
        const Index inside = readers_in(tensor);
        if (inside < costs.consumers.length(tensor)) change += enter[tensor];
        if (inside > 0 || costs.output[tensor]) change -= leave[tensor];
    }
    return change;
}

}  // namespace

std::vector<std::int64_t> cut_left(const StageCosts& costs, const Ideals& ideals, std::span<const std::int64_t> enter,
                                   std::span<const std::int64_t> leave, Interrupt& interrupt) {
    std::vector<std::int64_t> cut(ideals.size(), -1);
    cut[0] = 0;
    for (Index tensor = 0; tensor < costs.n_tensors(); ++tensor) {
        if (costs.producer[tensor] < 0) {
            cut[0] += enter[tensor];
        } else if (costs.output[tensor]) {
            cut[0] += leave[tensor];
        }
    }
    for (Index ideal = 0; ideal < ideals.size() && !interrupt.stop(); ++ideal) {
        for (const auto [component, target] : ideals.steps(ideal)) {
            if (cut[target] < 0) cut[target] = cut[ideal] + cut_change(costs, ideals, ideal, component, enter, leave);
        }
    }
    // Nothing is known of what was not reached before an interruption.
    for (std::int64_t& least : cut) least = std::max<std::int64_t>(least, 0);
    return cut;
}

}  // namespace placewise

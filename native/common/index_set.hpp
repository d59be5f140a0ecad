// A set of small whole numbers that gives back its least in O(log64 n).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace placewise {

// Words of 64 bits; every level above says which words below are not empty.
class IndexSet {
public:
    explicit IndexSet(std::int64_t capacity = 0) {
        std::int64_t count = capacity;
        starts_[0] = 0;
        do {
            count = (count + 63) >> 6;
            starts_[levels_ + 1] = starts_[levels_] + count;
            ++levels_;
        } while (count > 1);
        words_.assign(starts_[levels_], 0);
    }

    void insert(std::int64_t item) {
        for (int level = 0; level < levels_; ++level) {
            std::uint64_t& word = words_[starts_[level] + (item >> 6)];
            const bool was_empty = word == 0;
            word |= std::uint64_t{1} << (item & 63);
            if (!was_empty) return;
            item >>= 6;
        }
    }

    bool empty() const { return words_.empty() || words_.back() == 0; }

    // Remove and return the least item of a set that is not empty.
    std::int64_t pop_min() {
        std::int64_t least = 0;
        for (int level = levels_ - 1; level >= 0; --level) {
            least = (least << 6) + std::countr_zero(words_[starts_[level] + least]);
        }
        std::int64_t item = least;
        for (int level = 0; level < levels_; ++level) {
            std::uint64_t& word = words_[starts_[level] + (item >> 6)];
            word &= ~(std::uint64_t{1} << (item & 63));
            if (word != 0) break;
            item >>= 6;
        }
        return least;
    }

    void clear() { std::fill(words_.begin(), words_.end(), 0); }

    // What a checkpoint keeps of a set, and gives back to one of the same capacity.
    std::span<const std::uint64_t> words() const { return words_; }
    void restore(std::span<const std::uint64_t> words) { std::copy(words.begin(), words.end(), words_.begin()); }

private:
    int levels_ = 0;
    std::int64_t starts_[12] = {};
    std::vector<std::uint64_t> words_;
};

}  // namespace placewise

// A binary min-heap over a vector that can be read, copied and restored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace placewise {

// An item and the moment that it is due; ties go to the smaller item, so that every order is total.
struct Timed {
    double time;
    std::int64_t item;
    bool operator<(const Timed& other) const { return time < other.time || (time == other.time && item < other.item); }
};

template <class Entry = Timed>
class MinHeap {
public:
    bool empty() const { return entries_.empty(); }
    std::size_t size() const { return entries_.size(); }
    const Entry& top() const { return entries_.front(); }
    void clear() { entries_.clear(); }
    void reserve(std::size_t count) { entries_.reserve(count); }
    const std::vector<Entry>& entries() const { return entries_; }

    // Entries in heap order, as `entries` gave them.
    template <class Iterator>
    void assign(Iterator first, Iterator last) {
        entries_.assign(first, last);
    }

    void push(Entry entry) {
        std::size_t at = entries_.size();
        entries_.push_back(entry);
        while (at > 0) {
            const std::size_t up = (at - 1) / 2;
            if (!(entry < entries_[up])) break;
            entries_[at] = entries_[up];
            at = up;
        }
        entries_[at] = entry;
    }

    Entry pop() {
        const Entry first = entries_.front();
        const Entry last = entries_.back();
        entries_.pop_back();
        const std::size_t size = entries_.size();
        std::size_t at = 0;
        while (size > 0) {
            std::size_t down = 2 * at + 1;
            if (down >= size) break;
            if (down + 1 < size && entries_[down + 1] < entries_[down]) ++down;
            if (!(entries_[down] < last)) break;
            entries_[at] = entries_[down];
            at = down;
        }
        if (size > 0) entries_[at] = last;
        return first;
    }

private:
    std::vector<Entry> entries_;
};

}  // namespace placewise

// The containers of native/common against those of the standard library: test_native.py builds and runs it.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "common/index_set.hpp"
#include "common/min_heap.hpp"
#include "common/random.hpp"
#include "common/union_find.hpp"

using namespace placewise;

namespace {

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

// Pushes and pops in any order, with many ties, as std::priority_queue does them.
void test_heap(SplitMix64& rng) {
    using Entry = std::pair<double, std::int64_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> known;
    MinHeap<> heap;
    for (int step = 0; step < 200; ++step) {
        if (!known.empty() && rng.below(3) == 0) {
            const Timed popped = heap.pop();
            expect(Entry(popped.time, popped.item) == known.top(), "a heap pops its least entry");
            known.pop();
        } else {
            const Entry entry(static_cast<double>(rng.below(6)), rng.below(30));
            heap.push({entry.first, entry.second});
            known.push(entry);
        }
        expect(heap.size() == known.size() && heap.empty() == known.empty(), "a heap knows its size");
        if (!known.empty()) expect(heap.top().time == known.top().first, "a heap shows its least entry");
    }
    MinHeap<> copy;
    copy.assign(heap.entries().begin(), heap.entries().end());
    while (!copy.empty()) {
        expect(copy.pop().time == known.top().first, "a restored heap is the same heap");
        known.pop();
    }
}

// Items come out least first, whatever was inserted in between; a checkpoint brings all of them back.
void test_index_set(SplitMix64& rng, std::int64_t capacity) {
    IndexSet items(capacity);
    std::set<std::int64_t> known;
    for (int step = 0; step < 200; ++step) {
        if (!known.empty() && rng.below(3) == 0) {
            expect(items.pop_min() == *known.begin(), "a set pops its least item");
            known.erase(known.begin());
        } else {
            const std::int64_t item = rng.below(capacity);
            items.insert(item);
            known.insert(item);
        }
        expect(items.empty() == known.empty(), "a set knows whether it is empty");
    }
    const std::vector<std::uint64_t> kept(items.words().begin(), items.words().end());
    items.clear();
    expect(items.empty(), "a cleared set is empty");
    items.restore(kept);
    for (const std::int64_t item : known) expect(items.pop_min() == item, "a restored set is the same set");
    expect(items.empty(), "a set holds nothing else");
}

// Sets are joined as their definition says, by relabelling; roots and labels are those of the least members.
void test_union_find(SplitMix64& rng) {
    constexpr std::int32_t COUNT = 40;
    UnionFind sets(COUNT);
    std::vector<std::int32_t> least(COUNT);
    for (std::int32_t item = 0; item < COUNT; ++item) least[item] = item;
    for (int step = 0; step < 60; ++step) {
        const auto one = static_cast<std::int32_t>(rng.below(COUNT)),
                   other = static_cast<std::int32_t>(rng.below(COUNT));
        const std::int32_t low = std::min(least[one], least[other]), high = std::max(least[one], least[other]);
        expect(sets.unite(one, other) == low, "a union has the least root");
        for (std::int32_t& root : least) root = root == high ? low : root;
        for (std::int32_t item = 0; item < COUNT; ++item) expect(sets.find(item) == least[item], "roots are least");
    }
    const auto [label, count] = sets.labels();
    const std::set<std::int32_t> roots(least.begin(), least.end());
    expect(count == static_cast<std::int32_t>(roots.size()), "labels are dense");
    for (std::int32_t item = 0; item < COUNT; ++item) {
        const auto rank = std::distance(roots.begin(), roots.find(least[item]));
        expect(label[item] == rank, "labels are ordered by least members");
    }
}

// The published first numbers of splitmix64 from seed 1234567, and draws that stay in range.
void test_random() {
    SplitMix64 rng(1234567);
    for (const std::uint64_t word : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u}) {
        expect(rng.bits() == word, "splitmix64 gives its published numbers");
    }
    for (int draw = 0; draw < 10000; ++draw) {
        const std::int64_t n = 1 + static_cast<std::int64_t>(rng.bits() % 2147483647u);
        const std::int64_t below = rng.below(n);
        const double uniform = rng.uniform();
        expect(0 <= below && below < n && 0.0 <= uniform && uniform < 1.0, "draws stay in range");
    }
}

}  // namespace

int main() {
    SplitMix64 rng(7);
    for (int round = 0; round < 200; ++round) test_heap(rng);
    for (const std::int64_t capacity : {1, 2, 63, 64, 65, 4096, 4097, 300000}) {
        for (int round = 0; round < 20; ++round) test_index_set(rng, capacity);
    }
    for (int round = 0; round < 50; ++round) test_union_find(rng);
    test_random();
    return 0;
}

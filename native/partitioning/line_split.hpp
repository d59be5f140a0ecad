// A line of components split into stages that stay within memory: every order of the devices is tried, by dynamic
// programming over how many of each class are used. The furthest end is all that matters, since a longer stage needs no
// fewer bytes.
#pragma once

#include <span>
#include <vector>

#include "common/views.hpp"

namespace placewise {

// The bytes of the components of a line; a storage that several use is held once per stage.
struct Line {
    std::span<const std::int64_t> state;  // [n]
    Adjacency storages;
    std::span<const std::int64_t> stored;  // [n_storages]

    Index size() const { return static_cast<Index>(state.size()); }
};

struct Stage {
    std::int64_t kind;  // the class of its device
    std::int64_t start;
    std::int64_t end;
};

// The first position [n + 1] that a stage cannot hold which begins at each, on a device of `room` bytes that may run
// the components `runs` [n].
std::vector<std::int64_t> stage_ends(const Line& line, double room, std::span<const bool> runs);

// Stages that reach the end of a line, as few of each class as `count` says; none if nothing does. `ends` [n_classes,
// n + 1] is what `stage_ends` found for each class.
std::vector<Stage> split_line(const TableView<const std::int64_t>& ends, std::span<const std::int64_t> count);

}  // namespace placewise

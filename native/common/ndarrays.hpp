// Between numpy and views: only the bindings know of Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "common/errors.hpp"
#include "common/views.hpp"

namespace placewise {

namespace nb = nanobind;

// Arguments: contiguous arrays of exactly this type, never copied; In is only read, Out is written.
template <class T, int Dimensions = 1>
using In = nb::ndarray<const T, nb::numpy, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
template <class T, int Dimensions = 1>
using Out = nb::ndarray<T, nb::numpy, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
// Results: arrays that own their cells, alone or several of them.
template <class T, int Dimensions = 1>
using Made = nb::ndarray<nb::numpy, T, nb::ndim<Dimensions>, nb::c_contig>;
template <class... Parts>
using TupleOf = nb::typed<nb::tuple, Parts...>;

template <class T>
std::span<const T> view(const In<T, 1>& array) {
    return {array.data(), array.shape(0)};
}
template <class T>
std::span<T> view(const Out<T, 1>& array) {
    return {array.data(), array.shape(0)};
}
template <class T>
TableView<const T> view(const In<T, 2>& array) {
    return {array.data(), static_cast<Index>(array.shape(0)), static_cast<Index>(array.shape(1))};
}
template <class T>
TableView<T> view(const Out<T, 2>& array) {
    return {array.data(), static_cast<Index>(array.shape(0)), static_cast<Index>(array.shape(1))};
}

// Results: a vector becomes a numpy array that owns it.
template <class T>
Made<T> to_numpy(std::vector<T>&& values) {
    auto* owned = new std::vector<T>(std::move(values));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return {owned->data(), {owned->size()}, owner};
}
template <class T>
Made<T, 2> to_numpy(Table<T>&& table) {
    auto* owned = new Table<T>(std::move(table));
    nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Table<T>*>(p); });
    return {owned->cells().data(),
            {static_cast<std::size_t>(owned->rows()), static_cast<std::size_t>(owned->columns())},
            owner};
}

// Whether every value is from `low` to below `high`.
template <class T>
bool within(std::span<const T> values, std::int64_t low, std::int64_t high) {
    bool inside = true;  // without a branch, so that compilers can take many values at once
    for (const T value : values) inside &= (low <= value) & (value < high);
    return inside;
}

// Whether no figure is negative or missing; all are finite, unless they may be infinite.
inline bool are_amounts(std::span<const double> values, bool may_be_infinite = false) {
    return std::ranges::all_of(values, [&](double v) { return v >= 0.0 && (may_be_infinite || std::isfinite(v)); });
}

// Bytes that are not negative, and whose sum is a whole number too.
inline void require_bytes(std::span<const std::int64_t> bytes) {
    double total = 0.0;
    for (const std::int64_t nbytes : bytes) {
        require(nbytes >= 0, "bytes are below zero");
        total += static_cast<double>(nbytes);
    }
    require(total < 0x1p61, "too many bytes");
}

// Rows whose offsets cover their values; raises otherwise.
template <class T>
RaggedView<T> ragged(const In<std::int64_t>& offsets, const In<T>& values, Index rows) {
    const auto at = view(offsets);
    require(static_cast<Index>(at.size()) == rows + 1, "offsets have another length than their rows");
    require(at.front() == 0 && at.back() == static_cast<Index>(values.shape(0)), "offsets do not cover their values");
    bool ascending = true;
    for (std::size_t row = 1; row < at.size(); ++row) ascending &= at[row - 1] <= at[row];
    require(ascending, "offsets do not ascend");
    return {at, view(values)};
}

// The neighbours of each node of a graph; raises where an edge leads to no node.
inline Adjacency neighbours(const In<std::int64_t>& offsets, const In<std::int32_t>& targets, Index nodes) {
    const Adjacency rows = ragged(offsets, targets, nodes);
    require(within(rows.values, 0, nodes), "an edge leads to no node");
    return rows;
}

}  // namespace placewise

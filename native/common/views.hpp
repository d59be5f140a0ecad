// Views of columns that somebody else owns: what kernels read and write.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace placewise {

using Index = std::int64_t;

template <class T>
using Column = std::span<T>;

// A row-major table that somebody else owns.
template <class T>
class TableView {
public:
    TableView() = default;
    TableView(T* data, Index rows, Index columns) : data_(data), rows_(rows), columns_(columns) {}

    T& operator()(Index row, Index column) const {
        assert(0 <= row && row < rows_ && 0 <= column && column < columns_);
        return data_[row * columns_ + column];
    }
    std::span<T> row(Index row) const {
        assert(0 <= row && row < rows_);
        return {data_ + row * columns_, static_cast<std::size_t>(columns_)};
    }
    Index rows() const { return rows_; }
    Index columns() const { return columns_; }

private:
    T* data_ = nullptr;
    Index rows_ = 0;
    Index columns_ = 0;
};

// A row-major table that owns its cells.
template <class T>
class Table {
public:
    Table() = default;
    Table(Index rows, Index columns, T value = T()) : cells_(rows * columns, value), rows_(rows), columns_(columns) {}

    T& operator()(Index row, Index column) { return view()(row, column); }
    const T& operator()(Index row, Index column) const { return view()(row, column); }
    std::span<T> row(Index row) { return view().row(row); }
    std::span<const T> row(Index row) const { return view().row(row); }
    TableView<T> view() { return {cells_.data(), rows_, columns_}; }
    TableView<const T> view() const { return {cells_.data(), rows_, columns_}; }
    std::vector<T>& cells() { return cells_; }
    Index rows() const { return rows_; }
    Index columns() const { return columns_; }

private:
    std::vector<T> cells_;
    Index rows_ = 0;
    Index columns_ = 0;
};

// Rows of different lengths (CSR): row i is values[offsets[i] .. offsets[i + 1]).
template <class T>
struct RaggedView {
    std::span<const std::int64_t> offsets;
    std::span<const T> values;

    std::span<const T> operator[](Index row) const {
        return values.subspan(offsets[row], offsets[row + 1] - offsets[row]);
    }
    Index size() const { return static_cast<Index>(offsets.size()) - 1; }
    Index length(Index row) const { return offsets[row + 1] - offsets[row]; }
};

using Adjacency = RaggedView<std::int32_t>;

// The whole numbers first, first + 1, … last − 1, for range-based loops.
class IndexRange {
public:
    class iterator {
    public:
        explicit iterator(Index at) : at_(at) {}
        Index operator*() const { return at_; }
        iterator& operator++() {
            ++at_;
            return *this;
        }
        bool operator!=(const iterator& other) const { return at_ != other.at_; }

    private:
        Index at_;
    };
    IndexRange(Index first, Index last) : first_(first), last_(last < first ? first : last) {}
    iterator begin() const { return iterator(first_); }
    iterator end() const { return iterator(last_); }

private:
    Index first_;
    Index last_;
};

}  // namespace placewise

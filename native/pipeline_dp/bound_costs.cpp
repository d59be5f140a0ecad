#include <algorithm>

#include "pipeline_dp/bindings.hpp"

namespace placewise {

bool is_bounded(TableView<const std::int64_t> table) {
    double total = 0.0;
    for (Index row = 0; row < table.rows(); ++row) {
        std::int64_t most = 0;
        for (const std::int64_t cell : table.row(row)) {
            if (cell < 0) return false;
            most = std::max(most, cell);
        }
        total += static_cast<double>(most);
    }
    return total <= static_cast<double>(NEVER);
}

bool is_bounded(std::span<const std::int64_t> column) {
    return is_bounded(TableView(column.data(), static_cast<Index>(column.size()), 1));
}

namespace {

Communication communication(int mode) {
    require(0 <= mode && mode <= 2, "no such communication mode");
    return static_cast<Communication>(mode);
}

// Rows of indices; what stands before the first row belongs to host memory.
Adjacency rows_of(const Longs& offsets, const Ints& values, Index rows, Index high) {
    const auto at = view(offsets);
    const auto cells = view(values);
    require(static_cast<Index>(at.size()) == rows + 1, "offsets have another length than their rows");
    require(at.front() >= 0 && at.back() <= static_cast<Index>(cells.size()) && std::ranges::is_sorted(at),
            "offsets do not cover their values");
    require(within(cells, 0, high), "rows name what is not there");
    return {at, cells};
}

}  // namespace

BoundStageCosts::BoundStageCosts(const In<std::int64_t, 2>& seconds, const Longs& size, const Longs& weight,
                                 const Ints& producer, const Ints& readers, const In<bool>& output,
                                 const In<bool>& mirrored, const Longs& consumer_offsets, const Ints& consumers,
                                 const In<std::int64_t, 2>& enter, const In<std::int64_t, 2>& leave,
                                 const Longs& use_offsets, const Ints& uses, const Longs& make_offsets,
                                 const Ints& makes, const Longs& storage_offsets, const Ints& storages,
                                 const Longs& storage_bytes, const Ints& rate, const Longs& capacity,
                                 const Ints& n_devices, const Ints& most, const In<double, 2>& pace, int mode,
                                 bool ordered)
    : owners_(nb::make_tuple(seconds, size, weight, producer, readers, output, mirrored, consumer_offsets, consumers,
                             enter, leave, use_offsets, uses, make_offsets, makes, storage_offsets, storages,
                             storage_bytes, rate, capacity, n_devices, most, pace)) {
    this->seconds = view(seconds);
    this->size = view(size);
    this->weight = view(weight);
    this->producer = view(producer);
    this->readers = view(readers);
    this->output = view(output);
    this->mirrored = view(mirrored);
    this->consumers = rows_of(consumer_offsets, consumers, n_tensors(), n());
    this->enter = view(enter);
    this->leave = view(leave);
    this->uses = rows_of(use_offsets, uses, n(), n_tensors());
    this->makes = rows_of(make_offsets, makes, n(), n_tensors());
    this->storages = rows_of(storage_offsets, storages, n(), static_cast<Index>(storage_bytes.shape(0)));
    this->storage_bytes = view(storage_bytes);
    this->rate = view(rate);
    this->capacity = view(capacity);
    this->n_devices = view(n_devices);
    this->most = view(most);
    this->pace = view(pace);
    this->mode = communication(mode);
    this->ordered = ordered;
    check();
}

void BoundStageCosts::check() {
    for (Index component = 0; component < n(); ++component) {
        require(within(seconds.row(component), 0, NEVER + 1), "a time is negative or more than never");
    }
    require(
        is_bounded(enter) && is_bounded(leave) && is_bounded(size) && is_bounded(weight) && is_bounded(storage_bytes),
        "amounts are negative or too large");
    double bytes = 0.0;
    for (const std::int64_t own : weight) bytes += static_cast<double>(own);
    for (const std::int64_t own : storage_bytes) bytes += static_cast<double>(own);
    for (Index k = 0; k < pace.rows(); ++k) {
        for (const double cell : pace.row(k)) {
            require(cell >= 0 && cell * bytes <= static_cast<double>(NEVER), "a pace is negative or too slow");
        }
    }
    const auto components = static_cast<std::size_t>(n()), tensors = static_cast<std::size_t>(n_tensors());
    const auto classes = static_cast<std::size_t>(n_classes());
    require(size.size() == components && weight.size() == components, "columns of components differ in length");
    require(readers.size() == tensors && output.size() == tensors && mirrored.size() == tensors &&
                enter.rows() == n_tensors() && leave.rows() == n_tensors() && leave.columns() == enter.columns(),
            "columns of tensors differ in length");
    require(within(producer, -1, n()), "a producer is no component");
    require(capacity.size() == classes && most.size() == classes && pace.rows() == n_classes(),
            "columns of classes differ in length");
    require((rate.size() == classes || rate.size() == 2 * classes) &&
                seconds.columns() == static_cast<Index>(rate.size()) && within(rate, -1, n_rates()),
            "every class has a rate per phase");
    require(within(n_devices, 0, 1 << 30) && within(most, 0, std::max<Index>(pace.columns(), 2)),
            "a class has no such number of devices");
    if (ordered) {
        n_states_ = n_classes() + 1;
        return;
    }
    for (const std::int32_t count : n_devices) n_states_ = std::min(n_states_ * (count + 1), NEVER >> 31);
}

BoundRowCosts::BoundRowCosts(const In<double, 2>& seconds, const Longs& size, const In<double>& capacity,
                             const In<bool>& pays, const In<double, 2>& price, const In<std::int32_t, 2>& link,
                             const Ints& producer, const Ints& first, const Ints& last, const In<bool>& output,
                             const Longs& use_offsets, const Ints& uses, const Longs& make_offsets, const Ints& makes,
                             int mode)
    : owners_(nb::make_tuple(seconds, size, capacity, pays, price, link, producer, first, last, output, use_offsets,
                             uses, make_offsets, makes)) {
    this->seconds = view(seconds);
    this->size = view(size);
    this->capacity = view(capacity);
    this->pays = view(pays);
    this->price = view(price);
    this->link = view(link);
    this->producer = view(producer);
    this->first = view(first);
    this->last = view(last);
    this->output = view(output);
    this->uses = rows_of(use_offsets, uses, n(), static_cast<Index>(producer.shape(0)));
    this->makes = rows_of(make_offsets, makes, n(), static_cast<Index>(producer.shape(0)));
    this->mode = communication(mode);
    require(is_bounded(this->size), "amounts are negative or too large");
    check();
}

void BoundRowCosts::check() const {
    const auto tensors = producer.size(), devices = capacity.size();
    require(static_cast<Index>(size.size()) == n(), "columns of components differ in length");
    require(static_cast<Index>(devices) == none() && pays.size() == devices, "columns of devices differ in length");
    require(first.size() == tensors && last.size() == tensors && output.size() == tensors &&
                price.rows() == static_cast<Index>(tensors),
            "columns of tensors differ in length");
    require(link.rows() == none() + 1 && link.columns() == none() + 1, "link is no table of link classes");
    for (Index row = 0; row <= none(); ++row) {
        require(within(std::span(link.row(row)), 0, price.columns()), "link is no table of link classes");
    }
}

}  // namespace placewise

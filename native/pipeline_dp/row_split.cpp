#include "pipeline_dp/row_split.hpp"

#include <algorithm>

namespace placewise {

RowSplit::RowSplit(const RowCosts& row)
    : row_(row),
      cells_((row.n() + 1) * (row.none() + 1) * (row.none() + 1)),
      crossing_(row.price.columns()),
      compute_(row.none()),
      received_by_(row.producer.size(), -1) {
    for (Index own = 0; own <= row.none(); ++own) cell(0, row.none(), own).value = 0.0;
}

std::vector<std::int32_t> RowSplit::run(Interrupt& interrupt) {
    const auto work = static_cast<std::uint32_t>(1 + row_.none() * row_.none() * row_.none() / 8);
    for (Index begin = 0; begin < row_.n(); ++begin) {
        std::ranges::fill(crossing_, Crossing());
        std::ranges::fill(compute_, 0.0);
        std::int64_t size = 0;
        bool going = true;
        for (Index position = begin; going && position < row_.n(); ++position) {
            if (interrupt.stop(work)) return trace();
            extend(begin, position);
            size += row_.size[position];
            going = false;
            for (Index own = 0; own < row_.none(); ++own) {
                compute_[own] += row_.seconds(position, own);
                if (compute_[own] >= best_ || static_cast<double>(size) > row_.capacity[own]) continue;
                going |= offer(begin, position, own);
            }
        }
    }
    return trace();
}

void RowSplit::charge(double Crossing::* direction, Index tensor, double sign) {
    for (std::size_t link = 0; link < crossing_.size(); ++link) {
        crossing_[link].*direction += sign * row_.price(tensor, static_cast<Index>(link));
    }
}

// Put a position into the stage that begins at `begin`.
void RowSplit::extend(Index begin, Index position) {
    for (const std::int32_t tensor : row_.uses[position]) {
        const Index maker = row_.producer[tensor];
        const bool made_inside = begin <= maker && maker <= position;
        if (received_by_[tensor] != begin && !made_inside) {
            received_by_[tensor] = begin;
            charge(maker < 0       ? &Crossing::from_host
                   : maker < begin ? &Crossing::from_before
                                   : &Crossing::from_behind,
                   tensor, 1.0);
        }
        if (row_.last[tensor] == position && made_inside && maker < position) {
            charge(&Crossing::to_behind, tensor, -1.0);
        }
    }
    for (const std::int32_t tensor : row_.makes[position]) {
        if (received_by_[tensor] == begin) charge(&Crossing::from_behind, tensor, -1.0);
        if (row_.last[tensor] > position) charge(&Crossing::to_behind, tensor, 1.0);
        if (row_.first[tensor] < begin) charge(&Crossing::to_before, tensor, 1.0);
        if (row_.output[tensor]) charge(&Crossing::to_host, tensor, 1.0);
    }
}

// Try the stage on one device behind every stage that may come before; whether it may still grow.
bool RowSplit::offer(Index begin, Index position, Index own) {
    bool going = false;
    for (Index before = 0; before <= row_.none(); ++before) {
        if (cell(begin, before, own).value >= best_) continue;
        going = true;
        end_stage(begin, position, own, before);
    }
    return going;
}

// End the stage at a position: the next one is on any later device, or there is none.
void RowSplit::end_stage(Index begin, Index position, Index own, Index before) {
    const double known = cell(begin, before, own).value, compute = compute_[own];
    const Index none = row_.none(), after = position + 1;
    const bool pays = row_.pays[own], at_end = after == row_.n();
    double enter_first = 0.0, leave_first = 0.0;
    if (pays) {
        enter_first = crossing_[row_.link(none, own)].from_host;
        leave_first = crossing_[row_.link(own, none)].to_host;
        if (before < none) {
            enter_first += crossing_[row_.link(before, own)].from_before;
            leave_first += crossing_[row_.link(own, before)].to_before;
        }
    }
    for (Index behind = at_end ? none : own + 1; behind < (at_end ? none + 1 : none); ++behind) {
        double load = compute;
        if (pays) {
            double enter = enter_first, leave = leave_first;
            if (behind < none) {
                enter += crossing_[row_.link(behind, own)].from_behind;
                leave += crossing_[row_.link(own, behind)].to_behind;
            }
            load = combine(compute, enter, leave, row_.mode);
        }
        const double worst = std::max(known, load);
        Cell& next = cell(after, own, behind);
        if (worst >= best_ || worst >= next.value) continue;
        next = {worst, static_cast<std::int32_t>(begin), static_cast<std::int32_t>(before)};
        if (at_end) {
            best_ = worst;
            last_device_ = own;
        }
    }
}

std::vector<std::int32_t> RowSplit::trace() {
    std::vector<std::int32_t> place;
    if (last_device_ < 0) return place;
    place.resize(row_.n());
    Index position = row_.n(), own = last_device_, behind = row_.none();
    while (position > 0) {
        const Cell& last = cell(position, own, behind);
        std::fill(place.begin() + last.begin, place.begin() + position, static_cast<std::int32_t>(own));
        position = last.begin;
        behind = own;
        own = last.before;
    }
    return place;
}

}  // namespace placewise

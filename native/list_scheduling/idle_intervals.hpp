// When one resource is idle: a queue of a link, or a stream of a device.
//
// Bookings come in the order of the ops that are placed, not in the order of time, and take the first gap that is long
// enough: insertion for ops (Topcuoglu, Hariri and Wu, IEEE TPDS 13 (2002)), edge scheduling for transfers (Sinnen and
// Sousa, IEEE TPDS 16 (2005)).
#pragma once

#include <cstddef>
#include <vector>

namespace placewise {

// Gaps in the order of time, and all time from the end of the last booking on. A gap that is not among the latest
// `most_gaps`, or the first 64 that end late enough, is not seen.
class IdleIntervals {
public:
    explicit IdleIntervals(std::size_t most_gaps) : most_gaps_(most_gaps) {}

    // The earliest time from `ready` on at which the resource is idle for so many seconds.
    double first_fit(double ready, double seconds) const {
        return ready >= free_from_ ? ready : first_gap(ready, seconds);
    }

    // Take the time from `begin` on, which `first_fit` found.
    void book(double begin, double seconds);

    std::size_t size() const { return gaps_.size(); }

private:
    struct Gap {
        double start;
        double end;
    };

    double first_gap(double ready, double seconds) const;
    std::size_t first_ending_after(double moment) const;
    void insert(std::size_t at, Gap gap);

    std::vector<Gap> gaps_;
    std::size_t most_gaps_;
    double free_from_ = 0.0;
};

// How many gaps each of so many resources may have, at least 8: 64 MiB for all of them.
std::size_t most_gaps_each(std::size_t resources);

}  // namespace placewise

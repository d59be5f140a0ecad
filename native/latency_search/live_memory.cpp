#include "latency_search/live_memory.hpp"

#include <algorithm>
#include <limits>

namespace placewise {

namespace {
constexpr double INF = std::numeric_limits<double>::infinity();
}

LiveMemory::LiveMemory(const LatencySearchProblem& search, const BlockAssignment& assignment)
    : search_(search), assignment_(assignment), first_(search.n_devices() + 1, 0), last_use_(search.n_devices(), -1) {
    if (!search.live) return;
    order_.resize(search.n_ops());
    position_.resize(search.n_ops());
    change_.resize(search.n_ops() + 1);
    replaced_.resize(search.n_ops());
}

// The ops of each device one after the other, by start, then number.
void LiveMemory::order_ops(const StartTimes& times) {
    std::vector<Index>& next = last_use_;
    for (Index d = 0; d < search_.n_devices(); ++d) {
        first_[d + 1] = first_[d] + assignment_.n_ops_on(d);
        next[d] = first_[d];
    }
    for (const std::int32_t op : times.sequence) {
        const std::int32_t d = assignment_.site(op).device;
        Index at = next[d]++;
        for (; at > first_[d]; --at) {
            const std::int32_t before = order_[at - 1];
            if (before < op || times.start[before] != times.start[op]) break;
            order_[at] = before;
        }
        order_[at] = op;
    }
    for (std::size_t at = 0; at < order_.size(); ++at) position_[order_[at]] = static_cast<std::int32_t>(at);
    std::fill(next.begin(), next.end(), -1);
}

// The position of the last op of a device that has started at a moment, or of its first one.
Index LiveMemory::last_started(const StartTimes& times, Index device, double moment) const {
    const auto first = order_.begin() + first_[device], last = order_.begin() + first_[device + 1];
    const auto later = std::partition_point(first, last, [&](std::int32_t op) { return times.start[op] <= moment; });
    return std::max(later - order_.begin() - 1, first_[device]);
}

void LiveMemory::hold(Index first, Index last, double nbytes) {
    change_[first] += nbytes;
    change_[last + 1] -= nbytes;
}

// A tensor is held where it is made until its last reader there has ended or it has left, and where it arrives until
// its last reader there has ended.
void LiveMemory::add_tensor(Index tensor, const StartTimes& times) {
    const Problem& p = search_.problem;
    const auto nbytes = static_cast<double>(search_.tensor_bytes[tensor]);
    const std::int32_t maker = p.producer[tensor];
    const std::int32_t home = maker >= 0 ? assignment_.site(maker).device : -1;
    const double ready = maker >= 0 ? times.start[maker] + assignment_.site(maker).seconds : 0.0;
    const Index begin = maker >= 0 ? position_[maker] : -1;
    Index end = begin;
    double wanted = -INF;
    bool leaves = false;
    for (const std::int32_t reader : p.consumers[tensor]) {
        const std::int32_t d = assignment_.site(reader).device;
        last_use_[d] = std::max<Index>(last_use_[d], position_[reader]);
        if (d == home) continue;
        leaves = true;
        wanted = std::max(wanted, times.start[reader]);
    }
    for (const std::int32_t reader : p.consumers[tensor]) {
        const std::int32_t d = assignment_.site(reader).device;
        const Index last = last_use_[d];
        if (last < 0) continue;
        last_use_[d] = -1;
        if (d == home) {
            end = std::max(end, last);
        } else {
            hold(std::min(last_started(times, d, ready), last), last, nbytes);
        }
    }
    if (maker < 0) return;
    if (p.output[tensor]) {
        if (search_.is_host[home]) {
            end = first_[home + 1] - 1;
        } else {
            leaves = true;
            wanted = INF;
        }
    }
    if (leaves) end = std::max(end, last_started(times, home, wanted));
    const std::int32_t closer = order_[end];
    if (end > begin && !leaves && !p.output[tensor] && !replaced_[closer]) {
        replaced_[closer] = search_.in_place_bytes[closer] == search_.tensor_bytes[tensor];
        end -= replaced_[closer];
    }
    hold(begin, end, nbytes);
}

bool LiveMemory::fits(const StartTimes& times, std::span<const double> capacity) {
    if (times.n_started != search_.n_ops()) return false;
    const auto used = assignment_.used_bytes();
    bool roomy = true;
    for (Index d = 0; d < search_.n_devices(); ++d) {
        const bool holds_all = static_cast<double>(used[d]) + search_.activation_bytes() <= capacity[d];
        roomy = roomy && (assignment_.n_ops_on(d) == 0 || holds_all);
    }
    if (roomy) return true;
    std::fill(change_.begin(), change_.end(), 0.0);
    std::fill(replaced_.begin(), replaced_.end(), 0);
    order_ops(times);
    for (Index tensor = 0; tensor < search_.problem.n_tensors(); ++tensor) add_tensor(tensor, times);
    double held = 0.0;
    for (Index d = 0; d < search_.n_devices(); ++d) {
        for (Index at = first_[d]; at < first_[d + 1]; ++at) {
            held += change_[at];
            if (static_cast<double>(used[d]) + held > capacity[d]) return false;
        }
    }
    return true;
}

}  // namespace placewise

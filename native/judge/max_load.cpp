#include "judge/max_load.hpp"

#include <algorithm>
#include <bit>

namespace placewise {

PipelineLoads::PipelineLoads(const Problem& problem)
    : compute(problem.n_devices() + 1),
      send(problem.n_devices() + 1),
      receive(problem.n_devices() + 1),
      wires(problem.n_wires),
      problem_(problem),
      place_(problem.n_ops()),
      targets_(problem.n_tensors()),
      sent_(problem.n_tensors()),
      sums_(4 * problem.n_devices()) {}

// Four sums per device, so that one addition need not wait for the one before.
void PipelineLoads::add_compute(std::span<const std::int32_t> device) {
    const Index n_devices = problem_.n_devices();
    std::fill(sums_.begin(), sums_.end(), 0.0);
    for (Index op = 0; op < problem_.n_ops(); ++op) {
        sums_[(op & 3) * n_devices + device[op]] += problem_.op_seconds(op, device[op]);
    }
    for (Index d = 0; d < n_devices; ++d) {
        compute[d] = sums_[d] + sums_[n_devices + d] + sums_[2 * n_devices + d] + sums_[3 * n_devices + d];
    }
}

// Which of the locations 64 · window … need each tensor, as bits. One flat sweep without
// branches: tensors have few readers, and a loop per tensor would cost a mispredicted branch each.
void PipelineLoads::find_targets(Index window) {
    std::fill(targets_.begin(), targets_.end(), 0);
    const auto readers = problem_.consumers.values;
    std::uint64_t bits = 0;
    std::int32_t previous = -1;
    for (std::size_t row = 0; row < readers.size(); ++row) {
        const std::int32_t tensor = problem_.consumed[row], place = place_[readers[row]];
        const std::uint64_t bit = static_cast<std::uint64_t>((place >> 6) == window) << (place & 63);
        bits = bit | (bits & -static_cast<std::uint64_t>(tensor == previous));
        targets_[tensor] = bits;
        previous = tensor;
    }
}

void PipelineLoads::charge(double seconds, std::int32_t source, std::int32_t target) {
    send[source] += seconds;
    receive[target] += seconds;
    const std::int32_t wire = problem_.wire(source, target);
    if (wire >= 0) wires[wire] += seconds;
}

void PipelineLoads::add_transfers(Index window) {
    const Problem& p = problem_;
    const std::int32_t host = p.host();
    const bool host_here = (host >> 6) == window;
    const std::uint64_t host_bit = std::uint64_t{1} << (host & 63);
    for (Index tensor = 0; tensor < p.n_tensors(); ++tensor) {
        const std::int32_t maker = p.producer[tensor];
        const std::int32_t source = maker < 0 ? host : place_[maker];
        std::uint64_t left = targets_[tensor];
        if (p.output[tensor] && host_here) left |= host_bit;
        if ((source >> 6) == window) left &= ~(std::uint64_t{1} << (source & 63));
        if (left == 0) continue;
        std::int32_t origin = source;
        if (p.staged) {
            if (source != host && !sent_[tensor]) {
                charge(p.hop_seconds(tensor, source, host), source, host);
                sent_[tensor] = 1;
            }
            if (host_here) left &= ~host_bit;
            origin = host;
        }
        for (; left != 0; left &= left - 1) {
            const auto target = static_cast<std::int32_t>((window << 6) + std::countr_zero(left));
            charge(p.hop_seconds(tensor, origin, target), origin, target);
        }
    }
}

void PipelineLoads::add(std::span<const std::int32_t> device) {
    const Problem& p = problem_;
    std::fill(send.begin(), send.end(), 0.0);
    std::fill(receive.begin(), receive.end(), 0.0);
    std::fill(wires.begin(), wires.end(), 0.0);
    std::fill(sent_.begin(), sent_.end(), 0);
    for (Index op = 0; op < p.n_ops(); ++op) place_[op] = p.location[device[op]];
    add_compute(device);
    for (Index window = 0; window <= (p.n_devices() >> 6); ++window) {
        find_targets(window);
        add_transfers(window);
    }
}

double PipelineLoads::max_load(std::span<const std::int32_t> device, Communication mode) {
    add(device);
    double worst = 0.0;
    for (Index d = 0; d < problem_.n_devices(); ++d) {
        worst = std::max(worst, combine_load(compute[d], send[d], receive[d], mode));
    }
    for (const double traffic : wires) worst = std::max(worst, traffic);
    return worst;
}

}  // namespace placewise

#include "throughput_search/walk.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace placewise {

namespace {

// After so many moves loads are measured in a new unit.
constexpr Index SLICE_STEPS = 1 << 14;
constexpr Index FIRST_SLICE_STEPS = 64;
constexpr Index MIN_SLICE_STEPS = 16;
// How often temperatures follow the clock.
constexpr double SLICE_SECONDS = 0.004;

// The 32nd power.
double power(double base) {
    base *= base;
    base *= base;
    base *= base;
    base *= base;
    return base * base;
}

double root(double value) {
    return std::pow(value, 1.0 / 32);
}

}  // namespace

ThroughputWalk::ThroughputWalk(const ThroughputCosts& costs, const Clusters& clusters,
                               std::span<const std::int32_t> assignment, std::span<const std::int32_t> positions,
                               TableView<const std::int32_t> tradable, std::uint64_t seed)
    : costs_(costs),
      state_(costs, assignment),
      proposer_(costs, clusters, positions, tradable, seed),
      journal_capacity_(std::max<std::size_t>(assignment.size() / 2, 64)) {
    missing_bytes_ = state_.missing_bytes(state_.sums());
    record_incumbent({missing_bytes_, state_.max_load()});
}

void ThroughputWalk::run(Index steps, double hot, double cold, Interrupt& interrupt) {
    const auto temperature = [&](Index step) { return hot * std::pow(cold / hot, double(step) / double(steps)); };
    for (Index done = 0; done < steps && !interrupt.stop(); done += SLICE_STEPS) {
        const Index next = std::min(done + SLICE_STEPS, steps);
        anneal(next - done, temperature(done), temperature(next), interrupt);
    }
}

void ThroughputWalk::run_for(double seconds, double hot, double cold, Interrupt& interrupt) {
    using Clock = std::chrono::steady_clock;
    const auto begun = Clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begun).count(); };
    const auto temperature = [&](double at) { return hot * std::pow(cold / hot, std::min(at / seconds, 1.0)); };
    Index steps = FIRST_SLICE_STEPS;
    for (double now = 0.0; now < seconds && !interrupt.look();) {
        anneal(steps, temperature(now), temperature(now + SLICE_SECONDS), interrupt);
        const double before = now;
        now = elapsed();
        const double faster = std::min(2.0, SLICE_SECONDS / std::max(now - before, 1e-6));
        steps = std::max(MIN_SLICE_STEPS, static_cast<Index>(static_cast<double>(steps) * faster));
    }
}

void ThroughputWalk::anneal(Index steps, double hot, double cold, Interrupt& interrupt) {
    if (state_.assignment.empty() || costs_.n_devices() < 2) return;
    rescale(state_.max_load());
    const double cooling = std::pow(cold / hot, 1.0 / static_cast<double>(std::max<Index>(steps, 1)));
    double temperature = hot;
    for (Index step = 0; step < steps && !interrupt.stop(); ++step) {
        temperature *= cooling;
        const auto moves = proposer_.propose(state_);
        if (!moves.empty()) evaluate(moves, temperature);
    }
}

// Accept moves that stand in the assignment already, or take them back.
void ThroughputWalk::evaluate(std::span<const Move> moves, double temperature) {
    ++n_evaluated_;
    const bool single = moves.size() == 1;
    if (single) {
        state_.charge(moves[0]);
    } else {
        for (const Move& move : moves) state_.apply(move);
    }
    const std::int64_t missing = state_.missing_bytes(state_.trial());
    const Energy candidate = measure(state_.trial());
    if (missing < missing_bytes_ || (missing == missing_bytes_ && accepts(candidate, temperature))) {
        if (single) state_.count(moves[0]);
        state_.keep();
        accept(moves, candidate, missing);
        return;
    }
    if (!single) {
        for (auto move = moves.rbegin(); move != moves.rend(); ++move) {
            state_.count({move->group, move->target, move->origin});
        }
    }
    proposer_.revert(state_);
    state_.discard();
}

ThroughputWalk::Energy ThroughputWalk::measure(const PipelineSums& sums) const {
    const double inverse = 1.0 / unit_;
    double totals[2] = {0.0, 0.0};
    std::int64_t max_load = 0;
    for (Index phase = 0; phase < costs_.n_phases; ++phase) {
        double total = 0.0;
        std::int64_t worst = 0;
        const auto add = [&](std::int64_t load) {
            worst = std::max(worst, load);
            total += power(static_cast<double>(load) * inverse);
        };
        for (Index device = 0; device < costs_.n_devices(); ++device) add(sums.load(phase, device, costs_.mode));
        for (const std::int64_t traffic : sums.wires(phase)) add(traffic);
        max_load += worst;
        totals[phase] = total;
    }
    return {costs_.n_phases == 1 ? totals[0] : power(root(totals[0]) + root(totals[1])), max_load};
}

bool ThroughputWalk::accepts(const Energy& candidate, double temperature) {
    if (candidate.power <= energy_.power) return true;
    const double uniform = proposer_.rng().uniform();
    return candidate.power < energy_.power * power(1.0 - temperature * std::log(1.0 - uniform));
}

void ThroughputWalk::accept(std::span<const Move> moves, const Energy& candidate, std::int64_t missing) {
    energy_ = candidate;
    missing_bytes_ = missing;
    if (const PipelineQuality found{missing, candidate.max_load}; found < incumbent_quality_) {
        record_incumbent(found);
        if (static_cast<double>(found.max_load) < 0.5 * unit_ || missing > 0) rescale(found.max_load);
    } else if (journaling_) {
        journal(moves);
    }
}

void ThroughputWalk::record_incumbent(PipelineQuality quality) {
    incumbent_quality_ = quality;
    journal_.clear();
    journaling_ = true;
    if (quality.missing_bytes == 0) feasible_max_load_.store(quality.max_load, std::memory_order_relaxed);
}

// Write down moves just made; where there is no room left, save the incumbent instead.
void ThroughputWalk::journal(std::span<const Move> moves) {
    journal_.insert(journal_.end(), moves.begin(), moves.end());
    if (journal_.size() <= journal_capacity_) return;
    saved_incumbent_ = incumbent();
    journaling_ = false;
}

// Measure loads in another unit, so that their powers stay within the range of doubles.
void ThroughputWalk::rescale(std::int64_t max_load) {
    unit_ = std::max(static_cast<double>(max_load), 1.0);
    energy_ = measure(state_.sums());
}

std::vector<std::int32_t> ThroughputWalk::incumbent() const {
    if (!journaling_) return saved_incumbent_;
    std::vector<std::int32_t> found = state_.assignment;
    for (auto move = journal_.rbegin(); move != journal_.rend(); ++move) found[move->group] = move->origin;
    return found;
}

}  // namespace placewise

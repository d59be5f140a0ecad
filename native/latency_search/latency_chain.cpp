#include "latency_search/latency_chain.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace placewise {

namespace {
constexpr double INF = std::numeric_limits<double>::infinity();
}

LatencyChain::LatencyChain(const LatencySearchProblem& search, std::span<const std::int32_t> device, std::uint64_t seed)
    : search_(search),
      rng_(seed),
      assignment_(search, device),
      schedule_(search, assignment_),
      memory_(search, assignment_),
      operators_(search, assignment_, schedule_, rng_),
      best_(device.begin(), device.end()),
      value_(INF),
      candidate_value_(INF),
      best_value_(INF) {}

void LatencyChain::begin(std::span<const std::int32_t> device) {
    assignment_.assign(device);
    value_ = INF;
    recorded_ = awaits_verdict_ = false;
}

bool LatencyChain::run(Index moves, Index ops, Interrupt& interrupt) {
    if (awaits_verdict_) refuse();
    if (!recorded_) record(-1, interrupt);
    most_tried_ = n_tried_ + moves;
    most_simulated_ = n_simulated() + ops;
    return go_on(interrupt);
}

bool LatencyChain::resolve(bool valid, Interrupt& interrupt) {
    if (!awaits_verdict_) return false;
    if (valid) {
        accept(interrupt);
    } else {
        refuse();
    }
    return go_on(interrupt);
}

bool LatencyChain::go_on(Interrupt& interrupt) {
    if (search_.n_blocks() == 0) return false;
    assignment_.refresh_work();
    while (n_tried_ < most_tried_ && n_simulated() < most_simulated_ && !interrupt.stop()) {
        if (try_move(interrupt)) return true;
    }
    return false;
}

// Make a move and decide on it; true if it awaits a verdict.
bool LatencyChain::try_move(Interrupt& interrupt) {
    ++n_tried_;
    operators_.make_move();
    if (assignment_.moves().empty() || !assignment_.fits()) {
        refuse();
        return false;
    }
    const double exponential = -std::log1p(-rng_.uniform());
    const double limit = value_ + temperature * exponential;
    checkpoint_ = schedule_.checkpoint_before_moves();
    try {
        candidate_value_ = schedule_.price(checkpoint_, limit, interrupt);
    } catch (...) {
        assignment_.undo_moves();
        throw;
    }
    if (interrupt.stopped()) {
        assignment_.undo_moves();
    } else if (!(candidate_value_ <= limit) ||
               (search_.live && !memory_.fits(schedule_.priced(), search_.space.capacity))) {
        refuse();
    } else if (search_.shaped) {
        awaits_verdict_ = true;
    } else {
        accept(interrupt);
    }
    return awaits_verdict_;
}

void LatencyChain::accept(Interrupt& interrupt) {
    const bool better = candidate_value_ < value_, equal = candidate_value_ == value_;
    operators_.reward(better ? Reward::BETTER : equal ? Reward::EQUAL : Reward::WORSE);
    assignment_.keep_moves();
    awaits_verdict_ = false;
    value_ = candidate_value_;
    record(checkpoint_, interrupt);
}

void LatencyChain::refuse() {
    assignment_.undo_moves();
    operators_.reward(Reward::WORSE);
    awaits_verdict_ = false;
}

// Write down the schedule of the assignment; where that is interrupted, the next run begins with it.
void LatencyChain::record(Index checkpoint, Interrupt& interrupt) {
    recorded_ = false;
    const double makespan = schedule_.record(checkpoint, interrupt);
    if (!interrupt.stopped()) {
        value_ = makespan;
        recorded_ = true;
    }
    if (value_ < best_value_) {
        best_value_ = value_;
        std::copy(assignment_.device().begin(), assignment_.device().end(), best_.begin());
    }
}

double LatencyChain::price(Index checkpoint, double limit, Interrupt& interrupt) {
    return schedule_.price(checkpoint, limit, interrupt);
}

bool LatencyChain::fits(std::span<const double> capacity, bool priced) {
    return memory_.fits(priced ? schedule_.priced() : schedule_.recorded(), capacity);
}

}  // namespace placewise

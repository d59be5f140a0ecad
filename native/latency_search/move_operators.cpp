#include "latency_search/move_operators.hpp"

#include <algorithm>

namespace placewise {

namespace {

constexpr double INITIAL_WEIGHT = 0.5, MIN_WEIGHT = 0.04, LEARNING_RATE = 0.03;
// Blocks drawn in search of a part on another device.
constexpr int TRIES = 8;
constexpr double REWARDS[] = {0.0, 0.2, 1.0};
// The most blocks of each size class; those of the last are all.
constexpr Index MAX_OF_SIZE[] = {1, 4, 16, 64, 512};

}  // namespace

MoveOperators::MoveOperators(const LatencySearchProblem& search, BlockAssignment& assignment,
                             const CheckpointedSchedule& schedule, SplitMix64& rng)
    : search_(search),
      space_(search.space),
      assignment_(assignment),
      schedule_(schedule),
      rng_(rng),
      weights_(N_OPERATORS * N_SIZES, INITIAL_WEIGHT),
      sets_(search.space),
      seen_(search.n_blocks(), 0) {}

void MoveOperators::reward(Reward reward) {
    double& weight = weights_[drawn_];
    weight += LEARNING_RATE * (REWARDS[static_cast<int>(reward)] - weight);
}

Index MoveOperators::draw_weighted() {
    double total = 0.0;
    for (const double weight : weights_) total += weight + MIN_WEIGHT;
    double rest = rng_.uniform() * total;
    const auto last = static_cast<Index>(weights_.size()) - 1;
    for (Index i = 0; i < last; ++i) {
        rest -= weights_[i] + MIN_WEIGHT;
        if (rest < 0) return i;
    }
    return last;
}

// How many blocks at most; 0 where there are fewer than the size class begins with.
Index MoveOperators::draw_size(Index size_class) {
    const Index n = search_.n_blocks();
    const Index low = size_class == 0 ? 1 : MAX_OF_SIZE[size_class - 1] + 1;
    const Index high = size_class + 1 == N_SIZES ? n : std::min(MAX_OF_SIZE[size_class], n);
    return low > n ? 0 : low + rng_.below(high - low + 1);
}

// A block on the critical path most often, and where on it; else any, and −1.
Index MoveOperators::draw_block(Index& on_path) {
    const auto path = schedule_.critical_path();
    on_path = !path.empty() && rng_.below(8) > 2 ? rng_.below(static_cast<Index>(path.size())) : -1;
    return on_path >= 0 ? search_.block[path[on_path]] : rng_.below(search_.n_blocks());
}

// Where to: the device of what is near on the critical path or in the graph, any, or one with less work.
std::int32_t MoveOperators::draw_target(Index block, Index on_path) {
    const std::int32_t home = assignment_[block];
    const Index way = rng_.below(8);
    if (way < 3 && on_path >= 0) {
        const auto path = schedule_.critical_path();
        const Index step = rng_.below(2) == 0 ? 1 : -1;
        for (Index i = on_path + step; 0 <= i && i < static_cast<Index>(path.size()); i += step) {
            const std::int32_t there = assignment_[search_.block[path[i]]];
            if (there != home) return there;
        }
    }
    const auto neighbours = space_.neighbours[block];
    if (way < 5 && !neighbours.empty()) {
        const std::int32_t there = assignment_[neighbours[rng_.below(static_cast<Index>(neighbours.size()))]];
        if (there != home) return there;
    }
    const auto n_choices = static_cast<Index>(space_.devices.size());
    const std::int32_t one = space_.devices[rng_.below(n_choices)];
    if (way == 7) return one;
    const std::int32_t other = space_.devices[rng_.below(n_choices)];
    const bool better = other != home && (one == home || assignment_.work(other) < assignment_.work(one));
    return better ? other : one;
}

void MoveOperators::make_move() {
    drawn_ = draw_weighted();
    const Index kind = drawn_ / N_SIZES, size_class = drawn_ % N_SIZES;
    Seed seed{};
    seed.block = draw_block(seed.on_path);
    seed.home = assignment_[seed.block];
    seed.target = draw_target(seed.block, seed.on_path);
    if (kind == MODEL_PART) return move_model_part(seed);
    const Index most = draw_size(size_class);
    if (most == 0 || (seed.target == seed.home && kind != EXCHANGE)) return;
    switch (kind) {
        case CONNECTED_SET:
            return move_connected_set(seed, most);
        case CRITICAL_PATH:
            return move_critical_path(seed, most);
        case TIME_SPAN:
            return move_time_span(seed, most);
        case LINE_STRETCH:
            return move_line_stretch(seed, most);
        default:
            return exchange_sets(seed, most);
    }
}

void MoveOperators::move_connected_set(const Seed& seed, Index most) {
    sets_.grow(assignment_.device(), seed.block, most, rng_, chosen_);
    for (const std::int32_t block : chosen_) assignment_.move(block, seed.target);
}

void MoveOperators::move_critical_path(const Seed& seed, Index most) {
    const auto path = schedule_.critical_path();
    const Index first = std::max<Index>(seed.on_path, 0);
    const Index last = std::min(first + most, static_cast<Index>(path.size()));
    for (Index i = first; i < last; ++i) {
        const std::int32_t block = search_.block[path[i]];
        if (assignment_[block] == seed.home) {
            assignment_.move(block, seed.target);
        } else if (block != seed.block && assignment_[block] != seed.target) {
            break;
        }
    }
}

// A part of the model, all of it or what of it is on one device; or two devices trade what they have of it, or what one
// has of it for what the other has of another part.
void MoveOperators::move_model_part(const Seed& seed) {
    const ModelParts& parts = search_.parts;
    if (parts.n_levels() == 0) return;
    const Index level = rng_.below(parts.n_levels());
    const std::int32_t part = parts.part(level, seed.block);
    if (part < 0 || seed.home == seed.target) return;
    const Index way = rng_.below(4);
    if (way == 3) return exchange_parts(level, part, seed);
    for (const std::int32_t block : parts.blocks_of(level, part)) {
        if (way == 0 || assignment_[block] == seed.home) {
            assignment_.move(block, seed.target);
        } else if (way == 1 && assignment_[block] == seed.target) {
            assignment_.move(block, seed.home);
        }
    }
}

void MoveOperators::exchange_parts(Index level, std::int32_t part, const Seed& seed) {
    const ModelParts& parts = search_.parts;
    std::int32_t other = -1;
    for (int attempt = 0; attempt < TRIES && other < 0; ++attempt) {
        const Index block = rng_.below(search_.n_blocks());
        const std::int32_t its_part = parts.part(level, block);
        if (assignment_[block] == seed.target && its_part >= 0 && its_part != part) other = its_part;
    }
    if (other < 0) return;
    for (const std::int32_t block : parts.blocks_of(level, part)) {
        if (assignment_[block] == seed.home) assignment_.move(block, seed.target);
    }
    for (const std::int32_t block : parts.blocks_of(level, other)) {
        if (assignment_[block] == seed.target) assignment_.move(block, seed.home);
    }
}

// What a device starts from a moment on; half of the time another one gives it as much of its own.
void MoveOperators::move_time_span(const Seed& seed, Index most) {
    const bool both = rng_.below(2) == 0;
    const auto& sequence = schedule_.recorded().sequence;
    chosen_.clear();
    for (auto i = static_cast<std::size_t>(schedule_.position(search_.members()[seed.block].front()));
         i < sequence.size() && static_cast<Index>(chosen_.size()) < most; ++i) {
        const std::int32_t block = search_.block[sequence[i]], here = assignment_[block];
        if (seen_[block] || (here != seed.home && !(both && here == seed.target))) continue;
        seen_[block] = 1;
        chosen_.push_back(block);
        assignment_.move(block, here == seed.home ? seed.target : seed.home);
    }
    for (const std::int32_t block : chosen_) seen_[block] = 0;
}

void MoveOperators::move_line_stretch(const Seed& seed, Index most) {
    const bool same = rng_.below(2) == 0;
    const Index first = seed.block - rng_.below(most);
    for (Index block = std::max<Index>(first, 0); block < std::min(first + most, search_.n_blocks()); ++block) {
        if (!same || assignment_[block] == seed.home) assignment_.move(block, seed.target);
    }
}

// A connected set and one of a neighbour on another device change places.
void MoveOperators::exchange_sets(const Seed& seed, Index most) {
    const auto neighbours = space_.neighbours[seed.block];
    const auto count = static_cast<Index>(neighbours.size());
    const Index turn = rng_.below(std::max<Index>(count, 1));
    Index other = -1;
    for (Index i = 0; i < count && other < 0; ++i) {
        const std::int32_t block = neighbours[(i + turn) % count];
        if (assignment_[block] != seed.home) other = block;
    }
    if (other < 0) other = rng_.below(search_.n_blocks());
    const std::int32_t target = assignment_[other];
    if (target == seed.home) return;
    sets_.grow(assignment_.device(), seed.block, most, rng_, chosen_);
    sets_.grow(assignment_.device(), other, most, rng_, returned_);
    for (const std::int32_t block : chosen_) assignment_.move(block, target);
    for (const std::int32_t block : returned_) assignment_.move(block, seed.home);
}

}  // namespace placewise

// Moves of a chain, most of them from the critical path of its schedule; which kinds and sizes pay is learned.
//
// Weights follow rewards, as in adaptive large neighbourhood search: Ropke and Pisinger, Transp. Sci. 40 (2006).
#pragma once

#include <vector>

#include "common/random.hpp"
#include "latency_search/block_assignment.hpp"
#include "latency_search/checkpointed_schedule.hpp"
#include "latency_search/connected_sets.hpp"

namespace placewise {

// What a move was worth to those who choose the next.
enum class Reward { WORSE, EQUAL, BETTER };

class MoveOperators {
public:
    MoveOperators(const LatencySearchProblem& search, BlockAssignment& assignment, const CheckpointedSchedule& schedule,
                  SplitMix64& rng);

    // Draw an operator and a size by their weights, and make a move; the assignment knows which blocks moved.
    void make_move();
    void reward(Reward reward);

private:
    enum Operator {
        CONNECTED_SET,
        CRITICAL_PATH,  // a stretch of it
        MODEL_PART,
        TIME_SPAN,     // what a device starts from a moment on
        LINE_STRETCH,  // a stretch of the line of ops
        EXCHANGE,      // two connected sets change places
        N_OPERATORS,
    };
    static constexpr Index N_SIZES = 6;

    // The block where a move begins, where on the critical path it was found (−1: it was not), and where it goes.
    struct Seed {
        Index block;
        Index on_path;
        std::int32_t home;
        std::int32_t target;
    };

    Index draw_weighted();
    Index draw_size(Index size_class);
    Index draw_block(Index& on_path);
    std::int32_t draw_target(Index block, Index on_path);

    void move_connected_set(const Seed& seed, Index most);
    void move_critical_path(const Seed& seed, Index most);
    void move_model_part(const Seed& seed);
    void exchange_parts(Index level, std::int32_t part, const Seed& seed);
    void move_time_span(const Seed& seed, Index most);
    void move_line_stretch(const Seed& seed, Index most);
    void exchange_sets(const Seed& seed, Index most);

    const LatencySearchProblem& search_;
    const MoveSpace& space_;
    BlockAssignment& assignment_;
    const CheckpointedSchedule& schedule_;
    SplitMix64& rng_;
    std::vector<double> weights_;  // [operators × sizes]
    Index drawn_ = 0;              // the operator and size of the last move
    ConnectedSets sets_;
    std::vector<std::int32_t> chosen_;
    std::vector<std::int32_t> returned_;
    std::vector<std::uint8_t> seen_;  // [n_blocks] zeros between moves
};

}  // namespace placewise

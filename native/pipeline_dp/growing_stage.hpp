// A stage that grows from an ideal, one component at a time, and shrinks again; its sums are kept per depth.
#pragma once

#include <cstdint>
#include <vector>

#include "pipeline_dp/ideals.hpp"
#include "pipeline_dp/stage_costs.hpp"

namespace placewise {

class GrowingStage {
public:
    // What a stage pays for tensors at one rate, and the part of it that no further component can save.
    struct Transfers {
        std::int64_t enter = 0;
        std::int64_t leave = 0;
        std::int64_t enter_always = 0;
        std::int64_t leave_always = 0;
    };
    // Bytes of a stage, and how many of them are weights.
    struct Footprint {
        std::int64_t size = 0;
        std::int64_t weight = 0;
    };

    explicit GrowingStage(const StageCosts& costs);

    // An empty stage behind an ideal.
    void begin(const Ideals& ideals, Index ideal);
    // Sums of the stage with one component more, at depth() + 1: seconds, and the bytes that it shares with none.
    void preview(Index component);
    // Put the component of the last preview into the stage.
    void add(Index component);
    // Take out what was put in last.
    void remove(Index component);

    Index depth() const { return depth_; }
    std::int64_t seconds(Index depth, Index column) const { return seconds_(depth, column); }
    const Footprint& footprint(Index depth) const { return footprint_[depth]; }
    // At a rate of −1 nothing is paid.
    Transfers transfers(Index rate) const { return rate < 0 ? Transfers() : transfers_(depth_, rate); }

private:
    enum class Where : std::uint8_t { behind, before, inside };
    struct Tensor {
        std::int32_t producer;
        std::int32_t readers;
        std::int32_t readers_inside;
        bool output;
        bool mirrored;
    };
    struct Price {
        std::int64_t enter;
        std::int64_t leave;
    };

    void receive(Index tensor, std::span<Transfers> sums);
    void send(Index tensor, std::span<Transfers> sums);

    const StageCosts& costs_;
    Index depth_ = 0;
    std::vector<Where> where_;                  // [n]
    std::vector<Tensor> tensors_;               // [n_tensors]
    Table<Price> prices_;                       // [n_tensors, n_rates]
    std::vector<std::int32_t> holders_inside_;  // [n_storages]
    Table<std::int64_t> seconds_;               // [n + 1, n_phases · n_classes]
    std::vector<Footprint> footprint_;          // [n + 1]
    Table<Transfers> transfers_;                // [n + 1, n_rates]
};

}  // namespace placewise

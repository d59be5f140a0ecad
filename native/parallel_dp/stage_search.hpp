// The best pipeline of split stages: a dynamic program over ideals from the last stage to the first.
//
// Piper (Tarnawski, Narayanan, Phanishayee, NeurIPS 2021, section 4) keeps a value per ideal, number of devices and
// number of stages. Here an ideal keeps only the labels (devices used, replicas used) that no other label beats in all,
// for one limit on the seconds of a stage: less of each is never worse, since replicas of later stages are what makes
// micro-batches wait in earlier ones. Which ways the units of a stage run is solved exactly (way_choice.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "common/interrupt.hpp"
#include "parallel_dp/stage_problem.hpp"
#include "parallel_dp/way_choice.hpp"
#include "pipeline_dp/ideals.hpp"

namespace placewise {

class StageSearch {
public:
    static constexpr Index MAX_CLASSES = 6;
    enum class Outcome { FOUND, NONE, STOPPED };

    struct Stage {
        Index ideal;   // the units of it and of all stages before it
        Index before;  // the units of all stages before it
        std::int32_t device_class;
        std::int32_t degree;
        std::int32_t replicas;
        std::int32_t in_flight;
    };

    // All ideals must be there. A search whose construction was interrupted is of no use.
    StageSearch(StageProblem problem, const Ideals& ideals, Interrupt& interrupt);

    // A pipeline whose stages all take at most `limit` seconds per micro-batch, from the fewest devices upwards.
    Outcome within(double limit, Interrupt& interrupt);
    // The pipeline with the least sum of seconds over its stages, without replicas.
    Outcome least_sum(double limit, Interrupt& interrupt);

    const std::vector<Stage>& stages() const { return stages_; }
    // Seconds of the slowest stage found, or of all of them after `least_sum`.
    double found_value() const { return found_value_; }
    // The way of each unit, for the stages found.
    std::vector<std::int32_t> choose_ways();
    // No pipeline has a stage that takes less, whatever its stages are: work over devices.
    double least_load() const { return work_.back() / room_; }
    // Whether some choice of ways was relaxed: then a pipeline found may not fit, and NONE is still a proof.
    bool relaxed() const { return relaxed_; }

private:
    using Counts = std::array<std::int32_t, MAX_CLASSES>;
    struct Label {
        Counts used;
        std::int32_t replicas;
        double seconds;
        std::int32_t before;        // the label that it grew from
        std::int32_t before_ideal;  // and its ideal
        std::int32_t choice;        // index of device class and degree
        std::int32_t own_replicas;
    };
    struct WayCost {
        double seconds;
        double in_flight;
        double fixed;
        double gradients;
        std::int32_t way;
    };
    struct Choice {  // a class of devices and a degree
        std::int32_t device_class;
        std::int32_t degree;
        double capacity;                         // bytes of a device but for the workspace
        std::vector<std::vector<WayCost>> ways;  // [n_units]
        std::vector<std::int32_t> kind;          // [n_units] units with equal costs have the same
        std::vector<double> seconds;             // [n_ideals] sums of the fastest way of each unit
        std::vector<double> in_flight;           // [n_ideals] sums of the least bytes of any way
        std::vector<double> fixed;
        std::vector<double> gradients;      // [n_ideals] sums of the bytes that replicas exchange
        std::vector<std::int32_t> missing;  // [n_ideals] units without a way
    };
    struct Key {
        std::int32_t ideal, before, choice, in_flight, replicas;
        bool operator==(const Key&) const = default;
    };
    struct KeyHash {
        std::size_t operator()(const Key& key) const;
    };

    bool contains(Index ideal, Index subset) const;
    void sum_over_ideals(Interrupt& interrupt);
    double stage_seconds(Index ideal, Index before, std::int32_t choice, std::int32_t in_flight, std::int32_t replicas);
    // Seconds per micro-batch in which replicas exchange bytes, and those of their messages.
    double gradient_seconds(const Choice& choice, double bytes, std::int32_t replicas) const;
    double gradient_latency(const Choice& choice, std::int32_t replicas) const;
    const Route& gradient_route(const Choice& choice, std::int32_t replicas) const;
    void list_ways(Choice& choice);
    void list_tensors();
    // Fill `members_` with the units of a stage, `border_` with the sync bytes of their ways, by unit; what the stage
    // pays for the tensors at its ends whatever ways it runs.
    double find_border(Index ideal, Index before, const Choice& choice);
    // Fill `way_choice_` with the units of a stage.
    void prepare(const Choice& choice, std::int32_t in_flight, std::int32_t replicas);
    std::int32_t count_in_flight(std::int32_t later, std::int32_t replicas) const;
    bool no_worse(const Label& label, const Label& other) const;
    void add(std::vector<Label>& labels, const Label& label) const;
    bool beaten(const std::vector<Label>& labels, const Label& label) const;
    bool worth(const Label& label, Index ideal, double limit) const;
    void trace(const Label& label, bool sums);
    Outcome expand(double limit, bool sums, Interrupt& interrupt);

    StageProblem problem_;
    const Ideals& ideals_;
    std::vector<std::vector<std::uint64_t>> words_;
    std::vector<Choice> choices_;
    std::vector<double> price_;    // [n_classes] of a device, so that work over devices bounds the load from below
    std::vector<double> work_;     // [n_ideals] the least price · seconds of the units of each ideal
    std::vector<double> fastest_;  // [n_ideals] the least seconds of the units of each ideal
    double room_ = 0.0;            // the price of all devices
    bool gradients_vary_ = false;  // whether ways of one unit and degree exchange different gradients
    std::vector<std::vector<std::int32_t>> made_, read_;  // [n_units] boundary tensors
    std::vector<std::int32_t> members_;
    std::vector<std::vector<std::int32_t>> border_;  // [n_units] the tensors of a member that cross
    std::vector<Index> arrived_;                     // [n_tensors] the last stage that a tensor was counted for
    Index n_borders_ = 0;
    std::vector<Option> options_;
    std::vector<std::vector<Label>> labels_;
    std::vector<Stage> stages_;
    double found_value_ = 0.0;
    std::unordered_map<Key, double, KeyHash> known_;
    WayChoice way_choice_;
    bool relaxed_ = false;
};

}  // namespace placewise

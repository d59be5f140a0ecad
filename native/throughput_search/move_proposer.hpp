// Random moves of groups between devices: what a search proposes.
//
// - shift: one group goes where a neighbor is; swap: another one comes back.
// - follow: neighbors on the same device go too, a connected set of any size.
// - cluster, trade of clusters: sets that costly tensors hold together, in several sizes.
// - border: several groups on the border between two devices cross it.
// - path, stretch: groups that read from each other, one after the other, or whose indices follow each other.
// - exchange: two unequal devices trade all that they have.
//
// Where stages form a chain, every device has a position in it. A group that moves later takes with it what must not
// be earlier, and the other way round, so that every move leads from chain to chain.
#pragma once

#include <span>
#include <vector>

#include "common/random.hpp"
#include "throughput_search/clusters.hpp"
#include "throughput_search/costs.hpp"
#include "throughput_search/pipeline_state.hpp"

namespace placewise {

class GroupMoveProposer {
public:
    // `positions` [n_devices] in the chain; `tradable` [k, 2] are devices whose exchange is worth a try.
    GroupMoveProposer(const ThroughputCosts& costs, const Clusters& clusters, std::span<const std::int32_t> positions,
                      TableView<const std::int32_t> tradable, std::uint64_t seed);

    // Make a random move in the assignment of `state` alone: groups moved one after the other, none if it failed.
    std::span<const Move> propose(PipelineState& state);

    // Take back what `propose` changed since.
    void revert(PipelineState& state);

    SplitMix64& rng() { return rng_; }

private:
    struct Candidate {
        Index group;
        Index neighbor;  // −1: none
    };

    Candidate pick_group();
    Index pick_neighbor(Index group);
    Index pick_resident(std::int32_t device);
    Index pick_size(Index most);
    Index pick(Index n) { return rng_.below(n); }

    bool can_run(Index group, Index device) const { return costs_.can_run(group, device); }
    bool must_take_along(Index group, std::int32_t target) const;
    bool move_group(Index group, std::int32_t target);
    bool take_along(std::size_t first, std::int32_t target);
    bool move_cluster(Index cluster, std::int32_t origin, std::int32_t target);
    void assign(Index group, std::int32_t target);
    void undo();

    // Moves that begin with one group.
    void propose_from(Move shift);
    void swap(Move shift);
    void follow(Move shift);
    void trade_clusters(Move shift);
    void cross_border(Move shift);
    void follow_path(Move shift);
    void move_stretch(Move shift);
    void exchange_devices();
    void exchange_positions(Index pair);
    void reposition_empty(std::int32_t device, std::int32_t beside);

    const ThroughputCosts& costs_;
    const Clusters& clusters_;
    TableView<const std::int32_t> tradable_;
    SplitMix64 rng_;
    std::vector<std::int32_t> positions_;
    std::vector<Move> moves_;
    std::size_t max_moves_;
    std::span<std::int32_t> assignment_;  // of the state at hand
    Index n_groups_;
    Index cursor_;               // where the search for borders goes on
    Index exchanged_pair_ = -1;  // whose positions the move at hand has exchanged
};

}  // namespace placewise

// `subgraph` latency (Tarnawski et al. 2020): an accelerator runs each contiguous piece as one call.
//
// A call waits for all its inputs and for the previous call of its device, receives its inputs one after another,
// computes, and sends its outputs; only then are they visible. Ops on host devices run as soon as their inputs are
// there, any number at a time. A tensor is received once per call: what passes between two calls of one accelerator is
// sent to host memory and received again. Staged: a call sends each tensor once. Direct: once per destination call,
// and once to the host, at that link's speed. If calls wait for each other in a circle, nothing runs.
#pragma once

#include <span>
#include <vector>

#include "judge/hops.hpp"
#include "judge/problem.hpp"

namespace placewise {

// The fewest calls, by alternation depth: an op's call number is the number of times that a path to it has entered its
// device. Into `call` [n_ops]: numbers from 0 on each accelerator, −1 for ops on hosts.
void cut_calls(const Problem& problem, std::span<const std::int32_t> device, std::span<std::int32_t> call);

// Prices placements one after the other, in the same memory.
class SubgraphSchedule {
public:
    explicit SubgraphSchedule(const Problem& problem);

    // The makespan of a placement [n_ops], inf in a circle. `call` [n_ops] counts the calls of each accelerator from 0
    // without gaps; `start` and `finish` [n_ops] get the times of ops.
    double run(std::span<const std::int32_t> device, std::span<const std::int32_t> call, std::span<double> start,
               std::span<double> finish, HopLog* log = nullptr);

private:
    // A call of an accelerator, or an op on a host.
    struct Node {
        double begin = 0.0;
        std::int32_t missing = 0;  // tensors, and the call before, that it still waits for
        Index last_tensor = -1;    // the last tensor that was counted for it
        Index first_op = 0;        // its ops in `members_`
        Index end_op = 0;
    };
    struct Call {
        std::int32_t device;
        double receive = 0.0;  // seconds, or in a log the clock of receiving
        double send = 0.0;
    };

    void form_nodes(std::span<const std::int32_t> device, std::span<const std::int32_t> call);
    void charge_transfers(HopLog* log);
    void hop(Index tensor, std::int32_t source, std::int32_t target, double& clock, HopLog* log);
    double run_nodes(std::span<const std::int32_t> device, std::span<double> start, std::span<double> finish);
    void satisfy(Index node, double moment);

    Index n_calls() const { return static_cast<Index>(calls_.size()); }

    const Problem& problem_;
    std::vector<Call> calls_;            // sorted by device
    std::vector<Node> nodes_;            // the calls, then the ops on hosts
    std::vector<std::int32_t> node_of_;  // [n_ops]
    std::vector<std::int32_t> members_;  // [n_ops] ops, node by node
    std::vector<Index> queue_;           // nodes that can begin
};

}  // namespace placewise

#include "judge/subgraph_schedule.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace placewise {

namespace {

constexpr double INF = std::numeric_limits<double>::infinity();
constexpr int TOGETHER = 8;  // so many devices are followed through the graph at once

}  // namespace

void cut_calls(const Problem& p, std::span<const std::int32_t> device, std::span<std::int32_t> call) {
    std::fill(call.begin(), call.end(), -1);
    std::vector<std::array<std::int32_t, TOGETHER>> entered(p.n_ops());
    for (std::int32_t first = 0; first < p.n_devices(); first += TOGETHER) {
        std::fill(entered.begin(), entered.end(), std::array<std::int32_t, TOGETHER>{});
        for (Index op = 0; op < p.n_ops(); ++op) {
            const std::int32_t here = device[op] - first;
            if (0 <= here && here < TOGETHER && !p.is_host(device[op])) {
                entered[op][here] = std::max(entered[op][here], 1);
                call[op] = entered[op][here] - 1;
            }
            for (const std::int32_t reader : p.readers_of(op)) {
                for (int k = 0; k < TOGETHER; ++k) entered[reader][k] = std::max(entered[reader][k], entered[op][k]);
                const std::int32_t there = device[reader] - first;
                if (0 <= there && there < TOGETHER && there != here) {
                    entered[reader][there] = std::max(entered[reader][there], entered[op][there] + 1);
                }
            }
        }
    }
}

SubgraphSchedule::SubgraphSchedule(const Problem& problem)
    : problem_(problem), node_of_(problem.n_ops()), members_(problem.n_ops()) {}

// Calls, sorted by device and number; the ops of every call and of every host op.
void SubgraphSchedule::form_nodes(std::span<const std::int32_t> device, std::span<const std::int32_t> call) {
    const Problem& p = problem_;
    std::vector<std::int32_t> first(p.n_devices() + 1, 0);
    for (Index op = 0; op < p.n_ops(); ++op) {
        if (!p.is_host(device[op])) first[device[op] + 1] = std::max(first[device[op] + 1], call[op] + 1);
    }
    for (Index d = 0; d < p.n_devices(); ++d) first[d + 1] += first[d];
    calls_.clear();
    for (std::int32_t d = 0; d < p.n_devices(); ++d) calls_.resize(first[d + 1], Call{d});
    nodes_.assign(n_calls() + p.n_ops(), Node());
    for (std::int32_t op = 0; op < p.n_ops(); ++op) {
        const bool on_host = p.is_host(device[op]);
        node_of_[op] = on_host ? static_cast<std::int32_t>(n_calls()) + op : first[device[op]] + call[op];
        ++nodes_[node_of_[op]].end_op;
    }
    Index next = 0;
    for (Node& node : nodes_) {
        node.first_op = next;
        next += node.end_op;
        node.end_op = node.first_op;
    }
    for (std::int32_t op = 0; op < p.n_ops(); ++op) members_[nodes_[node_of_[op]].end_op++] = op;
}

void SubgraphSchedule::hop(Index tensor, std::int32_t source, std::int32_t target, double& clock, HopLog* log) {
    const double sent = clock;
    clock += problem_.hop_seconds(tensor, source, target);
    note_hop(log, {static_cast<std::int32_t>(tensor), source, target, sent, clock});
}

// Add every hop of every tensor to the receiving and sending of its calls; count what each node waits for.
void SubgraphSchedule::charge_transfers(HopLog* log) {
    const Problem& p = problem_;
    for (Index tensor = 0; tensor < p.n_tensors(); ++tensor) {
        const std::int32_t maker = p.producer[tensor];
        const Index origin = maker < 0 ? -1 : node_of_[maker];
        const bool from_call = 0 <= origin && origin < n_calls();
        const std::int32_t source = from_call ? calls_[origin].device : p.host();
        bool leaves = p.output[tensor];
        for (const std::int32_t reader : p.consumers[tensor]) {
            const Index target = node_of_[reader];
            Node& node = nodes_[target];
            if (target == origin || node.last_tensor == tensor) continue;
            node.last_tensor = tensor;
            if (maker >= 0) ++node.missing;
            if (target >= n_calls()) {
                leaves = true;
                continue;
            }
            const std::int32_t there = calls_[target].device;
            hop(tensor, p.staged || source == there ? p.host() : source, there, calls_[target].receive, log);
            if (p.staged) {
                leaves = true;
            } else if (from_call) {
                hop(tensor, source, source == there ? p.host() : there, calls_[origin].send, log);
            }
        }
        if (leaves && from_call) hop(tensor, source, p.host(), calls_[origin].send, log);
    }
}

// One thing that a node waits for is done.
void SubgraphSchedule::satisfy(Index node, double moment) {
    nodes_[node].begin = std::max(nodes_[node].begin, moment);
    if (--nodes_[node].missing == 0) queue_.push_back(node);
}

// Every node begins when it misses nothing; calls of a device go in turn.
double SubgraphSchedule::run_nodes(std::span<const std::int32_t> device, std::span<double> start,
                                   std::span<double> finish) {
    const Problem& p = problem_;
    queue_.clear();
    for (Index c = 1; c < n_calls(); ++c) nodes_[c].missing += calls_[c].device == calls_[c - 1].device;
    for (Index n = 0; n < static_cast<Index>(nodes_.size()); ++n) {
        nodes_[n].last_tensor = -1;
        if (nodes_[n].first_op < nodes_[n].end_op && nodes_[n].missing == 0) queue_.push_back(n);
    }
    double makespan = 0.0;
    Index done = 0;
    for (std::size_t seen = 0; seen < queue_.size(); ++seen) {
        const Index origin = queue_[seen];
        const bool is_call = origin < n_calls();
        const Node node = nodes_[origin];
        double clock = node.begin;
        if (is_call) clock += p.call_overhead[calls_[origin].device] + calls_[origin].receive;
        for (Index k = node.first_op; k < node.end_op; ++k, ++done) {
            const std::int32_t op = members_[k];
            start[op] = clock;
            clock += p.op_seconds(op, device[op]);
            finish[op] = clock;
        }
        if (is_call) {
            clock += calls_[origin].send;
            if (origin + 1 < n_calls() && calls_[origin + 1].device == calls_[origin].device) {
                satisfy(origin + 1, clock);
            }
        }
        makespan = std::max(makespan, clock);
        for (Index k = node.first_op; k < node.end_op; ++k) {
            for (const Index tensor : p.outputs_of(members_[k])) {
                for (const std::int32_t reader : p.consumers[tensor]) {
                    const Index target = node_of_[reader];
                    if (target == origin || nodes_[target].last_tensor == tensor) continue;
                    nodes_[target].last_tensor = tensor;
                    satisfy(target, clock);
                }
            }
        }
    }
    return done == p.n_ops() ? makespan : INF;
}

double SubgraphSchedule::run(std::span<const std::int32_t> device, std::span<const std::int32_t> call,
                             std::span<double> start, std::span<double> finish, HopLog* log) {
    std::fill(start.begin(), start.end(), INF);
    std::fill(finish.begin(), finish.end(), INF);
    form_nodes(device, call);
    charge_transfers(nullptr);
    const double makespan = run_nodes(device, start, finish);
    if (log != nullptr && makespan < INF) {
        for (Index c = 0; c < n_calls(); ++c) {
            const Node& node = nodes_[c];
            double sending = 0.0;
            for (Index k = node.first_op; k < node.end_op; ++k) sending = std::max(sending, finish[members_[k]]);
            calls_[c].receive = node.begin + problem_.call_overhead[calls_[c].device];
            calls_[c].send = sending;
        }
        for (Node& node : nodes_) node.last_tensor = -1;
        charge_transfers(log);
    }
    return makespan;
}

}  // namespace placewise

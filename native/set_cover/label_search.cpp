#include "set_cover/label_search.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace placewise {

namespace {

constexpr double NOWHERE = -std::numeric_limits<double>::infinity();

template <int RESOURCES>
struct Label {
    std::int64_t value;
    std::array<std::int64_t, RESOURCES> used;
    std::int32_t origin;

    bool dominates(const Label& other) const {
        if (value < other.value) return false;
        for (int r = 0; r < RESOURCES; ++r) {
            if (used[r] > other.used[r]) return false;
        }
        return true;
    }
};

template <int RESOURCES>
bool used_less(const Label<RESOURCES>& one, const Label<RESOURCES>& other) {
    return one.used[0] < other.used[0];
}

// Sorted runs of labels, merged into one. Runs come from different nodes, each sorted already.
template <int RESOURCES>
class Runs {
public:
    std::vector<Label<RESOURCES>> labels;

    void clear() {
        labels.clear();
        ends_.clear();
    }
    void end_run() {
        if (static_cast<Index>(labels.size()) > (ends_.empty() ? 0 : ends_.back())) {
            ends_.push_back(static_cast<Index>(labels.size()));
        }
    }
    void merge() {
        for (; ends_.size() > 1; ends_.resize((ends_.size() + 1) / 2)) {
            merged_.resize(labels.size());
            Index first = 0;
            for (std::size_t run = 0; run < ends_.size(); run += 2) {
                const Index middle = ends_[run], last = run + 1 < ends_.size() ? ends_[run + 1] : middle;
                const auto begin = labels.begin();
                std::merge(begin + first, begin + middle, begin + middle, begin + last, merged_.begin() + first,
                           used_less<RESOURCES>);
                ends_[run / 2] = first = last;
            }
            labels.swap(merged_);
        }
    }

private:
    std::vector<Index> ends_;
    std::vector<Label<RESOURCES>> merged_;
};

// Whether one of the labels kept last, from `first` on, used no more and is worth no less.
template <int RESOURCES>
bool is_dominated(const std::vector<Label<RESOURCES>>& kept, Index first, const Label<RESOURCES>& label) {
    constexpr Index LOOK_BACK = RESOURCES == 1 ? 1 : 24;  // of one resource, the last kept is worth most
    const auto end = static_cast<Index>(kept.size());
    const Index last = std::max(first, end - LOOK_BACK);
    for (Index i = end - 1; i >= last; --i) {
        if (kept[i].dominates(label)) return true;
    }
    return false;
}

// Of the labels from `first` on, those that used almost the same become one: the one that is worth most, or what used
// the least and is worth the most of them.
template <int RESOURCES>
void thin(std::vector<Label<RESOURCES>>& kept, Index first, const LabelOptions& options) {
    const std::int64_t least = kept[first].used[0];
    const std::int64_t span = std::max<std::int64_t>((kept.back().used[0] - least) / options.width, 1);
    std::int64_t bucket = -1;
    Index last = first - 1;
    for (Index i = first; i < static_cast<Index>(kept.size()); ++i) {
        const Label<RESOURCES> label = kept[i];
        const std::int64_t at = (label.used[0] - least) / span;
        if (at != bucket) {
            bucket = at;
            kept[++last] = label;
            continue;
        }
        Label<RESOURCES>& one = kept[last];
        if (options.beam) {
            if (label.value > one.value) one = label;
            continue;
        }
        if (label.value > one.value) {
            one.value = label.value;
            one.origin = label.origin;
        }
        for (int r = 0; r < RESOURCES; ++r) one.used[r] = std::min(one.used[r], label.used[r]);
    }
    kept.resize(last + 1);
}

}  // namespace

// The labels of one layer, node by node, those that used least first; and where all labels up to it came from.
template <int RESOURCES>
struct LabelSearch::Frontier {
    Frontier(bool forwards, Index layer, std::vector<std::int32_t>& origins)
        : forwards(forwards), layer(layer), origins(origins) {
        labels.push_back({0, {}, -1});
        begin = {0, 1};
        origins.assign(1, -1);
    }

    Index n_labels() const { return static_cast<Index>(labels.size()); }
    // The number of the first label of this layer among all.
    Index offset() const { return static_cast<Index>(origins.size()) - n_labels(); }
    std::span<const Label<RESOURCES>> of(Index node_in_layer) const {
        return std::span(labels).subspan(begin[node_in_layer], begin[node_in_layer + 1] - begin[node_in_layer]);
    }

    bool forwards;
    Index layer;
    std::vector<std::int32_t>& origins;
    std::vector<Label<RESOURCES>> labels, kept;
    std::vector<Index> begin;
    Runs<RESOURCES> runs;
};

LabelSearch::LabelSearch(const DecisionDiagram& diagram, std::span<const std::int64_t> price,
                         std::span<const std::int64_t> limits)
    : diagram_(diagram),
      price_(price),
      limits_(limits.begin(), limits.end()),
      arcs_before_(diagram.n_nodes() + 1),
      multipliers_(limits.size()),
      ahead_(diagram.n_nodes()),
      behind_(diagram.n_nodes()) {
    for (Index node = 0; node < diagram.n_nodes(); ++node) {
        for (const std::int32_t child : diagram.child.row(node)) {
            if (child >= 0) ++arcs_before_[child + 1];
        }
    }
    for (Index node = 0; node < diagram.n_nodes(); ++node) arcs_before_[node + 1] += arcs_before_[node];
    arcs_.resize(arcs_before_.back());
    std::vector<std::int64_t> next(arcs_before_.begin(), arcs_before_.end() - 1);
    for (Index node = 0; node < diagram.n_nodes(); ++node) {
        for (int side = 0; side < 2; ++side) {
            const std::int32_t child = diagram.child(node, side);
            if (child >= 0) arcs_[next[child]++] = {static_cast<std::int32_t>(node), side};
        }
    }
}

// What a step from a node adds to the price, less λ · its cost, without the price of the block.
double LabelSearch::worth(Index node, int side) const {
    double worth = 0.0;
    const std::int64_t* cost = diagram_.costs(node, side);
    for (std::size_t r = 0; r < limits_.size(); ++r) worth -= multipliers_[r] * static_cast<double>(cost[r]);
    return worth;
}

double LabelSearch::bound(std::span<const double> multipliers) {
    std::copy(multipliers.begin(), multipliers.end(), multipliers_.begin());
    const DecisionDiagram& d = diagram_;
    ahead_.back() = 0.0;
    for (Index layer = d.n_layers() - 1; layer >= 0; --layer) {
        const auto gain = static_cast<double>(price_[d.order[layer]]);
        for (const Index node : d.nodes(layer)) {
            const std::int32_t out = d.child(node, 0), in = d.child(node, 1);
            const double without = out < 0 ? NOWHERE : ahead_[out] + worth(node, 0);
            const double with = in < 0 ? NOWHERE : ahead_[in] + gain + worth(node, 1);
            ahead_[node] = std::max(without, with);
        }
    }
    return ahead_.front();
}

std::vector<std::int64_t> LabelSearch::bound_cost() const {
    const DecisionDiagram& d = diagram_;
    std::vector<std::int64_t> total(limits_.size());
    Index node = 0;
    for (Index layer = 0; layer < d.n_layers(); ++layer) {
        const std::int32_t out = d.child(node, 0), in = d.child(node, 1);
        const auto gain = static_cast<double>(price_[d.order[layer]]);
        const double without = out < 0 ? NOWHERE : ahead_[out] + worth(node, 0);
        const double with = in < 0 ? NOWHERE : ahead_[in] + gain + worth(node, 1);
        const int side = with > without || out < 0;
        if (d.child(node, side) < 0) break;  // no way leads to the end
        for (std::size_t r = 0; r < total.size(); ++r) total[r] += d.costs(node, side)[r];
        node = d.child(node, side);
    }
    return total;
}

void LabelSearch::sweep_forwards() {
    const DecisionDiagram& d = diagram_;
    std::fill(behind_.begin(), behind_.end(), NOWHERE);
    behind_.front() = 0.0;
    for (Index layer = 0; layer < d.n_layers(); ++layer) {
        const auto gain = static_cast<double>(price_[d.order[layer]]);
        for (const Index node : d.nodes(layer)) {
            for (int side = 0; side < 2; ++side) {
                const std::int32_t child = d.child(node, side);
                if (child >= 0) {
                    behind_[child] = std::max(behind_[child], behind_[node] + side * gain + worth(node, side));
                }
            }
        }
    }
}

// Decide one more block in all labels; false if interrupted, or if there are too many.
template <int RESOURCES>
bool LabelSearch::step(Frontier<RESOURCES>& at, const LabelOptions& options, Interrupt& interrupt) const {
    const DecisionDiagram& d = diagram_;
    const Index from = at.layer, to = at.forwards ? from + 1 : from - 1;
    const std::int64_t gain = price_[d.order[std::min(from, to)]];
    const std::vector<double>& rest = at.forwards ? ahead_ : behind_;
    const Index offset = at.offset(), room = options.most_labels - static_cast<Index>(at.origins.size());
    std::vector<Index> begin{0};
    at.kept.clear();

    double slack = 0.0;
    for (int r = 0; r < RESOURCES; ++r) slack += multipliers_[r] * static_cast<double>(limits_[r]);
    // Extend the labels of a node of this layer to another of the next.
    const auto follow = [&](Index source, Index node, Index tail, int side) {
        const auto labels = at.of(source - d.base[from]);
        const std::int64_t* cost = d.costs(tail, side);
        auto number = static_cast<std::int32_t>(2 * (offset + at.begin[source - d.base[from]]) + side);
        for (const Label<RESOURCES>& label : labels) {
            Label<RESOURCES> longer{label.value + side * gain, {}, number};
            number += 2;
            double reach = static_cast<double>(longer.value) + rest[node] + slack;
            bool inside = true;
            for (int r = 0; r < RESOURCES; ++r) {
                longer.used[r] = label.used[r] + cost[r];
                inside = inside && longer.used[r] <= limits_[r];
                reach -= multipliers_[r] * static_cast<double>(longer.used[r]);
            }
            if (inside && reach > options.target) at.runs.labels.push_back(longer);
        }
        at.runs.end_run();
    };

    for (const Index node : d.nodes(to)) {
        at.runs.clear();
        if (ahead_[node] + behind_[node] + slack > options.target) {
            if (at.forwards) {
                for (Index arc = arcs_before_[node]; arc < arcs_before_[node + 1]; ++arc) {
                    follow(arcs_[arc].from, node, arcs_[arc].from, arcs_[arc].side);
                }
            } else {
                for (int side = 0; side < 2; ++side) {
                    if (d.child(node, side) >= 0) follow(d.child(node, side), node, node, side);
                }
            }
        }
        if (interrupt.stop(1 + static_cast<std::uint32_t>(at.runs.labels.size()))) return false;
        at.runs.merge();
        const auto first = static_cast<Index>(at.kept.size());
        for (const Label<RESOURCES>& label : at.runs.labels) {
            if (!is_dominated(at.kept, first, label)) at.kept.push_back(label);
        }
        if (static_cast<Index>(at.kept.size()) - first > options.width) thin(at.kept, first, options);
        if (static_cast<Index>(at.kept.size()) > room) return false;
        begin.push_back(static_cast<Index>(at.kept.size()));
    }
    at.labels.swap(at.kept);
    at.begin = std::move(begin);
    at.layer = to;
    for (const Label<RESOURCES>& label : at.labels) at.origins.push_back(label.origin);
    return true;
}

// The best partner, of those that leave it within the limits, for every label of the layer where both meet.
template <int RESOURCES>
bool LabelSearch::join(const Frontier<RESOURCES>& forward, const Frontier<RESOURCES>& backward, double target,
                       Interrupt& interrupt) {
    const DecisionDiagram& d = diagram_;
    for (const Index node : d.nodes(meeting_)) {
        const Index place = node - d.base[meeting_];
        const auto heads = forward.of(place), tails = backward.of(place);
        if (tails.empty()) continue;
        auto fitting = static_cast<Index>(tails.size());  // tails that use more are worth more
        for (Index i = 0; i < static_cast<Index>(heads.size()); ++i) {
            if (interrupt.stop()) return false;
            while (fitting > 0 && heads[i].used[0] + tails[fitting - 1].used[0] > limits_[0]) --fitting;
            if (fitting == 0) break;
            const std::int64_t value = heads[i].value + tails[fitting - 1].value;
            if (static_cast<double>(value) <= target) continue;
            values_.push_back(value);
            pairs_.push_back(
                {forward.offset() + forward.begin[place] + i, backward.offset() + backward.begin[place] + fitting - 1});
        }
    }
    return true;
}

template <int RESOURCES>
bool LabelSearch::extend(const LabelOptions& options, Interrupt& interrupt) {
    Frontier<RESOURCES> forward(true, 0, forward_), backward(false, diagram_.n_layers(), backward_);
    sweep_forwards();
    while (forward.layer < backward.layer) {
        if (forward.n_labels() == 0 || backward.n_labels() == 0) return true;
        const bool forwards = RESOURCES > 1 || forward.n_labels() <= backward.n_labels();
        if (interrupt.look() || !step(forwards ? forward : backward, options, interrupt)) return false;
    }
    meeting_ = forward.layer;
    return join(forward, backward, options.target, interrupt);
}

bool LabelSearch::run(const LabelOptions& options, Interrupt& interrupt) {
    values_.clear();
    pairs_.clear();
    switch (limits_.size()) {
        case 1:
            return extend<1>(options, interrupt);
        case 2:
            return extend<2>(options, interrupt);
        case 3:
            return extend<3>(options, interrupt);
        default:
            return extend<4>(options, interrupt);
    }
}

std::vector<std::int32_t> LabelSearch::blocks_of(Index set) const {
    std::vector<std::int32_t> blocks;
    Index at = pairs_[set].forward;
    for (Index layer = meeting_ - 1; layer >= 0; --layer) {
        if (forward_[at] & 1) blocks.push_back(diagram_.order[layer]);
        at = forward_[at] >> 1;
    }
    at = pairs_[set].backward;
    for (Index layer = meeting_; layer < diagram_.n_layers(); ++layer) {
        if (backward_[at] & 1) blocks.push_back(diagram_.order[layer]);
        at = backward_[at] >> 1;
    }
    return blocks;
}

}  // namespace placewise

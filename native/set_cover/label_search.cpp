#include "set_cover/label_search.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace placewise {

namespace {

constexpr Index LOOK_BACK = 24;

template <int RESOURCES>
struct Label {
    std::int64_t value;
    std::int32_t node;
    std::int32_t origin;
    std::array<std::int64_t, RESOURCES> used;

    bool dominates(const Label& other) const {
        if (value < other.value) return false;
        for (int r = 0; r < RESOURCES; ++r) {
            if (used[r] > other.used[r]) return false;
        }
        return true;
    }
};

// Labels of one layer, as they come, and those of them that survive: node by node, those that used least first.
template <int RESOURCES>
class Layer {
public:
    using Entry = Label<RESOURCES>;
    using Labels = std::vector<Entry>;

    Labels candidates;

    // The candidates that no other one makes superfluous; false if these are more than `most`, or if interrupted.
    bool select(const IndexRange& nodes, Index first_node, const LabelOptions& options, Index most, Labels& kept,
                Interrupt& interrupt) {
        sort_by_node(nodes, first_node);
        kept.clear();
        Index begin = 0;
        for (const Index end : ends_) {
            const auto first = static_cast<Index>(kept.size());
            std::sort(keys_.begin() + begin, keys_.begin() + end);
            for (; begin < end; ++begin) {
                if (interrupt.stop()) return false;
                const Entry& label = candidates[keys_[begin].label];
                if (!is_dominated(kept, first, label)) kept.push_back(label);
            }
            if (static_cast<Index>(kept.size()) - first > options.width) thin(kept, first, options);
            if (static_cast<Index>(kept.size()) > most) return false;
        }
        return true;
    }

private:
    struct Key {
        std::int64_t used;
        Index label;
        bool operator<(const Key& other) const {
            return used < other.used || (used == other.used && label < other.label);
        }
    };

    void sort_by_node(const IndexRange& nodes, Index first_node) {
        ends_.clear();
        for ([[maybe_unused]] const Index node : nodes) ends_.push_back(0);
        for (const Entry& label : candidates) ++ends_[label.node - first_node];
        Index total = 0;
        for (Index& end : ends_) total += std::exchange(end, total);
        keys_.resize(candidates.size());
        for (Index i = 0; i < total; ++i) {
            keys_[ends_[candidates[i].node - first_node]++] = {candidates[i].used[0], i};
        }
    }

    // Whether one of the labels kept last used no more and is worth no less.
    static bool is_dominated(const Labels& kept, Index first, const Entry& label) {
        const auto end = static_cast<Index>(kept.size());
        const Index last = std::max(first, end - LOOK_BACK);
        for (Index i = end - 1; i >= last; --i) {
            if (kept[i].dominates(label)) return true;
        }
        return false;
    }

    // Of the labels from `first` on, those that used almost the same become one: the one that is worth most, or what
    // used the least and is worth the most of them.
    static void thin(Labels& kept, Index first, const LabelOptions& options) {
        const std::int64_t least = kept[first].used[0];
        const std::int64_t span = std::max<std::int64_t>((kept.back().used[0] - least) / options.width, 1);
        std::int64_t bucket = -1;
        Index last = first - 1;
        for (Index i = first; i < static_cast<Index>(kept.size()); ++i) {
            const Entry label = kept[i];
            const std::int64_t at = (label.used[0] - least) / span;
            if (at != bucket) {
                bucket = at;
                kept[++last] = label;
                continue;
            }
            Entry& one = kept[last];
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

    std::vector<Key> keys_;
    std::vector<Index> ends_;
};

}  // namespace

LabelSearch::LabelSearch(const DecisionDiagram& diagram, std::span<const std::int64_t> price,
                         std::span<const std::int64_t> limits)
    : diagram_(diagram),
      price_(price),
      limits_(limits.begin(), limits.end()),
      multipliers_(limits.size()),
      ahead_(diagram.n_nodes()) {}

double LabelSearch::bound(std::span<const double> multipliers) {
    std::copy(multipliers.begin(), multipliers.end(), multipliers_.begin());
    const DecisionDiagram& d = diagram_;
    ahead_.back() = 0.0;
    for (Index layer = d.n_layers() - 1; layer >= 0; --layer) {
        const auto gain = static_cast<double>(price_[d.order[layer]]);
        for (const Index node : d.nodes(layer)) {
            double best = -std::numeric_limits<double>::infinity();
            for (int side = 0; side < 2; ++side) {
                const std::int32_t child = d.child(node, side);
                if (child < 0) continue;
                double worth = ahead_[child] + side * gain;
                const std::int64_t* cost = d.costs(node, side);
                for (std::size_t r = 0; r < limits_.size(); ++r) {
                    worth -= multipliers_[r] * static_cast<double>(cost[r]);
                }
                best = std::max(best, worth);
            }
            ahead_[node] = best;
        }
    }
    return ahead_.front();
}

template <int RESOURCES>
bool LabelSearch::extend(const LabelOptions& options, Interrupt& interrupt) {
    const DecisionDiagram& d = diagram_;
    Layer<RESOURCES> next;
    typename Layer<RESOURCES>::Labels labels(1);
    labels[0] = {0, 0, -1, {}};
    origin_.assign(1, -1);
    for (Index layer = 0; layer < d.n_layers(); ++layer) {
        const std::int64_t gain = price_[d.order[layer]];
        const auto first = static_cast<Index>(origin_.size() - labels.size());
        next.candidates.clear();
        for (std::size_t i = 0; i < labels.size(); ++i) {
            if (interrupt.stop()) return false;
            const Label<RESOURCES>& label = labels[i];
            for (int side = 0; side < 2; ++side) {
                const std::int32_t child = d.child(label.node, side);
                if (child < 0) continue;
                const auto origin = static_cast<std::int32_t>(2 * (first + static_cast<Index>(i)) + side);
                Label<RESOURCES> longer{label.value + side * gain, child, origin, {}};
                double reach = static_cast<double>(longer.value) + ahead_[child];
                bool inside = true;
                const std::int64_t* cost = d.costs(label.node, side);
                for (int r = 0; r < RESOURCES; ++r) {
                    longer.used[r] = label.used[r] + cost[r];
                    inside = inside && longer.used[r] <= limits_[r];
                    reach += multipliers_[r] * static_cast<double>(limits_[r] - longer.used[r]);
                }
                if (inside && reach > options.target) next.candidates.push_back(longer);
            }
        }
        if (interrupt.look()) return false;
        const Index room = options.most_labels - static_cast<Index>(origin_.size());
        if (!next.select(d.nodes(layer + 1), d.base[layer + 1], options, room, labels, interrupt)) return false;
        for (const Label<RESOURCES>& label : labels) origin_.push_back(label.origin);
    }
    for (const Label<RESOURCES>& label : labels) values_.push_back(label.value);
    return true;
}

bool LabelSearch::run(const LabelOptions& options, Interrupt& interrupt) {
    values_.clear();
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

std::vector<std::int32_t> LabelSearch::blocks_of(Index label) const {
    std::vector<std::int32_t> blocks;
    Index at = static_cast<Index>(origin_.size() - values_.size()) + label;
    for (Index layer = diagram_.n_layers() - 1; layer >= 0; --layer) {
        if (origin_[at] & 1) blocks.push_back(diagram_.order[layer]);
        at = origin_[at] >> 1;
    }
    return blocks;
}

}  // namespace placewise

#include <algorithm>
#include <cmath>

#include "common/exclusive.hpp"
#include "common/ndarrays.hpp"
#include "set_cover/label_search.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

double largest(std::span<const std::int64_t> figures) {
    double most = 0.0;
    for (const std::int64_t figure : figures) most = std::max(most, std::abs(static_cast<double>(figure)));
    return most;
}

DecisionDiagram checked_diagram(const In<std::int32_t>& order, const In<std::int64_t>& base,
                                const In<std::int32_t, 2>& child, const In<std::int64_t, 3>& cost) {
    const DecisionDiagram d{
        view(order), view(base), view(child), {cost.data(), cost.size()}, static_cast<Index>(cost.shape(2))};
    require(static_cast<Index>(d.base.size()) == d.n_layers() + 1 && d.base.front() == 0 &&
                std::is_sorted(d.base.begin(), d.base.end()) && d.base.back() == d.n_nodes() - 1,
            "layers do not cover the nodes of a diagram");
    require(d.n_layers() == 0 || d.base[1] == 1, "a diagram has one root");
    require(d.child.columns() == 2 && static_cast<Index>(cost.shape(0)) == d.n_nodes() && cost.shape(1) == 2,
            "a diagram has two children and two costs per node");
    const auto last_children = d.child.row(d.n_nodes() - 1);
    require(last_children[0] < 0 && last_children[1] < 0, "the last node of a diagram has a child");
    double longest = 0.0;  // the most that a path costs
    for (Index layer = 0; layer < d.n_layers(); ++layer) {
        const std::size_t width = 2 * d.n_resources, begin = width * d.base[layer];
        longest += largest(d.cost.subspan(begin, width * d.base[layer + 1] - begin));
        const Index first = d.base[layer + 1], last = layer + 1 < d.n_layers() ? d.base[layer + 2] : first + 1;
        for (const Index node : d.nodes(layer)) {
            for (const std::int32_t child : d.child.row(node)) {
                require(child < 0 || (first <= child && child < last), "a child is no node of the next layer");
            }
        }
    }
    require(longest < 0x1p62, "costs together are too large");
    return d;
}

// A search and the arrays that it reads.
class BoundLabelSearch : public LabelSearch, private Exclusive {
public:
    BoundLabelSearch(const In<std::int32_t>& order, const In<std::int64_t>& base, const In<std::int32_t, 2>& child,
                     const In<std::int64_t, 3>& cost, const In<std::int64_t>& price, const In<std::int64_t>& limits)
        : LabelSearch(checked_diagram(order, base, child, cost), view(price), view(limits)),
          owners_(nb::make_tuple(order, base, child, cost, price)),
          n_blocks_(static_cast<Index>(price.shape(0))),
          n_limits_(static_cast<Index>(limits.shape(0))) {
        require(within(view(order), 0, n_blocks_), "a diagram decides blocks that have no price");
        double prices = 0.0;
        for (const std::int64_t one : view(price)) prices += std::abs(static_cast<double>(one));
        require(prices < 0x1p52, "prices together are too large");
        require(1 <= n_limits_ && n_limits_ <= std::min(static_cast<Index>(cost.shape(2)), MAX_RESOURCES),
                "a diagram has from one to four resources, and no more limits than these");
    }

    double set_multipliers(const In<double>& multipliers) {
        require(static_cast<Index>(multipliers.shape(0)) == n_limits_, "multipliers are not one per limit");
        const Turn turn(*this);
        nb::gil_scoped_release unlocked;
        return bound(view(multipliers));
    }

    bool search(double target, Index width, bool beam, Index most_labels, double seconds, const StopFlag* stop) {
        require(width > 0, "a width is positive");
        require(0 < most_labels && most_labels < Index{1} << 30, "labels are counted in 30 bits");
        const Turn turn(*this);
        nb::gil_scoped_release unlocked;
        Interrupt interrupt(seconds, stop);
        return run({target, width, beam, most_labels}, interrupt);
    }

    auto cost_of_bound() {
        const Turn turn(*this);
        return to_numpy(bound_cost());
    }

    auto found_values() {
        const Turn turn(*this);
        return to_numpy(std::vector<std::int64_t>(values()));
    }

    auto sets(const In<std::int64_t>& numbers) {
        const Turn turn(*this);
        const auto chosen = view(numbers);
        require(within(chosen, 0, static_cast<std::int64_t>(values().size())), "no such set");
        Table<std::uint8_t> rows(static_cast<Index>(chosen.size()), n_blocks_);
        for (Index row = 0; row < rows.rows(); ++row) {
            for (const Index block : blocks_of(chosen[row])) rows(row, block) = 1;
        }
        return to_numpy(std::move(rows));
    }

private:
    nb::object owners_;
    Index n_blocks_;
    Index n_limits_;
};

}  // namespace

void bind_set_cover(nb::module_& m) {
    nb::class_<BoundLabelSearch>(m, "LabelSearch",
                                 "Sets of blocks of high price within limits: paths through a decision diagram of "
                                 "`order` [n_layers], `base` [n_layers + 1], `child` [n_nodes, 2] and `cost` "
                                 "[n_nodes, 2, n_resources]; `price` [n_blocks], `limits` of the first resources.")
        .def(nb::init<const In<std::int32_t>&, const In<std::int64_t>&, const In<std::int32_t, 2>&,
                      const In<std::int64_t, 3>&, const In<std::int64_t>&, const In<std::int64_t>&>(),
             "order"_a.noconvert(), "base"_a.noconvert(), "child"_a.noconvert(), "cost"_a.noconvert(),
             "price"_a.noconvert(), "limits"_a.noconvert())
        .def("bound", &BoundLabelSearch::set_multipliers, "multipliers"_a.noconvert(),
             "Set the multipliers [n_limits]; the most that any set is worth less its cost at these.")
        .def("bound_cost", &BoundLabelSearch::cost_of_bound, nb::rv_policy::automatic,
             "What the set that attains the last bound costs [n_limits].")
        .def("run", &BoundLabelSearch::search, "target"_a, "width"_a, "beam"_a, "most_labels"_a, "seconds"_a = INFINITY,
             "stop"_a.none() = nb::none(),
             "Find sets that may pass `target`, by up to `width` labels per node; False if it was cut short.")
        .def_prop_ro("values", &BoundLabelSearch::found_values, nb::rv_policy::automatic,
                     "The prices [n_sets] of the sets that were found.")
        .def("sets", &BoundLabelSearch::sets, "numbers"_a.noconvert(),
             "Some sets [k, n_blocks], as 0 and 1, by their numbers [k].");
}

}  // namespace placewise

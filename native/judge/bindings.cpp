#include "judge/bindings.hpp"
#include "common/ndarrays.hpp"
#include "judge/convexity.hpp"
#include "judge/graph_order.hpp"
#include "judge/max_load.hpp"
#include "judge/operator_schedule.hpp"
#include "judge/ranks.hpp"
#include "judge/sequential_schedule.hpp"
#include "judge/subgraph_schedule.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

Made<double, 2> hop_table(const HopLog& log) {
    Table<double> rows(static_cast<Index>(log.size()), 5);
    for (Index i = 0; i < rows.rows(); ++i) {
        const Hop& hop = log[i];
        const double cells[] = {double(hop.tensor), double(hop.source), double(hop.target), hop.sent, hop.arrived};
        std::copy(std::begin(cells), std::end(cells), rows.row(i).begin());
    }
    return to_numpy(std::move(rows));
}

// The makespan, starts and ends of ops [n_ops], and hops [n_hops, 5].
using BoundTimeline = TupleOf<double, Made<double>, Made<double>, Made<double, 2>>;

BoundTimeline timeline(double makespan, std::vector<double>&& start, std::vector<double>&& finish, const HopLog& log) {
    return nb::make_tuple(makespan, to_numpy(std::move(start)), to_numpy(std::move(finish)), hop_table(log));
}

void operator_makespans(const BoundProblem& p, const In<std::int32_t>& priority, const In<std::int32_t>& by_priority,
                        const In<std::int32_t, 2>& placements, Index first, Index last, const Out<double>& values) {
    const auto rank = view(priority), order = view(by_priority);
    p.require_permutation(rank, order);
    const auto rows = p.placements(placements, first, last, view(values));
    nb::gil_scoped_release unlocked;
    OperatorSchedule schedule(p, rank, order);
    std::vector<double> start(p.n_ops());
    for (Index k = first; k < last; ++k) values.data()[k] = schedule.run(rows.row(k), start);
}

BoundTimeline operator_timeline(const BoundProblem& p, const In<std::int32_t>& priority,
                                const In<std::int32_t>& by_priority, const In<std::int32_t>& device) {
    const auto rank = view(priority), order = view(by_priority);
    p.require_permutation(rank, order);
    const auto placement = p.placement(device);
    std::vector<double> start(p.n_ops());
    HopLog log;
    const double makespan = OperatorSchedule(p, rank, order).run(placement, start, &log);
    std::vector<double> finish(p.n_ops());
    for (Index op = 0; op < p.n_ops(); ++op) finish[op] = start[op] + p.op_seconds(op, placement[op]);
    return timeline(makespan, std::move(start), std::move(finish), log);
}

Communication communication(int mode) {
    require(0 <= mode && mode <= 2, "no such communication mode");
    return static_cast<Communication>(mode);
}

void max_loads(const BoundProblem& p, const In<std::int32_t, 2>& placements, int mode, Index first, Index last,
               const Out<double>& values) {
    const auto rows = p.placements(placements, first, last, view(values));
    const Communication how = communication(mode);
    nb::gil_scoped_release unlocked;
    PipelineLoads loads(p);
    for (Index k = first; k < last; ++k) values.data()[k] = loads.max_load(rows.row(k), how);
}

TupleOf<Made<double>, Made<double>, Made<double>, Made<double>> pipeline_loads(const BoundProblem& p,
                                                                               const In<std::int32_t>& device) {
    PipelineLoads loads(p);
    loads.add(p.placement(device));
    return nb::make_tuple(to_numpy(std::move(loads.compute)), to_numpy(std::move(loads.send)),
                          to_numpy(std::move(loads.receive)), to_numpy(std::move(loads.wires)));
}

Made<std::int32_t> subgraph_calls(const BoundProblem& p, const In<std::int32_t>& device) {
    const auto placement = p.placement(device);
    std::vector<std::int32_t> call(p.n_ops());
    cut_calls(p, placement, call);
    return to_numpy(std::move(call));
}

void subgraph_makespans(const BoundProblem& p, const In<std::int32_t, 2>& placements, Index first, Index last,
                        const Out<double>& values) {
    const auto rows = p.placements(placements, first, last, view(values));
    nb::gil_scoped_release unlocked;
    SubgraphSchedule schedule(p);
    std::vector<std::int32_t> call(p.n_ops());
    std::vector<double> start(p.n_ops()), finish(p.n_ops());
    for (Index k = first; k < last; ++k) {
        cut_calls(p, rows.row(k), call);
        values.data()[k] = schedule.run(rows.row(k), call, start, finish);
    }
}

BoundTimeline subgraph_timeline(const BoundProblem& p, const In<std::int32_t>& device, const In<std::int32_t>& call) {
    const auto placement = p.placement(device), numbers = view(call);
    require(static_cast<Index>(numbers.size()) == p.n_ops() && within(numbers, -1, p.n_ops()),
            "call numbers are not one per op, counted from 0 without gaps");
    for (Index op = 0; op < p.n_ops(); ++op) {
        require(numbers[op] >= 0 || p.is_host(placement[op]), "an op of an accelerator has no call");
    }
    std::vector<double> start(p.n_ops()), finish(p.n_ops());
    HopLog log;
    const double makespan = SubgraphSchedule(p).run(placement, numbers, start, finish, &log);
    return timeline(makespan, std::move(start), std::move(finish), log);
}

Adjacency inputs_of(const BoundProblem& p, const In<std::int64_t>& offsets, const In<std::int32_t>& tensors) {
    const Adjacency inputs = ragged(offsets, tensors, p.n_ops());
    require(within(inputs.values, 0, p.n_tensors()), "an op reads no tensor of this problem");
    return inputs;
}

Made<std::int32_t> sequential_pieces(const BoundProblem& p, const In<std::int32_t>& device) {
    const auto placement = p.placement(device);
    std::vector<std::int32_t> piece(p.n_ops());
    cut_pieces(p, placement, piece);
    return to_numpy(std::move(piece));
}

void sequential_makespans(const BoundProblem& p, const In<std::int64_t>& in_offsets, const In<std::int32_t>& in_tensors,
                          const In<std::int32_t, 2>& placements, Index first, Index last, const Out<double>& values) {
    const auto rows = p.placements(placements, first, last, view(values));
    const Adjacency inputs = inputs_of(p, in_offsets, in_tensors);
    nb::gil_scoped_release unlocked;
    SequentialSchedule schedule(p, inputs);
    std::vector<double> start(p.n_ops()), finish(p.n_ops());
    for (Index k = first; k < last; ++k) values.data()[k] = schedule.run(rows.row(k), start, finish);
}

BoundTimeline sequential_timeline(const BoundProblem& p, const In<std::int64_t>& in_offsets,
                                  const In<std::int32_t>& in_tensors, const In<std::int32_t>& device) {
    const auto placement = p.placement(device);
    const Adjacency inputs = inputs_of(p, in_offsets, in_tensors);
    std::vector<double> start(p.n_ops()), finish(p.n_ops());
    HopLog log;
    const double makespan = SequentialSchedule(p, inputs).run(placement, start, finish, &log);
    return timeline(makespan, std::move(start), std::move(finish), log);
}

void require_seconds(const BoundProblem& p, const In<double>& op_seconds, const In<double>& tensor_seconds) {
    require(static_cast<Index>(op_seconds.shape(0)) == p.n_ops() &&
                static_cast<Index>(tensor_seconds.shape(0)) == p.n_tensors(),
            "seconds are not one per op and one per tensor");
}

Made<double> rank_upward(const BoundProblem& p, const In<double>& op_seconds, const In<double>& tensor_seconds) {
    require_seconds(p, op_seconds, tensor_seconds);
    return to_numpy(upward_ranks(p, view(op_seconds), view(tensor_seconds)));
}

Made<double> rank_downward(const BoundProblem& p, const In<double>& op_seconds, const In<double>& tensor_seconds) {
    require_seconds(p, op_seconds, tensor_seconds);
    return to_numpy(downward_ranks(p, view(op_seconds), view(tensor_seconds)));
}

Made<std::int32_t> find_longest_path(const BoundProblem& p, const In<double>& weight) {
    require(static_cast<Index>(weight.shape(0)) == p.n_ops(), "weights are not one per op");
    return to_numpy(longest_path(p, view(weight)));
}

Made<std::int32_t> return_path(const BoundProblem& p, const In<bool>& backward, const In<std::int32_t>& phase,
                               const In<std::int32_t>& device) {
    const auto n = static_cast<std::size_t>(p.n_ops());
    require(backward.shape(0) == n && phase.shape(0) == n && device.shape(0) == n, "columns of ops differ in length");
    require(within(view(device), -1, p.n_devices()), "a placement names no device of this problem");
    return to_numpy(find_return_path(p, view(backward), view(phase), view(device)));
}

TupleOf<Made<std::int32_t>, std::int32_t> components(const In<std::int64_t>& offsets, const In<std::int32_t>& heads) {
    require(offsets.shape(0) > 0, "offsets have another length than their rows");
    const Index n = static_cast<Index>(offsets.shape(0)) - 1;
    auto [component, count] = strong_components(neighbours(offsets, heads, n));
    return nb::make_tuple(to_numpy(std::move(component)), count);
}

}  // namespace

void bind_judge(nb::module_& m) {
    nb::class_<BoundProblem>(m, "Problem",
                             "The columns of one problem, checked once and read in place; see "
                             "placewise.simulate.problem_arrays.Arrays for their meaning.")
        .def(
            nb::init<const In<double, 2>&, const In<double, 2>&, const In<std::int32_t>&, const In<bool>&,
                     const In<std::int64_t>&, const In<std::int64_t>&, const In<std::int32_t>&, const In<std::int32_t>&,
                     const In<std::int32_t>&, const In<std::int32_t, 2>&, const In<std::int32_t, 2>&,
                     const In<std::int32_t, 2>&, const In<std::int32_t>&, const In<double>&, bool, Index, Index>(),
            "op_seconds"_a.noconvert(), "transfer"_a.noconvert(), "producer"_a.noconvert(), "output"_a.noconvert(),
            "out_offsets"_a.noconvert(), "consumer_offsets"_a.noconvert(), "consumers"_a.noconvert(),
            "consumed"_a.noconvert(), "location"_a.noconvert(), "link_class"_a.noconvert(), "queue"_a.noconvert(),
            "wire"_a.noconvert(), "streams"_a.noconvert(), "call_overhead"_a.noconvert(), "staged"_a, "n_queues"_a,
            "n_wires"_a)
        .def_prop_ro("n_ops", &BoundProblem::n_ops)
        .def_prop_ro("n_devices", &BoundProblem::n_devices);
    m.def("operator_makespans", &operator_makespans, "problem"_a, "priority"_a.noconvert(), "by_priority"_a.noconvert(),
          "placements"_a.noconvert(), "first"_a, "last"_a, "values"_a.noconvert(),
          "Makespans of rows `first` to `last` of placements [K, n_ops] in `operator` execution, into `values` [K].");
    m.def("operator_timeline", &operator_timeline, "problem"_a, "priority"_a.noconvert(), "by_priority"_a.noconvert(),
          "device"_a.noconvert(),
          "The makespan of one placement [n_ops], starts and ends of its ops, and its hops [n_hops, 5].");
    m.def("max_loads", &max_loads, "problem"_a, "placements"_a.noconvert(), "mode"_a, "first"_a, "last"_a,
          "values"_a.noconvert(),
          "Max-loads of rows `first` to `last` of placements [K, n_ops], into `values` [K]; mode 0 is blocking, 1 "
          "overlap, 2 duplex.");
    m.def("pipeline_loads", &pipeline_loads, "problem"_a, "device"_a.noconvert(),
          "Seconds of compute, sends and receives per location [n_devices + 1], and of traffic per wire.");
    m.def("subgraph_calls", &subgraph_calls, "problem"_a, "device"_a.noconvert(),
          "The fewest calls of a placement [n_ops]: the number of each op's call on its accelerator, −1 on hosts.");
    m.def("subgraph_makespans", &subgraph_makespans, "problem"_a, "placements"_a.noconvert(), "first"_a, "last"_a,
          "values"_a.noconvert(),
          "Makespans of rows `first` to `last` of placements [K, n_ops] in `subgraph` execution, into `values` [K].");
    m.def("subgraph_timeline", &subgraph_timeline, "problem"_a, "device"_a.noconvert(), "call"_a.noconvert(),
          "The makespan of one placement with these calls, starts and ends of its ops, and its hops [n_hops, 5].");
    m.def("sequential_pieces", &sequential_pieces, "problem"_a, "device"_a.noconvert(),
          "The number of each op's piece [n_ops]; ops of one number and one device form a piece.");
    m.def("sequential_makespans", &sequential_makespans, "problem"_a, "in_offsets"_a.noconvert(),
          "in_tensors"_a.noconvert(), "placements"_a.noconvert(), "first"_a, "last"_a, "values"_a.noconvert(),
          "Makespans of rows `first` to `last` of placements [K, n_ops] in `sequential` execution, into `values` [K].");
    m.def("sequential_timeline", &sequential_timeline, "problem"_a, "in_offsets"_a.noconvert(),
          "in_tensors"_a.noconvert(), "device"_a.noconvert(),
          "The makespan of one placement, starts and ends of its ops, and its hops [n_hops, 5].");
    m.def("upward_ranks", &rank_upward, "problem"_a, "op_seconds"_a.noconvert(), "tensor_seconds"_a.noconvert(),
          "The longest path that remains from each op [n_ops], itself included.");
    m.def("downward_ranks", &rank_downward, "problem"_a, "op_seconds"_a.noconvert(), "tensor_seconds"_a.noconvert(),
          "The longest path to each op [n_ops], itself not included.");
    m.def("longest_path", &find_longest_path, "problem"_a, "weight"_a.noconvert(),
          "The ops of a path with the largest sum of weights [n_ops], in order.");
    m.def("return_path", &return_path, "problem"_a, "backward"_a.noconvert(), "phase"_a.noconvert(),
          "device"_a.noconvert(), "The ops of a path that leaves a device and comes back, empty where there is none.");
    m.def("strong_components", &components, "offsets"_a.noconvert(), "heads"_a.noconvert(),
          "The strong component of each node of a graph, numbered topologically, and how many there are.");
}

}  // namespace placewise

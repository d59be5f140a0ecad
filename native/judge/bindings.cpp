#include "common/ndarrays.hpp"
#include "judge/bindings.hpp"
#include "judge/max_load.hpp"
#include "judge/operator_schedule.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

nb::ndarray<nb::numpy, double, nb::ndim<2>, nb::c_contig> hop_table(const HopLog& log) {
    Table<double> rows(static_cast<Index>(log.size()), 5);
    for (Index i = 0; i < rows.rows(); ++i) {
        const Hop& hop = log[i];
        const double cells[] = {double(hop.tensor), double(hop.source), double(hop.target), hop.sent, hop.arrived};
        std::copy(std::begin(cells), std::end(cells), rows.row(i).begin());
    }
    return to_numpy(std::move(rows));
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

nb::tuple operator_timeline(const BoundProblem& p, const In<std::int32_t>& priority,
                            const In<std::int32_t>& by_priority, const In<std::int32_t>& device) {
    const auto rank = view(priority), order = view(by_priority);
    p.require_permutation(rank, order);
    const auto placement = p.placement(device);
    std::vector<double> start(p.n_ops());
    HopLog log;
    const double makespan = OperatorSchedule(p, rank, order).run(placement, start, &log);
    return nb::make_tuple(makespan, to_numpy(std::move(start)), hop_table(log));
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

nb::tuple pipeline_loads(const BoundProblem& p, const In<std::int32_t>& device) {
    PipelineLoads loads(p);
    loads.add(p.placement(device));
    return nb::make_tuple(to_numpy(std::move(loads.compute)), to_numpy(std::move(loads.send)),
                          to_numpy(std::move(loads.receive)), to_numpy(std::move(loads.wires)));
}

}  // namespace

void bind_judge(nb::module_& m) {
    nb::class_<BoundProblem>(m, "Problem",
                             "The columns of one problem, checked once and read in place; see "
                             "placewise.simulate.arrays.Arrays for their meaning.")
        .def(nb::init<const In<double, 2>&, const In<double, 2>&, const In<std::int32_t>&, const In<bool>&,
                      const In<std::int64_t>&, const In<std::int64_t>&, const In<std::int32_t>&,
                      const In<std::int32_t>&, const In<std::int32_t, 2>&, const In<std::int32_t, 2>&,
                      const In<std::int32_t, 2>&, const In<std::int32_t>&, const In<double>&, bool, Index, Index>(),
             "op_seconds"_a.noconvert(), "transfer"_a.noconvert(), "producer"_a.noconvert(), "output"_a.noconvert(),
             "out_offsets"_a.noconvert(), "consumer_offsets"_a.noconvert(), "consumers"_a.noconvert(),
             "location"_a.noconvert(), "link_class"_a.noconvert(), "queue"_a.noconvert(), "wire"_a.noconvert(),
             "streams"_a.noconvert(), "call_overhead"_a.noconvert(), "staged"_a, "n_queues"_a, "n_wires"_a)
        .def_prop_ro("n_ops", &BoundProblem::n_ops)
        .def_prop_ro("n_devices", &BoundProblem::n_devices);
    m.def("operator_makespans", &operator_makespans, "problem"_a, "priority"_a.noconvert(),
          "by_priority"_a.noconvert(), "placements"_a.noconvert(), "first"_a, "last"_a, "values"_a.noconvert(),
          "Makespans of rows `first` to `last` of placements [K, n_ops] in `operator` execution, into `values` [K].");
    m.def("operator_timeline", &operator_timeline, "problem"_a, "priority"_a.noconvert(),
          "by_priority"_a.noconvert(), "device"_a.noconvert(),
          "The makespan of one placement [n_ops], the starts of its ops, and its hops [n_hops, 5].");
    m.def("max_loads", &max_loads, "problem"_a, "placements"_a.noconvert(), "mode"_a, "first"_a, "last"_a,
          "values"_a.noconvert(),
          "Max-loads of rows `first` to `last` of placements [K, n_ops], into `values` [K]; mode 0 is blocking, 1 "
          "overlap, 2 duplex.");
    m.def("pipeline_loads", &pipeline_loads, "problem"_a, "device"_a.noconvert(),
          "Seconds of compute, sends and receives per location [n_devices + 1], and of traffic per wire.");
}

}  // namespace placewise

#include "common/ndarrays.hpp"
#include "features/graph_walks.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

auto dimensions(const In<std::int64_t>& offsets, const In<std::int32_t>& targets, Index reach) {
    require(offsets.shape(0) > 0, "offsets have another length than their rows");
    const Adjacency rows = neighbours(offsets, targets, static_cast<Index>(offsets.shape(0)) - 1);
    std::vector<double> slope;
    {
        nb::gil_scoped_release unlocked;
        Interrupt interrupt;
        slope = fractal_dimensions(rows, reach, interrupt);
    }
    return to_numpy(std::move(slope));
}

}  // namespace

void bind_features(nb::module_& m) {
    m.def("fractal_dimensions", &dimensions, "offsets"_a.noconvert(), "neighbours"_a.noconvert(), "reach"_a,
          "The slope [n] of log N(v, r) over log r, N the nodes within r edges of v, seen on walks of `reach` nodes.");
}

}  // namespace placewise

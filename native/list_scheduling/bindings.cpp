#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>

#include "common/ndarrays.hpp"
#include "judge/bindings.hpp"
#include "list_scheduling/earliest_schedule.hpp"
#include "list_scheduling/insertion_schedule.hpp"
#include "list_scheduling/sequential_fill.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

// The needs that Python handed over: columns that were checked once and are kept alive as long as they are.
class BoundGroupNeeds : public GroupNeeds {
public:
    BoundGroupNeeds(const In<bool, 2>& allowed, const In<std::int32_t>& reserved, const In<std::int64_t>& state,
                    const In<std::int64_t>& own, const In<std::int64_t>& storage_offsets,
                    const In<std::int32_t>& storages, const In<std::int64_t>& storage_bytes,
                    const In<std::int64_t>& capacity)
        : owners_(nb::make_tuple(allowed, reserved, state, own, storage_offsets, storages, storage_bytes, capacity)) {
        this->allowed = view(allowed);
        this->reserved = view(reserved);
        this->state = view(state);
        this->own = view(own);
        this->storages = ragged(storage_offsets, storages, n_groups());
        this->storage_bytes = view(storage_bytes);
        this->capacity = view(capacity);
        const auto groups = static_cast<std::size_t>(n_groups());
        require(this->reserved.size() == groups && this->state.size() == groups && this->own.size() == groups,
                "columns of groups differ in length");
        require(static_cast<Index>(this->capacity.size()) == n_devices(), "capacity is not one per device");
        require_bytes(this->state);
        require_bytes(this->own);
        require_bytes(this->storage_bytes);
        require(within(this->reserved, -1, n_devices()), "a place is reserved on no device");
        require(within(this->storages.values, 0, static_cast<Index>(this->storage_bytes.size())), "no such storage");
    }

private:
    nb::object owners_;  // the arrays behind the views
};

// What the constructors of list schedules read, checked.
ListProblem list_problem(const BoundProblem& problem, const BoundGroupNeeds& groups, const In<std::int32_t>& group,
                         const In<std::int64_t>& input_offsets, const In<std::int32_t>& input_tensors,
                         const In<std::int32_t>& rank, const In<std::int32_t>& by_rank) {
    require(groups.n_devices() == problem.n_devices(), "groups and problem have different devices");
    require(static_cast<Index>(group.shape(0)) == problem.n_ops() && within(view(group), 0, groups.n_groups()),
            "an op is in no group");
    problem.require_permutation(view(rank), view(by_rank));
    const Adjacency inputs = ragged(input_offsets, input_tensors, problem.n_ops());
    require(within(inputs.values, 0, problem.n_tensors()), "an op reads no tensor of this problem");
    for (Index op = 0; op < inputs.size(); ++op) {
        for (const std::int32_t tensor : inputs[op]) {
            const auto readers = problem.consumers[tensor];
            require(std::binary_search(readers.begin(), readers.end(), op), "inputs and consumers differ");
        }
    }
    return {problem, groups, view(group), inputs, view(rank), view(by_rank)};
}

TupleOf<Made<std::int32_t>, Index> schedule_earliest(const BoundProblem& problem, const BoundGroupNeeds& groups,
                                                     const In<std::int32_t>& group,
                                                     const In<std::int64_t>& input_offsets,
                                                     const In<std::int32_t>& input_tensors,
                                                     const In<std::int32_t>& rank, const In<std::int32_t>& by_rank,
                                                     std::optional<In<std::int32_t>> favourite_child, double weight,
                                                     double seconds, const StopFlag* stop) {
    const ListProblem list = list_problem(problem, groups, group, input_offsets, input_tensors, rank, by_rank);
    std::span<const std::int32_t> child;
    if (favourite_child) {
        child = view(*favourite_child);
        require(static_cast<Index>(child.size()) == problem.n_ops() && within(child, -1, problem.n_ops()),
                "a favourite child is no op");
    }
    Index placed = 0;
    std::vector<std::int32_t> device;
    {
        nb::gil_scoped_release unlocked;
        EarliestSchedule schedule(list, child, weight);
        Interrupt interrupt(seconds, stop);
        placed = schedule.run(interrupt);
        device = std::move(schedule.device());
    }
    return nb::make_tuple(to_numpy(std::move(device)), placed);
}

TupleOf<Made<std::int32_t>, Index> schedule_by_insertion(
    const BoundProblem& problem, const BoundGroupNeeds& groups, const In<std::int32_t>& group,
    const In<std::int64_t>& input_offsets, const In<std::int32_t>& input_tensors, const In<std::int32_t>& rank,
    const In<std::int32_t>& by_rank, const In<std::int32_t>& wanted, double seconds, const StopFlag* stop) {
    const ListProblem list = list_problem(problem, groups, group, input_offsets, input_tensors, rank, by_rank);
    require(static_cast<Index>(wanted.shape(0)) == problem.n_ops() && within(view(wanted), -1, problem.n_devices()),
            "an op wants no device of this problem");
    Index placed = 0;
    std::vector<std::int32_t> device;
    {
        nb::gil_scoped_release unlocked;
        InsertionSchedule schedule(list, view(wanted));
        Interrupt interrupt(seconds, stop);
        placed = schedule.run(interrupt);
        device = std::move(schedule.device());
    }
    return nb::make_tuple(to_numpy(std::move(device)), placed);
}

TupleOf<Made<std::int32_t>, Index> fill_in_order(const BoundGroupNeeds& groups, const In<double>& amount,
                                                 const In<std::int32_t>& devices, Index n_first, double share,
                                                 bool stages) {
    require(static_cast<Index>(amount.shape(0)) == groups.n_groups(), "amounts are not one per group");
    require(within(view(devices), 0, groups.n_devices()), "no such device");
    require(0 <= n_first && n_first <= static_cast<Index>(devices.shape(0)), "there are fewer devices");
    Index placed = 0;
    std::vector<std::int32_t> home;
    {
        nb::gil_scoped_release unlocked;
        SequentialFill fill(groups, view(amount), {view(devices), n_first, share, stages});
        placed = fill.run();
        home = std::move(fill.homes());
    }
    return nb::make_tuple(to_numpy(std::move(home)), placed);
}

}  // namespace

void bind_list_scheduling(nb::module_& m) {
    nb::class_<BoundGroupNeeds>(m, "GroupNeeds",
                                "What groups of ops need wherever they run, checked once and read in place: `allowed` "
                                "[n_groups, n_devices]; `reserved` [n_groups], the device where a place is reserved "
                                "or −1; bytes of `state` and of what no other group uses, `own`; storages by group; "
                                "bytes per storage; bytes of `capacity` per device.")
        .def(nb::init<const In<bool, 2>&, const In<std::int32_t>&, const In<std::int64_t>&, const In<std::int64_t>&,
                      const In<std::int64_t>&, const In<std::int32_t>&, const In<std::int64_t>&,
                      const In<std::int64_t>&>(),
             "allowed"_a.noconvert(), "reserved"_a.noconvert(), "state"_a.noconvert(), "own"_a.noconvert(),
             "storage_offsets"_a.noconvert(), "storages"_a.noconvert(), "storage_bytes"_a.noconvert(),
             "capacity"_a.noconvert());
    nb::class_<IdleIntervals>(m, "IdleIntervals", "When one resource is idle, remembering so many gaps.")
        .def(nb::init<std::size_t>(), "most_gaps"_a)
        .def("__len__", &IdleIntervals::size)
        .def("first_fit", &IdleIntervals::first_fit, "ready"_a, "seconds"_a,
             "The earliest time from `ready` on at which the resource is idle for so many seconds.")
        .def("book", &IdleIntervals::book, "begin"_a, "seconds"_a,
             "Take the time from `begin` on, which `first_fit` found.");
    m.def(
        "schedule_earliest", &schedule_earliest, "problem"_a, "groups"_a, "group"_a.noconvert(),
        "input_offsets"_a.noconvert(), "input_tensors"_a.noconvert(), "rank"_a.noconvert(), "by_rank"_a.noconvert(),
        "favourite_child"_a.noconvert().none(), "weight"_a, "seconds"_a = INFINITE_SECONDS, "stop"_a.none() = nullptr,
        "ETF or, with favourite children [n_ops], SCT: devices [n_ops], −1 for none, and how many ops have one, fewer "
        "than all if memory or time ran out; `weight` 1 goes by finish, 0 by start.");
    m.def("schedule_by_insertion", &schedule_by_insertion, "problem"_a, "groups"_a, "group"_a.noconvert(),
          "input_offsets"_a.noconvert(), "input_tensors"_a.noconvert(), "rank"_a.noconvert(), "by_rank"_a.noconvert(),
          "wanted"_a.noconvert(), "seconds"_a = INFINITE_SECONDS, "stop"_a.none() = nullptr,
          "HEFT or, with devices that are `wanted` [n_ops], CPOP: devices [n_ops], −1 for none, and how many ops have "
          "one, fewer than all if memory or time ran out.");
    m.def("fill_in_order", &fill_in_order, "groups"_a, "amount"_a.noconvert(), "devices"_a.noconvert(), "n_first"_a,
          "share"_a, "stages"_a,
          "m-TOPO: groups in order fill the first `n_first` of `devices` up to `share` each, then the others; the "
          "devices [n_groups], −1 for none, and how many groups have one.");
}

}  // namespace placewise

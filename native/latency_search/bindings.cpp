#include <nanobind/stl/optional.h>

#include <algorithm>
#include <limits>

#include "common/exclusive.hpp"
#include "common/ndarrays.hpp"
#include "judge/bindings.hpp"
#include "latency_search/latency_chain.hpp"
#include "latency_search/move_proposer.hpp"

namespace placewise {

using namespace nb::literals;

namespace {

constexpr double INF = std::numeric_limits<double>::infinity();
constexpr Index MAX_MOVES = Index{1} << 31, MAX_OPS = Index{1} << 60;  // of one run

// A move space whose arrays were checked once and are kept alive as long as it is.
class BoundMoveSpace : public MoveSpace {
public:
    BoundMoveSpace(const In<bool, 2>& allowed, const In<std::int32_t>& devices, const In<double>& capacity,
                   const In<std::int64_t>& state_bytes, const In<std::int64_t>& storage_bytes,
                   const In<std::int64_t>& storage_offsets, const In<std::int32_t>& storages,
                   const In<std::int64_t>& user_offsets, const In<std::int32_t>& users,
                   const In<std::int64_t>& neighbour_offsets, const In<std::int32_t>& neighbours)
        : owners_(nb::make_tuple(allowed, devices, capacity, state_bytes, storage_bytes, storage_offsets, storages,
                                 user_offsets, users, neighbour_offsets, neighbours)) {
        this->allowed = view(allowed);
        this->devices = view(devices);
        this->capacity = view(capacity);
        this->state_bytes = view(state_bytes);
        this->storage_bytes = view(storage_bytes);
        const auto n = static_cast<std::size_t>(n_blocks()), n_storages = this->storage_bytes.size();
        require(n < (1u << 30), "too many blocks");
        require(this->capacity.size() == static_cast<std::size_t>(n_devices()) && this->state_bytes.size() == n,
                "columns of devices or blocks differ in length");
        require(within(this->devices, 0, n_devices()) && (n == 0 || !this->devices.empty()),
                "the choices are no devices");
        this->storages = ragged(storage_offsets, storages, n_blocks());
        this->users = ragged(user_offsets, users, static_cast<Index>(n_storages));
        this->neighbours = ragged(neighbour_offsets, neighbours, n_blocks());
        require(within(this->storages.values, 0, static_cast<Index>(n_storages)), "a block uses no such storage");
        require(within(this->users.values, 0, n_blocks()), "a storage has no such user");
        require(within(this->neighbours.values, 0, n_blocks()), "a neighbour is no block");
        require_bytes(this->state_bytes);
        require_bytes(this->storage_bytes);
    }

    std::span<const std::int32_t> assignment(const In<std::int32_t>& device) const {
        const auto assigned = view(device);
        require(static_cast<Index>(assigned.size()) == n_blocks(), "an assignment has one device per block");
        require(within(assigned, 0, n_devices()), "an assignment names no device of this problem");
        return assigned;
    }

private:
    nb::object owners_;
};

ModelParts model_parts(const In<std::int32_t, 2>& part, const In<std::int64_t, 2>& offsets,
                       const In<std::int32_t, 2>& blocks, Index n_blocks) {
    const ModelParts parts{view(part), view(offsets), view(blocks)};
    require(parts.part.columns() == n_blocks && parts.blocks.columns() == n_blocks &&
                parts.blocks.rows() == parts.n_levels() && parts.offsets.rows() == parts.n_levels() &&
                (parts.n_levels() == 0 || parts.offsets.columns() > 0),
            "tables of model parts differ in shape");
    for (Index level = 0; level < parts.n_levels(); ++level) {
        require(within(std::span(parts.part.row(level)), -1, parts.offsets.columns() - 1), "no such model part");
        require(within(std::span(parts.blocks.row(level)), 0, n_blocks), "a model part has no such block");
        const auto offsets_of_level = parts.offsets.row(level);
        require(within(std::span(offsets_of_level), 0, n_blocks + 1), "offsets of model parts are out of range");
        for (std::size_t i = 1; i < offsets_of_level.size(); ++i) {
            require(offsets_of_level[i - 1] <= offsets_of_level[i], "offsets of model parts do not ascend");
        }
    }
    return parts;
}

SearchColumns search_columns(const BoundProblem& p, const MoveSpace& space, const In<std::int32_t>& priority,
                             const In<std::int32_t>& by_priority, const In<std::int32_t>& block,
                             const In<double>& least_seconds, const In<std::int64_t>& in_place_bytes,
                             const In<std::int64_t>& tensor_bytes, const In<bool>& is_host, const ModelParts& parts,
                             bool live, bool shaped) {
    SearchColumns c{view(priority),
                    view(by_priority),
                    view(block),
                    view(least_seconds),
                    view(in_place_bytes),
                    view(tensor_bytes),
                    view(is_host),
                    parts,
                    live,
                    shaped};
    const auto n = static_cast<std::size_t>(p.n_ops());
    require(p.n_ops() + p.n_tensors() < (Index{1} << 31), "too many ops and tensors");
    p.require_permutation(c.priority, c.by_priority);
    require(c.block.size() == n && c.least_seconds.size() == n && c.in_place_bytes.size() == n,
            "columns of ops differ in length");
    require(c.tensor_bytes.size() == static_cast<std::size_t>(p.n_tensors()), "columns of tensors differ in length");
    require(space.n_devices() == p.n_devices() && c.is_host.size() == static_cast<std::size_t>(p.n_devices()),
            "columns of devices differ in length");
    std::vector<char> has_op(space.n_blocks(), 0);
    require(within(c.block, 0, space.n_blocks()), "an op is in no block");
    for (const std::int32_t number : c.block) has_op[number] = 1;
    require(std::find(has_op.begin(), has_op.end(), 0) == has_op.end(), "a block has no op");
    return c;
}

// Keeps one problem, its move space, and the arrays behind its columns.
class BoundSearchProblem : public LatencySearchProblem {
public:
    BoundSearchProblem(const BoundProblem& problem, const BoundMoveSpace& space, const SearchColumns& columns,
                       nb::object owners)
        : LatencySearchProblem(problem, space, columns), blocks(space), owners_(std::move(owners)) {}

    const BoundMoveSpace& blocks;

private:
    nb::object owners_;
};

class BoundChain : public LatencyChain, private Exclusive {
public:
    BoundChain(const BoundSearchProblem& search, const In<std::int32_t>& device, std::uint64_t seed)
        : LatencyChain(search, search.blocks.assignment(device), seed), search_(search) {}

    void begin_at(const In<std::int32_t>& device) {
        const auto assigned = search_.blocks.assignment(device);
        const Turn turn(*this);
        begin(assigned);
    }

    template <class Work>
    auto run_unlocked(double seconds, const StopFlag* stop, Work work) {
        const Turn turn(*this);
        nb::gil_scoped_release unlocked;
        Interrupt interrupt(seconds, stop);
        return work(interrupt);
    }

    bool counts_activations() const { return search_.live; }
    std::span<const double> device_bytes(const In<double>& capacity) const {
        const auto bytes = view(capacity);
        require(static_cast<Index>(bytes.size()) == search_.n_devices(), "capacity is not one per device");
        return bytes;
    }

private:
    const BoundSearchProblem& search_;
};

class BoundProposer : public MoveProposer, private Exclusive {
public:
    BoundProposer(const BoundMoveSpace& space, const In<std::uint64_t>& seeds)
        : MoveProposer(space, view(seeds)), space_(space) {}

    auto propose_all(const In<std::int32_t, 2>& devices) {
        const auto rows = view(devices);
        require(rows.rows() == n_assignments() && rows.columns() == space_.n_blocks(),
                "assignments are not one per generator, with one device per block");
        for (Index k = 0; k < rows.rows(); ++k) {
            require(within(std::span(rows.row(k)), 0, space_.n_devices()),
                    "an assignment names no device of this problem");
        }
        Table<std::int32_t> candidates(rows.rows(), rows.columns());
        const Turn turn(*this);
        {
            nb::gil_scoped_release unlocked;
            Interrupt interrupt(INF, nullptr, 1);
            for (Index k = 0; k < rows.rows(); ++k) propose(k, rows.row(k), candidates.row(k), interrupt);
        }
        return to_numpy(std::move(candidates));
    }

private:
    const BoundMoveSpace& space_;
};

template <class T>
auto copied(std::span<const T> values) {
    return to_numpy(std::vector<T>(values.begin(), values.end()));
}

}  // namespace

void bind_latency_search(nb::module_& m) {
    constexpr auto array_policy = nb::rv_policy::automatic;  // properties return arrays of their own
    nb::class_<BoundMoveSpace>(m, "MoveSpace", "Blocks as moves see them, checked once and read in place.")
        .def(
            nb::init<const In<bool, 2>&, const In<std::int32_t>&, const In<double>&, const In<std::int64_t>&,
                     const In<std::int64_t>&, const In<std::int64_t>&, const In<std::int32_t>&, const In<std::int64_t>&,
                     const In<std::int32_t>&, const In<std::int64_t>&, const In<std::int32_t>&>(),
            nb::kw_only(), "allowed"_a.noconvert(), "devices"_a.noconvert(), "capacity"_a.noconvert(),
            "state_bytes"_a.noconvert(), "storage_bytes"_a.noconvert(), "storage_offsets"_a.noconvert(),
            "storages"_a.noconvert(), "user_offsets"_a.noconvert(), "users"_a.noconvert(),
            "neighbour_offsets"_a.noconvert(), "neighbours"_a.noconvert(),
            "allowed [n_blocks, n_devices]; the devices worth choosing; bytes of devices, blocks and storages; CSR "
            "rows: the storages of blocks, the users of storages, the neighbours of blocks.")
        .def_prop_ro("n_blocks", &BoundMoveSpace::n_blocks)
        .def_prop_ro("n_devices", &BoundMoveSpace::n_devices);

    nb::class_<BoundProposer>(m, "MoveProposer", "Random neighbours of assignments that somebody else prices.")
        .def(nb::init<const BoundMoveSpace&, const In<std::uint64_t>&>(), nb::keep_alive<1, 2>(), "space"_a,
             "seeds"_a.noconvert(), "One random generator per assignment.")
        .def("propose", &BoundProposer::propose_all, "devices"_a.noconvert(),
             "A neighbour of each of the assignments [K, n_blocks], one per seed; the same where none that fits was "
             "found.");

    nb::class_<BoundSearchProblem>(m, "LatencySearchProblem", "What all chains of a latency search share.")
        .def(
            "__init__",
            [](BoundSearchProblem* self, const BoundProblem& problem, const BoundMoveSpace& space,
               const In<std::int32_t>& priority, const In<std::int32_t>& by_priority, const In<std::int32_t>& block,
               const In<double>& least_seconds, const In<std::int64_t>& in_place_bytes,
               const In<std::int64_t>& tensor_bytes, const In<bool>& is_host, const In<std::int32_t, 2>& part,
               const In<std::int64_t, 2>& part_offsets, const In<std::int32_t, 2>& part_blocks, bool live,
               bool shaped) {
                const ModelParts parts = model_parts(part, part_offsets, part_blocks, space.n_blocks());
                const auto columns = search_columns(problem, space, priority, by_priority, block, least_seconds,
                                                    in_place_bytes, tensor_bytes, is_host, parts, live, shaped);
                nb::object owners = nb::make_tuple(priority, by_priority, block, least_seconds, in_place_bytes,
                                                   tensor_bytes, is_host, part, part_offsets, part_blocks);
                new (self) BoundSearchProblem(problem, space, columns, std::move(owners));
            },
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), "problem"_a, "space"_a, nb::kw_only(),
            "priority"_a.noconvert(), "by_priority"_a.noconvert(), "block"_a.noconvert(), "least_seconds"_a.noconvert(),
            "in_place_bytes"_a.noconvert(), "tensor_bytes"_a.noconvert(), "is_host"_a.noconvert(), "part"_a.noconvert(),
            "part_offsets"_a.noconvert(), "part_blocks"_a.noconvert(), "live"_a, "shaped"_a,
            "Columns of ops, tensors and devices, and parts of the model on several levels; see "
            "placewise.placers.local_search.latency_chains.ScopeLevels.")
        .def_prop_ro("activation_bytes", &BoundSearchProblem::activation_bytes, "Bytes of all tensors.");

    nb::class_<BoundChain>(m, "LatencyChain",
                           "One chain of moves; chains of one problem may run side by side on threads.")
        .def(nb::init<const BoundSearchProblem&, const In<std::int32_t>&, std::uint64_t>(), nb::keep_alive<1, 2>(),
             "search"_a, "assignment"_a.noconvert(), "seed"_a,
             "A chain at an assignment [n_blocks]; it has no value before it has run.")
        .def("begin", &BoundChain::begin_at, "assignment"_a.noconvert(), "Go on from another assignment [n_blocks].")
        .def(
            "run",
            [](BoundChain& chain, Index moves, Index ops, double seconds, const StopFlag* stop) {
                require(0 <= moves && moves <= MAX_MOVES && 0 <= ops && ops <= MAX_OPS,
                        "no such number of moves or ops");
                return chain.run_unlocked(seconds, stop, [&](Interrupt& i) { return chain.run(moves, ops, i); });
            },
            "moves"_a, "ops"_a = MAX_OPS, "seconds"_a = INF, "stop"_a.none() = nb::none(),
            "Make so many moves, or until so many ops are simulated; True if a candidate awaits a verdict.")
        .def(
            "resolve",
            [](BoundChain& chain, bool valid, double seconds, const StopFlag* stop) {
                return chain.run_unlocked(seconds, stop, [&](Interrupt& i) { return chain.resolve(valid, i); });
            },
            "valid"_a, "seconds"_a = INF, "stop"_a.none() = nb::none(),
            "Take or drop the candidate that awaits a verdict on the shape of its stages, and go on as `run` does.")
        .def_rw("temperature", &BoundChain::temperature, "Seconds.")
        .def_prop_ro("value", &BoundChain::value, "The makespan of the assignment, inf before the first run.")
        .def_prop_ro("candidate_value", &BoundChain::candidate_value, "What the last candidate was priced at.")
        .def_prop_ro("best_value", &BoundChain::best_value)
        .def_prop_ro("awaits_verdict", &BoundChain::awaits_verdict)
        .def_prop_ro("n_tried", &BoundChain::n_tried, "Moves so far.")
        .def_prop_ro("n_simulated", &BoundChain::n_simulated, "Ops simulated so far.")
        .def_prop_ro("n_checkpoints", &BoundChain::n_checkpoints)
        .def_prop_ro("checkpoint", &BoundChain::checkpoint,
                     "From which the last candidate was priced, −1: from time 0.")
        .def_prop_ro(
            "best", [](const BoundChain& chain) { return copied(chain.best()); }, array_policy, "[n_blocks]")
        .def_prop_ro(
            "assignment", [](const BoundChain& chain) { return copied(chain.assignment().device()); }, array_policy,
            "[n_blocks], with the moves of a candidate that awaits a verdict.")
        .def_prop_ro(
            "used_bytes", [](const BoundChain& chain) { return copied(chain.assignment().used_bytes()); }, array_policy,
            "Resident bytes [n_devices].")
        .def_prop_ro(
            "start",
            [](const BoundChain& chain) { return copied(std::span<const double>(chain.schedule().recorded().start)); },
            array_policy, "When ops start [n_ops] in the recorded schedule.")
        .def_prop_ro(
            "critical_path", [](const BoundChain& chain) { return copied(chain.schedule().critical_path()); },
            array_policy, "Ops that each waited for the next, from the end of the recorded schedule on.")
        .def(
            "price",
            [](BoundChain& chain, Index checkpoint, double limit) {
                require(-1 <= checkpoint && checkpoint < chain.n_checkpoints(), "no such checkpoint");
                return chain.run_unlocked(INF, nullptr,
                                          [&](Interrupt& i) { return chain.price(checkpoint, limit, i); });
            },
            "checkpoint"_a = -1, "limit"_a = INF,
            "The makespan of the assignment, simulated from a checkpoint on; inf if it is above the limit.")
        .def(
            "fits",
            [](BoundChain& chain, const In<double>& capacity, bool priced) {
                require(chain.counts_activations(), "activations do not count in this problem");
                return chain.run_unlocked(INF, nullptr, [&, bytes = chain.device_bytes(capacity)](Interrupt&) {
                    return chain.fits(bytes, priced);
                });
            },
            "capacity"_a.noconvert(), "priced"_a = false,
            "Whether resident bytes and live activations fit [n_devices] bytes, under the schedule that was recorded "
            "or priced last; for problems where activations count.");
}

}  // namespace placewise

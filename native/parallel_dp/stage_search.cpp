#include "parallel_dp/stage_search.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

namespace placewise {

namespace {

constexpr double INF = std::numeric_limits<double>::infinity();
// Sums of differences are a little off; what they rule out must be off by more.
constexpr double ROUNDING = 1e-9;

}  // namespace

std::size_t StageSearch::KeyHash::operator()(const Key& key) const {
    std::uint64_t hash = 0;
    for (const std::int32_t part : {key.ideal, key.before, key.choice, key.in_flight, key.replicas}) {
        hash = (hash ^ static_cast<std::uint32_t>(part)) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    return hash;
}

StageSearch::StageSearch(StageProblem problem, const Ideals& ideals, Interrupt& interrupt)
    : problem_(std::move(problem)), ideals_(ideals) {
    const Index width = std::max<Index>(1, (problem_.n_units + 63) / 64);
    words_.assign(ideals_.size(), std::vector<std::uint64_t>(width, 0));
    const auto n_units = static_cast<std::uint32_t>(problem_.n_units);
    for (Index ideal = 0; ideal < ideals_.size() && !interrupt.stop(n_units); ++ideal) {
        for (Index unit = 0; unit < problem_.n_units; ++unit) {
            if (ideals_.holds(ideal, unit)) words_[ideal][unit >> 6] |= std::uint64_t{1} << (unit & 63);
        }
    }
    for (const DeviceClass& kind : problem_.classes) {
        price_.push_back(kind.price);
        room_ += kind.price * kind.count;
    }
    list_tensors();
    sum_over_ideals(interrupt);
}

bool StageSearch::contains(Index ideal, Index subset) const {
    const auto &whole = words_[ideal], &part = words_[subset];
    std::uint64_t outside = 0;
    for (std::size_t w = 0; w < whole.size(); ++w) outside |= part[w] & ~whole[w];
    return outside == 0;
}

// Sums over the units of every ideal, so that those of a stage are differences.
void StageSearch::sum_over_ideals(Interrupt& interrupt) {
    const Index n = problem_.n_units, n_ideals = ideals_.size();
    const auto add_up = [&](const std::vector<double>& amount) {
        std::vector<double> sums(n_ideals, 0.0);
        for (Index ideal = 0; ideal < n_ideals && !interrupt.stop(static_cast<std::uint32_t>(n)); ++ideal) {
            for (Index unit = 0; unit < n; ++unit) sums[ideal] += ideals_.holds(ideal, unit) ? amount[unit] : 0.0;
        }
        return sums;
    };
    std::vector<std::int32_t> degrees(problem_.degree.begin(), problem_.degree.end());
    std::ranges::sort(degrees);
    degrees.erase(std::unique(degrees.begin(), degrees.end()), degrees.end());
    std::vector<double> least_work(n, INF), least_seconds(n, INF);
    for (std::int32_t c = 0; c < static_cast<std::int32_t>(problem_.n_classes()); ++c) {
        const DeviceClass& kind = problem_.classes[c];
        for (std::size_t k = 0; k < degrees.size(); ++k) {
            const std::int32_t degree = degrees[k];
            if (degree > kind.node_size || degree > kind.count) continue;
            if (interrupt.look()) return;
            std::vector<double> seconds(n, INF), in_flight(n, INF), fixed(n, INF), missing(n, 1.0), exchanged(n, 0.0);
            for (Index unit = 0; unit < n; ++unit) {
                double gradients = -1.0;
                for (Index way = problem_.way_offsets[unit]; way < problem_.way_offsets[unit + 1]; ++way) {
                    if (problem_.degree[way] != degree || !std::isfinite(problem_.seconds(way, c))) continue;
                    seconds[unit] = std::min(seconds[unit], problem_.seconds(way, c));
                    in_flight[unit] = std::min(in_flight[unit], problem_.bytes_in_flight[way]);
                    fixed[unit] = std::min(fixed[unit], problem_.bytes_fixed[way]);
                    missing[unit] = 0.0;
                    gradients_vary_ |= gradients >= 0.0 && gradients != problem_.gradient_bytes[way];
                    gradients = exchanged[unit] = problem_.gradient_bytes[way];
                }
                least_work[unit] = std::min(least_work[unit], kind.price * degree * seconds[unit]);
                least_seconds[unit] = std::min(least_seconds[unit], seconds[unit]);
                if (missing[unit] > 0.0) seconds[unit] = in_flight[unit] = fixed[unit] = 0.0;
            }
            const std::vector<double> absent = add_up(missing);
            Choice& choice = choices_.emplace_back();
            choice.device_class = c;
            choice.degree = degree;
            choice.capacity = kind.capacity - problem_.workspace[k];
            choice.seconds = add_up(seconds);
            choice.in_flight = add_up(in_flight);
            choice.fixed = add_up(fixed);
            choice.gradients = add_up(exchanged);
            choice.missing = {absent.begin(), absent.end()};
            list_ways(choice);
        }
    }
    work_ = add_up(least_work);
    fastest_ = add_up(least_seconds);
}

std::int32_t StageSearch::count_in_flight(std::int32_t later, std::int32_t replicas) const {
    switch (problem_.in_flight) {
        case InFlight::ONE:
            return 1;
        case InFlight::ONE_F_ONE_B:
            return 1 + (later + replicas - 1) / replicas;
        case InFlight::ALL:
            return static_cast<std::int32_t>(std::ceil(problem_.microbatches / replicas));
    }
    return 1;
}

double StageSearch::gradient_seconds(const Choice& choice, double bytes, std::int32_t replicas) const {
    if (replicas == 1 || problem_.gradient_factor == 0.0) return 0.0;
    const double share = (replicas - 1.0) / replicas;
    const double bandwidth = gradient_route(choice, replicas).bandwidth;
    return problem_.gradient_factor * share * bytes / bandwidth / problem_.microbatches;
}

double StageSearch::gradient_latency(const Choice& choice, std::int32_t replicas) const {
    if (replicas == 1 || problem_.gradient_factor == 0.0) return 0.0;
    return 2.0 * (replicas - 1.0) * gradient_route(choice, replicas).latency / problem_.microbatches;
}

const Route& StageSearch::gradient_route(const Choice& choice, std::int32_t replicas) const {
    const DeviceClass& kind = problem_.classes[choice.device_class];
    return choice.degree * replicas <= kind.node_size ? kind.inside : kind.across;
}

// The ways of each unit for one degree that a class of devices can run, and which units have equal ones.
void StageSearch::list_ways(Choice& choice) {
    std::map<std::vector<std::array<double, 4>>, std::int32_t> kinds;
    choice.ways.resize(problem_.n_units);
    for (Index unit = 0; unit < problem_.n_units; ++unit) {
        std::vector<std::array<double, 4>> costs;
        for (Index way = problem_.way_offsets[unit]; way < problem_.way_offsets[unit + 1]; ++way) {
            const double seconds = problem_.seconds(way, choice.device_class);
            if (problem_.degree[way] != choice.degree || !std::isfinite(seconds)) continue;
            choice.ways[unit].push_back({seconds, problem_.bytes_in_flight[way], problem_.bytes_fixed[way],
                                         problem_.gradient_bytes[way], static_cast<std::int32_t>(way)});
            costs.push_back(
                {seconds, problem_.bytes_in_flight[way], problem_.bytes_fixed[way], problem_.gradient_bytes[way]});
        }
        choice.kind.push_back(kinds.emplace(costs, static_cast<std::int32_t>(kinds.size())).first->second);
    }
}

void StageSearch::list_tensors() {
    made_.resize(problem_.n_units);
    read_.resize(problem_.n_units);
    border_.resize(problem_.n_units);
    arrived_.assign(problem_.n_tensors(), -1);
    for (std::int32_t tensor = 0; tensor < static_cast<std::int32_t>(problem_.n_tensors()); ++tensor) {
        made_[problem_.tensor_unit[tensor]].push_back(tensor);
        for (const std::int32_t reader : problem_.readers[tensor]) {
            if (read_[reader].empty() || read_[reader].back() != tensor) read_[reader].push_back(tensor);
        }
    }
}

double StageSearch::find_border(Index ideal, Index before, const Choice& choice) {
    const Route& route = problem_.classes[choice.device_class].boundary;
    const auto& whole = words_[ideal];
    const auto& part = words_[before];
    const auto holds = [](const std::vector<std::uint64_t>& words, Index unit) {
        return (words[unit >> 6] >> (unit & 63) & 1) != 0;
    };
    members_.clear();
    for (std::size_t w = 0; w < whole.size(); ++w) {
        for (std::uint64_t left = whole[w] & ~part[w]; left != 0; left &= left - 1) {
            members_.push_back(static_cast<std::int32_t>(64 * w + std::countr_zero(left)));
        }
    }
    double boundary = 0.0;
    ++n_borders_;
    for (const std::int32_t unit : members_) {
        border_[unit].clear();
        for (const std::int32_t tensor : read_[unit]) {
            if (!holds(part, problem_.tensor_unit[tensor])) continue;  // all that came before is outside
            if (arrived_[tensor] != n_borders_) boundary += route.seconds(problem_.tensor_bytes[tensor]);
            arrived_[tensor] = n_borders_;
            border_[unit].push_back(tensor);
        }
        if (!problem_.charges_sender) continue;
        for (const std::int32_t tensor : made_[unit]) {
            const auto readers = problem_.readers[tensor];
            if (std::ranges::none_of(readers, [&](std::int32_t reader) { return !holds(whole, reader); })) continue;
            boundary += route.seconds(problem_.tensor_bytes[tensor]);
            border_[unit].push_back(tensor);
        }
    }
    return problem_.passes * boundary;
}

void StageSearch::prepare(const Choice& choice, std::int32_t in_flight, std::int32_t replicas) {
    const DeviceClass& kind = problem_.classes[choice.device_class];
    way_choice_.start(choice.capacity);
    for (const std::int32_t unit : members_) {
        options_.clear();
        double gathered = 0.0;
        for (const WayCost& way : choice.ways[unit]) {
            double bytes = 0.0;
            for (const std::int32_t tensor : border_[unit]) bytes += problem_.sync_bytes(way.way, tensor);
            gathered = std::max(gathered, bytes);
            const double seconds = way.seconds + problem_.passes * bytes / kind.boundary.bandwidth +
                                   replicas * gradient_seconds(choice, way.gradients, replicas);
            options_.push_back({seconds, way.in_flight * in_flight + way.fixed, way.way});
        }
        way_choice_.add_unit(gathered > 0.0 ? -1 : choice.kind[unit], options_);
    }
}

// The least seconds per micro-batch of a stage whose bytes fit.
double StageSearch::stage_seconds(Index ideal, Index before, std::int32_t choice, std::int32_t in_flight,
                                  std::int32_t replicas) {
    // Where all ways of a unit and degree exchange equal gradients, the choice of ways does not depend on the replicas.
    const std::int32_t variant = gradients_vary_ ? replicas : 1;
    const Key key{static_cast<std::int32_t>(ideal), static_cast<std::int32_t>(before), choice, in_flight, variant};
    auto at = known_.find(key);
    if (at == known_.end()) {
        const double boundary = find_border(ideal, before, choices_[choice]);
        prepare(choices_[choice], in_flight, variant);
        const double seconds = boundary + way_choice_.least_seconds();
        relaxed_ |= way_choice_.relaxed();
        at = known_.emplace(key, seconds).first;
    }
    const Choice& taken = choices_[choice];
    const double seconds = at->second / replicas + gradient_latency(taken, replicas);
    if (variant == replicas) return seconds;
    return seconds + gradient_seconds(taken, taken.gradients[ideal] - taken.gradients[before], replicas);
}

// Whether a label is no worse than another in devices, replicas and seconds.
bool StageSearch::no_worse(const Label& label, const Label& other) const {
    if (label.replicas > other.replicas || label.seconds > other.seconds) return false;
    for (Index c = 0; c < problem_.n_classes(); ++c) {
        if (label.used[c] > other.used[c]) return false;
    }
    return true;
}

bool StageSearch::beaten(const std::vector<Label>& labels, const Label& label) const {
    return std::ranges::any_of(labels, [&](const Label& other) { return no_worse(other, label); });
}

// Add a label unless another is no worse; those that are no better than it go.
void StageSearch::add(std::vector<Label>& labels, const Label& label) const {
    if (beaten(labels, label)) return;
    std::erase_if(labels, [&](const Label& other) { return no_worse(label, other); });
    labels.push_back(label);
}

// Whether the devices that are left can run the units that are left within the limit.
bool StageSearch::worth(const Label& label, Index ideal, double limit) const {
    double room = 0.0;
    for (Index c = 0; c < problem_.n_classes(); ++c) {
        room += price_[c] * (problem_.classes[c].count - label.used[c]);
    }
    return work_[ideal] <= limit * room * (1 + ROUNDING) + ROUNDING * work_.back();
}

void StageSearch::trace(const Label& last, bool sums) {
    stages_.clear();
    found_value_ = 0.0;
    Index before = 0;
    for (const Label* label = &last; label->before >= 0;) {
        const Label& later = labels_[label->before_ideal][label->before];
        const Choice& choice = choices_[label->choice];
        const std::int32_t held = sums ? 1 : count_in_flight(later.replicas, label->own_replicas);
        stages_.push_back({label->before_ideal, before, choice.device_class, choice.degree, label->own_replicas, held});
        const double seconds = stage_seconds(label->before_ideal, before, label->choice, held, label->own_replicas);
        found_value_ = sums ? found_value_ + seconds : std::max(found_value_, seconds);
        before = label->before_ideal;
        label = &later;
    }
}

StageSearch::Outcome StageSearch::within(double limit, Interrupt& interrupt) {
    return expand(limit, false, interrupt);
}

StageSearch::Outcome StageSearch::least_sum(double limit, Interrupt& interrupt) {
    return expand(limit, true, interrupt);
}

// From the whole graph down to nothing: what an ideal leaves out has its stages already.
StageSearch::Outcome StageSearch::expand(double limit, bool sums, Interrupt& interrupt) {
    labels_.assign(ideals_.size(), {});
    labels_.back().push_back({{}, 0, 0.0, -1, -1, -1, 0});
    const auto replicas = problem_.replicas;
    double best = limit;
    for (Index ideal = ideals_.size() - 1; ideal > 0; --ideal) {
        const std::vector<Label>& labels = labels_[ideal];
        if (labels.empty()) continue;
        for (Index before = ideal - 1; before >= 0; --before) {
            if (interrupt.stop(1)) return Outcome::STOPPED;
            if (!contains(ideal, before)) continue;
            for (std::int32_t at = 0; at < static_cast<std::int32_t>(choices_.size()); ++at) {
                const Choice& choice = choices_[at];
                if (choice.missing[ideal] != choice.missing[before] || choice.capacity < 0.0) continue;
                const DeviceClass& kind = problem_.classes[choice.device_class];
                const double seconds = choice.seconds[ideal] - choice.seconds[before];
                const double slack = ROUNDING * choice.seconds.back();
                const double in_flight = choice.in_flight[ideal] - choice.in_flight[before];
                const double fixed = choice.fixed[ideal] - choice.fixed[before];
                const double least_held = in_flight + fixed;
                if (least_held > choice.capacity + ROUNDING * (choice.in_flight.back() + choice.fixed.back())) continue;
                for (std::int32_t l = 0; l < static_cast<std::int32_t>(labels.size()); ++l) {
                    for (const std::int32_t d : replicas) {
                        if (sums && d > 1) break;
                        Label grown = labels[l];
                        grown.used[choice.device_class] += d * choice.degree;
                        grown.replicas += sums ? 0 : d;
                        if (grown.used[choice.device_class] > kind.count) break;
                        if (!sums && grown.replicas > problem_.microbatches) break;
                        const double least = (seconds - slack) / d;
                        if (sums ? grown.seconds + least + fastest_[before] > best : least > limit) {
                            if (sums) break;
                            continue;
                        }
                        if (!sums && !worth(grown, before, limit)) break;
                        if (!sums && beaten(labels_[before], grown)) break;
                        const std::int32_t held = sums ? 1 : count_in_flight(labels[l].replicas, d);
                        if (in_flight * held + fixed >
                            choice.capacity + ROUNDING * (held * choice.in_flight.back() + choice.fixed.back())) {
                            continue;
                        }
                        interrupt.stop(16);
                        const double exact = stage_seconds(ideal, before, at, held, d);
                        if (sums ? !(grown.seconds + exact < best) : exact > limit) {
                            if (sums) break;
                            continue;
                        }
                        if (sums) grown.seconds += exact;
                        if (sums && before == 0) best = grown.seconds;
                        grown.before = l;
                        grown.before_ideal = static_cast<std::int32_t>(ideal);
                        grown.choice = at;
                        grown.own_replicas = d;
                        add(labels_[before], grown);
                        break;  // more replicas take more devices, and let more micro-batches wait
                    }
                }
            }
        }
    }
    if (labels_.front().empty()) return Outcome::NONE;
    trace(*std::ranges::min_element(labels_.front(), {},
                                    [&](const Label& label) {
                                        double cost = sums ? label.seconds : 0.0;
                                        for (Index c = 0; c < problem_.n_classes(); ++c)
                                            cost += sums ? 0.0 : price_[c] * label.used[c];
                                        return cost;
                                    }),
          sums);
    return Outcome::FOUND;
}

std::vector<std::int32_t> StageSearch::choose_ways() {
    std::vector<std::int32_t> chosen(problem_.n_units, -1);
    for (const Stage& stage : stages_) {
        const auto choice = std::ranges::find_if(choices_, [&](const Choice& c) {
            return c.device_class == stage.device_class && c.degree == stage.degree;
        });
        find_border(stage.ideal, stage.before, *choice);
        prepare(*choice, stage.in_flight, stage.replicas);
        const std::vector<std::int32_t> ways = way_choice_.choose();
        if (ways.empty()) return {};
        for (std::size_t i = 0; i < members_.size(); ++i) chosen[members_[i]] = ways[i];
    }
    return chosen;
}

}  // namespace placewise

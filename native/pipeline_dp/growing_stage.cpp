#include "pipeline_dp/growing_stage.hpp"

#include <algorithm>

namespace placewise {

GrowingStage::GrowingStage(const StageCosts& costs)
    : costs_(costs),
      where_(costs.n()),
      tensors_(costs.n_tensors()),
      prices_(costs.n_tensors(), costs.n_rates()),
      holders_inside_(costs.storage_bytes.size()),
      seconds_(costs.n() + 1, costs.seconds.columns()),
      footprint_(costs.n() + 1),
      transfers_(costs.n() + 1, costs.n_rates()) {
    for (Index t = 0; t < costs.n_tensors(); ++t) {
        tensors_[t] = {costs.producer[t], costs.readers[t], 0, costs.output[t], costs.mirrored[t]};
        for (Index r = 0; r < costs.n_rates(); ++r) prices_(t, r) = {costs.enter(t, r), costs.leave(t, r)};
    }
}

void GrowingStage::begin(const Ideals& ideals, Index ideal) {
    depth_ = 0;
    for (Index component = 0; component < costs_.n(); ++component) {
        where_[component] = ideals.holds(ideal, component) ? Where::before : Where::behind;
    }
}

void GrowingStage::preview(Index component) {
    footprint_[depth_ + 1] = {footprint_[depth_].size + costs_.size[component],
                              footprint_[depth_].weight + costs_.weight[component]};
    const auto now = seconds_.row(depth_), next = seconds_.row(depth_ + 1);
    const auto own = costs_.seconds.row(component);
    for (std::size_t k = 0; k < own.size(); ++k) next[k] = std::min(now[k] + own[k], NEVER);
}

void GrowingStage::add(Index component) {
    const auto sums = transfers_.row(depth_ + 1);
    std::ranges::copy(transfers_.row(depth_), sums.begin());
    where_[component] = Where::inside;
    for (const std::int32_t tensor : costs_.uses[component]) receive(tensor, sums);
    for (const std::int32_t tensor : costs_.makes[component]) send(tensor, sums);
    for (const std::int32_t storage : costs_.storages[component]) {
        if (++holders_inside_[storage] > 1) continue;
        footprint_[depth_ + 1].size += costs_.storage_bytes[storage];
        footprint_[depth_ + 1].weight += costs_.storage_bytes[storage];
    }
    ++depth_;
}

// One more component of the stage reads a tensor.
void GrowingStage::receive(Index index, std::span<Transfers> sums) {
    Tensor& tensor = tensors_[index];
    const auto prices = prices_.row(index);
    const Where maker = tensor.producer < 0 ? Where::before : where_[tensor.producer];
    ++tensor.readers_inside;
    if (maker == Where::inside) {
        if (tensor.readers_inside < tensor.readers) return;
        for (std::size_t r = 0; r < sums.size(); ++r) sums[r].leave -= prices[r].leave;
    } else if (tensor.readers_inside == 1) {
        for (std::size_t r = 0; r < sums.size(); ++r) {
            sums[r].enter += prices[r].enter;
            if (maker == Where::before) sums[r].enter_always += prices[r].enter;
        }
    }
}

// The component that makes a tensor joins the stage.
void GrowingStage::send(Index index, std::span<Transfers> sums) {
    const Tensor& tensor = tensors_[index];
    const auto prices = prices_.row(index);
    bool always = tensor.output;
    if (tensor.mirrored) {
        for (const std::int32_t reader : costs_.consumers[index]) always |= where_[reader] == Where::before;
    }
    for (std::size_t r = 0; r < sums.size(); ++r) {
        if (tensor.readers_inside > 0) sums[r].enter -= prices[r].enter;
        if (tensor.readers_inside < tensor.readers) sums[r].leave += prices[r].leave;
        if (always) sums[r].leave_always += prices[r].leave;
    }
}

void GrowingStage::remove(Index component) {
    --depth_;
    where_[component] = Where::behind;
    for (const std::int32_t tensor : costs_.uses[component]) --tensors_[tensor].readers_inside;
    for (const std::int32_t storage : costs_.storages[component]) --holders_inside_[storage];
}

}  // namespace placewise

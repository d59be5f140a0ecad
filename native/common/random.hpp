// The one random generator of all kernels: splitmix64 (Steele, Lea and Flood, OOPSLA 2014), one word of state.
#pragma once

#include <cassert>
#include <cstdint>

namespace placewise {

class SplitMix64 {
public:
    explicit SplitMix64(std::uint64_t seed = 0) : state_(seed) {}

    std::uint64_t bits() {
        state_ += 0x9E3779B97F4A7C15u;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }

    // A whole number from 0 to below n, 0 < n < 2^31.
    std::int64_t below(std::int64_t n) {
        assert(0 < n && n < (std::int64_t{1} << 31));
        return static_cast<std::int64_t>(((bits() >> 33) * static_cast<std::uint64_t>(n)) >> 31);
    }

    // A number from 0 to below 1.
    double uniform() { return static_cast<double>(bits() >> 11) * (1.0 / (std::uint64_t{1} << 53)); }

    std::uint64_t state() const { return state_; }

private:
    std::uint64_t state_;
};

}  // namespace placewise

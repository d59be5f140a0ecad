// How long kernels end in time: a deadline, a flag that another thread sets, and Ctrl-C.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>

namespace placewise {

// Set by one thread, seen by kernels in others.
class StopFlag {
public:
    void set() { set_.store(true, std::memory_order_relaxed); }
    void clear() { set_.store(false, std::memory_order_relaxed); }
    bool is_set() const { return set_.load(std::memory_order_relaxed); }

private:
    std::atomic<bool> set_{false};
};

// Called about every LISTEN_SECONDS by long kernels; throws where Python has a signal to handle.
using SignalCheck = void (*)();
inline SignalCheck& signal_check() {
    static SignalCheck check = nullptr;
    return check;
}

// Asked in the inner loop of a long kernel whether it shall end. It looks at the clock once in `stride` questions; one
// before a longer step counts as several, `work`.
class Interrupt {
public:
    static constexpr double LISTEN_SECONDS = 0.02;

    explicit Interrupt(double seconds = INFINITY, const StopFlag* flag = nullptr, std::uint32_t stride = 256)
        : begun_(Clock::now()),
          listened_(begun_),
          seconds_(std::isnan(seconds) ? 0.0 : seconds),
          flag_(flag),
          stride_(stride) {}

    bool stop(std::uint32_t work = 1) {
        if (stopped_ || (asked_ += work) < stride_) return stopped_;
        asked_ = 0;
        return look();
    }

    // Look at once: the deadline, the flag, and Python's signals.
    bool look() {
        const auto now = Clock::now();
        if (flag_ != nullptr && flag_->is_set()) stopped_ = true;
        if (std::chrono::duration<double>(now - begun_).count() >= seconds_) stopped_ = true;
        if (std::chrono::duration<double>(now - listened_).count() >= LISTEN_SECONDS) {
            listened_ = now;
            if (signal_check() != nullptr) signal_check()();
        }
        return stopped_;
    }

    bool stopped() const { return stopped_; }

private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point begun_;
    Clock::time_point listened_;
    double seconds_;
    const StopFlag* flag_;
    std::uint32_t stride_;
    std::uint32_t asked_ = 0;
    bool stopped_ = false;
};

}  // namespace placewise

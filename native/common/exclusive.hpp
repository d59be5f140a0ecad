// One thread at a time: for objects whose work goes on without the interpreter lock.
#pragma once

#include <atomic>

#include "common/errors.hpp"

namespace placewise {

class Exclusive {
public:
    class Turn {
    public:
        explicit Turn(Exclusive& object, const char* message = "two threads use one search at a time")
            : object_(object) {
            require(!object.taken_.exchange(true, std::memory_order_acquire), message);
        }
        ~Turn() { object_.taken_.store(false, std::memory_order_release); }
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;

    private:
        Exclusive& object_;
    };

private:
    std::atomic<bool> taken_{false};
};

// What `work` gives of an object that no other thread uses meanwhile.
template <class Object, class Work>
auto alone(Object& object, Work work) {
    const Exclusive::Turn turn(object);
    return work();
}

}  // namespace placewise

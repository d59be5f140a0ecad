// What kernels raise: Python sees placewise.errors.InternalError.
#pragma once

#include <stdexcept>
#include <string>

namespace placewise {

// A kernel was handed columns that do not belong together.
class InvalidInput : public std::invalid_argument {
public:
    using std::invalid_argument::invalid_argument;
};

inline void require(bool condition, const char* message) {
    if (!condition) throw InvalidInput(message);
}

}  // namespace placewise

#include "common/ndarrays.hpp"

namespace placewise {

void bind_bounds(nb::module_&) {}

}  // namespace placewise

#include "common/ndarrays.hpp"

namespace placewise {

void bind_partitioning(nb::module_&) {}

}  // namespace placewise

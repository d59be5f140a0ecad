#include "common/ndarrays.hpp"

namespace placewise {

void bind_latency_search(nb::module_&) {}

}  // namespace placewise

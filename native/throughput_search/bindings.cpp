#include "common/ndarrays.hpp"

namespace placewise {

void bind_throughput_search(nb::module_&) {}

}  // namespace placewise

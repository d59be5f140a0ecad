#include "common/ndarrays.hpp"

namespace placewise {

void bind_coarsening(nb::module_&) {}

}  // namespace placewise

#include "common/ndarrays.hpp"

namespace placewise {

void bind_set_cover(nb::module_&) {}

}  // namespace placewise

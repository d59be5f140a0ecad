#include "common/ndarrays.hpp"

namespace placewise {

void bind_list_scheduling(nb::module_&) {}

}  // namespace placewise

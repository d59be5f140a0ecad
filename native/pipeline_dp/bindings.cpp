#include "common/ndarrays.hpp"

namespace placewise {

void bind_pipeline_dp(nb::module_&) {}

}  // namespace placewise

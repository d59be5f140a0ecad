#include "common/ndarrays.hpp"

namespace placewise {

void bind_features(nb::module_&) {}

}  // namespace placewise

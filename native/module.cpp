// The extension module placewise._native: every folder binds its own kernels.
#include <nanobind/nanobind.h>

#include "common/errors.hpp"
#include "common/interrupt.hpp"

namespace nb = nanobind;

namespace placewise {

void bind_judge(nb::module_& m);
void bind_bounds(nb::module_& m);
void bind_coarsening(nb::module_& m);
void bind_list_scheduling(nb::module_& m);
void bind_latency_search(nb::module_& m);
void bind_throughput_search(nb::module_& m);
void bind_pipeline_dp(nb::module_& m);
void bind_parallel_dp(nb::module_& m);
void bind_set_cover(nb::module_& m);
void bind_partitioning(nb::module_& m);
void bind_features(nb::module_& m);

namespace {

// Let Python handle what has arrived: in the main thread, Ctrl-C becomes KeyboardInterrupt.
void check_python_signals() {
    nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void translate_invalid_input(const std::exception_ptr& thrown, void*) {
    try {
        std::rethrow_exception(thrown);
    } catch (const InvalidInput& error) {
        nb::object raised = nb::module_::import_("placewise.errors").attr("InternalError");
        PyErr_SetString(raised.ptr(), error.what());
    }
}

}  // namespace

}  // namespace placewise

NB_MODULE(_native, m) {
    using namespace placewise;
    m.doc() = "Kernels in C++: each is documented where it is bound, in native/*/bindings.cpp.";
#ifdef NDEBUG
    nb::set_leak_warnings(false);  // a program may end while it still holds a search
#endif
    nb::register_exception_translator(translate_invalid_input);
    signal_check() = check_python_signals;
    nb::class_<StopFlag>(m, "StopFlag", "Set by one thread, seen by kernels that run in others.")
        .def(nb::init<>())
        .def("set", &StopFlag::set, "End every kernel that was handed this flag, within 50 ms.")
        .def("clear", &StopFlag::clear)
        .def("is_set", &StopFlag::is_set);
    bind_judge(m);
    bind_bounds(m);
    bind_coarsening(m);
    bind_list_scheduling(m);
    bind_latency_search(m);
    bind_throughput_search(m);
    bind_pipeline_dp(m);
    bind_parallel_dp(m);
    bind_set_cover(m);
    bind_partitioning(m);
    bind_features(m);
}

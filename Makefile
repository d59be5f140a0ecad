# The two commands of the README. Each works alone: it makes .venv and installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(shell find native -name '*.?pp')
# Published workloads, if they lie beside the project; tests that need them say so and are skipped otherwise.
export PLACEWISE_WORKLOADS ?= $(wildcard $(abspath ../shared/workloads))

.PHONY: demo test fuzz build stub native-check

demo: $(VENV)/.installed
	$(BIN)/placewise place examples/models/resnet50.onnx -d 2xL4,cpu --dim batch=8 --objective throughput
	@echo
	$(BIN)/placewise place examples/models/bert_base.onnx -d 2xL4,cpu --dim batch=8 --dim seq=128 \
		--objective throughput -o plan.json

test: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/write_native_stub.py --check
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist worksteal

# Damaged files of every format (tests/fuzzing): `make fuzz CASES=2000 SEED=7 FAMILY=onnx`; REPORT=FILE.json keeps counts.
CASES ?= 100000
SEED ?= 0
fuzz: $(VENV)/.tested
	PYTHONPATH=tests $(BIN)/python -m fuzzing --cases $(CASES) --seed $(SEED) $(addprefix --family ,$(FAMILY)) \
		$(addprefix --report ,$(REPORT))

# The kernels in C++ (native/): build them again after an edit, and write what Python is told of them.
build: $(VENV)/.tested
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt -e .

stub: build
	$(BIN)/python scripts/write_native_stub.py

# The kernels under the address and undefined-behaviour sanitizers, and for one short run under valgrind. What they are
# run on lies in a folder of its own: PYTHONPATH goes before every installation, and the libraries come from $(VENV).
SANITIZED := build/sanitized
SITE = $(SANITIZED)/site:tests:$(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('platlib'))")
PROBLEMS ?= 10000
native-check: $(VENV)/.tested
	rm -rf $(SANITIZED)/site && mkdir -p $(SANITIZED)/site && cp -r placewise $(SANITIZED)/site/
	rm -f $(SANITIZED)/site/placewise/_native*.so
	$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=Debug \
		-DPython_EXECUTABLE=$(abspath $(BIN))/python -DPLACEWISE_SANITIZE=ON -DPLACEWISE_WERROR=ON \
		-DPLACEWISE_OUTPUT=$(abspath $(SANITIZED))/site/placewise
	$(BIN)/cmake --build $(SANITIZED)
	PYTHONPATH=$(SITE) LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
		$$($(BIN)/python -c "import sys; print(sys._base_executable)") -m native_fuzz --problems $(PROBLEMS) --seed $(SEED)
	PYTHONPATH=build/valgrind/site:$(SITE)  PYTHONMALLOC=malloc true

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.tested: $(VENV)/bin/python pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.installed $@

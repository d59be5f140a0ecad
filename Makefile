# The two commands of the README. Each works alone: it makes .venv and installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := $(shell find native -name '*.?pp')
# Published workloads, if they lie beside the project; tests that need them say so and are skipped otherwise.
export PLACEWISE_WORKLOADS ?= $(wildcard $(abspath ../shared/workloads))
# Tests start hundreds of processes: each would compile the whole package where the environment forbids byte code.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test audit docs soak fuzz build stub native-check

demo: $(VENV)/.installed
	$(BIN)/placewise place examples/models/resnet50.onnx -d 2xL4,cpu --dim batch=8 --objective throughput
	@echo
	$(BIN)/placewise place examples/models/bert_base.onnx -d 2xL4,cpu --dim batch=8 --dim seq=128 \
		--objective throughput -o plan.json

# mypy, which keeps one core busy for a minute, runs beside the tests.
test: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(NATIVE) tests/native/containers.cpp
	$(BIN)/python scripts/write_native_stub.py --check
	$(BIN)/lint-imports
	$(BIN)/mypy & types=$$!; $(BIN)/pytest -n 2 --dist worksteal; tests=$$?; wait $$types && exit $$tests

# What bandit finds in the code, and pip-audit in the packages that are installed (it asks a service on the network, and
# lists what it could not ask about).
audit: $(VENV)/.tested
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive placewise scripts
	$(BIN)/pip-audit --progress-spinner off --skip-editable

# The documentation as a site, in build/site; a page without a place in it, or a link that leads nowhere, is an error.
docs: $(VENV)/.tested
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Before a release: every test with FACTOR times the random cases and the tests marked `soak`, then the two searches below.
FACTOR ?= 10
soak: $(VENV)/.tested
	PLACEWISE_SOAK=$(FACTOR) $(BIN)/pytest -n 2 --dist worksteal -m ""
	$(MAKE) fuzz
	$(MAKE) native-check

# Damaged files of every format (tests/fuzzing): `make fuzz CASES=2000 SEED=7 FAMILY=onnx`; REPORT=FILE.json keeps counts.
CASES ?= 100000
SEED ?= 0
fuzz: $(VENV)/.tested
	PYTHONPATH=tests/helpers:tests $(BIN)/python -m fuzzing --cases $(CASES) --seed $(SEED) $(addprefix --family ,$(FAMILY)) \
		$(addprefix --report ,$(REPORT))

# The kernels in C++ (native/): build them again after an edit, and write what Python is told of them.
build: $(VENV)/.tested
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt -e .

stub: build
	$(BIN)/python scripts/write_native_stub.py

# Whether every type of the kernels has one definition; then the kernels under sanitizers, and for one short run under
# valgrind. Each build lies in a folder of its own, with the package beside it; the interpreter behind $(VENV) runs it,
# and finds only what PYTHONPATH names.
PROBLEMS ?= 10000
CHECKED = $(BIN)/python scripts/check_native.py
native-check: $(VENV)/.tested
	$(CHECKED) definitions
	$(CHECKED) sanitized -- -m native_fuzz --problems $(PROBLEMS) --seed $(SEED)
	$(CHECKED) valgrind -- -m native_fuzz --problems 6 --seed $(SEED)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.tested: $(VENV)/bin/python pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.installed $@

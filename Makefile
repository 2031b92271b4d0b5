# `make demo` and `make test` are all that a new machine needs; each sets up its own .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
JOBS ?= 2
# Each of the parallel test processes computes on one core; two threads each would starve one another.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo test test-fast check bench clinic clean
.venv/core.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -qq -c constraints.txt -e ".[numpy]"
	touch $@
.venv/test.stamp: .venv/core.stamp
	$(PIP) install -qq -c constraints.txt -e ".[test,peers,sinks,plots]"
	touch $@

demo: .venv/core.stamp
	$(BIN)/stayfinite demo attention

check: .venv/test.stamp
	$(BIN)/ruff format --check src tests benchmarks clinic examples setup.py
	$(BIN)/ruff check src tests benchmarks clinic examples setup.py
	$(BIN)/mypy src
	$(PYTEST) tests/test_imports.py

test: check
	$(PYTEST) -n $(JOBS) --dist loadgroup

test-fast: .venv/test.stamp
	$(PYTEST) -n $(JOBS) --dist loadgroup -m "not slow"

bench: .venv/test.stamp
	$(BIN)/python -m benchmarks

clinic: .venv/test.stamp
	$(BIN)/python -m clinic

clean:
	rm -rf .venv .demo .mypy_cache .ruff_cache .pytest_cache

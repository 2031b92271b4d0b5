# `make demo` and `make test` are all that a new machine needs; each sets up its own .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
JOBS ?= 2

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
	$(BIN)/python -m pytest tests/test_imports.py

test: check
	$(BIN)/python -m pytest -n $(JOBS)

test-fast: .venv/test.stamp
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

bench: .venv/test.stamp
	$(BIN)/python -m benchmarks

clinic: .venv/test.stamp
	$(BIN)/python -m clinic

clean:
	rm -rf .venv .demo .mypy_cache .ruff_cache .pytest_cache

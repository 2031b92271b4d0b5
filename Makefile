# `make demo` and `make test` are all that a new machine needs; each sets up its own .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
JOBS ?= 2
# Each of the parallel test processes computes on one core; two threads each would starve one another.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: demo test test-whole test-fast test-versions check docs bench clinic clean
.venv/core.stamp: pyproject.toml constraints.txt
	@echo "setting up .venv: this downloads PyTorch and takes a few minutes, once"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP) install -qq -c constraints.txt -e .
	@touch $@
.venv/test.stamp: .venv/core.stamp
	@echo "installing what the checks and tests need"
	@$(PIP) install -qq -c constraints.txt -e ".[test,docs,peers,sinks,plots]"
	@touch $@
.venv/docs.stamp: .venv/core.stamp
	$(PIP) install -qq -c constraints.txt -e ".[docs]"
	touch $@

demo: .venv/core.stamp
	@$(BIN)/stayfinite demo attention

check: .venv/test.stamp
	$(BIN)/ruff format --check src tests benchmarks clinic examples setup.py
	$(BIN)/ruff check src tests benchmarks clinic examples setup.py
	$(BIN)/mypy src
	$(PYTEST) tests/test_imports.py

test: check
	$(PYTEST) -n $(JOBS) --dist loadgroup --durations=40

# Every combination where `make test` runs a sample.
test-whole: check
	$(PYTEST) -n $(JOBS) --dist loadgroup --durations=40 --whole

test-fast: .venv/test.stamp
	$(PYTEST) -n $(JOBS) --dist loadgroup -m "not slow"

# The site, into site/; a broken link or a page in no menu is an error.
docs: .venv/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The core tests with another torch or Python: make test-versions TORCH=2.6.0 PYTHON=python3.10
# Only CPU builds are installed, into an environment of their own in .venv-versions/. INDEX: where
# they are, if pip does not find them by itself (the address is on PyTorch's install page).
TORCH ?= 2.13.0
INDEX ?=
test-versions:
	PYTHON="$(PYTHON)" TORCH="$(TORCH)" INDEX="$(INDEX)" sh tests/versions.sh

bench: .venv/test.stamp
	$(BIN)/python -m benchmarks

clinic: .venv/test.stamp
	$(BIN)/python -m clinic

clean:
	rm -rf .venv .venv-versions site .demo .mypy_cache .ruff_cache .pytest_cache

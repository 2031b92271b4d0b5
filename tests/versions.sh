#!/bin/sh
# The core tests with the torch and the Python that are named; called by `make test-versions`.
# PYTHON: an interpreter (python3.10). TORCH: a release (2.6.0). INDEX: where CPU builds of it are; empty: where pip looks.
set -eu
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-2.13.0}
INDEX=${INDEX:-}

# What every version must pass: no framework, no browser, nothing that takes minutes.
CORE="tests/test_guard.py tests/test_guard_optimizers.py tests/test_loop.py tests/test_loop_ends.py tests/test_run.py
tests/test_traps.py tests/test_records.py tests/test_codes.py tests/test_config.py tests/test_errors.py
tests/detect tests/locate tests/patches tests/explain src/stayfinite"

# On Linux `+cpu` names the build without CUDA; elsewhere there is only one.
case $(uname -s) in Linux) BUILD="$TORCH+cpu" ;; *) BUILD=$TORCH ;; esac
HOME_OF=.venv-versions/$("$PYTHON" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')-torch$TORCH
test -x "$HOME_OF/bin/python" || "$PYTHON" -m venv "$HOME_OF"
PIP="$HOME_OF/bin/python -m pip --disable-pip-version-check install -qq"
# torch by itself first, without what it needs: only this one comes from INDEX (an empty one: from where pip looks).
$PIP --no-deps ${INDEX:+--extra-index-url "$INDEX"} "torch==$BUILD"
printf 'torch==%s\n' "$BUILD" > "$HOME_OF/constraints.txt"
$PIP -c "$HOME_OF/constraints.txt" numpy pytest hypothesis mpmath tqdm -e .
PY="$HOME_OF/bin/python"
"$PY" -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)'
# shellcheck disable=SC2086
OMP_NUM_THREADS=1 exec "$PY" -m pytest -m "not slow" --ignore src/stayfinite/integrations $CORE ${PYTEST_ARGS:-}

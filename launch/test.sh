#!/usr/bin/env bash
# Lint, format, types and tests; arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
ruff check .
ruff format --check .
mypy
# A file's tests stay in one process, so that what they share is made once.
python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder "$@"

#!/usr/bin/env bash
# Lint, format, types and tests. With --fast, which must come first, the tests that take under 90 seconds together, and
# no types. All other arguments go to pytest.
#
#     ./launch/test.sh --fast
#     ./launch/test.sh tests/data -k labels
fast=()
if [ "${1:-}" = --fast ]; then
  fast=(-m "not slow")
  shift
fi
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
ruff check .
ruff format --check .
# Beside the tests: the first time it takes half a minute.
if [ ${#fast[@]} = 0 ]; then mypy & else true & fi
types=$!
failed=0
# A file's tests stay in one process, so that what they share is made once.
python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder ${fast[@]+"${fast[@]}"} "$@" || failed=$?
wait "$types" || {
  echo "mypy failed; see above, where the tests begin." >&2
  exit 1
}
exit "$failed"

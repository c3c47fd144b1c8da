#!/usr/bin/env bash
# Runs the linter, the formatting check, the type checker and the tests. --fast skips the type checker and the slow
# tests; it takes about a minute and must be the first argument. All other arguments are passed to pytest.
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
./launch/lint.sh
types=
if [ ${#fast[@]} = 0 ]; then
  # The type checker runs in parallel with the tests, because its first run takes half a minute.
  ./launch/types.sh &
  types=$!
  # Background processes ignore Ctrl-C.
  trap 'kill "$types" 2>/dev/null || true' EXIT
fi
# Tests write thousands of small files and wait until each is on disk. To save that time, keep the files in memory if at
# least 2 GiB are free. A run of all tests needs 0.3 GiB.
if [ -z "${PYTEST_DEBUG_TEMPROOT:-}" ] && [ -w /dev/shm ]; then
  free_kib="$(df -Pk /dev/shm | awk 'NR == 2 {print $4}')"
  if [ "$free_kib" -ge $((2 * 2**20)) ]; then
    export PYTEST_DEBUG_TEMPROOT=/dev/shm
  fi
fi
failed=0
# All tests in a file run in the same process, so that shared fixtures are created only once.
python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder ${fast[@]+"${fast[@]}"} "$@" || failed=$?
if [ -n "$types" ] && ! wait "$types"; then
  echo "mypy failed; see its errors near the start of the output above." >&2
  exit 1
fi
exit "$failed"

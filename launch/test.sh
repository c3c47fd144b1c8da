#!/usr/bin/env bash
# Runs the linter, the formatter, the type checker and the tests. --fast skips the type checker and the slow tests, and
# takes about a minute. It must be the first argument. All other arguments are passed to pytest.
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
fi
failed=0
# All tests of a file run in the same process, so that its shared fixtures are made only once.
python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder ${fast[@]+"${fast[@]}"} "$@" || failed=$?
if [ -n "$types" ] && ! wait "$types"; then
  echo "mypy failed; its errors are above, near the beginning of the tests' output." >&2
  exit 1
fi
exit "$failed"

#!/usr/bin/env bash
# Lint, format, types and tests; arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
ruff check .
ruff format --check .
# Beside the tests: the first time it takes half a minute.
mypy &
types=$!
failed=0
# A file's tests stay in one process, so that what they share is made once.
python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder "$@" || failed=$?
wait "$types" || {
  echo "mypy failed; see above, where the tests begin." >&2
  exit 1
}
exit "$failed"

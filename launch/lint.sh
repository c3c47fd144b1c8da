#!/usr/bin/env bash
# Runs the linter, and checks that all files are formatted. `ruff format .` formats them.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
ruff check .
ruff format --check .

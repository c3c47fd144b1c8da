#!/usr/bin/env bash
# Runs the linter and checks formatting. `ruff format .` fixes the formatting.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
ruff check .
ruff format --check .

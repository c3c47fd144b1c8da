#!/usr/bin/env bash
# Runs the type checker. The first run takes half a minute.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec mypy

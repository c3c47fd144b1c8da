#!/usr/bin/env bash
# Runs both stages of AdapterFusion on built-in tasks, on the CPU: installs afjax, trains three adapters, fuses them.
# Resumes if it was stopped. Arguments go to `afjax train`, as in: launch/quickstart.sh --config.seed=1
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
afjax train --config=configs/quickstart.py --workdir="${AFJAX_WORKDIR:-runs/quickstart}" "$@"

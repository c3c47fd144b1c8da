#!/usr/bin/env bash
# Installs afjax and runs both stages of AdapterFusion on built-in tasks, on the CPU. To resume an interrupted run, run
# the script again. Arguments are passed to `afjax train`, for example launch/quickstart.sh --config.seed=1
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}"
afjax train --config=configs/quickstart.py --workdir="${AFJAX_WORKDIR:-runs/quickstart}" "$@"

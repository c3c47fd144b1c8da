"""A routed model works on several devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_routed_model_splits_rows_over_devices(tiny_trunk_folder: Path) -> None:
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    command = [sys.executable, str(Path(__file__).with_name("routed.py")), str(tiny_trunk_folder)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    # The number of devices, the largest batch size, a trunk kernel's number of shards, and whether it is replicated.
    assert done.stdout.split() == ["4", "8", "4", "True"]

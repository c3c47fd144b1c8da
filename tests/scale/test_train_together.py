"""Runs that train together work on several devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_runs_that_train_together_on_several_devices_equal_separate_runs(
    tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    command = [
        sys.executable,
        str(Path(__file__).with_name("train_together.py")),
        str(tiny_trunk_folder),
        str(tmp_path),
    ]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    # The number of devices, and the shardings of the stacked states (the runs' axis is not sharded) and of the trunk.
    assert done.stdout.splitlines() == [
        "4",
        "P(None, 'fsdp', None)",
        "P(None, None)",
        "P(None, None, 'fsdp', None)",
        "P(None, None, None)",
        "P(None, None, None, 'fsdp')",
        "P(None,)",
        "frozen trunk:",
        "P('fsdp', 'tensor')",
        "P('fsdp', None)",
        "P('tensor', 'fsdp')",
        "P('tensor',)",
        "P(None, 'fsdp')",
        "P(None,)",
    ]

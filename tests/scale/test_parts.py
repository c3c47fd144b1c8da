"""Several processes divide a machine's TPU chips, GPUs and cores."""

from pathlib import Path

import pytest

from afjax.distributed import parts
from afjax.distributed.parts import Devices, check_processes, device_settings, find_devices
from afjax.errors import UserError


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Removes the environment variables that limit the visible devices.

    Returns:
      The fixture ``monkeypatch``.
    """
    for name in ("TPU_VISIBLE_CHIPS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("names", [["accel0", "accel1", "accel2", "accel3"], ["vfio/0", "vfio/1", "vfio/2", "vfio/3"]])
def test_tpu_chips_are_found_by_device_files(tmp_path: Path, unlimited: pytest.MonkeyPatch, names: list[str]) -> None:
    (tmp_path / "vfio").mkdir()
    for name in [*names, "vfio/vfio", "null"]:
        (tmp_path / name).touch()
    unlimited.setattr(parts, "on_cloud_tpu", lambda: True)
    assert find_devices(tmp_path) == Devices(tpu_chips=("0", "1", "2", "3"))
    unlimited.setenv("TPU_VISIBLE_CHIPS", "2,3")
    assert find_devices(tmp_path) == Devices(tpu_chips=("2", "3"))
    unlimited.setattr(parts, "on_cloud_tpu", lambda: False)
    assert find_devices(tmp_path) == Devices()


def test_gpus_are_found_by_device_files(tmp_path: Path, unlimited: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert find_devices(tmp_path) == Devices(gpus=("0", "1"))
    unlimited.setenv("CUDA_VISIBLE_DEVICES", "GPU-5,GPU-7,GPU-9")
    assert find_devices(tmp_path) == Devices(gpus=("GPU-5", "GPU-7", "GPU-9"))
    unlimited.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_devices(tmp_path) == Devices()


def test_each_process_has_one_tpu_chip() -> None:
    chips = Devices(tpu_chips=("2", "3"))
    assert device_settings(1, 2, chips) == {
        "TPU_VISIBLE_CHIPS": "3",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": "localhost:8477",
        "TPU_PROCESS_PORT": "8477",
        "CLOUD_TPU_TASK_ID": "0",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    check_processes(2, chips)
    with pytest.raises(UserError, match=r"3 processes .*2 TPU chips.*--processes=2"):
        check_processes(3, chips)


@pytest.mark.parametrize(
    ("processes", "gpus", "expected"),
    [
        (2, 4, [("0,2", "0.900"), ("1,3", "0.900")]),
        (3, 2, [("0", "0.450"), ("1", "0.900"), ("0", "0.450")]),
        (2, 1, [("0", "0.450"), ("0", "0.450")]),
    ],
)
def test_gpus_and_their_memory_are_divided(processes: int, gpus: int, expected: list[tuple[str, str]]) -> None:
    devices = Devices(gpus=tuple(map(str, range(gpus))))
    check_processes(processes, devices)
    settings = [device_settings(number, processes, devices) for number in range(processes)]
    assert [(each["CUDA_VISIBLE_DEVICES"], each["XLA_CLIENT_MEM_FRACTION"]) for each in settings] == expected


def test_processes_on_a_cpu_need_no_settings() -> None:
    assert device_settings(1, 2, Devices()) == {}


def test_memory_fraction_set_by_the_user_is_kept(unlimited: pytest.MonkeyPatch) -> None:
    unlimited.setattr(parts, "find_devices", lambda: Devices(gpus=("0", "1")))
    unlimited.setattr(parts.os, "sched_setaffinity", lambda *given: None)
    # Set these variables with monkeypatch, so that they are restored after ``use_part`` has changed os.environ.
    unlimited.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    unlimited.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.3")
    unlimited.delenv("XLA_CLIENT_MEM_FRACTION", raising=False)
    parts.use_part(1, 2)
    assert parts.os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert "XLA_CLIENT_MEM_FRACTION" not in parts.os.environ

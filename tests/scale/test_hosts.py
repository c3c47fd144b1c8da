"""Two processes of two devices each: one job, which survives whatever happens to them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from jobs import Job, checkpoint_steps, free_port, result, wait_for_checkpoint

from afjax import hosts
from afjax.errors import UserError

NAME = "adapter-2x2x1"
NUM_STEPS = 40
WORDS = ("--runs=adapter:2,2,1", f"--steps={NUM_STEPS}", "--checkpoint_every=5")


@pytest.fixture(scope="module")
def together(
    tiny_trunk_folder: Path, compiled: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, np.ndarray]:
    """What two processes of four give that nobody disturbs."""
    folder = tmp_path_factory.mktemp("together")
    job = Job(tiny_trunk_folder, folder, WORDS, processes=2, devices=4, cache=compiled)
    assert job.wait() == [0, 0], job.said()
    return result(folder, NAME)


@pytest.fixture(scope="module")
def disturbed(tiny_trunk_folder: Path, compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that was stopped, and then killed, on its way."""
    folder = tmp_path_factory.mktemp("disturbed")
    workdir = folder / NAME

    # SIGTERM to one: both save the same step, and lose none.
    job = Job(tiny_trunk_folder, folder, WORDS, processes=2, devices=4, cache=compiled)
    wait_for_checkpoint(workdir, 5, job)
    job.processes[1].send_signal(signal.SIGTERM)
    assert job.wait() == [75, 75], job.said()
    stopped = max(checkpoint_steps(workdir))
    assert 5 <= stopped < NUM_STEPS
    logged = [line for line in (workdir / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    assert len(logged) == stopped

    # SIGKILL of one: the other does not wait for it for ever.
    job = Job(tiny_trunk_folder, folder, WORDS, processes=2, devices=4, cache=compiled)
    wait_for_checkpoint(workdir, stopped + 5, job)
    job.processes[1].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    codes = job.wait()
    assert time.monotonic() - begin < 60
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, 75), job.said()
    assert stopped < max(checkpoint_steps(workdir)) < NUM_STEPS
    return folder


def test_a_job_that_was_disturbed_ends_with_the_same_bits(
    tiny_trunk_folder: Path, compiled: Path, tmp_path: Path, disturbed: Path, together: dict[str, np.ndarray]
) -> None:
    shutil.copytree(disturbed, tmp_path, dirs_exist_ok=True)
    job = Job(tiny_trunk_folder, tmp_path, WORDS, processes=2, devices=4, cache=compiled)
    assert job.wait() == [0, 0], job.said()
    found = result(tmp_path, NAME)
    for path, leaf in together.items():
        assert np.array_equal(found[path], leaf), path


def test_a_job_goes_on_with_fewer_hosts_and_devices(
    tiny_trunk_folder: Path, compiled: Path, tmp_path: Path, disturbed: Path, together: dict[str, np.ndarray]
) -> None:
    shutil.copytree(disturbed, tmp_path, dirs_exist_ok=True)
    words = ["--runs=adapter:1,1,2", f"--name={NAME}", *WORDS[1:]]
    job = Job(tiny_trunk_folder, tmp_path, words, devices=2, cache=compiled)
    assert job.wait() == [0], job.said()
    found = result(tmp_path, NAME)
    assert len(found["losses"]) == NUM_STEPS
    np.testing.assert_allclose(found["losses"], together["losses"], rtol=1e-5)
    for path, leaf in together.items():
        if path.startswith("metrics/"):
            # 69 dev rows, which no number of devices divides.
            assert found[path] == leaf


def test_hosts_are_told_all_or_nothing() -> None:
    with pytest.raises(UserError, match="Give all of --coordinator_address, --num_processes and --process_id"):
        hosts.join("127.0.0.1:1", 2, None)
    with pytest.raises(UserError, match="take HOST:PORT of the first host"):
        hosts.join("127.0.0.1:1", 2, 2)
    with pytest.raises(UserError, match="take HOST:PORT of the first host"):
        hosts.join("127.0.0.1", 2, 0)


def agree(*given: tuple[str, str, int]) -> list[subprocess.Popen[str]]:
    """Starts a process for each digest, which of them fails, and number of devices."""
    address = f"127.0.0.1:{free_port()}"
    script = str(Path(__file__).with_name("agree.py"))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return [
        subprocess.Popen(
            [sys.executable, script, address, str(number), digest, fails],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"},
        )
        for number, (digest, fails, devices) in enumerate(given)
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([("a", "", 1), ("b", "", 1)], ["refused: Hosts differ in the config: host 1 from host 0"] * 2),
        (
            [("a", "1", 1), ("a", "1", 1)],
            ["refused: On host 1: The trunk is not there.", "refused: The trunk is not there."],
        ),
        (
            [("a", "", 2), ("a", "", 1)],
            ["refused: The hosts have different numbers of devices (host 0: 2, host 1: 1); take hosts"] * 2,
        ),
    ],
)
def test_hosts_agree_before_anything_is_spent(given: list[tuple[str, str, int]], expected: list[str]) -> None:
    for process, sentence in zip(agree(*given), expected, strict=True):
        output, errors = process.communicate(timeout=120)
        assert sentence in output, errors
        assert process.returncode == 2


@pytest.mark.parametrize("number", [0, 1])
def test_a_host_whose_others_never_come_says_so_and_ends(number: int) -> None:
    less = "hosts.QUIET_SECONDS, hosts.JOIN_SECONDS = 1, 3"
    code = f"from afjax import hosts; {less}; hosts.join('127.0.0.1:{free_port()}', 2, {number})"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    waiting, said = done.stderr.splitlines()[-2:]
    assert done.returncode == 2
    assert "for the other hosts of this run, for 3 s at most" in waiting
    assert said.startswith("afjax: The hosts of this run did not all join at 127.0.0.1:")


LAST_WORDS = """
import os, sys
from afjax import hosts
hosts.join(sys.argv[1], 2, int(sys.argv[2]))
with hosts.together():
    pass
with hosts.last_words():
    print("here", flush=True)
    if sys.argv[2] == "1":
        os.abort()
hosts.leave(2)
"""


def test_a_host_that_is_aborted_says_what_to_do_and_no_other() -> None:
    address = f"127.0.0.1:{free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LAST_WORDS, address, str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        for number in (0, 1)
    ]
    (output, errors), (_, of_aborted) = (process.communicate(timeout=120) for process in processes)
    assert [process.returncode for process in processes] == [2, -signal.SIGABRT]
    assert output.endswith("here\n")
    assert "without a word of its own" not in errors
    assert "start the same command again on all hosts" in of_aborted.splitlines()[-1]


def test_one_host_waits_for_nobody() -> None:
    with hosts.together():
        pass
    hosts.check_same({"the config": "abc"})
    with pytest.raises(UserError, match="not there"), hosts.together():
        raise UserError("not there")
    assert hosts.is_first_host()

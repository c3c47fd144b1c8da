"""Two processes of two devices each: one job, which survives whatever happens to them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from jobs import Job, checkpoint_steps, free_port, result

from afjax.cli.explain import explain
from afjax.distributed import hosts
from afjax.errors import HOST_LOST, PREEMPTED, UserError

pytestmark = pytest.mark.slow

NAME = "adapter-2x2x1"
NUM_STEPS = 40
# Seconds after which a test gives up; a job takes a few on an idle machine.
PATIENCE = 300
WORDS = ("--runs=adapter:2,2,1", f"--steps={NUM_STEPS}", "--checkpoint_every=5")


@pytest.fixture(scope="module")
def folders(tiny_trunk_folder: Path, compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of two jobs of two processes: one that nobody disturbs, one that is stopped, and then killed."""
    undisturbed, folder = tmp_path_factory.mktemp("undisturbed"), tmp_path_factory.mktemp("disturbed")
    with Job(tiny_trunk_folder, undisturbed, WORDS, processes=2, devices=4, cache=compiled) as job:
        disturb(tiny_trunk_folder, folder, compiled)
        assert job.wait() == [0, 0], job.said()
    return undisturbed, folder


@pytest.fixture(scope="module")
def expected(folders: tuple[Path, Path]) -> dict[str, np.ndarray]:
    """The result of the job that nobody disturbs."""
    return result(folders[0], NAME)


def disturb(trunk: Path, folder: Path, compiled: Path) -> None:
    """Stops a job, resumes it, and kills one of its hosts."""
    workdir = folder / NAME

    # SIGTERM to one: both save the same step, and lose none.
    job = Job(trunk, folder, [*WORDS, "--fault=term:1:7"], processes=2, devices=4, cache=compiled)
    assert job.wait() == [75, 75], job.said()
    stopped = max(checkpoint_steps(workdir))
    assert 7 <= stopped < 12
    logged = [line for line in (workdir / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    assert len(logged) == stopped

    # SIGKILL of one: the other does not wait for it for ever.
    job = Job(trunk, folder, [*WORDS, "--fault=kill:1:12"], processes=2, devices=4, cache=compiled)
    job.processes[1].join(PATIENCE)
    begin = time.monotonic()
    codes = job.wait()
    assert time.monotonic() - begin < 60
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, 75), job.said()
    assert stopped < max(checkpoint_steps(workdir)) < NUM_STEPS


def test_a_disturbed_job_resumes_to_the_same_bits_and_on_fewer_hosts_and_devices(
    tiny_trunk_folder: Path,
    compiled: Path,
    tmp_path: Path,
    folders: tuple[Path, Path],
    expected: dict[str, np.ndarray],
) -> None:
    same, fewer = tmp_path / "same", tmp_path / "fewer"
    for folder in (same, fewer):
        shutil.copytree(folders[1], folder)
    words = ["--runs=adapter:1,1,2", f"--name={NAME}", *WORDS[1:]]
    with (
        Job(tiny_trunk_folder, same, WORDS, processes=2, devices=4, cache=compiled) as same_job,
        Job(tiny_trunk_folder, fewer, words, devices=2, cache=compiled) as fewer_job,
    ):
        assert same_job.wait() == [0, 0], same_job.said()
        assert fewer_job.wait() == [0], fewer_job.said()

    found = result(same, NAME)
    for path, leaf in expected.items():
        assert np.array_equal(found[path], leaf), path

    found = result(fewer, NAME)
    assert len(found["losses"]) == NUM_STEPS
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=1e-5)
    for path, leaf in expected.items():
        if path.startswith("metrics/"):
            # 69 dev rows, which no number of devices divides.
            assert found[path] == leaf


def test_hosts_are_told_all_or_nothing() -> None:
    with pytest.raises(UserError, match="Give all of --coordinator_address, --num_processes and --process_id"):
        hosts.Job("127.0.0.1:1", 2, None, explain=explain)
    for given in (("127.0.0.1:1", 2, 2), ("127.0.0.1:1", 0, 0), ("127.0.0.1", 2, 0)):
        with pytest.raises(UserError, match="give HOST:PORT of the first host"):
            hosts.Job(*given, explain=explain)


def start_python(*words: str, devices: int = 1) -> subprocess.Popen[str]:
    """Starts a Python process with its output in pipes."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    return subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def agree(*given: tuple[str, str, int]) -> list[subprocess.Popen[str]]:
    """Starts a process for each digest, which of them fails, and number of devices."""
    address = f"127.0.0.1:{free_port()}"
    script = str(Path(__file__).with_name("agree.py"))
    return [
        start_python(script, address, str(number), digest, fails, devices=devices)
        for number, (digest, fails, devices) in enumerate(given)
    ]


def outcome(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit code and stderr of each process."""
    try:
        said = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, errors) for process, errors in zip(processes, said, strict=True)]


def reason(errors: str) -> str:
    """The one sentence that says why a host ended; it is the last that the host printed."""
    assert "stack trace" not in errors
    assert "this host was aborted" not in errors
    last = errors.splitlines()[-1]
    assert last.startswith("afjax: "), errors
    return last.removeprefix("afjax: ")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([("a", "", 1), ("b", "", 1)], ["Hosts differ in the config: host 1 from host 0"] * 2),
        ([("a", "1", 1), ("a", "1", 1)], ["On host 1: The trunk is not there.", "The trunk is not there."]),
        (
            [("a", "", 2), ("a", "", 1)],
            ["The hosts have different numbers of devices (host 0: 2, host 1: 1); use hosts"] * 2,
        ),
    ],
)
def test_hosts_agree_before_anything_is_spent(given: list[tuple[str, str, int]], expected: list[str]) -> None:
    for (code, errors), sentence in zip(outcome(agree(*given)), expected, strict=True):
        assert sentence in reason(errors)
        assert code == 2


def test_a_host_whose_others_never_come_says_so_and_ends() -> None:
    shorter = "hosts.QUIET_SECONDS, hosts.JOIN_SECONDS = 1, 3"
    processes = []
    # Each waits at an address of its own.
    for number in (0, 1):
        job = f"hosts.Job('127.0.0.1:{free_port()}', 2, {number}, explain=lambda error: None).__enter__()"
        processes.append(start_python("-c", f"from afjax.distributed import hosts; {shorter}; {job}"))
    for code, errors in outcome(processes):
        waiting, said = errors.splitlines()[-2:]
        assert code == 2
        assert "for the other hosts of this run, for 3 s at most" in waiting
        assert said.startswith("afjax: The hosts of this run did not all join at 127.0.0.1:")


ABORTED = """
import os, sys
from afjax.distributed import hosts
from afjax.cli.explain import explain
with hosts.Job(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), explain=explain):
    with hosts.all_hosts_or_raise():
        pass
    if sys.argv[3] == sys.argv[4]:
        os.abort()
    with hosts.all_hosts_or_raise():
        pass
"""


def test_every_host_says_what_to_do_if_one_is_aborted() -> None:
    # Three jobs at the same time, because a job mostly waits.
    jobs = []
    for aborted in range(3):
        address = f"127.0.0.1:{free_port()}"
        jobs.append([start_python("-c", ABORTED, address, "3", str(number), str(aborted)) for number in range(3)])
    for aborted, job in enumerate(jobs):
        for number, (code, errors) in enumerate(outcome(job)):
            assert errors.count("start the same command again on all hosts") == 1, errors
            # The host with the coordination service takes it along: the runtime may abort the others first.
            assert code in ((-signal.SIGABRT,) if number == aborted else (HOST_LOST, -signal.SIGABRT)), errors
            if number != aborted and aborted != 0:
                assert code == HOST_LOST
                assert "was lost" in reason(errors)


@pytest.mark.parametrize(
    ("fault", "code", "code_elsewhere", "sentence"),
    [
        ("refuse:{}:3", 2, 2, "This row cannot be read."),
        ("crash:{}:3", 1, HOST_LOST, "RuntimeError: This host is broken."),
        ("interrupt:{}:3", 130, 130, "interrupted"),
        ("stop:{}:0", PREEMPTED, PREEMPTED, "told to stop"),
        # The log of the first host, and later its checkpoint; the part of the checkpoint that another host writes.
        ("full:{}:700", 2, 2, "File too large"),
        ("full:{}:6000", 2, 2, "A checkpoint could not be written"),
    ],
)
def test_a_fault_of_one_host_ends_all_with_its_reason(
    fault: str,
    code: int,
    code_elsewhere: int,
    sentence: str,
    tiny_trunk_folder: Path,
    compiled: Path,
    tmp_path: Path,
) -> None:
    def start(host: int) -> Job:
        words = [*WORDS, f"--fault={fault.format(host)}"]
        return Job(tiny_trunk_folder, tmp_path / str(host), words, processes=2, devices=4, cache=compiled)

    # Two jobs at the same time, one for each host that may have the fault.
    with start(0) as first, start(1) as second:
        for host, job in enumerate((first, second)):
            codes = job.wait()
            assert codes == ([code, code_elsewhere] if host == 0 else [code_elsewhere, code]), job.said()
            here, there = (reason(job.logs[number].read_text()) for number in (host, 1 - host))
            assert sentence in here
            assert not here.startswith("On host")
            assert there == f"On host {host}: {here}"


def test_a_loss_that_is_not_finite_ends_all_hosts(tiny_trunk_folder: Path, compiled: Path, tmp_path: Path) -> None:
    words = [*WORDS, "--learning_rate=1e30"]
    job = Job(tiny_trunk_folder, tmp_path, words, processes=2, devices=4, cache=compiled)
    assert job.wait() == [2, 2], job.said()
    for log in job.logs:
        assert "stopped being finite at step" in reason(log.read_text())
    (report,) = (tmp_path / NAME).glob("not_finite_step_*/report.json")
    assert json.loads(report.read_text())["train_rows"]


CONFIG = """
import ml_collections

def get_config():
    return ml_collections.ConfigDict({{
        "recipe": "single", "trunk": {trunk!r}, "task": {{"name": "rte", "source": {data!r}}}, "mesh": {{"data": 2}},
        "train": {{"max_steps": 2, "batch_size": 4, "max_length": 16, "buckets": (16,)}},
    }})
"""


@pytest.mark.parametrize(
    ("trunk", "data", "words", "sentence"),
    [
        ("trunk", "data", "--config.train.learning_rate=0.5", "Hosts differ in the config"),
        ("trunk", "nowhere", "--config.seed=0", "nowhere"),
        ("nowhere", "data", "--config.seed=0", "nowhere"),
        ("trunk", "data", "--config.train.batch_sice=2", "batch_sice"),
    ],
)
def test_what_one_host_lacks_is_said_by_all(
    trunk: str, data: str, words: str, sentence: str, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "trunk").symlink_to(tiny_trunk_folder)
    (tmp_path / "data").mkdir()
    rows = "".join(json.dumps({"text": text, "label": text}) + "\n" for text in ("all", "some", "all", "some"))
    for split in ("train", "dev"):
        (tmp_path / "data" / f"{split}.jsonl").write_text(rows)
    address, processes = f"127.0.0.1:{free_port()}", []
    for number, (trunk_there, data_there) in enumerate((("trunk", "data"), (trunk, data))):
        config = tmp_path / f"config{number}.py"
        config.write_text(CONFIG.format(trunk=str(tmp_path / trunk_there), data=str(tmp_path / data_there)))
        command = ["-m", "afjax", "train", f"--config={config}", f"--workdir={tmp_path / 'run'}"]
        command += [f"--coordinator_address={address}", "--num_processes=2", f"--process_id={number}"]
        command += [words] if number == 1 else []
        processes.append(start_python(*command))
    for code, errors in outcome(processes):
        assert code == 2
        assert sentence in reason(errors)
    assert not (tmp_path / "run").exists()


def test_one_host_waits_for_nobody() -> None:
    with hosts.all_hosts_or_raise():
        pass
    hosts.check_same({"the config": "abc"})
    with pytest.raises(UserError, match="not there"), hosts.all_hosts_or_raise():
        raise UserError("not there")
    assert hosts.is_first_host()

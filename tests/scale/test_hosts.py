"""Multi-host jobs train and resume, and all hosts exit if one host fails.

A job has two processes with two devices each.
"""

import contextlib
import functools
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import ending_hosts
import numpy as np
import pytest
from facts import has_facts
from jobs import Job, Processes, checkpoint_steps, free_port, result

from afjax.cli.explain import explain
from afjax.distributed import hosts
from afjax.errors import HOST_LOST, PREEMPTED, UserError

pytestmark = pytest.mark.slow

NAME = "adapter-2x2x1"
NUM_STEPS = 40
# Timeout in seconds. On an idle machine, a job takes a few seconds.
TIMEOUT = 300
ARGUMENTS = ("--runs=adapter:2,2,1", f"--steps={NUM_STEPS}", "--checkpoint_every=5")


@pytest.fixture(scope="module")
def folders(tiny_trunk_folder: Path, compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Runs an uninterrupted job, and a job that is stopped, resumed and killed.

    Returns:
      The folders of both jobs.
    """
    uninterrupted, interrupted = tmp_path_factory.mktemp("uninterrupted"), tmp_path_factory.mktemp("interrupted")
    with Job(tiny_trunk_folder, uninterrupted, ARGUMENTS, processes=2, devices=4, cache=compiled) as job:
        interrupt(tiny_trunk_folder, interrupted, compiled)
        assert job.wait() == [0, 0], job.output()
    return uninterrupted, interrupted


@pytest.fixture(scope="module")
def expected(folders: tuple[Path, Path]) -> dict[str, np.ndarray]:
    """Reads the result of the uninterrupted job."""
    return result(folders[0], NAME)


def interrupt(trunk: Path, folder: Path, compiled: Path) -> None:
    """Stops a job, resumes it, and kills one of its hosts."""
    workdir = folder / NAME

    # If one host gets SIGTERM, both hosts save a checkpoint of the same step, and no step is lost.
    job = Job(trunk, folder, [*ARGUMENTS, "--fault=term:1:7"], processes=2, devices=4, cache=compiled)
    assert job.wait() == [75, 75], job.output()
    stopped = max(checkpoint_steps(workdir))
    assert 7 <= stopped < 12
    logged = [line for line in (workdir / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    assert len(logged) == stopped

    # If one host is killed, the other exits within a minute.
    job = Job(trunk, folder, [*ARGUMENTS, "--fault=kill:1:12"], processes=2, devices=4, cache=compiled)
    job.processes[1].join(TIMEOUT)
    begin = time.monotonic()
    codes = job.wait()
    assert time.monotonic() - begin < 60
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, 75), job.output()
    assert stopped < max(checkpoint_steps(workdir)) < NUM_STEPS


def test_interrupted_job_resumes_bit_identically_or_on_fewer_hosts(
    tiny_trunk_folder: Path, compiled: Path, tmp_path: Path, folders: tuple[Path, Path], expected: dict[str, np.ndarray]
) -> None:
    same, fewer = tmp_path / "same", tmp_path / "fewer"
    for folder in (same, fewer):
        shutil.copytree(folders[1], folder)
    arguments = ["--runs=adapter:1,1,2", f"--name={NAME}", *ARGUMENTS[1:]]
    with (
        Job(tiny_trunk_folder, same, ARGUMENTS, processes=2, devices=4, cache=compiled) as same_job,
        Job(tiny_trunk_folder, fewer, arguments, devices=2, cache=compiled) as fewer_job,
    ):
        assert same_job.wait() == [0, 0], same_job.output()
        assert fewer_job.wait() == [0], fewer_job.output()

    resumed = result(same, NAME)
    for path, leaf in expected.items():
        assert np.array_equal(resumed[path], leaf), path

    resumed = result(fewer, NAME)
    assert len(resumed["losses"]) == NUM_STEPS
    np.testing.assert_allclose(resumed["losses"], expected["losses"], rtol=1e-5)
    for path, leaf in expected.items():
        if path.startswith("metrics/"):
            # The metrics are equal although the 69 dev rows are not divisible by the number of devices.
            assert resumed[path] == leaf


def test_host_arguments_must_be_complete_and_valid() -> None:
    with pytest.raises(UserError, match="Pass all of --coordinator_address, --num_processes and --process_id"):
        hosts.Job("127.0.0.1:1", 2, None, explain=explain)
    for given in (("127.0.0.1:1", 2, 2), ("127.0.0.1:1", 0, 0), ("127.0.0.1", 2, 0)):
        with pytest.raises(UserError, match="the address must be the first host's HOST:PORT"):
            hosts.Job(*given, explain=explain)


def agree(folder: Path, *given: tuple[str, str, int], error: str = "user") -> Processes:
    """Starts one host per ``(digest, failing host, number of devices)``; see ``ending_hosts.agree``."""
    address = f"127.0.0.1:{free_port()}"
    targets = [
        functools.partial(ending_hosts.agree, address, number, digest, fails, error)
        for number, (digest, fails, _) in enumerate(given)
    ]
    return Processes(folder, targets, [devices for *_, devices in given])


def outcome(processes: Processes) -> list[tuple[int | None, str]]:
    """Returns the exit code and output of each process."""
    codes = processes.wait(TIMEOUT)
    return [(code, log.read_text()) for code, log in zip(codes, processes.logs, strict=True)]


def reason(errors: str) -> str:
    """Returns a host's error message, which must be the last line that it printed."""
    assert "stack trace" not in errors
    assert "this host was aborted" not in errors
    last = errors.splitlines()[-1]
    assert last.startswith("afjax: "), errors
    return last.removeprefix("afjax: ")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([("a", "", 1), ("b", "", 1)], ["Hosts differ in the config (host 1 does not match host 0)"] * 2),
        ([("a", "1", 1), ("a", "1", 1)], ["On host 1: The trunk was not found.", "The trunk was not found."]),
        (
            [("a", "", 2), ("a", "", 1)],
            ["The hosts have different numbers of devices (host 0: 2, host 1: 1); use the same number"] * 2,
        ),
    ],
)
def test_hosts_exit_before_training_if_they_differ_or_one_fails(
    given: list[tuple[str, str, int]], expected: list[str], tmp_path: Path
) -> None:
    for (code, errors), message in zip(outcome(agree(tmp_path, *given)), expected, strict=True):
        assert message in reason(errors)
        assert code == 2


@pytest.mark.parametrize(
    ("error", "code", "other_code", "message"),
    [
        ("disk", 2, 2, "No space left on device"),
        ("cloud", 1, 1, "Service Unavailable, 503"),
        ("credentials", 2, 2, "Invalid Credentials, 401"),
        ("timeout", 1, 1, "TimeoutError"),
        ("crash", 1, HOST_LOST, "this host failed with RuntimeError: A bug.; its log has the traceback."),
    ],
)
def test_other_hosts_exit_with_the_code_of_the_failure(
    error: str, code: int, other_code: int, message: str, tmp_path: Path
) -> None:
    """The first host fails, which runs the coordination service."""
    failed, other = outcome(agree(tmp_path, ("a", "0", 1), ("a", "0", 1), error=error))
    assert (failed[0], other[0]) == (code, other_code)
    assert message in reason(failed[1])
    assert message in reason(other[1])
    assert reason(other[1]).startswith("On host 0: ")
    assert ("Traceback" in failed[1]) == (error == "crash")
    assert "Traceback" not in other[1]


def test_host_exits_with_a_message_if_other_hosts_do_not_join(tmp_path: Path) -> None:
    # The two hosts use different addresses, so they never find each other.
    targets = [functools.partial(ending_hosts.join, f"127.0.0.1:{free_port()}", 2, number) for number in (0, 1)]
    for code, errors in outcome(Processes(tmp_path, targets, [1, 1])):
        waiting, failure = errors.splitlines()[-2:]
        assert code == 2
        assert "for the other hosts of this run, for at most 3 s" in waiting
        assert failure.startswith("afjax: The hosts of this run did not all join at 127.0.0.1:")


def test_all_hosts_print_how_to_resume_if_one_host_is_aborted(tmp_path: Path) -> None:
    # Start the three jobs at the same time, because they mostly wait.
    jobs = []
    for aborted in range(3):
        address = f"127.0.0.1:{free_port()}"
        targets = [functools.partial(ending_hosts.abort, address, 3, number, aborted) for number in range(3)]
        jobs.append(Processes(tmp_path / str(aborted), targets, [1] * 3))
    for aborted, job in enumerate(jobs):
        for number, (code, errors) in enumerate(outcome(job)):
            assert errors.count("start the same command again on all hosts") == 1, errors
            # Host 0 runs the coordination service. If host 0 dies, JAX may abort the other hosts before they can exit.
            assert code in ((-signal.SIGABRT,) if number == aborted else (HOST_LOST, -signal.SIGABRT)), errors
            if number != aborted and aborted != 0:
                assert code == HOST_LOST
                assert "was lost" in reason(errors)


@pytest.mark.parametrize(
    ("fault", "failing", "code", "other_code", "facts"),
    [
        ("refuse:{}:3", (0, 1), 2, 2, ("This row cannot be read.",)),
        # test_other_hosts_exit_with_the_code_of_the_failure covers a crash of host 0.
        ("crash:{}:3", (1,), 1, HOST_LOST, ("RuntimeError: This host is broken.",)),
        ("interrupt:{}:3", (0, 1), 130, 130, ("interrupted",)),
        ("stop:{}:0", (0, 1), PREEMPTED, PREEMPTED, ("stopped by SIGTERM",)),
        # On host 0, metrics.jsonl needs more than 700 bytes, and a checkpoint needs more than 6000 bytes. Host 1 only
        # writes its part of each checkpoint.
        ("full:{}:700", (0,), 2, 2, ("File too large",)),
        ("full:{}:6000", (0, 1), 2, 2, ("A checkpoint could not be written", "File too large")),
    ],
)
def test_all_hosts_exit_with_the_reason_if_one_host_fails(
    fault: str,
    failing: tuple[int, ...],
    code: int,
    other_code: int,
    facts: tuple[str, ...],
    tiny_trunk_folder: Path,
    compiled: Path,
    tmp_path: Path,
) -> None:
    def start(host: int) -> Job:
        arguments = [*ARGUMENTS, f"--fault={fault.format(host)}"]
        return Job(tiny_trunk_folder, tmp_path / str(host), arguments, processes=2, devices=4, cache=compiled)

    # The jobs run at the same time. In each job, another host fails.
    with contextlib.ExitStack() as stack:
        for host, job in [(host, stack.enter_context(start(host))) for host in failing]:
            codes = job.wait()
            assert codes == ([code, other_code] if host == 0 else [other_code, code]), job.output()
            failed, other = (reason(job.logs[number].read_text()) for number in (host, 1 - host))
            assert has_facts(failed, *facts)
            assert not failed.startswith("On host")
            assert other == f"On host {host}: {failed}"


def test_all_hosts_exit_if_the_loss_is_not_finite(tiny_trunk_folder: Path, compiled: Path, tmp_path: Path) -> None:
    arguments = [*ARGUMENTS, "--learning_rate=1e30"]
    job = Job(tiny_trunk_folder, tmp_path, arguments, processes=2, devices=4, cache=compiled)
    assert job.wait() == [2, 2], job.output()
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
    ("trunk", "data", "argument", "message", "train"),
    [
        # Only the first case runs the program, because starting an interpreter is slow.
        ("trunk", "data", "--config.train.learning_rate=0.5", "Hosts differ in the config", ending_hosts.train_program),
        ("trunk", "nowhere", "--config.seed=0", "nowhere", ending_hosts.train_here),
        ("nowhere", "data", "--config.seed=0", "nowhere", ending_hosts.train_here),
        ("trunk", "data", "--config.train.batch_sice=2", "batch_sice", ending_hosts.train_here),
    ],
)
def test_all_hosts_report_the_invalid_input_of_one_host(
    trunk: str, data: str, argument: str, message: str, train: Any, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "trunk").symlink_to(tiny_trunk_folder)
    (tmp_path / "data").mkdir()
    rows = "".join(json.dumps({"text": text, "label": text}) + "\n" for text in ("all", "some", "all", "some"))
    for split in ("train", "dev"):
        (tmp_path / "data" / f"{split}.jsonl").write_text(rows)
    address, targets = f"127.0.0.1:{free_port()}", []
    for number, (trunk_name, data_name) in enumerate((("trunk", "data"), (trunk, data))):
        config = tmp_path / f"config{number}.py"
        config.write_text(CONFIG.format(trunk=str(tmp_path / trunk_name), data=str(tmp_path / data_name)))
        arguments = [f"--config={config}", f"--workdir={tmp_path / 'run'}"]
        arguments += [f"--coordinator_address={address}", "--num_processes=2", f"--process_id={number}"]
        arguments += [argument] if number == 1 else []
        targets.append(functools.partial(train, *arguments))
    for code, errors in outcome(Processes(tmp_path / "logs", targets, [1, 1])):
        assert code == 2
        assert message in reason(errors)
    assert not (tmp_path / "run").exists()


def test_single_host_does_not_wait() -> None:
    with hosts.all_hosts_or_raise():
        pass
    hosts.check_same({"the config": "abc"})
    with pytest.raises(UserError, match="not found"), hosts.all_hosts_or_raise():
        raise UserError("not found")
    assert hosts.is_first_host()

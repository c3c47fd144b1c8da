#!/usr/bin/env python3
"""Creates and sets up a Cloud TPU slice, and runs an afjax command on its workers.

The script runs on a laptop. It needs only Python 3.10 or newer and `gcloud`. It keeps no state on the laptop: slice
states come from Google Cloud, and job states come from files on the workers. Any command can therefore be interrupted
and repeated.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import math
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_cloud import (
    TAIL_LINES,
    Cloud,
    Job,
    LaunchError,
    Slice,
    UnreachableError,
    WaitTimeoutError,
    log_message,
    slice_flags,
)

# Exit codes of `afjax train`. LOST stands for a lost job, which has no exit code.
DONE, LOST, USER_ERROR, PREEMPTED, OTHER_HOST_DIED = 0, 1, 2, 75, 76
# babysit gives up after more than MAX_FAILURES consecutive failures to check or recreate the slice. If
# MAX_STRAGGLER_CHECKS consecutive checks find both failed and running workers, it stops the running ones.
MAX_FAILURES, MAX_STRAGGLER_CHECKS = 20, 10

CREATE_EXAMPLE = """\
examples:
  launch/tpu_vm.py create my-slice --zone=us-west4-a --accelerator_type=v5e-16 --spot
  launch/tpu_vm.py create my-slice --zone=us-central2-b --accelerator_type=v4 --topology=2x2x4 --on_demand"""

SETUP_EXAMPLE = """\
examples:
  launch/tpu_vm.py setup my-slice --zone=us-west4-a
  launch/tpu_vm.py setup my-slice --zone=us-west4-a --source=https://github.com/me/afjax.git --git_revision=main

Only files tracked by git are copied, including their uncommitted changes. Commands run in the copied checkout, so paths
like configs/quickstart.py work."""

RUN_EXAMPLE = """\
example:
  launch/tpu_vm.py run my-slice --zone=us-west4-a -- \\
      afjax train --config=configs/quickstart.py --workdir=gs://my-bucket/quickstart --config.seed=1

Everything after -- is the command. It keeps running if this machine is switched off. {worker} in the command is
replaced by the worker's index, starting at 0."""

STOP_EXAMPLE = """\
example:
  launch/tpu_vm.py stop my-slice --zone=us-west4-a

When it receives SIGTERM, afjax saves a checkpoint. If babysit is running, stop it first, because it would restart the
command. The slice is kept and still costs money."""

LOGS_EXAMPLE = """\
examples:
  launch/tpu_vm.py logs my-slice --zone=us-west4-a --follow
  launch/tpu_vm.py logs my-slice --zone=us-west4-a --worker=3 --lines=1000"""

STATUS_EXAMPLE = """\
example:
  launch/tpu_vm.py status my-slice --zone=us-west4-a"""

DELETE_EXAMPLE = """\
example:
  launch/tpu_vm.py delete my-slice --zone=us-west4-a --yes"""

BABYSIT_EXAMPLE = """\
example:
  launch/tpu_vm.py babysit my-slice --zone=us-west4-a --accelerator_type=v5e-16 --spot --delete_at_end -- \\
      afjax train --config=configs/quickstart.py --workdir=gs://my-bucket/quickstart

If babysit is stopped, run the same command again to resume. babysit exits with afjax's exit code."""


def main(argv: Sequence[str]) -> int:
    """Runs one command and returns its exit code.

    The exit code is 0 on success, 2 after an error and 130 after Ctrl-C. For babysit it is afjax's exit code.
    """
    separator = argv.index("--") if "--" in argv else len(argv)
    arguments = make_parser().parse_args(argv[:separator])
    arguments.command = list(argv[separator + 1 :])
    cloud = Cloud(
        arguments.name,
        zone=arguments.zone,
        project=arguments.project,
        poll_seconds=arguments.poll_seconds,
        dry_run=arguments.dry_run,
        dry_run_slice=Slice() if arguments.action in (create, babysit) else Slice("ACTIVE", "READY", 1),
    )
    try:
        check_command(arguments)
        check_source(arguments)
        cloud.check()
        action: Callable[..., int] = arguments.action
        return action(arguments, cloud)
    except LaunchError as error:
        log_message(f"tpu_vm: {' '.join(str(error).split())}")
        return 2
    except KeyboardInterrupt:
        log_message(f"tpu_vm: interrupted; an existing slice costs money until `delete {arguments.name}`.")
        return 130


# The commands


def create(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Requests a slice and waits until it is ready."""
    flags = slice_flags(arguments)
    slice_state = cloud.describe()
    if slice_state.condition in ("ready", "waiting"):
        raise LaunchError(
            f"{cloud.name} already exists ({slice_state}); continue with `setup`, or choose a different name."
        )
    if slice_state.condition != "missing":
        raise LaunchError(
            f"{cloud.name} is incomplete ({slice_state}); run `delete {cloud.name}`, then repeat this command."
        )
    cloud.create(*flags)
    if arguments.no_wait:
        log_message(
            f"{cloud.name} was requested; run `status` to check it. It costs money while it is ACTIVE, until "
            f"`delete {cloud.name}`."
        )
        return 0
    with warn_if_slice_remains(cloud):
        cloud.wait(arguments.timeout)
    log_message(f"{cloud.name} is ready; it costs money until `delete {cloud.name}`.")
    return 0


def setup(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Installs Python and afjax on all workers, or updates afjax."""
    set_up(arguments, cloud, cloud.ready())
    log_message(f"{cloud.name} is set up.")
    return 0


def run(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Starts a command on all workers, unless one is already running."""
    slice_state = cloud.ready()
    check_not_running(cloud, cloud.jobs(slice_state))
    start(arguments, cloud, slice_state)
    log_message(f"Started on all workers of {cloud.name}; see `logs --follow` and `status`.")
    return 0


def stop(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Stops the command on all workers with SIGTERM, and if necessary with SIGKILL."""
    cloud.ask_workers(cloud.ready(), "stop", str(arguments.grace_seconds), dry_run_answer="stopped")
    log_message(f"No command is running on {cloud.name}; the slice costs money until `delete {cloud.name}`.")
    return 0


def logs(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Shows a worker's log."""
    slice_state = cloud.ready()
    if arguments.worker not in range(slice_state.workers) and not cloud.dry_run:
        raise LaunchError(
            f"--worker is {arguments.worker}; {cloud.name} has the workers 0 to {slice_state.workers - 1}."
        )
    cloud.show_log(arguments.worker, arguments.lines, follow=arguments.follow)
    return 0


def status(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Shows the state of the slice and of the job on each worker."""
    slice_state = cloud.describe()
    print(f"{cloud.name}: {slice_state}", flush=True)
    if slice_state.condition == "ready":
        for worker, job in cloud.jobs(slice_state).items():
            print(f"worker {worker}: {job.state}" + (f", exit code {job.code}" if job.state == "finished" else ""))
    return 0


def delete(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Deletes the slice: its queued resource and its node."""
    slice_state = cloud.describe()
    if slice_state.condition == "missing":
        log_message(f"{cloud.name} does not exist; there is nothing to delete.")
        return 0
    if not arguments.yes and not cloud.dry_run:
        print(
            f"Delete {cloud.name} ({slice_state}) and everything on its disks? [y/N] ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise LaunchError(f"{cloud.name} was not deleted; answer y, or use --yes.")
    cloud.delete(slice_state)
    log_message(f"{cloud.name} is deleted.")
    return 0


def babysit(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Runs a command until it finishes, and recreates the slice when it is preempted."""
    flags = slice_flags(arguments)
    # After an error, keep the slice even with --delete_at_end, so that the user can debug on it.
    with warn_if_slice_remains(cloud):
        return run_until_done(arguments, cloud, flags)


def run_until_done(arguments: argparse.Namespace, cloud: Cloud, flags: Sequence[str]) -> int:
    """Watches the slice until the command ends, and returns the command's exit code."""
    watch = Watch(arguments, cloud)
    failures = 0
    while True:
        try:
            slice_state = ensure_slice(cloud, flags, arguments.timeout)
            code = watch.step(slice_state)
            failures = 0
        except LaunchError as error:
            # Before the job has run, the user must fix an error. Later, the same error may just mean that the slice was
            # preempted.
            temporary = watch.has_run or isinstance(error, UnreachableError)
            failures += 1
            if failures > MAX_FAILURES or not temporary or isinstance(error, WaitTimeoutError):
                raise
            log_message(str(error))
            time.sleep(cloud.poll_seconds * 2 ** min(failures, 5))
            continue
        if code is not None:
            break
    log_message(f"{cloud.name}: the command ended with exit code {code}.")
    if arguments.delete_at_end:
        cloud.delete(slice_state)
        log_message(f"{cloud.name} is deleted.")
    else:
        log_message(f"{cloud.name} still exists; it costs money until `delete {cloud.name}`.")
    return code


@dataclasses.dataclass
class Watch:
    """The state of babysit.

    Attributes:
      arguments: The command-line arguments.
      cloud: The slice.
      has_run: Whether the command has run since babysit started. Earlier failures are ignored, because the user may
        have fixed their cause.
      crashes: Number of crashes since babysit started.
      straggler_checks: Number of consecutive checks with both failed and running workers.
    """

    arguments: argparse.Namespace
    cloud: Cloud
    has_run: bool = False
    crashes: int = 0
    straggler_checks: int = 0

    def step(self, slice_state: Slice) -> int | None:
        """Checks the jobs once, and starts or stops them as needed.

        Returns the exit code if the command has ended for good, otherwise None.
        """
        cloud, digest = self.cloud, command_digest(self.arguments.command)
        jobs = cloud.jobs(slice_state)
        running = {worker: job for worker, job in jobs.items() if job.state == "running"}
        if running:
            check_not_running(cloud, {worker: job for worker, job in running.items() if job.digest != digest})
            self.has_run = True
            if any(job.digest != digest for job in jobs.values()):
                # An earlier start did not reach all workers. The others would wait for the missing ones and then fail.
                log_message(f"{cloud.name}: some workers have not started the command; restarting it on all workers.")
                cloud.ask_workers(slice_state, "stop", "60", dry_run_answer="stopped")
                return None
            self.straggler_checks = (
                self.straggler_checks + 1 if any(job.code or job.state == "lost" for job in jobs.values()) else 0
            )
            if self.straggler_checks == MAX_STRAGGLER_CHECKS:
                log_message(f"{cloud.name}: some workers failed and others are still running; stopping the others.")
                cloud.ask_workers(slice_state, "stop", "60", dry_run_answer="stopped")
            time.sleep(cloud.poll_seconds)
            return None
        if all(job.code == DONE and job.digest == digest for job in jobs.values()):
            return DONE
        ended = all(job.digest == digest for job in jobs.values())
        if self.has_run and ended:
            worker, code = root_cause(jobs)
            self.crashes += code != PREEMPTED
            if code == USER_ERROR or self.crashes > self.arguments.max_restarts:
                cloud.show_log(worker, TAIL_LINES)
                return code
            seconds = cloud.poll_seconds * 2 ** min(self.crashes, 5)
            crash = f"crash {self.crashes}; at most {self.arguments.max_restarts} restarts"
            cause = "stopped by SIGTERM" if code == PREEMPTED else crash
            log_message(
                f"{cloud.name}: worker {worker} ended with exit code {code} ({cause}); restarting in {seconds:.0f} s."
            )
            time.sleep(seconds)
        else:
            set_up(self.arguments, cloud, slice_state)
        start(self.arguments, cloud, slice_state)
        self.has_run, self.straggler_checks = True, 0
        return DONE if cloud.dry_run else None


# Parts of the commands


def ensure_slice(cloud: Cloud, flags: Sequence[str], timeout_minutes: float) -> Slice:
    """Creates the slice if it is missing or lost, and waits until it is ready."""
    slice_state = cloud.describe()
    if slice_state.condition == "ready":
        return slice_state
    if slice_state.condition in ("lost", "deleting"):
        log_message(f"{cloud.name} is lost ({slice_state}); deleting it and creating it again.")
        cloud.delete(slice_state)
    if slice_state.condition != "waiting":
        cloud.create(*flags)
    return cloud.wait(timeout_minutes)


def set_up(arguments: argparse.Namespace, cloud: Cloud, slice_state: Slice) -> None:
    """Installs Python and afjax on all workers."""
    from_git = is_url(arguments.source)
    if not from_git:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "afjax-source.tar.gz"
            pack(Path(arguments.source), archive, dry_run=cloud.dry_run)
            cloud.copy(archive)
    log_message(f"{cloud.name}: setting up all workers. The first time, this takes a few minutes.")
    values = (arguments.extras, *((arguments.source, arguments.git_revision) if from_git else ()))
    answers = cloud.ask_workers(slice_state, "setup", *values, dry_run_answer="ready")
    check_not_running(cloud, {worker: Job("running") for worker, words in answers.items() if words == ["busy"]})


def is_url(source: str) -> bool:
    """Whether the source is a git URL, which the workers clone."""
    return bool(re.match(r"(https?|ssh|git)://|git@", source))


def tracked_files(source: Path) -> list[str]:
    """Lists the tracked files of an afjax checkout."""
    try:
        listed = subprocess.run(
            ["git", "-C", str(source), "ls-files", "-z"], capture_output=True, check=False, encoding="utf-8"
        )
    except FileNotFoundError:
        raise LaunchError("git is not installed; install it, or set --source to a git URL.") from None
    names = [name for name in listed.stdout.split("\0") if (source / name).is_file()]
    if "setup.py" not in names:
        raise LaunchError(f"--source is {source}; pass a git checkout of afjax or a git URL.")
    return names


def pack(source: Path, archive: Path, *, dry_run: bool) -> None:
    """Archives the tracked files, including their uncommitted changes."""
    names = tracked_files(source)
    if dry_run:
        print(f"# {archive} contains the {len(names)} tracked files of {source}.")
        return
    with tarfile.open(archive, "w:gz") as file:
        for name in names:
            file.add(source / name, arcname=name)


def start(arguments: argparse.Namespace, cloud: Cloud, slice_state: Slice) -> None:
    """Starts the command on all workers."""
    # The unique id lets a worker recognize a retried start.
    answers = cloud.ask_workers(
        slice_state, "start", str(time.time_ns()), shlex.join(arguments.command), dry_run_answer="started"
    )
    if missing := [worker for worker, words in answers.items() if words == ["missing"]]:
        raise LaunchError(
            f"afjax is not installed on worker {missing[0]} of {cloud.name}; run `setup {cloud.name}` first."
        )
    check_not_running(cloud, {worker: Job("running") for worker, words in answers.items() if words == ["busy"]})


def check_not_running(cloud: Cloud, jobs: Mapping[int, Job]) -> None:
    """Raises LaunchError if a job is running."""
    if running := [worker for worker, job in jobs.items() if job.state == "running"]:
        raise LaunchError(
            f"A command is already running on worker {running[0]} of {cloud.name} (see `logs`); wait, or `stop` it."
        )


@contextlib.contextmanager
def warn_if_slice_remains(cloud: Cloud) -> Iterator[None]:
    """If the block raises and the slice still exists, warns that it costs money."""
    try:
        yield
    except Exception:
        try:
            remains = "" if cloud.describe().condition == "missing" else "still exists"
        except LaunchError:
            remains = "may still exist"
        if remains:
            log_message(f"{cloud.name} {remains}; it costs money until `delete {cloud.name}`.")
        raise


def root_cause(jobs: Mapping[int, Job]) -> tuple[int, int]:
    """Finds the worker that most likely ended the command, and its exit code."""
    ranks = {USER_ERROR: 0, PREEMPTED: 2, OTHER_HOST_DIED: 3, DONE: 4}
    codes = {worker: LOST if job.code is None else job.code for worker, job in jobs.items()}
    return min(codes.items(), key=lambda item: ranks.get(item[1], 1))


def command_digest(words: Sequence[str]) -> str:
    """Hashes a command in the same way as ``tpu_vm_worker.sh``."""
    return hashlib.sha256(shlex.join(words).encode()).hexdigest()[:12]


def check_command(arguments: argparse.Namespace) -> None:
    """Raises LaunchError for an invalid command, or if babysit could not resume it."""
    words, action = arguments.command, arguments.action
    if action not in (run, babysit):
        if words:
            raise LaunchError(f"{shlex.join(words)} was given after --; only run and babysit take a command.")
        return
    expected = ["afjax", "train"] if action is babysit else ["afjax"]
    if words[: len(expected)] != expected:
        raise LaunchError(
            f"The command is {shlex.join(words) or 'missing'}; {action.__name__} expects -- {' '.join(expected)} ..."
        )
    for flag in ("--workdir", "--store", "--output"):
        folder = flag_value(words, flag)
        if action is run and folder and not folder.startswith(("gs://", "/", "~")):
            # See docs/how_to/cloud_storage.md for the paths that can be on Cloud Storage.
            local = words[1:2] == ["sweep"] or (flag == "--output" and words[1:2] != ["import"])
            remote = "" if local else f"{flag}=gs://BUCKET/FOLDER or "
            raise LaunchError(
                f"{flag} is {folder}; pass {remote}an absolute path, because the command runs in a folder that `setup` "
                "replaces."
            )
        if action is run:
            continue
        if not folder.startswith("gs://") and (folder or flag == "--workdir"):
            raise LaunchError(
                f"{flag} is {folder or 'not given'}; pass {flag}=gs://BUCKET/FOLDER, because the hosts of a slice "
                "share no disk and a preempted slice loses its disks."
            )


def check_source(arguments: argparse.Namespace) -> None:
    """Raises LaunchError if the source is not a checkout, or if a revision is given although it is one.

    This check runs before a slice is created and starts to cost money.
    """
    if arguments.action in (setup, babysit) and not is_url(arguments.source):
        if arguments.git_revision:
            raise LaunchError(
                f"--git_revision is {arguments.git_revision}, but --source is {arguments.source}, which is not a URL; "
                "give a URL, or check out this revision and leave out --git_revision."
            )
        tracked_files(Path(arguments.source))


def flag_value(words: Sequence[str], flag: str) -> str:
    """Returns the value of a flag in a command, or an empty string if it is missing."""
    value = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == flag:
            value = following
        elif word.startswith(f"{flag}="):
            value = word.removeprefix(f"{flag}=")
    return value


# The flags


def make_parser() -> argparse.ArgumentParser:
    """Builds the argument parser, which sets ``action`` to the command's function."""
    parser = argparse.ArgumentParser(prog="tpu_vm.py", description=(__doc__ or "").split("\n")[0], allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    create_parser = _command(commands, create, CREATE_EXAMPLE)
    _add_slice_flags(create_parser)
    create_parser.add_argument("--no_wait", action="store_true", help="request the slice, but do not wait for it")

    _add_source_flags(_command(commands, setup, SETUP_EXAMPLE))
    _command(commands, run, RUN_EXAMPLE)

    stop_parser = _command(commands, stop, STOP_EXAMPLE)
    stop_parser.add_argument(
        "--grace_seconds", type=whole_number, default=120, help="seconds from SIGTERM to SIGKILL (120)"
    )

    logs_parser = _command(commands, logs, LOGS_EXAMPLE)
    logs_parser.add_argument("--worker", type=int, default=0, help="index of the worker (0)")
    logs_parser.add_argument(
        "--lines", type=whole_number, default=200, help="number of lines to show, from the end of the log (200)"
    )
    logs_parser.add_argument("--follow", action="store_true", help="keep showing new lines until Ctrl-C")

    _command(commands, status, STATUS_EXAMPLE)
    _command(commands, delete, DELETE_EXAMPLE).add_argument(
        "--yes", action="store_true", help="do not ask for confirmation"
    )

    babysit_parser = _command(commands, babysit, BABYSIT_EXAMPLE)
    _add_slice_flags(babysit_parser)
    _add_source_flags(babysit_parser)
    babysit_parser.add_argument(
        "--max_restarts", type=whole_number, default=5, help="maximum number of restarts after crashes (5)"
    )
    deletion = "delete the slice when the command ends (but not if babysit itself fails)"
    babysit_parser.add_argument("--delete_at_end", action="store_true", help=deletion)
    return parser


# argparse shows these function names in its error messages.


def number(text: str) -> float:
    """Parses a nonnegative, finite number."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} was given; pass a number that is at least 0.")
    return value


def whole_number(text: str) -> int:
    """Parses a nonnegative integer."""
    number(text)
    return int(text)


def _command(commands: Any, action: Callable[..., int], example: str) -> argparse.ArgumentParser:
    summary = (action.__doc__ or "").removesuffix(".")
    parser: argparse.ArgumentParser = commands.add_parser(
        action.__name__,
        help=summary[0].lower() + summary[1:],
        description=f"{summary}.",
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(action=action)
    parser.add_argument("name", metavar="NAME", help="name of the slice")
    parser.add_argument("--zone", default="", help="zone of the slice (default: gcloud's compute/zone)")
    parser.add_argument("--project", default="", help="project of the slice (default: gcloud's core/project)")
    parser.add_argument("--poll_seconds", type=number, default=30, help="seconds between status checks (30)")
    parser.add_argument("--dry_run", action="store_true", help="print the gcloud commands without running them")
    return parser


def _add_slice_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accelerator_type", required=True, metavar="TYPE", help="for example v4-32, v5e-16, v5p-8 or v6e-16"
    )
    parser.add_argument("--topology", default="", help="for example 2x2x4, if TYPE has no size")
    parser.add_argument(
        "--runtime_version", default="", help="VM image (default: the image recommended for JAX on this type)"
    )
    capacity = parser.add_mutually_exclusive_group(required=True)
    kinds = {"spot": "cheaper, but can be preempted", "on_demand": "full price", "reserved": "use a reservation"}
    for kind, description in kinds.items():
        capacity.add_argument(f"--{kind}", dest="capacity", action="store_const", const=kind, help=description)
    parser.add_argument(
        "--service_account", default="", metavar="EMAIL", help="service account of the slice (default: the project's)"
    )
    parser.add_argument(
        "--timeout", type=number, default=1440, metavar="MINUTES", help="maximum wait for the slice (1440)"
    )


def _add_source_flags(parser: argparse.ArgumentParser) -> None:
    checkout = str(Path(__file__).resolve().parents[1])
    parser.add_argument("--source", default=checkout, help="git checkout or git URL (default: this checkout)")
    parser.add_argument(
        "--git_revision", default="", help="branch, tag or commit, if --source is a URL (default: the default branch)"
    )
    parser.add_argument("--extras", default="tpu,gcs", help="afjax extras to install (tpu,gcs)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

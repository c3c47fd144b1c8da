#!/usr/bin/env python3
"""Trains on a Cloud TPU slice from a laptop: creates the slice, sets it up and runs a command of afjax on all workers.

It needs only Python 3.10 or newer and `gcloud`. It stores no state on the laptop. The state of a slice is read from
Google Cloud, and the state of a job from files on the workers. Any command can therefore be interrupted and repeated.
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

from tpu_cloud import TAIL_LINES, Cloud, Job, LaunchError, Slice, UnreachableError, WaitedEnoughError, say, slice_flags

# Exit codes of `afjax train`. LOST is used for a lost job, which has no exit code.
DONE, LOST, MISTAKE, PREEMPTED, OTHER_HOST_DIED = 0, 1, 2, 75, 76
# MAX_FAILURES is how often in a row babysit may fail to check or recreate the slice. MAX_STRAGGLING is the number of
# consecutive checks that find both failed and running workers, after which the running workers are stopped.
MAX_FAILURES, MAX_STRAGGLING = 20, 10

CREATE_EXAMPLE = """\
examples:
  launch/tpu_vm.py create my-slice --zone=us-west4-a --accelerator_type=v5e-16 --spot
  launch/tpu_vm.py create my-slice --zone=us-central2-b --accelerator_type=v4 --topology=2x2x4 --on_demand"""

SETUP_EXAMPLE = """\
examples:
  launch/tpu_vm.py setup my-slice --zone=us-west4-a
  launch/tpu_vm.py setup my-slice --zone=us-west4-a --source=https://github.com/me/afjax.git --git_revision=main

Only files that git tracks are copied, including uncommitted changes. Commands run in the copied checkout, so paths like
configs/quickstart.py work."""

RUN_EXAMPLE = """\
example:
  launch/tpu_vm.py run my-slice --zone=us-west4-a -- \\
      afjax train --config=configs/quickstart.py --workdir=gs://my-bucket/quickstart --config.seed=1

Everything after -- is the command. It keeps running if this machine is switched off. {worker} in it stands for the
number of the worker, from 0."""

STOP_EXAMPLE = """\
example:
  launch/tpu_vm.py stop my-slice --zone=us-west4-a

First stop babysit if it is running, because it would restart the command. The slice is kept, and costs money."""

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

If babysit is stopped, run the same command again to resume. The exit code is the exit code of afjax."""


def main(argv: Sequence[str]) -> int:
    """Runs one command.

    Returns its exit code: 0, 2 after an error, 130 after Ctrl-C, or for babysit the exit code of afjax.
    """
    cut = argv.index("--") if "--" in argv else len(argv)
    arguments = make_parser().parse_args(argv[:cut])
    arguments.words = list(argv[cut + 1 :])
    cloud = Cloud(
        arguments.name,
        zone=arguments.zone,
        project=arguments.project,
        poll_seconds=arguments.poll_seconds,
        dry_run=arguments.dry_run,
        pretended=Slice() if arguments.action in (create, babysit) else Slice("ACTIVE", "READY", 1),
    )
    try:
        check_words(arguments)
        check_source(arguments)
        cloud.check()
        action: Callable[..., int] = arguments.action
        return action(arguments, cloud)
    except LaunchError as error:
        say(f"tpu_vm: {' '.join(str(error).split())}")
        return 2
    except KeyboardInterrupt:
        say(f"tpu_vm: interrupted; a slice keeps running, and costs money, until `delete {arguments.name}`.")
        return 130


# The commands


def create(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Requests a slice and waits until it is ready."""
    flags = slice_flags(arguments)
    found = cloud.describe()
    if found.condition in ("ready", "waiting"):
        raise LaunchError(f"{cloud.name} already exists ({found}); continue with `setup`, or give another name.")
    if found.condition != "missing":
        raise LaunchError(f"{cloud.name} is incomplete ({found}); run `delete {cloud.name}`, then this command again.")
    cloud.create(*flags)
    if arguments.no_wait:
        say(
            f"{cloud.name} was requested; see `status`. It costs money while it is ACTIVE, until `delete {cloud.name}`."
        )
        return 0
    with telling_what_stays(cloud):
        cloud.wait(arguments.timeout)
    say(f"{cloud.name} is ready; it costs money until `delete {cloud.name}`.")
    return 0


def setup(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Installs Python and afjax on all workers, or updates afjax there."""
    set_up(arguments, cloud, cloud.ready())
    say(f"{cloud.name} is set up.")
    return 0


def run(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Starts a command on all workers, unless one is already running."""
    found = cloud.ready()
    refuse_running(cloud, cloud.jobs(found))
    start(arguments, cloud, found)
    say(f"Started on all workers of {cloud.name}; see `logs --follow` and `status`.")
    return 0


def stop(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Stops the command on all workers: with SIGTERM, so that afjax saves a checkpoint, and later with SIGKILL."""
    cloud.ask_workers(cloud.ready(), "stop", str(arguments.grace_seconds), pretended="stopped")
    say(f"Nothing runs on {cloud.name}; it costs money until `delete {cloud.name}`.")
    return 0


def logs(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Shows the log of a worker."""
    found = cloud.ready()
    if arguments.worker not in range(found.workers) and not cloud.dry_run:
        raise LaunchError(f"--worker is {arguments.worker}; {cloud.name} has the workers 0 to {found.workers - 1}.")
    cloud.show_log(arguments.worker, arguments.lines, follow=arguments.follow)
    return 0


def status(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Shows the state of the slice and of the job on each worker."""
    found = cloud.describe()
    print(f"{cloud.name}: {found}", flush=True)
    if found.condition == "ready":
        for worker, job in cloud.jobs(found).items():
            print(f"worker {worker}: {job.state}" + (f", exit code {job.code}" if job.state == "finished" else ""))
    return 0


def delete(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Deletes the slice (its queued resource and its node)."""
    found = cloud.describe()
    if found.condition == "missing":
        say(f"{cloud.name} does not exist; there is nothing to delete.")
        return 0
    if not arguments.yes and not cloud.dry_run:
        print(f"Delete {cloud.name} ({found}) and everything on its disks? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise LaunchError(f"{cloud.name} was not deleted; answer y, or give --yes.")
    cloud.delete(found)
    say(f"{cloud.name} is deleted.")
    return 0


def babysit(arguments: argparse.Namespace, cloud: Cloud) -> int:
    """Runs a command until it finishes, and recreates the slice when it is preempted."""
    flags = slice_flags(arguments)
    # After an error the slice is kept even with --delete_at_end, so that the error can be investigated on it.
    with telling_what_stays(cloud):
        return see_through(arguments, cloud, flags)


def see_through(arguments: argparse.Namespace, cloud: Cloud, flags: Sequence[str]) -> int:
    """Runs babysit until the command ends. Returns the command's exit code."""
    watch = Watch(arguments, cloud)
    failures = 0
    while True:
        try:
            found = obtain(cloud, flags, arguments.timeout)
            code = watch.step(found)
            failures = 0
        except LaunchError as error:
            # Before the job has run, an error must be fixed by the user. Later, the same error may only mean that the
            # slice was preempted.
            may_pass = watch.seen or isinstance(error, UnreachableError)
            failures += 1
            if failures > MAX_FAILURES or not may_pass or isinstance(error, WaitedEnoughError):
                raise
            say(str(error))
            time.sleep(cloud.poll_seconds * 2 ** min(failures, 5))
            continue
        if code is not None:
            break
    say(f"{cloud.name}: the command ended with exit code {code}.")
    if arguments.delete_at_end:
        cloud.delete(found)
        say(f"{cloud.name} is deleted.")
    else:
        say(f"{cloud.name} still exists; it costs money until `delete {cloud.name}`.")
    return code


@dataclasses.dataclass
class Watch:
    """The state of babysit.

    Attributes:
      arguments: The user's arguments.
      cloud: The slice.
      seen: Whether the command has run while this process watched. Earlier failures are ignored, because the user may
        have fixed their cause.
      crashes: Number of crashes while this process watched.
      stragglers: Number of consecutive checks that found both failed and running workers.
    """

    arguments: argparse.Namespace
    cloud: Cloud
    seen: bool = False
    crashes: int = 0
    stragglers: int = 0

    def step(self, found: Slice) -> int | None:
        """Checks the slice once and acts on its state.

        Returns the exit code if the command has ended, and None otherwise.
        """
        cloud, digest = self.cloud, digest_of(self.arguments.words)
        jobs = cloud.jobs(found)
        running = {worker: job for worker, job in jobs.items() if job.state == "running"}
        if running:
            refuse_running(cloud, {worker: job for worker, job in running.items() if job.digest != digest})
            self.seen = True
            self.stragglers = (
                self.stragglers + 1 if any(job.code or job.state == "lost" for job in jobs.values()) else 0
            )
            if self.stragglers == MAX_STRAGGLING:
                say(f"{cloud.name}: some workers failed and others are still running; stopping the others.")
                cloud.ask_workers(found, "stop", "60", pretended="stopped")
            time.sleep(cloud.poll_seconds)
            return None
        if all(job.code == DONE and job.digest == digest for job in jobs.values()):
            return DONE
        ended = any(job.digest == digest for job in jobs.values())
        if self.seen and ended:
            worker, code = decisive(jobs)
            self.crashes += code != PREEMPTED
            if code == MISTAKE or self.crashes > self.arguments.max_restarts:
                cloud.show_log(worker, TAIL_LINES)
                return code
            seconds = cloud.poll_seconds * 2 ** min(self.crashes, 5)
            crash = f"crash {self.crashes}; at most {self.arguments.max_restarts} are retried"
            why = "stopped by SIGTERM" if code == PREEMPTED else crash
            say(f"{cloud.name}: worker {worker} ended with exit code {code} ({why}); restarting it in {seconds:.0f} s.")
            time.sleep(seconds)
        else:
            set_up(self.arguments, cloud, found)
        start(self.arguments, cloud, found)
        self.seen, self.stragglers = True, 0
        return DONE if cloud.dry_run else None


# Parts of the commands


def obtain(cloud: Cloud, flags: Sequence[str], timeout_minutes: float) -> Slice:
    """Returns a ready slice.

    The slice is created if it does not exist, and recreated if it is lost.
    """
    found = cloud.describe()
    if found.condition == "ready":
        return found
    if found.condition in ("lost", "deleting"):
        say(f"{cloud.name} is lost ({found}); deleting it and creating it again.")
        cloud.delete(found)
    if found.condition != "waiting":
        cloud.create(*flags)
    return cloud.wait(timeout_minutes)


def set_up(arguments: argparse.Namespace, cloud: Cloud, found: Slice) -> None:
    """Installs Python and afjax on all workers."""
    from_git = is_url(arguments.source)
    if not from_git:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / "afjax-source.tar.gz"
            pack(Path(arguments.source), archive, dry_run=cloud.dry_run)
            cloud.copy(archive)
    say(f"{cloud.name}: setting up all workers. The first time, this takes a few minutes.")
    values = (arguments.extras, *((arguments.source, arguments.git_revision) if from_git else ()))
    told = cloud.ask_workers(found, "setup", *values, pretended="ready")
    refuse_running(cloud, {worker: Job("running") for worker, words in told.items() if words == ["busy"]})


def is_url(source: str) -> bool:
    """Whether the source is the URL of a git repository, which the workers clone."""
    return bool(re.match(r"(https?|ssh|git)://|git@", source))


def tracked_files(source: Path) -> list[str]:
    """Returns the files of afjax's checkout that git tracks."""
    try:
        listed = subprocess.run(
            ["git", "-C", str(source), "ls-files", "-z"], capture_output=True, check=False, encoding="utf-8"
        )
    except FileNotFoundError:
        raise LaunchError("git is not installed; install it, or give --source the URL of a git repository.") from None
    names = [name for name in listed.stdout.split("\0") if (source / name).is_file()]
    if "setup.py" not in names:
        raise LaunchError(f"--source is {source}; give a git checkout of afjax, or the URL of a git repository.")
    return names


def pack(source: Path, archive: Path, *, dry_run: bool) -> None:
    """Archives the files that git tracks, including uncommitted changes."""
    names = tracked_files(source)
    if dry_run:
        print(f"# {archive} contains the {len(names)} files that git tracks in {source}.")
        return
    with tarfile.open(archive, "w:gz") as file:
        for name in names:
            file.add(source / name, arcname=name)


def start(arguments: argparse.Namespace, cloud: Cloud, found: Slice) -> None:
    """Starts the command on all workers."""
    # With a unique id, a worker recognizes a retry of the same start.
    told = cloud.ask_workers(found, "start", str(time.time_ns()), shlex.join(arguments.words), pretended="started")
    if missing := [worker for worker, words in told.items() if words == ["missing"]]:
        raise LaunchError(
            f"afjax is not installed on worker {missing[0]} of {cloud.name}; run `setup {cloud.name}` first."
        )
    refuse_running(cloud, {worker: Job("running") for worker, words in told.items() if words == ["busy"]})


def refuse_running(cloud: Cloud, jobs: Mapping[int, Job]) -> None:
    """Raises LaunchError if a job is running."""
    if running := [worker for worker, job in jobs.items() if job.state == "running"]:
        raise LaunchError(
            f"A command is already running on worker {running[0]} of {cloud.name} (see `logs`); wait, or `stop` it."
        )


@contextlib.contextmanager
def telling_what_stays(cloud: Cloud) -> Iterator[None]:
    """Warns that the slice costs money if the block raises and the slice still exists."""
    try:
        yield
    except Exception:
        try:
            stays = "" if cloud.describe().condition == "missing" else "still exists"
        except LaunchError:
            stays = "may still exist"
        if stays:
            say(f"{cloud.name} {stays}; it costs money until `delete {cloud.name}`.")
        raise


def decisive(jobs: Mapping[int, Job]) -> tuple[int, int]:
    """Returns the worker that best explains why the command ended, and its exit code."""
    ranks = {MISTAKE: 0, PREEMPTED: 2, OTHER_HOST_DIED: 3, DONE: 4}
    codes = {worker: LOST if job.code is None else job.code for worker, job in jobs.items()}
    return min(codes.items(), key=lambda item: ranks.get(item[1], 1))


def digest_of(words: Sequence[str]) -> str:
    """Returns the digest of a command, as ``tpu_vm_worker.sh`` computes it."""
    return hashlib.sha256(shlex.join(words).encode()).hexdigest()[:12]


def check_words(arguments: argparse.Namespace) -> None:
    """Raises LaunchError if the command is missing, or if babysit could not resume it."""
    words, action = arguments.words, arguments.action
    if action not in (run, babysit):
        if words:
            raise LaunchError(f"{shlex.join(words)} was given after --; only run and babysit take a command.")
        return
    wanted = ["afjax", "train"] if action is babysit else ["afjax"]
    if words[: len(wanted)] != wanted:
        raise LaunchError(f"The command is {shlex.join(words) or 'missing'}; give it as -- {' '.join(wanted)} ...")
    if action is run:
        return
    for flag in ("--workdir", "--store"):
        folder = value_of(words, flag)
        if not folder.startswith("gs://") and (folder or flag == "--workdir"):
            raise LaunchError(
                f"{flag} is {folder or 'not given'}; give {flag}=gs://BUCKET/FOLDER, because the hosts of a slice "
                "share no disk, and a preempted slice loses its disks."
            )


def check_source(arguments: argparse.Namespace) -> None:
    """Raises LaunchError if the source is not a checkout.

    It is called before a slice is created and costs money.
    """
    if arguments.action in (setup, babysit) and not is_url(arguments.source):
        tracked_files(Path(arguments.source))


def value_of(words: Sequence[str], flag: str) -> str:
    """Returns the value of a flag in a command, or an empty string."""
    value = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == flag:
            value = following
        elif word.startswith(f"{flag}="):
            value = word.removeprefix(f"{flag}=")
    return value


# The flags


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser of all commands.

    It sets ``action`` to the function of the given command.
    """
    parser = argparse.ArgumentParser(prog="tpu_vm.py", description=(__doc__ or "").split("\n")[0], allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    creating = _command(commands, create, CREATE_EXAMPLE)
    _add_slice_flags(creating)
    creating.add_argument("--no_wait", action="store_true", help="request the slice without waiting for it")

    _add_source_flags(_command(commands, setup, SETUP_EXAMPLE))
    _command(commands, run, RUN_EXAMPLE)

    stopping = _command(commands, stop, STOP_EXAMPLE)
    stopping.add_argument(
        "--grace_seconds", type=whole_number, default=120, help="seconds from SIGTERM to SIGKILL (120)"
    )

    showing = _command(commands, logs, LOGS_EXAMPLE)
    showing.add_argument("--worker", type=int, default=0, help="number of the worker (0)")
    showing.add_argument("--lines", type=whole_number, default=200, help="number of lines from the end (200)")
    showing.add_argument("--follow", action="store_true", help="also show new lines, until Ctrl-C")

    _command(commands, status, STATUS_EXAMPLE)
    _command(commands, delete, DELETE_EXAMPLE).add_argument(
        "--yes", action="store_true", help="do not ask for confirmation"
    )

    sitting = _command(commands, babysit, BABYSIT_EXAMPLE)
    _add_slice_flags(sitting)
    _add_source_flags(sitting)
    sitting.add_argument(
        "--max_restarts", type=whole_number, default=5, help="maximum number of restarts after crashes (5)"
    )
    deletion = "delete the slice when the command has ended (but not after an error of babysit itself)"
    sitting.add_argument("--delete_at_end", action="store_true", help=deletion)
    return parser


# argparse prints the names of these functions in its messages about invalid values.


def number(text: str) -> float:
    """Parses a number that is at least 0."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} was given; give a number that is at least 0.")
    return value


def whole_number(text: str) -> int:
    """Parses a whole number that is at least 0."""
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
    parser.add_argument("--zone", default="", help="zone of the slice (gcloud's compute/zone)")
    parser.add_argument("--project", default="", help="project of the slice (gcloud's core/project)")
    parser.add_argument("--poll_seconds", type=number, default=30, help="seconds between checks (30)")
    parser.add_argument("--dry_run", action="store_true", help="print the gcloud commands without running them")
    return parser


def _add_slice_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--accelerator_type", required=True, metavar="TYPE", help="for example v4-32, v5e-16, v5p-8 or v6e-16"
    )
    parser.add_argument("--topology", default="", help="for example 2x2x4, if the type has no size")
    parser.add_argument("--runtime_version", default="", help="the VM image (by default JAX's image for the type)")
    capacity = parser.add_mutually_exclusive_group(required=True)
    kinds = {"spot": "cheap, can be preempted", "on_demand": "full price", "reserved": "from a reservation"}
    for kind, what in kinds.items():
        capacity.add_argument(f"--{kind}", dest="capacity", action="store_const", const=kind, help=what)
    parser.add_argument(
        "--service_account", default="", metavar="EMAIL", help="service account of the slice (the project's default)"
    )
    parser.add_argument(
        "--timeout", type=number, default=1440, metavar="MINUTES", help="maximum time to wait for the slice (1440)"
    )


def _add_source_flags(parser: argparse.ArgumentParser) -> None:
    here = str(Path(__file__).resolve().parents[1])
    parser.add_argument("--source", default=here, help="git checkout, or URL of a git repository (this checkout)")
    parser.add_argument(
        "--git_revision", default="", help="branch, tag or commit of the repository (its default branch)"
    )
    parser.add_argument("--extras", default="tpu,gcs", help="extras of afjax to install (tpu,gcs)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

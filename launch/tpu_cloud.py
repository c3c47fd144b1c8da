"""Creates and deletes a Cloud TPU slice with `gcloud`, and runs functions on it."""

import argparse
import dataclasses
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

WORKER_SCRIPT = Path(__file__).with_name("tpu_vm_worker.sh")
# The VM image of each generation, from https://cloud.google.com/tpu/docs/runtimes.
RUNTIME_VERSIONS = {
    "v2": "tpu-ubuntu2204-base",
    "v3": "tpu-ubuntu2204-base",
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
TRIES = 4
TAIL_LINES = 40
# Maximum number of attempts to delete a slice.
PATIENCE = 20

# gcloud's error messages and what to do about them. The first match counts.
ADVICE = (
    (r"auth login|[Rr]eauth|active account|invalid_grant", "gcloud is not logged in; run `gcloud auth login`."),
    (
        r"SERVICE_DISABLED|API has not been used|it is disabled",
        "the Cloud TPU API is off in this project; run `gcloud services enable tpu.googleapis.com`.",
    ),
    (
        r"Location \S+ is not found|may not exist",
        "this zone has no TPUs, or none for this project; give another --zone.",
    ),
    (
        r"PERMISSION_DENIED|not have permission",
        "this account may not use TPUs in this project; ask an administrator of the project for the role "
        "roles/tpu.admin, or give another --project.",
    ),
    (
        r"[Qq]uota",
        "there is no quota left for this accelerator; ask for more under IAM & Admin > Quotas (Cloud TPU API), give "
        "another --zone, or switch between --spot and --on_demand.",
    ),
    (
        r"RESOURCE_EXHAUSTED|no more capacity|[Ii]nsufficient.*capacity|[Ss]tockout",
        "no such slice is available in this zone; give another --zone or a smaller slice, or try again later.",
    ),
    (
        r"ALREADY_EXISTS|already exists",
        "a slice of this name exists; give another name, or delete that slice with `delete`.",
    ),
    (
        r"INVALID_ARGUMENT|[Ii]nvalid (value|choice)|unrecognized arguments|Must be specified",
        "gcloud rejected the arguments; correct the flag that it names.",
    ),
)


class LaunchError(Exception):
    """An error that the user can fix. The message says how."""


class UnreachableError(LaunchError):
    """gcloud or a worker did not answer in several tries. The cause may be temporary."""


class WaitedEnoughError(LaunchError):
    """The slice was not granted within ``--timeout``."""


class Job(NamedTuple):
    """The state of a worker's job, as the worker reports it.

    Attributes:
      state: ``idle`` (no job was ever started), ``running``, ``finished`` or ``lost`` (ended without an exit code, for
        example because the worker was restarted).
      digest: The digest of the command.
      code: The exit code of a finished job.
    """

    state: str
    digest: str = ""
    code: int | None = None


@dataclasses.dataclass(frozen=True)
class Slice:
    """The state of a slice, in Google Cloud's terms.

    Attributes:
      request: The state of the queued resource; empty if it does not exist.
      node: The state of the node; empty if it does not exist.
      workers: The number of the node's workers.
      reason: Google Cloud's error message if the request failed; otherwise empty.
    """

    request: str = ""
    node: str = ""
    workers: int = 0
    reason: str = ""

    @property
    def condition(self) -> str:
        """``missing``, ``waiting``, ``ready``, ``deleting`` or ``lost``.

        A slice is lost if it was preempted, failed or is incomplete.
        """
        if not self.request and not self.node:
            return "missing"
        if "DELETING" in (self.request, self.node):
            return "deleting"
        if self.request in ("SUSPENDING", "SUSPENDED", "FAILED"):
            return "lost"
        if self.node in ("PREEMPTED", "TERMINATED", "STOPPING", "STOPPED", "HIDING", "HIDDEN"):
            return "lost"
        if self.request not in ("", "ACTIVE"):
            return "waiting"
        # A node that was created without a queued resource can be used too.
        if self.node == "READY":
            return "ready"
        return "waiting" if self.request and self.node else "lost"

    def __str__(self) -> str:
        states = (("queued resource", self.request), ("node", self.node))
        text = ", ".join(f"{kind} {state}" if state else f"no {kind}" for kind, state in states)
        return text + (f": {self.reason}" if self.reason else "")


class Cloud:
    """A slice, which gcloud manages.

    A dry run only prints the gcloud commands, and assumes that they succeed.

    Args:
      name: The slice's name.
      zone: The slice's zone. If empty, gcloud's setting is used.
      project: The slice's project. If empty, gcloud's setting is used.
      poll_seconds: Seconds between checks of the slice's state.
      dry_run: Whether to only print the commands.
      pretended: The slice's state that a dry run assumes.
    """

    def __init__(
        self, name: str, *, zone: str, project: str, poll_seconds: float, dry_run: bool, pretended: Slice
    ) -> None:
        self.name = name
        self.poll_seconds = poll_seconds
        self.dry_run = dry_run
        self._flags = [f"--{flag}={value}" for flag, value in (("zone", zone), ("project", project)) if value]
        self._pretended = pretended

    # gcloud

    def check(self) -> None:
        """Raises LaunchError if gcloud, its login, the project or the zone is missing.

        It is called before a slice is created.
        """
        if self.dry_run:
            return
        if not shutil.which("gcloud"):
            raise LaunchError("gcloud is not on PATH; install it from https://cloud.google.com/sdk/docs/install.")
        done = self._gcloud("config", "list", "--format=json")
        if done.returncode:
            raise LaunchError(str(self._explained(done)))
        settings = _parsed(done)
        if not settings.get("core", {}).get("account"):
            raise LaunchError("gcloud is not logged in; run `gcloud auth login`.")
        for section, flag in (("core", "project"), ("compute", "zone")):
            given = any(word.startswith(f"--{flag}=") for word in self._flags)
            if not given and not settings.get(section, {}).get(flag):
                raise LaunchError(f"No {flag} is set; give --{flag}, or run `gcloud config set {section}/{flag} ...`.")

    def _gcloud(self, *words: str, capture: bool = True) -> subprocess.CompletedProcess[str]:
        if self.dry_run:
            print(shlex.join(["gcloud", *words]))
            return subprocess.CompletedProcess(words, 0, "{}", "")
        # On Windows the command is gcloud.cmd, which subprocess only finds under its full name.
        command = [shutil.which("gcloud") or "gcloud", *words]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=capture, check=False, encoding="utf-8", errors="replace"
        )

    def _tpus(self, group: str, verb: str, *words: str, capture: bool = True) -> subprocess.CompletedProcess[str]:
        return self._gcloud("compute", "tpus", group, verb, *words, *self._flags, "--quiet", capture=capture)

    def _explained(self, done: subprocess.CompletedProcess[str]) -> LaunchError:
        """Returns the error for a failed command. Its message contains advice."""
        for pattern, advice in ADVICE:
            if re.search(pattern, done.stderr):
                return LaunchError(f"{self.name}: {advice} ({_said(done)})")
        return UnreachableError(f"{self.name}: gcloud failed, try again. ({_said(done)})")

    def _waits(self) -> Iterator[float | None]:
        """Yields the seconds to wait after each try, and None after the last."""
        yield from (min(self.poll_seconds, 5) * 2**number for number in range(TRIES - 1))
        yield None

    # The slice

    def describe(self) -> Slice:
        """Returns the current state of the slice."""
        # The request is checked first: if it is active, its node already exists.
        request, node = self._described("queued-resources"), self._described("tpu-vm")
        if self.dry_run:
            return self._pretended
        state = request.get("state", {})
        failure = state.get("failedData", {}).get("error", {}).get("message", "")
        workers = len(node.get("networkEndpoints", []))
        return Slice(state.get("state", ""), node.get("state", ""), workers, " ".join(failure.split()))

    def _described(self, group: str) -> dict[str, Any]:
        for seconds in self._waits():
            done = self._tpus(group, "describe", self.name, "--format=json")
            if done.returncode == 0:
                return _parsed(done)
            error = self._explained(done)
            may_pass = isinstance(error, UnreachableError)
            if may_pass and re.search(r"NOT_FOUND|not found", done.stderr):
                return {}
            if seconds is None or not may_pass:
                break
            time.sleep(seconds)
        raise error

    def ready(self) -> Slice:
        """Returns the state of the slice. Raises LaunchError if it is not ready."""
        found = self.describe()
        advice = {
            "missing": f"create it with `create {self.name}`.",
            "waiting": "it is not ready yet; try again later.",
            "deleting": f"it is being deleted; wait, then create it again with `create {self.name}`.",
            "lost": "it was preempted or is incomplete; run `delete` and then `create`, or only `babysit`.",
        }
        if found.condition != "ready":
            raise LaunchError(f"{self.name} has {found}; {advice[found.condition]}")
        return found

    def create(self, *flags: str) -> None:
        """Requests the slice."""
        done = self._tpus("queued-resources", "create", self.name, f"--node-id={self.name}", *flags)
        if done.returncode:
            raise LaunchError(str(self._explained(done)))
        self._pretended = Slice("ACTIVE", "READY", 1)

    def wait(self, timeout_minutes: float) -> Slice:
        """Waits until the slice is ready.

        A request that is not granted in time is canceled. Otherwise it could be granted later and cost money unnoticed.
        """
        begin = time.monotonic()
        shown, shown_at = "", begin
        while True:
            found = self.describe()
            now = time.monotonic()
            if str(found) != shown or now - shown_at > 300:
                shown, shown_at = str(found), now
                say(f"{self.name}: {found} (waited {(now - begin) / 60:.0f} min)")
            if found.condition == "ready":
                return found
            if found.condition != "waiting":
                raise LaunchError(
                    f"{self.name} was not granted ({found}); run `delete {self.name}`, and try another zone or size."
                )
            if now - begin >= timeout_minutes * 60:
                self.delete(found)
                raise WaitedEnoughError(
                    f"{self.name} was not granted within {timeout_minutes:g} minutes, and its request was canceled; "
                    "give a longer --timeout, another --zone or a smaller slice."
                )
            time.sleep(self.poll_seconds)

    def delete(self, found: Slice) -> None:
        """Deletes the slice, even if it is incomplete, and waits until it is gone."""
        for _ in range(PATIENCE):
            done = None
            if found.request and found.request != "DELETING":
                # --force also deletes the node, whatever its state.
                done = self._tpus("queued-resources", "delete", self.name, "--force")
            elif not found.request and found.node != "DELETING":
                done = self._tpus("tpu-vm", "delete", self.name)
            self._pretended = Slice()
            found = self.describe()
            if found.condition == "missing":
                return
            if done and done.returncode:
                say(str(self._explained(done)))
            time.sleep(self.poll_seconds)
        raise LaunchError(
            f"{self.name} could not be deleted and may cost money ({found}); delete it in the Cloud console."
        )

    # Its workers

    def ask_workers(self, found: Slice, function: str, *values: str, pretended: str) -> Mapping[int, list[str]]:
        """Calls a function of ``tpu_vm_worker.sh`` on all workers.

        Args:
          found: The slice's state.
          function: The name of the function.
          *values: The function's arguments.
          pretended: The answer of a worker that a dry run assumes.

        Returns:
          The answer of each worker, split into words, by the worker's number.
        """
        script = re.sub(r"^ *#.*\n", "", WORKER_SCRIPT.read_text(encoding="utf-8"), flags=re.MULTILINE)
        command = shlex.join(["bash", "-c", script, "worker", function, *values])
        told: dict[int, list[str]] = {}
        for seconds in self._waits():
            done = self._tpus("tpu-vm", "ssh", self.name, "--worker=all", f"--command={command}")
            if self.dry_run:
                return {0: pretended.split()}
            told |= {
                int(worker): words.split() for worker, words in re.findall(r"afjax-worker (\d+) (.+)", done.stdout)
            }
            if failed := [worker for worker in told if told[worker] == ["failed"]]:
                print(*(done.stdout + done.stderr).splitlines()[-TAIL_LINES:], sep="\n", file=sys.stderr)
                raise LaunchError(
                    f"{self.name}: {function} failed on worker {failed[0]}, see above; run the command again."
                )
            if len(told) >= found.workers:
                return dict(sorted(told.items()))
            if seconds is not None:
                time.sleep(seconds)
        raise UnreachableError(
            f"{self.name}: {len(told)} of {found.workers} workers answered over ssh; check that the network's firewall "
            f"allows port 22, and try again. ({_said(done)})"
        )

    def copy(self, source: Path) -> None:
        """Copies a file to the home folder of all workers."""
        for seconds in self._waits():
            done = self._tpus("tpu-vm", "scp", str(source), f"{self.name}:{source.name}", "--worker=all")
            if not done.returncode:
                return
            if seconds is not None:
                time.sleep(seconds)
        raise self._explained(done)

    def jobs(self, found: Slice) -> dict[int, Job]:
        """Returns the state of the job on each worker."""
        jobs = {}
        for worker, (state, *rest) in self.ask_workers(found, "status", pretended="idle").items():
            jobs[worker] = Job(state, "".join(rest[:1]), int(rest[1]) if state == "finished" else None)
        return jobs

    def show_log(self, worker: int, lines: int, *, follow: bool = False) -> None:
        """Prints the end of a worker's log.

        With ``follow``, it also prints new lines until interrupted.
        """
        tail = f"tail -n {lines} {'-F ' if follow else ''}afjax-job/log"
        words = ("ssh", self.name, f"--worker={worker}", f"--command={tail}")
        done = self._tpus("tpu-vm", *words, capture=False)
        if done.returncode:
            raise LaunchError(f"{self.name}: worker {worker} has no log yet or cannot be reached; see above.")


def slice_flags(arguments: argparse.Namespace) -> list[str]:
    """Returns gcloud's flags for the requested slice."""
    given, topology = arguments.accelerator_type, arguments.topology
    # Google Cloud's documentation says v5e, but its commands say v5litepod.
    kind = re.sub(r"^v5e\b", "v5litepod", given)
    generation, _, size = kind.partition("-")
    if bool(size) == bool(topology):
        raise LaunchError(
            f"--accelerator_type is {given} and --topology is {topology or 'not given'}; give a type with a size, as "
            "in v5e-16, or a type without one and a topology, as in v4 and 2x2x4."
        )
    runtime = arguments.runtime_version or RUNTIME_VERSIONS.get(generation)
    if not runtime:
        raise LaunchError(
            f"--accelerator_type is {given}; known are {', '.join(RUNTIME_VERSIONS)} with a size, as in v5e-16; for "
            "another type, also give --runtime_version."
        )
    flags = [f"--accelerator-type={kind}"] if size else [f"--type={kind}", f"--topology={topology}"]
    flags.append(f"--runtime-version={runtime}")
    if arguments.capacity != "on_demand":
        flags.append(f"--{arguments.capacity}")
    # `wait` cancels the request after --timeout. If this machine is switched off while it waits, the request expires a
    # little later, so that no slice is granted and costs money unnoticed.
    flags.append(f"--valid-until-duration={math.ceil(arguments.timeout) + 10}m")
    if arguments.service_account:
        flags.append(f"--service-account={arguments.service_account}")
    return flags


def say(line: str) -> None:
    """Prints a message to stderr."""
    print(line, file=sys.stderr, flush=True)


def _parsed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Returns the JSON object that gcloud printed."""
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        command = shlex.join(["gcloud", *done.args[1:]])
        raise LaunchError(
            f"gcloud answered {done.stdout[:100]!r}, which is not a JSON object; make sure that `{command}` prints "
            "only a JSON object."
        )
    return answer


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """Returns gcloud's error on one line."""
    words = " ".join(done.stderr.split())
    return words[words.find("ERROR:") :][:300] if "ERROR:" in words else words[-300:] or f"exit code {done.returncode}"

"""Manages a Cloud TPU slice with `gcloud`, and runs functions on its workers."""

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
# Default VM image of each TPU generation, from https://cloud.google.com/tpu/docs/runtimes.
RUNTIME_VERSIONS = {
    "v2": "tpu-ubuntu2204-base",
    "v3": "tpu-ubuntu2204-base",
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
# States of a node that is not ready yet.
BECOMES_READY = ("CREATING", "STARTING", "RESTARTING", "REPAIRING", "UNHIDING")
MAX_TRIES = 4
TAIL_LINES = 40
MAX_DELETE_TRIES = 20

# Patterns of gcloud errors, and advice for each. The first matching pattern is used.
ADVICE = (
    # (gcloud also ends other errors with "which is the active account".)
    (
        r"auth login|[Rr]eauth|not currently have an active account|invalid_grant",
        "gcloud is not logged in; run `gcloud auth login`.",
    ),
    (
        r"SERVICE_DISABLED|API has not been used|it is disabled",
        "the Cloud TPU API is disabled in this project; run `gcloud services enable tpu.googleapis.com`.",
    ),
    (
        r"Location \S+ is not found|Permission denied on \S+ \(or it may not exist",
        "this zone has no TPUs, or none for this project; choose a different --zone.",
    ),
    (
        r"PERMISSION_DENIED|not have permission|Permission \S+ denied",
        "this account may not use TPUs in this project; ask a project administrator to grant it the role "
        "roles/tpu.admin, or choose a different --project.",
    ),
    (
        r"[Qq]uota",
        "there is no quota left for this accelerator; request more under IAM & Admin > Quotas (Cloud TPU API), choose "
        "a different --zone, or switch between --spot and --on_demand.",
    ),
    (
        r"RESOURCE_EXHAUSTED|no more capacity|[Ii]nsufficient.*capacity|[Ss]tockout",
        "no such slice is available in this zone; choose a different --zone or a smaller slice, or try again later.",
    ),
    (
        r"ALREADY_EXISTS|already exists",
        "a slice with this name already exists; choose a different name, or `delete` that slice.",
    ),
    (
        r"INVALID_ARGUMENT|[Ii]nvalid (value|choice)|unrecognized arguments|Must be specified",
        "gcloud rejected the arguments; correct the flag named in its error.",
    ),
)


class LaunchError(Exception):
    """An error that the user can fix. The message explains how."""


class UnreachableError(LaunchError):
    """gcloud failed or a worker did not answer. The cause may be temporary."""


class WaitTimeoutError(LaunchError):
    """The slice was not granted within ``--timeout``."""


class Job(NamedTuple):
    """The state of a worker's job, as reported by the worker.

    Attributes:
      state: ``idle`` (never started), ``running``, ``finished``, or ``lost`` (ended without an exit code, for example
        because the worker restarted).
      digest: The command's digest.
      code: The exit code if the job is finished, otherwise None.
    """

    state: str
    digest: str = ""
    code: int | None = None


@dataclasses.dataclass(frozen=True)
class Slice:
    """The state of a slice, in Google Cloud's terms.

    Attributes:
      request: The state of the queued resource, or empty if there is none.
      node: The state of the node, or empty if there is none.
      workers: The number of workers of the node.
      reason: Google Cloud's error message if the request failed, otherwise empty.
    """

    request: str = ""
    node: str = ""
    workers: int = 0
    reason: str = ""

    @property
    def condition(self) -> str:
        """One of ``missing``, ``waiting``, ``ready``, ``deleting`` and ``lost``.

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
        # A node created without a queued resource is usable too.
        if self.node == "READY":
            # A node that does not list its workers yet cannot run anything.
            return "ready" if self.workers else "waiting"
        return "waiting" if (self.request and self.node) or self.node in BECOMES_READY else "lost"

    def __str__(self) -> str:
        states = (("queued resource", self.request), ("node", self.node))
        text = ", ".join(f"{kind} {state}" if state else f"no {kind}" for kind, state in states)
        text += ", no workers" if self.node == "READY" and not self.workers else ""
        return text + (f": {self.reason}" if self.reason else "")


class Cloud:
    """A slice, managed through gcloud.

    Args:
      name: The slice's name.
      zone: The slice's zone. If empty, gcloud's setting is used.
      project: The slice's project. If empty, gcloud's setting is used.
      poll_seconds: Seconds between status checks.
      dry_run: Whether to print the gcloud commands and assume that they succeed, instead of running them.
      dry_run_slice: The initial state of the slice in a dry run.
    """

    def __init__(
        self, name: str, *, zone: str, project: str, poll_seconds: float, dry_run: bool, dry_run_slice: Slice
    ) -> None:
        self.name = name
        self.poll_seconds = poll_seconds
        self.dry_run = dry_run
        self._flags = [f"--{flag}={value}" for flag, value in (("zone", zone), ("project", project)) if value]
        self._dry_run_slice = dry_run_slice

    # gcloud

    def check(self) -> None:
        """Raises LaunchError unless gcloud is installed, logged in and configured."""
        if self.dry_run:
            return
        if not shutil.which("gcloud"):
            raise LaunchError("gcloud is not on PATH; install it from https://cloud.google.com/sdk/docs/install.")
        done = self._gcloud("config", "list", "--format=json")
        if done.returncode:
            raise LaunchError(str(self._error_from(done)))
        settings = _parse_json(done)
        if not settings.get("core", {}).get("account"):
            raise LaunchError("gcloud is not logged in; run `gcloud auth login`.")
        for section, flag in (("core", "project"), ("compute", "zone")):
            given = any(word.startswith(f"--{flag}=") for word in self._flags)
            if not given and not settings.get(section, {}).get(flag):
                raise LaunchError(f"No {flag} is set; pass --{flag}, or run `gcloud config set {section}/{flag} ...`.")

    def _gcloud(self, *words: str, capture: bool = True) -> subprocess.CompletedProcess[str]:
        if self.dry_run:
            print(shlex.join(["gcloud", *words]))
            return subprocess.CompletedProcess(words, 0, "{}", "")
        # On Windows the command is gcloud.cmd, which subprocess finds only by its full name.
        command = [shutil.which("gcloud") or "gcloud", *words]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=capture, check=False, encoding="utf-8", errors="replace"
        )

    def _tpus(self, group: str, verb: str, *words: str, capture: bool = True) -> subprocess.CompletedProcess[str]:
        return self._gcloud("compute", "tpus", group, verb, *words, *self._flags, "--quiet", capture=capture)

    def _error_from(self, done: subprocess.CompletedProcess[str]) -> LaunchError:
        """Builds the exception for a failed gcloud command, with advice if possible."""
        # Names of resources could match a pattern.
        text = re.sub(r"projects/\S+", "RESOURCE", done.stderr)
        text = re.sub(rf"\b{re.escape(self.name)}\b", "NAME", text)
        for pattern, advice in ADVICE:
            if re.search(pattern, text):
                return LaunchError(f"{self.name}: {advice} ({_error_text(done)})")
        return UnreachableError(f"{self.name}: gcloud failed, try again. ({_error_text(done)})")

    def _retry_delays(self) -> Iterator[float | None]:
        """Yields the delay in seconds after each attempt, and None after the last one."""
        yield from (min(self.poll_seconds, 5) * 2**number for number in range(MAX_TRIES - 1))
        yield None

    # The slice

    def describe(self) -> Slice:
        """Returns the current state of the slice."""
        # Query the request before the node: once a request is active, its node exists.
        request, node = self._describe_resource("queued-resources"), self._describe_resource("tpu-vm")
        if self.dry_run:
            return self._dry_run_slice
        state = request.get("state", {})
        failure = state.get("failedData", {}).get("error", {}).get("message", "")
        workers = len(node.get("networkEndpoints", []))
        return Slice(state.get("state", ""), node.get("state", ""), workers, " ".join(failure.split()))

    def _describe_resource(self, group: str) -> dict[str, Any]:
        for seconds in self._retry_delays():
            done = self._tpus(group, "describe", self.name, "--format=json")
            if done.returncode == 0:
                return _parse_json(done)
            error = self._error_from(done)
            temporary = isinstance(error, UnreachableError)
            if temporary and re.search(r"NOT_FOUND|not found", done.stderr):
                return {}
            if seconds is None or not temporary:
                break
            time.sleep(seconds)
        raise error

    def ready(self) -> Slice:
        """Returns the state of the slice. Raises LaunchError if it is not ready."""
        slice_state = self.describe()
        advice = {
            "missing": f"create it with `create {self.name}`.",
            "waiting": "it is not ready yet; try again later.",
            "deleting": f"it is being deleted; wait, then create it again with `create {self.name}`.",
            "lost": "it was preempted or is incomplete; run `delete` and then `create`, or use `babysit`.",
        }
        if slice_state.condition != "ready":
            raise LaunchError(f"{self.name} has {slice_state}; {advice[slice_state.condition]}")
        return slice_state

    def create(self, *flags: str) -> None:
        """Requests the slice."""
        done = self._tpus("queued-resources", "create", self.name, f"--node-id={self.name}", *flags)
        if done.returncode:
            raise LaunchError(str(self._error_from(done)))
        self._dry_run_slice = Slice("ACTIVE", "READY", 1)

    def wait(self, timeout_minutes: float) -> Slice:
        """Waits until the slice is ready.

        If the request is not granted in time, it is canceled, because a slice granted later would cost money unnoticed.
        """
        begin = time.monotonic()
        last_logged, last_logged_at = "", begin
        while True:
            slice_state = self.describe()
            now = time.monotonic()
            if str(slice_state) != last_logged or now - last_logged_at > 300:
                last_logged, last_logged_at = str(slice_state), now
                log_message(f"{self.name}: {slice_state} (waited {(now - begin) / 60:.0f} min)")
            if slice_state.condition == "ready":
                return slice_state
            if slice_state.condition != "waiting":
                raise LaunchError(
                    f"{self.name} was not granted ({slice_state}); run `delete {self.name}`, then try a different zone "
                    "or size."
                )
            if now - begin >= timeout_minutes * 60:
                self.delete(slice_state)
                raise WaitTimeoutError(
                    f"{self.name} was not granted within {timeout_minutes:g} minutes, and its request was canceled; "
                    "try a longer --timeout, a different --zone or a smaller slice."
                )
            time.sleep(self.poll_seconds)

    def delete(self, slice_state: Slice) -> None:
        """Deletes a complete or incomplete slice, and waits until it is gone."""
        for _ in range(MAX_DELETE_TRIES):
            done = None
            if slice_state.request and slice_state.request != "DELETING":
                # --force also deletes the node, in any state.
                done = self._tpus("queued-resources", "delete", self.name, "--force")
            elif not slice_state.request and slice_state.node != "DELETING":
                done = self._tpus("tpu-vm", "delete", self.name)
            self._dry_run_slice = Slice()
            slice_state = self.describe()
            if slice_state.condition == "missing":
                return
            if done and done.returncode:
                log_message(str(self._error_from(done)))
            time.sleep(self.poll_seconds)
        raise LaunchError(
            f"{self.name} could not be deleted and may cost money ({slice_state}); delete it in the Cloud console."
        )

    # The workers

    def ask_workers(
        self, slice_state: Slice, function: str, *values: str, dry_run_answer: str
    ) -> Mapping[int, list[str]]:
        """Calls a function of ``tpu_vm_worker.sh`` on all workers.

        Args:
          slice_state: The slice's state.
          function: The function's name.
          *values: The function's arguments.
          dry_run_answer: A worker's answer in a dry run.

        Returns:
          Each worker's answer, split into words, by worker index.
        """
        script = re.sub(r"^ *#.*\n", "", WORKER_SCRIPT.read_text(encoding="utf-8"), flags=re.MULTILINE)
        command = shlex.join(["bash", "-c", script, "worker", function, *values])
        answers: dict[int, list[str]] = {}
        for seconds in self._retry_delays():
            done = self._tpus("tpu-vm", "ssh", self.name, "--worker=all", f"--command={command}")
            if self.dry_run:
                return {0: dry_run_answer.split()}
            answers |= {
                int(worker): words.split() for worker, words in re.findall(r"afjax-worker (\d+) (.+)", done.stdout)
            }
            if failed := [worker for worker in answers if answers[worker] == ["failed"]]:
                print(*(done.stdout + done.stderr).splitlines()[-TAIL_LINES:], sep="\n", file=sys.stderr)
                raise LaunchError(
                    f"{self.name}: {function} failed on worker {failed[0]}, see above; fix the cause and "
                    "run the command again."
                )
            if len(answers) >= slice_state.workers:
                return dict(sorted(answers.items()))
            if seconds is not None:
                time.sleep(seconds)
        raise UnreachableError(
            f"{self.name}: {len(answers)} of {slice_state.workers} workers answered over ssh; check that the "
            f"network's firewall allows port 22, and try again. ({_error_text(done)})"
        )

    def copy(self, source: Path) -> None:
        """Copies a file to the home folder of every worker."""
        for seconds in self._retry_delays():
            done = self._tpus("tpu-vm", "scp", str(source), f"{self.name}:{source.name}", "--worker=all")
            if not done.returncode:
                return
            if seconds is not None:
                time.sleep(seconds)
        raise self._error_from(done)

    def jobs(self, slice_state: Slice) -> dict[int, Job]:
        """Returns the state of the job on each worker."""
        jobs = {}
        for worker, (state, *rest) in self.ask_workers(slice_state, "status", dry_run_answer="idle").items():
            jobs[worker] = Job(state, "".join(rest[:1]), int(rest[1]) if state == "finished" else None)
        return jobs

    def show_log(self, worker: int, lines: int, *, follow: bool = False) -> None:
        """Prints the last lines of a worker's log.

        With ``follow``, keeps printing new lines until interrupted.
        """
        tail = f"tail -n {lines} {'-F ' if follow else ''}afjax-job/log"
        words = ("ssh", self.name, f"--worker={worker}", f"--command={tail}")
        done = self._tpus("tpu-vm", *words, capture=False)
        if done.returncode:
            raise LaunchError(f"{self.name}: worker {worker} has no log yet or cannot be reached; see above.")


def slice_flags(arguments: argparse.Namespace) -> list[str]:
    """Translates the arguments into gcloud flags for the slice."""
    given, topology = arguments.accelerator_type, arguments.topology
    # Google Cloud's documentation says v5e, but gcloud expects v5litepod.
    kind = re.sub(r"^v5e\b", "v5litepod", given)
    generation, _, size = kind.partition("-")
    if bool(size) == bool(topology):
        raise LaunchError(
            f"--accelerator_type is {given} and --topology is {topology or 'not given'}; pass a type with a size "
            "(such as v5e-16), or a type without a size and a topology (such as v4 and 2x2x4)."
        )
    runtime = arguments.runtime_version or RUNTIME_VERSIONS.get(generation)
    if not runtime:
        raise LaunchError(
            f"--accelerator_type is {given}; known types are {', '.join(RUNTIME_VERSIONS)}, with a size (such as "
            "v5e-16); for any other type, pass --runtime_version too."
        )
    flags = [f"--accelerator-type={kind}"] if size else [f"--type={kind}", f"--topology={topology}"]
    flags.append(f"--runtime-version={runtime}")
    if arguments.capacity != "on_demand":
        flags.append(f"--{arguments.capacity}")
    # `wait` cancels the request after --timeout. If this machine is switched off before that, the request expires 10
    # minutes later by itself, so no slice is granted unnoticed and costs money.
    flags.append(f"--valid-until-duration={math.ceil(arguments.timeout) + 10}m")
    if arguments.service_account:
        flags.append(f"--service-account={arguments.service_account}")
    return flags


def log_message(line: str) -> None:
    """Prints a message to stderr."""
    print(line, file=sys.stderr, flush=True)


def _parse_json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Parses the JSON object printed by gcloud."""
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


def _error_text(done: subprocess.CompletedProcess[str]) -> str:
    """Extracts gcloud's error message, on one line."""
    words = " ".join(done.stderr.split())
    return words[words.find("ERROR:") :][:300] if "ERROR:" in words else words[-300:] or f"exit code {done.returncode}"

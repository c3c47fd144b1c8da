"""Coordinates the hosts (processes) of one ``jax.distributed`` job.

All hosts run the same program and read the same files, and only the first host writes. An error on one host is raised
on all hosts, so that no host waits for one that has exited. With a single host, these functions do nothing.

All hosts also exit together (:class:`Job`). If one host exited immediately, JAX's runtime would abort the others with a
stack trace before they could report the reason. An exiting host therefore writes its reason to the key-value store of
JAX's coordination service, and waits for a limited time until the others have read it.
"""

import collections
import contextlib
import hashlib
import importlib.util
import os
import secrets
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import jax
import numpy as np

from afjax.errors import HOST_LOST, OtherHostError, PreemptionError, TemporaryError, UserError
from afjax.storage.paths import client_error_text, is_temporary

# Seconds without a heartbeat after which a host is considered lost.
HEARTBEAT_SECONDS = 30
# Seconds within which all hosts must have started.
JOIN_SECONDS = 300
# Seconds after which a host reports that it is waiting for others to start.
QUIET_SECONDS = 10
# Seconds between checks for another host that is exiting.
_POLL_SECONDS = 0.5
# Seconds that the main thread has to exit by itself, because it may be about to report a more precise reason.
_GRACE_SECONDS = 3.0
# Maximum seconds that an exiting host waits for the others to exit, because a crashed host never reports its exit.
FAREWELL_SECONDS = 10.0
# Maximum bytes of an error message sent to other hosts.
_LONGEST = 2000
# Folders in the key-value store: the reasons of exiting hosts, and the hosts that no longer need the service.
_ENDING, _ENDED = "afjax/ending", "afjax/ended"
_ABORTED = (
    "afjax: this host was aborted, because it was killed or because another host was lost. To resume from "
    "the last checkpoint, start the same command again on all hosts."
)

# Maps an exception to an exit code and a message for the user; None if the exception is unexpected.
Explain = Callable[[BaseException], tuple[int, str] | None]


class Job:
    """Joins the hosts of one job, and makes them exit together.

    A job is a context manager around everything that the hosts do together. With a single host, it does nothing. With
    several hosts, an exception in the block ends the process: it prints the reason to stderr and exits with the code
    from ``explain``. Every other host is interrupted, prints the same reason and exits with the same code. If the block
    ends without an exception, or with a PreemptionError (on which the hosts have agreed), the job waits until the other
    hosts reach the same point.

    Args:
      coordinator_address: ``HOST:PORT`` of the first host, the same on all hosts. If empty, hosts are discovered on
        Cloud TPU; elsewhere, there is a single host.
      num_processes: Number of hosts.
      process_id: Index of this host, from 0.
      explain: Maps an exception to an exit code and a message, or to None if the exception is unexpected. In that case,
        this host exits with code 1 and a traceback, and the others exit with ``HOST_LOST``.

    Raises:
      UserError: Only some of the first three arguments are given, they are inconsistent, the hosts cannot be joined, or
        the hosts have different numbers of devices. If other hosts are still missing after ``JOIN_SECONDS``, this host
        instead prints a message and exits with code 2.

    Example:
      >>> with Job(explain=lambda error: (2, str(error)) if isinstance(error, UserError) else None):
      ...     check_same({"the config": "its digest"})
    """

    def __init__(
        self,
        coordinator_address: str = "",
        num_processes: int | None = None,
        process_id: int | None = None,
        *,
        explain: Explain,
    ) -> None:
        given = [bool(coordinator_address), num_processes is not None, process_id is not None]
        if any(given) and not all(given):
            raise UserError("Pass all of --coordinator_address, --num_processes and --process_id, or none of them.")
        if any(given) and (":" not in coordinator_address or not 0 <= (process_id or 0) < (num_processes or 0)):
            raise UserError(
                f"--coordinator_address={coordinator_address} --num_processes={num_processes} "
                f"--process_id={process_id}: the address must be the first host's HOST:PORT, and the process id at "
                "least 0 and less than the number of processes."
            )
        self._address = (coordinator_address or None, num_processes, process_id)
        self._joins = all(given) or on_cloud_tpu()
        self._explain = explain
        self._service: _Service | None = None
        self._shell: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        # Set if an exception ends the block, so that the main thread is about to end the process.
        self._failed = threading.Event()
        # _ending is the identifier of the thread that ends the process.
        self._lock, self._ending = threading.Lock(), 0

    def __enter__(self) -> "Job":
        if self._joins:
            self._start_shell()
            try:
                self._join()
            except BaseException as error:
                self._end_with(error)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._service is None:
            return
        if error is not None and not isinstance(error, PreemptionError):
            self._end_with(error)
        try:
            # Wait for the other hosts. The watcher keeps running, in case another host fails during its exit.
            jax.distributed.shutdown()
        except Exception as failure:
            self._end_with(failure)
        self._stopped.set()
        self._watcher.join(FAREWELL_SECONDS)
        self._stop_shell()

    @property
    def is_one_of_several(self) -> bool:
        """Whether other hosts have joined.

        With a single host, this does not initialize JAX's backend.
        """
        return self._service is not None

    def leave(self, code: int, sentence: str) -> bool:
        """Makes all hosts of a multi-host job exit with the same code and message.

        Returns:
          False for a single host. True if a signal interrupted this thread while it was already ending the process.
        """
        if self._service is None:
            return False
        self._leave(code, sentence, farewell=(code, sentence))
        return True

    def _join(self) -> None:
        joined = threading.Event()
        threading.Thread(target=self._end_unless_joined, args=(joined,), daemon=True).start()
        try:
            jax.distributed.initialize(
                *self._address,
                # After this time, JAX's client aborts the process with a stack trace. The thread above ends it earlier.
                initialization_timeout=JOIN_SECONDS + 60,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"The hosts of this run could not be joined ({str(error).partition(chr(10))[0]}); start the same "
                "command on all of them, with a different --process_id on each host if you use it."
            ) from error
        finally:
            joined.set()
        service = _Service()
        if service.num_hosts == 1:
            self._stop_shell()
            return
        self._service = service
        self._watcher.start()
        counts = collections.Counter(device.process_index for device in jax.devices())
        if len(set(counts.values())) > 1:
            listing = ", ".join(f"host {host}: {count}" for host, count in sorted(counts.items()))
            raise UserError(
                f"The hosts have different numbers of devices ({listing}); use the same number on each host."
            )

    def _end_unless_joined(self, joined: threading.Event) -> None:
        """Reports that this host is waiting for others, and exits after ``JOIN_SECONDS``."""
        address = f" at {self._address[0]}" if self._address[0] else ""
        if joined.wait(QUIET_SECONDS):
            return
        _say(f"Waiting{address} for the other hosts of this run, for at most {JOIN_SECONDS} s.")
        if not joined.wait(JOIN_SECONDS - QUIET_SECONDS):
            _say(
                f"afjax: The hosts of this run did not all join{address} within {JOIN_SECONDS} s; start the same "
                "command on all of them, with a different --process_id on each host if you use it, and check that they "
                "can reach that address."
            )
            self._stop_shell()
            os._exit(2)

    def _watch(self) -> None:
        """Ends this process if another host is ending.

        Runs in its own thread, because the main thread may be waiting for that host.
        """
        assert self._service is not None
        while not self._stopped.wait(_POLL_SECONDS):
            if self._service.reason() is None:
                continue
            # A host that has failed itself prints its own reason, perhaps with a traceback.
            if self._stopped.wait(_GRACE_SECONDS) or (self._failed.is_set() and self._stopped.wait(FAREWELL_SECONDS)):
                return
            # Read the reason again: another host may have reported a more precise one in the meantime.
            code, sentence = self._service.reason() or (HOST_LOST, "another host has ended.")
            # The newline ends the progress bar's line.
            self._leave(code, sentence, farewell=(code, ""), prefix="\n")

    def _end_with(self, error: BaseException) -> None:
        """Ends this process because of an exception, if it is one of several hosts."""
        self._failed.set()
        if self._service is None:
            self._stop_shell()
            return
        if is_runtime_error(error):
            # Another host was lost. It may have reported its reason.
            if (reason := self._service.reason()) is not None:
                self._leave(*reason, farewell=(reason[0], ""))
            first = str(error).partition("\n")[0]
            lost = (
                f"another host of this run was lost ({first}); start the same command again on all hosts to resume "
                "from the last checkpoint."
            )
            self._leave(HOST_LOST, lost, farewell=(HOST_LOST, lost))
        if (explained := self._explain(error)) is not None:
            self._leave(*explained, farewell=explained)
        # Only this host's log has the full traceback. The other hosts' logs refer to it.
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(error)
        first = f"{type(error).__name__}: {error}".partition("\n")[0]
        sentence = f"this host failed with {first}; its log has the traceback."
        self._leave(1, sentence, farewell=(HOST_LOST, sentence))

    def _leave(self, code: int, sentence: str, *, farewell: tuple[int, str], prefix: str = "") -> None:
        me = threading.get_ident()
        if not self._lock.acquire(blocking=False):
            while self._ending != me:
                with contextlib.suppress(KeyboardInterrupt):
                    time.sleep(1)  # The other thread ends the process.
            return
        self._ending = me
        try:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            _say(f"{prefix}afjax: {' '.join(sentence.split())}")
            self._stop_shell()
            # Silence stderr, so that the message comes last even if another host dies and the runtime aborts this one.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            assert self._service is not None
            self._service.farewell(*farewell)
        finally:
            os._exit(code)

    def _start_shell(self) -> None:
        """Starts a shell that prints what to do if this process is aborted or killed.

        If another host is lost without a reason, JAX aborts this process from one of its own threads. Python cannot
        react, and JAX only prints which task was lost. The shell detects the abort because its standard input ends.
        """
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", f'read -r word || echo "{_ABORTED}" >&2'], stdin=subprocess.PIPE
        )

    def _stop_shell(self) -> None:
        if self._shell is not None:
            self._shell.communicate(b"ended\n")
            self._shell = None


class _Service:
    """The key-value store of JAX's coordination service.

    The service runs in the first host's process. JAX has no public API for the store, so this class wraps the private
    functions that this package needs.
    """

    def __init__(self) -> None:
        from jax._src.distributed import global_state

        self.num_hosts, self._host = global_state.num_processes, global_state.process_id
        self._client: Any = global_state.client

    def reason(self) -> tuple[int, str] | None:
        """Returns the exit code and message of another host that is ending.

        Returns None if no other host is ending.
        """
        reasons = []
        for host, (code, sentence) in self._read(_ENDING).items():
            if host != self._host and sentence:
                lost = code == HOST_LOST
                reasons.append(
                    (lost, host, code, sentence if sentence.startswith("On host ") else f"On host {host}: {sentence}")
                )
        # Prefer reasons other than HOST_LOST, because a host that lost another does not know why.
        return min(reasons)[2:] if reasons else None

    def farewell(self, code: int, sentence: str) -> None:
        """Writes this host's reason and waits until the other hosts have written theirs.

        The first host, which runs the service, exits last.

        Args:
          code: Exit code for the others.
          sentence: Message for the others; empty if they already have one from another host.
        """
        # If the client raises, the service is gone and there is no host left to wait for.
        with contextlib.suppress(Exception):
            self._client.key_value_set(f"{_ENDING}/{self._host}", f"{code} {sentence[:_LONGEST]}", allow_overwrite=True)
            ending = self._wait(_ENDING, set(range(self.num_hosts)), FAREWELL_SECONDS)
            if self._host != 0:
                self._client.key_value_set(f"{_ENDED}/{self._host}", "0 ", allow_overwrite=True)
                return
            self._wait(_ENDED, ending - {0}, FAREWELL_SECONDS)
            # Give the others time to exit, which this host cannot observe.
            time.sleep(1)

    def _wait(self, folder: str, hosts: set[int], seconds: float) -> set[int]:
        """Waits for at most ``seconds`` until the hosts have written to a folder.

        Returns the hosts that have done so.
        """
        end = time.monotonic() + seconds
        while not hosts <= (present := self._read(folder, must=True).keys()) and time.monotonic() < end:
            time.sleep(0.05)
        return hosts & present

    def _read(self, folder: str, *, must: bool = False) -> dict[int, tuple[int, str]]:
        """Reads a folder of the store, ``{host: (code, sentence)}``.

        If the service does not answer, raises if ``must``, and otherwise returns an empty dictionary.
        """
        try:
            pairs = self._client.key_value_dir_get(folder)
        except Exception:
            if must:
                raise
            return {}
        values = {int(key.rpartition("/")[2]): value.partition(" ") for key, value in pairs}
        return {host: (int(code), sentence) for host, (code, _, sentence) in values.items()}


def _say(text: str) -> None:
    # A full disk or a closed pipe must not keep a host from exiting.
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def on_cloud_tpu() -> bool:
    """Whether this machine has TPU chips that JAX will use."""
    platforms = os.environ.get("JAX_PLATFORMS") or "tpu"
    chips = any(os.path.exists(path) for path in ("/dev/accel0", "/dev/vfio/0"))
    return "tpu" in platforms and chips and importlib.util.find_spec("libtpu") is not None


def several_hosts() -> bool:
    """Whether this is one of several hosts.

    If no hosts were joined, this does not initialize JAX's backend.
    """
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first_host() -> bool:
    """Whether this is the host that writes and logs."""
    return jax.process_index() == 0


def is_runtime_error(error: BaseException) -> bool:
    """Whether an error is a failure of JAX's runtime, which also reports lost hosts."""
    # On the CPU, collectives that fail during a program's launch raise ValueError.
    return isinstance(error, jax.errors.JaxRuntimeError) or (isinstance(error, ValueError) and ": Gloo " in str(error))


@contextlib.contextmanager
def all_hosts_or_raise() -> Iterator[None]:
    """Raises on all hosts if the block failed on any of them.

    All hosts are synchronized at the end of the block. The block itself must not synchronize with other hosts.

    Raises:
      Exception: This host's own error.
      UserError: The first failing host's error, if this host succeeded. A TemporaryError if Cloud Storage failed there.
      OtherHostError: The first failing host crashed, and this host succeeded.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    if several_hosts():
        messages = _gather_text("" if error is None else _message_to_others(error))
        if error is None and any(messages):
            host, message = next((host, message) for host, message in enumerate(messages) if message)
            kind, _, sentence = message.partition(" ")
            error = _KINDS[kind](f"On host {host}: {sentence}")
    if error is not None:
        raise error


# The exceptions that the other hosts raise if one host fails. The keys are the first words of its message to them.
_KINDS: Mapping[str, type[Exception]] = {"temporary": TemporaryError, "user": UserError, "crash": OtherHostError}


def _message_to_others(error: Exception) -> str:
    """Returns a key of ``_KINDS`` and a sentence, separated by a space."""
    if isinstance(error, UserError):
        return f"{'temporary' if is_temporary(error) else 'user'} {error}"
    # Commands also explain the errors of Cloud Storage and of the system, such as a full disk, to the user.
    if message := client_error_text(error):
        return f"{'temporary' if is_temporary(error) else 'user'} {message}"
    if isinstance(error, OSError):
        return f"user {error}"
    first = f"{type(error).__name__}: {error}".partition("\n")[0]
    return f"crash this host failed with {first}; its log has the traceback."


def check_same(what: Mapping[str, str]) -> None:
    """Raises UserError on every host if digests differ between hosts.

    Args:
      what: ``{name: digest or other text}``. The names must be the same on every host.
    """
    if not several_hosts():
        return
    for name, digest in what.items():
        # Hash the text, because _gather_text truncates it.
        digests = _gather_text(hashlib.sha256(digest.encode()).hexdigest())
        other = [str(host) for host, host_digest in enumerate(digests) if host_digest != digests[0]]
        if other:
            raise UserError(
                f"Hosts differ in {name} (host {', '.join(other)} does not match host 0); start the same command, with "
                "the same code and files, on every host."
            )


def check_shared(folder: Any, what: str) -> None:
    """Raises UserError on every host if the hosts do not share a folder.

    Args:
      folder: The folder, an ``epath.Path``.
      what: A description of the folder for the error message.
    """
    if not several_hosts():
        return
    marker = folder / f".shared-{_gather_text(secrets.token_hex(8))[0]}"
    with all_hosts_or_raise():
        if is_first_host():
            folder.mkdir(parents=True, exist_ok=True)
            marker.write_text("")
    with all_hosts_or_raise():
        if not marker.exists():
            raise UserError(
                f"The {what} {folder} is not shared with the first host; use a folder that all hosts share, such as "
                "gs://..."
            )
    with all_hosts_or_raise():
        if is_first_host():
            marker.unlink()


def _gather_text(text: str) -> list[str]:
    """Gathers a string from every host, truncated to ``_LONGEST`` bytes."""
    from jax.experimental import multihost_utils

    sent = np.zeros(_LONGEST, np.uint8)
    encoded = np.frombuffer(text.encode(errors="replace")[:_LONGEST], np.uint8)
    sent[: len(encoded)] = encoded
    received = np.asarray(multihost_utils.process_allgather(sent)).reshape(jax.process_count(), _LONGEST)
    return [bytes(host_bytes).rstrip(b"\0").decode(errors="replace") for host_bytes in received]

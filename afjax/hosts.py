"""Several hosts (processes of one ``jax.distributed`` job) that do one thing together. With one host nothing happens.

All hosts run the same program and read the same files; the first alone writes. An error on one is an error on all, so
that none waits for another that has gone.
"""

import collections
import contextlib
import importlib.util
import os
import secrets
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from afjax.errors import UserError

# Seconds after which a host that is not heard of counts as lost.
HEARTBEAT_SECONDS = 30
# Seconds in which all hosts must have started, and after which they are told that others are waited for.
JOIN_SECONDS = 300
QUIET_SECONDS = 10
# Bytes of an error's sentence that other hosts are told.
_LONGEST = 2000
_ABORTED = (
    "afjax: this host ended without a word of its own, as another was lost or as it was killed; start the same command "
    "again on all hosts, and it goes on from the last checkpoint."
)


def join(coordinator_address: str = "", num_processes: int | None = None, process_id: int | None = None) -> None:
    """Joins the hosts of one job; on Cloud TPU they find each other, elsewhere they are told, and one alone need not.

    Must come in front of everything else that asks JAX for devices.

    Args:
      coordinator_address: ``HOST:PORT`` of the first host, the same on all; empty: not told.
      num_processes: How many hosts there are.
      process_id: This one's number, from 0.

    Raises:
      UserError: Some of the three are given, but not all; or numbers that do not fit; or hosts with more or fewer
        devices than others. Where hosts are missing for ``JOIN_SECONDS`` the process says so and ends with code 2.
    """
    told = [bool(coordinator_address), num_processes is not None, process_id is not None]
    if not any(told):
        if _on_cloud_tpu():
            _initialize()
        return
    if not all(told):
        raise UserError("Give all of --coordinator_address, --num_processes and --process_id, or none of them.")
    assert num_processes is not None
    assert process_id is not None
    if ":" not in coordinator_address or not 0 <= process_id < num_processes:
        raise UserError(
            f"--coordinator_address={coordinator_address} --num_processes={num_processes} --process_id={process_id}: "
            "take HOST:PORT of the first host, and numbers from 0 up to the number of processes."
        )
    _initialize(coordinator_address, num_processes, process_id)


def _initialize(
    coordinator_address: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    joined = threading.Event()
    threading.Thread(target=_end_unless_joined, args=(joined, coordinator_address), daemon=True).start()
    try:
        jax.distributed.initialize(
            coordinator_address,
            num_processes,
            process_id,
            # Longer than the thread waits: JAX's client aborts the process then, with a stack trace.
            initialization_timeout=JOIN_SECONDS + 60,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"The hosts of this run could not be joined ({str(error).partition(chr(10))[0]}); start the same command "
            "on all of them, each with its own --process_id where they are told."
        ) from error
    finally:
        joined.set()
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        told = ", ".join(f"host {host}: {count}" for host, count in sorted(counts.items()))
        raise UserError(f"The hosts have different numbers of devices ({told}); take hosts that have as many each.")


def _end_unless_joined(joined: threading.Event, coordinator_address: str | None) -> None:
    """Says what is waited for, and ends the process where that takes too long."""
    where = f" at {coordinator_address}" if coordinator_address else ""
    if joined.wait(QUIET_SECONDS):
        return
    print(f"Waiting{where} for the other hosts of this run, for {JOIN_SECONDS} s at most.", file=sys.stderr, flush=True)
    if not joined.wait(JOIN_SECONDS - QUIET_SECONDS):
        print(
            f"afjax: The hosts of this run did not all join{where} in {JOIN_SECONDS} s; start the same command on all "
            "of them, each with its own --process_id where they are told, and see that they reach that address.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)


def _on_cloud_tpu() -> bool:
    """Whether this machine has TPU chips that JAX is to use."""
    wanted = os.environ.get("JAX_PLATFORMS") or "tpu"
    chips = any(os.path.exists(path) for path in ("/dev/accel0", "/dev/vfio/0"))
    return "tpu" in wanted and chips and importlib.util.find_spec("libtpu") is not None


def leave(code: int) -> None:
    """Ends this process at once if it is one of several, which then learn that it has gone.

    At an ordinary exit JAX would wait for the others, which wait for this one. An exception under way is printed.
    """
    if several_hosts():
        if sys.exc_info()[1] is not None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@contextlib.contextmanager
def last_words() -> Iterator[None]:
    """Within the block a process that is aborted, or killed, still says what to do then, if it is one of several.

    JAX aborts the process where another host is lost, from a thread of its own that leaves Python no time, and prints
    no more than which task it was. So a shell stands by, and speaks if it is not told that the block has ended.
    """
    if not several_hosts():
        yield
        return
    shell = subprocess.Popen(["/bin/sh", "-c", f'read -r word || echo "{_ABORTED}" >&2'], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        shell.communicate(b"ended\n")


def several_hosts() -> bool:
    """Whether this is one of several hosts. Asks JAX for its devices only if hosts were joined."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first_host() -> bool:
    """Whether this is the host that writes and logs."""
    return jax.process_index() == 0


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Waits at the end of the block until every host is there; the block itself has no word with the others.

    Raises:
      Exception: The block's own.
      UserError: Where it went well here: that of the first host where it did not.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    if several_hosts():
        told = _gather_text((str(error) or type(error).__name__) if error else "")
        if error is None and any(told):
            host, sentence = next((host, sentence) for host, sentence in enumerate(told) if sentence)
            error = UserError(f"On host {host}: {sentence}")
    if error is not None:
        raise error


def check_same(what: Mapping[str, str]) -> None:
    """Raises UserError, on every host, where hosts do not agree.

    Args:
      what: ``{what it is: its digest}``, of the same things on every host.
    """
    if not several_hosts():
        return
    for name, digest in what.items():
        digests = _gather_text(digest)
        other = [str(host) for host, found in enumerate(digests) if found != digests[0]]
        if other:
            raise UserError(
                f"Hosts differ in {name}: host {', '.join(other)} from host 0; start the same command, from the same "
                "code and files, on every host."
            )


def check_shared(folder: Any, what: str) -> None:
    """Raises UserError, on every host, where a folder (an ``epath.Path``) is not one and the same for all hosts."""
    if not several_hosts():
        return
    marker = folder / f".shared-{_gather_text(secrets.token_hex(8))[0]}"
    with together():
        if is_first_host():
            folder.mkdir(parents=True, exist_ok=True)
            marker.write_text("")
    with together():
        if not marker.exists():
            raise UserError(
                f"The {what} {folder} is not that of the first host; give one that all hosts share, gs://... say."
            )
    with together():
        if is_first_host():
            marker.unlink()


def _gather_text(text: str) -> list[str]:
    """Every host's text, cut to so many bytes."""
    from jax.experimental import multihost_utils

    sent = np.zeros(_LONGEST, np.uint8)
    encoded = np.frombuffer(text.encode()[:_LONGEST], np.uint8)
    sent[: len(encoded)] = encoded
    received = np.asarray(multihost_utils.process_allgather(sent)).reshape(jax.process_count(), _LONGEST)
    return [bytes(of_host).rstrip(b"\0").decode(errors="replace") for of_host in received]

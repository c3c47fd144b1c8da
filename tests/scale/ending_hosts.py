"""Functions that run one host of a job that ends before it trains."""

import os
import sys
import time
from collections.abc import Callable

from afjax.cli.explain import explain
from afjax.cli.main import main
from afjax.distributed import hosts
from afjax.errors import UserError


def cloud_error(code: int, message: str) -> Exception:
    """Makes an error of Cloud Storage."""
    # Import gcsfs only here, because the import is slow and most hosts do not need it.
    from gcsfs.retry import HttpError

    return HttpError({"code": code, "message": message})


def cloud_timeout() -> Exception:
    """Makes a timeout of Cloud Storage."""
    # Without gcsfs, a timeout is not an error of Cloud Storage.
    import gcsfs  # noqa: F401

    return TimeoutError()


ERRORS: dict[str, Callable[[], Exception]] = {
    "user": lambda: UserError("The trunk was not found."),
    "disk": lambda: OSError(28, "No space left on device", "result.json"),
    "cloud": lambda: cloud_error(503, "Service Unavailable"),
    "credentials": lambda: cloud_error(401, "Invalid Credentials"),
    "timeout": cloud_timeout,
    "crash": lambda: RuntimeError("A bug."),
}


def agree(address: str, number: int, digest: str, fails: str, error: str) -> None:
    """Runs one of two hosts that check that they have the same config.

    Args:
      address: The coordinator's address.
      number: The number of this host.
      digest: Stands for this host's config.
      fails: The number of the host that raises an error. If empty, no host raises an error.
      error: The error, a key of ``ERRORS``.
    """

    def explain_slowly(raised: BaseException) -> tuple[int, str] | None:
        """Takes long, as on a busy machine. Meanwhile, the other host reports that it ends."""
        time.sleep(2 if fails == str(number) else 0)
        return explain(raised)

    hosts._GRACE_SECONDS = 0.1
    with hosts.Job(address, 2, number, explain=explain_slowly):
        with hosts.all_hosts_or_raise():
            if fails == str(number):
                raise ERRORS[error]()
        hosts.check_same({"the config": digest, "the code": "same"})
        print("agreed", flush=True)


def abort(address: str, num_hosts: int, number: int, aborted: int) -> None:
    """Runs one of several hosts. The host with the number ``aborted`` is aborted."""
    with hosts.Job(address, num_hosts, number, explain=explain):
        with hosts.all_hosts_or_raise():
            pass
        if number == aborted:
            os.abort()
        with hosts.all_hosts_or_raise():
            pass


def join(address: str, num_hosts: int, number: int) -> None:
    """Joins the other hosts, for at most three seconds."""
    hosts.QUIET_SECONDS, hosts.JOIN_SECONDS = 1, 3
    hosts.Job(address, num_hosts, number, explain=lambda error: None).__enter__()


def train_here(*arguments: str) -> None:
    """Runs ``afjax train`` in this process."""
    sys.exit(main(["train", *arguments]))


def train_program(*arguments: str) -> None:
    """Replaces this process with the program ``afjax train``."""
    os.execv(sys.executable, [sys.executable, "-m", "afjax", "train", *arguments])

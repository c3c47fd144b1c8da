"""Runs one of two hosts that check that they have the same config.

Tests run ``agree.py ADDRESS NUMBER DIGEST FAILS ERROR`` with these arguments:

- ADDRESS: The coordinator's address.
- NUMBER: The number of this host.
- DIGEST: Stands for this host's config.
- FAILS: The number of the host that raises an error. If empty, no host raises an error.
- ERROR: The error, a key of ``ERRORS``.
"""

import sys
import time

from gcsfs.retry import HttpError

from afjax.cli.explain import explain
from afjax.distributed import hosts
from afjax.errors import UserError

ERRORS = {
    "user": UserError("The trunk was not found."),
    "disk": OSError(28, "No space left on device", "result.json"),
    "cloud": HttpError({"code": 503, "message": "Service Unavailable"}),
    "credentials": HttpError({"code": 401, "message": "Invalid Credentials"}),
    "timeout": TimeoutError(),
    "crash": RuntimeError("A bug."),
}

address, number, digest, fails, error = sys.argv[1:]


def explain_slowly(raised: BaseException) -> tuple[int, str] | None:
    """Takes long, as on a busy machine. Meanwhile, the other host reports that it ends."""
    time.sleep(2 if fails == number else 0)
    return explain(raised)


hosts._GRACE_SECONDS = 0.1
with hosts.Job(address, 2, int(number), explain=explain_slowly):
    with hosts.all_hosts_or_raise():
        if fails == number:
            raise ERRORS[error]
    hosts.check_same({"the config": digest, "the code": "same"})
    print("agreed", flush=True)

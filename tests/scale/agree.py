"""Runs one of two hosts that check that they have the same config.

Tests run ``agree.py ADDRESS NUMBER DIGEST FAILS`` with these arguments:

- ADDRESS: The coordinator's address.
- NUMBER: The number of this host.
- DIGEST: Stands for this host's config.
- FAILS: The number of the host that raises an error. If empty, no host raises an error.
"""

import sys

from afjax.cli.explain import explain
from afjax.distributed import hosts
from afjax.errors import UserError

address, number, digest, fails = sys.argv[1:]
with hosts.Job(address, 2, int(number), explain=explain):
    with hosts.all_hosts_or_raise():
        if fails == number:
            raise UserError("The trunk was not found.")
    hosts.check_same({"the config": digest, "the code": "same"})
    print("agreed", flush=True)

"""Runs one of two hosts, which check that they have the same config.

Tests run ``agree.py ADDRESS NUMBER DIGEST FAILS``. ADDRESS is the coordinator's address, NUMBER is the process id of
this host, DIGEST represents its config, and FAILS is the number of the host on which an error is raised.
"""

import sys

from afjax.cli.explain import explain
from afjax.distributed import hosts
from afjax.errors import UserError

address, number, digest, fails = sys.argv[1:]
with hosts.Job(address, 2, int(number), explain=explain):
    with hosts.all_hosts_or_raise():
        if fails == number:
            raise UserError("The trunk is not there.")
    hosts.check_same({"the config": digest, "the code": "same"})
    print("agreed", flush=True)

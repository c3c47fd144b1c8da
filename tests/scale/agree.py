"""One of two processes that compare what each was given; what tests start: ``agree.py ADDRESS NUMBER DIGEST FAILS``."""

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

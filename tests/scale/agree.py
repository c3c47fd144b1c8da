"""One of two processes that compare what each was given; what tests start: ``agree.py ADDRESS NUMBER DIGEST FAILS``."""

import sys

from afjax import hosts
from afjax.errors import UserError

address, number, digest, fails = sys.argv[1:]
try:
    hosts.join(address, 2, int(number))
    with hosts.together():
        if fails == number:
            raise UserError("The trunk is not there.")
    hosts.check_same({"the config": digest, "the code": "same"})
except UserError as error:
    print(f"refused: {error}", flush=True)
    hosts.leave(2)
print("agreed", flush=True)

"""Makes a run's folder look as if an earlier version of afjax had written it."""

import json
from pathlib import Path

from afjax.train.record import RECORD_DIGEST


def without_record_digest(run: Path) -> None:
    """Removes the digest of ``run.json`` from a run's checkpoints.

    A test can then change ``run.json``.
    """
    for progress in (run / "checkpoints").glob("*/progress/metadata"):
        saved = json.loads(progress.read_text())
        del saved["inputs"][RECORD_DIGEST]
        progress.write_text(json.dumps(saved))

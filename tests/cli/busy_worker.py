"""Starts a worker that does not stop when it receives SIGTERM, like one that compiles a program."""

import multiprocessing
import signal
import threading
import time
from typing import Any

from afjax.cli.sweep_workers import end_with_parent


def _report(*signal_and_frame: Any) -> None:
    print("SIGTERM", flush=True)


def _work() -> None:
    signal.signal(signal.SIGTERM, _report)
    threading.Thread(target=end_with_parent, args=(2.0,), daemon=True).start()
    print("started", flush=True)
    time.sleep(120)
    print("not ended", flush=True)


if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=_work)
    worker.start()
    worker.join()

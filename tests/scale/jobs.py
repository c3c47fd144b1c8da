"""Starting workers: one process of eight fake devices, or two of four that form a multi-host job."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

WORKER = Path(__file__).with_name("worker.py")


class Job:
    """Worker processes that run one command; a context, at whose end they are killed.

    Args:
      trunk: The trunk's folder.
      folder: Where workdirs, results and logs go.
      words: The worker's further arguments.
      processes: How many.
      devices: Of all of them together.
      cache: A folder for compiled programs.
    """

    def __init__(
        self,
        trunk: Path,
        folder: Path,
        words: Sequence[str],
        *,
        processes: int = 1,
        devices: int = 8,
        cache: Path | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices // processes}"
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        if cache is not None:
            environment |= {
                "JAX_COMPILATION_CACHE_DIR": str(cache),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            }
        several = [f"--coordinator_address=127.0.0.1:{free_port()}", f"--num_processes={processes}"]
        self.logs = [folder / f"log{number}" for number in range(processes)]
        self.processes: list[subprocess.Popen[bytes]] = []
        self._cats: list[subprocess.Popen[bytes]] = []
        for number, log in enumerate(self.logs):
            own = [*several, f"--process_id={number}"] if processes > 1 else []
            command = [sys.executable, str(WORKER), f"--trunk={trunk}", f"--folder={folder}", *words, *own]
            # Through a pipe, as a worker's limit on the size of its files is not one on what it prints.
            with log.open("w") as file:
                cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
            self._cats.append(cat)
            self.processes.append(subprocess.Popen(command, stdout=cat.stdin, stderr=cat.stdin, env=environment))
            assert cat.stdin is not None
            cat.stdin.close()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait(self, seconds: float = 600) -> list[int]:
        """The processes' exit codes; kills all and raises TimeoutExpired where one takes longer."""
        end = time.monotonic() + seconds
        try:
            return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]
        finally:
            self.kill()

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
        for cat in self._cats:
            cat.wait()

    def said(self) -> str:
        """What all processes have printed, for a test that fails."""
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in self.logs)


def checkpoint_steps(workdir: Path) -> list[int]:
    """The steps of the complete checkpoints of a run."""
    folder = workdir / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.exists() else []


def result(folder: Path, name: str) -> dict[str, np.ndarray]:
    """What a worker wrote."""
    with np.load(folder / f"{name}.npz") as file:
        return dict(file)


def free_port() -> int:
    """A port of this machine that nobody listens to."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]

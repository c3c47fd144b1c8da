"""Starting workers: one process of eight fake devices, or two of four that form a multi-host job."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
from fork_server import fork_server


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
        several = [f"--coordinator_address=127.0.0.1:{free_port()}", f"--num_processes={processes}"]
        self.logs = [folder / f"log{number}" for number in range(processes)]
        self.processes: list[BaseProcess] = []
        self._cats: list[subprocess.Popen[bytes]] = []
        for number, log in enumerate(self.logs):
            own = [*several, f"--process_id={number}"] if processes > 1 else []
            words_of_worker = [f"--trunk={trunk}", f"--folder={folder}", *words, *own]
            # Through a pipe, as a worker's limit on the size of its files is not one on what it prints.
            with log.open("w") as file:
                cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
            assert cat.stdin is not None
            self._cats.append(cat)
            with Connection(os.dup(cat.stdin.fileno()), readable=False) as output:
                process = fork_server().Process(target=run_worker, args=(words_of_worker, flags, cache, output))
                process.start()
            cat.stdin.close()
            self.processes.append(process)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait(self, seconds: float = 600) -> list[int | None]:
        """Returns the processes' exit codes; kills processes that take longer, so their code is ``-SIGKILL``."""
        end = time.monotonic() + seconds
        try:
            for process in self.processes:
                process.join(max(0.1, end - time.monotonic()))
        finally:
            self.kill()
        return [process.exitcode for process in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for cat in self._cats:
            cat.wait()

    def said(self) -> str:
        """What all processes have printed, for a test that fails."""
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in self.logs)


def run_worker(words: list[str], flags: str, cache: Path | None, output: Connection) -> None:
    """Runs ``worker.py`` in this new process, which prints to ``output``."""
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    # XLA reads it when it makes its devices, which no import does.
    os.environ["XLA_FLAGS"] = flags
    import jax
    import worker

    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    sys.exit(worker.main(words))


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

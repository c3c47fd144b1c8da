"""Starts forked processes: workers as a single process or as a multi-host job, and other hosts."""

import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import numpy as np
from fork_server import fork_server


class Processes:
    """Forked processes that run functions, with fake devices. Their output is written to logs.

    The processes are killed at the end of a ``with`` block.

    Args:
      folder: The folder for the logs.
      targets: A picklable function per process.
      devices: Number of fake devices per process.
    """

    def __init__(self, folder: Path, targets: Sequence[Callable[[], Any]], devices: Sequence[int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.logs = [folder / f"log{number}" for number in range(len(targets))]
        self.processes: list[BaseProcess] = []
        self._cats: list[subprocess.Popen[bytes]] = []
        for target, log, num_devices in zip(targets, self.logs, devices, strict=True):
            flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={num_devices}"
            # Some tests limit the size of the files that a worker may write. The limit must not apply to the log, so a
            # worker prints to a pipe, and ``cat`` writes the log.
            with log.open("w") as file:
                cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
            assert cat.stdin is not None
            self._cats.append(cat)
            with Connection(os.dup(cat.stdin.fileno()), readable=False) as output:
                process = fork_server().Process(target=run_with_output, args=(target, flags, output))
                process.start()
            cat.stdin.close()
            self.processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait(self, seconds: float = 600) -> list[int | None]:
        """Returns the exit code of each process.

        Processes that take longer than ``seconds`` are killed. Their exit code is ``-SIGKILL``.
        """
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

    def output(self) -> str:
        """Returns the end of each process's output, for error messages."""
        return "\n".join(log.read_text(errors="replace")[-3000:] for log in self.logs)


class Job(Processes):
    """Worker processes that run one command.

    By default, there is one process with eight fake devices.

    Args:
      trunk: The trunk's folder.
      folder: The folder for workdirs, results and logs.
      arguments: Other command-line arguments of ``worker.py``.
      processes: Number of processes.
      devices: Total number of fake devices in all processes.
      cache: The folder of the compilation cache, or None for no cache.
    """

    def __init__(
        self,
        trunk: Path,
        folder: Path,
        arguments: Sequence[str],
        *,
        processes: int = 1,
        devices: int = 8,
        cache: Path | None = None,
    ) -> None:
        multi_host = [f"--coordinator_address=127.0.0.1:{free_port()}", f"--num_processes={processes}"]
        workers = []
        for number in range(processes):
            host = [*multi_host, f"--process_id={number}"] if processes > 1 else []
            argv = [f"--trunk={trunk}", f"--folder={folder}", *arguments, *host]
            workers.append(functools.partial(run_worker, argv, cache))
        super().__init__(folder, workers, [devices // processes] * processes)


def run_with_output(target: Callable[[], Any], flags: str, output: Connection) -> None:
    """Calls a function in this process. Stdout and stderr go to ``output``."""
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    # XLA reads this variable when it creates the devices. The imports of the fork server do not create devices.
    os.environ["XLA_FLAGS"] = flags
    target()


def run_worker(argv: list[str], cache: Path | None) -> None:
    """Runs ``worker.py`` in this process."""
    import jax
    import worker

    if cache is not None:
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    sys.exit(worker.main(argv))


def checkpoint_steps(workdir: Path) -> list[int]:
    """Returns the steps of a run's complete checkpoints, in ascending order."""
    folder = workdir / "checkpoints"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.exists() else []


def result(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Reads the arrays that a worker wrote for a run."""
    with np.load(folder / f"{name}.npz") as file:
        return dict(file)


def free_port() -> int:
    """Returns an unused port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]

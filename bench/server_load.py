"""Measures ``afjax serve`` under load, and checks every answer.

    python bench/server_load.py
    python bench/server_load.py --num_adapters=64 --resident=16 --seconds=20 --soak_minutes=20

Creates a store with random adapters on `minilm`, starts the server on this machine, and sends single-row requests with
random adapters and texts. In the first phase, each client sends a request as soon as its previous one is answered; the
resulting throughput is the full load. Then requests arrive at random times, at half, full and twice this load. With
--soak_minutes, requests arrive at half load while adapters are removed and added back, and one in ten requests runs its
row with four adapters (POST /predict_all). The clients run on the same machine, so they compete for its CPU cores.

Each answer is compared with the prediction of a separate model with the same adapter. Prints one line per phase:
requests per second, latencies of answered requests, rejected requests, and the server's memory. Fails if an answer is
wrong or missing.
"""

import argparse
import asyncio
import dataclasses
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
from routed_batches import random_task

from afjax import TaskModel
from afjax.trunk.pretrained import Trunk, load_trunk

COLUMNS = ("load", "requests", "answered per second", "p50, ms", "p95, ms", "p99, ms", "status 429", "memory, MB")
WORDS = "all some no most cats dogs sleep run small big films were are not fine long too a the and".split()
NUM_TEXTS = 40
# The soak test has this many parts. Memory use is printed after each.
SOAK_PARTS = 4


@dataclasses.dataclass
class Phase:
    """The results of one phase.

    Attributes:
      begin: Start time of the phase.
      seconds: The latencies of the answered requests.
      statuses: The number of answers per HTTP status.
      wrong: The number of wrong answers.
    """

    begin: float
    seconds: list[float] = dataclasses.field(default_factory=list)
    statuses: Counter[int] = dataclasses.field(default_factory=Counter)
    wrong: int = 0


class Client:
    """Sends requests and checks the answers."""

    def __init__(self, url: str, texts: list[str], expected: dict[str, np.ndarray]) -> None:
        # For each request, httpx checks every idle connection. With 200 of them, the client slows the server down.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        self._http = httpx.AsyncClient(base_url=url, limits=limits, timeout=120)
        self._texts, self._expected = texts, expected
        self._random = random.Random(0)
        self.removed: set[str] = set()
        self.share_of_all = 0.0

    async def ask(self, phase: Phase) -> None:
        """Sends a text for one or several adapters, and checks and records the answer."""
        number = self._random.randrange(len(self._texts))
        text, ask_all = self._texts[number], self._random.random() < self.share_of_all
        names = self._random.sample(list(self._expected), 4 if ask_all else 1)
        was_removed = self.removed & set(names)
        begin = time.perf_counter()
        if ask_all:
            response = await self._http.post("/predict_all", json={"rows": [{"text": text}], "adapters": names})
        else:
            response = await self._http.post("/predict", json={"rows": [{"adapter": names[0], "text": text}]})
        phase.statuses[response.status_code] += 1
        if response.status_code == 200:
            phase.seconds.append(time.perf_counter() - begin)
            (prediction,) = response.json()["predictions"]
            for name in names:
                logits = (prediction[name] if ask_all else prediction)["logits"]
                phase.wrong += not np.allclose(logits, self._expected[name][number], rtol=1e-3, atol=1e-4)
        elif response.status_code == 404:
            # This answer is correct only if an adapter was missing at some point during the request.
            phase.wrong += not (was_removed or self.removed & set(names))
        else:
            phase.wrong += response.status_code != 429

    async def full_load(self, seconds: float, num_clients: int) -> Phase:
        """Runs clients that send each request as soon as the previous one is answered."""
        phase = Phase(time.perf_counter())

        async def client() -> None:
            while time.perf_counter() < phase.begin + seconds:
                await self.ask(phase)

        await asyncio.gather(*(client() for _ in range(num_clients)))
        return phase

    async def at_rate(self, seconds: float, rate: float) -> Phase:
        """Sends requests at random times, without waiting for earlier answers."""
        phase, tasks, due = Phase(time.perf_counter()), [], time.perf_counter()
        while due < phase.begin + seconds:
            due += self._random.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self.ask(phase)))
        await asyncio.gather(*tasks)
        return phase

    async def change_adapters(self, seconds: float) -> int:
        """Removes an adapter and adds it back, once per second. Counts the repetitions."""
        end, changes = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            name = self._random.choice(list(self._expected))
            self.removed.add(name)
            (await self._http.delete(f"/adapters/{name}")).raise_for_status()
            await asyncio.sleep(0.5)
            (await self._http.put(f"/adapters/{name}")).raise_for_status()
            await asyncio.sleep(0.5)
            self.removed.discard(name)
            changes += 1
        return changes


async def measure(arguments: argparse.Namespace, client: Client, process_id: int) -> bool:
    """Runs all phases and prints their results.

    The full load is measured first, and determines the rates of the other phases. Returns whether all answers were
    correct.
    """
    await client.full_load(2, arguments.clients)
    full = await client.full_load(arguments.seconds, arguments.clients)
    rate = full.statuses[200] / (time.perf_counter() - full.begin)
    report(f"full, {arguments.clients} clients", full, process_id)
    phases = [full]
    for name, share in (("half", 0.5), ("full, random arrivals", 1.0), ("twice", 2.0)):
        phases.append(await client.at_rate(arguments.seconds, share * rate))
        report(name, phases[-1], process_id)
    if arguments.soak_minutes:
        seconds, client.share_of_all = 60 * arguments.soak_minutes / SOAK_PARTS, 0.1
        for part in range(SOAK_PARTS):
            soak, changes = await asyncio.gather(client.at_rate(seconds, rate / 2), client.change_adapters(seconds))
            report(f"half, part {part + 1}, {changes} adapters removed and added", soak, process_id)
            phases.append(soak)
    wrong = sum(phase.wrong for phase in phases)
    print(f"\n{sum(sum(phase.statuses.values()) for phase in phases)} answers, {wrong} of them wrong")
    return not wrong


def report(name: str, phase: Phase, process_id: int) -> None:
    seconds = time.perf_counter() - phase.begin
    times = [1e3 * quantile for quantile in statistics.quantiles(phase.seconds, n=100)]
    cells = [name, sum(phase.statuses.values()), f"{phase.statuses[200] / seconds:.0f}"]
    cells += [f"{times[percent - 1]:.0f}" for percent in (50, 95, 99)]
    cells += [phase.statuses[429], f"{resident_mb(process_id):.0f}"]
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def resident_mb(process_id: int | str) -> float:
    status = Path(f"/proc/{process_id}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found, status
    return int(found[1]) * 1024 / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_adapters", type=int, default=64, help="number of adapters in the store (64)")
    parser.add_argument("--resident", type=int, default=64, help="number of adapters on the device (64)")
    parser.add_argument("--clients", type=int, default=32, help="number of clients at full load (32)")
    parser.add_argument("--seconds", type=float, default=20, help="seconds per phase (20)")
    parser.add_argument("--soak_minutes", type=float, default=0, help="minutes of load while adapters change (0)")
    parser.add_argument("--max_queue", type=int, default=128, help="maximum number of queued rows (128)")
    arguments = parser.parse_args()
    generator = random.Random(1)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(3, 20))) for _ in range(NUM_TEXTS)]
    with tempfile.TemporaryDirectory() as folder:
        expected, trunk = {}, load_trunk("minilm")
        for number in range(arguments.num_adapters):
            model = stored_task(trunk, f"task{number}", folder)
            expected[model.task.name] = model.predict(texts).logits
        flags = [f"--{name}={getattr(arguments, name)}" for name in ("resident", "max_queue")]
        flags += ["--predict_all"] if arguments.soak_minutes else []
        words = [sys.executable, "-m", "afjax", "serve", f"--store={folder}", "--trunk=minilm", "--port=0", *flags]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr, "stderr must be a pipe"
            url = next(found[1] for line in process.stderr if (found := re.search(r"Serving at (\S+)\.", line)))
            print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
            try:
                right = asyncio.run(measure(arguments, Client(url, texts, expected), process.pid))
            finally:
                process.send_signal(signal.SIGTERM)
    return 0 if right else 1


def stored_task(trunk: Trunk, name: str, folder: str) -> TaskModel:
    """Creates a random task model and saves it to a store."""
    model = random_task(trunk, name, "pfeiffer", 64).renamed(name)
    model.save(folder)
    return model


if __name__ == "__main__":
    sys.exit(main())

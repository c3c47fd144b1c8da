"""``afjax serve`` runs in a process and answers several clients until it is stopped or killed."""

import ctypes
import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from facts import has_facts

from afjax import load_task_model, load_trunk

pytestmark = pytest.mark.slow

Refused = Callable[..., str]
PAIR = {"text_a": "all of the two", "text_b": "some of the two"}


# Allocates blocks of 32 kB, frees all except the last one, and prints the process's memory before and after the call.
# The last block keeps free() from returning the memory.
FREE_MEMORY = """
import ctypes, resource
from afjax.distributed.host_memory import return_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [libc.malloc(2**15) for _ in range(5_000)]
for block in blocks:
    ctypes.memset(block, 1, 2**15)
for block in blocks[:-1]:
    libc.free(block)
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
before = resident()
return_freed_memory()
print(before - resident())
"""


@pytest.fixture
def flags(trained: Path, tiny_trunk_folder: Path) -> list[str]:
    return [f"--store={trained / 'run' / 'store'}", f"--trunk={tiny_trunk_folder}", "--batch_sizes=8", "--port=0"]


class Server:
    """An ``afjax serve`` process."""

    def __init__(self, flags: list[str]) -> None:
        words = [sys.executable, "-m", "afjax", "serve", *flags]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.printed = ""
        while not (found := re.search(r"Serving at http://127\.0\.0\.1:(\d+)", self.printed)):
            line = self.process.stderr.readline()
            assert line, self.printed
            self.printed += line
        self.port = int(found[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> str:
        """Waits for the process to exit, and returns the rest of its output."""
        return "" if self.process.stderr.closed else self.process.communicate()[1]


@pytest.fixture
def server(flags: list[str]) -> Iterator[Server]:
    server = Server(flags)
    yield server
    server.process.kill()
    server.end()


def started_request(server: Server, rows: list[dict[str, Any]]) -> tuple[socket.socket, bytes]:
    """Sends a request's headers, waits until the server asks for the body, and returns ``(connection, body)``."""
    body = json.dumps({"rows": rows}).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = (
        f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    )
    connection.sendall(head.encode())
    assert b"100 Continue" in connection.recv(1000)
    return connection, body


def received(connection: socket.socket) -> bytes:
    """Receives bytes until the server closes the connection, and returns them."""
    answer = b""
    while part := connection.recv(10_000):
        answer += part
    return answer


def test_clients_get_their_own_answers_until_the_server_is_stopped(
    server: Server, trained: Path, tiny_trunk_folder: Path
) -> None:
    trunk, store = load_trunk(str(tiny_trunk_folder)), trained / "run" / "store"
    models = {name: load_task_model(store, trunk, adapter=name) for name in ("first", "second")}
    models["target-fusion"] = load_task_model(store, trunk, fusion="target-fusion")
    texts = [("all of the two", "some of the two"), ("some of the four", "all of the five"), ("all", "some")]
    expected = {name: model.predict(texts).logits for name, model in models.items()}

    def ask(number: int) -> None:
        name, row = list(models)[number % 3], number // 3 % 3
        pair = dict(zip(("text_a", "text_b"), texts[row], strict=True))
        response = httpx2.post(f"{server.url}/predict", json={"rows": [{"adapter": name, **pair}]}, timeout=60)
        (prediction,) = response.json()["predictions"]
        np.testing.assert_allclose(prediction["logits"], expected[name][row], rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(60)))
    assert {adapter["name"] for adapter in httpx2.get(f"{server.url}/adapters").json()["adapters"]} == models.keys()
    # A request in progress is answered even if the server is asked to stop.
    connection, body = started_request(server, [{"adapter": "first", **PAIR}])
    with connection:
        server.process.send_signal(signal.SIGTERM)
        connection.sendall(body)
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"predictions"' in answer
    assert "has ended" in server.end()
    assert server.process.returncode == 0


def test_clients_of_a_killed_server_get_an_error(server: Server) -> None:
    connection, body = started_request(server, [{"adapter": "first", **PAIR}])
    server.process.kill()
    server.end()
    with connection:
        try:
            connection.sendall(body)
            answer = received(connection)
        except OSError:
            answer = b""
    assert answer == b""


def test_adapters_are_added_from_the_store_by_name(flags: list[str]) -> None:
    server = Server([*flags, "--adapters=first", "--resident=1"])
    try:
        row = {"adapter": "second", **PAIR}
        assert httpx2.post(f"{server.url}/predict", json={"rows": [row]}).status_code == 404
        for name, status in (("secnod", 404), ("..%2Fsecond", 404), ("second", 201), ("second", 409)):
            answer = httpx2.put(f"{server.url}/adapters/{name}")
            assert (answer.status_code, "/run/store" in answer.text) == (status, False)
        assert httpx2.post(f"{server.url}/predict", json={"rows": [row]}, timeout=60).status_code == 200
        # The server's program has no fusions, so the fusion cannot be added.
        refused = httpx2.put(f"{server.url}/adapters/target-fusion")
        assert (refused.status_code, "store" in refused.text) == (422, False)
    finally:
        server.process.send_signal(signal.SIGINT)
        printed = server.end()
    assert has_facts(printed, 'Adding "target-fusion" failed', "fusion of 2")


def has_browser() -> bool:
    try:
        return importlib.util.find_spec("PyQt6.QtWebEngineCore") is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.skipif(not has_browser(), reason="needs pip install PyQt6-WebEngine")
def test_page_in_a_browser_shows_predictions_and_attention(server: Server) -> None:
    script = Path(__file__).with_name("browser.py")
    words = [sys.executable, str(script), f"{server.url}/", PAIR["text_a"], PAIR["text_b"], "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    names = ["first", "second", "target-fusion"]
    assert shown["adapters"] == names
    assert shown["message"] == ""
    rows = [{"adapter": name, **PAIR} for name in names]
    body = {"rows": rows, "fusion_attention": True}
    predictions = httpx2.post(f"{server.url}/predict", json=body, timeout=60).json()["predictions"]
    for name, prediction in zip(names, predictions, strict=True):
        assert [name, prediction["label"], f"{max(prediction['probabilities']):.3f}"] in shown["results"]
    (table,) = shown["attention"]
    assert "target-fusion" in table["caption"]
    assert table["rows"][0] == ["layer", "first", "second"]
    shares = predictions[2]["fusion_attention"]["ffn"]["attention"]
    assert table["rows"][1:] == [[str(n), *(f"{share:.2f}" for share in row)] for n, row in enumerate(shares)]
    assert shown["shaded"] == 4


def test_wrong_flags_are_refused(flags: list[str], refused: Refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in refused("serve", *flags, f"--port={port}")
    for flag, fact in (
        ("--port=70000", "70000"),
        ("--batch_sizes=many", "--batch_sizes is many"),
        ("--batch_sizes=8,1", "batch_sizes"),
        ("--resident=0", "resident is 0"),
        ("--max_queue=0", "max_queue is 0"),
        ("--adapters=frist", 'Did you mean "first"'),
        ("--store=nowhere", "no store at nowhere"),
        ("--host=", "--host is empty"),
        ("--allowed_hosts=a*b", 'has "a*b"'),
    ):
        assert fact in refused("serve", *flags, flag)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc can return free memory")
def test_free_memory_is_returned_to_the_system() -> None:
    words = [sys.executable, "-c", FREE_MEMORY]
    returned = int(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert returned > 0.9 * 5_000 * 2**15

"""``launch/ray_serve.py`` serves a store's adapters with a local Ray Serve."""

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import numpy as np
import pytest
from random_tasks import random_task

from afjax import Trunk
from afjax.config.adapters import AdapterConfig

LAUNCH = Path(__file__).parents[2] / "launch"
# Serves on a port, prints "ready", and stops when its input ends.
SCRIPT = """
import sys
from ray import serve
from ray_serve import Settings, build

store, trunk, port = sys.argv[1:]
serve.start(http_options={"port": int(port)})
serve.run(build(Settings(store=store, trunk=trunk, predict_all=True)))
print("ready", flush=True)
sys.stdin.read()
serve.shutdown()
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs pip install 'ray[serve]'"),
]


def test_replica_predicts_with_the_adapters_of_a_store(
    tiny_trunk: Trunk, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    model = random_task(tiny_trunk, "0", AdapterConfig(size=4)).renamed("topic")
    model.save(tmp_path / "store")
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), str(tiny_trunk_folder), str(port)]
    with subprocess.Popen(command, cwd=LAUNCH, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert any(line == "ready\n" for line in process.stdout), "the server has ended"
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            row = {"adapter": "topic", "text": "no dogs"}
            (prediction,) = client.post("/predict", json={"rows": [row]}).json()["predictions"]
            np.testing.assert_allclose(prediction["logits"], model.predict(["no dogs"]).logits[0], rtol=1e-4, atol=1e-5)
            assert client.post("/predict", json={"rows": [{**row, "adapter": "topik"}]}).status_code == 404
            (by_name,) = client.post("/predict_all", json={"rows": [{"text": "no dogs"}]}).json()["predictions"]
            np.testing.assert_allclose(by_name["topic"]["logits"], prediction["logits"], rtol=1e-4, atol=1e-5)
            # Adapters cannot be changed, because a request would only reach one of several replicas.
            assert client.delete("/adapters/topic").status_code == 403
        process.communicate("")
    assert process.returncode == 0

"""The HTTP application returns predictions, and refuses invalid requests."""

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from facts import has_facts
from random_tasks import random_task
from starlette.testclient import TestClient

from afjax import Capacity, RoutedModel, TaskModel, Trunk, UserError
from afjax.config.adapters import AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.config.server import ServerConfig
from afjax.config.tasks import TaskConfig
from afjax.serve import app
from afjax.serve.app import CLIENT_HAS_GONE, make_app
from afjax.serve.requests import UnknownTaskError

pytestmark = pytest.mark.slow

BOTTLENECK = AdapterConfig(size=4)
TEXTS = ("all cats are small", "no dogs", "some small cats are not dogs")
LIMITS = ServerConfig(
    max_queue=8, max_rows=6, max_text_chars=200, max_body_bytes=5000, allowed_hosts=("testserver", "adapters.example")
)


@pytest.fixture(scope="module")
def models(tiny_trunk: Trunk) -> dict[str, TaskModel]:
    names = ("entail", "topic", "later")
    return {name: random_task(tiny_trunk, name, BOTTLENECK) for name in names}


@pytest.fixture(scope="module")
def routed(tiny_trunk: Trunk, models: dict[str, TaskModel]) -> RoutedModel:
    served = {name: models[name] for name in ("entail", "topic")}
    routed = RoutedModel(tiny_trunk, served, Capacity(batch_sizes=(4,), lengths=(16,)))
    routed.warm_up()
    return routed


@pytest.fixture
def client(routed: RoutedModel, models: dict[str, TaskModel]) -> Iterator[TestClient]:
    def load(name: str) -> TaskModel:
        if name == "broken":
            raise UserError("/secret/folder is damaged")
        if name not in models:
            raise UnknownTaskError(f'There is no adapter "{name}".')
        return models[name]

    with TestClient(make_app(routed, load, LIMITS), raise_server_exceptions=False) as client:
        yield client


def predict(client: TestClient, rows: Any, **headers: str) -> Any:
    return client.post("/predict", json={"rows": rows}, headers=headers)


def test_rows_are_predicted_in_order(client: TestClient, models: dict[str, TaskModel], tiny_trunk: Trunk) -> None:
    rows = [
        {"adapter": "topic", "text": TEXTS[0]},
        {"adapter": None, "text": TEXTS[1]},
        {"adapter": "entail", "text_a": TEXTS[2], "text_b": TEXTS[1]},
    ]
    # The model "entail" does not record its number of text columns, so it accepts single texts and pairs.
    response = predict(client, rows)
    assert response.status_code == 200
    topic, embedding, entail = response.json()["predictions"]
    np.testing.assert_allclose(topic["logits"], models["topic"].predict([TEXTS[0]]).logits[0], rtol=1e-4, atol=1e-5)
    expected = models["entail"].predict([(TEXTS[2], TEXTS[1])])
    np.testing.assert_allclose(entail["logits"], expected.logits[0], rtol=1e-4, atol=1e-5)
    assert entail["label"] == expected.labels[0]
    np.testing.assert_allclose(
        embedding["embedding"], tiny_trunk.embed([TEXTS[1]], max_length=16)[0], rtol=1e-4, atol=1e-5
    )


VALID_ROW = {"adapter": "topic", "text": "no dogs"}


@pytest.mark.parametrize(
    ("body", "status", "fact"),
    [
        (b"", 400, "JSON"),
        (b'{"rows": [', 400, "JSON"),
        (b"\xff\xfe", 400, "JSON"),
        (b"[" * 4000, 400, "levels"),
        (b'{"rows": [{"adapter": "topic", "text": ' + b"[" * 80 + b"]" * 80 + b"}]}", 400, "levels"),
        (b'{"rows": [{"adapter": "topic", "adapter": "entail", "text": "no dogs"}]}', 400, '"adapter" occurs twice'),
        (b"7", 400, "rows"),
        (b'{"rows": []}', 400, "rows"),
        (b'{"rows": {}}', 400, "rows"),
        (json.dumps({"rows": [VALID_ROW], "more": 1}).encode(), 400, "rows"),
        (json.dumps({"rows": [VALID_ROW], "fusion_attention": 1}).encode(), 400, "fusion_attention"),
        (json.dumps({"rows": [VALID_ROW, 7]}).encode(), 400, "rows[1]"),
        (json.dumps({"rows": [{"text": "no dogs"}]}).encode(), 400, '"adapter"'),
        (json.dumps({"rows": [{**VALID_ROW, "adapter": 3}]}).encode(), 400, '"adapter"'),
        (json.dumps({"rows": [VALID_ROW, {**VALID_ROW, "adapter": "topik"}]}).encode(), 404, 'Did you mean "topic"'),
        (json.dumps({"rows": [{**VALID_ROW, "adapter": "../../etc/passwd"}]}).encode(), 404, "not in service"),
        (json.dumps({"rows": [{**VALID_ROW, "text": 7}]}).encode(), 400, "rows[0]"),
        (json.dumps({"rows": [{"adapter": "topic", "words": ["a"]}]}).encode(), 400, "words"),
        (json.dumps({"rows": [VALID_ROW] * 7}).encode(), 413, "7 rows"),
        (json.dumps({"rows": [{**VALID_ROW, "text": "a" * 201}]}).encode(), 413, "characters"),
        (json.dumps({"rows": [{**VALID_ROW, "more": [["a" * 150, "b" * 150]]}]}).encode(), 413, "characters"),
        (b" " * 5001, 413, "5000 bytes"),
        (b'{"rows": [{"adapter": "\\ud800", "text": "no dogs"}]}', 400, "not Unicode"),
        (b'{"rows": [{"adapter": "topic", "text": "no dogs", "\\ud800": 1}]}', 400, "not Unicode"),
    ],
)
def test_invalid_bodies_are_refused(client: TestClient, body: bytes, status: int, fact: str) -> None:
    response = client.post("/predict", content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert fact in response.json()["error"]
    assert "Traceback" not in response.text
    assert predict(client, [VALID_ROW]).status_code == 200


async def status_of(app: Any, receive: Callable[[], Awaitable[Any]]) -> int:
    """Sends a request to /predict without a server, and returns its status code."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"testserver"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    return int(sent[0]["status"])


def test_slow_bodies_are_refused(routed: RoutedModel) -> None:
    app = make_app(routed, None, dataclasses.replace(LIMITS, body_timeout_s=0.01))

    async def receive() -> Any:
        return await asyncio.Future()

    assert asyncio.run(status_of(app, receive)) == 408


def test_waiting_requests_of_disconnected_clients_are_not_computed(
    routed: RoutedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, release = threading.Event(), threading.Event()
    outputs, computed = routed.outputs, []

    def blocked(parts: Any) -> Any:
        started.set()
        release.wait()
        computed.append(sum(map(len, parts)))
        return outputs(parts)

    monkeypatch.setattr(routed, "outputs", blocked)
    with TestClient(make_app(routed, None, LIMITS)) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(predict, client, [VALID_ROW] * 2)
        started.wait()
        body = json.dumps({"rows": [VALID_ROW] * 3}).encode()

        async def disconnect() -> int:
            messages = iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])

            async def receive() -> Any:
                return next(messages)

            return await status_of(client.app, receive)

        assert pool.submit(asyncio.run, disconnect()).result() == CLIENT_HAS_GONE
        release.set()
        assert first.result().status_code == 200
        assert predict(client, [VALID_ROW]).status_code == 200
        assert computed == [2, 1]
        # The response is sent shortly before the queue counts the batch as computed.
        end = time.monotonic() + 60
        while "afjax_queue_sequences 0.0" not in (lines := client.get("/metrics").text.splitlines()):
            assert time.monotonic() < end
            time.sleep(0.01)
    assert f'afjax_requests_total{{status="{CLIENT_HAS_GONE}"}} 1.0' in lines


def test_rows_are_predicted_with_several_adapters(tiny_trunk: Trunk, models: dict[str, TaskModel]) -> None:
    limits = dataclasses.replace(LIMITS, predict_all=True)
    names = ("entail", "topic")
    served = {name: models[name] for name in names}
    routed = RoutedModel(tiny_trunk, served, Capacity(batch_sizes=(4,), lengths=(16,), tasks_per_row=2))
    with TestClient(make_app(routed, None, limits)) as client:

        def predict_all(**body: Any) -> Any:
            return client.post("/predict_all", json=body)

        rows = [{"text": text} for text in TEXTS]
        answers = predict_all(rows=rows).json()["predictions"]
        assert len(answers) == len(TEXTS)
        for text, answer in zip(TEXTS, answers, strict=True):
            assert set(answer) == set(names)
            for name in names:
                expected = models[name].predict([text])
                np.testing.assert_allclose(answer[name]["logits"], expected.logits[0], rtol=1e-4, atol=1e-5)
        assert [set(answer) for answer in predict_all(rows=rows, adapters=["topic"]).json()["predictions"]] == [
            {"topic"}
        ] * 3
        for body, status, fact in (
            ({"rows": rows, "adapters": "topic"}, 400, "adapters"),
            ({"rows": rows, "adapters": []}, 400, "adapters"),
            ({"rows": rows, "adapters": [7]}, 400, "adapters"),
            ({"rows": rows, "adapters": ["topic", "topic"]}, 400, "each name only once"),
            ({"rows": rows, "adapters": ["topic", "topik"]}, 404, 'Did you mean "topic"'),
            ({"rows": rows, "adapters": ["topic"] * 300}, 413, "fewer"),
            ({"rows": [VALID_ROW]}, 400, "rows[0]"),
            ({"rows": [{"texts": "no dogs"}]}, 400, "rows[0]"),
            ({"rows": rows * 2}, 413, "fewer"),
        ):
            response = predict_all(**body)
            assert response.status_code == status, response.text
            assert fact in response.json()["error"]
        pair = TaskConfig(name="pair")
        routed.remove("entail")
        routed.add("pair", dataclasses.replace(models["entail"].renamed("pair"), task=pair, text_columns=2))
        error = predict_all(rows=rows).json()["error"]
        assert has_facts(error, '(for "pair")', '"adapters": ["topic"]')
        routed.remove("pair")
        routed.add("entail", models["entail"])
        (answer,) = predict_all(rows=[{"text": "no dogs"}], adapters=["topic", "entail"]).json()["predictions"]
        assert list(answer) == ["topic", "entail"]
        body_bytes = b'{"rows": [{"text": "no dogs"}], "adapters": ["\\ud800"]}'
        response = client.post("/predict_all", content=body_bytes, headers={"Content-Type": "application/json"})
        assert (response.status_code, list(response.json())) == (400, ["error"])
        lines = client.get("/metrics").text.splitlines()
        assert 'afjax_rows_total{adapter="topic"} 7.0' in lines
        assert "afjax_queue_sequences 0.0" in lines
        for name in names:
            routed.remove(name)
        assert predict_all(rows=rows).status_code == 404


def test_rows_are_not_predicted_with_all_adapters_by_default(client: TestClient) -> None:
    assert client.post("/predict_all", json={"rows": [{"text": "no dogs"}]}).status_code == 403


def test_empty_text_is_predicted(client: TestClient, models: dict[str, TaskModel]) -> None:
    (prediction,) = predict(client, [{"adapter": "topic", "text": ""}]).json()["predictions"]
    np.testing.assert_allclose(prediction["logits"], models["topic"].predict([""]).logits[0], rtol=1e-4, atol=1e-5)


def test_requests_from_other_sites_are_refused(client: TestClient) -> None:
    same_site = {"Host": "adapters.example:8000"}
    assert predict(client, [VALID_ROW], **same_site).status_code == 200
    assert predict(client, [VALID_ROW], **same_site, Origin="http://adapters.example:8000").status_code == 200
    for headers in (
        {"Host": "attacker.example"},
        {"Host": ""},
        {**same_site, "Origin": "http://attacker.example"},
        {**same_site, "Origin": "http://adapters.example:9000"},
        {**same_site, "Origin": "null"},
        {**same_site, "Origin": "http://["},
        {**same_site, "Sec-Fetch-Site": "cross-site"},
    ):
        for response in (predict(client, [VALID_ROW], **headers), client.get("/adapters", headers=headers)):
            assert response.status_code == (403 if "adapters.example" in headers["Host"] else 400)
            assert list(response.json()) == ["error"]
    # A link on another site may open the page, but must not request predictions. A load balancer may send any Host when
    # it probes /healthz.
    link = {**same_site, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200
    assert predict(client, [VALID_ROW], **link).status_code == 403
    assert client.get("/healthz", headers={"Host": "10.0.0.7:8000"}).status_code == 200
    # Forms on other sites can send these types without a preflight request, so they are refused.
    for media_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = client.post("/predict", content=b'{"rows": []}', headers={"Content-Type": media_type})
        assert response.status_code == 415


def test_host_can_be_an_ip_address(routed: RoutedModel) -> None:
    with TestClient(make_app(routed, None, ServerConfig())) as client:
        for host, status in (("[::1]:80", 200), ("[::1]", 200), ("127.0.0.1:80", 200), ("[::2]:80", 400), ("::1", 400)):
            assert client.get("/adapters", headers={"Host": host}).status_code == status


def test_adapters_are_listed_added_and_removed(client: TestClient, models: dict[str, TaskModel]) -> None:
    listed = client.get("/adapters").json()["adapters"]
    assert [adapter["name"] for adapter in listed] == ["entail", "topic"]
    assert listed[0]["labels"] == ["few", "many"]
    assert listed[0]["bytes"] > 0
    later = {"adapter": "later", "text": TEXTS[0]}
    assert predict(client, [later]).status_code == 404
    assert client.put("/adapters/later").status_code == 201
    (prediction,) = predict(client, [later]).json()["predictions"]
    np.testing.assert_allclose(
        prediction["logits"], models["later"].predict([TEXTS[0]]).logits[0], rtol=1e-4, atol=1e-5
    )
    assert client.put("/adapters/later").status_code == 409
    assert '{adapter="later"}' in client.get("/metrics").text
    assert client.delete("/adapters/later").status_code == 204
    assert "later" not in client.get("/metrics").text
    assert client.delete("/adapters/later").status_code == 404
    assert predict(client, [later]).status_code == 404
    assert client.put("/adapters/none").status_code == 404
    assert client.put("/adapters/..%2F..%2Fetc").status_code == 404


def test_adapter_that_cannot_be_loaded_does_not_affect_the_others(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    response = client.put("/adapters/broken")
    assert response.status_code == 422
    # The message names a file on the server, so the server logs it but does not send it.
    assert "secret" not in response.text
    assert "/secret/folder is damaged" in capsys.readouterr().err
    assert predict(client, [VALID_ROW]).status_code == 200


def test_adapters_cannot_be_changed_without_a_store(routed: RoutedModel) -> None:
    with TestClient(make_app(routed, None, LIMITS)) as client:
        assert client.put("/adapters/later").status_code == 403
        assert client.delete("/adapters/topic").status_code == 403
        assert predict(client, [VALID_ROW]).status_code == 200


def test_non_finite_outputs_fail_only_their_request(
    client: TestClient, routed: RoutedModel, models: dict[str, TaskModel]
) -> None:
    params = {**models["later"].params, "adapters": {"0": {"ffn": {}}}}
    for part in ("down", "up"):
        leaves = models["later"].params["adapters"]["0"]["ffn"][part]
        params["adapters"]["0"]["ffn"][part] = {name: np.full_like(leaf, np.nan) for name, leaf in leaves.items()}
    routed.add("nan", dataclasses.replace(models["later"], params=params))
    try:
        with ThreadPoolExecutor() as pool:
            bad = pool.submit(predict, client, [{**VALID_ROW, "adapter": "nan"}])
            good = [pool.submit(predict, client, [VALID_ROW]) for _ in range(3)]
            assert bad.result().status_code == 500
            assert '"nan"' in bad.result().json()["error"]
            assert [answer.result().status_code for answer in good] == [200] * 3
    finally:
        routed.remove("nan")


def block(model: RoutedModel, name: str, patch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Makes a model's method wait.

    Returns the event that the method has started, and the event that lets it continue.
    """
    started, release = threading.Event(), threading.Event()
    method = getattr(model, name)

    def blocked(parts: Any) -> Any:
        started.set()
        release.wait()
        return method(parts)

    patch.setattr(model, name, blocked)
    return started, release


def test_full_queue_refuses_requests(routed: RoutedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    started, release = block(routed, "outputs", monkeypatch)
    limits = dataclasses.replace(LIMITS, max_rows=9)
    with TestClient(make_app(routed, None, limits)) as client, ThreadPoolExecutor() as pool:
        # The request has more rows than the queue can hold, so it can never be accepted.
        assert predict(client, [VALID_ROW] * 9).status_code == 413
        first = pool.submit(predict, client, [VALID_ROW] * 6)
        started.wait()
        refused = predict(client, [VALID_ROW] * 3)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        release.set()
        assert first.result().status_code == 200
        assert predict(client, [VALID_ROW] * 3).status_code == 200


def test_full_queue_refuses_requests_for_attention(routed: RoutedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    started, release = block(routed, "attention", monkeypatch)

    def send(client: TestClient, num_rows: int) -> Any:
        return client.post("/predict", json={"rows": [VALID_ROW] * num_rows, "fusion_attention": True})

    with TestClient(make_app(routed, None, LIMITS)) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(send, client, 6)
        started.wait()
        assert send(client, 3).status_code == 429
        # Requests without attention do not wait.
        assert predict(client, [VALID_ROW]).status_code == 200
        release.set()
        assert first.result().status_code == 200
        assert send(client, 3).status_code == 200


def test_internal_errors_show_no_traceback(routed: RoutedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(parts: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(routed, "outputs", fail)
    with TestClient(make_app(routed, None, LIMITS), raise_server_exceptions=False) as client:
        response = predict(client, [VALID_ROW])
        assert response.status_code == 500
        assert "secret" not in response.text
        monkeypatch.undo()
        assert client.get("/healthz").json() == {"status": "ok"}


def test_metrics_count_requests_rows_and_batches(client: TestClient) -> None:
    assert predict(client, [VALID_ROW, VALID_ROW]).status_code == 200
    assert predict(client, []).status_code == 400
    lines = client.get("/metrics").text.splitlines()
    for line in (
        'afjax_requests_total{status="200"} 1.0',
        'afjax_requests_total{status="400"} 1.0',
        'afjax_rows_total{adapter="topic"} 2.0',
        "afjax_batch_sequences_sum 2.0",
        "afjax_queue_sequences 0.0",
        "afjax_adapters 2.0",
    ):
        assert line in lines


def test_adapter_removed_during_a_request_has_no_counter(
    routed: RoutedModel, models: dict[str, TaskModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = routed.outputs

    def remove_and_compute(parts: Any) -> Any:
        assert client.delete("/adapters/later").status_code == 204
        return compute(parts)

    monkeypatch.setattr(routed, "outputs", remove_and_compute)
    with TestClient(make_app(routed, models.__getitem__, LIMITS)) as client:
        assert client.put("/adapters/later").status_code == 201
        assert predict(client, [{"adapter": "later", "text": TEXTS[0]}]).status_code == 200
        assert "later" not in client.get("/metrics").text


def test_request_for_all_adapters_is_answered_if_one_is_removed_meanwhile(
    routed: RoutedModel, models: dict[str, TaskModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = app.pick_inputs

    def remove_and_pick(*arguments: Any) -> Any:
        assert client.delete("/adapters/later").status_code == 204
        return pick(*arguments)

    monkeypatch.setattr(app, "pick_inputs", remove_and_pick)
    with TestClient(make_app(routed, models.__getitem__, dataclasses.replace(LIMITS, predict_all=True))) as client:
        assert client.put("/adapters/later").status_code == 201
        response = client.post("/predict_all", json={"rows": [{"text": TEXTS[0]}]})
        assert response.status_code == 200
        assert list(response.json()["predictions"][0]) == ["entail", "topic", "later"]
        assert "later" not in client.get("/metrics").text


def test_attention_of_a_fusion_is_returned_on_request(tiny_trunk: Trunk) -> None:
    model = random_task(tiny_trunk, "fused", BOTTLENECK, BOTTLENECK, fusion=FusionConfig())
    routed = RoutedModel(tiny_trunk, {"fused": model}, Capacity(batch_sizes=(4,), lengths=(16,)))
    with TestClient(make_app(routed, None, LIMITS)) as client:
        rows = [{"adapter": "fused", "text": TEXTS[0]}, {"adapter": None, "text": TEXTS[0]}]
        fused, plain = client.post("/predict", json={"rows": rows, "fusion_attention": True}).json()["predictions"]
        assert list(plain) == ["embedding"]
        assert fused["fusion_attention"]["ffn"]["adapters"] == [["0", "1"]] * 2
        np.testing.assert_allclose(np.sum(fused["fusion_attention"]["ffn"]["attention"], -1), 1.0, rtol=1e-5)
        assert "fusion_attention" not in predict(client, rows).json()["predictions"][0]
        assert client.get("/adapters").json()["adapters"][0]["fused"] == ["0", "1"]


def test_page_loads_only_its_own_files(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    for path in ("/page.js", "/page.css"):
        assert path in page.text
        assert client.get(path).status_code == client.head(path).status_code == 200
        assert client.post(path).status_code == 405
    assert client.get("/page.js").headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert "<script>" not in page.text
    assert "style=" not in page.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_queue", 0),
        ("max_rows", -1),
        ("max_wait_ms", -1.0),
        ("body_timeout_s", float("nan")),
        ("allowed_hosts", ()),
        ("allowed_hosts", ("a*b",)),
        ("allowed_hosts", ("host:80",)),
        ("max_connections", 0),
    ],
)
def test_invalid_limits_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=field):
        ServerConfig(**{field: value})

"""The real hub client works with a local server.

The server implements the endpoints that the client calls.
"""

import base64
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from made_store import digests

from afjax import share
from afjax.share import hub


class Repository(http.server.BaseHTTPRequestHandler):
    """Serves one repository. A commit's ID is the SHA-1 of its number."""

    protocol_version = "HTTP/1.1"
    commits: list[dict[str, bytes]]

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def _respond(self, contents: bytes, **headers: str) -> None:
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(contents))}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(contents)

    def _head(self) -> str:
        return hashlib.sha1(str(len(self.commits)).encode()).hexdigest()

    def do_GET(self) -> None:
        path, files = unquote(urlsplit(self.path).path), self.commits[-1]
        if path.startswith(f"/me/rte/resolve/{self._head()}/"):
            contents = files[path.split("/", 5)[5]]
            self._respond(contents, X_Repo_Commit=self._head(), ETag=f'"{hashlib.sha1(contents).hexdigest()}"')
            return
        listed = [(name, len(files[name]), hashlib.sha1(files[name]).hexdigest()) for name in files]
        if "/tree/" in path:
            response: object = [{"type": "file", "path": name, "size": size, "oid": oid} for name, size, oid in listed]
        else:
            siblings = [{"rfilename": name, "size": size, "blobId": oid} for name, size, oid in listed]
            response = {"id": "me/rte", "sha": self._head(), "private": False, "siblings": siblings, "tags": []}
        self._respond(json.dumps(response).encode())

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            response: dict = {"url": "https://huggingface.co/me/rte"}
        elif "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            response = {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]}
        elif "/commit/" in self.path:
            header, *operations = (json.loads(line) for line in body.splitlines())
            assert header["value"]["parentCommit"] == self._head()
            added = {
                operation["value"]["path"]: base64.b64decode(operation["value"]["content"])
                for operation in operations
                if operation["key"] == "file"
            }
            self.commits.append(self.commits[-1] | added)
            response = {"commitUrl": f"https://huggingface.co/me/rte/commit/{self._head()}", "commitOid": self._head()}
        else:
            assert self.path == "/api/validate-yaml"
            response = {"errors": [], "warnings": []}
        self._respond(json.dumps(response).encode())


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, bytes]]]:
    """Runs the server, and returns the commits of its repository.

    Each commit maps the path of a file to its contents.
    """
    commits: list[dict[str, bytes]] = [{".gitattributes": b"* text=auto\n"}]
    handler = type("Handler", (Repository,), {"commits": commits})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(hub, "_client", lambda: huggingface_hub.HfApi(endpoint=address, token="hf_none"))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield commits
        server.shutdown()
        thread.join()


def test_push_and_pull_with_the_real_client(
    example_store: Path, tmp_path: Path, commits: list[dict[str, bytes]]
) -> None:
    assert share.push(example_store, "rte", "me/rte", license="mit").endswith("/me/rte")
    assert len(commits) == 2
    commits[-1]["weights.bin"] = b"unrelated"
    manifests = share.pull("me/rte", tmp_path / "new")
    assert [part.kind for part in manifests] == ["heads", "adapters"]
    before = digests(example_store)
    assert digests(tmp_path / "new") == {part: before[part] for part in ("adapters/rte", "heads/rte")}
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name in ("weights.bin", ".cache")) == []

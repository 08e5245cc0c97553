"""A Hub on the loopback interface: the requests of `huggingface_hub`, answered from a dictionary."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "a" * 40


class FakeHub:
    """Serves repositories on 127.0.0.1.

    Args:
        repositories: Files by name, by repository.
        tokens: The token that a repository asks for, by repository.

    Attributes:
        url: The endpoint.
        downloads: "repository@revision/file" of every download, in order.
        tokens_seen: The token of every request, None without one.
    """

    def __init__(
        self, repositories: Mapping[str, Mapping[str, bytes]], tokens: Mapping[str, str] | None = None
    ) -> None:
        self.repositories = repositories
        self.tokens = tokens or {}
        self.downloads: list[str] = []
        self.tokens_seen: list[str | None] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        about = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(?:revision|tree)/([^/]+))?(/.*)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = about or file
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ") or None
        self.hub.tokens_seen.append(token)
        if match is None or match.group(1) not in self.hub.repositories:
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, body)
        name = match.group(1)
        if self.hub.tokens.get(name) not in (None, token):
            return self._send(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "it is gated"}, body)
        files = self.hub.repositories[name]
        if about is not None:
            return self._send_json(self._tree(files) if "/tree/" in path else self._info(name, files), body)
        assert file is not None
        revision, wanted = file.group(2), file.group(3)
        if wanted not in files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, body)
        content = files[wanted]
        if body:
            self.hub.downloads.append(f"{name}@{revision}/{wanted}")
        tag = hashlib.sha1(content).hexdigest()
        return self._send(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT}, body)

    @staticmethod
    def _info(name: str, files: Mapping[str, bytes]) -> dict[str, Any]:
        return {"id": name, "modelId": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}

    @staticmethod
    def _tree(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for file, content in files.items()
        ]

    def _send_json(self, value: Any, body: bool) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, body)

    def _send(self, status: int, content: bytes, headers: Mapping[str, str], body: bool) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

"""A server that hangs, has failed or is full says so, ends when it is told to, and names its requests."""

from __future__ import annotations

import json
import logging
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from served import Served, held_model, served

from mmspec.serving.server import DrainingServer
from mmspec.serving.step_clock import StepClock

IMAGES = "/v1/images/generations"
IMAGE = {"prompt": "a red circle", "seed": 1}


def connect(server: Served) -> socket.socket:
    parts = urlsplit(server.address)
    return socket.create_connection((parts.hostname, parts.port), 20)


def received(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


def test_a_clock_measures_from_the_latest_step_of_a_busy_model() -> None:
    now = 0.0
    clock = StepClock(lambda: now)
    now = 5.0
    assert clock.seconds == 0
    with clock.request():
        now = 7.0
        with clock.request():
            assert clock.seconds == 2
            clock.step()
            now = 10.0
        assert clock.seconds == 3
    assert clock.seconds == 0


def test_a_model_that_hangs_turns_health_red() -> None:
    model, engine = held_model()
    now = 0.0
    model.clock = StepClock(lambda: now)
    with served([model]) as running, connect(running) as connection:
        assert running.json("/health") == {"status": "ok", "seconds_since_last_step": 0.0}
        body = json.dumps(IMAGE | {"stream": True}).encode()
        top = f"POST {IMAGES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{top}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        connection.recv(1)  # the first tokens have come
        now = 599.0
        assert running.request("/health")[0] == 200
        now = 601.0
        status, _, content = running.request("/health")
        assert (status, json.loads(content)) == (503, {"status": "hangs", "seconds_since_last_step": 601.0})
        assert b'mmspec_seconds_since_last_step{model="shapes"} 601.0' in running.request("/metrics")[2]
        engine.release.set()
        running.wait_idle()
        assert running.request("/health")[0] == 200


def test_health_has_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMSPEC_MAX_CONNECTIONS", "3")
    with served([held_model()[0]]) as running, ExitStack() as stack:
        for _ in range(3):
            idle = stack.enter_context(connect(running))
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(12) == b"HTTP/1.1 200"  # and is kept open
        for path, status in (("/health", 200), ("/metrics", 503), ("/health", 200)):
            assert running.request(path)[0] == status
        monkeypatch.setenv("MMSPEC_MAX_CONNECTIONS", "100")
        assert running.request("/metrics")[0] == 200


def test_a_second_signal_ends_at_once() -> None:
    ended: list[bool] = []
    with served([held_model()[0]]) as running:
        server = DrainingServer(running.application, lambda: ended.append(True))
        server.handle_exit(signal.SIGTERM, None)
        assert not ended and not server.force_exit
        server.handle_exit(signal.SIGTERM, None)
        assert ended and server.force_exit


HANGING = """
import threading, time
from served import new_models
from mmspec.serving.app import Application
from mmspec.serving.server import address_of, bind, serve
from mmspec.serving.settings import ServerSettings

model = new_models()[0]
model.engine._engine.engine.step = lambda: time.sleep(10_000)
listener = bind("127.0.0.1", 0)
print(address_of(listener), flush=True)
serve(Application([model], ServerSettings(drain_seconds={drain})), listener)
"""


@pytest.mark.slow
@pytest.mark.parametrize("drain", [0.1, 3600])
def test_a_process_that_hangs_ends(drain: float, root: Path) -> None:
    """At the end of the time to drain, or at the second signal."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, 'tests/helpers')\n{HANGING.format(drain=drain)}"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            running = Served(None, process.stdout.readline().strip())  # type: ignore[arg-type]
            with connect(running) as connection:
                body = json.dumps(IMAGE).encode()
                top = f"POST {IMAGES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                connection.sendall(f"{top}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                while b'running{model="shapes"} 1.0' not in running.request("/metrics")[2]:
                    pass
                process.send_signal(signal.SIGTERM)
                if drain > 1:
                    while running.json("/health")["status"] != "draining":
                        pass
                    process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 1
            assert "mmspec: stopped at once" in process.stderr.read()
        finally:
            process.kill()


def test_two_lengths_of_a_body_are_refused_with_what_follows() -> None:
    with served([held_model()[0]]) as running, connect(running) as connection:
        connection.sendall(
            f"POST {IMAGES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        found = received(connection)
    assert found.startswith(b"HTTP/1.1 400") and b"exclude each other" in found
    assert found.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("path", [IMAGES, "/no-such-page"])
@pytest.mark.parametrize("begin", ["", "2\r\n{}\r\n"], ids=["at once", "later"])
def test_a_body_that_is_no_http_ends_its_request(path: str, begin: str, caplog: pytest.LogCaptureFixture) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with served([held_model()[0]]) as running:
        for parts in ([head + begin + "-2\r\n{}\r\n"], [head + begin, "-2\r\n{}\r\n"]):
            with connect(running) as connection:
                for part in parts:
                    connection.sendall(part.encode())
                assert received(connection).startswith(b"HTTP/1.1 4")
        running.wait_idle()
    assert not any(record.exc_info for record in caplog.records)


def test_requests_have_ids(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    model, engine = held_model()

    def fail(*_: Any) -> Any:
        raise RuntimeError("a fault")

    monkeypatch.setattr(engine, "generate", fail)
    with served([model]) as running, caplog.at_level(logging.ERROR, "mmspec.serving"):
        for given, pattern in ((None, r"req_[0-9a-f]{32}"), ("my-id.7", r"my-id\.7"), ("no words", r"req_\w+")):
            headers = {} if given is None else {"X-Request-Id": given}
            _, found, _ = running.request("/health", headers=headers)
            assert re.fullmatch(pattern, found["x-request-id"])
        status, found, _ = running.request(IMAGES, IMAGE)
        assert status == 500
    assert f"request {found['x-request-id']} to shapes failed" in caplog.text

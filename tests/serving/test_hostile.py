"""Requests that mean harm, and clients that behave badly."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import soundfile
import torch
from served import HeldEngine, Served, held_model, new_models, served

from mmspec import limits
from mmspec.audio.adapter import PreparedText
from mmspec.errors import ArgumentError
from mmspec.serving.audio_encoder import AudioEncoder
from mmspec.serving.errors import from_validation
from mmspec.serving.generation import CallOutput, DecodingRequest
from mmspec.serving.settings import ServerSettings, read_api_keys

IMAGES, SPEECH = "/v1/images/generations", "/v1/audio/speech"
IMAGE = {"prompt": "a red circle", "seed": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(new_models()) as running:
        yield running


def connect(server: Served) -> socket.socket:
    """A connection whose reads end after 20 seconds."""
    parts = urlsplit(server.address)
    assert parts.hostname is not None and parts.port is not None
    found = socket.create_connection((parts.hostname, parts.port), 20)
    return found


def head(path: str, *lines: str) -> bytes:
    """The head of a POST request with JSON."""
    rows = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines]
    return ("\r\n".join(rows) + "\r\n\r\n").encode()


def answer(connection: socket.socket) -> tuple[int, Any]:
    """Status and JSON of the response on a connection; status 0 if it was closed without one."""
    data = b""
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            part = b""
        if not part:
            break
        data += part
        top, found, body = data.partition(b"\r\n\r\n")
        if found and b"content-length" in top.lower():
            length = int(top.lower().partition(b"content-length:")[2].split()[0])
            if len(body) >= length:
                return int(top.split()[1]), json.loads(body)
    return 0, None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the request is not valid JSON"),
        (b"{", "the request is not valid JSON"),
        (b'{"prompt": "\xff\xfe"}', "the request is not valid JSON"),
        (b"[]", "the request must be a JSON object, not list"),
        (b'"prompt"', "the request must be a JSON object, not str"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"prompt":' * 50_000, "nested deeper"),
        (b'{"seed": ' + b"9" * 100_000 + b"}", "Exceeds the limit"),
        (b'{"prompt": "\\ud800"}', "prompt"),
        (b'{"prompt": "a red circle", "temperature": NaN}', "temperature=nan is not allowed"),
        (b'{"prompt": "a red circle", "temperature": 1e999}', "temperature=inf is not allowed"),
        (b'{"prompt": "a red circle", "' + b"x" * 10_000 + b'": 1}', "is not a parameter"),
        (b'{"prompt": {"a": [1, 2]}}', "prompt is not allowed"),
        (b'{"prompt": "a red \\u0000 circle"}', "prompt"),
    ],
)
def test_broken_bodies_are_one_line(server: Served, body: bytes, message: str) -> None:
    status, _, content = server.request(IMAGES, body)
    error = json.loads(content)["error"]
    assert status == 400 and len(content) < 2000 and "\n" not in error["message"]
    assert message in error["message"] or error["param"] == message


def test_only_json_is_read(server: Served) -> None:
    assert server.request("/v1/images/edits", b"--x", {"Content-Type": "multipart/form-data; boundary=x"})[0] == 404
    assert server.request("/v1/models", b"--x", {"Content-Type": "multipart/form-data; boundary=x"})[0] == 405
    form = b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na red'
    for kind in ("multipart/form-data; boundary=x", "text/plain", "application/x-www-form-urlencoded", ""):
        status, _, content = server.request(IMAGES, form, {"Content-Type": kind})
        assert status == 415 and json.loads(content)["error"]["code"] == "unsupported_media_type"


def test_very_many_parameters_are_refused_at_the_first(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def counted(errors: Any, fields: Any) -> Any:
        counts.append(len(errors))
        return from_validation(errors, fields)

    monkeypatch.setattr("mmspec.serving.app.from_validation", counted)
    status, _, content = server.request(IMAGES, {"prompt": "a red circle"} | {f"x{i}": i for i in range(100_000)})
    error = json.loads(content)["error"]
    assert status == 400 and error["code"] == "unknown_parameter" and error["param"] == "x0"
    assert not counts


def test_unknown_paths_and_methods_have_the_same_shape(server: Served) -> None:
    for path, method, status in [("/v1/images/none", "GET", 404), ("/../etc/passwd", "GET", 404), (IMAGES, "GET", 405)]:
        found, _, content = server.request(path, method=method)
        assert found == status and set(json.loads(content)["error"]) == {"message", "type", "param", "code"}
    assert server.request("/v1/files/../../pyproject.toml")[0] == 404


def test_huge_bodies_are_refused_before_they_are_read(server: Served) -> None:
    with connect(server) as connection:
        connection.sendall(head(IMAGES, f"Content-Length: {10**12}"))
        status, body = answer(connection)
    assert status == 413 and "more than 4,194,304 bytes" in body["error"]["message"]


def test_endless_bodies_are_cut_off(server: Served) -> None:
    with connect(server) as connection:
        connection.sendall(head(IMAGES, "Transfer-Encoding: chunked"))
        sent, chunk = 0, b"10000\r\n" + b" " * 65536 + b"\r\n"
        try:
            while sent < 2**26:
                connection.sendall(chunk)
                sent += len(chunk)
        except OSError:  # the server has closed the connection
            pass
        assert sent < 2**25
    assert server.request("/health")[0] == 200


def test_slow_requests_are_cut_off(monkeypatch: pytest.MonkeyPatch, server: Served) -> None:
    monkeypatch.setenv("MMSPEC_MAX_RECEIVE_SECONDS", "1")
    with connect(server) as silent, connect(server) as slow_head, connect(server) as slow_body:
        slow_head.sendall(b"POST /v1/images/generations HTTP/1.1\r\nHost: localh")
        slow_body.sendall(head(IMAGES, "Content-Length: 100") + b'{"prompt"')
        assert answer(slow_body)[0] == 408
        assert answer(silent) == answer(slow_head) == (0, None)


def test_a_thousand_idle_connections_leave_room(monkeypatch: pytest.MonkeyPatch, server: Served) -> None:
    monkeypatch.setenv("MMSPEC_MAX_CONNECTIONS", "50")
    monkeypatch.setenv("MMSPEC_MAX_RECEIVE_SECONDS", "2")
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(1000)]
        refused = answer(idle[-1])
        assert refused[0] == 503 and refused[1]["error"]["code"] == "too_many_connections"
        deadline = time.monotonic() + 30
        while server.request("/health")[0] != 200:  # idle ones are closed in time
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert server.json(IMAGES, IMAGE)["usage"]["output_tokens"] == 256


@pytest.mark.parametrize("extra", [{"stream": True}, {}], ids=["stream", "whole"])
def test_a_client_that_leaves_ends_its_request(extra: dict[str, Any]) -> None:
    model, engine = held_model()
    with served([model]) as running:
        body = json.dumps(IMAGE | extra).encode()
        with connect(running) as connection:
            connection.sendall(head(IMAGES, f"Content-Length: {len(body)}") + body)
            wait(lambda: engine.held == 1)
            if extra:
                assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        running.wait_idle()
        assert engine.held == 0
        assert running.metric("mmspec_requests_finished_total", model="shapes", outcome="cancelled") == 1
        assert running.metric("mmspec_requests_running", model="shapes") == 0


def wait(reached: Callable[[], bool]) -> None:
    """Waits for a state, at most 20 seconds."""
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_client_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch, server: Served) -> None:
    monkeypatch.setenv("MMSPEC_MAX_STALL_SECONDS", "1")
    body = json.dumps(IMAGE | {"n": 10, "output_format": "png", "size": "64x64"}).encode()
    with connect(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for _ in range(60):  # pipelined, until the kernel's buffers are full
            connection.sendall(head("/v1/none", f"Content-Length: {len(body)}") + body)
        time.sleep(0.1)
    server.wait_idle()
    assert server.request("/health")[0] == 200


def test_requests_beyond_the_queue_get_429() -> None:
    model, engine = held_model(max_waiting=1)
    with served([model]) as running, connect(running) as first:
        body = json.dumps(IMAGE).encode()
        first.sendall(head(IMAGES, f"Content-Length: {len(body)}") + body)
        wait(lambda: engine.held == 1)
        for extra in ({}, {"stream": True}):
            status, headers, content = running.request(IMAGES, IMAGE | extra)
            assert status == 429 and json.loads(content)["error"]["code"] == "queue_full"
            assert headers["retry-after"] == "1"
        engine.release.set()
        assert answer(first)[0] == 200


def test_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-key-123\n\nsecond-key-456\n")
    monkeypatch.setenv("MMSPEC_API_KEYS", "third-key-789,")
    settings = ServerSettings(api_keys=read_api_keys(keys))
    with served(new_models()[:1], settings) as running:
        for path in ("/v1/models", "/metrics"):
            for key in ("first-key-123", "second-key-456", "third-key-789"):
                assert running.request(path, headers={"Authorization": f"Bearer {key}"})[0] == 200
            for wrong in ("Bearer first-key-12", "Bearer ", "first-key-123", "Basic first-key-123", "Bearer \xff"):
                status, headers, content = running.request(path, headers={"Authorization": wrong})
                assert status == 401 and headers["www-authenticate"] == "Bearer"
                assert b"key-1" not in content and json.loads(content)["error"]["code"].endswith("api_key")
        assert running.request("/health")[0] == running.request("/")[0] == 200
        assert running.request(IMAGES, IMAGE)[0] == 401


@pytest.mark.parametrize("content", ["", "short", "with space in it", "not\x07printable"])
def test_unusable_keys_are_refused_without_being_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ArgumentError, match="key") as found:
        read_api_keys(path)
    assert not content or content not in str(found.value)
    with pytest.raises(ArgumentError, match="cannot read"):
        read_api_keys(tmp_path / "none")


def test_other_hosts_and_origins_are_refused(server: Served) -> None:
    # A name that resolves to this machine: the page of another site could reach the server through it.
    status, headers, content = server.request("/v1/models", headers={"Host": "evil.example"})
    assert status == 421 and json.loads(content)["error"]["code"] == "wrong_host"
    _, headers, _ = server.request("/v1/models", headers={"Origin": "https://evil.example"})
    assert not [name for name in headers if name.lower().startswith("access-control")]
    settings = ServerSettings(cors_origins=("https://app.example",))
    with served(new_models()[:1], settings) as running:
        for origin, allowed in (("https://app.example", True), ("https://evil.example", False)):
            _, headers, _ = running.request("/v1/models", headers={"Origin": origin})
            assert (headers.get("access-control-allow-origin") == origin) == allowed
        ask = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        assert running.request(IMAGES, headers=ask, method="OPTIONS")[0] == 200


def test_metrics(server: Served) -> None:
    server.json(IMAGES, IMAGE)
    server.json("/v1/images/generations", {"prompt": "a blue whale"})
    server.request(SPEECH, {"input": "hello", "seed": 1})
    text = server.request("/metrics")[2].decode()
    for name in (
        "mmspec_requests_running", "mmspec_tokens_total", "mmspec_row_calls_total", "mmspec_tokens_per_call_bucket",
        "mmspec_time_to_first_audio_seconds_bucket", "mmspec_real_time_factor_bucket", "mmspec_engine_waiting",
        "mmspec_engine_running", 'mmspec_http_responses_total{path="/v1/images/generations",status="400"}',
        'mmspec_requests_finished_total{model="shapes",outcome="refused"}',
    ):  # fmt: skip
        assert name in text, name
    assert server.metric("mmspec_decoding_errors_total", model="shapes") == 0


def test_errors_while_decoding_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    models = new_models()

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the device is lost")

    models[0].raster  # noqa: B018  # before decoding fails
    monkeypatch.setattr(models[0].pipe, "decode", fail)
    with served(models) as running:
        status, _, content = running.request(IMAGES, IMAGE)
        assert status == 500 and json.loads(content)["error"]["type"] == "server_error"
        assert b"device" not in content
        _, _, events = running.request(IMAGES, IMAGE | {"stream": True})
        assert b"event: error" in events and b"image_generation.completed" not in events
        running.wait_idle()
        assert running.metric("mmspec_decoding_errors_total", model="shapes") == 2


def test_a_signal_drains_the_server() -> None:
    model, engine = held_model()
    with served([model], ServerSettings(drain_seconds=60)) as running, connect(running) as connection:
        body = json.dumps(IMAGE | {"stream": True}).encode()
        connection.sendall(head(IMAGES, f"Content-Length: {len(body)}", "Connection: close") + body)
        wait(lambda: engine.held == 1)
        assert running.server is not None
        running.server.handle_exit(signal.SIGTERM, None)
        for path, content in (("/health", None), (IMAGES, IMAGE), (SPEECH, {"input": "hello"})):
            status, headers, found = running.request(path, content)
            assert status == 503
            if content:
                assert json.loads(found)["error"]["code"] == "draining" and headers["retry-after"] == "1"
        engine.release.set()
        received = b""
        while part := connection.recv(65536):
            received += part
        assert b"image_generation.completed" in received
        wait(lambda: refused(running))


def refused(server: Served) -> bool:
    """Whether the server takes no connections any more."""
    try:
        connect(server).close()
    except OSError:
        return True
    return False


def test_draining_takes_bounded_time() -> None:
    model, engine = held_model()
    with served([model], ServerSettings(drain_seconds=0.2)) as running, connect(running) as connection:
        body = json.dumps(IMAGE | {"stream": True}).encode()
        connection.sendall(head(IMAGES, f"Content-Length: {len(body)}") + body)
        wait(lambda: engine.held == 1)
        assert running.server is not None
        running.server.handle_exit(signal.SIGTERM, None)
        wait(lambda: refused(running))
        wait(lambda: engine.held == 0)


@pytest.mark.parametrize(
    ("path", "extra", "silent", "begun"),
    [
        pytest.param(IMAGES, {"n": 2}, True, False, id="images-waiting"),
        pytest.param(IMAGES, {}, False, False, id="image-decoding"),
        pytest.param(IMAGES, {"stream": True}, True, False, id="events-waiting"),
        pytest.param(IMAGES, {"stream": True}, False, True, id="events-decoding"),
        pytest.param(SPEECH, {}, False, False, id="speech-decoding"),
    ],
)
def test_requests_that_the_end_of_draining_cuts_off_are_told(
    path: str, extra: dict[str, Any], silent: bool, begun: bool
) -> None:
    models, engine = new_models(), SilentEngine() if silent else HeldEngine()
    for model in models:
        model.engine = engine
    wanted = {"input": "hello"} if path == SPEECH else IMAGE | extra
    with served(models, ServerSettings(drain_seconds=0)) as running, connect(running) as connection:
        body = json.dumps(wanted).encode()
        connection.sendall(head(path, f"Content-Length: {len(body)}", "Connection: close") + body)
        wait(lambda: engine.held == extra.get("n", 1))
        if begun:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        assert running.server is not None
        running.server.handle_exit(signal.SIGTERM, None)
        received = b""
        while part := connection.recv(65536):
            received += part
        wait(lambda: engine.held == 0)
        name = "spoken" if path == SPEECH else "shapes"
        wait(lambda: running.metric("mmspec_requests_finished_total", model=name, outcome="cancelled") == 1)
    assert b"the server stops and has cut off this request; send it again" in received and b'"draining"' in received
    if begun:
        assert b"event: error" in received
    else:
        assert received.startswith(b"HTTP/1.1 503") and b"retry-after: 1" in received.lower()


def test_draining_cuts_off_what_is_not_decoded_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, release = threading.Event(), threading.Event()

    def read(*_: Any) -> None:
        inside.set()
        release.wait(20)

    monkeypatch.setattr("mmspec.serving.speech.read_reference", read)
    settings = ServerSettings(allow_reference_audio=True, drain_seconds=0)
    with served(new_models()[1:], settings) as running, connect(running) as connection:
        body = json.dumps({"input": "hello", "ref_audio": "AAAA"}).encode()
        connection.sendall(head(SPEECH, f"Content-Length: {len(body)}") + body)
        assert inside.wait(20)
        assert running.server is not None
        running.server.handle_exit(signal.SIGTERM, None)
        status, content = answer(connection)
        release.set()
    assert status == 503 and "has cut off this request" in content["error"]["message"]


def test_a_file_that_is_cut_off_ends_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    spoken = new_models()[1]
    own = spoken.engine.generate

    async def first_only(prompt: Any, request: DecodingRequest) -> AsyncGenerator[CallOutput, None]:
        async for output in own(prompt, request):
            yield output
            await asyncio.sleep(60)

    spoken.engine.generate = first_only  # type: ignore[method-assign]
    with served([spoken], ServerSettings(drain_seconds=0)) as running, connect(running) as connection:
        body = json.dumps({"input": "hello", "stream": True, "response_format": "wav"}).encode()
        connection.sendall(head(SPEECH, f"Content-Length: {len(body)}") + body)
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert running.server is not None
        running.server.handle_exit(signal.SIGTERM, None)
        received = b""
        while part := connection.recv(65536):
            received += part
        running.wait_idle()
    assert not received.endswith(b"0\r\n\r\n")
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_ends_at_a_signal(root: Path) -> None:
    command = [sys.executable, "-m", "mmspec", "serve", "shapes", "--port", "0"]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while "listening on" not in process.stderr.readline():
                assert process.poll() is None
            process.terminate()
            assert process.wait(60) in (0, -signal.SIGTERM)
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_limits_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch, server: Served) -> None:
    monkeypatch.setenv(limits.BODY_BYTES.variable, "20")
    status, _, content = server.request(IMAGES, IMAGE)
    assert status == 413 and b"more than 20 bytes" in content


def test_a_client_that_leaves_while_audio_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """libsndfile must not close a file in one thread while another thread writes to it."""
    inside, closed_inside, closed = threading.Event(), list[bool](), threading.Event()
    push, close = AudioEncoder.push, soundfile.SoundFile.close

    def slow_push(encoder: AudioEncoder, audio: Any) -> bytes:
        inside.set()
        time.sleep(0.3)
        try:
            return push(encoder, audio)
        finally:
            inside.clear()

    def watched_close(file: Any) -> None:
        closed_inside.append(inside.is_set())
        close(file)
        closed.set()

    monkeypatch.setattr(AudioEncoder, "push", slow_push)
    monkeypatch.setattr(soundfile.SoundFile, "close", watched_close)
    with served(new_models()) as running:
        body = json.dumps({"input": "please turn on the red light"}).encode()
        with connect(running) as connection:
            connection.sendall(head(SPEECH, f"Content-Length: {len(body)}") + body)
            assert inside.wait(30)
        running.wait_idle()
        assert closed.wait(10) and not any(closed_inside)


class SilentEngine(HeldEngine):
    """Gives nothing before the test lets it."""

    async def generate(self, prompt: str | PreparedText, request: DecodingRequest) -> AsyncGenerator[CallOutput, None]:
        self.held += 1
        try:
            while not self.release.is_set():
                await asyncio.sleep(0.005)
            yield CallOutput(torch.zeros(256, dtype=torch.int64), 1)
        finally:
            self.held -= 1


def test_a_client_that_leaves_before_its_stream_begins_leaves_the_queue() -> None:
    shapes, engine = new_models()[0], SilentEngine()
    shapes.engine = engine
    with served([shapes]) as running:
        body = json.dumps(IMAGE | {"stream": True}).encode()
        with connect(running) as connection:
            connection.sendall(head(IMAGES, f"Content-Length: {len(body)}") + body)
            wait(lambda: engine.held == 1)
        wait(lambda: engine.held == 0)
        running.wait_idle()
        assert running.metric("mmspec_requests_finished_total", model="shapes", outcome="cancelled") == 1


def test_each_metric_is_described_once(server: Served) -> None:
    lines = server.request("/metrics")[2].decode().splitlines()
    described = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(described) == len(set(described))
    assert sum(line.startswith("mmspec_engine_running{") for line in lines) == 2


def test_an_engine_that_has_ended_is_no_error_of_the_client() -> None:
    models = new_models()

    def fail() -> Any:
        raise RuntimeError("the step failed")

    with served(models) as running:
        assert running.request("/health")[0] == 200
        models[0].engine._engine.engine.step = fail  # type: ignore[attr-defined]
        assert running.request(IMAGES, IMAGE)[0] == 500
        status, _, content = running.request(IMAGES, IMAGE)
        assert status == 503 and json.loads(content)["error"]["code"] == "engine_failed"
        assert running.request("/health")[0] == 503


def test_remarks_with_control_characters_fit_in_a_header(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = server.application.models.all["spoken"].pipe
    read = pipe.read

    def noted(*args: Any) -> Any:
        return replace(read(*args), notes=["a\r\nSet-Cookie: b\x07\u00e9"])

    monkeypatch.setattr(pipe, "read", noted)
    status, headers, _ = server.request(SPEECH, {"input": "hello", "seed": 1})
    assert status == 200 and headers["x-notes"] == "a%0D%0ASet-Cookie: b%07%C3%A9" and "Set-Cookie" not in headers


def test_recordings_are_not_read_in_the_thread_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def read(*_: Any) -> None:
        names.append(threading.current_thread().name)

    monkeypatch.setattr("mmspec.serving.speech.read_reference", read)
    with served(new_models()[1:], ServerSettings(allow_reference_audio=True)) as running:
        assert running.request(SPEECH, {"input": "hello", "ref_audio": "AAAA"})[0] == 200
    assert names and all(name.startswith("mmspec-decode") for name in names)


def test_draining_waits_for_what_a_slow_client_has_not_read_yet() -> None:
    model, engine = held_model()
    engine.release.set()
    with served([model], ServerSettings(drain_seconds=60)) as running, ExitStack() as stack:
        assert running.server is not None
        connection = socket.socket()
        connection.settimeout(20)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stack.enter_context(connection)
        parts = urlsplit(running.address)
        connection.connect((parts.hostname, parts.port))
        running.application._stored._files["big.png"] = bytes(2**24)
        connection.sendall(b"GET /v1/files/big.png HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        running.server.handle_exit(signal.SIGTERM, None)
        time.sleep(4)  # more than uvicorn waits for connections
        size = 0
        while part := connection.recv(2**20):
            size += len(part)
        assert size > 2**24 - 1000

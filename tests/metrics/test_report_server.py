"""`mmspec report --serve`: follows a running evaluation, on this machine only, and writes nothing."""

from __future__ import annotations

import http.client
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fake_pipe import Pipe, classifier, open_gate

import mmspec
from mmspec.cli.app import main
from mmspec.errors import ArgumentError
from mmspec.metrics.extractors import shapes
from mmspec.metrics.report.live import progress
from mmspec.metrics.report.server import ReportServer


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eval") / "results"
    pipe = Pipe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mmspec, "load", lambda model, device, dtype=None: pipe, raising=False)
        open_gate(patch)
        patch.setattr(shapes, "embedded_classifier", classifier)
        patch.setattr(time, "perf_counter", lambda: pipe.now)
        words = ["--recipes", "scd,lantern:delta=0.9", "--limit", "3", "--metrics", "attributes,nll", "--batch", "3"]
        assert main(["eval", "-o", str(folder), *words]) == 0
    return folder


@pytest.fixture
def running(finished: Path, tmp_path: Path) -> Path:
    """The same evaluation when it had not ended: the last recipe has 2 samples, and there are no results."""
    folder = tmp_path / "running"
    shutil.copytree(finished, folder)
    (folder / "results.json").unlink()
    lines = (folder / "samples-0.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "samples-0.jsonl").write_bytes(b"".join(lines[:-1]))
    return folder


@contextmanager
def served(folder: Path) -> Iterator[ReportServer]:
    server = ReportServer(folder, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def get(server: ReportServer, path: str, host: str | None = None) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_a_running_evaluation_is_followed(running: Path, finished: Path) -> None:
    before = sorted(path.name for path in running.iterdir())
    with served(running) as server:
        status, headers, text = get(server, "/")
        assert status == 200 and headers["Refresh"] == "10"
        tree = ElementTree.fromstring(text.partition("\n")[2])
        shown = "".join(tree.itertext())
        assert "Running: 8 of 9 samples, 89 % (plain 3, scd 3, lantern:delta=0.9 2 of 3 each)" in shown
        assert "not checked yet" in shown and "lantern:delta=0.9" in shown
        assert "Refresh" not in get(server, "/?refresh=off")[1]
        shutil.copytree(finished, running, dirs_exist_ok=True)
        _, headers, text = get(server, "/")
        assert "Running" not in text and "Refresh" not in headers and "attributes" in text
    assert before == sorted({path.name for path in running.iterdir()} - {"results.json"})


def test_only_this_machine_s_own_page_reads_it(running: Path) -> None:
    with served(running) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert get(server, "/", "evil.example")[0] == 403  # a name elsewhere that points here
        assert get(server, "/", f"localhost:{server.server_port}")[0] == 200
        for path in ("/config.yaml", "/../config.yaml", "/samples"):
            assert get(server, path)[0] == 404
        with pytest.raises(ArgumentError, match="cannot be used"):
            ReportServer(running, server.server_port)


def test_before_the_first_samples(running: Path) -> None:
    (running / "samples-0.jsonl").unlink()
    with served(running) as server:
        assert "An evaluation that has just begun" in get(server, "/")[2]


def test_speed_and_likelihood_are_those_of_the_results(finished: Path, running: Path) -> None:
    whole, part = progress(finished), progress(running)
    assert whole.finished and not part.finished and whole.record is not None and part.record is not None
    for row, other in zip(part.record["rows"][:2], whole.record["rows"][:2], strict=True):
        assert row["speed"] == other["speed"]
        assert row["quality"]["nll"] == other["quality"]["nll"]


def test_requests_are_logged_and_have_a_head(finished: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mmspec")
    with served(finished) as server:
        whole = get(server, "/")[2]
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
        connection.request("HEAD", "/")
        response = connection.getresponse()
        assert response.status == 200 and response.read() == b""
        assert response.headers["Content-Length"] == str(len(whole.encode()))
        connection.close()
    lines = [record.getMessage() for record in caplog.records]
    assert lines[-2:] == [f'127.0.0.1 "{method} / HTTP/1.1" 200 -' for method in ("GET", "HEAD")]


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str], finished: Path) -> None:
    assert main(["report", str(tmp_path), "--serve"]) == 2
    assert "holds no results" in capsys.readouterr().err
    assert main(["report", str(finished), "--serve", "--format", "md"]) == 2
    assert "--serve takes no" in capsys.readouterr().err

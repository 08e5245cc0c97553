"""`mmspec generate --status`: what it tells of runs that finish, stop, run and have not started."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from bulk_pipe import BulkPipe, run, some_requests

from mmspec.bulk.folder import RunIdentity, open_shard
from mmspec.bulk.requests import SampleRequest, SampleSettings
from mmspec.bulk.status import FINISHED, MISSING, RUNNING, STOPPED, read_status, table
from mmspec.cli.app import main
from mmspec.environment.distributed import Shard


class Stopped(Exception):
    pass


def stopping_after(calls: int) -> BulkPipe:
    class Stopping(BulkPipe):
        def __call__(self, *args: Any, **settings: Any) -> Any:
            if len(self.settings) == calls:
                raise Stopped
            return super().__call__(*args, **settings)

    return Stopping()


def test_every_state(tmp_path: Path) -> None:
    requests = [*some_requests(11), SampleRequest("refused", 1, SampleSettings())]
    run(BulkPipe(), tmp_path, requests, shard=Shard(0, 4))
    with pytest.raises(Stopped):
        run(stopping_after(1), tmp_path, requests, shard=Shard(1, 4))
    run(BulkPipe(), tmp_path, requests, shard=Shard(3, 4))
    found = read_status(tmp_path)
    assert [(one.state, one.finished, one.failed, one.left, one.samples) for one in found] == [
        (FINISHED, 3, 0, 0, 3), (STOPPED, 1, 0, 2, 3), (MISSING, 0, 0, None, None), (FINISHED, 2, 1, 0, 3),
    ]  # fmt: skip
    with open_shard(tmp_path, Shard(1, 4), RunIdentity("fake", "0123", "files")):
        assert [one.state for one in read_status(tmp_path)] == [FINISHED, RUNNING, MISSING, FINISHED]


def test_rate_and_time_left(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(stopping_after(2), tmp_path, some_requests(10))
    folder = tmp_path / "shards/00000-of-00001"
    os.utime(folder / "start.json", (1000, 1000))
    os.utime(folder / "samples.jsonl", (1008, 1008))
    with open_shard(tmp_path, Shard(), RunIdentity("fake", "0123", "files")):
        (one,) = read_status(tmp_path)
    assert (one.rate, one.left, one.seconds_left) == (0.5, 6, 12.0)
    head, line = table([one]).splitlines()
    assert head.split()[:4] == ["shard", "state", "finished", "left"]
    assert line.split()[:7] == ["0/1", "running", "4", "6", "0", "0.5", "00:12"]


def test_a_run_that_continues_counts_its_own_samples(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(stopping_after(2), tmp_path, some_requests(10), shard=Shard(0, 1))
    run(BulkPipe(), tmp_path, some_requests(10), shard=Shard(1, 2))
    last = {one.shard: one for one in read_status(tmp_path)}
    assert (last[Shard(1, 2)].state, last[Shard(1, 2)].samples, last[Shard(1, 2)].finished) == (FINISHED, 5, 3)
    assert last[Shard(0, 2)].state == MISSING


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(BulkPipe(), tmp_path / "out", some_requests(3), shard=Shard(0, 2))
    before = sorted(tmp_path.rglob("*"))
    assert main(["generate", "--status", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["shard", "0/2", "1/2", "all"]
    assert lines[-1].split()[:5] == ["all", "0", "running", "2", "-"]  # what 1/2 has to do is unknown
    assert main(["generate", "--status", str(tmp_path / "out"), "--json"]) == 0
    shards = json.loads(capsys.readouterr().out)["shards"]
    assert [(one["shard"], one["state"]) for one in shards] == [([0, 2], FINISHED), ([1, 2], MISSING)]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["²-of-00002", "00000-of-9999999999", "00003-of-00002", "00000-of-00000"])
def test_folders_of_other_names_are_no_shards(name: str, tmp_path: Path) -> None:
    run(BulkPipe(), tmp_path, some_requests(3))
    shutil.copytree(tmp_path / "shards/00000-of-00001", tmp_path / "shards" / name)
    assert [one.shard for one in read_status(tmp_path)] == [Shard()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--status", "none"], "--status: 'none' is not the folder of a run of `mmspec generate`"),
        (["--status", "."], "--status: '.' is not the folder of a run of `mmspec generate`"),
        (["--status", ".", "-o", "out"], "--status takes no --output; leave one of them out"),
        (["-o", "out"], "--prompts is missing; see `mmspec generate -h`"),
        (["--prompts", "p"], "-o/--output is missing; see `mmspec generate -h`"),
    ],
)
def test_refusals(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["generate", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_damaged_start_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(BulkPipe(), tmp_path, some_requests(1))
    (tmp_path / "shards/00000-of-00001/start.json").write_text('{"samples": "x"}\n')
    assert main(["generate", "--status", str(tmp_path)]) == 2
    assert "start.json' line 1 is not a sample record" in capsys.readouterr().err

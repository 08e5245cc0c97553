"""Bulk generation: what is generated, under which names, and what is left when a process is killed."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from bulk_pipe import BulkPipe, contents, run, some_requests
from PIL import Image

import mmspec.cli.pipelines
from mmspec.bulk.folder import RunIdentity, ShardFolder, open_shard
from mmspec.bulk.requests import SampleRequest, SampleSettings, read_requests
from mmspec.cli.app import main
from mmspec.environment.distributed import Shard, launched_shard, local_device, read_shard
from mmspec.errors import ArgumentError, UnknownNameError
from mmspec.sampling.seeds import pipeline_seed

OTHERS: dict[str, Any] = {
    "recipe": "scd", "temperature": 1.0, "top_k": 1, "top_p": 0.5, "guidance_scale": 2.0, "negative_prompt": "a",
    "height": 8, "width": 8, "voice": "a", "min_p": 0.1, "typical_p": 0.9,
    "condition_on_previous_chunks": True,
}  # fmt: skip
FORMATS = ("files", "webdataset", "parquet")
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> BulkPipe:
    pipe = BulkPipe()
    monkeypatch.setattr(mmspec.cli.pipelines, "load_generator", lambda *args: pipe)
    return pipe


def prompts_file(folder: Path, *lines: str) -> Path:
    path = folder / "prompts.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


# --- The files of prompts --------------------------------------------------------------------------------------------


def test_lines_are_prompts_or_json(tmp_path: Path) -> None:
    path = prompts_file(
        tmp_path, "a cat", "", "# no prompt", '{"prompt": "a dog", "seed": 5, "top_k": 3, "id": "x"}', " a cat "
    )
    cat, dog = read_requests(path, SampleSettings(temperature=0.5), seed=3)
    assert cat == SampleRequest("a cat", pipeline_seed("a cat", 3), SampleSettings(temperature=0.5))
    assert dog == SampleRequest("a dog", 5, SampleSettings(temperature=0.5, top_k=3), "x")


def test_samples_of_a_prompt_have_their_own_seeds(tmp_path: Path) -> None:
    path = prompts_file(tmp_path, "a cat", '{"prompt": "a dog", "seed": 5}')
    seeds = [request.seed for request in read_requests(path, SampleSettings(), number=2)]
    assert seeds == [pipeline_seed("a cat", 0), pipeline_seed("a cat", 1), 5, 6]


def test_a_name_depends_on_the_content_only(tmp_path: Path) -> None:
    one = read_requests(prompts_file(tmp_path, "a", "b", "c"), SampleSettings())
    other = read_requests(prompts_file(tmp_path, "c", "x", "a", "b"), SampleSettings())
    assert {request.name for request in one} < {request.name for request in other}
    different = [
        SampleRequest("a", 0), SampleRequest("a", 1), SampleRequest("b", 0), SampleRequest("a", 0, id="i"),
        *(SampleRequest("a", 0, replace(SampleSettings(), **{key: value})) for key, value in OTHERS.items()),
    ]  # fmt: skip
    assert len({request.name for request in different}) == len(different)
    assert SampleRequest("a", 0).name == "9ecb285bc54777a94dd4"  # names of existing outputs must not change


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "sed": 1}', r"line 1: unknown key 'sed' \(did you mean 'seed'\?\); known: prompt, seed"),
        ('{"prompt": 7}', "line 1: prompt: Input should be a valid string"),
        ('{"prompt": "a", "seed": -1}', "line 1: seed: Input should be greater than or equal to 0"),
        ('{"prompt": "a", "seed": "1"}', "line 1: seed: Input should be a valid integer"),
        ('{"prompt": "a", "height": 0}', "line 1: height: Input should be greater"),
        ('{"prompt": "a", "temperature": NaN}', "line 1: temperature: Input should be a finite number"),
        ('{"seed": 1}', "line 1: prompt: Field required"),
        ('{"prompt": " "}', "line 1: prompt ' ' is empty, or is not valid Unicode"),
        ('{"prompt": "a"', "line 1 is not valid JSON"),
        ("# nothing", "holds no prompt"),
    ],
)
def test_a_line_that_is_not_allowed_is_named(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        read_requests(prompts_file(tmp_path, line), SampleSettings())


def test_an_unknown_recipe_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'scd'"):
        read_requests(prompts_file(tmp_path, '{"prompt": "a", "recipe": "scdd"}'), SampleSettings())


# --- The processes that share a run -----------------------------------------------------------------------------------


def test_shards_divide_a_list() -> None:
    items = list(range(23))
    for shards in ([Shard(i, 4) for i in range(4)], [Shard(i, 3).split(Shard(k, 2)) for i in range(3) for k in (0, 1)]):
        parts = [shard.of(items) for shard in shards]
        assert sorted(item for part in parts for item in part) == items
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Shard()),
        ({"RANK": "2", "WORLD_SIZE": "4"}, Shard(2, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "3"}, Shard(1, 3)),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "3"}, Shard(0, 2)),
        ({"SLURM_PROCID": "1"}, Shard()),
    ],
)
def test_launchers_name_the_shard(variables: dict[str, str], expected: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched_shard() == expected


@pytest.mark.parametrize("text", ["4/4", "1", "a/b", "-1/2", "1/0", "", "1/2/3"])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="must be i/n with i from 0 to n - 1"):
        read_shard(text)


def test_a_launcher_that_contradicts_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "4")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ArgumentError, match="RANK='4' and WORLD_SIZE='4' name no process"):
        launched_shard()


def test_each_process_has_a_device_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert local_device("cuda") == "cuda"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("SLURM_LOCALID", "1")
    assert local_device("cuda") == "cuda:1" and local_device("cpu") == "cpu" and local_device("cuda:0") == "cuda:0"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # Slurm shows every process its own device only
    assert local_device("cuda") == "cuda:0"


@pytest.mark.parametrize("format", FORMATS)
def test_shards_generate_every_sample_once(format: str, tmp_path: Path) -> None:
    requests, pipe = some_requests(7), BulkPipe()
    for i in (1, 0, 2):
        run(pipe, tmp_path, requests, format, Shard(i, 3))
    assert sorted(pipe.calls) == sorted((request.prompt, request.seed) for request in requests)
    assert sorted(name for name, _ in contents(tmp_path, format)) == sorted(request.name for request in requests)
    result = run(pipe, tmp_path, some_requests(9), format, Shard(0, 2))  # two more, and another number of processes
    assert (result.finished, result.generated) == (4, 1) and len(pipe.calls) == 8


def test_a_run_of_another_number_of_processes_waits(tmp_path: Path) -> None:
    identity = RunIdentity("fake", "0123", "files")
    with open_shard(tmp_path, Shard(0, 2), identity), open_shard(tmp_path, Shard(1, 2), identity):
        with pytest.raises(ArgumentError, match="in use by a run of 2 shards, this is one of 3"):
            run(BulkPipe(), tmp_path, some_requests(1), "files", Shard(0, 3))
        with pytest.raises(ArgumentError, match="in use by another mmspec process"):
            run(BulkPipe(), tmp_path, some_requests(1), "files", Shard(0, 2))


def test_samples_that_a_killed_process_staged_are_generated_by_another_number_of_processes(tmp_path: Path) -> None:
    requests, identity = some_requests(4), RunIdentity("fake", "0123", "webdataset")
    run(BulkPipe(), tmp_path, requests[:3], "webdataset", Shard(0, 2))  # 0 and 2 of these; the rest is someone else's
    with open_shard(tmp_path, Shard(1, 2), identity) as folder:
        from mmspec.bulk.run import generate_missing
        from mmspec.bulk.stores import open_store

        class Killed(Exception):
            pass

        store = open_store("webdataset", folder, "0123", 3)
        store.settle = lambda entries, last: (_ for _ in ()).throw(Killed())  # type: ignore[method-assign]
        with pytest.raises(Killed):
            generate_missing(BulkPipe(), requests[1:2], folder, store, batch_size=1, fingerprint="0123")
        assert len(list(folder.staged.iterdir())) == 1
    pipe = BulkPipe()
    run(pipe, tmp_path, requests, "webdataset")
    names = [name for name, _ in contents(tmp_path, "webdataset")]
    assert sorted(names) == sorted(request.name for request in requests) and len(pipe.calls) == 2
    assert not ShardFolder(tmp_path, Shard(1, 2)).staged.exists()


# --- Killed at any time -----------------------------------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of files that are waited for take a minute on a busy disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


@pytest.mark.parametrize("format", FORMATS)
def test_a_process_killed_at_any_step_loses_and_doubles_nothing(format: str, scratch: Path, root: Path) -> None:
    script = root / "tests" / "helpers" / "bulk_pipe.py"
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, format, scratch], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    table: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(table) > (20 if format == "files" else 40)
    assert {row["operation"] for row in table} >= {"fsync", "replace", None}
    for row in table:
        assert (row["lost"], row["doubled"], row["lines"], row["leftovers"]) == (0, 0, 7, []), row
        assert row["equal"], row  # the same bytes in the same archives as without a kill
        # What the journal has is not generated again; at most the call that was running is.
        assert row["finished"] + row["generated"] == 7, row
    finished = [row["finished"] for row in table]
    assert finished == sorted(finished) and finished[0] == 0 and finished[-1] == 7
    assert set(finished) >= {2, 4, 6}  # two samples per call


# --- The output -------------------------------------------------------------------------------------------------------


def test_files_say_how_they_were_generated(pipe: BulkPipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = prompts_file(tmp_path, '{"prompt": "a cat", "seed": 7, "temperature": 0.5}', "a dog", "a dog")
    out = tmp_path / "out"
    words = ["generate", "--prompts", str(path), "-o", str(out), "--recipe", "scd:window=8"]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{out}: 2 samples: 2 generated, 0 before\n"
    assert main([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["samples"], record["generated"], record["finished_before"]) == (2, 0, 2)
    assert len(pipe.calls) == 2 and pipe.settings[0] == {"recipe": "scd:window=8", "temperature": 0.5}
    entries = [entry for entry, _ in ShardFolder(out, Shard()).journal.read()]
    cat = next(entry for entry in entries if entry.prompt == "a cat")
    with Image.open(out / cat.file) as image:
        assert image.info["prompt"] == "a cat" and image.info["seed"] == "7" and image.info["temperature"] == "0.5"
        assert image.info["recipe"] == "scd:window=8" and image.info["weights"] == record["fingerprint"]
    assert (cat.tokens, cat.calls, cat.settings) == (4, 2, {"temperature": 0.5})


def test_samples_of_windows_of_another_width_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(BulkPipe(window=16), tmp_path, some_requests(3))
    run(BulkPipe(window=16), tmp_path, some_requests(5))
    assert not caplog.messages
    run(BulkPipe(window=32), tmp_path, some_requests(9))
    assert caplog.messages == [
        "earlier samples of 'plain' had windows of 16 tokens, those from now on have 32: seeds differ by that"
    ]
    assert [entry.window for entry, _ in ShardFolder(tmp_path, Shard()).journal.read()] == [16] * 5 + [32] * 4


def test_archives_are_what_their_readers_expect(tmp_path: Path) -> None:
    requests = some_requests(4)
    for format in ("webdataset", "parquet"):
        run(BulkPipe(), tmp_path / format, requests, format)
    with tarfile.open(tmp_path / "webdataset" / "00000-of-00001-000000.tar") as archive:
        names = [member.name for member in archive]
        assert names[:3] == [f"{requests[0].name}.{suffix}" for suffix in ("png", "json", "txt")] and len(names) == 9
        found = archive.extractfile(names[1])
        assert found is not None and json.loads(found.read())["prompt"] == "prompt 0"
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "parquet" / "00000-of-00001-000000.parquet")
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"} and list(features) == table.column_names
    row = table.to_pylist()[0]
    assert row["prompt"] == "prompt 0" and Image.open(io.BytesIO(row["image"]["bytes"])).size == (8, 8)
    assert contents(tmp_path / "webdataset", "webdataset") == contents(tmp_path / "parquet", "parquet")


def test_refused_prompts_do_not_stop_the_others(
    pipe: BulkPipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = prompts_file(tmp_path, "a", "refused b", "c")
    out = tmp_path / "out"
    assert main(["generate", "--prompts", str(path), "-o", str(out)]) == 1
    printed = capsys.readouterr()
    assert "2 generated" in printed.out and "the model refused 1 prompts" in printed.err
    folder = ShardFolder(out, Shard())
    (failed,) = folder.failures.read()
    assert failed[0].prompt == "refused b" and "is not allowed" in failed[0].error
    assert main(["generate", "--prompts", str(path), "-o", str(out), "--limit", "1"]) == 0
    assert not folder.failures.path.exists()


def test_a_setting_that_the_model_refuses_stops_the_run(pipe: BulkPipe, tmp_path: Path) -> None:
    assert (
        main(["generate", "--prompts", str(prompts_file(tmp_path, "a")), "-o", str(tmp_path / "x"), "--top-k", "99"])
        == 2
    )


def test_other_weights_are_refused(pipe: BulkPipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--prompts", str(prompts_file(tmp_path, "a", "b")), "-o", str(tmp_path / "out")]
    assert main([*words, "--shard", "0/2"]) == 0
    pipe.module.weight.data.fill_(1.0)
    for shard in ("0/2", "1/2"):
        assert main([*words, "--shard", shard]) == 2
        assert "holds samples of other weights ('shapes', fingerprint" in capsys.readouterr().err
    pipe.module.weight.data.fill_(0.0)
    assert main([*words, "--shard", "1/2"]) == 0
    assert main([*words, "--format", "webdataset"]) == 2
    assert "in the format files, not webdataset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard", "2/2"], "--shard '2/2' is not allowed"),
        (["--format", "zip"], "unknown format 'zip'"),
        (["--prompts", "missing.txt"], "cannot read 'missing.txt': No such file"),
        (["--recipe", "scdd"], "unknown recipe 'scdd'"),
        (["--tokenizer", "a", "--codec", "b"], "name the same file"),
    ],
)
def test_what_is_not_allowed_writes_nothing(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = prompts_file(tmp_path, "a")
    assert main(["generate", "--prompts", str(path), "-o", str(tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = prompts_file(tmp_path, "a")
    assert main(["generate", "--prompts", str(path), "-o", str(tmp_path)]) == 2
    assert "is not empty and holds no folder shards/" in capsys.readouterr().err


def test_prompts_from_stdin_and_a_real_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sample of a line with a seed is the image that `mmspec image` generates with that seed."""
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"prompt": "a green star", "seed": 3}\na blue cross\n'))
    assert main(["generate", "--prompts", "-", "-o", str(tmp_path / "out")]) == 0
    assert main(["image", "a green star", "--seed", "3", "-o", str(tmp_path / "x.png")]) == 0
    entries = [entry for entry, _ in ShardFolder(tmp_path / "out", Shard()).journal.read()]
    assert [entry.prompt for entry in entries] == ["a green star", "a blue cross"]
    with Image.open(tmp_path / "out" / entries[0].file) as one, Image.open(tmp_path / "x.png") as other:
        assert one.tobytes() == other.tobytes()

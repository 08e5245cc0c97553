"""Results folders: one process at a time, nothing left of refused runs, no file outside of them, media of any size."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from fake_pipe import Pipe, evaluated_pipe
from PIL import Image

from mmspec.cli.app import main
from mmspec.errors import ArgumentError, OutputError
from mmspec.files.locks import FILE, locked
from mmspec.media.images import read_image
from mmspec.metrics.evaluation import generation
from mmspec.metrics.evaluation.journal import Journal, SampleRecord, find_sample, sample_path
from mmspec.metrics.evaluation.media import read_waveform
from mmspec.metrics.evaluation.speed import speed_of
from mmspec.metrics.reference import load_reference

SIZE = ["--recipes", "scd", "--limit", "2", "--seeds", "0..1"]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    return evaluated_pipe(monkeypatch)


HOLD = """
import sys
from pathlib import Path
from mmspec.files.locks import locked
with locked(Path(sys.argv[1]), "DIR"):
    print("locked", flush=True)
    sys.stdin.read()
"""


def holder(folder: Path, root: Path) -> subprocess.Popen[str]:
    """A process that holds the lock of a folder until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    return process


def test_a_folder_belongs_to_one_process(
    pipe: Pipe, tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "-o", str(tmp_path), *SIZE]) == 0

    def times() -> dict[Path, int]:  # older releases of filelock open the lock for writing each time
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != FILE}

    before = times()
    pipe.calls.clear()
    capsys.readouterr()
    with holder(tmp_path, root) as other:
        for arguments in (["eval", "-o", str(tmp_path), *SIZE[:-1], "0..3"], ["report", str(tmp_path)]):
            assert main(arguments) == 2
            error = capsys.readouterr().err
            assert f"'{tmp_path}' is in use by another mmspec process; wait until it ends" in error
        assert pipe.calls == [] and times() == before
        left = tmp_path / "samples" / ".mmspec-1-1.part"
        left.touch()
        other.kill()  # the system releases the lock
    assert main(["eval", "-o", str(tmp_path), *SIZE]) == 0
    assert not left.exists()  # what a killed process left


def test_a_refused_journal_leaves_the_folder_as_it_was(
    pipe: Pipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "-o", str(tmp_path), *SIZE]) == 0
    (tmp_path / FILE).unlink()
    (journal,) = tmp_path.glob("*.jsonl")
    journal.write_text("no record\n")

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = contents()
    capsys.readouterr()
    assert main(["eval", "-o", str(tmp_path), *SIZE[:-1], "0..3"]) == 2
    assert "is not a sample record" in capsys.readouterr().err
    assert contents() == before


def test_remarks_on_samples_are_kept_and_said_once_per_recipe(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def notes_of(output: Any, count: int) -> list[list[str]]:
        recipe, _, seed = pipe.calls[-1]
        return [[f"cut at {recipe}"] if recipe.startswith("scd") and seed % 2 else []] * count

    monkeypatch.setattr(generation, "notes_of", notes_of)
    assert main(["eval", "-o", str(tmp_path), *SIZE]) == 0
    notes = {key: sample.notes for key, sample in Journal(tmp_path).read().items()}
    cut = [found for found in notes.values() if found]
    assert 0 < len(cut) < 4 and all(found[0].startswith("cut at scd") for found in cut)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mmspec: note: ")]
    assert said == [f"mmspec: note: scd: {len(cut)} of 4 samples have remarks, such as {cut[0][0]}"]
    # A run that continues with all samples finished says it again.
    assert main(["eval", "-o", str(tmp_path), *SIZE]) == 0
    assert said[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("there", "error", "kept"),
    [(False, ArgumentError, False), (True, ArgumentError, True), (False, OutputError, True), (False, None, True)],
)
def test_the_file_of_a_lock_goes_with_a_refusal(
    tmp_path: Path, there: bool, error: type[Exception] | None, kept: bool
) -> None:
    if there:
        (tmp_path / FILE).touch()
    with suppress(ArgumentError, OutputError), locked(tmp_path, "DIR"):
        if error is not None:
            raise error("x")
    assert (tmp_path / FILE).exists() == kept


def test_a_lock_that_cannot_be_had_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(ArgumentError, match=f"DIR: cannot lock '{tmp_path}'"), locked(tmp_path, "DIR"):
        pass


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--shapes", "nosuch"], "'nosuch' is no folder with a classifier"),
        (["--metrics", "wer@spoken"], "metric 'wer@spoken' is of audio, and the model generates images"),
        (["--metrics", "fd@clip", "--clip", "nosuch"], "extractor 'clip': cannot load"),
        (["--reference", "damaged.npz"], "reference 'damaged.npz' cannot be read"),
        (["--reference", "empty"], "'empty' holds no image"),
        (["--device", "cuda:99"], "device='cuda:99' cannot be used"),
        (["--shapes", "\udcff"], "not valid Unicode"),
        (["--config", "deep.yaml"], "nested deeper"),
        (["--config", "infinite.yaml"], "top_k must be a whole number"),
        (["--config", "huge.yaml"], "top_k must be a finite number below 2**63"),
        (["--config", "surrogate.yaml"], "cannot read 'surrogate.yaml'"),
    ],
)
def test_a_refused_evaluation_leaves_nothing_behind(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str],
    message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("damaged.npz").write_bytes(b"PK\x03\x04" + b"x" * 99)
    Path("empty").mkdir()
    Path("deep.yaml").write_text("prompts: " + "[" * 99)
    Path("infinite.yaml").write_text("top_k: .inf")
    Path("huge.yaml").write_text("top_k: 99999999999999999999")
    Path("surrogate.yaml").write_text('prompts: ["a red \\uD800 circle"]')
    before = sorted(os.listdir())
    assert main(["eval", "-o", "out", "--metrics", "attributes,fd@shapes", *SIZE, *more]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "Traceback" not in error
    assert pipe.calls == [] and sorted(os.listdir()) == before


def test_a_model_whose_kind_is_unknown_is_refused_after_one_call(
    pipe: Pipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(Pipe, "set_progress_bar_config")
    assert main(["eval", "-o", str(tmp_path / "out"), *SIZE, "--metrics", "wer@spoken"]) == 2
    assert "metric 'wer@spoken' is of audio, and the model generates images" in capsys.readouterr().err
    assert len(pipe.calls) == 1


def sample(folder: Path, **changes: Any) -> SampleRecord:
    """The record of a sample whose file exists, with some values replaced."""
    path = sample_path("plain", "a", 0)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(folder / path)
    made = SampleRecord(
        "plain", "a", 0, 0, path.as_posix(), 1.0, 1.0, 1.0, {}, 1, 1.0, [1], 0, 0.0, None, None, [], None, None
    )
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"file": "/etc/hostname"}, "its file '/etc/hostname' must be 'samples/plain-"),
        ({"file": "../other.png"}, "its file '../other.png' must be"),
        ({"file": 3}, "file: Input should be a valid string"),
        ({"seed": "0/../../x"}, "seed: Input should be a valid integer"),
        ({"seed": True}, "seed: Input should be a valid integer"),
        ({"gains": [2**62]}, "gains.0: Input should be less than or equal to 100000"),
        ({"seconds": -1.0}, "seconds: Input should be greater than or equal to 0"),
        ({"acceptance": [7.0]}, "acceptance.0: Input should be less than or equal to 1"),
        ({"grid": 0}, "grid: Input should be greater than or equal to 1"),
    ],
)
def test_a_journal_cannot_point_out_of_its_folder(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    line = json.dumps(asdict(sample(tmp_path)) | changes)
    (tmp_path / "samples-0.jsonl").write_text(line + "\n")
    with pytest.raises(ArgumentError) as found:
        Journal(tmp_path).read()
    assert "samples-0.jsonl' line 1 is not a sample record" in str(found.value) and message in str(found.value)


def test_a_journal_of_deep_or_endless_values_is_refused(tmp_path: Path) -> None:
    for line in (b"[" * 10**5, b'{"seed": ' + b"9" * 5000 + b"}", b"\xff", b"[]", b"null", b'{"file": "\\ud800"}'):
        (tmp_path / "samples-0.jsonl").write_bytes(line + b"\n")
        with pytest.raises(ArgumentError, match="line 1 is not a sample record"):
            Journal(tmp_path).read()


def test_a_link_that_leaves_the_folder_is_no_sample(tmp_path: Path) -> None:
    Journal(tmp_path).append([sample(tmp_path)])
    path = find_sample(tmp_path, "plain", "a", 0)
    assert path is not None and len(Journal(tmp_path).read()) == 1
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert find_sample(tmp_path, "plain", "a", 0) is None and Journal(tmp_path).read() == {}


def test_samples_without_tokens_or_time_have_no_speed(tmp_path: Path) -> None:
    for changes in ({"tokens": 0}, {"seconds": 0.0}, {"calls": 0.0}, {"calls": 5e-324}):
        samples = [sample(tmp_path), sample(tmp_path, **changes)]
        with pytest.raises(ArgumentError, match="its speed is not defined"):
            speed_of(samples, samples, True)


def png_of(width: int, height: int) -> bytes:
    """The header of a PNG file that promises an image of this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")


def test_the_size_of_an_image_is_read_before_its_pixels(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    for width, height, message in [
        (13_300, 13_300, "176,890,000 pixels of one image exceed the limit of 67,108,864; MMSPEC_MAX_PIXELS=N raises"),
        (60_000, 60_000, "is not a readable image: it exceeds"),
    ]:
        path.write_bytes(png_of(width, height))
        with pytest.raises(ArgumentError, match=message):
            read_image(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ArgumentError, match="no such file"):
        read_image(path)


def test_the_length_of_a_recording_is_read_before_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.flac"
    soundfile.write(path, np.zeros(8000 * 3, dtype=np.float32), 8000)
    assert len(read_waveform(path).wave) == 24_000
    monkeypatch.setenv("MMSPEC_MAX_AUDIO_SECONDS", "2")
    with pytest.raises(ArgumentError, match="3 seconds of one recording exceed the limit of 2"):
        read_waveform(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"mu": np.zeros(3)}, "has no sigma"),
        ({"mu": np.zeros(3), "sigma": np.eye(2)}, r"mu \[3\] and sigma \[2, 2\]; they must be"),
        ({"mu": np.float64(0), "sigma": np.eye(2)}, r"mu \[\] and sigma"),
        ({"mu": np.full(2, np.nan), "sigma": np.eye(2)}, "not finite"),
        ({"mu": np.array(["a", "b"]), "sigma": np.eye(2)}, "holds no numbers"),
        ({"mu": np.zeros(2), "sigma": np.eye(2), "count": np.zeros(3)}, "holds no numbers"),
        ({"mu": np.array([None, 1]), "sigma": np.eye(2)}, "cannot be read"),
    ],
)
def test_a_reference_of_others_is_checked(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, **arrays)
    with pytest.raises(ArgumentError, match=message):
        load_reference(path)
    np.save(path.with_suffix(".npy"), np.zeros(3))
    with pytest.raises(ArgumentError, match="cannot be read"):
        load_reference(path.with_suffix(".npy"))


def test_measure_looks_at_device_and_reference_though_no_metric_needs_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(3):
        Image.new("RGB", (8, 8)).save(folder / f"{i}.png")
    (tmp_path / "x.npz").write_bytes(b"x")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red circle\n" * 3)
    command = ["measure", str(folder), "--metrics", "attributes", "--prompts", str(prompts)]
    for more, message in [
        (["--device", "gpu"], "device='gpu' cannot be used"),
        (["--reference", str(tmp_path / "x.npz")], "cannot be read"),
        (["--reference", str(tmp_path / "none")], "must be an .npz file or a folder"),
    ]:
        assert main([*command, *more]) == 2
        assert message in capsys.readouterr().err

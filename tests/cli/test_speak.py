"""`mmspec speak`: files, streams and invalid input."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from mmspec.audio.wave import write_audio, write_raw, write_stream
from mmspec.cli.app import main
from mmspec.errors import ArgumentError


def test_texts_become_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speak", "turn left", "mmspec", "-o", str(tmp_path / "x.wav"), "--seed", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.split() == [str(tmp_path / "x-0.wav"), str(tmp_path / "x-1.wav")]
    assert "spelled" in err and "mmspec" in err
    info = soundfile.info(tmp_path / "x-0.wav")
    assert (info.samplerate, info.channels, info.subtype) == (16000, 1, "PCM_16") and info.duration > 0.4


def test_a_stream_has_the_same_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "x.wav")
    messages = []
    for more in ([], ["--stream"]):
        assert main(["speak", "mmspec", "-o", path, *more]) == 0
        messages.append(capsys.readouterr().err)
    assert messages[0] == messages[1] and messages[0].startswith("mmspec: note: spelled")
    assert main(["speak", "mmspec", "-o", path, "--stream", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [len(notes) for notes in record["notes"]] == [1]
    (tmp_path / "x.wav").unlink()
    assert main(["speak", "one", "日本", "-o", str(tmp_path / "two"), "--stream"]) == 2
    assert not list(tmp_path.iterdir())  # nothing is written of the first text


def test_lines_of_stdin_are_streamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("it is monday\n\nit is hot\n"))
    assert main(["speak", "-", "-o", str(tmp_path / "out"), "--stream", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [Path(path).name for path in record["outputs"]] == ["0.wav", "1.wav"]
    assert 0 < record["first_chunk_seconds"] < record["seconds"]
    assert soundfile.info(record["outputs"][1]).duration == pytest.approx(record["seconds_of_sound"][1], abs=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["speak", ""], "text='' is empty"),
        (["speak", "日本"], "cannot say '日本'"),
        (["speak", "one", "-o", "x.mp3"], "must end in .wav or .flac"),
        (["speak", "one", "-o", "none/deep/x.wav"], "the folder 'none/deep' does not exist"),
        (["speak", "one", "-o", "-"], "requires --stream"),
        (["speak", "one", "--voice", "bass"], "use one of low, high"),
        (["speak", "one", "-m", "shapes"], "see `mmspec image`"),
        (["image", "one", "-m", "spoken"], "see `mmspec speak`"),
        (["speak", "one", "--recipe", "tabel"], "did you mean 'table'"),
    ],
)
def test_invalid_input_prints_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("mmspec: error: ") and message in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_interrupt_while_streaming_keeps_the_audio_so_far(tmp_path: Path) -> None:
    speaking = subprocess.Popen(
        [sys.executable, "-m", "mmspec", "speak", "one two three. " * 400, "--stream", "-o", "x.wav"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Shells start background processes with interrupts ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )

    def written() -> int:
        return sum(path.stat().st_size for path in tmp_path.iterdir())

    while speaking.poll() is None and written() < 4000:  # an eighth of a second of audio
        time.sleep(0.05)
    speaking.send_signal(signal.SIGINT)
    out, err = speaking.communicate(timeout=300)
    assert (speaking.returncode, out, err) == (130, "", "mmspec: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["x.wav"]
    found, rate = soundfile.read(tmp_path / "x.wav")
    assert rate == 16000 and 0.1 < len(found) / rate < 300 and np.abs(found).max() > 0.1


def test_an_interrupted_stream_is_a_valid_file(tmp_path: Path) -> None:
    def chunks() -> Iterator[np.ndarray]:
        yield np.full((1, 500), 0.25, dtype=np.float32)
        yield np.full((1, 300), -0.25, dtype=np.float32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_stream(chunks(), 16000, tmp_path / "x.flac")
    found, rate = soundfile.read(tmp_path / "x.flac")
    assert rate == 16000 and found.shape == (800,) and np.allclose(np.abs(found), 0.25, atol=1e-4)


def test_raw_samples_are_clipped() -> None:
    out = io.BytesIO()
    assert write_raw([np.array([[2.0, -2.0, 0.5]], dtype=np.float32)], out) == 3
    assert np.frombuffer(out.getvalue(), "<i2").tolist() == [32767, -32767, 16384]


@pytest.mark.parametrize("shape", [(8,), (3, 8)])
def test_wrong_shapes_are_not_written(shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="channels"):
        write_audio(np.zeros(shape, dtype=np.float32), 16000, tmp_path / "x.wav")
    assert not list(tmp_path.iterdir())

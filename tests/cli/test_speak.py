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
import torch

from mmspec.audio.wave import FORMATS, write_audio, write_raw, write_stream
from mmspec.cli.app import main
from mmspec.cli.audio import SUFFIXES
from mmspec.cli.model_options import read_config
from mmspec.errors import ArgumentError
from mmspec.limits import VOICE_SECONDS
from mmspec.media.audio import read_audio


def test_texts_become_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["speak", "turn left", "mmspec", "-o", str(tmp_path / "x.wav"), "--seed", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.split() == [str(tmp_path / "x-0.wav"), str(tmp_path / "x-1.wav")]
    assert "spelled" in err and "mmspec" in err
    info = soundfile.info(tmp_path / "x-0.wav")
    assert (info.samplerate, info.channels, info.subtype) == (16000, 1, "PCM_16") and info.duration > 0.4


def test_a_random_seed_is_printed_so_that_a_run_can_be_repeated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first.wav", tmp_path / "second.wav"
    assert main(["speak", "turn left", "-o", str(first), "--seed", "-1"]) == 0
    note = next(line for line in capfd.readouterr().err.splitlines() if "--seed is " in line)
    seed = note.rpartition(" ")[2]
    assert main(["speak", "turn left", "-o", str(second), "--seed", seed]) == 0
    assert first.read_bytes() == second.read_bytes() and "--seed" not in capfd.readouterr().err


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
        (["speak", "one", "-o", "x.aiff"], "must end in .wav or .flac or .ogg or .opus or .mp3"),
        (["speak", "one", "--format", "wma"], "use one of wav, flac, ogg, opus, mp3"),
        (["speak", "one", "-o", "x.wav", "--format", "mp3"], "must end in .mp3"),
        (["speak", "one", "--sampling-rate", "7"], "--sampling-rate"),
        (["speak", "one", "-o", "x.opus", "--sampling-rate", "44100"], "to one of 8000, 12000, 16000, 24000, 48000"),
        (["speak", "one", "--config", "frames"], "it must be NAME=VALUE"),
        (["speak", "one", "--style", "llasa", "--config", "style=x"], "'style' is given twice"),
        (["speak", "one", "--style", "llasa"], "style was given, but 'spoken' does not take it"),
        (["speak", "one", "--guidance-scale", "3"], "this model has no guidance"),
        (["speak", "one", "-o", "none/deep/x.wav"], "the folder 'none/deep' does not exist"),
        (["speak", "one", "-o", "-"], "requires --stream"),
        (["speak", "one", "--voice", "bass"], "use one of low, high"),
        (["speak", "one", "-m", "shapes"], "see `mmspec image`"),
        (["image", "one", "-m", "spoken"], "see `mmspec speak`"),
        (["speak", "one", "--recipe", "tabel"], "did you mean 'table'"),
    ],
)
def test_invalid_input_prints_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_is_written_at_once_and_in_chunks(suffix: str, tmp_path: Path) -> None:
    assert tuple(FORMATS) == SUFFIXES
    t = np.arange(48000, dtype=np.float32) / 24000
    audio = 0.5 * np.sin(2 * np.pi * 440 * t)[None].astype(np.float32)
    write_audio(audio, 24000, tmp_path / f"a{suffix}")
    write_stream(np.split(audio, [10, 5000], axis=1), 24000, tmp_path / f"b{suffix}")
    for name in "ab":
        found, rate = read_audio(tmp_path / f"{name}{suffix}", VOICE_SECONDS)
        assert rate in (24000, 48000) and abs(found.shape[1] / rate - 2) < 0.1
        middle = found[0, rate // 2 : rate]
        spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
        assert abs(float(spectrum.argmax()) * rate / len(middle) - 440) < 3  # the same tone, as loud
        assert abs(float(np.sqrt((middle**2).mean())) - 0.5 / 2**0.5) < 0.02


def test_formats_that_this_libsndfile_cannot_write_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundfile, "check_format", lambda container, coding: container in ("WAV", "FLAC"))
    with pytest.raises(ArgumentError, match=r"libsndfile .* cannot write .mp3; .* or use .wav, .flac$"):
        write_audio(np.zeros((1, 9), np.float32), 16000, tmp_path / "x.mp3")
    assert main(["speak", "one", "-o", str(tmp_path / "x.opus")]) == 2
    assert not list(tmp_path.iterdir())


def test_voice_files_are_read_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long, wide, broken = tmp_path / "long.flac", tmp_path / "wide.wav", tmp_path / "nan.wav"
    soundfile.write(long, np.zeros(8000 * 601, dtype=np.int16), 8000)
    soundfile.write(wide, np.zeros((9, 9)), 8000)
    soundfile.write(broken, np.array([0.0, np.nan]), 8000, subtype="FLOAT")
    with pytest.raises(ArgumentError, match="601 seconds of a recording to follow exceed the limit of 600; MMSPEC"):
        read_audio(long, VOICE_SECONDS)
    monkeypatch.setenv("MMSPEC_MAX_VOICE_SECONDS", "700")
    assert read_audio(long, VOICE_SECONDS)[0].shape == (1, 8000 * 601)
    with pytest.raises(ArgumentError, match="has 9 channels; at most 8"):
        read_audio(wide, VOICE_SECONDS)
    with pytest.raises(ArgumentError, match="samples that are not finite"):
        read_audio(broken, VOICE_SECONDS)


def test_a_raw_stream_tells_its_format(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["speak", "one", "--stream", "-o", "-", "--sampling-rate", "8000", "--pause", "0.1"]) == 0
    out, err = capfdbinary.readouterr()
    assert len(out) > 4000 and b"8000 Hz, mono: aplay -r 8000 -f S16_LE" in err


def test_other_formats_and_rates_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["speak", "one", "two", "--sampling-rate", "24000", "--batch-size", "1", "--json"]
    assert main([*call, "-o", str(tmp_path / "out"), "--format", "opus"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sampling_rate"] == 24000 and record["truncated"] == [False, False]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0.opus", "1.opus"]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_stdin_that_is_not_text(
    errors: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"ok\n\xff\xfe"), encoding="utf-8", errors=errors)
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["speak", "-"]) == 2
    assert "stdin is not utf-8 text" in capsys.readouterr().err


def test_a_closed_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.StringIO()
    stdin.close()
    for closed in (None, stdin):
        monkeypatch.setattr("sys.stdin", closed)
        assert main(["speak", "-"]) == 2
        assert "stdin is closed" in capsys.readouterr().err


def test_a_closed_stdout_is_refused() -> None:
    command = f"{sys.executable} -m mmspec speak one --stream -o - >&-"
    found = subprocess.run(["sh", "-c", command], capture_output=True)
    assert found.returncode == 2 and b"stdout is closed" in found.stderr and found.stderr.count(b"\n") == 1


def test_options_of_the_model_reach_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[dict[str, object]] = []

    def load(model: str, **options: object) -> None:
        calls.append({"model": model, **options})
        raise ArgumentError("loaded")

    monkeypatch.setattr("mmspec.load", load)
    call = ["speak", "one", "-m", "m", "-o", str(tmp_path / "x.wav"), "--style", "llasa", "--codec", "c"]
    assert main([*call, "--draft-model", "pair", "--dtype", "bfloat16", "--config", "frames=5"]) == 2
    config = {"style": "llasa", "draft_model": "pair", "frames": 5}
    assert calls == [{"model": "m", "device": "cpu", "tokenizer": "c", "config": config, "dtype": torch.bfloat16}]
    assert read_config(["a=[1, 2]", "b=text", 'c="3"']) == {"a": [1, 2], "b": "text", "c": "3"}
    assert read_config(None) is None

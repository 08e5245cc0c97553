"""Opening files of unknown origin."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import read_header, read_weights
from mmspec.files.inputs import bounded_lines, check_files, check_regular, open_regular, read_bytes, read_text


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfa\n")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("file", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"\xef\xbb\xbfa\n"
        assert read_text(tmp_path / name, "--file") == "a\n"
    for name in ("fifo", "zero", ".", "none"):
        with pytest.raises(OSError):
            check_regular(tmp_path / name)
    for name, reason in (
        ("fifo", "it is not a regular file"),
        ("zero", "it is not a regular file"),
        (".", "Is a directory"),
        ("none", "No such file"),
        ("a\0", "null"),
    ):
        with pytest.raises(ArgumentError, match=rf"--file: cannot read '.*': .*{reason}"):
            read_bytes(tmp_path / name, "--file")


def test_large_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ArgumentError, match="1,099,511,627,776 bytes of one JSON or YAML file exceed the limit"):
        read_bytes(tmp_path / "sparse", "--file")
    monkeypatch.setenv("MMSPEC_MAX_FILE_BYTES", "3")
    (tmp_path / "small").write_bytes(b"abcd")
    with pytest.raises(ArgumentError, match="4 bytes of"):
        read_bytes(tmp_path / "small", "--file")


def test_long_lines_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(bounded_lines(io.BytesIO(b"a\nb"), "'f'")) == [b"a\n", b"b"]
    assert list(bounded_lines(io.StringIO("a\n\nb\n"), "'f'")) == ["a\n", "\n", "b\n"]
    monkeypatch.setenv("MMSPEC_MAX_FILE_BYTES", "10")
    with open("/dev/zero", "rb") as endless, pytest.raises(ArgumentError, match=r"'f' line 1: 11 bytes"):
        list(bounded_lines(endless, "'f'"))


def sparse_weights(file: Path, length: int, stored: int) -> None:
    """A file of safetensors whose header fits its length, of which the rest is holes after the stored bytes."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [length], "data_offsets": [0, length]}}).encode()
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header + bytes(stored))
        stream.truncate(8 + len(header) + length)


def test_weights_of_holes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMSPEC_MAX_FILE_BYTES", "1000")
    file, length = tmp_path / "model.safetensors", 2**22
    sparse_weights(file, length, 0)
    assert 512 * file.stat().st_blocks < length / 16, "the file system has no holes"
    for read in (read_weights, read_header):
        with pytest.raises(ModelError, match=r"4,194,\d+ bytes, nearly all of them holes") as found:
            read(file, "model")
        assert "\n" not in str(found.value)
    with pytest.raises(ArgumentError, match="model='x': cannot read .* nearly all of them holes"):
        check_files(tmp_path, "model='x'")
    sparse_weights(file, length, length // 8)
    check_files(tmp_path, "model='x'")
    assert len(read_weights(file, "model")["a"]) == length
    file.unlink()
    sparse_weights(file, 100, 0)
    assert len(read_weights(file, "model")["a"]) == 100

"""Writing of files: links, devices and FIFOs, full disks, and the remains of killed processes."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mmspec import files
from mmspec.errors import ArgumentError, OutputError
from mmspec.files import STDOUT, check_writable, replacing, replacing_folder

ROOT = os.geteuid() == 0
FULL = Path("/dev/full")


def write(path: Path, text: str = "new") -> None:
    check_writable(path, "-o", stdout=True)
    with replacing(path) as partial:
        partial.write_text(text)


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    target, link = tmp_path / "inner" / "x.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert target.read_text() == "new"
    dangling = tmp_path / "dangling.json"
    dangling.symlink_to(tmp_path / "inner" / "made.json")
    write(dangling)
    assert (tmp_path / "inner" / "made.json").read_text() == "new"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(ArgumentError, match="cannot write"):
        write(loop)


def test_a_fifo_is_written_to(tmp_path: Path) -> None:
    fifo, read = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
    reader.start()
    write(fifo)
    reader.join()
    assert read == ["new"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["fifo"]


@pytest.mark.skipif(not ROOT, reason="needs the right to make devices")
def test_a_device_is_written_to(tmp_path: Path) -> None:
    device = tmp_path / "null.json"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_text("x")
    except OSError:
        pytest.skip("devices are not allowed here")
    write(device)
    assert stat.S_ISCHR(device.stat().st_mode)


def test_stdout_is_used_only_where_it_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write(STDOUT, "text")
    assert capfd.readouterr().out == "text"
    with pytest.raises(ArgumentError, match=r"-o: '-' \(stdout\) is not possible here; name a file, or './-'"):
        check_writable(STDOUT, "-o")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_device_is_one_line() -> None:
    with pytest.raises(OutputError, match="cannot write '/dev/full': No space left on device"):
        write(FULL)


def limited(error: type[Exception], message: str, writes: Any, tmp_path: Path) -> None:
    """Checks what a process with a limit of 4 KiB per file reports; the limit belongs to a process of its own."""
    import resource

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            writes()
        except error as raised:
            status = 0 if message in str(raised) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert (tmp_path / "x.json").read_text() == "old"


def test_torch_and_safetensors_on_a_full_disk(tmp_path: Path) -> None:
    path, tensor = tmp_path / "x.json", torch.zeros(10_000)
    path.write_text("old")

    def with_safetensors() -> None:
        with replacing(path) as partial:
            save_file({"x": tensor}, partial)

    def with_torch() -> None:
        with replacing(path) as partial:
            torch.save({"x": tensor}, partial)

    def folder() -> None:
        with replacing_folder(tmp_path / "made") as partial:
            save_file({"x": tensor}, partial / "a.safetensors")

    for writes in (with_safetensors, with_torch, lambda: write(path, "x" * 10_000), folder):
        limited(OutputError, "cannot write '", writes, tmp_path)


def test_other_errors_of_the_block_pass_and_leave_nothing(tmp_path: Path) -> None:
    for error in (RuntimeError("shape"), ValueError("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)), replacing(tmp_path / "x") as partial:
            partial.write_text("half")
            raise error
        with pytest.raises(type(error)), replacing_folder(tmp_path / "y") as partial:
            (partial / "z").write_text("half")
            raise error
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_processes_are_swept(tmp_path: Path) -> None:
    for child in range(2):
        pid = os.fork()
        if pid == 0:  # a process that dies while it writes
            with replacing(tmp_path / "x") if child else replacing_folder(tmp_path / "x") as partial:
                (partial if child else partial / "a").write_text("half")
                os._exit(0)
        os.waitpid(pid, 0)
    foreign = tmp_path / ".mmspec-otherhost-1-1.part"
    foreign.write_text("")
    alive = tmp_path / f".mmspec-{files._HOST}-{os.getppid()}-1.part"
    alive.write_text("")
    files._swept.clear()
    assert len(list(tmp_path.iterdir())) in (3, 4)
    write(tmp_path / "x")
    assert {path.name for path in tmp_path.iterdir()} == {"x", foreign.name, alive.name}


def test_a_folder_appears_whole_or_has_its_files_replaced(tmp_path: Path) -> None:
    for text in ("one", "two"):
        with replacing_folder(tmp_path / "x") as partial:
            (partial / "inner").mkdir()
            (partial / "inner" / "a").write_text(text)
            assert text == "two" or not (tmp_path / "x").exists()
        (tmp_path / "x" / "own").write_text("kept")
        assert (tmp_path / "x" / "inner" / "a").read_text() == text
    assert (tmp_path / "x" / "own").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (OSError(errno.ENOSPC, "full"), True), (OSError(errno.ENOENT, "none"), False),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 640 vs 534"), True),
        (RuntimeError("shape"), False),
    ],
)  # fmt: skip
def test_failed_writes_are_told_from_other_errors(error: Exception, failed: bool) -> None:
    assert files.failed_write(error) is failed

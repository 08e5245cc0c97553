"""Folders are listed in the order of their numbers, and files of prompts are read whatever program wrote them."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from mmspec.bulk.requests import SampleSettings, read_requests
from mmspec.cli.speak import read_texts
from mmspec.errors import ArgumentError
from mmspec.files.documents import read_json, read_yaml
from mmspec.media.listing import list_files, list_folders
from mmspec.metrics.evaluation.media import list_media
from mmspec.metrics.evaluation.suites.prompts import suite_prompts
from mmspec.metrics.evaluation.suites.suite import find_suite
from mmspec.metrics.image.dpg import COLUMNS, read_questions
from mmspec.metrics.prompts import read_prompts
from mmspec.serving.settings import read_api_keys
from mmspec.vision.component_dtypes import stored_dtype
from mmspec.vision.infinity.checkpoint import read_text_features
from mmspec.vision.llamagen.checkpoint import read_tensors
from mmspec.vision.llamagen.from_checkpoints import is_checkpoint
from mmspec.vision.video_files import last_frames

ORDERED = ["9.png", "img_1.png", "img_2.PNG", "img_02.png", "img_3b.jpg", "img_10.png", "img_10a.png", "img_²0.png"]


def test_natural_order(tmp_path: Path) -> None:
    for name in [*reversed(ORDERED), "._img_1.png", ".DS_Store", "notes.txt"]:
        (tmp_path / name).touch()
    (tmp_path / "10").mkdir()
    (tmp_path / "9").mkdir()
    (tmp_path / ".cache").mkdir()
    (tmp_path / "9" / "x.png").touch()
    assert [path.name for path in list_files(tmp_path, (".png", ".jpg"))] == ORDERED
    assert [path.name for path in list_media(tmp_path, "DIR")] == ORDERED
    assert [path.name for path in list_folders(tmp_path)] == ["9", "10"]
    assert list_files(tmp_path, (".png",), nested=True)[0] == tmp_path / "9" / "x.png"
    assert len(list_files(tmp_path)) == len(ORDERED) + 1


def frame(path: Path, i: int) -> None:
    Image.new("RGB", (8, 8), (i, 0, 0)).save(path)


def test_frames_in_order(tmp_path: Path) -> None:
    for i in range(12):
        frame(tmp_path / f"frame_{i}.png", i)
    (tmp_path / "._frame_99.png").write_bytes(b"of a Mac")
    assert [image.getpixel((0, 0))[0] for image in last_frames(tmp_path, 9)] == list(range(3, 12))  # type: ignore[index]


def test_folders_of_classes_are_said(tmp_path: Path) -> None:
    (tmp_path / "n01440764").mkdir()
    frame(tmp_path / "n01440764" / "1.png", 1)
    with pytest.raises(ArgumentError, match="it has folders, such as 'n01440764': name one of them"):
        list_media(tmp_path, "--reference")


def test_files_of_a_mac_in_a_model(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1, dtype=torch.float16)}, tmp_path / "gpt.safetensors")
    (tmp_path / "._gpt.safetensors").write_bytes(b"\0\5\x16\7of a Mac")
    assert stored_dtype(tmp_path) == torch.float16
    assert is_checkpoint(tmp_path)
    assert set(read_tensors(tmp_path)) == {"a"}
    (tmp_path / "gpt.safetensors").unlink()
    assert not is_checkpoint(tmp_path)


def test_texts_in_order(tmp_path: Path) -> None:
    save_file({str(i): torch.full((1, 2), float(i)) for i in range(11)}, tmp_path / "texts.safetensors")
    assert [float(text[0, 0]) for text in read_text_features(tmp_path / "texts.safetensors")] == list(range(11))


LINES = ["a red\u2028circle", "größe\x0cx", "\u4e2d\u6587"]


def of_bench(path: Path) -> list[str]:
    return read_prompts(str(path))


def of_generate(path: Path) -> list[str]:
    return [request.prompt for request in read_requests(path, SampleSettings())]


def of_suite(path: Path) -> list[str]:
    return suite_prompts(find_suite("drawbench"), str(path.rename(path.with_suffix(".txt"))))


PROMPT_READERS: dict[str, Callable[[Path], list[str]]] = {
    "eval, bench, measure": of_bench, "generate": of_generate, "suites": of_suite
}  # fmt: skip
WRITERS = {
    "Unix": ("\n", "utf-8", False), "Windows": ("\r\n", "utf-8", False), "Notepad": ("\r\n", "utf-8-sig", False),
    "joined": ("\n", "utf-8-sig", True), "PowerShell": ("\r\n", "utf-16", False),
    "big end first": ("\n", "utf-16-be", True), "old Mac": ("\r", "utf-8", False),
}  # fmt: skip


def written(writer: str) -> bytes:
    end, encoding, marked = WRITERS[writer]
    mark = "\ufeff" if marked else ""
    return "".join(f"{mark}{line}{end}" for line in ["# of a person", LINES[0], "", *LINES[1:]]).encode(encoding)


@pytest.mark.parametrize("reader", PROMPT_READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_prompt_files(writer: str, reader: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.list"
    path.write_bytes(written(writer))
    assert PROMPT_READERS[reader](path) == LINES


@pytest.mark.parametrize("writer", ["Unix", "Windows", "Notepad"])
def test_prompts_of_stdin(writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for read in (lambda: of_generate(Path("-")), lambda: read_texts(["-"])[-3:]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written(writer)), encoding="utf-8"))
        assert read() == LINES


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_files_of_suites(mark: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in ("a\u2028b", "c\u0085d", "e")]
    path.write_text(mark + "\r\n".join(lines), encoding="utf-8")
    assert suite_prompts(find_suite("geneval"), str(path)) == ["a b", "c d", "e"]
    path.write_text(mark + "Prompt\tCategory\r\na red\u2028star\tx\r\n", encoding="utf-8")
    assert suite_prompts(find_suite("partiprompts"), str(path)) == ["a red star"]
    row = ["an old\r\ntown", "1", "0", "is there a town?"]
    table = [COLUMNS, row, row]
    path.write_text(mark + "\r\n".join(",".join(f'"{cell}"' for cell in line) for line in table), encoding="utf-8")
    assert list(read_questions(path)) == ["an old town"]
    path.write_text(mark + '{"a": 1}', encoding="utf-8")
    assert read_json(path, "x") == read_yaml(path, "x") == {"a": 1}
    path.write_text(mark + "a-key-of-16-letters\r\n\r\nanother-key-of-many\r\n", encoding="utf-8")
    assert read_api_keys(path) == ("a-key-of-16-letters", "another-key-of-many")


def test_dense_prompts_in_order(tmp_path: Path) -> None:
    for i in range(11):
        (tmp_path / f"{i}.txt").write_text(f"prompt {i}", encoding="utf-8-sig")
    (tmp_path / "._1.txt").write_bytes(b"\0\5\x16\7")
    assert suite_prompts(find_suite("dpg"), str(tmp_path)) == [f"prompt {i}" for i in range(11)]

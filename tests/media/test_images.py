"""Images of any kind, of files and of Python, are read as the 8-bit RGB that a viewer shows, or refused by name."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from mmspec.bulk.media import media_of
from mmspec.errors import ArgumentError
from mmspec.media.images import read_image, to_frames, to_rgb
from mmspec.metrics.evaluation.features import FeaturePipeline
from mmspec.metrics.evaluation.media import check_readable
from mmspec.vision.cosmos_ar.frames import read_frames
from mmspec.vision.video_files import last_frames, write_video

SIZE = (6, 5)  # width and height
GRAY = np.linspace(0, 255, 30).round().astype(np.uint8).reshape(5, 6)
COLOR = np.stack([GRAY, GRAY[::-1], 255 - GRAY], axis=-1)
GRAYS = np.stack([GRAY] * 3, axis=-1)
ORIENTATION = 0x0112


def gray(mode: str) -> Image.Image:
    return Image.fromarray(GRAY).convert(mode)


def deep(dtype: str, mode: str | None = None) -> Image.Image:
    """16 bits; the lower 8 say something else."""
    image = Image.fromarray((GRAY.astype(np.uint16) * 256 + 200 - GRAY // 2).astype(dtype))
    return image if mode is None else image.convert(mode)


def palette(transparent: bool) -> Image.Image:
    image = Image.fromarray(GRAY).convert("P")
    if transparent:
        image.info["transparency"] = bytes(range(256))
    return image


def turned(orientation: int) -> Image.Image:
    """The colors as a camera stores them that notes their orientation."""
    back = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270, 3: Image.Transpose.ROTATE_180,
            2: Image.Transpose.FLIP_LEFT_RIGHT, 4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
            7: Image.Transpose.TRANSVERSE}  # fmt: skip
    image = Image.fromarray(COLOR).transpose(back[orientation])
    image.getexif()[ORIENTATION] = orientation
    return image


def with_alpha(mode: str) -> Image.Image:
    image = Image.fromarray(COLOR if "R" in mode else GRAY)
    image.putalpha(Image.fromarray(GRAY))
    assert image.mode == mode
    return image


# How the images are made, and the pixels that they show.
KINDS: dict[str, tuple[Callable[[], Image.Image], NDArray[np.uint8]]] = {
    "RGB": (lambda: Image.fromarray(COLOR), COLOR),
    "RGBA": (lambda: with_alpha("RGBA"), COLOR),
    "gray": (lambda: gray("L"), GRAYS),
    "gray with alpha": (lambda: with_alpha("LA"), GRAYS),
    "one bit": (lambda: Image.fromarray(GRAY > 99), np.stack([np.where(GRAY > 99, 255, 0).astype(np.uint8)] * 3, -1)),
    "palette": (lambda: palette(False), GRAYS),
    "palette with alpha": (lambda: palette(True), GRAYS),
    "16 bits": (lambda: deep("<u2"), GRAYS),
    **{f"orientation {turn}": (lambda turn=turn: turned(turn), COLOR) for turn in range(2, 9)},  # type: ignore[misc]
}
# Of Pillow only: no format of files that are read has them.
OBJECTS = {
    "16 bits, big end first": (lambda: deep(">u2"), GRAYS),
    "integers": (lambda: deep("<i4"), GRAYS),
    "RGBX": (lambda: Image.fromarray(COLOR).convert("RGBX"), COLOR),
    "RGBa": (lambda: Image.fromarray(COLOR).convert("RGBA").convert("RGBa"), COLOR),
    "La": (lambda: gray("LA").convert("La"), GRAYS),
}


def of_video(path: Path) -> Any:
    return np.asarray(last_frames(path, 9)[-1])


def of_folder(path: Path) -> Any:
    return np.asarray(last_frames(path.parent, 9)[-1])


def of_measure(path: Path) -> Any:
    assert check_readable(path) is None
    seen: list[Any] = []

    class Seen:
        column, name, needs_prompts, kind, statistic, extractor = "x", "seen", False, "image", "", ""

        def load_extractor(self, weights: Any, device: str) -> None:
            return None

        def extract(self, samples: Any, extractor: Any) -> Any:
            seen.append(samples.images[0])
            return [np.zeros(1)]

    metric: Any = Seen()
    FeaturePipeline([metric], {}).extract([path], None)
    return seen[0]


FILE_READERS = {"image": read_image, "video": of_video, "folder of frames": of_folder, "measure": of_measure}
OBJECT_READERS: dict[str, Callable[[Image.Image], Any]] = {
    "image": lambda image: np.asarray(to_rgb(image)),
    "output of a pipeline": lambda image: np.asarray(media_of([image], 1)[0]),
    "Cosmos": lambda image: (read_frames(image)[0].permute(1, 2, 0) * 255).round().byte().numpy(),
    "Cosmos, frames": lambda image: (read_frames([image])[0].permute(1, 2, 0) * 255).round().byte().numpy(),
}


@pytest.mark.parametrize("reader", FILE_READERS)
@pytest.mark.parametrize("kind", KINDS)
def test_files(kind: str, reader: str, tmp_path: Path) -> None:
    make, expected = KINDS[kind]
    image = make()
    image.save(tmp_path / "x.png", exif=image.getexif())
    np.testing.assert_array_equal(FILE_READERS[reader](tmp_path / "x.png"), expected)


@pytest.mark.parametrize("reader", OBJECT_READERS)
@pytest.mark.parametrize("kind", [*KINDS, *OBJECTS])
def test_images_of_pillow(kind: str, reader: str) -> None:
    make, expected = {**KINDS, **OBJECTS}[kind]
    np.testing.assert_array_equal(OBJECT_READERS[reader](make()), expected)


@pytest.mark.parametrize("reader", FILE_READERS)
def test_photographs(reader: str, tmp_path: Path) -> None:
    """CMYK as printers send it, and one that contains a preview of itself."""
    image = Image.fromarray(np.full((16, 16, 3), (200, 30, 60), np.uint8))
    image.convert("CMYK").save(tmp_path / "x.jpg", quality=100)
    assert np.abs(FILE_READERS[reader](tmp_path / "x.jpg")[0, 0].astype(int) - (200, 30, 60)).max() <= 3
    image.save(tmp_path / "x.jpg", format="MPO", save_all=True, append_images=[image.resize((8, 8))])
    assert FILE_READERS[reader](tmp_path / "x.jpg").shape == (16, 16, 3)


def test_moving_images(tmp_path: Path) -> None:
    """A video is read from them, and where one image is asked for they are refused by name."""
    frames = [Image.new("RGB", SIZE, (60 * i, 0, 0)) for i in range(4)]
    for suffix in (".webp", ".gif", ".png"):
        path = tmp_path / f"x{suffix}"
        options: Any = {"lossless": True} if suffix == ".webp" else {}
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=40, **options)
        for read in (read_image, of_folder):
            with pytest.raises(ArgumentError, match=rf"x{suffix}' is not a readable image \(it moves, with 4 frames\)"):
                read(path)
        with Image.open(path) as image:
            given = read_frames(image)
        assert len(given) == len(last_frames(path, 9)) == 4, suffix
        np.testing.assert_allclose(given[-1, 0].numpy(), 180 / 255, atol=1e-6)
        path.unlink()


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (Image.new("F", SIZE, 0.5), "mode F has no range"),
        (Image.new("I", SIZE, 70_000), "mode I has 16 bits, and its values are 70000 to 70000"),
        (Image.new("I", SIZE, -1), "mode I has 16 bits, and its values are -1 to -1"),
    ],
)
def test_images_of_unknown_range(image: Image.Image, message: str) -> None:
    for read in OBJECT_READERS.values():
        with pytest.raises(ArgumentError, match=message):
            read(image)


def test_a_damaged_image_handed_over() -> None:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(file, "PNG")
    with (
        Image.open(io.BytesIO(file.getvalue()[:5000])) as image,
        pytest.raises(ArgumentError, match="is not a readabl"),
    ):
        read_frames([image])


def test_damaged_notes_do_not_matter() -> None:
    image = Image.fromarray(COLOR)
    image.info["exif"] = b"Exif\0\0MM\0*\0\0\0\x08\0\xff"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(np.asarray(to_rgb(image)), COLOR)


FRAMES = np.stack([COLOR, COLOR[::-1]])
UNIT = FRAMES.astype(np.float32) / 255


@pytest.mark.parametrize(
    "given",
    [
        FRAMES,
        UNIT,
        UNIT.astype(np.float64),
        FRAMES.astype(np.uint16) * 257,
        FRAMES.transpose(0, 3, 1, 2),
        np.concatenate([FRAMES, FRAMES[..., :1]], axis=-1),
        torch.from_numpy(FRAMES),
        torch.from_numpy(UNIT).permute(0, 3, 1, 2),
        torch.from_numpy(UNIT).permute(0, 3, 1, 2).double().requires_grad_(),
    ],
)
def test_arrays(given: Any) -> None:
    found = read_frames(given)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.permute(0, 2, 3, 1).numpy(), UNIT, atol=1e-6)


def test_one_array_is_one_frame() -> None:
    for given in (COLOR, torch.from_numpy(UNIT[0]).permute(2, 0, 1)):
        np.testing.assert_allclose(to_frames(given, "x")[0].transpose(1, 2, 0), UNIT[0], atol=1e-6)
    for given in (GRAY, GRAY[..., None], torch.from_numpy(GRAY)[None], torch.from_numpy(GRAY)):
        np.testing.assert_allclose(to_frames(given, "x")[0].transpose(1, 2, 0), GRAYS / 255, atol=1e-6)
    assert to_frames(GRAY > 99, "x").max() == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (UNIT * 255, "values from 0 to 255; they must be in 0..1"),
        (UNIT * 2 - 1, "values from -1 to 1; they must be in 0..1"),
        (UNIT * np.nan, "must be in 0..1"),
        (FRAMES.astype(np.int64), "is of int64; it must be uint8"),
        (UNIT.astype(np.complex64), "is of complex64"),
        (UNIT[0, 0, 0], r"has shape \[3\]"),
        (UNIT[..., :2], r"has shape \[2, 5, 6, 2\]"),
        (UNIT[:0], r"has shape \[0, 5, 6, 3\]"),
    ],
)
def test_arrays_that_are_no_frames(given: Any, message: str) -> None:
    for one in (given, torch.from_numpy(given)):
        with pytest.raises(ArgumentError, match=message):
            read_frames(one)


def test_a_video_of_a_turned_camera(tmp_path: Path) -> None:
    pytest.importorskip("av")
    path = tmp_path / "x.mp4"
    image = Image.new("RGB", (64, 32), "black")
    image.paste("white", (0, 0, 64, 8))  # the upper edge as stored, which is the right one as shown
    write_video([image] * 2, path, 25)
    assert last_frames(path, 9)[-1].size == (64, 32)
    content, plain = path.read_bytes(), struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    at = content.index(plain, content.index(b"tkhd"))  # what a telephone held upright writes
    clockwise = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 32 << 16, 0, 1 << 30)
    path.write_bytes(content[:at] + clockwise + content[at + 36 :])
    shown = np.asarray(last_frames(path, 9)[-1])
    assert shown.shape == (64, 32, 3)
    assert shown[:, -4:].mean() > 200 > 50 > shown[:, :20].mean()

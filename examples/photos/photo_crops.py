"""Crops of a folder of photographs, with classes by color, some photographs held out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

SIDE = 64
SHORTEST = (72, 128)  # pixels of a photograph's shorter side before it is cropped: much finer crops would be blur
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
HOLD_OUT = 20  # every 20th photograph


@dataclass(frozen=True)
class Crops:
    """Crops uint8 [n, 3, 64, 64] and their classes int64 [n], of seen and of held-out photographs."""

    images: Tensor
    classes: Tensor
    held_out: Tensor
    held_out_classes: Tensor

    def save(self, file: Path) -> None:
        torch.save(asdict(self), file.with_suffix(".new"))
        file.with_suffix(".new").rename(file)

    @classmethod
    def load(cls, file: Path) -> Self:
        return cls(**torch.load(file, mmap=True))


def photographs(folder: Path, attribution: Path | None) -> list[tuple[Path, str]]:
    """The photos of a folder in the order of their names, each with the line of the file that names it first.

    Without an attribution file they are all taken, with their names for lines; with one, those that it names.
    """
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    names = {path.relative_to(folder).as_posix(): path for path in found}
    if attribution is None:
        return [(path, name) for name, path in names.items()]
    lines = attribution.read_text(encoding="utf-8").splitlines()
    credits = {line.split(maxsplit=1)[0]: line for line in lines if line.strip()}
    return [(path, credits[name]) for name, path in names.items() if name in credits]


def cut(path: Path, count: int, rng: random.Random) -> Tensor | None:
    """Crops of one photograph at several sizes, half of them mirrored; None if it cannot be read."""
    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file).convert("RGB")
    except (OSError, UnidentifiedImageError):
        return None
    crops = []
    for _ in range(count):
        scale = rng.randint(*SHORTEST) / min(image.size)
        small = image.resize([max(round(scale * pixels), SIDE) for pixels in image.size], Image.Resampling.LANCZOS)
        x, y = (rng.randint(0, pixels - SIDE) for pixels in small.size)
        crop = small.crop((x, y, x + SIDE, y + SIDE))
        crops.append(np.asarray(ImageOps.mirror(crop) if rng.random() < 0.5 else crop))
    return torch.from_numpy(np.stack(crops)).movedim(-1, 1).contiguous()


def look(images: Tensor) -> Tensor:
    """Mean color and contrast of crops uint8 [n, 3, h, w]: float32 [n, 4]."""
    parts = [part.float().flatten(2) / 255 for part in images.split(1024)]
    return torch.cat([torch.cat([part.mean(-1), part.mean(1).std(-1, keepdim=True)], 1) for part in parts])


def cluster(points: Tensor, count: int, rounds: int = 30) -> Tensor:
    """The centers [count, D] of k-means over points [n, D]; every start is the point farthest from those before."""
    centers = points.mean(0, keepdim=True)
    for _ in range(count):
        centers = torch.cat([centers, points[torch.cdist(points, centers).amin(1).argmax()][None]])
    centers = centers[1:]
    for _ in range(rounds):
        nearest = torch.cdist(points, centers).argmin(1)
        groups = [points[nearest == i] for i in range(count)]
        centers = torch.stack([group.mean(0) if len(group) else centers[i] for i, group in enumerate(groups)])
    return centers


def cut_all(photos: Sequence[Path], per_photo: int, classes: int) -> tuple[Crops, list[Path]]:
    """Crops of photographs and of those that are held out, and the photographs that could be read.

    Raises:
        SystemExit: If too few can be read to hold one out.
    """
    rng, parts, used = random.Random(0), [], []
    for path in photos:
        if (crops := cut(path, per_photo, rng)) is not None:
            parts.append(crops)
            used.append(path)
    if len(parts) < HOLD_OUT:
        raise SystemExit(f"{len(parts)} of {len(photos)} photos can be read; at least {HOLD_OUT} are needed")
    held_out = torch.cat(parts[::HOLD_OUT])
    images = torch.cat([part for i, part in enumerate(parts) if i % HOLD_OUT])
    seen, other = look(images), look(held_out)
    centers = cluster(seen, classes)
    return Crops(images, torch.cdist(seen, centers).argmin(1), held_out, torch.cdist(other, centers).argmin(1)), used

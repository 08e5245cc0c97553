"""Damaged models and media: refused with an `MMSpecError`, or loaded."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from fuzzing import EXTREME_SETTINGS, TALLY, check_no_faults, run_python
from PIL import Image
from safetensors.torch import save_file
from tiny_llamagen import tiny

import mmspec
from mmspec.limits import VOICE_SECONDS
from mmspec.media.audio import read_audio
from mmspec.media.images import read_image
from mmspec.metrics.evaluation.media import read_waveform
from mmspec.metrics.extractors.shapes import load_classifier
from mmspec.metrics.reference import load_reference
from mmspec.vision.shapes.config import WEIGHTS

Door = Callable[[Path], object]


def damage(path: Path, rng: random.Random) -> str:
    """Damages a file in place; returns how."""
    content = bytearray(path.read_bytes())
    how = rng.choice(("cut", "flip", "noise", "length", "zeros", "empty", "header"))
    if how == "cut":
        del content[rng.randrange(len(content)) :]
    elif how == "flip":
        for _ in range(rng.choice((1, 8, 64))):
            content[rng.randrange(min(len(content), rng.choice((16, 1024, len(content)))))] ^= 1 << rng.randrange(8)
    elif how == "noise":
        content = bytearray(rng.randbytes(rng.choice((7, 512, 5000))))
    elif how == "length":
        content[:8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**62, len(content))))
    elif how == "zeros":
        at = rng.randrange(len(content))
        content[at : at + 4096] = bytes(len(content[at : at + 4096]))
    elif how == "empty":
        content.clear()
    else:
        content = content.replace(b'"F32"', rng.choice((b'"F16"', b'"I64"', b'"XXX"', b'""')), 1)
    path.write_bytes(content)
    return how


def resettle(path: Path, rng: random.Random) -> str:
    """Replaces, removes or adds a setting of a JSON file; returns which."""
    settings: Any = json.loads(path.read_text())
    key = rng.choice([*settings, "extra"])
    value = rng.choice(EXTREME_SETTINGS)
    if rng.random() < 0.2:
        settings.pop(key, None)
        value = "removed"
    else:
        settings[key] = value
    path.write_text(json.dumps(settings))
    return f"{path.name}: {key}={value!r}"


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Door]]:
    """A right file or folder of each kind, and what reads it."""
    folder = tmp_path_factory.mktemp("right")
    save_file(tiny().state_dict(), folder / "gpt.safetensors")
    mmspec.load("shapes").save_pretrained(folder / "shapes")
    shutil.copytree(WEIGHTS / "classifier", folder / "classifier")
    np.savez(folder / "x.npz", mu=np.zeros(3), sigma=np.eye(3), features=np.zeros((5, 3)))
    Image.new("RGB", (8, 8)).save(folder / "x.png")
    Image.new("RGB", (8, 8)).save(folder / "x.jpg")
    Image.new("RGB", (8, 8)).save(folder / "x.webp")
    for name in ("x.wav", "x.flac", "x.ogg"):
        soundfile.write(folder / name, np.sin(np.arange(4000) / 9) / 2, 16_000)

    def load(path: Path) -> object:
        return mmspec.load(str(path))

    return {
        "gpt.safetensors": (folder, load),
        "shapes": (folder, load),
        "classifier": (folder, load_classifier),
        "x.npz": (folder, load_reference),
        **{name: (folder, read_image) for name in ("x.png", "x.jpg", "x.webp")},
        **{name: (folder, read_waveform) for name in ("x.wav", "x.flac", "x.ogg")},
        "x.wav ": (folder, lambda path: read_audio(path, VOICE_SECONDS)),
    }


def test_damaged_files(doors: dict[str, tuple[Path, Door]], tmp_path: Path, rng: random.Random, count: int) -> None:
    before = len(TALLY.faults)
    for i in range(count * 2):
        name = rng.choice(list(doors))
        folder, door = doors[name]
        source, path = folder / name.strip(), tmp_path / f"{i}-{name.strip()}"
        how = ""
        if source.is_dir():
            shutil.copytree(source, path)
            inside = rng.choice(sorted(one for one in path.rglob("*") if one.is_file()))
            if inside.suffix == ".json" and rng.random() < 0.7:
                how = resettle(inside, rng)
            elif rng.random() < 0.2:
                inside.unlink()
                how = f"{inside.name} removed"
            else:
                how = f"{inside.name} {damage(inside, rng)}"
        else:
            shutil.copy(source, path)
            how = damage(path, rng)
        run_python(f"damaged {name.strip()}", how, lambda door=door, path=path: door(path))  # type: ignore[misc]
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    check_no_faults(before)

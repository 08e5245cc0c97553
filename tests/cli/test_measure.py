"""`mmspec measure` on existing folders of images."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_pipe import classifier
from PIL import Image
from train_shapes.render import render

from mmspec.cli.app import main
from mmspec.metrics import metric
from mmspec.metrics.extractors import shapes
from mmspec.metrics.extractors.classifier import ClassifierExtractor
from mmspec.metrics.extractors.image import extract
from mmspec.metrics.image.frechet import frechet_distance
from mmspec.vision.png import write_png
from mmspec.vision.shapes.domain import sample_scene
from mmspec.vision.shapes.grammar import describe


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Twelve scenes, the same scenes with noise, and twelve other scenes with other file names."""
    monkeypatch.setattr(shapes, "embedded_classifier", classifier)
    monkeypatch.setattr(metric, "SET_RESAMPLES", 40)
    found = [tmp_path / name for name in ("clean", "noisy", "other")]
    for k, folder in enumerate(found):
        folder.mkdir()
        for i in range(12):
            scene = sample_scene(random.Random(i + 100 * (k == 2)))
            pixels = render(scene).astype(float)
            pixels += np.random.default_rng(i).normal(size=pixels.shape) * 60 * (k == 1)
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            write_png(image, folder / f"{'xyz'[k // 2]}{i:02}.png", {"prompt": describe(scene.caption)})
    return [str(folder) for folder in found]


def measure(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["measure", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_folders_are_measured(folders: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    clean, noisy, other = folders
    found = measure(capsys, clean, noisy, "--metrics", "fd@shapes,attributes", "--reference", other)
    one, two = (row["fd@shapes"] for row in found["quality"])
    features = [
        extract(
            ClassifierExtractor("shapes", classifier()),
            [np.asarray(Image.open(p)) for p in sorted(Path(folder).iterdir())],
        )
        for folder in folders
    ]
    assert one["value"] == pytest.approx(frechet_distance(features[0], features[2]), abs=1e-9)
    assert two["difference"]["value"] == pytest.approx(two["value"] - one["value"], abs=1e-12)
    assert two["n"] == 12 and found["paired"] and found["skipped"] == []
    (Path(clean) / "inner").mkdir()
    (Path(clean) / "._x00.png").write_bytes(b"of a Mac")
    nested = measure(capsys, clean, "--metrics", "attributes")
    assert nested["quality"][0]["attributes"]["n"] == 12
    assert nested["skipped"] == [f"'{clean}' has folders, such as 'inner', whose files are not measured"]
    kept = str(tmp_path / "other.npz")
    assert main(["measure", other, "--metrics", "fd@shapes", "--save-reference", kept]) == 0
    assert capsys.readouterr().out == f"{kept}\n"
    again = measure(capsys, clean, noisy, "--metrics", "fd@shapes,attributes", "--reference", kept)
    assert again["quality"] == found["quality"]
    assert main(["measure", clean, other, "--metrics", "kd@shapes", "--reference", kept]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("|")[1:3] == [" folder".ljust(len(clean) + 2), "  N "] and "difference" not in lines[0]
    assert not measure(capsys, clean, other, "--metrics", "attributes")["paired"]


def test_unreadable_files_are_left_out_of_all_folders(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    clean, noisy, _ = folders
    broken = Path(noisy) / "x03.png"
    broken.write_bytes(b"no image")
    assert main(["measure", clean, noisy, "--metrics", "attributes", "--json"]) == 0
    out, error = capsys.readouterr()
    assert [row["attributes"]["n"] for row in json.loads(out)["quality"]] == [11, 11]
    assert error.startswith(f"mmspec: left out: '{broken}' is not a readable image")
    assert main(["measure", clean, noisy, "--metrics", "attributes", "--strict"]) == 2
    assert "1 of 24 files are unreadable" in capsys.readouterr().err


def test_invalid_arguments_raise(folders: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    clean, _, other = folders
    (tmp_path / "prompts.txt").write_text("a red star\n")
    Image.new("RGB", (64, 64)).save(Path(other) / "a.png")
    Image.new("RGB", (32, 32)).save(Path(clean) / "z.png", pnginfo=None)
    for arguments, message in [
        ([clean, "--metrics", "fd@shapes"], "metric 'fd@shapes' needs --reference"),
        ([clean, "--metrics", "fd@shapes", "--reference", "none"], "--reference: 'none' must be"),
        ([clean, "--metrics", "attributes", "--clip", "x"], "--clip is read by none of the metrics attributes"),
        ([clean, "--metrics", "nll"], "is measured while a model generates, not on files"),
        ([clean, "--metrics", "wer", "--whisper", "x"], "'x'"),
        ([str(tmp_path), "--metrics", "attributes"], "holds no image"),
        (["none", "--metrics", "attributes"], "DIR: 'none' is not a folder"),
        ([other, "--metrics", "attributes"], "a.png' holds no prompt; name a file"),
        ([other, "--metrics", "attributes", "--prompts", str(tmp_path / "prompts.txt")], "has 1 prompts"),
        ([clean, "--metrics", "fd@shapes", "--reference", other], "z.png' is uint8 [32, 32, 3]; all must be"),
        ([clean, "--metrics", "fd@shapes,fd@dinov2", "--dinov2", "x", "--save-reference", "r.npz"], "of one extractor"),
    ]:
        assert main(["measure", *arguments]) == 2
        assert message in capsys.readouterr().err, message

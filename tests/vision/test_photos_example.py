"""`examples/photos`, whole, on tiny photos."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mmspec

MODULES = ("photo_crops", "train_photos", "photo_methods", "photo_tables", "photo_seconds")


@pytest.fixture(autouse=True)
def example(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(root / "examples/photos"))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def photos(folder: Path, count: int) -> Path:
    """Photos of noise around a color of their own; every third one is in a folder of its own."""
    rng = np.random.default_rng(0)
    (folder / "more").mkdir(parents=True)
    for i in range(count):
        color = [40, 200] if i % 2 else [200, 40]
        pixels = rng.integers(0, 40, (70, 90, 3)) + np.array([*color, 90])
        Image.fromarray(pixels.astype(np.uint8)).save(folder / ("more" if i % 3 else ".") / f"{i:02}.png")
    (folder / "notes.txt").write_text("no photo")
    (folder / "broken.jpg").write_bytes(b"no photo")
    return folder


@pytest.mark.slow
def test_a_model_is_trained_continued_loaded_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, methods, tables, seconds = map(import_module, MODULES[1:])
    small: dict[str, Any] = {"batch": 2, "warmup": 1, "cpu_minutes": 1e-6}
    settings = train.Settings(
        classes=2,
        per_photo=1,
        tokenizer=train.TokenizerTraining(steps=2, batch=2, pool=4, warmup=1),
        target=train.GPTTraining(dim=16, n_layer=3, n_head=2, ffn_dim=16, **small),
        draft=train.GPTTraining(dim=8, n_layer=1, n_head=1, ffn_dim=8, **small),
    )
    folder = photos(tmp_path / "in", 24)
    train.train(folder, None, tmp_path / "out", settings, compiled=False)
    first = torch.load(tmp_path / "out/target.pt")["step"]
    more = replace(settings, target=replace(settings.target, cpu_minutes=1e-3))
    trained = train.train(tmp_path / "gone", None, tmp_path / "out", more, compiled=False)  # all crops are cut
    assert torch.load(tmp_path / "out/target.pt")["step"] > first == 1
    train.samples(trained, settings.classes, tmp_path / "samples.png")
    with Image.open(tmp_path / "samples.png") as sheet:
        assert sheet.size == (256, 256)

    model = tmp_path / "out/model"
    lines = (model / "attribution.txt").read_text().splitlines()
    assert len(lines) == 24 and "more/01.png" in lines and "broken.jpg" not in lines
    pipe = mmspec.load(model)
    pipe.set_progress_bar_config(disable=True)
    for recipe in ("scd", "draft"):
        plain, ours = (
            pipe(class_labels=[1], seed=0, temperature=0, recipe=each, output_type="latent").tokens
            for each in ("plain", recipe)
        )
        assert torch.equal(plain, ours) and plain.shape == (1, 256)

    monkeypatch.setattr(methods, "BATCH", 4)
    samples = tmp_path / "samples"
    samples.mkdir()
    jobs = [methods.Job(tables.T1, recipe, 5) for recipe in ("plain", "scd", "scd+lantern:delta=0.1")]
    for job in [replace(jobs[0], images=2), *jobs, replace(tables.REFERENCE, images=4)]:  # the first is continued
        methods.decode(pipe, job, samples)
    whole = dict(np.load(samples / jobs[0].file))
    assert whole["codes"].shape == (5, 256) and set(whole["calls"]) == {256}
    monkeypatch.setattr(sys, "argv", ["", str(model), "--samples", str(samples), "--out", str(tmp_path / "results")])
    tables.main()
    text = (tmp_path / "results/methods.md").read_text()
    assert text.count("`plain`") == 2 and text.count("`scd`") == 2 and text.count("lantern") == 1

    monkeypatch.setattr(seconds, "RECIPES", ("plain", "scd"))
    found = seconds.measure(pipe, batch=2, repeats=1)
    assert [row["recipe"] for row in found] == ["plain", "scd"] and found[0]["ratio"] == [1, 1, 1]


def test_a_token_depends_on_its_neighbors() -> None:
    train = import_module("train_photos")
    torch.manual_seed(0)
    tokenizer = train.ShapesTokenizer(channels=8, kernel=3)
    for name, weights in tokenizer.named_parameters():  # residual blocks begin as the identity
        if "conv2" in name:
            torch.nn.init.normal_(weights)
    one, other = torch.zeros(2, 1, 3, 64, 64).unbind()
    other = other.clone()
    other[..., 32:36, 32:36] = 1
    changed = (tokenizer.encoder(one) != tokenizer.encoder(other)).any(1)[0].nonzero()
    assert changed.amin(0).tolist() == [6, 6] and changed.amax(0).tolist() == [10, 10]


def test_only_photos_that_the_attribution_names_are_used(tmp_path: Path) -> None:
    crops = import_module("photo_crops")
    folder = photos(tmp_path / "in", 6)
    file = tmp_path / "LICENSE.txt"
    file.write_text("All are CC-BY.\n\nmore/01.png CC-BY by A - https://a\n03.png CC0 by B\nabsent.png CC0 by C\n")
    found = crops.photographs(folder, file)
    assert [(path.name, line[-3:]) for path, line in found] == [("03.png", "y B"), ("01.png", "//a")]
    assert [path.name for path, _ in crops.photographs(folder, None)][-1] == "05.png"


def test_classes_are_colors(tmp_path: Path) -> None:
    crops = import_module("photo_crops")
    cut, used = crops.cut_all(sorted(photos(tmp_path / "in", 40).rglob("*.png")), 2, 2)
    assert len(used) == 40 and len(cut.held_out) == 4 and len(cut.images) == 76
    red = cut.images[:, 0].float().mean((1, 2)) > 128
    assert red.any() and not red.all() and (cut.classes[red] != cut.classes[~red][0]).all()
    with pytest.raises(SystemExit, match="3 of 3 photos can be read; at least 20 are needed"):
        crops.cut_all(used[:3], 2, 2)

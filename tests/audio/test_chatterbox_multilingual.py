"""Chatterbox Multilingual from its published folder, against texts, codes and probabilities of the package."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_chatterbox import Levels, chatterbox, multilingual, multilingual_tokenizer

import mmspec
from mmspec.audio.load import preferred_weights
from mmspec.audio.models.codec_lm.chatterbox_multilingual import LANGUAGES, encoder
from mmspec.decoding.target import Target
from mmspec.errors import ArgumentError, ModelError
from mmspec.hub.files import needed_files

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "chatterbox_multilingual.json").read_text())
LENGTH = 10


def load(folder: Path, **config: Any) -> Any:
    return mmspec.load(str(folder), config={"codec": Levels(6561), **config})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("mmspec.audio.models.codec_lm.chatterbox.MAX_CODES", LENGTH)
    return multilingual(tmp_path / "multilingual")


def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for packages of languages, with the words that the real ones found when the numbers were recorded."""
    cut = SimpleNamespace(cut=lambda text: [text[i : i + 2] for i in range(0, len(text), 2)])
    monkeypatch.setitem(sys.modules, "spacy_pkuseg", SimpleNamespace(pkuseg=lambda: cut))
    kakasi = SimpleNamespace(convert=GOLDEN["kakasi"].__getitem__)
    monkeypatch.setitem(sys.modules, "pykakasi", SimpleNamespace(kakasi=lambda: kakasi))
    monkeypatch.setitem(sys.modules, "russian_text_stresser", None)


@pytest.mark.parametrize("language", GOLDEN["prepared"])
def test_texts_are_prepared_as_in_the_package(folder: Path, language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packages(monkeypatch)
    seen: list[str] = []

    class Recorder:
        def encode(self, text: str) -> Any:
            seen.append(text)
            return multilingual_tokenizer().encode(text)

    encode = encoder(Recorder(), language, folder)  # type: ignore[arg-type]
    for text, prepared in GOLDEN["prepared"][language].items():
        encode(text)
        assert seen[-1] == prepared


def test_hebrew_stays_as_it_is_where_dicta_is_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Dicta` requires the file of a model, which the package does not pass."""

    class Dicta:
        def __init__(self, model_path: str) -> None:
            raise AssertionError

    monkeypatch.setitem(sys.modules, "dicta_onnx", SimpleNamespace(Dicta=Dicta))
    tokenizer = multilingual_tokenizer()
    text = "[he]\u05e9\u05dc\u05d5\u05dd."
    assert encoder(tokenizer, "he", folder)("\u05e9\u05dc\u05d5\u05dd") == tokenizer.encode(text).ids


def target_of(pipe: Any, text: str, rows: int, slack: int = 0, settings: Any = None) -> Target:
    frontend = pipe.adapter.frontend
    prompt = frontend.prompt(text)
    settings = settings or frontend.settings(replace(frontend.sampling, top_p=0.9))
    before = torch.full((rows, 1), frontend.start)
    found: Target = frontend.codec_lm.target(
        [prompt.cond] * rows, [prompt.uncond] * rows, LENGTH, slack, settings, before
    )
    return found


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=4", "recycle:window=3"])
def test_greedy_codes_are_the_packages(folder: Path, recipe: str) -> None:
    """Two texts of different lengths in a batch, guided."""
    for language in ("fr", "de"):
        pipe = load(folder, language=language)
        cases = [case for case in GOLDEN["cases"] if case["language"] == language]
        for case in cases:
            assert [255, *pipe.adapter.frontend._encode(case["text"]), 0] == case["ids"]
        out = pipe([case["text"] for case in cases], recipe=recipe, temperature=0, seed=0)
        assert [each.tokens[0].tolist() for each in out] == [case["codes"] for case in cases]
        assert all(each.truncated for each in out)


def distance(pipe: Any, case: Any, settings: Any = None) -> float:
    """The largest difference of probabilities from the recorded ones."""
    target, found = target_of(pipe, case["text"], 1, settings=settings), 0.0
    frontend = pipe.adapter.frontend
    sampling = (settings or frontend.settings(replace(frontend.sampling, top_p=0.9))).sampling
    z = [target.prefill().cond[:, -1]]
    z += list(target.forward(torch.tensor([case["codes"][:3]]), np.zeros(1, dtype=np.int64)).cond.unbind(1))
    for logits, recorded in zip(z, case["probs"], strict=True):
        p, order = (logits / sampling.temperature).softmax(-1)[0].sort(descending=True)
        p = torch.where(p.cumsum(0) - p < sampling.top_p, p, 0)
        p = torch.zeros_like(p).scatter(0, order, p / p.sum())
        found = max(found, abs(int((p > 0).sum()) - recorded["count"]) / 100)
        found = max(found, *(abs(float(p[int(i)]) - value) for i, value in recorded["best"].items()))
    return found


def test_probabilities_are_the_packages(folder: Path) -> None:
    """After guidance, penalty, temperature, min-p and top-p; a twin without the penalty is found."""
    pipe = load(folder, language="fr")
    for case in GOLDEN["cases"][:2]:
        assert distance(pipe, case) < 2e-5
        settings = pipe.adapter.frontend.settings(replace(pipe.adapter.sampling, top_p=0.9))
        broken = type(settings)(settings.processors[1:], settings.sampling, settings.guidance)
        assert distance(pipe, case, broken) > 1e-3


def test_the_published_repository_has_both_models(folder: Path, tmp_path: Path) -> None:
    """Without a language, it is the English one; a language and `t3_model` choose what is downloaded."""
    chatterbox(folder)
    assert load(folder).adapter.frontend.options == ("exaggeration",)
    assert "language" in load(folder, language="fr", exaggeration=0.7).adapter.frontend.options
    v2, v3 = "t3_mtl23ls_v2.safetensors", "t3_mtl23ls_v3.safetensors"
    files = ["t3_cfg.safetensors", v2, v3, "s3gen.pt", "ve.pt", "conds.pt", "tokenizer.json"]
    for config, weights in (
        (None, "t3_cfg.safetensors"),
        ({"language": "fr"}, v3),
        ({"language": "fr", "t3_model": "v2"}, v2),
    ):
        assert set(needed_files(files, None, preferred_weights(config))) == {weights, "conds.pt", "tokenizer.json"}
    with pytest.raises(ArgumentError, match="t3_model='v2' is not allowed; the folder has v3"):
        load(folder, language="fr", t3_model="v2")
    (folder / v3).rename(folder / v2)
    assert load(folder, language="fr", t3_model="v2").adapter.codec.codebook_size == 6561


def test_errors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(LANGUAGES) == 23
    with pytest.raises(ArgumentError, match=r"language=None is not allowed; it is one of ar, da, .*, zh"):
        load(folder)
    with pytest.raises(ArgumentError, match="'codec', 'draft_model', 'voice', 'language', 't3_model', 'exagger"):
        load(folder, language="fr", style="x")
    monkeypatch.setitem(sys.modules, "pykakasi", None)
    with pytest.raises(ArgumentError, match="language='ja' needs the package pykakasi; run: pip install pykakasi"):
        load(folder, language="ja")
    packages(monkeypatch)
    (folder / "Cangjie5_TC.json").write_text("{}")
    with pytest.raises(ModelError, match="is not a list of characters and their codes"):
        load(folder, language="zh")
    (folder / "Cangjie5_TC.json").unlink()
    with pytest.raises(ModelError, match="is missing, which Chinese texts need"):
        load(folder, language="zh")

"""Chatterbox Turbo from its published folder, against codes and probabilities of the package's own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny_chatterbox import TURBO, Levels, state, turbo
from torch import Tensor

import mmspec
from mmspec.audio.models.codec_lm import chatterbox_turbo
from mmspec.audio.models.codec_lm.chatterbox import normalize_punctuation
from mmspec.audio.models.codec_lm.chatterbox_turbo import PUNCTUATION, PenaltyAfterTruncation, config_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.target import Target
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.hub.files import needed_files
from mmspec.sampling.params import SamplingParams
from mmspec.testing.adapters import check_samples

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "chatterbox_turbo.json").read_text())
LENGTH = len(GOLDEN["greedy"]["two"])


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(chatterbox_turbo, "MAX_CODES", LENGTH)
    return mmspec.load(str(turbo(tmp_path / "turbo")), config={"codec": Levels(6561)})


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=4", "recycle:window=3", "layer-skip:layers=1"])
def test_greedy_codes_are_the_packages(pipe: Any, recipe: str) -> None:
    """Two texts of different lengths in a batch."""
    out = pipe(list(GOLDEN["greedy"]), recipe=recipe, temperature=0, seed=0)
    assert [each.tokens[0].tolist() for each in out] == list(GOLDEN["greedy"].values())


def target_of(pipe: Any, text: str, rows: int, sampling: SamplingParams, slack: int = 0) -> Target:
    frontend = pipe.adapter.frontend
    conds = [frontend.prompt(text).cond] * rows
    before = torch.full((rows, 1), frontend.start)
    found: Target = frontend.codec_lm.target(conds, None, LENGTH, slack, frontend.settings(sampling), before)
    return found


@pytest.mark.parametrize("text", GOLDEN["tokens"])
def test_probabilities_are_the_packages(pipe: Any, text: str) -> None:
    """The penalty comes after temperature, top-k and top-p; the start token counts for the first code only."""
    settings = GOLDEN["settings"]
    sampling = SamplingParams(settings["temperature"], settings["top_k"], settings["top_p"])
    target = target_of(pipe, text, 1, sampling)
    logits = [target.prefill().cond[:, -1]]
    tokens = torch.tensor([GOLDEN["tokens"][text]])
    logits += list(target.forward(tokens[:, :3], np.zeros(1, dtype=np.int64)).cond.unbind(1))
    for z, recorded in zip(logits, GOLDEN["probs"][text], strict=True):
        p = z.softmax(-1)[0]
        assert sorted(recorded) == sorted(str(i) for i in p.nonzero()[:, 0].tolist())
        np.testing.assert_allclose([float(p[int(i)]) for i in recorded], list(recorded.values()), atol=1e-5)


def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Weights of four codes."""
    monkeypatch.setattr(chatterbox_turbo, "START_SPEECH", 3)
    monkeypatch.setattr(chatterbox_turbo.ChatterboxTurbo, "start", 3)
    full = state(TURBO)
    own = {name: full[name][:4].contiguous() for name in full if name.startswith("speech_")}
    return {**own, "speech_emb.weight": own["speech_emb.weight"] * 3}


def test_samples_follow_the_target_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chatterbox_turbo, "MAX_CODES", LENGTH)
    folder = turbo(tmp_path / "small")
    save_file({**state(TURBO), **small(monkeypatch)}, folder / "t3_turbo_v1.safetensors")
    voice = {"speaker_emb": torch.linspace(-1, 1, 8)[None]}
    torch.save({"t3": voice}, folder / "conds.pt")
    pipe = mmspec.load(str(folder), config={"codec": Levels(6561)})

    def make(rows: int, window: int) -> Target:
        return target_of(pipe, "two", rows, SamplingParams(1.0, 3, 1.0), window)

    found = check_samples(make, Layout(4), "scd:window=3", SamplingParams(1.0), samples=4_000)
    assert found.ok and found.tokens_per_call > 1, found


def test_a_penalty_before_truncation_is_another_distribution() -> None:
    logits = torch.tensor([[2.0, 1.9, 0.1]])
    prefix = torch.tensor([[9, 0]])
    p = PenaltyAfterTruncation(1.0, 1, 1.0, 1.5)(prefix, logits).softmax(-1)
    assert p[0].tolist() == [1, 0, 0]  # a penalty before top-k would keep token 1


def test_nano_sizes_files_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nano is a smaller GPT-2 of another file name; sizes are read off the tensors."""
    folder = turbo(tmp_path / "nano", "t3_nano_v1.safetensors")
    with pytest.raises(PromptError, match="1001 codes do not fit into 64"):
        mmspec.load(str(folder), config={"codec": Levels(6561)})("two")
    medium = {"tfmr.wpe.weight": torch.empty(8196, 1024, device="meta")}
    config = config_of({**medium, **{f"tfmr.h.{i}.ln_1.weight": torch.empty(0) for i in range(24)}})
    assert (config.n_layer, config.n_head, config.n_embd, config.n_positions) == (24, 16, 1024, 8196)
    assert (config.activation_function, config.layer_norm_epsilon) == ("gelu_new", 1e-5)
    with pytest.raises(ArgumentError, match="'codec', 'draft_model', 'voice'"):
        mmspec.load(str(folder), config={"codec": Levels(6561), "exaggeration": 1})
    (folder / "t3_nano_v1.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError):
        mmspec.load(str(folder), config={"codec": Levels(6561)})
    files = ["t3_turbo_v1.safetensors", "s3gen_meanflow.safetensors", "ve.safetensors", "conds.pt", "vocab.json"]
    assert set(needed_files(files, None)) == {"t3_turbo_v1.safetensors", "conds.pt", "vocab.json"}


def test_punctuation_is_normalized_as_in_the_package() -> None:
    """Turbo keeps dots, dashes between blanks and semicolons, which Chatterbox replaces."""
    assert normalize_punctuation("well... a - b; \u201cc\u201d", PUNCTUATION) == 'Well... a - b; "c".'
    assert normalize_punctuation("so\u2026 no:  yes", PUNCTUATION) == "So,  no, yes."


def test_tokenizers_run_no_code_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And ask no question about it, to which the answer here is yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = turbo(tmp_path / "turbo")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise AssertionError('this was run')")
    with pytest.raises(ArgumentError, match=r"tokenizer .* cannot be loaded: .*trust_remote_code"):
        mmspec.load(str(folder), config={"codec": Levels(6561)})

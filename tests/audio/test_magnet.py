"""MAGNeT from its published folder, against codes and audio of its own code; its steps; its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_magnet as tiny
import torch
from tiny_codecs import encodec
from tiny_music import FRAME, long_musicgen, tokenizer

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.magnet.blocks import MagnetBlocks
from mmspec.audio.models.magnet.checkpoint import read_magnet
from mmspec.decoding.batch import BatchState
from mmspec.decoding.layout import Layout
from mmspec.errors import ArgumentError, ModelError
from mmspec.hub.published import refuse_layout

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "magnet.json").read_text())
TEXTS = GOLDEN["texts"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("magnet"))


def load(folder: Path, **options: Any) -> Any:
    return mmspec.load(str(folder), config={"text_encoder": str(folder / "t5"), "steps": tiny.STEPS, **options})


def call(settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "temperature": settings["temp"],
        "top_p": settings["top_p"] or 1.0,
        "guidance_scale": settings["max_cfg_coef"],
        "seed": [0, 1],
    }


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=["defaults", "no-top-p"])
def test_codes_are_those_of_the_original(folder: Path, case: dict[str, Any]) -> None:
    outputs = load(folder)(TEXTS, **call(case["settings"]))
    for output, codes in zip(outputs, case["codes"], strict=True):
        assert output.tokens[0].T.tolist() == codes
    assert outputs.stats.target_calls == sum(tiny.STEPS) and outputs[0].audio.shape == (1, 24 * 8)


def test_audio_is_that_of_the_original(folder: Path) -> None:
    audio = load(folder)(TEXTS[0], **{**call(GOLDEN["cases"][0]["settings"]), "seed": 0}).audio
    np.testing.assert_allclose(audio[0], GOLDEN["audio"], atol=2e-5)


def test_drafted_steps_give_the_same_codes_in_fewer_calls(folder: Path) -> None:
    settings: dict[str, Any] = {"temperature": 0.3, "guidance_scale": 2.0, "seed": 4}
    plain, ahead = load(folder)(TEXTS, **settings), load(folder, ahead=3)(TEXTS, **settings)
    for one, other in zip(plain, ahead, strict=True):
        assert torch.equal(one.tokens[0], other.tokens[0])
    assert ahead.stats.target_calls < plain.stats.target_calls == sum(tiny.STEPS)


def test_steps_count_what_is_committed(folder: Path) -> None:
    seen: list[int] = []
    load(folder)(TEXTS[1], seed=5, on_step=lambda step: seen.append(step.committed))
    assert seen == sorted(seen) and seen[-1] == 24 * tiny.BOOKS


def test_sampling_keeps_the_most_likely_codes(folder: Path) -> None:
    pipe = load(folder, steps=[2, 1, 1])

    def first_step(**settings: Any) -> torch.Tensor:
        """Codes [T] of the first codebook, of which all spans but one are kept."""
        seen = list[torch.Tensor]()
        pipe(TEXTS[0], on_step=lambda step: seen.append(step.tokens[0][:, 0]), **settings)
        return seen[0]

    likely = first_step(seed=0, temperature=0)
    for options, alike in (({"top_k": 1, "top_p": 1.0}, True), ({"top_p": 1e-6}, True), ({"top_p": 1.0}, False)):
        sampled = first_step(seed=1, temperature=100.0, **options)
        both = (likely >= 0) & (sampled >= 0)
        assert both.sum() >= 18 and torch.equal(likely[both], sampled[both]) == alike


def test_the_codec_may_be_named_or_given(folder: Path, tmp_path: Path) -> None:
    for name in ("state_dict.bin", "t5"):
        (tmp_path / name).symlink_to(folder / name)
    with pytest.raises(ModelError, match="has no compression_state_dict.bin; name an EnCodec with tokenizer="):
        load(tmp_path)
    tiny.codec().save_pretrained(tmp_path / "encodec")
    torch.save({"pretrained": str(tmp_path / "encodec"), "exported": True}, tmp_path / "compression_state_dict.bin")
    own, named = load(folder)(TEXTS[0], seed=0), load(tmp_path)(TEXTS[0], seed=0)
    np.testing.assert_allclose(named.audio, own.audio, atol=1e-5)
    with pytest.raises(ModelError, match=r"the codec has \d+ codebooks"):
        load(folder, codec=codec_of(encodec(use_causal_conv=False, target_bandwidths=[1.0])))


def test_refusals(folder: Path) -> None:
    pipe = load(folder)
    with pytest.raises(ArgumentError, match="recipe='scd' is not possible here: a masked model fills places"):
        pipe(TEXTS[0], recipe="scd")
    with pytest.raises(ArgumentError, match=r"config has 'step', which MAGNeT does not have \(did you mean 'steps'"):
        load(folder, step=1)
    with pytest.raises(ArgumentError, match=r"steps=\[1\] is not allowed; give a number for each of 3"):
        load(folder, steps=[1])
    with pytest.raises(ArgumentError, match=r"seconds=3 is not allowed; this model was trained for 0\.2"):
        pipe.with_duration(3)
    with pytest.raises(ArgumentError, match="ahead=0 is not allowed"):
        load(folder, ahead=0)
    with pytest.raises(ArgumentError, match="measure_entropy is not possible for MAGNeT"):
        pipe(TEXTS[0], measure_entropy=True)
    with pytest.raises(ArgumentError, match="codec='encodec' is not allowed; pass a mmspec.audio.codec.Codec"):
        load(folder, codec="encodec")
    with pytest.raises(ArgumentError, match="name the folder of T5 with config="):
        mmspec.load(str(folder), processor="t5")
    refuse_layout("facebook/magnet-small-10secs", ["state_dict.bin", "compression_state_dict.bin"], None, None, ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("transformer_lm_magnet", "transformer_lm"), "lm_model is 'transformer_lm', not 'transformer_lm_magnet'"),
        (("norm_first: true", "norm_first: false"), "transformer_lm.norm_first is 'False', not True"),
        (("num_heads: 4", "num_heads: 5"), "num_heads=5, which does not divide its width 32"),
        (("segment_duration: 0.2", "segment_duration: x"), "dataset.segment_duration='x'; it must be a number"),
        (("norm_first: true", "norm_first: *a"), r"aliases \(\*a\) are not allowed"),
        (("lm_model: transformer_lm_magnet", "- 1"), "xp.cfg of .* (cannot be read|contains a list)"),
    ],
)
def test_other_settings_are_refused(folder: Path, tmp_path: Path, change: tuple[str, str], message: str) -> None:
    torch.save({"best_state": tiny.state(), "xp.cfg": tiny.SETTINGS.replace(*change)}, tmp_path / "state_dict.bin")
    with pytest.raises(ModelError, match=message):
        mmspec.load(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("ratios: [4, 2]", "ratios: [0]"), r"ratios=\[0\]; they must be a few factors"),
        (("lstm: 2", "lstm: 1000000000"), "num_lstm_layers"),
        (("pad_mode: constant", "pad_mode: x"), "pad_mode='x'; it must be one of constant, reflect, replicate"),
        (("encodec: {causal: false}", "encodec: 1"), "is not an EnCodec"),
        (("sample_rate: 1000", "sample_rate: 1000000000"), "spans of 3 frames of its codec; they must be 1 to 10000"),
        (("n_filters: 4", "n_filters: 5"), "wrong shape"),
    ],
)
def test_other_codecs_are_refused(folder: Path, tmp_path: Path, change: tuple[str, str], message: str) -> None:
    (tmp_path / "state_dict.bin").symlink_to(folder / "state_dict.bin")
    torch.save(
        {"best_state": tiny.codec_state(), "xp.cfg": tiny.CODEC_SETTINGS.replace(*change)},
        tmp_path / "compression_state_dict.bin",
    )
    with pytest.raises(ModelError, match=message):
        mmspec.load(str(tmp_path), config={"text_encoder": str(folder / "t5"), "steps": tiny.STEPS})


def test_broken_files_are_refused(folder: Path, tmp_path: Path) -> None:
    weights = tiny.state()
    del weights["out_norm.weight"]
    for content, message in (
        ({"best_state": weights, "xp.cfg": tiny.SETTINGS}, "missing: out_norm.weight"),
        ({"best_state": weights | {5: weights["emb.0.weight"]}, "xp.cfg": tiny.SETTINGS}, "unknown: 5"),
        ({"xp.cfg": tiny.SETTINGS}, "is not a file of audiocraft"),
        ({"pretrained": "x"}, "it has no weights"),
    ):
        torch.save(content, tmp_path / "state_dict.bin")
        with pytest.raises(ModelError, match=message):
            mmspec.load(str(tmp_path))


@pytest.fixture(scope="module")
def music(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A MusicGen of the same codes for which the MAGNeT drafts, loaded from folders."""
    where = tmp_path_factory.mktemp("musicgen")
    long_musicgen(codebooks=tiny.BOOKS).save_pretrained(where)
    pipe = mmspec.load(str(where), processor=tokenizer(), config={"draft_model": str(folder)})
    return pipe.with_duration(10 * FRAME)


def test_musicgen_verifies_blocks_of_magnet(music: Any) -> None:
    call: dict[str, Any] = {"temperature": 0, "guidance_scale": 3.0, "seed": 0}
    plain, masked = music(TEXTS, recipe="plain", **call), music(TEXTS, recipe="masked:window=4", **call)
    for one, other in zip(plain, masked, strict=True):
        assert torch.equal(one.tokens[0], other.tokens[0])
    assert masked.stats.draft_calls > 0
    sampled: dict[str, Any] = {"temperature": 20.0, "recipe": "masked:window=3"}  # where both are nearly uniform
    both, alone = music(TEXTS, seed=4, **sampled), music(TEXTS[1], seed=5, **sampled)
    assert torch.equal(both[1].tokens[0], alone.tokens[0])
    assert alone.stats.tokens_per_call > 1.5


def test_blocks_read_the_known_frames_and_nothing_else(music: Any) -> None:
    model, delays, frames, count = music.adapter.draft_model, [0, 1, 2], 10, 3
    text, mask = torch.randn(2, 4, tiny.TEXT, generator=torch.Generator().manual_seed(0)), torch.ones(2, 4).bool()
    blocks = MagnetBlocks(model, text, mask, delays, frames)
    layout = Layout(frames + 2, cell=(tiny.BOOKS,), pad=tiny.CODES)
    columns = torch.randint(tiny.CODES, (2, 9, tiny.BOOKS), generator=torch.Generator().manual_seed(1))
    state = BatchState([0, 1], layout, count + 1, torch.device("cpu"))
    state.commit(columns[:, :6], np.array([5, 3]))  # rows of six and four columns, and two that were not accepted
    found = blocks.block(state, count)
    for row, length in enumerate((6, 4)):
        for k, d in enumerate(delays):
            codes = torch.full((1, tiny.BOOKS, frames), tiny.CODES)
            for book in range(k + 1):
                known = length - delays[book]
                codes[0, book, :known] = columns[row, delays[book] : length, book]
            logits = model(codes, model.read_text(text, mask)[[row]], mask[[row]], torch.tensor([k]))
            wanted = logits[0, k, length - d : length - d + count]
            torch.testing.assert_close(found[row, : len(wanted), k], wanted, atol=1e-5, rtol=1e-5)


def test_a_magnet_of_other_codes_does_not_draft(folder: Path) -> None:
    magnet, _ = read_magnet(folder, "cpu", torch.float32)
    with pytest.raises(ModelError, match="draft_model has 3 codebooks, the model 4; they belong to different families"):
        mmspec.load(long_musicgen(), processor=tokenizer(), config={"draft_model": magnet})
    pipe = mmspec.load(long_musicgen(), processor=tokenizer()).with_duration(5 * FRAME)
    with pytest.raises(ArgumentError, match="recipe 'masked' needs a masked model of the same codes as draft_model"):
        pipe(TEXTS[0], recipe="masked")

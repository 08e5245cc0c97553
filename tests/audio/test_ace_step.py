"""The 5 Hz language model of ACE-Step 1.5, against prompts, codes and probabilities of its repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import published
import pytest
import tiny_ace_step
import tiny_codecs
import torch
from part_runs import decode_rows, distance_of_probs
from safetensors.torch import save_file

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.flat.ace_step import AceStepAdapter, Song, code_ids
from mmspec.errors import ArgumentError, ModelError, PromptError, UnknownNameError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "ace_step.json").read_text())
METADATA = {name: value for name, value in GOLDEN["metadata"].items() if name != "duration"}


class Codec:
    """Four samples per code, its number."""

    sampling_rate, channels, hop, codebooks, codebook_size = 20, 1, 4, 1, tiny_ace_step.CODES

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float().repeat_interleave(4, -1) / 64

    def tables(self) -> list[torch.Tensor]:
        return [torch.arange(self.codebook_size)[:, None].float()]


def pipeline(song: dict[str, str], **more: Any) -> Any:
    options = {"style": "ace-step", "codec": Codec(), "metadata": METADATA}
    options |= {name: song[name] for name in ("lyrics", "negative_prompt") if name in song} | more
    made = mmspec.load(tiny_ace_step.model(), processor=tiny_ace_step.tokenizer(), config=options)
    return made.with_duration(10)


def parts() -> list[Any]:
    return [pipeline(song).read(song["caption"], None).parts[0] for song in GOLDEN["songs"]]


def test_prompts_are_the_originals() -> None:
    assert [list(part) for part in parts()] == GOLDEN["prompts"]


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "recycle:window=4", "scd:window=6", "tree:branch=2/1,layers=1"])
def test_greedy_codes_are_the_originals(recipe: str) -> None:
    """Three songs in a batch, guided; prompts of several lengths on both sides. 10 seconds are 50 codes, and no end."""
    adapter, params = pipeline(GOLDEN["songs"][0]).adapter, SamplingParams(0.0, guidance_scale=2.0)
    found = decode_rows(adapter, parts(), parse(recipe), params, [0, 1, 2])
    assert found.tolist() == GOLDEN["greedy"] and len(GOLDEN["greedy"][0]) == 50
    assert torch.equal(adapter.codes(found[0]), found[:1])


def test_probabilities_are_the_originals() -> None:
    """Truncation comes before the temperature; the twin truncates after it, as other models do."""
    own, (adapter, rows) = GOLDEN["sampling"], (pipeline(GOLDEN["songs"][0]).adapter, parts())
    sampling = SamplingParams(own["temperature"], own["top_k"], own["top_p"], own["cfg_scale"])

    def distance(params: SamplingParams, last: SamplingParams | None) -> float:
        recorded = zip(rows, GOLDEN["sampled"], GOLDEN["probs"], strict=True)
        return max(distance_of_probs(adapter, part, params, ids, p, last) for part, ids, p in recorded)

    assert distance(sampling, None) < 1e-5
    assert adapter.sampling == SamplingParams(0.85, 0, 0.9, 2.0)
    guided = SamplingParams(own["temperature"], guidance_scale=own["cfg_scale"])
    assert distance(guided, SamplingParams(own["temperature"], own["top_k"], own["top_p"])) > 1e-3


@pytest.mark.parametrize("name", ["acestep-5hz-lm-1.7b", "acestep-5hz-lm-0.6b"])
def test_folders_like_the_published_ones(name: str, tmp_path: Path) -> None:
    """They name the class of a decoder without its head, which is its embedding; one has the names of such a class."""
    wanted, weights = published.read(name, "config"), published.read(name, "weights")
    model = tiny_ace_step.model()
    model.config.tie_word_embeddings = wanted["tie_word_embeddings"]
    model.tie_weights()
    state = {weights["prefix"] + each: value for each, value in model.model.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors", weights["metadata"])
    config = model.config.to_dict() | {"architectures": wanted["architectures"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tiny_ace_step.tokenizer().save_pretrained(tmp_path)
    song = GOLDEN["songs"][0]
    options = {"style": "ace-step", "codec": Codec(), "metadata": METADATA}
    found, own = (
        mmspec.load(given, processor=read, config=dict(options)).with_duration(10)(song["caption"], seed=0).tokens[0]
        for given, read in ((str(tmp_path), None), (model, tiny_ace_step.tokenizer()))
    )
    assert torch.equal(found, own)


def test_calls_and_errors() -> None:
    pipe = pipeline(GOLDEN["songs"][1])
    out = pipe("a song", seed=0)
    assert out.tokens[0].shape == (50,) and not out.truncated
    assert pipe.with_duration(12).adapter.read("a song", None).parts[0] != pipe.adapter.read("a song", None).parts[0]
    with pytest.raises(ArgumentError, match="this model makes 10 to 600 seconds"):
        pipe.with_duration(601)
    with pytest.raises(PromptError, match="2500 are for codes"):
        pipe.with_duration(500)("a song")
    with pytest.raises(ArgumentError, match="'tags', which ACE-Step does not have"):
        pipeline(GOLDEN["songs"][0], tags="x")
    with pytest.raises(ArgumentError, match="it needs bpm, keyscale, timesignature"):
        pipeline(GOLDEN["songs"][0], metadata={"bpm": 120})
    for wrong in ({"lyrics": 5}, {"negative_prompt": 5}, {"metadata": METADATA | {"bpm": object()}}):
        with pytest.raises(ArgumentError, match=f"{next(iter(wrong))}.*=.* is not allowed"):
            pipeline(GOLDEN["songs"][0], **wrong)
    assert pipeline(GOLDEN["songs"][0], metadata=METADATA | {"bpm": "\u00b2"}).read("a song", None).parts
    for name, value in (("min_p", 0.1), ("typical_p", 0.9)):
        with pytest.raises(ArgumentError, match=f"{name}={value} is not possible: this model.s sampling"):
            pipe("a song", **{name: value})
    with pytest.raises(ArgumentError, match="seconds='10' is not allowed; it must be a number"):
        pipe.with_duration("10")
    with pytest.raises(UnknownNameError, match="did you mean 'ace-step'"):
        mmspec.load(
            tiny_ace_step.model(), processor=tiny_ace_step.tokenizer(), config={"style": "ace", "codec": Codec()}
        )
    with pytest.raises(ModelError, match="has no '<.audio_code_0.>'"):
        code_ids(type("T", (), {"unk_token_id": 0, "convert_tokens_to_ids": lambda *_: 0})())
    with pytest.raises(ModelError, match="the codec has 1 codebooks of 16, the model 1 of 40"):
        AceStepAdapter(
            tiny_ace_step.model(), tiny_ace_step.tokenizer(), codec_of(tiny_codecs.xcodec2()), Song("", METADATA)
        )

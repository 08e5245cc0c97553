"""The talkers of Qwen3-Omni and Qwen2.5-Omni in the `generate` of their models."""

from __future__ import annotations

from typing import Any

import published
import pytest
import tiny_omni as tiny
import torch
from torch import Tensor
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeTalkerForConditionalGeneration
from two_samples import chi_square

import mmspec
from mmspec.audio.models.qwen3_omni import decoding
from mmspec.audio.models.qwen3_omni.decoding import Qwen3OmniDepth, generate_ahead
from mmspec.errors import ArgumentError
from mmspec.hf.causal_target import CausalTarget
from mmspec.sampling.params import SamplingParams

GREEDY: dict[str, Any] = {"thinker_max_new_tokens": 6, "thinker_eos_token_id": tiny.END, "thinker_do_sample": False}
OURS: dict[str, Any] = {"talker_custom_generate": mmspec.generate, "talker_seed": 0}
NOTES = "ignore:Passing `repetition_penalty` with `inputs_embeds`"


@pytest.mark.releases
@pytest.mark.filterwarnings(NOTES)
@pytest.mark.parametrize(
    "how",
    [
        {**OURS, "talker_recipe": "scd:window=3"},
        {"talker_custom_generate": generate_ahead, "talker_recipe": "scd", "talker_ahead": 2},
        {"talker_custom_generate": generate_ahead, "talker_recipe": "recycle", "talker_ahead": 3},
    ],
    ids=["depth", "ahead", "recycle"],
)
def test_qwen3_greedy_matches_its_own_generate(how: dict[str, Any]) -> None:
    """Three turns of different lengths, with its repetition penalty and excluded ids; one row ends early."""
    model = tiny.qwen3(3, codes=5, spread=0.3)
    spy, asked = tiny.Spy(model), {**tiny.prompts(), **GREEDY, "talker_max_new_tokens": 10, "talker_do_sample": False}
    _, own_waves = model.generate(**asked)
    own, own_frames, eos = spy.found.sequences, spy.frames(), model.config.talker_config.codec_eos_token_id
    ended = (own == eos).any(1)
    assert ended.any() and not ended.all()
    _, waves = model.generate(**asked, **how)
    assert torch.equal(spy.found.sequences, own)
    running = ((own[:, :-1] == eos).cumsum(1) == 0)[..., None]
    assert torch.equal(spy.frames() * running, own_frames * running)
    for ours, theirs in zip(waves, own_waves, strict=True):
        torch.testing.assert_close(ours, theirs)


def numbered(sequences: Tensor, frames: Tensor, size: int) -> Tensor:
    """A number int64 [B] for the codes of each row: first tokens up to the end, other codes of the frames before it.

    Args:
        sequences: int64 [B, N], first tokens.
        frames: int64 [B, N - 1, K].
        size: Tokens, the last of which is the end.
    """
    running = (sequences == size - 1).cumsum(1) == 0
    before = torch.nn.functional.pad(running[:, :-1], (1, 0), value=True)
    firsts = sequences.masked_fill(~before, size)
    rest = frames[..., 1:].masked_fill(~running[:, :-1, None], size).flatten(1)
    tokens = torch.cat([firsts, rest], dim=1)
    return (tokens * (size + 1) ** torch.arange(tokens.shape[1])).sum(1)


def qwen3_samples(count: int, **how: Any) -> Tensor:
    model = tiny.qwen3(1, codes=4, codebooks=2, spread=0.12)
    spy = tiny.Spy(model)
    torch.manual_seed(0)
    asked = {name: value[:1].expand(count, -1) for name, value in tiny.prompts([[3, 9]]).items()}
    more = {"talker_max_new_tokens": 3, "talker_top_k": 0, "talker_temperature": 1.3, "talker_repetition_penalty": 1.5}
    model.generate(**asked, **GREEDY, **more, **how)
    return numbered(spy.found.sequences, spy.frames(), 4)


@pytest.mark.filterwarnings(NOTES)
@pytest.mark.parametrize(
    "how",
    [
        {**OURS, "talker_recipe": "scd:window=2"},
        {"talker_custom_generate": generate_ahead, "talker_recipe": "scd", "talker_ahead": 2, "talker_seed": 0},
    ],
    ids=["depth", "ahead"],
)
def test_qwen3_samples_follow_its_own(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples of 3,000; and the predictor without its top-p must be told apart."""
    count = 3_000
    own = qwen3_samples(count)

    def compared(ours: Tensor) -> tuple[float, float]:
        one, two = torch.cat([own, ours]).unique(return_inverse=True)[1].split(count)
        return chi_square(one, two)

    found, limit = compared(qwen3_samples(count, **how))
    assert found < limit
    monkeypatch.setattr(decoding, "TOP_P", 1.0)
    found, limit = compared(qwen3_samples(count, **how))
    assert found > 1.5 * limit


def test_the_talker_of_the_published_size() -> None:
    config = Qwen3OmniMoeConfig.from_dict(published.read("qwen3-omni-30b-a3b-instruct", "config")).talker_config
    config.text_config.num_hidden_layers = 1
    with torch.device("meta"):
        talker = Qwen3OmniMoeTalkerForConditionalGeneration(config)
    depth = Qwen3OmniDepth(talker)
    assert (depth.codebooks, depth.vocab_size, talker.codec_head.out_features) == (16, 2048, 3072)
    shapes = {name: tuple(value.shape) for name, value in talker.state_dict().items()}
    assert shapes["model.codec_embedding.weight"] == (3072, 1024)
    assert shapes["code_predictor.model.codec_embedding.14.weight"] == (2048, 1024)
    assert shapes["code_predictor.lm_head.14.weight"] == (2048, 1024)
    assert decoding.depth_sampling(talker, True) == SamplingParams(1.0, 50, 0.8)


def qwen2_5_call(model: Any, count: int = 0, length: int = 12, **more: Any) -> Tensor:
    spy, asked = tiny.Spy(model), tiny.prompts()
    if count:
        asked = {name: value[:1].expand(count, -1) for name, value in tiny.prompts([[3, 9]]).items()}
    pad, end = model.talker.codec_pad_token, model.talker.codec_eos_token
    model.token2wav.forward = lambda codes, **_: torch.zeros(4)
    sampled = {"talker_max_new_tokens": length, "talker_eos_token_id": [pad, end], "speaker": "chelsie"}
    model.generate(**asked, **GREEDY, **sampled, **more)
    new: Tensor = spy.found[:, spy.given["input_ids"].shape[1] :]
    return torch.nn.functional.pad(new, (0, length - new.shape[1]), value=pad)


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=4", "recycle:window=3", "tree"])
def test_qwen2_5_greedy_matches_its_own_generate(recipe: str) -> None:
    """The repetition penalty counts the placeholders of the prompt, as in transformers."""
    own = qwen2_5_call(tiny.qwen2_5(2), talker_do_sample=False)
    assert (own[:, -1] == 20).any() and not (own[:, -1] == 20).all()
    how: dict[str, Any] = {**OURS, "talker_recipe": recipe}
    if recipe.startswith("tree"):
        how["talker_draft_model"] = tiny.qwen2_5(1, layers=1).talker
    assert torch.equal(qwen2_5_call(tiny.qwen2_5(2), talker_do_sample=False, **how), own)


@pytest.mark.parametrize("recipe", ["scd:window=3"])
def test_qwen2_5_samples_follow_its_own(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples of 5,000; and text that comes a token late must be told apart."""

    def samples(**how: Any) -> Tensor:
        model = tiny.qwen2_5(1, codes=3, spread=0.4)
        torch.manual_seed(0)
        new = qwen2_5_call(model, 5_000, 3, talker_top_k=0, talker_temperature=1.3, **how)
        return (new * torch.tensor([49, 7, 1])).sum(1)

    one, two = samples(), samples(**OURS, talker_recipe=recipe)
    found, limit = chi_square(one, two)
    assert found < limit
    own = CausalTarget._with_added

    def broken(self: CausalTarget, embeds: Tensor, slots: Tensor) -> Tensor:
        return own(self, embeds, slots - 1)

    monkeypatch.setattr(CausalTarget, "_with_added", broken)
    found, limit = chi_square(one, samples(**OURS, talker_recipe=recipe))
    assert found > 1.5 * limit


@pytest.mark.filterwarnings(NOTES)
def test_errors() -> None:
    model = tiny.qwen3()
    with pytest.raises(ArgumentError, match="draft_model is not possible for Qwen3-Omni"):
        model.generate(**tiny.prompts(), **GREEDY, **OURS, talker_draft_model=model.talker)
    with pytest.raises(ArgumentError, match="call the generate of the whole model"):
        tiny.qwen2_5().talker.generate(input_ids=torch.tensor([[1]]), max_new_tokens=2, custom_generate=mmspec.generate)
    model = tiny.qwen2_5(2)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ArgumentError, match="^the caller gave, or transformers prepared, foo, which mmspec does"),
    ):
        patch.setattr(type(model.talker), "_validate_model_kwargs", lambda self, inputs: None)
        qwen2_5_call(model, talker_do_sample=False, talker_foo=torch.rand(2, 3), **OURS)

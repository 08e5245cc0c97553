"""Prompts of a LlamaGen with a tiny T5 encoder and its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

import mmspec
from mmspec.errors import ArgumentError
from mmspec.vision.llamagen.conditioning import from_prompts
from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

SLOTS, FEATURES = 6, 8
WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "blue", "circle", "star", "above"]
PROMPTS = ["a red  circle ", "A Blue star above a", "star"]


def word_tokenizer() -> Any:
    """One token per word, and T5's end of sequence."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    )


def scattered(model: Any, spread: float = 0.4) -> Any:
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        if p.ndim > 1:
            p.data = torch.randn(p.shape, generator=generator) * spread
    return model.eval()


def encoder(width: int = FEATURES) -> Any:
    config = T5Config(
        vocab_size=len(WORDS), d_model=width, d_kv=4, d_ff=16, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu"
    )
    return scattered(T5EncoderModel(config))


@pytest.fixture
def pipe() -> LlamaGenPipeline:
    gpt = LlamaGenGPT(
        12, 32, 2, 2, ffn_dim=64, model_type="t2i", cls_token_num=SLOTS, caption_dim=FEATURES, grid_size=3
    )  # fmt: skip
    pipe = LlamaGenPipeline(scattered(gpt), text_encoder=encoder(), tokenizer=word_tokenizer(), guidance_scale=2.0)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def features(pipe: LlamaGenPipeline) -> tuple[Tensor, Tensor]:
    """Features and mask of T5 for `PROMPTS`, tokenized by hand, with the padding last."""
    ids = torch.tensor([[3, 4, 6, 1, 0, 0], [3, 5, 7, 8, 3, 1], [7, 1, 0, 0, 0, 0]])
    mask = (ids != 0).long()
    with torch.no_grad():
        return pipe.text_encoder(input_ids=ids, attention_mask=mask).last_hidden_state, mask


@pytest.mark.parametrize("recipe", ["plain", "scd:window=4"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_prompts_equal_their_features(pipe: LlamaGenPipeline, recipe: str, temperature: float) -> None:
    embeds, mask = features(pipe)
    call: dict[str, Any] = {"recipe": recipe, "temperature": temperature, "seed": 3, "output_type": "latent"}
    ours = pipe(PROMPTS, **call).tokens
    assert torch.equal(ours, pipe(prompt_embeds=embeds, prompt_attention_mask=mask, **call).tokens)
    assert len({tuple(row.tolist()) for row in ours}) == 3
    alone = torch.cat([pipe(p, **(call | {"seed": 3 + i})).tokens for i, p in enumerate(PROMPTS)])
    assert torch.equal(ours, alone)


def test_padding_moves_to_the_left_and_is_zero(pipe: LlamaGenPipeline) -> None:
    embeds, mask = features(pipe)
    condition = from_prompts(PROMPTS, pipe.transformer, pipe.text_encoder, pipe.tokenizer)
    assert condition.mask is not None
    assert condition.mask.tolist() == [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]]
    for row, got in enumerate(condition.features):
        valid = int(mask[row].sum())
        # The published sampler: cat([emb[valid:], emb[:valid]]), times the flipped mask.
        assert torch.allclose(got[SLOTS - valid :], embeds[row, :valid], atol=1e-6)
        assert not got[: SLOTS - valid].any()


def test_a_long_prompt_is_truncated_with_a_warning(pipe: LlamaGenPipeline, caplog: pytest.LogCaptureFixture) -> None:
    call: dict[str, Any] = {"seed": 0, "output_type": "latent"}
    long = "a red circle above a blue star"
    cut = pipe(long, **call).tokens
    assert "prompt 0 has 8 tokens; the model reads 6" in caplog.text and "circle" not in caplog.text
    # The end of sequence is kept.
    assert torch.equal(cut, pipe("a red circle above a", **call).tokens)


def test_encoder_and_tokenizer_are_saved_and_loaded(pipe: LlamaGenPipeline, tmp_path: Path) -> None:
    pipe.save_pretrained(tmp_path)
    index = json.loads((tmp_path / "model_index.json").read_text())
    assert index["text_encoder"] == ["transformers", "T5EncoderModel"] and index["tokenizer"][0] == "transformers"
    call: dict[str, Any] = {"seed": 1, "output_type": "latent"}
    for again in (LlamaGenPipeline.from_pretrained(tmp_path), mmspec.load(str(tmp_path))):
        again.set_progress_bar_config(disable=True)
        assert torch.equal(again(PROMPTS, **call).tokens, pipe(PROMPTS, **call).tokens)


def test_bfloat16_runs(pipe: LlamaGenPipeline) -> None:
    assert pipe.to(torch.bfloat16)(PROMPTS, seed=0, output_type="latent").tokens.shape == (3, 9)


def test_encoders_that_do_not_fit_are_refused(pipe: LlamaGenPipeline) -> None:
    pipe.register_modules(tokenizer=None)
    with pytest.raises(ArgumentError, match="has a text_encoder without its tokenizer; add it, or pass prompt_emb"):
        pipe("a star", output_type="latent")
    pipe.register_modules(tokenizer=word_tokenizer(), text_encoder=encoder(16))
    with pytest.raises(ArgumentError, match="text_encoder has 16 features, the transformer requires 8"):
        pipe("a star", output_type="latent")

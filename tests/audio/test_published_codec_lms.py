"""Published configurations of flat speech models, CosyVoice and Chatterbox: sizes, ids, folders, defaults."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_codecs
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.codec_lm import chatterbox, cosyvoice, cosyvoice_tokens
from mmspec.audio.models.codec_lm.chatterbox import config_of
from mmspec.audio.models.codec_lm.decoding import chatterbox as chatterbox_settings
from mmspec.audio.models.flat.decoding import STREAM_FORMATS
from mmspec.audio.models.flat.speech import STYLES, FlatAdapter
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.sampling.logits_processors import MinP, RepetitionAware, RepetitionPenalty

PUBLISHED = Path(__file__).parents[1] / "published"


def facts(model: str, file: str = "config.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PUBLISHED / model / file).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(("model", "style"), [("orpheus-3b-0.1-ft", "orpheus"), ("spark-tts-0.5b", "spark")])
def test_streams_fit_the_vocabulary_at_full_size(model: str, style: str) -> None:
    config = facts(model)
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert type(made).__name__ == config["architectures"][0]
    stream = STREAM_FORMATS[style]
    assert {i for slot in range(len(stream.slots)) for i in stream.allowed(slot)} <= set(
        range(len(made.lm_head.weight))
    )
    assert STYLES[style].tokens + 500 < config["max_position_embeddings"]


def test_spark_has_its_published_ids() -> None:
    ids, stream = facts("spark-tts-0.5b", "tokenizer.json"), STREAM_FORMATS["spark"]
    assert stream.first == ids["<|bicodec_semantic_0|>"] and stream.end == ids["<|end_semantic_token|>"]
    assert stream.first + stream.codes - 1 == ids["<|bicodec_semantic_8191|>"]


def orpheus_folder(folder: Path) -> Path:
    """A folder of the published layout with weights of width 8."""
    config = facts("orpheus-3b-0.1-ft")
    tiny = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config |= tiny | {"num_key_value_heads": 1, "head_dim": 4}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).save_pretrained(folder)
    words = {"leo": 10, ":": 11, "hello": 12, "world": 13, "<laugh>": 14, "<unk>": 15, "<|begin_of_text|>": 128000}
    made = Tokenizer(WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    # Llama 3's tokenizer puts its begin before every text.
    made.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 128000)]
    )
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>").save_pretrained(folder)
    return folder


def test_orpheus_from_a_folder(tmp_path: Path) -> None:
    folder = orpheus_folder(tmp_path)
    codec = codec_of(tiny_codecs.mimi(codebooks=7, codebook_size=4096))
    pipe = mmspec.load(str(folder), config={"style": "orpheus", "codec": codec})
    (part,) = pipe.read("hello world", "leo").parts
    # The package: start of a human turn, "voice: text" with its begin, end of turn, start of the answer and of speech.
    assert part.ids == [128259, 128000, 10, 11, 12, 13, 128009, 128260, 128261, 128257]
    assert (pipe.config["temperature"], pipe.config["top_p"], pipe.config["top_k"]) == (0.6, 0.8, 0)
    assert STYLES["orpheus"].processors == (RepetitionPenalty(1.1),)
    model, ids = pipe.adapter.model, part.ids
    model.model.embed_tokens.weight.data *= 30  # far from uniform
    own = {
        "repetition_penalty": 1.1,
        "prefix_allowed_tokens_fn": STREAM_FORMATS["orpheus"].allowed_tokens_fn(len(ids)),
        "pad_token_id": 0,
    }
    short = SpeechPipeline(FlatAdapter(model, pipe.adapter.tokenizer, codec, replace(STYLES["orpheus"], tokens=14)))
    greedy = model.generate(torch.tensor([ids]), max_new_tokens=14, do_sample=False, **own)[0, len(ids) :]
    found: Any = short("hello world", voice="leo", seed=0, temperature=0)
    assert (found.tokens[0] + 128258).tolist() == greedy.tolist()
    # Samples of the pipeline under the distribution that the model's own generate samples from.
    settings = {"temperature": 0.6, "top_p": 0.8, "top_k": 0, "do_sample": True}
    out = model.generate(
        torch.tensor([ids]), max_new_tokens=1, output_scores=True, return_dict_in_generate=True, **settings, **own
    )
    p = out.scores[0][0, 128258:].softmax(-1)
    one = SpeechPipeline(FlatAdapter(model, pipe.adapter.tokenizer, codec, replace(STYLES["orpheus"], tokens=1)))
    samples: Any = one(["hello world"] * 400, voice="leo", seed=0)
    tokens = torch.stack([sample.tokens[0][0] for sample in samples])
    assert bool((p[tokens] > 0).all())  # none outside of the nucleus, which has a part of the codes
    assert 10 < int((p > 0).sum()) < 2000
    log_p = p.clamp(min=1e-30).log()
    mean = float((p * log_p).sum())
    deviation = float((p * (log_p - mean) ** 2).sum() ** 0.5)
    # False alarms: once in 10^6. A temperature of 0.62 instead of 0.6 is found in all of 100 runs.
    assert abs(float(log_p[tokens].mean()) - mean) < 5 * deviation / 400**0.5


def test_chatterbox_has_its_published_sizes_and_defaults() -> None:
    config = facts("chatterbox")
    llama = config["llama"]
    width, inner, heads = llama["hidden_size"], llama["intermediate_size"], llama["num_attention_heads"]
    shapes = {"tfmr.embed_tokens.weight": (llama["vocab_size"], width)}
    for layer in range(llama["num_hidden_layers"]):
        for name in "qkvo":
            shapes[f"tfmr.layers.{layer}.self_attn.{name}_proj.weight"] = (heads * llama["head_dim"], width)
        shapes[f"tfmr.layers.{layer}.mlp.up_proj.weight"] = (inner, width)
    state: dict[str, Tensor] = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    found = config_of(state).to_dict()
    rope = {**llama.pop("rope_scaling"), "rope_theta": llama.pop("rope_theta")}
    assert {name: found[name] for name in llama} == llama and found["rope_parameters"] == rope
    marks = chatterbox.START_TEXT, chatterbox.STOP_TEXT, chatterbox.START_SPEECH, chatterbox.STOP_SPEECH
    names = ("start_text_token", "stop_text_token", "start_speech_token", "stop_speech_token")
    assert marks == tuple(config[name] for name in names)
    own, call = chatterbox.Chatterbox.sampling, config["generate"]
    assert (own.temperature, own.top_p, own.top_k) == (call["temperature"], call["top_p"], 0)
    assert own.guidance_scale == 1 + call["cfg_weight"] and call["max_new_tokens"] == chatterbox.MAX_CODES
    settings = chatterbox_settings(own.temperature)
    assert settings.processors == (RepetitionPenalty(call["repetition_penalty"]), MinP(call["min_p"], own.temperature))


def test_cosyvoice3_has_its_published_size_and_defaults() -> None:
    config, size = facts("fun-cosyvoice3-0.5b"), facts("fun-cosyvoice3-0.5b", "weights.json")["llm.pt"]["bytes"]
    sizes = {
        name: value for name, value in facts("spark-tts-0.5b").items() if name not in ("architectures", "vocab_size")
    }
    ids, width = config["speech_token_size"] + config["more_tokens"], config["llm_input_size"]
    with torch.device("meta"):
        text = Qwen2ForCausalLM(Qwen2Config(vocab_size=151936, **sizes))
        parts = nn.ModuleList([text, nn.Linear(width, ids, bias=False), nn.Embedding(ids, width)])
    parameters = sum(parameter.numel() for parameter in parts.parameters())
    assert 4 * parameters < size < 4 * parameters + 200_000  # float32, and names and shapes
    assert len(cosyvoice_tokens.VERSION_3) == config["added_tokens"] and config["instruction"] == cosyvoice.INSTRUCTION
    # Three marks stand in Qwen2's own files; the others follow them.
    assert 151643 + 1 + cosyvoice_tokens.VERSION_3.index("<|endofprompt|>") == config["end_of_prompt"]
    own, sampling = cosyvoice.CosyVoice.sampling, config["sampling"]
    assert (own.top_p, own.top_k, own.temperature) == (sampling["top_p"], sampling["top_k"], 1.0)
    rule = RepetitionAware()
    assert (rule.window, rule.limit) == (sampling["win_size"], sampling["win_size"] * sampling["tau_r"])
    assert (
        config["min_token_text_ratio"], config["max_token_text_ratio"],
    ) == (cosyvoice.MIN_CODES, cosyvoice.MAX_CODES)  # fmt: skip

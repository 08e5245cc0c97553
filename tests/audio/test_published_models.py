"""Published configurations: sizes, folders of their layout, default sampling parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import published
import pytest
from transformers import EncodecFeatureExtractor

import mmspec
from mmspec.sampling.params import SamplingParams

TINY = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
TINY_MIMI = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 1,
    "num_filters": 2,
    "upsample_groups": 16,
    "codebook_dim": 8,
    "vector_quantization_hidden_dimension": 8,
}


@pytest.mark.parametrize(
    ("model", "tensors", "parameters"),
    [
        ("dia-1.6b-0626", "tensors", "parameters"),
        ("bark-small", "tensors", "values"),
    ],
)
def test_the_class_at_its_published_size_has_the_tensors_of_the_checkpoint(
    model: str, tensors: str, parameters: str
) -> None:
    wanted, found = published.read(model, "weights"), published.on_meta(model).state_dict()
    assert len(found) == wanted[tensors]
    assert sum(tensor.numel() for tensor in found.values()) == wanted[parameters]


def test_csm_has_the_tensors_of_the_original_checkpoint_and_a_tied_copy() -> None:
    wanted, found = published.read("csm-1b", "weights"), published.on_meta("csm-1b").state_dict()
    own = {name: tensor for name, tensor in found.items() if not name.startswith("codec_model.")}
    del own["depth_decoder.model.embed_tokens.weight"]  # that of the backbone
    assert len(own) == wanted["original_tensors"]
    assert sum(tensor.numel() for tensor in own.values()) == wanted["original_parameters"]


def test_higgs_has_the_tensors_of_the_checkpoint_but_its_text_head() -> None:
    model = published.on_meta("higgs-audio-v2-3b-base")
    wanted, found = published.read("higgs-audio-v2-3b-base", "weights"), model.state_dict()
    text_head = model.config.vocab_size * model.config.hidden_size
    assert len(found) + len(wanted["unread"]) == wanted["tensors"]
    assert sum(tensor.numel() for tensor in found.values()) + text_head == wanted["parameters"]


def csm_folder(folder: Path) -> Any:
    """A CSM folder of the published layout with small layers, and few codebooks."""
    names, config = published.read("csm-1b", "tokenizer"), published.read("csm-1b", "config")
    small = {
        **TINY,
        "num_hidden_layers": 1,
        "num_codebooks": 3,
        "vocab_size": 11,
        "codebook_pad_token_id": 10,
        "depth_decoder_config": {
            **TINY,
            "num_hidden_layers": 1,
            "num_codebooks": 3,
            "vocab_size": 11,
            "backbone_hidden_size": 16,
        },
        "codec_config": {**TINY_MIMI, "codebook_size": 8, "num_quantizers": 3},
    }
    config = published.merged(config, small)
    del config["transformers_weights"]
    model = published.save(folder, config, published.read("csm-1b", "generation_config"))
    special = {name: names[name] for name in ("bos_token", "eos_token", "pad_token")}
    tokenizer = published.llama_tokenizer(names["special_tokens"], names["split"], names["single"], **special)
    tokenizer.save_pretrained(folder)
    EncodecFeatureExtractor(sampling_rate=24000).save_pretrained(folder)
    for file in ("preprocessor_config", "tokenizer_config"):
        path = folder / f"{file}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "processor_class": "CsmProcessor"}))
    return model


@pytest.mark.parametrize("voice", [None, "1"])
def test_prompts_of_csm_are_those_of_the_documented_call_and_of_the_original_code(
    tmp_path: Path, voice: str | None
) -> None:
    csm_folder(tmp_path)
    pipe = mmspec.load(str(tmp_path))
    processor = pipe.adapter.processor
    assert type(processor).__name__ == "CsmProcessor"
    tokenizer, speaker = processor.tokenizer, voice or "0"
    for text in published.HARD_TEXTS:
        line = f"[{speaker}]{text.strip()}"
        documented = processor(line, add_special_tokens=True)["input_ids"][0].tolist()
        # generator.py of SesameAILabs/csm puts both marks around every segment.
        original = [tokenizer.bos_token_id, *tokenizer.encode(line, add_special_tokens=False), tokenizer.eos_token_id]
        (part,) = pipe.read(text, voice).parts
        assert part.ids == documented == original


def test_csm_samples_with_the_values_of_its_generation_config(tmp_path: Path) -> None:
    csm_folder(tmp_path)
    pipe = mmspec.load(str(tmp_path), config={"frames": 4})
    assert pipe.adapter.sampling == SamplingParams(0.9, 50)
    assert pipe("one", seed=0).audio.shape[0] == 1

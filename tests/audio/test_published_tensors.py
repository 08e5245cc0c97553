"""Models at their published sizes have the tensors of the published files: names, dtypes, shapes, bytes.

The numbers and hashes in `tests/published/*/weights.json` are those of others who read the headers of the files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import published
import pytest
import tiny_fish_codec
import torch
from published import file_size, inventory, shapes_of
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

from mmspec.audio.codecs.qwen3_tts import Qwen3TTSCodecModel, own_name
from mmspec.audio.models.fish_s2 import model as fish
from mmspec.audio.models.moss_local import model as moss_local
from mmspec.audio.models.moss_local_v1 import model as moss_local_v1
from mmspec.audio.models.moss_tts import decoding as moss
from mmspec.audio.models.qwen3_tts.config import read_config as read_qwen3_tts_config
from mmspec.audio.models.qwen3_tts.model import Qwen3TTS

Shapes = dict[str, tuple[int, ...]]


def causal(config: dict[str, Any]) -> Shapes:
    with torch.device("meta"):
        found = shapes_of(AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)))
    if config["tie_word_embeddings"]:
        del found["lm_head.weight"]
    return found


def on_meta(make: Callable[[Any], Any], read: Callable[..., Any]) -> Callable[[Any], Shapes]:
    def shapes(config: Any) -> Shapes:
        with torch.device("meta"):
            return shapes_of(make(read(config, "published")))

    return shapes


def qwen3_tts_codec(config: Any) -> Shapes:
    """Those of the class under the published names, by the inverse of `own_name`."""
    with torch.device("meta"):
        own = shapes_of(Qwen3TTSCodecModel(config))
    names = {name: name for name in own}
    for place, published_place in (
        ("encoder_seanet", "encoder"), ("encoder_transformer", "encoder_transformer"), ("downsample", "downsample"),
    ):  # fmt: skip
        before = f"encoder.encoder.{place}."
        names |= {name: name.replace(before, f"encoder.{published_place}.") for name in own if name.startswith(before)}
    assert all(own_name(found) == name for name, found in names.items())
    return {found: own[name] for name, found in names.items()}


def fish_s2(config: Any) -> Shapes:
    """Those of the class under the published names: with queries, keys and values in one tensor."""
    with torch.device("meta"):
        own = shapes_of(fish.FishS2(fish.read_config(config, "s2-pro"), config["text_config"]["vocab_size"]))
    found: Shapes = {}
    for name, shape in own.items():
        if ".self_attn.v_proj." in name or ".self_attn.k_proj." in name:
            continue
        if ".self_attn.q_proj." in name:
            keys = own[name.replace("q_proj", "k_proj")]
            name, shape = name.replace("self_attn.q_proj", "attention.wqkv"), (shape[0] + 2 * keys[0], shape[1])
        for old, new in fish.NAMES.items():
            name = name.replace(new, old)
        for old, new in (
            ("text_embeddings", fish.SLOW + "embeddings"), ("slow.", fish.SLOW), ("fast.", fish.FAST),
            ("fast_embeddings", fish.FAST + "embeddings"), ("fast_head", fish.FAST + "output"),
            ("codebook_embeddings", fish.FAST + "codebook_embeddings"),
        ):  # fmt: skip
            name = new + name.removeprefix(old) if name.startswith(old) else name
        found[name] = shape
    return found


def with_tied_heads(config: Any) -> Shapes:
    """The file of MOSS-TTS-Local v1.5 has the tables twice, also as heads."""
    found = on_meta(moss_local.MossLocal, moss_local.read_config)(config)
    heads = ["text_lm_head.weight", *(f"audio_lm_heads.{book}.weight" for book in range(config["n_vq"]))]
    return found | {head: found[moss_local.untied(head)] for head in heads}


QWEN3_TTS = on_meta(Qwen3TTS, read_qwen3_tts_config)
# The folder of a model -> the names and shapes of its file, by its config.json.
HASHED: dict[str, Callable[[Any], Shapes]] = {
    "outetts-1.0-1b": causal, "outetts-1.0-0.6b": causal, "neutts-air": causal, "neutts-nano": causal,
    "qwen3-tts-12hz-0.6b-base": QWEN3_TTS, "qwen3-tts-12hz-1.7b-base": QWEN3_TTS,
    "qwen3-tts-12hz-1.7b-customvoice": QWEN3_TTS, "qwen3-tts-12hz-1.7b-voicedesign": QWEN3_TTS,
    "qwen3-tts-tokenizer-12hz": qwen3_tts_codec, "fish-s2-pro": fish_s2,
}  # fmt: skip
COUNTED: dict[str, Callable[[Any], Shapes]] = {
    "moss-tts": on_meta(moss.MossTTS, moss.read_config),
    "moss-tts-local-transformer": on_meta(moss_local_v1.MossLocalV1, moss_local_v1.read_config),
    "moss-tts-local-transformer-v1.5": with_tied_heads,
}


@pytest.mark.parametrize("name", [*HASHED, *COUNTED])
def test_names_dtypes_and_shapes_are_those_of_the_file(name: str) -> None:
    shapes = (HASHED | COUNTED)[name](published.read(name, "config"))
    wanted = published.read(name, "weights")
    assert len(shapes) == wanted["tensors"]
    assert sum(map(math.prod, shapes.values())) == wanted["parameters"]
    if name in HASHED:
        assert inventory(shapes, wanted["dtype"], wanted["between"]) == wanted["sha256"]


def test_the_smaller_qwen3_tts_with_named_voices_has_the_tensors_of_its_file() -> None:
    """Its config.json was not found; the sizes are those of the Base model, without the encoder of speakers."""
    wanted = published.read("qwen3-tts-12hz-0.6b-customvoice", "weights")
    shapes = QWEN3_TTS({**published.read("qwen3-tts-12hz-0.6b-base", "config"), "tts_model_type": "custom_voice"})
    assert len(shapes) == wanted["tensors"]
    assert inventory(shapes, wanted["dtype"], wanted["between"]) == wanted["sha256"]


def test_dia_has_the_names_and_shapes_of_its_file() -> None:
    wanted = published.read("dia-1.6b-0626", "weights")
    assert inventory(shapes_of(published.on_meta("dia-1.6b-0626")), "F32", "x") == wanted["sha256"]


@pytest.mark.parametrize(("name", "other"), [("acestep-5hz-lm-1.7b", "model."), ("acestep-5hz-lm-0.6b", "")])
def test_decoders_of_ace_step_have_the_size_of_their_file(name: str, other: str) -> None:
    """One file has the names of a decoder without its head, the other those of one with it; the size tells them."""
    wanted = published.read(name, "weights")
    shapes = {shape.removeprefix("model."): size for shape, size in ace_step(name).items()}

    def size(prefix: str) -> int:
        return file_size({prefix + each: shape for each, shape in shapes.items()}, wanted["dtype"], wanted["metadata"])

    assert size(wanted["prefix"]) == wanted["bytes"] != size(other)


def ace_step(name: str) -> Shapes:
    return causal(published.read(name, "config"))


def test_the_codec_of_fish_s2_has_the_tensors_of_its_file() -> None:
    wanted = published.read("fish-s2-pro", "weights")
    found = tiny_fish_codec.shapes(tiny_fish_codec.PUBLISHED)
    buffers = [name for name in found if name.endswith(("freqs_cis", "causal_mask"))]
    assert len(found) - len(buffers) == wanted["codec_tensors"]
    assert sum(math.prod(shape) for name, shape in found.items() if name not in buffers) == wanted["codec_parameters"]


def test_qwen2_5_omni_has_the_bytes_of_its_files() -> None:
    """Its decoder is stored in float32, with a buffer of 32 frequencies; the rest in bfloat16."""
    config, wanted = published.read("qwen2.5-omni-3b", "config"), published.read("qwen2.5-omni-3b", "weights")
    with torch.device("meta"):
        shapes = shapes_of(Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig.from_dict(config)))
    assert len(shapes) + len(wanted["unread"]) == wanted["tensors"]
    sizes = [math.prod(shape) * (4 if name.startswith("token2wav.") else 2) for name, shape in shapes.items()]
    assert sum(sizes) + 32 * 4 == wanted["bytes"]

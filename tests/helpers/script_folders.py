"""What the scripts of docs/models/scripts.md load, as folders with tiny random models of the real classes.

Each function writes to the working directory, under the names that a script gives: transformers and mmspec take a
relative path that exists for a folder, and a Hub id otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tiny_codecs
import tiny_models
import tiny_music
import tiny_processors
import torch
from published_folders import bark_folder, csm_folder
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    DiaFeatureExtractor,
    DiaProcessor,
    DiaTokenizer,
    EncodecFeatureExtractor,
    LlamaConfig,
    LlamaForCausalLM,
    MusicgenProcessor,
    PreTrainedTokenizerFast,
)

# In the form of Llasa's: a header for each turn.
CHAT = "{% for m in messages %}<|start|>{{ m['role'] }}<|end|>{{ m['content'] }}<|eot|>{% endfor %}"


def save(name: str, *parts: Any) -> Path:
    for part in parts:
        part.save_pretrained(name)
    return Path(name)


def janus() -> None:
    save("deepseek-community/Janus-Pro-1B", tiny_models.janus(), tiny_processors.janus())


def emu3() -> None:
    save("BAAI/Emu3-Gen-hf", tiny_models.emu3(), tiny_processors.emu3())


def chameleon() -> None:
    save("leloy/Anole-7b-v0.1-hf", tiny_models.chameleon(), tiny_processors.chameleon())
    torch.save({"state_dict": tiny_models.vqgan()[1]}, "vqgan.ckpt")


def imagegpt() -> None:
    save("openai/imagegpt-small", tiny_models.imagegpt(), tiny_processors.imagegpt())


def glm() -> None:
    save("zai-org/GLM-Image/vision_language_encoder", tiny_models.glm())
    save("zai-org/GLM-Image/processor", tiny_processors.glm())
    Path("zai-org/GLM-Image/model_index.json").write_text(json.dumps({"_class_name": "GlmImagePipeline"}))


def llama() -> None:
    """Llasa's, with its published ids of codes and marks."""
    marks = {f"<|TEXT_UNDERSTANDING_{end}|>": 128258 + i for i, end in enumerate(("START", "END"))}
    marks |= {f"<|SPEECH_GENERATION_{end}|>": 128260 + i for i, end in enumerate(("START", "END"))}
    marks |= {"<|start|>": 128006, "<|end|>": 128007, "<|eot|>": 128009}
    letters = {chr(32 + i): 1 + i for i in range(95)}
    made = Tokenizer(WordLevel({"<unk>": 0, **letters, **marks}, unk_token="<unk>"))
    made.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", chat_template=CHAT)
    tokenizer.add_tokens(list(marks), special_tokens=True)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=193800, **sizes, max_position_embeddings=2048, bos_token_id=None, eos_token_id=None)
    model = tiny_models.scatter(LlamaForCausalLM(config), 0, 0.3)
    model.lm_head.weight.data[128261] *= 4  # to end after a few codes
    save("HKUSTAudio/Llasa-3B", model, tokenizer)
    save("HKUSTAudio/xcodec2-hf", tiny_codecs.xcodec2(levels=(4,) * 8))


def musicgen() -> None:
    processor = MusicgenProcessor(EncodecFeatureExtractor(sampling_rate=1000), tiny_music.tokenizer())
    model = tiny_music.musicgen()
    model.decoder.config.max_position_embeddings = 2048
    save("facebook/musicgen-small", model, processor)


def dia() -> None:
    """With the codebooks, codes and delays that the processor takes for granted."""
    model = tiny_music.dia(2, codes=1024, delays=(0, *range(8, 16)), text_ids=256)
    model.generation_config.max_length = 30
    codec = tiny_codecs.dac(codebooks=9, codes=1024)
    folder = save("descript/dac_44khz", codec)
    extract = DiaFeatureExtractor(sampling_rate=1000, hop_length=8)
    processor = DiaProcessor(extract, DiaTokenizer(), type(codec).from_pretrained(folder))
    save("nari-labs/Dia-1.6B-0626", model, processor)


def csm() -> None:
    csm_folder(Path("sesame/csm-1b"), codes=16)


def bark() -> None:
    """With fewer semantic codes than the published one may generate."""
    bark_folder(Path("suno/bark"))
    path = Path("suno/bark/generation_config.json")
    settings = json.loads(path.read_text())
    settings["semantic_config"]["max_new_tokens"] = 4
    path.write_text(json.dumps(settings))


# By the heading of the script.
FOLDERS = {
    "Janus": janus, "Emu3": emu3, "Chameleon": chameleon, "ImageGPT": imagegpt, "GLM-Image": glm, "A flat Llama": llama,
    "MusicGen": musicgen, "Dia": dia, "CSM": csm, "Bark": bark,
}  # fmt: skip

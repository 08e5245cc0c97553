"""Records what the package `qwen-tts` computes with tiny random weights, for `tests/golden/qwen3_tts*`.

    python -m venv original && original/bin/pip install qwen-tts==0.1.1
    original/bin/python tools/golden/record_qwen3_tts.py tests/golden

The package pins transformers 4.57.3, so that it needs an environment of its own; the tests read only what is written
here. Two folders are written, in the layout of the published checkpoints: `qwen3_tts` with greedy codes, prompts and
audio, and `qwen3_tts_joint`, two codes in two codebooks, with the distribution of all sequences of three frames.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from qwen_tts import Qwen3TTSModel
from qwen_tts.core import Qwen3TTSTokenizerV2Config, Qwen3TTSTokenizerV2Model
from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import EncodecFeatureExtractor, Qwen2Tokenizer

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<|audio_start|>"
)  # fmt: skip
# Enough for the words that have one token in the published vocabulary and whose place the prompt is cut at.
MERGES = ("a s", "as s", "i s", "ass is", "t a", "ta n", "tan t", "assis tant", "u s", "e r", "us er", "Ġ t", "h e")
LENGTH = 20
WITH_AUDIO = ("clone", "clone_speaker_only", "custom_voice", "voice_design")  # the audio of all would be large
GREEDY = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": LENGTH}
CASES: dict[str, dict[str, Any]] = {
    "custom_voice": {
        "text": ["Hi there.", "A longer text, with <|im_end|> in it!", "三"],
        "speaker": ["Ann", "bob", "ann"],
        "language": ["Auto", "auto", "english"],
        "instruct": ["", "Slowly.", "Sad <tts_pad>"],
        "non_streaming_mode": True,
    },
    "custom_voice_streaming": {
        "text": ["Hi there.", "A longer text!", "o"],
        "speaker": ["ann", "bob", "bob"],
        "language": ["english", "Chinese", "English"],
        "non_streaming_mode": False,
    },
    "voice_design": {
        "text": ["Hi there.", "Yes", "And now, the end."],
        "language": ["Auto", "english", "chinese"],
        "instruct": ["A calm old man.", "", "A child"],
        "non_streaming_mode": True,
    },
    "clone": {
        "text": ["Hi there.", "Yes", "And now, the very long end."], "language": "english", "ref_text": "One two."
    },
    "clone_long": {
        "text": ["A text of more tokens than the reference audio has frames, by far, so that some are left over."],
        "language": "auto",
        "ref_text": "One, two, three.",
    },
    "clone_non_streaming": {
        "text": ["Hi", "Yes, there."], "language": "chinese", "ref_text": "One", "non_streaming_mode": True
    },
    "clone_speaker_only": {"text": ["Hi", "Yes, there."], "language": "auto", "x_vector_only_mode": True},
}  # fmt: skip


def tokenizer(folder: Path) -> Qwen2Tokenizer:
    """A byte-level vocabulary of a few merges, with the special tokens of the published one."""
    letters = list(bytes_to_unicode())
    tokens = letters + [merge.replace(" ", "") for merge in MERGES]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}, ensure_ascii=False))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n")
    made = Qwen2Tokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), unk_token=SPECIAL[0], eos_token="<|im_end|>",
        pad_token=SPECIAL[0], additional_special_tokens=list(SPECIAL[1:]),
    )  # fmt: skip
    made.save_pretrained(folder)
    return made


def bytes_to_unicode() -> Iterator[str]:
    """The letters that stand for bytes in GPT-2's vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = 0
    for byte in range(256):
        if byte in plain:
            yield chr(byte)
        else:
            yield chr(256 + extra)
            extra += 1


def config(ids: dict[str, int], codes: int, groups: int, width: int) -> Qwen3TTSConfig:
    """A tiny model; its predictor has another width if `width` is not 24."""
    layers = {
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "rope_theta": 1000000, "max_position_embeddings": 512, "num_code_groups": groups,
    }  # fmt: skip
    special = codes  # the ids after the codes
    return Qwen3TTSConfig(
        talker_config={
            **layers,
            "hidden_size": width,
            "intermediate_size": 40,
            "vocab_size": codes + 1024,
            "text_vocab_size": max(ids.values()) + 1,
            "text_hidden_size": 20,
            "rope_scaling": {
                "interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default", "type": "default"
            },
            "codec_pad_id": special,
            "codec_bos_id": special + 1,
            "codec_eos_token_id": special + 2,
            "codec_think_id": special + 3,
            "codec_nothink_id": special + 4,
            "codec_think_bos_id": special + 5,
            "codec_think_eos_id": special + 6,
            "codec_language_id": {
                "chinese": special + 7, "english": special + 8, "sichuan_dialect": special + 9
            },
            "spk_id": {"ann": special + 20, "bob": special + 21},
            "spk_is_dialect": {"ann": False, "bob": "sichuan_dialect"},
            "code_predictor_config": {
                **layers, "hidden_size": 24, "intermediate_size": 32, "vocab_size": codes
            },
        },
        speaker_encoder_config=speaker_encoder(width),
        tokenizer_type="qwen3_tts_tokenizer_12hz",
        tts_model_size="1b7",
        tts_model_type="base",
        im_start_token_id=ids["<|im_start|>"],
        im_end_token_id=ids["<|im_end|>"],
        tts_pad_token_id=ids["<tts_pad>"],
        tts_bos_token_id=ids["<tts_text_bos>"],
        tts_eos_token_id=ids["<tts_text_eod>"],
    )  # fmt: skip


def speaker_encoder(width: int) -> dict[str, Any]:
    return {
        "enc_dim": width, "enc_channels": [16, 16, 16, 32], "enc_kernel_sizes": [5, 3, 3, 1],
        "enc_dilations": [1, 2, 3, 1], "enc_attention_channels": 8, "enc_res2net_scale": 4, "enc_se_channels": 8,
    }  # fmt: skip


def codec(codes: int, groups: int) -> Qwen3TTSTokenizerV2Model:
    """240 samples per frame."""
    transformer = {
        "hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 200, "rope_theta": 10000,
        "layer_scale_initial_scale": 0.5,
    }  # fmt: skip
    made = Qwen3TTSTokenizerV2Config(
        encoder_config={
            **transformer, "sliding_window": 6, "num_filters": 4, "upsampling_ratios": [12, 10], "codebook_size": codes,
            "codebook_dim": 6, "vector_quantization_hidden_dimension": 6, "num_quantizers": groups + 2,
            "_frame_rate": 100.0, "sampling_rate": 24000, "frame_rate": 100.0, "use_causal_conv": True,
            "upsample_groups": 12,
        },
        decoder_config={
            **transformer, "sliding_window": 5, "latent_dim": 10, "codebook_dim": 8, "codebook_size": codes,
            "num_quantizers": groups, "decoder_dim": 16, "upsample_rates": [10, 6], "upsampling_ratios": [2, 2],
        },
        encoder_valid_num_quantizers=groups,
        encode_downsample_rate=240,
        decode_upsample_rate=240,
    )  # fmt: skip
    return Qwen3TTSTokenizerV2Model(made)


def scatter(model: torch.nn.Module, seed: int, spread: float) -> None:
    """Random weights with which tokens matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        if name.endswith("cluster_usage"):
            p.data = 0.5 + torch.rand(p.shape, generator=generator)
        elif p.ndim >= 2:
            p.data = torch.randn(p.shape, generator=generator) * spread
        elif "norm" in name and name.endswith("weight"):
            p.data = 1 + 0.1 * torch.randn(p.shape, generator=generator)
        else:
            p.data = 0.1 * torch.randn(p.shape, generator=generator)
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith("embed_sum"):
            buffer.copy_(torch.randn(buffer.shape, generator=generator))
        elif name.endswith("cluster_usage"):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
        elif name.endswith("initialized"):
            buffer.fill_(1.0)


def write(folder: Path, kind: str, codes: int, groups: int, width: int, spread: float, rare: float) -> None:
    """Writes a checkpoint in the published layout, whose ends are the more rare the smaller `rare` is."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = tokenizer(folder).get_vocab()
    made = config(ids, codes, groups, width)
    made.tts_model_type = kind
    model = Qwen3TTSForConditionalGeneration(made)
    scatter(model, 0, spread)
    end = model.config.talker_config.codec_eos_token_id
    model.talker.codec_head.weight.data[end] *= rare
    model.to(torch.bfloat16).save_pretrained(folder)  # as published, and half as large
    saved = json.loads((folder / "config.json").read_text())
    saved["speaker_encoder_config"] = speaker_encoder(width)  # the class does not read what it writes
    saved["tts_model_type"] = kind
    (folder / "config.json").write_text(json.dumps(saved, indent=1))
    generation = {
        "do_sample": True, "repetition_penalty": 1.05, "temperature": 0.9, "top_p": 1.0, "top_k": 50,
        "subtalker_dosample": True, "subtalker_temperature": 0.9, "subtalker_top_p": 1.0, "subtalker_top_k": 50,
        "max_new_tokens": 8192,
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    speech = folder / "speech_tokenizer"
    tokenizer_model = codec(codes, groups)
    scatter(tokenizer_model, 1, 0.22)
    tokenizer_model.decoder.decoder[-1].conv.weight.data *= 0.01  # audio within -1..1
    tokenizer_model.save_pretrained(speech)
    EncodecFeatureExtractor(feature_size=1, sampling_rate=24000).save_pretrained(speech)


def wave(seconds: float, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A chord with noise, float32 at 24 kHz."""
    t = np.arange(round(24000 * seconds)) / 24000
    noise = np.random.default_rng(seed).normal(size=len(t))
    return (0.3 * np.sin(2 * np.pi * 440 * t) + 0.2 * np.sin(2 * np.pi * 1130 * t) + 0.05 * noise).astype(np.float32)


class Recorder:
    """Calls a model and keeps what its talker was given and returned."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.tts = Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32, attn_implementation="eager")
        self.tts.model.tts_model_type = kind
        self.found: dict[str, Tensor] = {}
        generate, talker_generate = self.tts.model.generate, self.tts.model.talker.generate

        def of_model(**kwargs: Any) -> Any:
            for i, ids in enumerate(kwargs["input_ids"]):
                self.found[f"ids.{i}"] = ids[0]
            codes, hidden = generate(**kwargs)
            self.found.update({f"codes.{i}": each for i, each in enumerate(codes)})
            return codes, hidden

        def of_talker(**kwargs: Any) -> Any:
            for name in ("inputs_embeds", "attention_mask", "trailing_text_hidden"):
                self.found[name] = kwargs[name]
            return talker_generate(**kwargs)

        self.tts.model.generate, self.tts.model.talker.generate = of_model, of_talker

    def run(self, name: str, call: Callable[..., Any], **kwargs: Any) -> dict[str, Tensor]:
        self.found.clear()
        waves, _ = call(**kwargs)
        self.found.update({f"audio.{i}": torch.from_numpy(each.copy()) for i, each in enumerate(waves)})
        return {f"{name}.{key}": value.detach().contiguous().clone() for key, value in self.found.items()}


def record(folder: Path) -> None:
    """Greedy runs, prompts, the codec, and the speaker encoder."""
    expected: dict[str, Tensor] = {}
    reference = wave(0.1, 0)
    for name, case in CASES.items():
        kind = "base" if name.startswith("clone") else name.removesuffix("_streaming")
        recorder = Recorder(folder, kind)
        tts = recorder.tts
        if kind != "base":
            tts.model.speaker_encoder = None
        call = {
            "base": tts.generate_voice_clone, "custom_voice": tts.generate_custom_voice,
            "voice_design": tts.generate_voice_design,
        }[kind]  # fmt: skip
        more = {"ref_audio": (reference, 24000)} if kind == "base" else {}
        found = recorder.run(name, call, **case, **more, **GREEDY)
        expected.update({key: value for key, value in found.items() if ".audio." not in key or name in WITH_AUDIO})
        if name == "clone":
            with torch.inference_mode():
                expected["speaker"] = tts.model.extract_speaker_embedding(reference, 24000)
                expected["reference_codes"] = tts.model.speech_tokenizer.encode(reference, sr=24000).audio_codes[0]
                expected["reference"] = torch.from_numpy(reference)
                codes = torch.randint(0, 16, (2, 24, 4), generator=torch.Generator().manual_seed(3))
                expected["codec.codes"] = codes
                for i, each in enumerate(tts.model.speech_tokenizer.decode([{"audio_codes": c} for c in codes])[0]):
                    expected[f"codec.audio.{i}"] = torch.from_numpy(each.copy())
    save_file({name: value.contiguous() for name, value in expected.items()}, folder / "expected.safetensors")
    (folder / "cases.json").write_text(json.dumps({"length": LENGTH, "cases": CASES}, ensure_ascii=False, indent=1))


@contextmanager
def forced(choices: Iterator[Tensor]) -> Iterator[list[Tensor]]:
    """Replaces sampling by given tokens; yields the probability that each had."""
    own, found = torch.multinomial, list[Tensor]()

    def choose(probs: Tensor, num_samples: int) -> Tensor:
        token = next(choices)[:, None]
        found.append(probs.gather(1, token)[:, 0].double())
        return token

    torch.multinomial = choose  # type: ignore[assignment]
    try:
        yield found
    finally:
        torch.multinomial = own


def record_joint(folder: Path) -> None:
    """The probability of every sequence of three frames, of which the third may be the end."""
    tts = Qwen3TTSModel.from_pretrained(str(folder), dtype=torch.float32, attn_implementation="eager")
    tts.model.tts_model_type, tts.model.speaker_encoder = "custom_voice", None
    end = tts.model.config.talker_config.codec_eos_token_id
    frames = list(product(range(2), repeat=2))
    every = torch.tensor([(*a, *b, *c) for a in frames for b in frames for c in [*frames, (end, 0)]])
    ended = every[:, 4] == end
    # The calls: the first tokens 0 and then, for each frame, its second code and the next frame's first token.
    order = [every[:, 0]]
    for t in range(3):
        order += [every[:, 2 * t + 1], every[:, 2 * t + 2] if t < 2 else torch.zeros_like(every[:, 0])]
    settings = {
        "temperature": 0.8, "top_k": 50, "top_p": 0.97, "repetition_penalty": 1.5, "subtalker_temperature": 1.2,
        "subtalker_top_k": 50, "subtalker_top_p": 0.95,
    }  # fmt: skip
    count, text = len(every), "Hi there."
    with forced(iter(order)) as found:
        tts.generate_custom_voice(
            [text] * count, speaker=["ann"] * count, language=["english"] * count, non_streaming_mode=False,
            max_new_tokens=4, **settings,
        )  # fmt: skip
    joint = torch.stack(found[:5]).prod(0) * torch.where(ended, torch.ones_like(found[5]), found[5])
    assert abs(float(joint.sum()) - 1) < 1e-5, float(joint.sum())
    save_file({"sequences": every, "probs": joint}, folder / "expected.safetensors")
    (folder / "cases.json").write_text(json.dumps({"text": text, "settings": settings}, indent=1))


def main(where: Path) -> None:
    write(where / "qwen3_tts", "base", codes=16, groups=4, width=32, spread=0.3, rare=0.55)
    record(where / "qwen3_tts")
    write(where / "qwen3_tts_joint", "custom_voice", codes=2, groups=2, width=24, spread=0.15, rare=1.0)
    record_joint(where / "qwen3_tts_joint")
    shutil.rmtree(where / "qwen3_tts_joint" / "speech_tokenizer")
    for folder in (where / "qwen3_tts", where / "qwen3_tts_joint"):
        found = load_file(folder / "expected.safetensors")
        print(folder, {name: list(value.shape) for name, value in found.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A call of each kind of object of transformers that `mmspec.accelerate` knows, at tiny random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import hf_image_cases
import tiny_music
import tiny_omni
import tiny_speech
import torch
from csm_joint import GREEDY as CSM_GREEDY
from csm_joint import PROMPTS as CSM_PROMPTS
from torch import Tensor

TEXT = torch.tensor([[5, 6, 7, 0], [8, 9, 3, 4]])
SPOKEN = torch.tensor([[0, 0, 5, 6, 7, 31], [8, 9, 3, 4, 5, 31]])
BARK_TEXT = torch.tensor([[1, 2, 3, 4, 5, 6], [5, 6, 7, 8, 18, 18]])
FLAT: dict[str, Any] = {
    "input_ids": torch.tensor([[0, 1, 2, 3], [1, 4, 2, 5]]),
    "max_new_tokens": 12,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Case:
    """A model and a call of its `generate`.

    Attributes:
        model: Makes the model.
        call: The arguments of a greedy call; a function of the model where they depend on it.
        sampled: What makes it sample.
        samples: Whether it can sample as the call stands.
    """

    model: Callable[[], Any]
    call: dict[str, Any] | Callable[[Any], dict[str, Any]]
    sampled: dict[str, Any] = field(default_factory=lambda: {"do_sample": True})

    def arguments(self, model: Any, **more: Any) -> dict[str, Any]:
        """A new copy of the arguments; Dia modifies them in place."""
        call = self.call(model) if callable(self.call) else self.call
        return {name: value.clone() if isinstance(value, Tensor) else value for name, value in (call | more).items()}


def image(name: str, guided: bool = True) -> Case:
    def call(model: Any) -> dict[str, Any]:
        mode = {"generation_mode": "image"} if name == "janus" else {}
        return hf_image_cases.arguments(name, model, guided) | mode | {"do_sample": False}

    return Case(hf_image_cases.CASES[name].model, call)


def columns(model: Callable[..., Any], **call: Any) -> Case:
    text = {"input_ids": TEXT, "attention_mask": (TEXT > 0).long(), "do_sample": False}
    return Case(model, text | call)


def dia_prompt() -> dict[str, Tensor]:
    """What `DiaProcessor` gives without audio to continue: delayed columns of 16 codes."""
    filled = torch.full((2, 4, 3), 17)
    for k, delay in enumerate((0, 2, 3)):
        filled[:, :delay, k], filled[:, delay, k] = 18, 18
    return {"decoder_input_ids": filled.int(), "decoder_attention_mask": torch.ones(filled.shape[:2]).long()}


def moshi_call(model: Any) -> dict[str, Any]:
    prompts = model.get_unconditional_inputs(num_samples=2)
    prompts["input_ids"] = torch.tensor([[12], [3]])
    how = {"do_sample": False, "depth_decoder_do_sample": False, "return_audio_codes": True, "max_new_tokens": 6}
    return {**prompts, **how}


def qwen2_5() -> Any:
    """A Qwen2.5-Omni whose sound is its codes."""
    model = tiny_omni.qwen2_5(2)
    model.token2wav.forward = lambda codes, **_: codes.float()
    return model


OMNI: dict[str, Any] = {
    **tiny_omni.prompts(), "thinker_max_new_tokens": 6, "thinker_eos_token_id": tiny_omni.END,
    "thinker_do_sample": False, "talker_max_new_tokens": 8, "talker_do_sample": False,
}  # fmt: skip

CASES: dict[str, Case] = {
    "flat": Case(tiny_speech.flat, {**FLAT, "do_sample": False}),
    **{
        name.lower(): Case(partial(tiny_speech.other_backbone, name), {**FLAT, "do_sample": False})
        for name in ("GPT2", "Gemma", "Gemma3", "Phi", "Phi3", "Lfm2", "Mistral", "Qwen2", "Qwen3")
    },
    **{name: image(name) for name in ("janus", "emu3", "anole", "lumina", "imagegpt")},
    "glm": image("glm", False),
    "musicgen": columns(tiny_music.musicgen, max_new_tokens=14, guidance_scale=3.0),
    "melody": columns(
        lambda: tiny_music.musicgen(melody=True), max_new_tokens=12, input_features=torch.ones(2, 3, 12) / 12
    ),
    "dia": columns(tiny_music.dia, max_new_tokens=20, guidance_scale=3.0, top_k=5, **dia_prompt()),
    "higgs": Case(
        tiny_music.higgs,
        {
            "input_ids": SPOKEN, "attention_mask": (SPOKEN > 0).long(), "max_new_tokens": 18, "do_sample": False,
        },
    ),
    "csm": Case(
        tiny_speech.csm,
        {"input_ids": CSM_PROMPTS, "attention_mask": (CSM_PROMPTS > 0).long(), "max_new_tokens": 6, **CSM_GREEDY},
        {"do_sample": True, "depth_decoder_do_sample": True},
    ),
    "csm audio": Case(
        lambda: tiny_speech.csm(codes=8),
        {
            "input_ids": CSM_PROMPTS, "attention_mask": (CSM_PROMPTS > 0).long(), "max_new_tokens": 6,
            "output_audio": True, **CSM_GREEDY,
        },
    ),
    "moshi": Case(tiny_speech.moshi, moshi_call, {"do_sample": True, "depth_decoder_do_sample": True}),
    "bark": Case(tiny_speech.bark, {"input_ids": BARK_TEXT}),
    "qwen2.5-omni": Case(
        qwen2_5, {**OMNI, "talker_eos_token_id": [19, 20], "speaker": "chelsie"}, {"talker_do_sample": True}
    ),
    "qwen3-omni": Case(lambda: tiny_omni.qwen3(3, codes=5, spread=0.3), OMNI, {"talker_do_sample": True}),
}  # fmt: skip


def flat(out: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(out, Tensor):
        return [out]
    if isinstance(out, dict):
        return [tensor for value in out.values() for tensor in flat(value)]
    if isinstance(out, (list, tuple)):
        return [tensor for value in out for tensor in flat(value)]
    return []

"""Speech pipelines of latents sample as the models' own `generate` does, with the settings of a generation config.

`tests/published` has no files of these models; the settings are mmspec's defaults for them.

Each test compares the first two latents of 1,500 rows of a pipeline at its defaults with as many of `generate`: the
means and second moments of their numbers, and of products of two numbers of one latent and of both. The largest z
exceeds its limit once in a million tests at most if both have one distribution. Power: another variance of the noise
(0.4 for 0.7), or another guidance scale (2 for 1.3), exceeds the limit in the same test.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import pytest
import torch
from part_runs import decode_rows
from tiny_latents import AUDIO, planned_head, pocket_processor, tiny, vibevoice, vibevoice_processor
from torch import Tensor
from transformers import LogitsProcessorList

import mmspec
import mmspec.audio.models.vibevoice.decoding
from mmspec.audio.pipeline import SpeechPipeline
from mmspec.recipes import parse

# diffusers hands tensors to NumPy in its solver.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ROWS, TEXT = 1500, "hello big world"


def moments(latents: Tensor) -> Tensor:
    """What has first and second moments as its means, [N, K], of latents [N, 2, D]."""
    first, second = latents.unbind(1)
    return torch.cat([latents.flatten(1), latents.flatten(1) ** 2, first * first.roll(1, -1), first * second], dim=1)


def excess(ours: Tensor, own: Tensor) -> float:
    """The largest z of the moments of two samples [N, 2, D], over its limit (Bonferroni's)."""
    both = torch.cat([ours, own]).double()
    centre, scale = both.mean(0), both.std(0)
    one, two = (moments((each.double() - centre) / scale) for each in (ours, own))
    z = (one.mean(0) - two.mean(0)).abs() / ((one.var(0) + two.var(0)) / len(one)).sqrt()
    return float(z.max()) / NormalDist().inv_cdf(1 - 1e-6 / 2 / len(z))


def latents_of(pipe: SpeechPipeline, **sampling: Any) -> Tensor:
    """The first two latents of rows of a pipeline at its defaults, [ROWS, 2, D]."""
    (part,) = pipe.read(TEXT, None).parts
    how = pipe._sampling(**sampling)
    return decode_rows(pipe.adapter, [part] * ROWS, parse(pipe.adapter.recipe), how, range(ROWS))[:, :2, :-1]


@pytest.mark.parametrize("family", ["pocket", "phonon"])
def test_pocket_and_phonon(family: str) -> None:
    model, processor = tiny(family), pocket_processor()
    for name, value in {"do_sample": True, "temperature": 0.7, "max_new_tokens": 2, "eos_threshold": -4.0}.items():
        setattr(model.generation_config, name, value)
    pipe = mmspec.load(model, processor=processor)
    prompt = processor.apply_chat_template([{"role": "user", "content": [{"type": "text", "text": TEXT}]}])
    torch.manual_seed(0)
    out = model.generate(
        **processor(text=[prompt] * ROWS, return_tensors="pt"), max_new_tokens=2, return_dict_in_generate=True
    )
    own = out.audio_latents
    assert excess(model.denormalize_latents(latents_of(pipe)), own) < 1
    assert excess(model.denormalize_latents(latents_of(pipe, temperature=0.4)), own) > 1


def test_vibevoice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides generate frames of audio only, which random weights would not."""
    monkeypatch.setattr(mmspec.audio.models.vibevoice.decoding, "VibeVoiceHead", planned_head([AUDIO]))
    model, processor = vibevoice(), vibevoice_processor()
    model.generation_config.guidance_scale, model.generation_config.num_diffusion_steps = 1.3, 10
    pipe = mmspec.load(model, processor=processor, config={"frames": 2})
    prompt = processor.apply_chat_template([{"role": "0", "content": [{"type": "text", "text": TEXT}]}])
    sample, found = model._sample_audio_latent, list[Tensor]()

    def record(*arguments: Any) -> Tensor:
        found.append(sample(*arguments))
        return found[-1]

    def frames(ids: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([AUDIO]), 0.0)

    monkeypatch.setattr(model, "_sample_audio_latent", record)  # own `generate` returns audio only
    torch.manual_seed(0)
    inputs = processor(text=[prompt] * ROWS, return_tensors="pt")
    model.generate(**inputs, max_new_tokens=2, logits_processor=LogitsProcessorList([frames]))
    own = torch.cat(found, dim=1)
    assert excess(latents_of(pipe), own) < 1
    assert excess(latents_of(pipe, guidance_scale=2.0), own) > 1

"""Pocket TTS by transformers' `generate`, and by mmspec; frames are latents, and greedy ones have no noise."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from cases import Case, Options, Run, parameters
from transformers import PocketTTSConfig, PocketTTSForConditionalGeneration

from mmspec.audio.models.pocket.decoding import speak

HEAD = {"hidden_size": 16, "num_hidden_layers": 2, "latent_dim": 4, "condition_dim": 32, "frequency_embedding_size": 16}
TINY: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "latent_dim": 4,
    "flow_head_config": HEAD,
}  # fmt: skip
SETTINGS: dict[str, Any] = {"temperature": 0.7, "num_flow_steps": 1, "eos_threshold": 1e9, "min_frames_before_eos": 6}


def prompt(model: Any, options: Options) -> dict[str, Any]:
    """Random text, then the place of the first frame."""
    ids = torch.randint(4, 100, (options.batch, 32), generator=torch.Generator().manual_seed(1))
    ids[:, -1] = model.config.audio_bos_token_id
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "frames_after_eos": 1}


def theirs(model: Any, options: Options, greedy: bool) -> Run:
    """Latents by transformers."""
    settings = SETTINGS | ({"temperature": None} if greedy else {})
    found = model.generate(
        **prompt(model, options), **settings, do_sample=not greedy, max_new_tokens=options.tokens,
        return_dict_in_generate=False,
    )  # fmt: skip
    return Run(torch.stack(list(found)), options.tokens)


def ours(recipe: str, model: Any, options: Options, greedy: bool) -> Run:
    """Latents by mmspec."""
    settings = SETTINGS | ({"temperature": 0.0} if greedy else {})
    seed = int(torch.randint(2**31, ()).item())
    out = speak(model, prompt(model, options), recipe, seed=seed, max_frames=options.tokens, **settings)
    return Run(out.audio_latents, options.tokens, None if recipe == "plain" else out.stats.target_calls)


def pocket(options: Options) -> Case:
    """The case of Pocket TTS; its recipes are relaxed rules."""
    config = PocketTTSConfig(**(TINY if options.size == "tiny" else {}))
    model = PocketTTSForConditionalGeneration(config).eval().to(options.dtype)
    jobs = {
        "transformers generate": partial(theirs, model, options),
        "mmspec plain": partial(ours, "plain", model, options),
    }
    for recipe in options.recipes:
        jobs[f"mmspec {recipe}"] = partial(ours, recipe, model, options)
    relaxed = frozenset(f"mmspec {recipe}" for recipe in options.recipes)
    return Case(f"Pocket TTS, {parameters(model)}", jobs, relaxed, tolerance=1e-3)

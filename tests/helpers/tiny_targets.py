"""Targets of two rows: a tiny LlamaGen and a tiny Janus of transformers, both guided, and a tiny ImageGPT."""

from __future__ import annotations

from typing import Any

import tiny_llamagen
import torch
from hf_image_cases import CASES, arguments, job_of

from mmspec.vision.llamagen.target import LlamaGenTarget


def llamagen(slack: int = 24, layers: int = 2) -> LlamaGenTarget:
    torch.manual_seed(0)  # for the unconditional embedding
    gpt = tiny_llamagen.tiny(grid_size=4, n_layer=layers)
    condition = torch.randn(2, tiny_llamagen.T, tiny_llamagen.C, generator=torch.Generator().manual_seed(1))
    return LlamaGenTarget(gpt, condition, gpt.unconditional(2), None, slack=slack)


def causal(slack: int = 24, layers: int = 2) -> Any:
    model = CASES["janus"].model(num_hidden_layers=layers)
    job = job_of(model, arguments("janus", model, True))
    return job.target(job.plan, slack)


def one_by_one(slack: int = 24, layers: int = 2) -> Any:
    """An ImageGPT, whose layers mmspec calls one by one."""
    model = CASES["imagegpt"].model(n_layer=layers)
    job = job_of(model, arguments("imagegpt", model, True))
    return job.target(job.plan, slack)

"""The joint distribution of a tiny CSM's frames, from transformers' own passes, and the calls that sample from it."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler

PROMPTS = torch.tensor([[0, 3, 4, 5], [6, 7, 8, 9]])
GREEDY = {"do_sample": False, "depth_decoder_do_sample": False}
FIRST, REST = SamplingParams(0.8, top_p=0.95), SamplingParams(1.2, top_p=0.95)


def joint_probs(model: Any, frames: int) -> Tensor:
    """Probabilities of all sequences of two codes, from passes of transformers, float64 [2 ** (3 * frames)]."""
    every = torch.tensor(list(product(range(2), repeat=3 * frames))).unflatten(1, (frames, 3))
    count = len(every)
    text = model.embed_text_tokens(PROMPTS[1:]).expand(count, -1, -1)
    made = model.backbone_model.embed_tokens(every)
    hidden = model.backbone_model(inputs_embeds=torch.cat([text, made], dim=1)).last_hidden_state
    first, rest = TokenSampler([FIRST] * count, None, text.device), TokenSampler([REST] * count, None, text.device)
    joint, alive = torch.ones(count, dtype=torch.float64), torch.ones(count, dtype=torch.bool)
    here = torch.zeros(count, 1).long().numpy()
    for t in range(frames):
        state = hidden[:, text.shape[1] - 1 + t]
        frame = every[:, t]
        ids = torch.cat([torch.zeros(count, 1, dtype=torch.int64), frame[:, :-1]], dim=1)
        depth = model.depth_decoder(input_ids=ids, backbone_last_hidden_state=state).logits  # after the first code
        p = [first.probs(Logits(model.lm_head(state)[:, None], None), here)[:, 0].gather(1, frame[:, :1])]
        p += [
            rest.probs(Logits(depth[:, j : j + 1], None), here)[:, 0].gather(1, frame[:, j + 1 : j + 2])
            for j in range(2)
        ]
        joint *= torch.where(alive, torch.cat(p, dim=1).prod(1), (frame == 1).all(1)).double()
        alive &= ~(frame[:, :-1] == 0).all(-1)
    return joint

"""Records what the code of the first MOSS-TTS-Local computes for a tiny model; writes tests/golden/moss_local_v1.json.

Run with the folder `moss_tts_local` of github.com/OpenMOSS/MOSS-TTS as the only argument. Its sampling loop runs as it
is, without a KV cache and with the text's ids restricted to a frame and the end; its processor is made without its
codec.
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

import torch
from golden import GOLDEN
from tiny_moss import IDS, tokenizer
from tiny_moss_local_v1 import config, fill_model

MESSAGES: list[dict[str, Any]] = [
    {"text": "one two three"},
    {"text": "two", "language": "French", "instruction": "Slowly.", "tokens": 12},
    {"text": "three one", "reference": [torch.tensor([[1, 2, 3], [4, 5, 6], [7, 0, 1]])]},
]
SAMPLING = {"audio_temperature": 1.7, "audio_top_p": 0.8, "audio_top_k": 4, "audio_repetition_penalty": 1.6}
# Of the most likely codes: without processors, and with the penalty.
GREEDY: dict[str, dict[str, Any]] = {
    "plain": {"text_temperature": 0, "audio_temperature": 0},
    "penalized": {"text_temperature": 0, "audio_top_k": 1, "audio_repetition_penalty": 1.6},
}
FRAMES = 10


class Stops:
    """The end of a row, or of all."""

    eos_token_id = IDS["<|audio_end|>"]

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Stops]:
        return iter([self])

    def __call__(self, ids: torch.Tensor, scores: Any) -> torch.Tensor:
        return (ids[:, -1] == self.eos_token_id) | (ids.shape[1] >= self.length)


def main(source: Path) -> None:
    for name in ("torchaudio", "tqdm"):
        sys.modules[name] = MagicMock(__spec__=importlib.machinery.ModuleSpec(name, None))
    package = ModuleType("moss")
    package.__path__ = [str(source)]
    sys.modules["moss"] = package
    from moss import modeling_moss_tts as module
    from moss.configuration_moss_tts import MossTTSDelayConfig
    from moss.processing_moss_tts import MossTTSDelayProcessor
    from transformers import GenerationConfig

    given = {name: value for name, value in config().items() if name not in ("architectures", "model_type")}
    values = MossTTSDelayConfig(**given)
    values.language_config._attn_implementation = "sdpa"  # the other kind is not causal along the depth
    with patch.object(module.MossTTSDelayModel, "post_init"), patch.object(module.MosiTTSModel, "post_init"):
        model = fill_model(module.MossTTSDelayModel(values)).float().eval()
    model.local_transformer.config._attn_implementation = "sdpa"
    only = torch.full((values.vocab_size,), -torch.inf)
    only[[IDS["<|gen_slot|>"], IDS["<|audio_end|>"]]] = 0
    model.lm_heads[0].register_forward_hook(lambda head, args, logits: logits + only)
    processor = MossTTSDelayProcessor.__new__(MossTTSDelayProcessor)
    processor.tokenizer, processor.model_config = tokenizer(), values
    marks = {"user_slot": "user_slot", "assistant_gen_slot": "gen_slot", "assistant_delay_slot": "delay_slot",
             "start": "audio_start", "end": "audio_end"}  # fmt: skip
    for name, mark in marks.items():
        setattr(processor, f"audio_{name}_token", f"<|audio_{mark}|>" if mark == "user_slot" else f"<|{mark}|>")
    batch = processor([[processor.build_user_message(**message)] for message in MESSAGES])
    ids, mask = batch["input_ids"], batch["attention_mask"]
    start = ids.shape[1]

    def inputs(ids: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        seen = torch.cat([mask, mask.new_ones(len(mask), ids.shape[1] - start)], dim=1)
        return {"input_ids": ids, "attention_mask": seen, "position_ids": (seen.long().cumsum(-1) - 1).clamp(min=0)}

    model.prepare_inputs_for_generation = inputs
    model._get_initial_cache_position = lambda length, device, kwargs: kwargs
    model._update_model_kwargs_for_generation = lambda outputs, kwargs: kwargs
    model._has_unfinished_sequences = lambda finished, synced, device: not finished

    def run(**sampling: Any) -> torch.Tensor:
        settings = model._build_generation_config(GenerationConfig(), FRAMES, **sampling)
        settings.return_dict_in_generate = True
        settings.output_scores = settings.output_attentions = settings.output_hidden_states = False
        settings.output_logits = False
        with patch.object(module, "create_causal_mask", lambda **_: None), torch.no_grad():
            made = model._sample(ids.clone(), None, Stops(start + FRAMES), settings, False)
        return made.sequences[:, start:]

    prompts = [own[seen].tolist() for own, seen in zip(ids, mask, strict=True)]
    found: dict[str, Any] = {"sampling": SAMPLING, "prompts": prompts, "greedy": {}}
    for name, sampling in GREEDY.items():
        frames = run(**sampling)
        ends = [(row[:, 0] == Stops.eos_token_id).nonzero().flatten().tolist() for row in frames]
        found["greedy"][name] = [
            row[: end[0] if end else None, 1:].tolist() for row, end in zip(frames, ends, strict=True)
        ]
    seen: list[list[float]] = []

    def most_likely(probs: torch.Tensor, num_samples: int) -> torch.Tensor:
        """Records a distribution of the third prompt, and goes on with the most likely code, and a frame."""
        text = probs.shape[-1] == values.vocab_size
        own = probs[2, [IDS["<|gen_slot|>"], IDS["<|audio_end|>"]]] if text else probs[2, : values.audio_vocab_size]
        seen.append([round(x, 6) for x in own.tolist()])
        chosen = probs.argmax(-1, keepdim=True)
        return torch.full_like(chosen, IDS["<|gen_slot|>"]) if text else chosen

    with patch.object(torch, "multinomial", most_likely):
        frames = run(**SAMPLING)
    found["frames"] = frames[2, :4, 1:].tolist()
    found["probs"] = seen[: 4 * (1 + values.n_vq)]
    file = GOLDEN / "moss_local_v1.json"
    file.write_text(json.dumps(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

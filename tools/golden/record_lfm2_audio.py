"""Records what liquid-audio computes for a tiny LFM2-Audio; writes tests/golden/lfm2_audio.json.

Run with Python 3.12 and the packages liquid-audio 1.3.0 and transformers 5.24. Nothing of its generation is replaced
but the random numbers of the second run, whose probabilities are recorded along a given path. The decoder of
LFM2.5-Audio has smaller layers around the same computation.
"""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from golden import GOLDEN
from liquid_audio import ChatState, LFM2AudioModel, LFM2AudioProcessor
from liquid_audio.detokenizer import ISTFT, FusedEmbedding, LFM2AudioDetokenizer
from liquid_audio.model.conformer.encoder import ConformerEncoderConfig
from liquid_audio.model.lfm2_audio import DepthformerConfig, LFM2AudioConfig
from liquid_audio.processor import PreprocessorConfig
from tiny_lfm2_audio import (
    BINS,
    BOOKS,
    DETOKENIZER,
    TEXTS,
    WIDTH,
    config,
    detokenizer_weights,
    some_codes,
    tokenizer,
    weights,
)  # fmt: skip
from torch import Tensor, nn
from transformers import Lfm2Config

VOICES = ["UK male", "US female", "UK male"]
FRAMES, TEMPERATURE, TOP_K = 24, 0.8, 6
END = 1.0  # how likely an end is
CODES = 2048  # as in the package's code


def model() -> Any:
    found = config()
    parts = {
        "lfm": Lfm2Config(**found.pop("lfm")),
        "encoder": ConformerEncoderConfig(**found.pop("encoder")),
        "depthformer": DepthformerConfig(**found.pop("depthformer")),
    }
    made = LFM2AudioModel(LFM2AudioConfig(**parts, **found)).eval()
    missing, unknown = made.load_state_dict(weights(CODES, END), strict=False)
    own = ("conformer.", "audio_adapter.", "codebook_offsets", "audio_loss_weights")
    assert not unknown and all(name.startswith(own) for name in missing), (missing, unknown)
    return made


def chat(processor: Any, text: str, voice: str) -> Any:
    made = ChatState(processor, codebooks=BOOKS, dtype=torch.float32)
    for role, said in (("system", f"Perform TTS. Use the {voice} voice."), ("user", text)):
        made.new_turn(role)
        made.add_text(said)
        made.end_turn()
    made.new_turn("assistant")
    return made


def frames(found: Any) -> tuple[list[int], list[list[int]]]:
    """The text ids before the audio, and its frames before the end."""
    texts, audio = list[int](), list[list[int]]()
    for token in found:
        if token.numel() > 1 and int(token[0]) == CODES:
            break
        texts += token.tolist() if token.numel() == 1 else []
        audio += [token.tolist()] if token.numel() > 1 else []
    return texts, audio


def sampled(made: Any, prompt: Any, path: list[list[int]]) -> list[list[float]]:
    """The probabilities of the codes along a path, of the most likely ids only, whose others are 0."""
    taken, probabilities = iter([code for frame in path for code in frame]), list[Any]()

    def multinomial(probs: Tensor, _: int) -> Tensor:
        kept = probs.nonzero()[:, 0]
        probabilities.append([[int(i), round(float(probs[i]), 6)] for i in kept])
        return torch.tensor([next(taken)])

    settings = {"audio_temperature": TEMPERATURE, "audio_top_k": TOP_K}
    with patch.object(torch, "multinomial", multinomial):
        list(made.generate_sequential(**prompt, max_new_tokens=1 + len(path), **settings))
    return probabilities


def audio() -> list[list[float]]:
    made = LFM2AudioDetokenizer.__new__(LFM2AudioDetokenizer)
    nn.Module.__init__(made)
    settings = {**DETOKENIZER, "layer_types": ["conv", "full_attention", "full_attention"]}
    made.lfm = type(model().lfm)(Lfm2Config(**settings))
    made.emb = FusedEmbedding(WIDTH, BOOKS, 12)
    made.lin, size = nn.Linear(WIDTH, 2 * BINS), 2 * (BINS - 1)
    made.istft, made.sliding_window_size = ISTFT(size, size // 4, size), DETOKENIZER["sliding_window"]
    made.load_state_dict(detokenizer_weights(), strict=False)
    with torch.no_grad():
        found: list[list[float]] = made.eval()(some_codes()).tolist()
    return [[round(each, 5) for each in row] for row in found]


def main() -> None:
    made = model()
    with TemporaryDirectory() as folder:
        tokenizer().save_pretrained(folder)
        processor = LFM2AudioProcessor(folder, PreprocessorConfig(**config()["preprocessor"]))
    prompts = [chat(processor, text, voice) for text, voice in zip(TEXTS, VOICES, strict=True)]
    greedy = [frames(made.generate_sequential(**prompt, max_new_tokens=FRAMES + 1)) for prompt in prompts]
    path = greedy[1][1][:3] + [[7, 5, 900], [1, 2, 3]]
    found: dict[str, Any] = {
        "codes": CODES, "end": END, "frames": FRAMES, "temperature": TEMPERATURE, "top_k": TOP_K, "voices": VOICES,
        "prompts": [prompt.text[0].tolist() for prompt in prompts],
        "begins": [texts for texts, _ in greedy], "greedy": [own for _, own in greedy],
        "path": path, "probs": sampled(made, prompts[1], path), "audio": audio(),
    }  # fmt: skip
    print(found["begins"], [len(own) for own in found["greedy"]])
    (GOLDEN / "lfm2_audio.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()

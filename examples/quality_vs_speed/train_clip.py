"""Trains a small CLIP on shapes scenes, so that CLIP score can be computed without a download.

Command: python examples/quality_vs_speed/train_clip.py --out examples/quality_vs_speed/clip --steps 800
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from mmspec.vision.shapes.domain import IMAGE_SIZE, LOOKS, Look, omit_values, sample_scene
from mmspec.vision.shapes.grammar import WORDS as GRAMMAR_WORDS
from mmspec.vision.shapes.grammar import describe
from mmspec.vision.shapes.render import render_batch

WORDS = (*GRAMMAR_WORDS, "a", "an")
LONGEST = 32  # tokens of a prompt


def tokenizer() -> CLIPTokenizer:
    """CLIP's tokenizer with the words of the domain as its vocabulary, each merged from its letters, left to right."""
    pieces = ["<|startoftext|>", "<|endoftext|>", *sorted({letter for word in WORDS for letter in word})]
    pieces += [f"{letter}</w>" for letter in pieces[2:]]
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        letters = [*word[:-1], f"{word[-1]}</w>"]
        while len(letters) > 1:
            merges.append((letters[0], letters[1]))
            letters[:2] = [letters[0] + letters[1]]
            pieces.append(letters[0])
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    return CLIPTokenizer(vocab=vocabulary, merges=list(dict.fromkeys(merges)))


def batch(rng: random.Random, size: int, look: Look) -> tuple[torch.Tensor, list[str]]:
    """Scenes preprocessed for CLIP, float32 [B, 3, 64, 64], and prompts that describe them more or less completely."""
    scenes = [sample_scene(rng, look=look) for _ in range(size)]
    pixels = (render_batch(scenes) + 1) / 2
    mean, deviation = (torch.tensor(v)[:, None, None] for v in (processor().image_mean, processor().image_std))
    return (pixels - mean) / deviation, [describe(omit_values(scene.caption, rng)) for scene in scenes]


def processor() -> CLIPImageProcessorPil:
    """CLIP's image processor at the size of the scenes."""
    side = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    return CLIPImageProcessorPil(size={"shortest_edge": IMAGE_SIZE}, crop_size=side)


def train(out: Path, steps: int, size: int, look: Look) -> None:
    """Trains by the symmetric contrastive loss in batches of `size`, and saves every 50 steps and at the end."""
    torch.manual_seed(0)
    rng, words = random.Random(0), tokenizer()
    width = {"hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 4}
    config = CLIPConfig(
        text_config={
            **width, "num_hidden_layers": 2, "vocab_size": len(words), "max_position_embeddings": LONGEST,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
        },
        vision_config={**width, "num_hidden_layers": 3, "image_size": IMAGE_SIZE, "patch_size": 8},
        projection_dim=64,
    )  # fmt: skip
    model = CLIPModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, steps, pct_start=0.1)
    start = time.monotonic()
    for step in range(steps):
        pixels, prompts = batch(rng, size, look)
        tokens = words(prompts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(**tokens, pixel_values=pixels).logits_per_image.float()
        own = torch.arange(size)
        loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            matched = float((logits.argmax(1) == own).float().mean())
            seconds = time.monotonic() - start
            line = f"step {step + 1} loss {loss.item():.3f} matched of {size} {matched:.2f} {seconds:.0f} s"
            print(line, file=sys.stderr, flush=True)
            save(model, words, out)
    save(model, words, out)


def save(model: CLIPModel, words: CLIPTokenizer, out: Path) -> None:
    """Writes the folder that `--clip` takes, weights in fp16."""
    weights = {key: value.half() if value.is_floating_point() else value for key, value in model.state_dict().items()}
    model.save_pretrained(out, state_dict=weights)
    processor().save_pretrained(out)
    words.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--look", choices=sorted(LOOKS), default="rough", help="style of the scenes")
    args = parser.parse_args()
    train(args.out, args.steps, args.batch, LOOKS[args.look])


if __name__ == "__main__":
    main()

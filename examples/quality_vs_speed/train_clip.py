"""Trains a small CLIP on images of an embedded model's domain, so that CLIP score can be computed without a download.

Commands:
    export PYTHONPATH=examples/embedded
    python examples/quality_vs_speed/train_clip.py --out examples/quality_vs_speed/clip --steps 800
    python examples/quality_vs_speed/train_clip.py --domain scenes --out runs/clip --steps 500
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F
from train_scenes import render as scenes_render
from train_shapes import render as shapes_render
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

import mmspec.vision.scenes.domain as scenes
import mmspec.vision.shapes.domain as shapes
from mmspec.vision.scenes import grammar as scenes_grammar
from mmspec.vision.shapes import grammar as shapes_grammar


@dataclass(frozen=True)
class Domain:
    """What the images show and the prompts say.

    Attributes:
        words: Of all prompts.
        side: Of an image, pixels.
        patch: Of the image encoder, pixels.
        longest: Tokens of the longest prompt.
        sample: Random images in [-1, 1], float32 [n, 3, side, side], and prompts that describe them more or less
            completely.
    """

    words: tuple[str, ...]
    side: int
    patch: int
    longest: int
    sample: Callable[[random.Random, int], tuple[torch.Tensor, list[str]]]


def sample_shapes(look: shapes.Look) -> Callable[[random.Random, int], tuple[torch.Tensor, list[str]]]:
    """`Domain.sample` of `shapes` in a look."""

    def sample(rng: random.Random, n: int) -> tuple[torch.Tensor, list[str]]:
        drawn = [shapes.sample_scene(rng, look=look) for _ in range(n)]
        texts = [shapes_grammar.describe(shapes.omit_values(scene.caption, rng)) for scene in drawn]
        return shapes_render.render_batch(drawn), texts

    return sample


def sample_scenes(rng: random.Random, n: int) -> tuple[torch.Tensor, list[str]]:
    """`Domain.sample` of `scenes`."""
    drawn = [scenes.sample_scene(rng) for _ in range(n)]
    texts = [scenes_grammar.describe(scenes.omit_values(scene.caption, rng)) for scene in drawn]
    return scenes_render.render_batch(drawn), texts


DOMAINS = {
    **{
        look: Domain(shapes_grammar.WORDS, shapes.IMAGE_SIZE, 8, 32, sample_shapes(shapes.LOOKS[look]))
        for look in shapes.LOOKS
    },
    "scenes": Domain((*scenes_grammar.WORDS, "the", "and", ","), scenes.IMAGE_SIZE, 12, 64, sample_scenes),
}


def tokenizer(domain: Domain) -> CLIPTokenizer:
    """CLIP's tokenizer with the words of the domain as its vocabulary, each merged from its letters, left to right."""
    words = (*domain.words, "a", "an")
    pieces = ["<|startoftext|>", "<|endoftext|>", *sorted({letter for word in words for letter in word})]
    pieces += [f"{letter}</w>" for letter in pieces[2:]]
    merges: list[tuple[str, str]] = []
    for word in words:
        letters = [*word[:-1], f"{word[-1]}</w>"]
        while len(letters) > 1:
            merges.append((letters[0], letters[1]))
            letters[:2] = [letters[0] + letters[1]]
            pieces.append(letters[0])
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    return CLIPTokenizer(vocab=vocabulary, merges=list(dict.fromkeys(merges)))


def batch(rng: random.Random, size: int, domain: Domain) -> tuple[torch.Tensor, list[str]]:
    """Images preprocessed for CLIP, float32 [B, 3, H, W], and their prompts."""
    images, prompts = domain.sample(rng, size)
    reader = processor(domain)
    mean, deviation = (torch.tensor(v)[:, None, None] for v in (reader.image_mean, reader.image_std))
    return ((images + 1) / 2 - mean) / deviation, prompts


def processor(domain: Domain) -> CLIPImageProcessorPil:
    """CLIP's image processor at the size of the images."""
    side = {"height": domain.side, "width": domain.side}
    return CLIPImageProcessorPil(size={"shortest_edge": domain.side}, crop_size=side)


def train(out: Path, steps: int, size: int, domain: Domain) -> None:
    """Trains by the symmetric contrastive loss in batches of `size`, and saves every 50 steps and at the end."""
    torch.manual_seed(0)
    rng, words = random.Random(0), tokenizer(domain)
    width = {"hidden_size": 96, "intermediate_size": 192, "num_attention_heads": 4}
    config = CLIPConfig(
        text_config={
            **width, "num_hidden_layers": 2, "vocab_size": len(words), "max_position_embeddings": domain.longest,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
        },
        vision_config={**width, "num_hidden_layers": 3, "image_size": domain.side, "patch_size": domain.patch},
        projection_dim=64,
    )  # fmt: skip
    model = CLIPModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, steps, pct_start=0.1)
    start = time.monotonic()
    for step in range(steps):
        pixels, prompts = batch(rng, size, domain)
        tokens = words(prompts, padding=True, truncation=True, max_length=domain.longest, return_tensors="pt")
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
            save(model, words, domain, out)
    save(model, words, domain, out)


def save(model: CLIPModel, words: CLIPTokenizer, domain: Domain, out: Path) -> None:
    """Writes the folder that `--clip` takes, weights in fp16."""
    weights = {key: value.half() if value.is_floating_point() else value for key, value in model.state_dict().items()}
    model.save_pretrained(out, state_dict=weights)
    processor(domain).save_pretrained(out)
    words.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--domain", choices=sorted(DOMAINS), default="rough", help="a look of shapes, or scenes")
    args = parser.parse_args()
    train(args.out, args.steps, args.batch, DOMAINS[args.domain])


if __name__ == "__main__":
    main()

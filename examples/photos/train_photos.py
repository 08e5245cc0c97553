"""Trains a class-conditional image model on a folder of photographs: tokenizer, transformer, draft model.

Command:  PYTHONPATH=../embedded OMP_NUM_THREADS=1 python train_photos.py PHOTOS --out runs/photos

A restarted command continues where it was stopped. `mmspec.load("runs/photos/model")` loads the result.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from photo_crops import SIDE, Crops, cut_all, photographs
from PIL import Image
from torch import Tensor
from train_scenes.config import GPTTraining
from train_scenes.gpt import bits_per_token, fit
from train_shapes.config import TokenizerTraining
from train_shapes.tokenizer import fit as fit_tokenizer

from mmspec.vision.llamagen.gpt import LlamaGenGPT
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.shapes.tokenizer import ShapesTokenizer

PARTS = {"target": "transformer", "draft": "draft_transformer"}


@dataclass(frozen=True)
class Settings:
    """How much is trained; minutes are CPU time of one thread."""

    classes: int = 16
    per_photo: int = 8
    tokenizer: TokenizerTraining = TokenizerTraining(steps=2000, pool=6144)
    target: GPTTraining = GPTTraining(dim=192, n_layer=6, n_head=4, ffn_dim=512, cpu_minutes=5, checkpoint_minutes=5)
    draft: GPTTraining = GPTTraining(dim=96, n_layer=1, n_head=2, ffn_dim=256, cpu_minutes=0.7)


def floats(images: Tensor) -> Tensor:
    """Crops uint8 [n, 3, h, w] as the tokenizer reads them, in [-1, 1]."""
    return images.float() / 127.5 - 1


def encode(tokenizer: ShapesTokenizer, images: Tensor) -> Tensor:
    """Tokens int16 [n, N] of crops."""
    return torch.cat([tokenizer.encode(floats(some)).to(torch.int16) for some in images.split(64)])


def cut_photos(photos: Path, attribution: Path | None, out: Path, settings: Settings) -> Crops:
    """The crops, and a line for each photograph that is used in `model/attribution.txt`."""
    file = out / "crops.pt"
    if not file.exists():
        found = dict(photographs(photos, attribution))
        crops, used = cut_all(list(found), settings.per_photo, settings.classes)
        (out / "model").mkdir(parents=True, exist_ok=True)
        text = "".join(f"{found[path]}\n" for path in used)
        (out / "model/attribution.txt").write_text(text, encoding="utf-8")
        crops.save(file)
    return Crops.load(file)


def train_tokenizer(crops: Crops, out: Path, settings: Settings) -> ShapesTokenizer:
    """A tokenizer each of whose tokens depends on 5 x 5 patches: neighbors read alone would be too independent."""
    done = out / "tokenizer.done"
    if not done.exists():
        torch.manual_seed(0)
        config = settings.tokenizer
        pool = floats(crops.images[torch.randperm(len(crops.images))[: config.pool]])
        fit_tokenizer(ShapesTokenizer(image_size=SIDE, kernel=3), pool, floats(crops.held_out), config, out / "model")
        done.touch()
    tokenizer: ShapesTokenizer = ShapesTokenizer.from_pretrained(out / "model/vqvae").float().eval()
    return tokenizer


def encoded(tokenizer: ShapesTokenizer, crops: Crops, out: Path) -> tuple[Tensor, Tensor]:
    """Tokens of the crops, and of the held-out ones."""
    file = out / "tokens.pt"
    if not file.exists():
        torch.save((encode(tokenizer, crops.images), encode(tokenizer, crops.held_out)), file.with_suffix(".new"))
        file.with_suffix(".new").rename(file)
    tokens: tuple[Tensor, Tensor] = torch.load(file)
    return tokens


def train(photos: Path, attribution: Path | None, out: Path, settings: Settings, compiled: bool) -> LlamaGenPipeline:
    """Trains everything that is not there yet, and returns the pipeline that `model` in `out` holds."""
    out.mkdir(parents=True, exist_ok=True)
    crops = cut_photos(photos, attribution, out, settings)
    tokenizer = train_tokenizer(crops, out, settings)
    tokens, held_out = encoded(tokenizer, crops, out)

    def pick(numbers: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return tokens[numbers].long(), crops.classes[numbers]

    one = slice(None, None, settings.per_photo)  # crop of each held-out photograph, since bits are taken often
    bits = partial(bits_per_token, tokens=held_out[one], condition=crops.held_out_classes[one])
    for name, config in (("target", settings.target), ("draft", settings.draft)):
        torch.manual_seed(0)
        gpt = LlamaGenGPT(
            vocab_size=tokenizer.vocab_size, dim=config.dim, n_layer=config.n_layer, n_head=config.n_head,
            ffn_dim=config.ffn_dim, model_type="c2i", num_classes=settings.classes, cls_token_num=1,
            grid_size=tokenizer.grid_size, rope_base=100.0, qk_norm=True, position_embedding=True,
        )  # fmt: skip
        gpt.init_weights()
        fit(gpt, pick, len(tokens), bits, config, out / f"{name}.pt", out / "model" / PARTS[name], compiled)
    parts = {name: LlamaGenGPT.from_pretrained(out / "model" / part).float() for name, part in PARTS.items()}
    pipe = LlamaGenPipeline(parts["target"], tokenizer, draft_transformer=parts["draft"])
    pipe.save_config(out / "model")
    return pipe


def samples(pipe: LlamaGenPipeline, classes: int, file: Path) -> None:
    """Writes sixteen images side by side, with seeds 0 to 15."""
    images = pipe(class_labels=[i % classes for i in range(16)], seed=list(range(16))).images
    sheet = Image.new("RGB", (4 * SIDE, 4 * SIDE))
    for i, image in enumerate(images):
        sheet.paste(image, (i % 4 * SIDE, i // 4 * SIDE))
    sheet.save(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder of photographs")
    parser.add_argument("--attribution", type=Path, help="a file whose lines begin with the names of those to take")
    parser.add_argument("--out", type=Path, default=Path("runs/photos"))
    parser.add_argument("--minutes", type=float, default=Settings.target.cpu_minutes, help="CPU time of the target")
    parser.add_argument("--compile", action="store_true", help="use torch.compile, which needs a C++ compiler")
    args = parser.parse_args()
    settings = Settings(target=replace(Settings.target, cpu_minutes=args.minutes))
    pipe = train(args.photos, args.attribution, args.out, settings, args.compile)
    samples(pipe, settings.classes, args.out / "samples.png")


if __name__ == "__main__":
    main()

"""A small classifier that predicts an image's caption, to measure whether samples follow their prompts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import nn

from mmspec.vision.scenes.domain import (
    ANY,
    BACKGROUND_SLOTS,
    IMAGE_SIZE,
    NONE,
    OBJECT_SLOTS,
    PLACES,
    QUADRANT,
    SLOTS,
    Caption,
)
from mmspec.vision.scenes.grammar import parse

Scores = dict[str, float]


class ScenesClassifier(ModelMixin, ConfigMixin):
    """Predicts the values of all slots from images [B, 3, 96, 96] in [-1, 1].

    Every quadrant is read by the same convolutional network, whose features give the slots of its object; the mean of
    the features of the four quadrants gives the slots of the background.

    Args:
        channels: Channels of the first convolution.
        hidden: Width of the features of a quadrant.
    """

    image_size = IMAGE_SIZE

    @register_to_config
    def __init__(self, channels: int = 32, hidden: int = 192) -> None:
        super().__init__()
        widths = (3, channels, 2 * channels, 3 * channels, 4 * channels)
        layers: list[nn.Module] = []
        for before, after in zip(widths[:-1], widths[1:], strict=True):
            layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.BatchNorm2d(after), nn.SiLU()]
            layers += [nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.SiLU()]
        cells = (QUADRANT // 16) ** 2
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * cells, hidden), nn.SiLU())
        self.object_head = nn.Linear(hidden, sum(len(values) for _, values in OBJECT_SLOTS))
        self.background_head = nn.Linear(hidden, sum(len(values) for _, values in BACKGROUND_SLOTS))

    def quadrants(self, images: torch.Tensor) -> torch.Tensor:
        """Features [B, 4, hidden] of the quadrants, in the order of `PLACES`."""
        rows = images.unflatten(2, (2, QUADRANT)).unflatten(4, (2, QUADRANT))  # [B, 3, 2, Q, 2, Q]
        parts = rows.permute(0, 2, 4, 1, 3, 5).flatten(0, 2)  # [B * 4, 3, Q, Q]
        features: torch.Tensor = self.body(parts.contiguous(memory_format=torch.channels_last))
        return features.unflatten(0, (-1, len(PLACES)))

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """The mean [B, hidden] of the features of the quadrants."""
        return self.quadrants(images).mean(1)

    def slot_logits(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Logits of each of `SLOTS`, a tensor [B, values] each; "any" is never a class of an image."""
        features = self.quadrants(images)
        objects = self.object_head(features)
        parts: list[torch.Tensor] = []
        for q in range(len(PLACES)):
            parts += objects[:, q].split([len(values) for _, values in OBJECT_SLOTS], -1)
        background = self.background_head(features.mean(1))
        parts += background.split([len(values) for _, values in BACKGROUND_SLOTS], -1)
        masks = [torch.tensor([value == ANY for value in values], device=images.device) for _, values in SLOTS]
        return [part.masked_fill(mask, -1e4) for part, mask in zip(parts, masks, strict=True)]

    @torch.no_grad()
    def predict(self, images: torch.Tensor) -> list[Caption]:
        """The caption of each image, in which every slot has a value."""
        self.eval()
        found = [
            torch.stack([p.argmax(1) for p in self.slot_logits(b.to(self.dtype))], 1)
            for b in images.to(self.device).split(64)
        ]
        return [Caption.from_indices(row) for row in torch.cat(found).tolist()]

    def score(self, images: torch.Tensor, prompts: Sequence[str]) -> Scores:
        """Shares of correct attributes and of fully correct captions; see `score_captions`."""
        return score_captions(self.predict(images), [parse(prompt) for prompt in prompts])

    def score_each(self, images: torch.Tensor, prompts: Sequence[str]) -> list[Scores]:
        """The scores of each image against its own prompt."""
        pairs = zip(self.predict(images), prompts, strict=True)
        return [score_captions([seen], [parse(prompt)]) for seen, prompt in pairs]


def score_captions(seen: Sequence[Caption], wanted: Sequence[Caption]) -> Scores:
    """Compares predicted captions with prompts; attributes that a prompt does not state are not counted.

    Args:
        seen: Predicted captions.
        wanted: The captions of the prompts.

    Returns:
        `attributes`, the share of stated attributes that are correct, `captions`, the share of prompts whose attributes
        are all correct, and the share of each attribute: kind, color, fill (of objects that the prompt names), empty (a
        quadrant without an object has none), texture and background.
    """
    hits: dict[str, list[bool]] = {
        name: [] for name in ("kind", "color", "fill", "empty", "texture", "background", "captions")
    }
    everything: list[bool] = []
    for found, want in zip(seen, wanted, strict=True):
        row: list[tuple[str, bool]] = []
        for a, b in zip(found.slots(), want.slots(), strict=True):
            name = _NAMES[len(row)]
            row.append((name, b == ANY or a == b))
        stated = []
        for (name, right), value, first in zip(row, want.slots(), _FIRST_OF_OBJECT, strict=True):
            if value == ANY or (value == NONE and not first):
                continue
            key = "empty" if value == NONE else name
            hits[key].append(right)
            stated.append(right)
        everything += stated
        hits["captions"].append(all(stated))
    scores = {name: sum(each) / len(each) for name, each in hits.items() if each}
    return {"attributes": sum(everything) / len(everything), **scores}


_NAMES = (*("kind", "color", "fill") * len(PLACES), "texture", "background")
_FIRST_OF_OBJECT = (*(True, False, False) * len(PLACES), False, False)

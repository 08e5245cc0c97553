"""A small classifier that predicts an image's caption, to measure whether samples follow their prompts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import nn

from mmspec.vision.shapes.domain import ANY, FEATURE_DIM, IMAGE_SIZE, NONE, SLOT_OFFSETS, SLOTS, Caption
from mmspec.vision.shapes.grammar import parse

Scores = dict[str, float]


class ShapesClassifier(ModelMixin, ConfigMixin):
    """Predicts logits over the values of all slots from images [B, 3, 64, 64] in [-1, 1].

    The logits are [B, C], in the order of `mmspec.vision.shapes.domain.features`. The classes are those of the
    canonical caption (see `Caption.canonical`), because an image does not show which object the prompt named first.

    Args:
        channels: Channels of the first convolution.
        hidden: Width of the last hidden layer.
    """

    image_size = IMAGE_SIZE

    @register_to_config
    def __init__(self, channels: int = 32, hidden: int = 192) -> None:
        super().__init__()
        widths = (3, channels, 2 * channels, 3 * channels, 3 * channels)
        layers: list[nn.Module] = []
        for before, after in zip(widths[:-1], widths[1:], strict=True):
            layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.BatchNorm2d(after), nn.SiLU()]
            layers += [nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.SiLU()]
        cells = (IMAGE_SIZE // 16) ** 2
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * cells, hidden), nn.SiLU())
        self.head = nn.Linear(hidden, FEATURE_DIM)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """The last hidden layer [B, hidden]."""
        found: torch.Tensor = self.body(images)
        return found

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))

    def slot_logits(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Logits of each slot, a tensor [B, values] each; "any" is never a class of an image."""
        logits = self(images)
        parts = []
        for offset, (_, values) in zip(SLOT_OFFSETS, SLOTS, strict=True):
            part = logits[:, offset : offset + len(values)]
            mask = torch.tensor([value == ANY for value in values])
            parts.append(part.masked_fill(mask, -1e4))
        return parts

    @torch.no_grad()
    def predict(self, images: torch.Tensor) -> list[Caption]:
        """The canonical caption of each image, in which every slot has a value."""
        self.eval()
        found = [torch.stack([p.argmax(1) for p in self.slot_logits(b.to(self.dtype))], 1) for b in images.split(128)]
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
        are all correct, and the share of each attribute: size, colour, shape, relation (or that there is one object),
        style, background.
    """
    right: dict[str, list[bool]] = {}
    whole: list[bool] = []
    for image, prompt in zip(seen, wanted, strict=True):
        hits = _hits(image, prompt.canonical())
        whole.append(all(hit for _, hit in hits))
        for name, hit in hits:
            right.setdefault(name, []).append(hit)
    everything = [hit for hits in right.values() for hit in hits]
    scores = {"attributes": _mean(everything), "captions": _mean(whole)}
    return scores | {name: _mean(hits) for name, hits in sorted(right.items())}


def _hits(image: Caption, prompt: Caption) -> list[tuple[str, bool]]:
    """The name of each attribute that the prompt states, and whether it is correct."""
    hits = []
    for (name, _), wanted, found in zip(SLOTS, prompt.slots(), image.slots(), strict=True):
        if wanted == ANY or (wanted == NONE and name != "relation"):
            continue
        hits.append((name.rstrip("12"), wanted == found))
    return hits


def _mean(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else 1.0

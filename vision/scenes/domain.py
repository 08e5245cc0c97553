"""The domain of scenes images: captions of up to four objects in the quadrants of a textured background.

The textures, not noise on top of the image, make most of the entropy: a caption names the texture, so a sampler that
prefers likely tokens produces the wrong statistics, and a classifier can see it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

IMAGE_SIZE = 96
# Pixels per side of a token. Positions are on this grid, so that there are few distinct patches.
PATCH = 4
TILES = IMAGE_SIZE // PATCH  # per side
QUADRANT = IMAGE_SIZE // 2  # pixels per side

ANY = "any"  # the caption leaves this open
NONE = "none"  # there is no object

FILLS = ("solid", "dotted", "striped")
COLORS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
DIGITS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
KINDS = (*SHAPES, *DIGITS)
PLACES = ("top left", "top right", "bottom left", "bottom right")
TEXTURES = ("sandy", "cloudy", "starry", "brick")
BACKGROUNDS = ("white", "black", "gray", "pink", "teal")
RADII = (11, 13, 16)  # of shapes, pixels; captions do not state them

# The values of an object's slots and of the background's; index 0 of `kind` and `color` means no object.
OBJECT_SLOTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("kind", (NONE, *KINDS)),
    ("color", (NONE, *COLORS)),
    ("fill", (NONE, ANY, *FILLS)),
)
BACKGROUND_SLOTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("texture", (ANY, *TEXTURES)),
    ("background", (ANY, *BACKGROUNDS)),
)
# The slots of a caption in the order of `Caption.indices`.
SLOTS = (*(slot for _ in PLACES for slot in OBJECT_SLOTS), *BACKGROUND_SLOTS)
SLOT_NAMES = (*(f"{name} {place}" for place in PLACES for name, _ in OBJECT_SLOTS), "texture", "background")

CONDITION_SLOTS = len(PLACES) + 1  # one per quadrant, and one of the background
_OBJECT_DIM = sum(len(values) for _, values in OBJECT_SLOTS)
_BACKGROUND_DIM = sum(len(values) for _, values in BACKGROUND_SLOTS)
FEATURE_DIM = _OBJECT_DIM + len(PLACES) + _BACKGROUND_DIM


@dataclass(frozen=True)
class Object:
    """An object of a caption; field names and values are those of `OBJECT_SLOTS`."""

    kind: str
    color: str
    fill: str = ANY


@dataclass(frozen=True)
class Caption:
    """A prompt.

    Attributes:
        objects: The object of each of `PLACES`, or None where there is none.
        texture: One of `TEXTURES`, or "any".
        background: One of `BACKGROUNDS`, or "any".
    """

    objects: tuple[Object | None, Object | None, Object | None, Object | None]
    texture: str = ANY
    background: str = ANY

    def slots(self) -> tuple[str, ...]:
        """The value of each of `SLOTS`."""
        values: list[str] = []
        for each in self.objects:
            values += (NONE, NONE, NONE) if each is None else (each.kind, each.color, each.fill)
        return (*values, self.texture, self.background)

    def indices(self) -> tuple[int, ...]:
        """The index of each slot's value in `SLOTS`, 14 ints."""
        return tuple(values.index(value) for (_, values), value in zip(SLOTS, self.slots(), strict=True))

    @staticmethod
    def from_indices(indices: Sequence[int]) -> Caption:
        values = [values[int(i)] for (_, values), i in zip(SLOTS, indices, strict=True)]
        rows = (values[3 * q : 3 * q + 3] for q in range(len(PLACES)))
        objects = [None if row[0] == NONE else Object(*row) for row in rows]
        return Caption((objects[0], objects[1], objects[2], objects[3]), values[-2], values[-1])


@dataclass(frozen=True)
class Scene:
    """A complete caption with everything else that the renderer needs.

    Attributes:
        caption: With a value in every slot.
        radii: Radius of each quadrant's shape, pixels; unused for digits.
        corners: Top left tile (column, row) of each quadrant's object, in the whole image.
        seed: Of the textures.
    """

    caption: Caption
    radii: tuple[int, ...]
    corners: tuple[tuple[int, int], ...]
    seed: int


GLYPH = (5, 7)  # columns and rows of a digit, tiles


def extent(kind: str, radius: int) -> tuple[int, int]:
    """Width and height of an object, tiles; shapes are centered on a tile corner."""
    if kind in DIGITS:
        return GLYPH
    side = 2 * -(-(radius + 1) // PATCH)
    return side, side


def is_held_out(caption: Caption) -> bool:
    """Whether a caption is among the 10 % of combinations of objects and places that are not trained on."""
    key = "|".join("" if each is None else f"{each.color} {each.kind}" for each in caption.objects)
    return sum(each is not None for each in caption.objects) > 1 and zlib.crc32(key.encode()) % 10 == 0


def sample_scene(rng: random.Random, held_out: bool = False) -> Scene:
    """A random scene of the training combinations, or of the held-out ones."""
    while True:
        caption = _sample_caption(rng)
        if is_held_out(caption) == held_out:
            return place(caption, rng)


def _sample_caption(rng: random.Random) -> Caption:
    count = rng.choices((1, 2, 3, 4), (2, 3, 3, 2))[0]
    used = set(rng.sample(range(len(PLACES)), count))

    def thing(q: int) -> Object | None:
        if q not in used:
            return None
        # Shapes and digits are equally frequent; there are more digits than shapes.
        kind = rng.choice(rng.choice((SHAPES, DIGITS)))
        return Object(kind, rng.choice(COLORS), rng.choice(FILLS))

    return Caption((thing(0), thing(1), thing(2), thing(3)), rng.choice(TEXTURES), rng.choice(BACKGROUNDS))


def place(caption: Caption, rng: random.Random) -> Scene:
    """A scene of a complete caption, with random sizes and positions."""
    side = QUADRANT // PATCH
    radii, corners = [], []
    for q, each in enumerate(caption.objects):
        radius = rng.choice(RADII)
        width, height = extent(each.kind if each else SHAPES[0], radius)
        x = rng.randint(min(1, side - width), max(side - width - 1, 0))
        y = rng.randint(min(1, side - height), max(side - height - 1, 0))
        radii.append(radius)
        corners.append((q % 2 * side + x, q // 2 * side + y))
    return Scene(caption, tuple(radii), tuple(corners), rng.getrandbits(32))


def omit_values(caption: Caption, rng: random.Random) -> Caption:
    """Omits values that a prompt may omit (fills, texture, background): each with probability 0.25."""

    def without(each: Object | None) -> Object | None:
        return replace(each, fill=ANY) if each is not None and rng.random() < 0.25 else each

    a, b, c, d = (without(each) for each in caption.objects)
    texture = ANY if rng.random() < 0.25 else caption.texture
    return Caption((a, b, c, d), texture, ANY if rng.random() < 0.25 else caption.background)


def captions(n: int, seed: int, held_out: bool = True) -> list[Caption]:
    """`n` random captions as a user would write them, by default of held-out combinations."""
    rng = random.Random(seed)
    return [omit_values(sample_scene(rng, held_out).caption, rng) for _ in range(n)]


def features(captions: Sequence[Caption]) -> torch.Tensor:
    """The condition of the transformer, float32 [B, 5, C]: a row per quadrant, then one of the background."""
    return index_features(torch.tensor([caption.indices() for caption in captions]))


def index_features(indices: torch.Tensor) -> torch.Tensor:
    """`features`, float32 [B, 5, C], of captions given as indices into `SLOTS`, int [B, 14]."""
    one_hot = torch.nn.functional.one_hot
    indices = indices.long()
    rows = torch.zeros(len(indices), CONDITION_SLOTS, FEATURE_DIM)
    objects = indices[:, :12].unflatten(1, (len(PLACES), 3))
    start = 0
    for i, (_, values) in enumerate(OBJECT_SLOTS):
        rows[:, :-1, start : start + len(values)] = one_hot(objects[:, :, i], len(values)).float()
        start += len(values)
    rows[:, :-1, start : start + len(PLACES)] = torch.eye(len(PLACES))
    start += len(PLACES)
    for i, (_, values) in enumerate(BACKGROUND_SLOTS):
        rows[:, -1, start : start + len(values)] = one_hot(indices[:, 12 + i], len(values)).float()
        start += len(values)
    return rows

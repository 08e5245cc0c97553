"""The domain of shapes images: words, captions of nine slots, and scenes for the renderer.

A `Caption` holds what a prompt states, with "any" for what it leaves open. A `Scene` is a complete caption with the
positions of the objects, which captions do not state.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import torch

IMAGE_SIZE = 64
# Pixels per side of a token. Centres and background tiles are on this grid, so that there are few distinct patches.
PATCH = 4

ANY = "any"  # the caption leaves this open
NONE = "none"  # there is no second object

SIZES = ("small", "large")
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle", "star", "cross")
RELATIONS = ("above", "below", "left of", "right of")
STYLES = ("plain", "striped", "checkered", "speckled")
BACKGROUNDS = ("white", "black", "gray", "pink", "teal")


@dataclass(frozen=True)
class Look:
    """Properties of rendered scenes that captions do not state.

    Attributes:
        small: Radius of a small object, pixels.
        large: Radius of a large object, pixels.
        relief: Standard deviation of the background's random brightness, of 255.
        pebbles: The largest number of pebbles, small things that captions do not name.
    """

    small: int
    large: int
    relief: float = 0.0
    pebbles: int = 0

    def radius(self, size: str) -> int:
        return self.small if size == "small" else self.large


# The package ships a model of "clean". "rough" has an entropy of more than one bit per token, "clean" of a quarter, so
# that the quality loss of relaxed decoding can be measured on it.
LOOKS = {"clean": Look(8, 13), "rough": Look(6, 10, relief=20.0, pebbles=5)}
CLEAN = LOOKS["clean"]

# The slots of a caption and their values.
SLOTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("size1", (ANY, *SIZES)),
    ("colour1", COLOURS),
    ("shape1", SHAPES),
    ("relation", (NONE, *RELATIONS)),
    ("size2", (NONE, ANY, *SIZES)),
    ("colour2", (NONE, *COLOURS)),
    ("shape2", (NONE, *SHAPES)),
    ("style", (ANY, *STYLES)),
    ("background", (ANY, *BACKGROUNDS)),
)
SLOT_NAMES = tuple(name for name, _ in SLOTS)
SLOT_OFFSETS = tuple(sum(len(values) for _, values in SLOTS[:i]) for i in range(len(SLOTS)))
FEATURE_DIM = sum(len(values) for _, values in SLOTS)
# The conditioning sequence: one condition slot per thing with all its attributes, so that each thing depends on a
# single slot. The relation comes first, because later slots attend to earlier ones.
CONDITION = (("relation",), ("size1", "colour1", "shape1"), ("size2", "colour2", "shape2"), ("style", "background"))
CONDITION_SLOTS = len(CONDITION)
_GROUPS = torch.tensor([[float(name in group) for name in SLOT_NAMES] for group in CONDITION])  # [T, slots]

_MIRROR = {"below": "above", "right of": "left of"}


@dataclass(frozen=True)
class Caption:
    """The nine slots of a prompt; field names and values are those of `SLOTS`."""

    size1: str
    colour1: str
    shape1: str
    relation: str = NONE
    size2: str = NONE
    colour2: str = NONE
    shape2: str = NONE
    style: str = ANY
    background: str = ANY

    def indices(self) -> tuple[int, ...]:
        """The index of each slot's value in `SLOTS`, nine ints."""
        return tuple(values.index(value) for (_, values), value in zip(SLOTS, self.slots(), strict=True))

    def slots(self) -> tuple[str, ...]:
        return tuple(astuple(self))

    @staticmethod
    def from_indices(indices: Sequence[int]) -> Caption:
        return Caption(*(values[int(i)] for (_, values), i in zip(SLOTS, indices, strict=True)))

    def canonical(self) -> Caption:
        """The equivalent caption with relation "above" or "left of": "A below B" and "B above A" are the same image."""
        if self.relation not in _MIRROR:
            return self
        return Caption(
            self.size2, self.colour2, self.shape2, _MIRROR[self.relation], self.size1, self.colour1, self.shape1,
            self.style, self.background,
        )  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A complete caption with everything else that the renderer needs.

    Attributes:
        caption: With a value in every slot.
        centre1: Centre (x, y) of the first object, pixels; y grows downwards.
        centre2: As `centre1`, of the second object.
        speckles: Seed of the tiles of a speckled background, of relief and of pebbles.
        look: Properties that captions do not state.
    """

    caption: Caption
    centre1: tuple[int, int]
    centre2: tuple[int, int]
    speckles: int
    look: Look = CLEAN


def is_held_out(caption: Caption) -> bool:
    """Whether a caption is among the 10 % of (object, relation, object) tuples that are not trained on.

    A tuple and its mirror image ("A below B", "B above A") are the same.
    """
    c = caption.canonical()
    if c.relation == NONE:
        return False
    key = f"{c.colour1} {c.shape1} {c.relation} {c.colour2} {c.shape2}"
    return zlib.crc32(key.encode()) % 10 == 0


def features(captions: Sequence[Caption]) -> torch.Tensor:
    """The condition of the transformer, float32 [B, T, C]: row t marks the values of the slots `CONDITION[t]`.

    Captions are made canonical first, so that the first object is always the upper or the left one.
    """
    return index_features(torch.tensor([c.canonical().indices() for c in captions]))


def index_features(indices: torch.Tensor) -> torch.Tensor:
    """`features`, float32 [B, T, C], of canonical captions given as indices into `SLOTS`, int [B, slots]."""
    joint = indices.long() + torch.tensor(SLOT_OFFSETS)
    return _GROUPS @ torch.nn.functional.one_hot(joint, FEATURE_DIM).float()


def sample_scene(rng: random.Random, held_out: bool = False, look: Look = CLEAN) -> Scene:
    """A random scene of the training tuples (30 % with one object), or of the held-out tuples (two objects)."""
    while True:
        caption = _sample_full_caption(rng, single=not held_out and rng.random() < 0.3)
        if is_held_out(caption) == held_out:
            return place(caption, rng, look)


def _sample_full_caption(rng: random.Random, single: bool) -> Caption:
    caption = Caption(
        rng.choice(SIZES), rng.choice(COLOURS), rng.choice(SHAPES), style=rng.choice(STYLES),
        background=rng.choice(BACKGROUNDS),
    )  # fmt: skip
    if single:
        return caption
    return replace(
        caption, relation=rng.choice(RELATIONS), size2=rng.choice(SIZES), colour2=rng.choice(COLOURS),
        shape2=rng.choice(SHAPES),
    )  # fmt: skip


def place(caption: Caption, rng: random.Random, look: Look = CLEAN) -> Scene:
    """A scene of a complete caption, with random positions."""
    reach1, reach2 = look.radius(caption.size1), look.radius(caption.size2)
    centre1 = (_inside(rng, reach1), _inside(rng, reach1))
    centre2 = (0, 0)
    if caption.relation != NONE:
        vertical = caption.relation in ("above", "below")
        mirrored = caption.relation in _MIRROR
        along = _pair_along(rng, *((reach2, reach1) if mirrored else (reach1, reach2)))
        along1, along2 = along[::-1] if mirrored else along
        across1 = _inside(rng, reach1)
        # Across the axis of the relation the objects are close, so that the relation is unambiguous.
        low, high = _bounds(reach2)
        across2 = _on_grid(rng, max(low, across1 - 8), min(high, across1 + 8))
        centre1 = (across1, along1) if vertical else (along1, across1)
        centre2 = (across2, along2) if vertical else (along2, across2)
    return Scene(caption, centre1, centre2, rng.getrandbits(32), look)


def _bounds(radius: int) -> tuple[int, int]:
    """The range of a centre coordinate for which an object of this radius is inside the image."""
    return radius + 1, IMAGE_SIZE - radius - 1


def _inside(rng: random.Random, radius: int) -> int:
    return _on_grid(rng, *_bounds(radius))


def _pair_along(rng: random.Random, first: int, second: int) -> tuple[int, int]:
    """Centre coordinates, along the axis of the relation, of two objects with these radii that do not touch."""
    apart = first + second + 2
    low, high = _bounds(first)[0], _bounds(second)[1] // PATCH * PATCH
    start = _on_grid(rng, low, high - apart)
    return start, _on_grid(rng, start + apart, high)


def _on_grid(rng: random.Random, low: int, high: int) -> int:
    """A multiple of `PATCH` in [low, high]."""
    return rng.randint(-(-low // PATCH), high // PATCH) * PATCH


def omit_values(caption: Caption, rng: random.Random) -> Caption:
    """Omits values that a prompt may omit (sizes, style, background): each with probability 0.3, or all with 0.15."""
    everything = rng.random() < 0.15
    drop = [everything or rng.random() < 0.3 for _ in range(4)]
    return Caption(
        ANY if drop[0] else caption.size1, caption.colour1, caption.shape1, caption.relation,
        ANY if drop[1] and caption.size2 != NONE else caption.size2, caption.colour2, caption.shape2,
        ANY if drop[2] else caption.style, ANY if drop[3] else caption.background,
    )  # fmt: skip


def captions(n: int, seed: int, held_out: bool = True) -> list[Caption]:
    """`n` random captions as a user would write them, by default of held-out tuples."""
    rng = random.Random(seed)
    return [omit_values(sample_scene(rng, held_out).caption, rng) for _ in range(n)]

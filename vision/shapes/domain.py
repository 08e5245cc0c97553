"""What a shapes image can show: the words, the caption (nine role slots) and the scene that the renderer draws.

A `Caption` is what a prompt says, with "any" where it says nothing. A `Scene` is a caption that states everything plus
the positions that no caption states.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import torch

IMAGE_SIZE = 64
PATCH = (
    4  # px, of one token: centres and background tiles sit on this grid, so that few different patches are to be learnt
)

ANY = "any"  # the caption leaves this open, the model is free
NONE = "none"  # there is no second object

SIZES = ("small", "large")
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle", "star", "cross")
RELATIONS = ("above", "below", "left of", "right of")
STYLES = ("plain", "striped", "checkered", "speckled")
BACKGROUNDS = ("white", "black", "gray", "pink", "teal")


@dataclass(frozen=True)
class Look:
    """How scenes are drawn, beyond what a caption says."""

    small: int  # px, radius of an object that a caption calls small
    large: int
    relief: float = 0.0  # standard deviation of the background's random brightness, of 255
    pebbles: int = 0  # at most so many small things that no caption names

    def radius(self, size: str) -> int:
        return self.small if size == "small" else self.large


# "clean" is what the package ships. "rough" is harder to foresee, over a bit of entropy per token where "clean" has a
# quarter: there is something to lose, so that what relaxed decoding costs can be seen.
LOOKS = {"clean": Look(8, 13), "rough": Look(6, 10, relief=20.0, pebbles=5)}
CLEAN = LOOKS["clean"]

# What a caption states, each with all its values.
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
# The conditioning sequence: a slot per thing, which holds all that is said of it, so that to draw a thing is to look at
# one slot. The relation comes first, since later slots see earlier ones.
CONDITION = (("relation",), ("size1", "colour1", "shape1"), ("size2", "colour2", "shape2"), ("style", "background"))
CONDITION_SLOTS = len(CONDITION)
_GROUPS = torch.tensor([[float(name in group) for name in SLOT_NAMES] for group in CONDITION])  # [T, slots]

_MIRROR = {"below": "above", "right of": "left of"}


@dataclass(frozen=True)
class Caption:
    """The nine slots of a prompt; the field names and values are those of `SLOTS`."""

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
        """The position of each slot's value in `SLOTS`, nine ints."""
        return tuple(values.index(value) for (_, values), value in zip(SLOTS, self.slots(), strict=True))

    def slots(self) -> tuple[str, ...]:
        return tuple(astuple(self))

    @staticmethod
    def from_indices(indices: Sequence[int]) -> Caption:
        return Caption(*(values[int(i)] for (_, values), i in zip(SLOTS, indices, strict=True)))

    def canonical(self) -> Caption:
        """The same caption with relation "above" or "left of": "A below B" and "B above A" are one image."""
        if self.relation not in _MIRROR:
            return self
        return Caption(
            self.size2, self.colour2, self.shape2, _MIRROR[self.relation], self.size1, self.colour1, self.shape1,
            self.style, self.background,
        )  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A caption with every slot stated, and what only the renderer needs. Lengths are pixels, y grows downwards."""

    caption: Caption
    centre1: tuple[int, int]
    centre2: tuple[int, int]
    speckles: int  # seed of the tiles of a speckled background, of relief and of pebbles
    look: Look = CLEAN


def is_held_out(caption: Caption) -> bool:
    """True for the 10 % of (object, relation, object) tuples, mirror images included, that are never trained on."""
    c = caption.canonical()
    if c.relation == NONE:
        return False
    key = f"{c.colour1} {c.shape1} {c.relation} {c.colour2} {c.shape2}"
    return zlib.crc32(key.encode()) % 10 == 0


def features(captions: Sequence[Caption]) -> torch.Tensor:
    """What the transformer is conditioned on, float32 [B, T, C]: row t marks the values that `CONDITION[t]` holds.

    Of "A below B" and "B above A", which are one image, it sees the second, so that the first object is always the
    upper or the left one.
    """
    return index_features(torch.tensor([c.canonical().indices() for c in captions]))


def index_features(indices: torch.Tensor) -> torch.Tensor:
    """`features` of canonical captions given as int [B, slots] positions in `SLOTS`; returns float32 [B, T, C]."""
    joint = indices.long() + torch.tensor(SLOT_OFFSETS)
    return _GROUPS @ torch.nn.functional.one_hot(joint, FEATURE_DIM).float()


def sample_scene(rng: random.Random, held_out: bool = False, look: Look = CLEAN) -> Scene:
    """A random scene: of the training tuples (30 % with one object), or of the held-out tuples (two objects)."""
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
    """Draw positions for a caption that states everything."""
    reach1, reach2 = look.radius(caption.size1), look.radius(caption.size2)
    centre1 = (_inside(rng, reach1), _inside(rng, reach1))
    centre2 = (0, 0)
    if caption.relation != NONE:
        vertical = caption.relation in ("above", "below")
        mirrored = caption.relation in _MIRROR
        along = _pair_along(rng, *((reach2, reach1) if mirrored else (reach1, reach2)))
        along1, along2 = along[::-1] if mirrored else along
        across1 = _inside(rng, reach1)
        # Off the axis the objects stay close, so that the relation is never in doubt.
        low, high = _bounds(reach2)
        across2 = _on_grid(rng, max(low, across1 - 8), min(high, across1 + 8))
        centre1 = (across1, along1) if vertical else (along1, across1)
        centre2 = (across2, along2) if vertical else (along2, across2)
    return Scene(caption, centre1, centre2, rng.getrandbits(32), look)


def _bounds(radius: int) -> tuple[int, int]:
    """The range of a centre coordinate that keeps an object of this radius inside the image."""
    return radius + 1, IMAGE_SIZE - radius - 1


def _inside(rng: random.Random, radius: int) -> int:
    return _on_grid(rng, *_bounds(radius))


def _pair_along(rng: random.Random, first: int, second: int) -> tuple[int, int]:
    """Centres along the relation of the upper or left object and the other, given their radii; they never touch."""
    apart = first + second + 2
    low, high = _bounds(first)[0], _bounds(second)[1] // PATCH * PATCH
    start = _on_grid(rng, low, high - apart)
    return start, _on_grid(rng, start + apart, high)


def _on_grid(rng: random.Random, low: int, high: int) -> int:
    """A multiple of `PATCH` in [low, high]."""
    return rng.randint(-(-low // PATCH), high // PATCH) * PATCH


def forget(caption: Caption, rng: random.Random) -> Caption:
    """Leave out what a prompt may leave out (sizes, background): each with 30 %, all of them with 15 %."""
    everything = rng.random() < 0.15
    drop = [everything or rng.random() < 0.3 for _ in range(4)]
    return Caption(
        ANY if drop[0] else caption.size1, caption.colour1, caption.shape1, caption.relation,
        ANY if drop[1] and caption.size2 != NONE else caption.size2, caption.colour2, caption.shape2,
        ANY if drop[2] else caption.style, ANY if drop[3] else caption.background,
    )  # fmt: skip


def captions(n: int, seed: int, held_out: bool = True) -> list[Caption]:
    """`n` captions as a user would give them; by default of tuples that the model was never trained on."""
    rng = random.Random(seed)
    return [forget(sample_scene(rng, held_out).caption, rng) for _ in range(n)]

"""Rendering of scenes as anti-aliased uint8 RGB images.

Everything is aligned to tiles of `PATCH` pixels: an image is a grid of tiles, each with one of a few tones and
patterns, and objects cover some of them. Tiles that an object touches have the background's base tone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from train_shapes.render import stamp

from mmspec.vision.scenes.domain import DIGITS, GLYPH, PATCH, TILES, Object, Scene, extent
from mmspec.vision.shapes.pixels import BACKGROUND_RGB, OBJECT_RGB, to_tensor

Array = NDArray[np.float32]

_TONE = 17.0  # brightness between neighboring tones, of 255
_MARK = 70.0  # brightness of the marks of starry and brick backgrounds
_SAND = (0.36, 0.24, 0.18, 0.13, 0.09)  # probability of each tone
_TONES = len(_SAND)
_STARS = 0.35  # share of tiles of a starry background with a star
_STRIPE, _DOT = 0.45, 0.2  # brightness of stripes and of dots of an object

# 4x4 marks: the four kinds of stars, the first of which is also the grain of bricks.
_MARKS = np.array(
    [
        [[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]],
        [[0, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]],
        [[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]],
        [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]],
    ],
    np.float32,
)

_DIGITS = {
    "0": "01110 10001 10001 10001 10001 10001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "3": "11110 00001 00001 01110 00001 00001 11110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "00110 01000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00010 00100 00100 00100",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00010 01100",
}


def render(scene: Scene) -> NDArray[np.uint8]:
    """The image of a scene, uint8 [96, 96, 3]."""
    caption = scene.caption
    rng = np.random.default_rng(scene.seed)
    objects = [
        (each, cover(each.kind, radius), corner)
        for each, radius, corner in zip(caption.objects, scene.radii, scene.corners, strict=True)
        if each is not None
    ]
    free = np.ones((TILES, TILES), bool)
    for _, shape, (x, y) in objects:
        height, width = shape.shape[0] // PATCH, shape.shape[1] // PATCH
        free[y : y + height, x : x + width] &= ~_touched(shape)
    image = _background(caption.texture, caption.background, free, rng)
    for each, shape, corner in objects:
        _draw(image, each, shape, corner, rng)
    return (np.clip(image, 0, 255) + 0.5).astype(np.uint8)


def render_batch(scenes: Sequence[Scene]) -> torch.Tensor:
    """Images of scenes, float32 [B, 3, 96, 96] in [-1, 1]."""
    return to_tensor(np.stack([render(scene) for scene in scenes]))


@cache
def cover(kind: str, radius: int) -> Array:
    """Coverage of an object in [0, 1], float32 [height, width] pixels, whole tiles."""
    if kind in DIGITS:
        rows = np.array([[int(c) for c in row] for row in _DIGITS[kind].split()], np.float32)
        assert rows.shape == GLYPH[::-1]
        return rows.repeat(PATCH, 0).repeat(PATCH, 1)
    if kind == "ring":
        inner = stamp("circle", radius // 2)
        shape = stamp("circle", radius).copy()
        margin = (len(shape) - len(inner)) // 2
        shape[margin : margin + len(inner), margin : margin + len(inner)] -= inner
    else:
        shape = stamp(kind, radius)
    side = extent(kind, radius)[0] * PATCH
    pad = (side - len(shape)) // 2
    return np.pad(shape, pad).astype(np.float32)


def _tiles(pixels: Array) -> Array:
    """Pixels [h * PATCH, w * PATCH] as tiles [h, w, PATCH * PATCH]."""
    h, w = (side // PATCH for side in pixels.shape)
    return pixels.reshape(h, PATCH, w, PATCH).transpose(0, 2, 1, 3).reshape(h, w, PATCH * PATCH)


def _touched(shape: Array) -> NDArray[np.bool_]:
    """The tiles that a coverage touches, bool [h, w]."""
    return np.asarray((_tiles(shape) > 0).any(-1))


def _draw(image: Array, each: Object, shape: Array, corner: tuple[int, int], rng: np.random.Generator) -> None:
    h, w = (side // PATCH for side in shape.shape)
    shade = np.ones(shape.shape, np.float32)
    if each.fill == "striped":
        shade *= np.where(np.arange(h) % 2 == 0, 1.0, _STRIPE).repeat(PATCH)[:, None].astype(np.float32)
    if each.fill == "dotted":
        dots = (rng.random((h, w)) < 0.5) & (_tiles(shape).min(-1) > 0.999)
        shade -= (1 - _DOT) * np.kron(dots.astype(np.float32), _MARKS[0])
    x, y = corner[0] * PATCH, corner[1] * PATCH
    window = image[y : y + shape.shape[0], x : x + shape.shape[1]]
    color = np.asarray(OBJECT_RGB[each.color], np.float32) * shade[:, :, None]
    window += shape[:, :, None] * (color - window)


def _background(texture: str, color: str, free: NDArray[np.bool_], rng: np.random.Generator) -> Array:
    """The background, float32 [96, 96, 3]; tiles that are not `free` [24, 24] have the base tone and no mark."""
    base = np.asarray(BACKGROUND_RGB[color][0], np.float32)
    direction = -1.0 if base.mean() > 100 else 1.0
    tones = np.zeros((TILES, TILES), np.int64)
    marks = np.zeros((TILES, TILES), np.int64)
    if texture == "sandy":
        tones = rng.choice(_TONES, (TILES, TILES), p=_SAND)
    elif texture == "cloudy":
        tones = _clouds(rng)
    elif texture == "starry":
        marks = np.where(rng.random((TILES, TILES)) < _STARS, rng.integers(1, 5, (TILES, TILES)), 0)
    else:
        tones, marks = _bricks(rng), rng.integers(0, 2, (TILES, TILES))
    tones, marks = tones * free, marks * free
    pattern = np.concatenate([np.zeros((1, PATCH, PATCH), np.float32), _MARKS])[marks]  # [24, 24, 4, 4]
    light = _TONE * tones[:, :, None, None] + _MARK * pattern
    pixels = light.transpose(0, 2, 1, 3).reshape(TILES * PATCH, TILES * PATCH)
    return np.asarray(base + direction * pixels[:, :, None], np.float32)


def _clouds(rng: np.random.Generator) -> NDArray[np.int64]:
    """A random field in which a tile often has the tone of its left or upper neighbor."""
    source = rng.random((TILES, TILES))
    tones = rng.integers(0, _TONES, (TILES, TILES))
    for y in range(TILES):
        for x in range(TILES):
            if source[y, x] < 0.4 and x:
                tones[y, x] = tones[y, x - 1]
            elif source[y, x] < 0.8 and y:
                tones[y, x] = tones[y - 1, x]
    return tones


def _bricks(rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows of bricks two tiles high and two to four tiles long, each of one tone other than its left neighbor's."""
    tones = np.zeros((TILES, TILES), np.int64)
    for y in range(0, TILES, 2):
        x, tone = -int(rng.integers(0, 3)), 0
        while x < TILES:
            length = int(rng.integers(2, 5))
            tone = (tone + int(rng.integers(1, _TONES))) % _TONES
            tones[y : y + 2, max(x, 0) : x + length] = tone
            x += length
    return tones

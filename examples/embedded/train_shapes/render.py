"""Rendering of scenes as anti-aliased uint8 RGB images, in a few tens of microseconds each.

Objects have two sizes and integer centres, so the coverage of each shape is computed once, with 8 x 8 supersampling,
and cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from train_shapes.texture import PEBBLE_RADIUS, PEBBLE_RGB, pebbles, relief

from mmspec.vision.shapes.domain import IMAGE_SIZE, NONE, PATCH, Scene
from mmspec.vision.shapes.pixels import BACKGROUND_RGB, OBJECT_RGB, to_tensor

_OVERSAMPLE = 8

Array = NDArray[np.float32]


def render(scene: Scene) -> NDArray[np.uint8]:
    """The image of a scene, uint8 [64, 64, 3]."""
    caption, look = scene.caption, scene.look
    image = _background(caption.style, caption.background, scene.speckles)
    rng = np.random.default_rng((scene.speckles, 1))  # independent of the speckles
    if look.relief:
        image = np.clip(image + look.relief * relief(rng, IMAGE_SIZE)[:, :, None], 0, 255)
    if look.pebbles:
        for centre in pebbles(rng, look.pebbles, IMAGE_SIZE, PATCH):
            _stamp(image, stamp("circle", PEBBLE_RADIUS), PEBBLE_RGB, centre)
    _object(image, scene, caption.size1, caption.colour1, caption.shape1, scene.centre1)
    if caption.relation != NONE:
        _object(image, scene, caption.size2, caption.colour2, caption.shape2, scene.centre2)
    return (image + 0.5).astype(np.uint8)


def render_batch(scenes: Sequence[Scene]) -> torch.Tensor:
    """Images of scenes, float32 [B, 3, 64, 64] in [-1, 1]."""
    return to_tensor(np.stack([render(scene) for scene in scenes]))


def to_uint8(images: torch.Tensor) -> NDArray[np.uint8]:
    """Converts float [B, 3, H, W] in [-1, 1] to uint8 [B, H, W, 3]."""
    scaled = ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return np.asarray(scaled.permute(0, 2, 3, 1).numpy())


def _object(image: Array, scene: Scene, size: str, colour: str, shape: str, centre: tuple[int, int]) -> None:
    _stamp(image, stamp(shape, scene.look.radius(size)), OBJECT_RGB[colour], centre)


def _stamp(image: Array, cover: Array, colour: tuple[int, int, int], centre: tuple[int, int]) -> None:
    half = cover.shape[0] // 2
    x, y = centre
    window = image[y - half : y + half, x - half : x + half]
    window += cover[:, :, None] * (np.asarray(colour, np.float32) - window)


@cache
def stamp(shape: str, radius: int) -> Array:
    """Coverage of a shape in [0, 1], float32 [2 * radius + 2, 2 * radius + 2], centred on the middle corner."""
    side = 2 * (radius + 1)
    axis = ((np.arange(side * _OVERSAMPLE) + 0.5) / _OVERSAMPLE - side / 2) / radius
    inside = _inside(shape, axis[None, :], axis[:, None])
    return inside.reshape(side, _OVERSAMPLE, side, _OVERSAMPLE).mean((1, 3)).astype(np.float32)


def _inside(shape: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether points are inside a shape, bool [n, n].

    Args:
        shape: One of `SHAPES`.
        x: [1, n] in units of the radius.
        y: [n, 1] in units of the radius, downwards.
    """
    if shape == "circle":
        return x**2 + y**2 <= 1.0
    if shape == "square":
        return np.maximum(abs(x), abs(y)) <= 0.88
    if shape == "cross":
        return (np.minimum(abs(x), abs(y)) <= 0.32) & (np.maximum(abs(x), abs(y)) <= 1.0)
    if shape == "triangle":
        return _polygon(np.array([(0.0, -0.95), (1.05, 0.9), (-1.05, 0.9)]), x, y)
    angles = -np.pi / 2 + np.arange(10) * np.pi / 5
    lengths = np.where(np.arange(10) % 2 == 0, 1.08, 0.46)
    star = np.stack([lengths * np.cos(angles), lengths * np.sin(angles) + 0.08], axis=1)
    return _polygon(star, x, y)


def _polygon(points: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether points are inside a polygon, by the even-odd rule: counts the edges that a ray to the right crosses."""
    inside = np.zeros(np.broadcast_shapes(x.shape, y.shape), bool)
    for (x0, y0), (x1, y1) in zip(points, np.roll(points, -1, axis=0), strict=True):
        if y0 != y1:
            crosses = (y0 > y) != (y1 > y)
            inside ^= crosses & (x < x0 + (y - y0) / (y1 - y0) * (x1 - x0))
    return inside


def _background(style: str, colour: str, speckles: int) -> Array:
    """A background of square tiles in two tones, float32 [64, 64, 3]."""
    tones = np.asarray(BACKGROUND_RGB[colour], np.float32)
    return tones[_tiles(style, speckles)].repeat(PATCH, axis=0).repeat(PATCH, axis=1)


def _tiles(style: str, speckles: int) -> NDArray[np.int64]:
    """The tone, 0 or 1, of each tile, int64 [16, 16]; stripes and checks are two tiles wide."""
    side = IMAGE_SIZE // PATCH
    if style == "plain":
        return np.zeros((side, side), np.int64)
    if style == "speckled":
        return np.random.default_rng(speckles).integers(0, 2, (side, side))
    row, column = np.indices((side, side)) // 2
    return row % 2 if style == "striped" else (row + column) % 2

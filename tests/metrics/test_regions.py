"""What images show at the places of their tokens, against renders whose objects are known."""

from __future__ import annotations

import random

import numpy as np
import pytest
from train_scenes.render import cover
from train_scenes.render import render as render_scene
from train_shapes.render import render as render_shapes

from mmspec.metrics.image.regions import REGIONS, regions, scenes_objects, shapes_objects
from mmspec.metrics.report.places import domain_of
from mmspec.vision.scenes import domain as scenes
from mmspec.vision.shapes import domain as shapes


def test_objects_of_scenes_are_found_on_every_background() -> None:
    rng = random.Random(0)
    for _ in range(40):
        scene = scenes.sample_scene(rng)
        covered = np.zeros((scenes.IMAGE_SIZE, scenes.IMAGE_SIZE))
        for each, radius, (x, y) in zip(scene.caption.objects, scene.radii, scene.corners, strict=True):
            if each is not None:
                shape = cover(each.kind, radius)
                top, left = y * scenes.PATCH, x * scenes.PATCH
                covered[top : top + len(shape), left : left + shape.shape[1]] += shape
        found = scenes_objects(render_scene(scene))
        assert found[covered > 0.99].all() and not found[covered < 0.01].any()
        where = regions(found, scenes.TILES, scenes.TILES)
        assert {REGIONS[i] for i in where} >= {"object", "background"} and len(where) == 576


def test_objects_of_shapes_are_found() -> None:
    scene = shapes.sample_scene(random.Random(0))
    found = shapes_objects(render_shapes(scene))
    assert 0.02 < found.mean() < 0.6


@pytest.mark.parametrize(
    ("prompts", "side"),
    [
        (["a red circle above a blue square"], 64),
        (["a red star at the top left", "a blue 7 at the bottom right"], 96),
        (["a red star at the top left", "a red circle above a blue square"], None),
    ],
)
def test_the_domain_is_that_of_all_prompts(prompts: list[str], side: int | None) -> None:
    domain = domain_of(prompts)
    assert (None if domain is None else domain.side) == side

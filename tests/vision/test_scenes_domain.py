"""The scenes domain: prompts, features, scenes and rendering."""

from __future__ import annotations

import random

import numpy as np
import torch
from train_scenes.data import caption_features
from train_scenes.render import cover

from mmspec.vision.scenes.classifier import score_captions
from mmspec.vision.scenes.domain import (
    ANY,
    CONDITION_SLOTS,
    DIGITS,
    FEATURE_DIM,
    PATCH,
    QUADRANT,
    Caption,
    Object,
    captions,
    extent,
    features,
    index_features,
    sample_scene,
)
from mmspec.vision.scenes.grammar import parse


def test_features_mark_the_values_of_each_quadrant_and_of_the_background() -> None:
    batch = captions(20, seed=4)
    rows = features(batch)
    assert rows.shape == (20, CONDITION_SLOTS, FEATURE_DIM) and rows.dtype == torch.float32
    assert torch.equal(rows.sum(-1), torch.tensor([4.0, 4.0, 4.0, 4.0, 2.0]).expand(20, -1))
    assert len({tuple(row.flatten().tolist()) for row in rows}) == len(set(batch))
    assert all(Caption.from_indices(caption.indices()) == caption for caption in batch)


def test_the_values_that_training_omits_are_those_that_prompts_may_omit() -> None:
    scene = sample_scene(random.Random(0)).caption
    whole = torch.tensor([scene.indices()] * 4000, dtype=torch.int8)
    rows = caption_features(whole, torch.Generator().manual_seed(0))
    changed = (rows != index_features(whole)).any(-1).float().mean(0)
    # A fill for each object, two values of the background; 0.25 each, five standard errors apart.
    for where, share in zip(scene.objects, changed[:4].tolist(), strict=True):
        assert share == 0 if where is None else abs(share - 0.25) < 0.035
    assert abs(float(changed[4]) - (1 - 0.75**2)) < 0.04


def test_objects_are_inside_their_quadrants() -> None:
    rng = random.Random(6)
    side = QUADRANT // PATCH
    for _ in range(300):
        scene = sample_scene(rng)
        for q, (each, radius, (x, y)) in enumerate(zip(scene.caption.objects, scene.radii, scene.corners, strict=True)):
            if each is not None:
                width, height = extent(each.kind, radius)
                assert q % 2 * side <= x and x + width <= (q % 2 + 1) * side
                assert q // 2 * side <= y and y + height <= (q // 2 + 1) * side


def test_digits_differ_in_tiles() -> None:
    shapes = [cover(digit, 0) for digit in DIGITS]
    for i, one in enumerate(shapes):
        for other in shapes[:i]:
            assert np.abs(one - other).sum() >= 2 * PATCH**2


def test_scores_count_only_what_the_prompt_states() -> None:
    seen = Caption((Object("star", "red", "solid"), None, None, Object("7", "blue", "dotted")), "brick", "teal")
    wanted = parse("a red star at the top left and a blue 7 at the bottom right")
    assert score_captions([seen], [wanted])["captions"] == 1.0
    other = parse("a red star at the top left and a blue 8 at the bottom right on a brick background")
    scores = score_captions([seen], [other])
    assert scores["captions"] == 0.0
    assert 0.5 < scores["attributes"] < 1.0
    assert ANY in wanted.slots()

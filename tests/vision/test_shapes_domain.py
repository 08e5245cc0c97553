"""The shapes domain: prompts, features, scenes and rendering."""

from __future__ import annotations

import random

import torch
from train_shapes.render import render, render_batch

from mmspec.vision.shapes.classifier import score_captions
from mmspec.vision.shapes.domain import (
    CONDITION_SLOTS,
    FEATURE_DIM,
    IMAGE_SIZE,
    LOOKS,
    NONE,
    SLOT_OFFSETS,
    Caption,
    captions,
    features,
    is_held_out,
    sample_scene,
)
from mmspec.vision.shapes.fsq_tokenizer import FSQ
from mmspec.vision.shapes.grammar import parse
from mmspec.vision.shapes.pixels import OBJECT_RGB
from mmspec.vision.shapes.tokenizer import ShapesTokenizer


def test_mirrored_captions_are_the_same_image() -> None:
    one, other = parse("a small red circle below a blue square"), parse("a blue square above a small red circle")
    assert one.canonical() == other.canonical() == other
    assert is_held_out(one) == is_held_out(other)


def test_features_mark_the_values_of_each_thing() -> None:
    batch = captions(20, seed=4)
    rows = features(batch)
    assert rows.shape == (20, CONDITION_SLOTS, FEATURE_DIM)
    assert rows.dtype == torch.float32
    assert torch.equal(rows.sum(-1), torch.tensor([1.0, 3.0, 3.0, 2.0]).expand(20, -1))
    offsets = torch.tensor(SLOT_OFFSETS)
    for caption, row in zip(batch, rows, strict=True):
        indices = row.sum(0).nonzero()[:, 0] - offsets
        assert Caption.from_indices(indices.tolist()) == caption.canonical()


def test_features_of_mirrored_captions_are_equal() -> None:
    assert torch.equal(
        *(features([parse(p)]) for p in ("a red circle below a blue star", "a blue star above a red circle"))
    )


def test_objects_are_inside_and_in_their_relation() -> None:
    rng = random.Random(6)
    for _ in range(300):
        scene = sample_scene(rng)
        (x1, y1), (x2, y2) = scene.centre1, scene.centre2
        checks = {"above": y1 < y2, "below": y1 > y2, "left of": x1 < x2, "right of": x1 > x2, NONE: True}
        assert checks[scene.caption.relation]
        assert tuple(render(scene)[y1, x1]) == OBJECT_RGB[scene.caption.colour1]


def test_fsq_codes_round_trip() -> None:
    fsq = FSQ((8, 5, 5, 5))
    codes = torch.arange(1000)
    assert torch.equal(fsq.to_codes(fsq.from_codes(codes)), codes)
    features_ = torch.randn(50, 4)
    quantised = fsq.quantise(features_)
    assert torch.allclose(fsq.from_codes(fsq.to_codes(quantised)), quantised, atol=1e-6)


def test_tokenizer_shapes() -> None:
    tokenizer = ShapesTokenizer()
    images = torch.rand(2, 3, IMAGE_SIZE, IMAGE_SIZE) * 2 - 1
    tokens = tokenizer.encode(images)
    assert tokens.shape == (2, 256) and tokens.dtype == torch.int64
    assert tokenizer.vocab_size == 2000
    assert tokenizer.decode(tokens).shape == images.shape


def test_scores_count_only_what_the_prompt_states() -> None:
    seen = Caption("small", "red", "circle", "above", "large", "blue", "star", "plain", "white")
    scores = score_captions([seen, seen], [parse("a blue star below a red circle"), parse("a red circle")])
    assert scores["captions"] == 0.5  # the second image has one object too many
    assert scores["attributes"] == 7 / 8
    assert scores["relation"] == 0.5


def test_rough_scenes_keep_the_caption_and_have_more_distinct_patches() -> None:
    rng = random.Random(0)
    scenes = [sample_scene(rng, look=LOOKS["rough"]) for _ in range(40)]
    images = render_batch(scenes)
    assert torch.equal(images, render_batch(scenes))
    for scene, image in zip(scenes, images, strict=True):
        x, y = scene.centre1
        color = (image[:, y - 1 : y + 1, x - 1 : x + 1].mean((1, 2)) + 1) * 127.5
        assert (color - torch.tensor(OBJECT_RGB[scene.caption.colour1])).abs().max() < 40
    clean = render_batch([sample_scene(rng) for _ in range(40)])
    rough_tiles, clean_tiles = (
        len(i.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(-1, 48).unique(dim=0))
        for i in (images, clean)
    )
    assert rough_tiles > 4 * clean_tiles

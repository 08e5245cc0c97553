"""VAR: the tokens of the original with the same random numbers, and collaborative decoding with a small model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden import GOLDEN, expected
from tiny_var import SIDES, tiny_tokenizer, tiny_var, tiny_var_pipeline
from torch import Tensor

import mmspec
from mmspec.cli.app import main
from mmspec.decoding.to_end import decode_to_end
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.rejection import sample
from mmspec.sampling.rng import RESAMPLE, CounterRNG
from mmspec.vision.var import VARPipeline, load_tokenizer, load_var
from mmspec.vision.var.checkpoint import ATTENTION, RESIDUAL, rename
from mmspec.vision.var.decoding import MapBatch, MapSettings, cost_of, map_distances
from mmspec.vision.var.tokenizer import VARTokenizer
from mmspec.vision.var.transformer import SIDES_512, LayerCache, VARTransformer

VAR = GOLDEN / "var"


@pytest.fixture(scope="module")
def pipe() -> VARPipeline:
    return tiny_var_pipeline()


def golden_tokenizer() -> VARTokenizer:
    """The golden codebook and convolutions, with a decoder of random weights."""
    e, config = expected(VAR), json.loads((VAR / "config.json").read_text())
    tokenizer = VARTokenizer(config["patch_nums"], *e["embedding"].shape, channels=(8, 8), groups=4)
    tokenizer.embedding.weight.data = e["embedding"]
    for i, convolution in enumerate(tokenizer.quant_resi):
        convolution.weight.data, convolution.bias.data = e[f"convolution{i}.weight"], e[f"convolution{i}.bias"]
    return tokenizer.eval()


def test_plain_decoding_gives_the_tokens_of_the_original() -> None:
    e, config = expected(VAR), json.loads((VAR / "config.json").read_text())
    model, tokenizer = load_var(VAR / "var_d2.pth"), golden_tokenizer()
    rows = len(e["labels"])
    sampling = [SamplingParams(1.0, config["top_k"], config["top_p"])] * rows
    seeds = range(config["seed"], config["seed"] + rows)
    settings = MapSettings(config["cfg"], len(config["patch_nums"]))
    with torch.no_grad():
        batch = MapBatch(model, None, tokenizer, e["labels"], sampling, settings, seeds)
        decode_to_end(batch)
        tokens, stats = batch.state.result().clone(), batch.stats()
        torch.testing.assert_close(tokenizer.latents(tokens), e["f_hat"], atol=1e-5, rtol=1e-5)
        # One pass over the whole sequence gives the distributions of the map-by-map passes: no distance to itself.
        same = map_distances(model, model, tokenizer, e["labels"], sampling, config["cfg"], tokens)
    assert torch.equal(tokens, e["tokens"]) and float(same.max()) == 0
    assert stats.nfe == len(config["patch_nums"]) and [row.tokens for row in stats.rows] == [tokens.shape[1]] * rows


@pytest.mark.parametrize("shared_aln", [False, True])
def test_one_masked_pass_equals_map_by_map(shared_aln: bool) -> None:
    model = tiny_var(shared_aln=shared_aln)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, side**2, 8, generator=generator) for side in SIDES]
    condition = model.classes(torch.tensor([0, 3]), 2)
    with torch.no_grad():
        at_once, _ = model(condition, inputs, 0, [])
        single, cache = list[Tensor](), list[LayerCache]()
        for i, each in enumerate(inputs):
            z, cache = model(condition, [each], i, cache)
            single.append(z)
    torch.testing.assert_close(torch.cat(single, dim=1), at_once, atol=1e-5, rtol=1e-5)


def test_the_small_model_continues_from_the_large_models_maps(pipe: VARPipeline) -> None:
    settings: dict[str, Any] = {"class_labels": [0, 3, 2], "seed": 4, "output_type": "latent"}
    plain, code = pipe(**settings), pipe(large_scales=2, **settings)
    assert (plain.stats.nfe, plain.stats.draft_calls, code.stats.nfe, code.stats.draft_calls) == (4, 0, 2, 2)
    assert torch.equal(code.tokens[:, :5], plain.tokens[:, :5]) and not torch.equal(code.tokens, plain.tokens)
    assert torch.equal(pipe(large_scales=4, **settings).tokens, plain.tokens)
    # The rest are samples of the small model, given the large one's maps: its distributions are those of one pass.
    small, tokenizer = pipe.draft_transformer, pipe.vae
    image, inputs, first = tokenizer.empty(3), list[Tensor](), 0
    for i, side in enumerate(SIDES):
        inputs.append(tokenizer.input_of(i, image))
        image = image + tokenizer.added(i, code.tokens[:, first : first + side**2])
        first += side**2
    labels = torch.tensor([0, 3, 2])
    with torch.no_grad():
        cond, uncond = (small(small.classes(x, 3), inputs, 0, [])[0][:, 14:] for x in (labels, None))
    p = (5.0 * cond - 4.0 * uncond).softmax(-1)
    positions = np.tile(np.arange(14, 30), (3, 1))
    drawn = sample(p, CounterRNG([4, 5, 6], torch.device("cpu")).window(positions, 0)[RESAMPLE])
    assert torch.equal(drawn, code.tokens[:, 14:])


def test_min_p_and_typical_p_reach_the_sampler(pipe: VARPipeline) -> None:
    """min_p=1 leaves the most likely token, and a tiny typical_p a single one, whatever the seed."""
    greedy = pipe("3", seed=0, temperature=0).tokens
    assert torch.equal(pipe("3", seed=1, min_p=1.0).tokens, greedy)
    assert torch.equal(pipe("3", seed=1, typical_p=1e-4).tokens, pipe("3", seed=2, typical_p=1e-4).tokens)
    own = VARPipeline(pipe.transformer, pipe.vae, min_p=1.0)
    own.set_progress_bar_config(disable=True)
    assert torch.equal(own("3", seed=1).tokens, greedy) and not torch.equal(own("3", seed=1, min_p=0).tokens, greedy)


def test_the_loss_of_a_small_model_is_measured(pipe: VARPipeline) -> None:
    settings: dict[str, Any] = {"class_labels": [1] * 4, "seed": 0, "output_type": "latent"}
    assert pipe(**settings).stats.tv_bound == 0
    assert math.isnan(pipe(large_scales=2, **settings).stats.tv_bound)
    later, sooner = (pipe(large_scales=n, measure_distance=True, **settings).stats.tv_bound for n in (3, 1))
    assert 0 < later < sooner < 1
    same = tiny_var_pipeline()
    same.register_modules(draft_transformer=same.transformer)
    assert same(large_scales=2, measure_distance=True, **settings).stats.tv_bound < 1e-6


def test_what_a_small_model_saves() -> None:
    """VAR-d30 for the first 6 of 10 maps and VAR-d16 for the rest, in 16 bits."""
    with torch.device("meta"):
        large = VARTransformer(dim=1920, depth=30, heads=30).half()
        small = VARTransformer(dim=1024, depth=16, heads=16).half()
    alone, both = cost_of(large, None, 10), cost_of(large, small, 6)
    assert (alone.large_calls, both.large_calls, both.small_calls) == (10, 6, 4)
    assert 0.65 < both.weight_bytes / alone.weight_bytes < 0.67
    assert both.cache_bytes / alone.cache_bytes == pytest.approx(16 * 1024 / (30 * 1920))
    assert alone.cache_bytes == 2 * 2 * 2 * 30 * 1920 * 680


def original_layout(tokenizer: VARTokenizer) -> dict[str, Tensor]:
    """The tensors of a tokenizer under the names and in the shapes of the published file."""
    tensors = tokenizer.state_dict()
    levels = len(tokenizer.config.channels)
    convolutions = len(tokenizer.quant_resi)
    candidates = ["decoder.conv_in", "decoder.conv_out", "decoder.norm_out", "post_quant_conv", "quantize.embedding"]
    candidates += [f"quantize.quant_resi.qresi_ls.{i}" for i in range(convolutions)]
    parts = ["norm1", "norm2", "conv1", "conv2", *RESIDUAL]
    candidates += [f"decoder.mid.block_{i}.{part}" for i in (1, 2) for part in parts]
    places = ["decoder.mid.attn_1", *(f"decoder.up.{i}.attn.{j}" for i in range(levels) for j in range(3))]
    candidates += [f"{place}.{part}" for place in places for part in ATTENTION]
    candidates += [f"decoder.up.{i}.block.{j}.{part}" for i in range(levels) for j in range(3) for part in parts]
    candidates += [f"decoder.up.{i}.upsample.conv" for i in range(levels)]
    found = {}
    for key in [f"{name}.{leaf}" for name in candidates for leaf in ("weight", "bias")]:
        if (value := tensors.pop(rename(key, levels), None)) is not None:
            linear = ".attn" in key and "norm" not in key and key.endswith("weight")
            found[key] = value[:, :, None, None] if linear else value
    for place in places:
        for leaf in ("weight", "bias"):
            names = [rename(f"{place}.qkv.{leaf}", levels).replace(".qkv.", f".to_{part}.") for part in "qkv"]
            if names[0] in tensors:
                joined = torch.cat([tensors.pop(name) for name in names])
                found[f"{place}.qkv.{leaf}"] = joined[:, :, None, None] if leaf == "weight" else joined
    assert not tensors, sorted(tensors)
    return found


def test_the_published_files_are_loaded(tmp_path: Path) -> None:
    """The names were compared with the original's once, with images equal to 1e-6; here they are inverted."""
    tokenizer = VARTokenizer(SIDES, 48, 8, (32, 32))
    torch.save({**original_layout(tokenizer), "encoder.conv_in.weight": torch.zeros(1)}, tmp_path / "vae.pth")
    again = load_tokenizer(tmp_path / "vae.pth", SIDES)
    assert all(torch.equal(value, tokenizer.state_dict()[name]) for name, value in again.state_dict().items())
    loaded = mmspec.load(str(VAR / "var_d2.pth"), tokenizer=str(tmp_path / "vae.pth"))
    assert isinstance(loaded, VARPipeline)
    loaded.set_progress_bar_config(disable=True)
    assert loaded("3", seed=0).images[0].size == (8, 8)
    with pytest.raises(ArgumentError, match="generates with its tokenizer"):
        mmspec.load(str(VAR / "var_d2.pth"))
    with pytest.raises(ModelError, match="not VAR's tokenizer"):
        load_tokenizer(VAR / "var_d2.pth")
    with pytest.raises(ModelError, match="not a VAR"):
        load_var(tmp_path / "vae.pth")
    with pytest.raises(ModelError, match="have 30 places"):
        load_var(VAR / "var_d2.pth", {"patch_nums": SIDES_512})


def test_a_saved_pipeline_is_loaded_by_name(pipe: VARPipeline, tmp_path: Path) -> None:
    pipe.save_pretrained(tmp_path)
    again = mmspec.load(str(tmp_path))
    again.set_progress_bar_config(disable=True)
    settings: dict[str, Any] = {"class_labels": [0, 1], "seed": 1, "large_scales": 1, "output_type": "np"}
    ours, theirs = pipe(**settings), again(**settings)
    assert torch.equal(ours.tokens, theirs.tokens)
    np.testing.assert_array_equal(ours.images, theirs.images)


def test_callbacks_see_whole_maps(pipe: VARPipeline) -> None:
    seen: list[int] = []

    def stop(pipe: Any, calls: int, done: int, tensors: dict[str, Tensor]) -> None:
        seen.append(tensors["tokens"].shape[1])
        assert done == tensors["tokens"].numel() and len(pipe.decode(tensors["tokens"])) == 2
        pipe._interrupt = calls == 3

    out = pipe(class_labels=[0, 1], seed=0, large_scales=2, callback_on_step_end=stop)
    assert seen == [1, 5, 14] and out.tokens.shape == (2, 14)


def test_an_interrupted_batch_has_the_whole_images_before_it(pipe: VARPipeline) -> None:
    whole = pipe(class_labels=[0, 1, 2], seed=0, batch_size=2, output_type="np")
    assert torch.equal(whole.tokens, pipe(class_labels=[0, 1, 2], seed=0).tokens)
    calls = 0

    def stop(pipe: Any, *step: Any) -> None:
        nonlocal calls
        calls += 1
        pipe._interrupt = calls == whole.stats.rows[0].target_calls + 2

    out = pipe(class_labels=[0, 1, 2], seed=0, batch_size=1, callback_on_step_end=stop, output_type="np")
    assert torch.equal(out.tokens[0], whole.tokens[0]) and (out.images[0] == whole.images[0]).all()
    assert torch.equal(out.tokens[1, :5], whole.tokens[1, :5]) and (out.tokens[1, 5:] == -1).all()
    np.testing.assert_allclose(out.images[1:2], pipe.decode(whole.tokens[1:2, :5], output_type="np"), atol=1e-5)
    assert (out.tokens[2] == -1).all() and [row.tokens for row in out.stats.rows] == [len(whole.tokens[0]), 5, 0]
    holed = whole.tokens.clone()
    holed[0, 2] = -1
    with pytest.raises(ArgumentError, match="tokens has -1 within a map"):
        pipe.decode(holed)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"recipe": "scd"}, ArgumentError, "a call generates a whole map already; use 'plain'"),
        ({"large_scales": 0}, ArgumentError, "large_scales=0 is not allowed"),
        ({"guidance_scale": -1}, ArgumentError, "guidance_scale=-1 is not allowed"),
        ({"class_labels": 5}, ArgumentError, "give class ids, 0 to 4"),
        ({"class_labels": None, "prompt": "a cat"}, PromptError, "give numbers of classes"),
    ],
)
def test_arguments_that_are_refused(
    pipe: VARPipeline, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        pipe(**{"class_labels": 1, **arguments})


@pytest.mark.parametrize("name", ["train-drafter", "train-judge"])
def test_nothing_is_trained_for_a_model_without_drafts_of_tokens(
    pipe: VARPipeline, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe.save_pretrained(tmp_path / "model")
    assert main([name, "-m", str(tmp_path / "model"), "-o", str(tmp_path / "out")]) == 2
    assert "--model: VARPipeline has no drafts of tokens" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_tokens_of_another_model_are_refused(pipe: VARPipeline) -> None:
    with pytest.raises(ArgumentError, match="tokens has 24, which is not allowed; codes are 0 to 23"):
        pipe.decode(torch.full((1, 30), 24))


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ArgumentError, match="requires a draft_transformer for the other 3"):
        tiny_var_pipeline(small=False)(class_labels=0, large_scales=1)
    with pytest.raises(ArgumentError, match="vae has another sides"):
        VARPipeline(tiny_var(), tiny_tokenizer(sides=(1, 2, 4)))

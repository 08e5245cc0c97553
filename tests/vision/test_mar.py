"""MAR: the results of the original implementation, the order of decoding, and every recipe with an analytic head.

Chains of a random head diverge, so tests of sampling use a head that predicts the noise of a Gaussian around a function
of the condition.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from golden import GOLDEN, expected
from safetensors.torch import save_file
from tiny_mar import SIZES, Analytic, tiny
from torch import nn

import mmspec
from mmspec.continuous.sampler import Gaussian
from mmspec.decoding.rows import select_rows
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.sampling.logits import Logits
from mmspec.sampling.rng import CounterRNG
from mmspec.vision.mar import MARPipeline, Shortcuts, load_kl16, load_mar
from mmspec.vision.mar.denoising import MARHead, Schedule
from mmspec.vision.mar.from_checkpoints import from_checkpoints
from mmspec.vision.mar.kl16 import pixels
from mmspec.vision.mar.masked import missing
from mmspec.vision.mar.target import MARTarget, orders
from mmspec.vision.mar.transformer import MARTransformer

MAR = GOLDEN / "mar"


def quiet(pipe: MARPipeline) -> MARPipeline:
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_backbone_and_head_have_the_originals_numbers() -> None:
    model, e = load_mar(MAR), expected(MAR)
    rows = len(e["labels"])
    condition = torch.cat([model.conditions(e["labels"], rows), model.conditions(None, rows)])
    with torch.no_grad():
        for mask, z in (("mask", "z"), ("mask_one_left", "z_one_left"), (None, "z_all_masked")):
            known = (torch.ones_like(e["mask"]) if mask is None else e[mask]) == 0
            got = model(condition, e["tokens"].repeat(2, 1, 1), known.repeat(2, 1))
            assert float((got - e[z]).abs().max()) < 1e-4
        encoded, _, _ = model.encode(condition, e["tokens"].repeat(2, 1, 1), (e["mask"] == 0).repeat(2, 1))
        assert float((encoded - e["encoder_out"]).abs().max()) < 1e-4
        net = model.diffloss.net
        assert float((net(e["head_x"], e["head_t"], e["head_c"]) - e["head_out"]).abs().max()) < 1e-4
        x, scale, half = e["head_cfg_x"], float(e["cfg_scale"]), len(e["head_cfg_x"]) // 2
        out = net(x[:half].repeat(2, 1), e["head_cfg_t"], e["head_cfg_c"])
        cond, uncond = out[:half, :16], out[half:, :16]
        out[:, :16] = (uncond + scale * (cond - uncond)).repeat(2, 1)
        assert float((out - e["head_cfg_out"]).abs().max()) < 1e-4
        plan = Schedule(100)
        assert plan.timesteps == e["timestep_map"].tolist()
        for n, i in enumerate(e["step_index"].tolist()):
            toward, share = net(e["step_x"][n : n + 1], e["step_t"][n : n + 1], e["step_c"][n : n + 1]).chunk(2, -1)
            mean, log_variance = plan.step(i, e["step_x"][n : n + 1], toward, share)
            assert float((mean - e["step_mean"][n]).abs().max()) < 1e-4
            assert float((log_variance - e["step_log_variance"][n]).abs().max()) < 1e-4


def test_every_form_of_checkpoint_loads(tmp_path: Path) -> None:
    config = json.loads((MAR / "config.json").read_text())
    file = MAR / "checkpoint-last.pth"
    averaged = torch.load(file, weights_only=True)["model_ema"]
    save_file(averaged, tmp_path / "mar-tiny.safetensors")
    assert isinstance(mmspec.load(str(file)), MARPipeline)
    first, mirror = load_mar(file), load_mar(tmp_path / "mar-tiny.safetensors", config)
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), mirror.state_dict().values(), strict=True)
    )
    with pytest.raises(ArgumentError, match="encoder_num_heads"):
        load_mar(tmp_path)
    with pytest.raises(ModelError, match="diffloss_d=9"):
        load_mar(tmp_path, {**config, "diffloss_d": 9})
    del averaged["mask_token"]
    save_file(averaged, tmp_path / "mar-tiny.safetensors")
    with pytest.raises(ModelError, match="mask_token"):
        load_mar(tmp_path, config)
    save_file({"a": torch.zeros(1)}, tmp_path / "mar-tiny.safetensors")
    with pytest.raises(ModelError, match="is not a MAR"):
        load_mar(tmp_path)


@pytest.mark.parametrize(
    ("size", "parameters", "keys"), [("b", 207_924_768, 364), ("l", 478_326_304, 476), ("h", 942_403_104, 604)]
)
def test_published_sizes(size: str, parameters: int, keys: int) -> None:
    width, depth, heads, head_depth, head_width = {
        "b": (768, 12, 12, 6, 1024), "l": (1024, 16, 16, 8, 1280), "h": (1280, 20, 16, 12, 1536)
    }[size]  # fmt: skip
    with torch.device("meta"):
        model = MARTransformer(
            16, 16, width, depth, heads, width, depth, heads, head_depth=head_depth, head_width=head_width
        )
    assert sum(p.numel() for p in model.parameters()) == parameters and len(model.state_dict()) == keys


def kl(tmp_path: Path) -> tuple[AutoencoderKL, Path]:
    """A narrow KL-16 and its original file."""
    vae = AutoencoderKL(
        latent_channels=4, block_out_channels=(32, 32, 64), layers_per_block=1, norm_num_groups=32,
        down_block_types=("DownEncoderBlock2D",) * 2 + ("AttnDownEncoderBlock2D",),
        up_block_types=("UpDecoderBlock2D",) * 3, scaling_factor=0.2325,
    ).eval()  # fmt: skip
    for p in vae.parameters():
        nn.init.normal_(p, std=0.2)
    original = {}
    for key, value in vae.state_dict().items():
        name = key.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        name = name.replace("mid_block.resnets.0", "mid.block_1").replace("mid_block.resnets.1", "mid.block_2")
        name = name.replace("mid_block.attentions.0", "mid.attn_1")
        for side, way in (("down", "down"), ("up", "up")):
            for level in range(3):
                theirs = level if side == "down" else 2 - level
                name = name.replace(f"{side}_blocks.{level}.resnets", f"{side}.{theirs}.block")
                name = name.replace(f"{side}_blocks.{level}.attentions", f"{side}.{theirs}.attn")
                name = name.replace(f"{side}_blocks.{level}.{way}samplers.0", f"{side}.{theirs}.{way}sample")
        if "attn" in name:
            for ours, theirs_ in (("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out")):
                name = name.replace(f".{ours}.", f".{theirs_}.")
            name = name.replace("group_norm", "norm")
            value = value[:, :, None, None] if value.ndim == 2 else value
        original[name] = value.contiguous()
    torch.save({"model": original}, tmp_path / "kl16.ckpt")
    return vae, tmp_path / "kl16.ckpt"


def test_the_autoencoder_equals_that_of_diffusers(tmp_path: Path) -> None:
    vae, file = kl(tmp_path)
    loaded = load_kl16(file)
    assert loaded.config.block_out_channels == (32, 32, 64) and loaded.config.scaling_factor == 0.2325
    latents = torch.randn(2, 16, 4)
    maps = latents.transpose(1, 2).reshape(2, 4, 4, 4)
    with torch.no_grad():
        assert torch.equal(pixels(loaded, latents), vae.decode(maps / 0.2325).sample)
    content = torch.load(file, weights_only=True)
    content["model"] |= {"loss.logvar": torch.zeros(()), "loss.discriminator.main.0.weight": torch.zeros(3)}
    torch.save(content, file)
    assert torch.equal(pixels(load_kl16(file), latents), pixels(loaded, latents))
    del content["model"]["decoder.mid.attn_1.q.weight"]
    torch.save(content, file)
    with pytest.raises(ModelError, match="missing"):
        load_kl16(file)


@torch.no_grad()
def test_the_chain_samples_the_distribution_of_the_analytic_head() -> None:
    net = Analytic(4, 16)
    head = MARHead(net, 4, 16, 100)  # type: ignore[arg-type]
    noise = CounterRNG(range(4000), torch.device("cpu")).normals(np.zeros((4000, 1), dtype=np.int64), head.normals)
    sampler = head(Logits(torch.zeros(4000, 1, 16), None), noise, np.zeros((4000, 1), dtype=np.int64))
    mean = torch.tanh(net.means.bias)
    assert float((sampler.mean.mean((0, 1)) - mean).abs().max()) < 0.03
    assert float((sampler.mean.std((0, 1)) - 0.3).abs().max()) < 0.03
    # The deviation of the last step is small.
    assert 0.005 < float(sampler.log_sigma.exp().mean()) < 0.007 and float(sampler.path.mean()) < -20
    # A chain with fewer steps starts from the same noise and ends close to it.
    few = MARHead(Analytic(4, 16), 4, 16, 25)  # type: ignore[arg-type]
    near = few(Logits(torch.zeros(4000, 1, 16), None), noise, np.zeros((4000, 1), dtype=np.int64))
    assert float((near.mean - sampler.mean).square().mean().sqrt()) < 0.3
    assert isinstance(near, Gaussian)


def test_windows_equal_single_latents() -> None:
    model = tiny()
    order, labels = orders([3, 4, 5], 16), torch.tensor([1, 2, 3])
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(3, 16, 4, generator=generator)
    by_place = torch.zeros_like(latents).scatter_(1, order[..., None].expand_as(latents), latents)
    with torch.no_grad():
        single, window = (MARTarget(model, labels, order, guided=True) for _ in range(2))
        steps = [single.prefill()] + [single.forward(latents[:, n : n + 1], np.full(3, n)) for n in range(15)]
        expected = [
            torch.cat([s.cond for s in steps], 1),
            torch.cat([s.uncond for s in steps if s.uncond is not None], 1),
        ]
        window.prefill()
        window.forward(torch.randn(3, 5, 4, generator=generator), np.array([0, 0, 0]))
        window.forward(latents[:, :7], np.zeros(3, dtype=np.int64))
        at = np.array([3, 0, 5])
        rows = torch.stack([latents[b, a : a + 4] for b, a in enumerate(at)])
        got = window.forward(rows, at)
        for side, want in zip(got, expected, strict=True):
            for b, a in enumerate(at):
                assert side is not None and float((side[b] - want[b, a + 1 : a + 5]).abs().max()) < 1e-5
        select_rows(window, [0, 2], 3)
        got = window.forward(latents[[0, 2], 12:], np.array([12, 12]))  # reaches past the end
        assert float((got.cond[:, :3] - expected[0][[0, 2], 13:]).abs().max()) > 1e-3  # latents 8 to 11 are missing
        for n in range(12):
            window.forward(latents[[0, 2], n : n + 1], np.array([n, n]))
        got = window.forward(latents[[0, 2], 12:], np.array([12, 12]))
        assert float((got.cond[:, :3] - expected[0][[0, 2], 13:]).abs().max()) < 1e-5
        # As in the published loop: all latents before are known, all others are masked.
        known = torch.zeros(3, 16, dtype=torch.bool).scatter(1, order[:, :9], True)
        z = model(model.conditions(labels, 3), by_place, known)
        assert float((z[torch.arange(3), order[:, 9]] - expected[0][:, 9]).abs().max()) < 1e-5


def test_one_slot_is_that_of_the_whole_window() -> None:
    """Rows ask for different tokens of their windows, which a drafter does whose rows are shorter than its reach."""
    model, order, labels = tiny(), orders([3, 4, 5], 16), torch.tensor([1, 2, 3])
    latents = torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole, single = (MARTarget(model, labels, order, guided=True) for _ in range(2))
        at, slot = np.array([0, 0, 0]), np.array([0, 2, 1])
        for want, got in zip(whole.forward(latents, at), single.forward_slot(latents, at, slot), strict=True):
            assert want is not None and got is not None and got.shape[1] == 1
            assert torch.allclose(got[:, 0], want[[0, 1, 2], slot], atol=1e-6)
            assert not torch.allclose(got[:, 0], want[:, -1], atol=1e-3)  # what the last slot alone would be


def test_passes_of_the_published_schedule() -> None:
    assert missing(256, 256) == list(range(255, -1, -1))
    counts = missing(256, 64)
    assert (
        counts[-1] == 0 and max(-np.diff([256, *counts])) == 7 and counts[31] == math.floor(256 * math.cos(math.pi / 4))
    )
    with pytest.raises(ArgumentError, match="steps=0"):
        missing(256, 0)


def test_published_decoding_equals_the_loop() -> None:
    pipe = quiet(MARPipeline(tiny()))
    call: dict[str, Any] = {"class_labels": [1, 2], "seed": 3, "head_steps": 8, "output_type": "latent"}
    plain = pipe(**call)
    assert plain.stats.target_calls == 16 and plain.stats.tokens_per_call == 1.0
    for recipe in ("scd+tolerance:distance=0.000001,window=3", "few-steps+tolerance:distance=0,window=3,steps=2"):
        other = pipe(recipe=recipe, **call)
        assert float((other.tokens - plain.tokens).abs().max()) < 1e-4, recipe
    alone = pipe(class_labels=2, seed=4, head_steps=8, output_type="latent")
    assert torch.allclose(alone.tokens[0], plain.tokens[1], atol=1e-5)
    unguided = pipe(guidance_scale=1.0, **call)
    assert not torch.allclose(unguided.tokens, plain.tokens)
    # Rows have different orders of places.
    assert not torch.equal(orders([3], 16), orders([4], 16))


RECIPES = [
    "draft+smoothed:sigma=0.3,window=3", "layer-skip+smoothed:layers=1,sigma=0.5", "draft+cspd:window=4",
    "draft+cspd:schedule=corrected,window=3", "few-steps:steps=4,sigma=0.2",
]  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_run(recipe: str) -> None:
    pipe = quiet(MARPipeline(tiny(), None, tiny(lean=0.02)))
    out = pipe(class_labels=[1, 2, 3], recipe=recipe, seed=0, head_steps=6, output_type="latent")
    assert out.tokens.shape == (3, 16, 4) and bool(out.tokens.isfinite().all()) and out.stats.draft_calls > 0
    assert bool((out.tokens != 0).all())
    assert out.stats.tokens_per_call > 1


@pytest.mark.parametrize("recipe", ["draft+smoothed:window=3", "draft+cspd:schedule=corrected,window=3"])
def test_drafts_of_the_target_itself_are_accepted_if_conditions_are_equal(recipe: str) -> None:
    pipe = quiet(MARPipeline(tiny(), None, tiny()))
    call: dict[str, Any] = {"class_labels": [1, 2], "seed": 0, "head_steps": 6, "output_type": "latent"}
    assert pipe(recipe=recipe, **call).stats.acceptance == [1.0, 1.0]
    # The published schedule hides drafts from the target, and so rejects even drafts of the target itself.
    published = pipe(recipe="draft+cspd:window=5,flatten=1,prefill=0", **call).stats.acceptance
    assert published[0] == 1.0 and all(a is not None and a < 0.7 for a in published[1:])


def test_the_published_schedule_takes_the_published_number_of_calls() -> None:
    sizes = {"encoder_depth": 1, "decoder_depth": 1, "grid_size": 16}
    pipe = quiet(MARPipeline(tiny(**sizes), None, tiny(lean=0.02, **sizes)))
    call: dict[str, Any] = {"class_labels": 1, "seed": 0, "head_steps": 2, "guidance_scale": 1, "output_type": "latent"}
    out = pipe(recipe="draft+cspd:window=9", steps=64, **call)
    assert (out.stats.target_calls, out.stats.draft_calls, out.stats.tokens) == (12, 60, 256)
    assert bool(out.tokens.isfinite().all()) and bool((out.tokens != 0).all())


def test_the_published_schedule_accepts_drafts_of_the_target_in_the_first_pass() -> None:
    call: dict[str, Any] = {"class_labels": [1, 2], "seed": 0, "head_steps": 6, "output_type": "latent", "steps": 8}
    same = quiet(MARPipeline(tiny(), None, tiny()))
    recipe = "draft+cspd:flatten=1,prefill=0"
    # With a verification after each pass nothing is hidden, and a draft model equal to the target is always accepted.
    out = same(recipe=f"{recipe},window=2", **call)
    assert all(a == 1.0 for a in out.stats.acceptance) and out.stats.target_calls == 8
    later = same(recipe=f"{recipe},window=5", **call)
    assert later.stats.target_calls < 8 and min(a for a in later.stats.acceptance if a is not None) < 0.7
    alone = same(recipe=f"{recipe},window=5", **{**call, "seed": 1, "class_labels": [2]})
    assert torch.allclose(alone.tokens[0], later.tokens[1], atol=1e-4)


def test_shortcuts_change_the_result() -> None:
    pipe = quiet(MARPipeline(tiny()))
    call: dict[str, Any] = {"class_labels": [1, 2], "seed": 0, "head_steps": 12, "output_type": "latent"}
    full = pipe(steps=8, **call)
    assert full.stats.target_calls == 8 and full.stats.tokens_per_call == 2.0
    for shortcuts in (Shortcuts(last_head_steps=3), Shortcuts(refresh=2)):
        short = pipe(steps=8, shortcuts=shortcuts, **call)
        assert shortcuts.lossy and 0 < float((short.tokens - full.tokens).abs().mean()) < 0.5
    with pytest.raises(ArgumentError, match="one by one"):
        pipe(recipe="smoothed", steps=8, **call)
    with pytest.raises(ArgumentError, match="refresh=0"):
        Shortcuts(refresh=0)


def test_the_pipeline_is_saved_and_loaded(tmp_path: Path) -> None:
    vae, file = kl(tmp_path)
    torch.manual_seed(0)
    model = MARTransformer(**SIZES)
    save_file(model.state_dict(), tmp_path / "mar.safetensors")
    pipe = quiet(from_checkpoints(tmp_path / "mar.safetensors", {"encoder_num_heads": 2, "decoder_num_heads": 2}, file))
    pipe.save_pretrained(tmp_path / "saved")
    again = quiet(mmspec.load(str(tmp_path / "saved")))
    assert type(again) is MARPipeline
    for each in (pipe, again):
        each.transformer.diffloss.net = Analytic(4, 16)
    seen: list[int] = []
    first = pipe("3", seed=1, steps=4, head_steps=4, on_step=lambda step: seen.append(step.committed))
    second = again(class_labels=3, seed=1, steps=4, head_steps=4)
    assert first.images[0].size == (16, 16) and seen[-1] == 16
    assert np.array_equal(np.asarray(first.images[0]), np.asarray(second.images[0]))
    with pytest.raises(PromptError, match="classes"):
        pipe("a dog")
    with pytest.raises(ArgumentError, match="class_labels"):
        pipe(class_labels=7)
    with pytest.raises(ArgumentError, match="cfg_schedule"):
        pipe("3", cfg_schedule="lineal")
    with pytest.raises(ArgumentError, match="min_p is not an argument of MARPipeline: its tokens are vectors"):
        pipe("3", **dict[str, Any](min_p=0.1))
    with pytest.raises(ArgumentError, match="another grid_size"):
        MARPipeline(tiny(), None, tiny(grid_size=3))

"""Calls of image pipelines: callbacks that look and interrupt, previews, negative prompts, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_llamagen
import tiny_models
import tiny_processors
import torch
from diffusers import VQModel
from diffusers.callbacks import PipelineCallback
from torch import Tensor, nn

import mmspec
from mmspec.errors import ArgumentError, MMSpecError, PromptError
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.mar import MARPipeline
from mmspec.vision.mar.transformer import MARTransformer

SIZES: dict[str, Any] = {
    "grid_size": 3, "token_dim": 4, "encoder_dim": 16, "encoder_depth": 1, "encoder_heads": 2, "decoder_dim": 16,
    "decoder_depth": 1, "decoder_heads": 2, "class_num": 7, "buffer_size": 3, "head_depth": 1, "head_width": 16,
}  # fmt: skip


def quiet(pipe: Any) -> Any:
    pipe.set_progress_bar_config(disable=True)
    return pipe


def emu3(**options: Any) -> Any:
    return quiet(mmspec.load(tiny_models.emu3(), processor=tiny_processors.emu3(), **options))


def llamagen() -> Any:
    gpt = tiny_llamagen.tiny(model_type="c2i", num_classes=7, cls_token_num=1)
    torch.manual_seed(0)
    vqvae = VQModel(
        block_out_channels=(32, 32), down_block_types=("DownEncoderBlock2D",) * 2, norm_num_groups=32,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=8, num_vq_embeddings=tiny_llamagen.V, vq_embed_dim=8,
        lookup_from_codebook=True,
    )  # fmt: skip
    return quiet(LlamaGenPipeline(gpt, vqvae.eval()))


def mar() -> Any:
    torch.manual_seed(0)
    model = MARTransformer(**SIZES).eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.05)
    return quiet(MARPipeline(model, head_steps=2))


# Pipelines and calls of images of 3 x 3 or 2 x 3 tokens.
PIPES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "emu3": (emu3, {"prompt": ["a dog", "cat"], "height": 16, "width": 24}, 6),
    "llamagen": (llamagen, {"class_labels": [1, 2]}, 9),
    "mar": (mar, {"class_labels": [1, 2]}, 9),
}


# --- Callbacks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PIPES)
def test_callbacks_see_the_codes_so_far(name: str) -> None:
    make, call, length = PIPES[name]
    pipe, seen = make(), []

    def look(pipe: Any, step: int, committed: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        assert list(tensors) == ["tokens"]
        seen.append(tensors["tokens"])
        return tensors

    out = pipe(**call, seed=0, recipe="plain", output_type="latent", callback_on_step_end=look)
    assert len(seen) == out.stats.nfe
    for tokens in seen:
        assert tokens.shape == out.tokens.shape and tokens.dtype == out.tokens.dtype
        missing = tokens.isnan() if tokens.is_floating_point() else tokens < 0
        assert torch.equal(tokens[~missing], out.tokens[~missing])
    assert torch.equal(seen[-1], out.tokens) and (tokens := seen[0]).shape[1] == length
    assert (tokens.isnan() if tokens.is_floating_point() else tokens < 0).any()


@pytest.mark.parametrize("name", PIPES)
def test_a_callback_interrupts_a_call(name: str) -> None:
    make, call, length = PIPES[name]
    pipe = make()
    whole = pipe(**call, seed=0, recipe="plain", output_type="latent")

    def stop(pipe: Any, step: int, committed: int, tensors: dict[str, Tensor]) -> None:
        pipe._interrupt = step == 3

    out = pipe(**call, seed=0, recipe="plain", output_type="latent", callback_on_step_end=stop)
    known = ~out.tokens.isnan().any(-1) if out.tokens.is_floating_point() else out.tokens >= 0
    assert out.stats.nfe == 3 < whole.stats.nfe and 0 < out.stats.tokens < whole.stats.tokens
    assert 0 < known.sum() < 2 * length and torch.equal(out.tokens[known], whole.tokens[known])
    assert torch.equal(pipe(**call, seed=0, recipe="plain", output_type="latent").tokens, whole.tokens)


@pytest.mark.parametrize("recipe", ["plain", "scd"])
@pytest.mark.parametrize("name", PIPES)
def test_an_interrupted_call_has_the_statistics_of_what_was_decoded(name: str, recipe: str) -> None:
    make, call, _ = PIPES[name]
    if name == "mar" and recipe == "scd":
        recipe = "scd+tolerance"
    pipe, calls = make(), 0
    given = {key: [*value, value[0]] if isinstance(value, list) else value for key, value in call.items()}
    whole = pipe(**given, seed=0, recipe=recipe, output_type="latent", batch_size=1).stats
    first = whole.rows[0].target_calls

    def stop(pipe: Any, step: int, committed: int, tensors: dict[str, Tensor]) -> None:
        nonlocal calls
        calls += 1
        pipe._interrupt = calls == first + 2  # in the second of three batches

    out = pipe(
        **given, seed=0, recipe=recipe, output_type="latent", batch_size=1, callback_on_step_end=stop
    )  # fmt: skip
    assert len(out.tokens) == 3 and type(out.stats) is type(whole) and out.stats.rows[0] == whole.rows[0]
    second, third = out.stats.rows[1:]
    assert (
        second.target_calls == 2
        and 0 < second.tokens < whole.rows[1].tokens
        and (third.tokens, third.target_calls) == (0, 0)
    )
    assert out.stats.target_calls == first + 2 and out.stats.tokens == whole.rows[0].tokens + second.tokens
    assert out.stats.tokens_per_call == out.stats.tokens / out.stats.target_calls
    assert sum(out.stats.seconds_by_part.values()) == pytest.approx(out.stats.seconds) and out.stats.peak_memory


def test_an_interrupted_image_is_grey_where_codes_are_missing() -> None:
    def stop(pipe: Any, step: int, committed: int, tensors: dict[str, Tensor]) -> None:
        pipe._interrupt = committed >= 8

    out = llamagen()(class_labels=[1, 2], seed=0, recipe="plain", callback_on_step_end=stop)
    for image, codes in zip(out.images, out.tokens, strict=True):
        assert image.size == (6, 6) and (codes[:4] >= 0).all() and (codes[4:] < 0).all()
        pixels = np.asarray(image).astype(int)
        assert (abs(pixels[2:4, 2:] - 128) <= 1).all() and (abs(pixels[4:] - 128) <= 1).all()
        assert (abs(pixels[:2] - 128) > 1).any()


class Skips(PipelineCallback):
    tensor_inputs = ["latents"]

    def callback_fn(self, pipeline: Any, step_index: int, timestep: int, callback_kwargs: dict[str, Any]) -> Any:
        return callback_kwargs


CALLBACKS: list[tuple[dict[str, Any], str]] = [
    ({"callback_on_step_end": lambda *step: {"tokens": step[3]["tokens"] * 0}}, "returned other tokens; generated"),
    ({"callback_on_step_end": lambda *step: {"tokens": step[3]["tokens"].fill_(0)}}, "returned other tokens; gener"),
    ({"callback_on_step_end": lambda *step: {"latents": 1}}, "returned 'latents', which it was not given"),
    ({"callback_on_step_end": lambda *step: 3}, "returned a int; return None, or the dict"),
    ({"callback_on_step_end_tensor_inputs": ["token"]}, "has 'token' (did you mean 'tokens'?); LlamaGenPipeline has"),
    ({"callback_on_step_end": Skips()}, "callback_on_step_end_tensor_inputs has 'latents'"),
]


@pytest.mark.parametrize(("options", "message"), CALLBACKS)
def test_callbacks_that_cannot_be_served_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        llamagen()(class_labels=1, seed=0, output_type="latent", **options)


@pytest.mark.parametrize("prompt", ["a cat", "-1", "7", "9" * 5000])
def test_prompts_of_a_training_are_classes_as_those_of_a_call(prompt: str) -> None:
    pipe = llamagen()
    for read in (lambda: pipe(prompt), lambda: pipe.prepare([prompt], 1)):
        with pytest.raises(PromptError, match="^prompt=.* is not allowed; give numbers of classes, 0 to 6$"):
            read()


# --- Decoding ---------------------------------------------------------------------------------------------------------


def test_decode_gives_the_images_of_a_call() -> None:
    for pipe, call in (
        (llamagen(), {"class_labels": [1, 2]}),
        (emu3(), {"prompt": ["a dog", "cat"], "height": 32, "width": 48}),
        (quiet(mmspec.load(tiny_models.janus(), processor=tiny_processors.janus())), {"prompt": "cat"}),
        (quiet(mmspec.load(tiny_models.imagegpt(), processor=tiny_processors.imagegpt())), {}),
    ):
        out = pipe(**call, seed=0, output_type="np")
        size = {name: value for name, value in call.items() if name in ("height", "width")}
        assert np.array_equal(pipe.decode(out.tokens, **size, output_type="np"), out.images)
        half = out.tokens.shape[1] // 2
        preview = pipe.decode([row[:half] for row in out.tokens], **size, output_type="np")
        assert preview.shape == out.images.shape
        assert np.abs(preview[:, -1] - 0.5).max() < 0.01 and np.abs(preview[:, 0] - 0.5).max() > 0.01


DECODES: list[tuple[Any, str]] = [
    (torch.zeros(1, 10, dtype=torch.int64), "tokens has rows of 10 codes; an image of this size has 9"),
    (torch.full((1, 9), 12), "tokens has 12, which is not allowed; codes are 0 to 11, and -1 if missing"),
    (torch.full((1, 9), -2), "tokens has -2, which is not allowed"),
    (torch.zeros(1, 9), "tokens has dtype torch.float32; give codes int64 [B, n]"),
    (torch.zeros(9, dtype=torch.int64), "tokens has no rows, or rows with more than one axis"),
    ([], "tokens has no rows"),
]


@pytest.mark.parametrize(("tokens", "message"), DECODES)
def test_wrong_codes_are_refused(tokens: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        llamagen().decode(tokens)
    with pytest.raises(ArgumentError, match=r"tokens is .*; it must be latents \[B, 9, 4\]"):
        pipe = mar()
        pipe.register_modules(vae=nn.Linear(1, 1))
        pipe.decode(tokens)


# --- Arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PIPES)
def test_unknown_arguments_are_refused_with_the_closest_name(name: str) -> None:
    pipe = PIPES[name][0]()
    kind = type(pipe).__name__
    with pytest.raises(MMSpecError, match=rf"guidance_scal is not .* of {kind} \(did you mean 'guidance_scale'"):
        pipe(guidance_scal=3)
    with pytest.raises(MMSpecError, match=f"image is not an argument of {kind}.*; it takes prompt, "):
        pipe(image=None)
    with pytest.raises(MMSpecError, match=f"{kind}: too many positional arguments"):
        pipe("a", "b")
    with pytest.raises(MMSpecError, match="token is not an argument of .* .did you mean 'tokens'"):
        pipe.decode(token=1)


def test_arguments_of_other_libraries_are_told_what_to_use() -> None:
    pipe = emu3()
    for name, hint in (
        ("num_inference_steps", "the number of calls follows from the model and the recipe; choose with recipe="),
        ("callback", "use callback_on_step_end="),
        ("latents", "use seed= or generator="),
    ):
        with pytest.raises(MMSpecError, match=f"^{name} is not an argument of TransformersPipeline: {hint}; it takes"):
            pipe("green cat", **{name: 1})


def test_hints_name_only_arguments_that_there_are() -> None:
    speech, latents = mmspec.load("spoken"), mmspec.load("shapes-latent")
    for call, name, hint in (
        (speech, "callback", "use on_step=;"),
        (speech, "latents", "use seed=;"),
        (speech, "num_return_sequences", "pass the text several times;"),
        (speech, "callback_steps", "on_step= is called after each target call;"),
        (latents, "num_return_sequences", "use num_images_per_prompt=;"),
    ):
        with pytest.raises(MMSpecError, match=f"^{name} is not an argument of [A-Za-z]+: {hint} it takes"):
            call("a", **{name: 1})
    with pytest.raises(MMSpecError, match="^latents is not an argument of LatentShapes .did you mean 'tokens'"):
        latents.decode(latents=1)
    pipe: Any = MARPipeline.__new__(MARPipeline)
    with pytest.raises(MMSpecError, match="^num_inference_steps is not an argument of MARPipeline: use steps=;"):
        pipe("207", num_inference_steps=8)


def test_negative_prompts_are_one_text_or_one_per_prompt() -> None:
    pipe = emu3()
    call: dict[str, Any] = {"height": 16, "width": 24, "recipe": "plain", "output_type": "latent"}
    texts = ["green cat", "dog"]
    both = pipe(["a red dog", "cat"], negative_prompt=texts, seed=[3, 4], **call).tokens
    for i, (prompt, negative) in enumerate(zip(["a red dog", "cat"], texts, strict=True)):
        alone = pipe(prompt, negative_prompt=negative, seed=3 + i, **call).tokens
        assert torch.equal(alone[0], both[i])
    assert not torch.equal(pipe("cat", negative_prompt="a green cat", seed=4, **call).tokens[0], both[1])
    twice = pipe(["a red dog", "cat"], negative_prompt=texts, seed=[3, 5, 6, 4], num_images_per_prompt=2, **call).tokens
    assert torch.equal(twice[[0, 3]], both)
    with pytest.raises(ArgumentError, match="negative_prompt has 1 texts for 2 prompts; give one text, or"):
        pipe(["a", "b"], negative_prompt=["x"], **call)
    with pytest.raises(PromptError, match="negative_prompt=3 is not allowed; it must be a string"):
        pipe("a", negative_prompt=[3], **call)


def test_a_generator_and_a_seed_are_refused() -> None:
    pipe, rng = llamagen(), torch.Generator()
    with pytest.raises(ArgumentError, match="generator was given with seed; leave one of them out"):
        pipe(class_labels=1, seed=0, generator=rng)
    with pytest.raises(ArgumentError, match="generator is a list of 1 for 2 rows; give one, or one per row"):
        pipe(class_labels=[1, 2], generator=[rng])


def test_masks_follow_caption_features_to_their_device() -> None:
    pipe = quiet(LlamaGenPipeline(tiny_llamagen.tiny()))
    from mmspec.vision.llamagen.conditioning import from_embeddings

    embeds = torch.empty(2, tiny_llamagen.T, tiny_llamagen.C, device="meta")
    with pytest.MonkeyPatch.context() as patch:
        seen: list[Tensor] = []
        patch.setattr("mmspec.vision.llamagen.conditioning.pad_left", lambda embeds, mask: seen.append(mask))
        from_embeddings(embeds, None, pipe.transformer)
        from_embeddings(embeds, torch.ones(2, tiny_llamagen.T), pipe.transformer)
    assert [mask.device.type for mask in seen] == ["meta", "meta"]


# --- Precision --------------------------------------------------------------------------------------------------------


def test_decoders_stay_in_float32(tmp_path: Path) -> None:
    for part in (tiny_models.emu3(), tiny_processors.emu3()):
        part.save_pretrained(tmp_path / "emu3")
    pipe = quiet(mmspec.load(tmp_path / "emu3", dtype=torch.bfloat16))
    assert pipe.model.dtype == torch.bfloat16 and pipe.model.model.vqmodel.dtype == torch.float32
    assert pipe("cat", height=16, width=24, seed=0).images[0].size == (6, 4)
    pipe.save_pretrained(tmp_path / "saved")
    again = quiet(mmspec.load(tmp_path / "saved", dtype=torch.bfloat16))
    assert again.model.dtype == torch.bfloat16 and again.model.model.vqmodel.dtype == torch.float32
    llamagen().save_pretrained(tmp_path / "llamagen")
    saved = quiet(mmspec.load(tmp_path / "llamagen", dtype=torch.bfloat16))
    assert saved.transformer.dtype == torch.bfloat16 and saved.vqvae.dtype == torch.float32
    assert saved(class_labels=1, seed=0).images[0].size == (6, 6)


def test_auto_is_the_dtype_of_the_files(tmp_path: Path) -> None:
    tiny_models.imagegpt().bfloat16().save_pretrained(tmp_path)
    tiny_processors.imagegpt().save_pretrained(tmp_path)
    pipe = mmspec.load(tmp_path, dtype="auto")
    assert pipe.model.dtype == torch.bfloat16 and mmspec.load(tmp_path).model.dtype == torch.float32
    pipe.save_pretrained(tmp_path / "saved")
    assert mmspec.load(tmp_path / "saved", dtype="auto").model.dtype == torch.bfloat16


# --- Parts of diffusers ----------------------------------------------------------------------------------------------


def test_blocks_are_compiled_by_region() -> None:
    for model in (llamagen().transformer, mar().transformer):
        model.compile_repeated_blocks(backend="eager")
        blocks = [module for module in model.modules() if type(module).__name__ == "Block"]
        assert blocks and all(block._compiled_call_impl is not None for block in blocks)


def test_a_model_of_peft_is_refused_with_the_model_inside() -> None:
    class PeftModel(nn.Module):
        def get_base_model(self) -> Any: ...

    with pytest.raises(ArgumentError, match="model is a PeftModel; pass model.get_base_model"):
        mmspec.load(PeftModel())


@pytest.mark.peft
def test_lora_adapters_on_llamagen(tmp_path: Path) -> None:
    import peft

    pipe, other = llamagen(), llamagen()
    call: dict[str, Any] = {"class_labels": [1, 2], "seed": 0, "output_type": "latent", "recipe": "scd:window=4"}
    plain = pipe(**call).tokens
    config = peft.LoraConfig(r=4, target_modules=["wqkv", "wo"], init_lora_weights=False)
    pipe.transformer.add_adapter(config, adapter_name="style")
    styled = pipe(**call).tokens
    assert not torch.equal(styled, plain)
    pipe.transformer.save_lora_adapter(tmp_path, adapter_name="style")
    other.transformer.load_lora_adapter(tmp_path, prefix=None, use_safetensors=True)
    assert torch.equal(other(**call).tokens, styled)
    other.transformer.fuse_lora()
    assert torch.equal(other(**call).tokens, styled)
    pipe.transformer.disable_lora()
    assert torch.equal(pipe(**call).tokens, plain)


def test_a_call_may_have_more_rows_than_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.batching.engine.MOST_ROWS", 16)
    pipe, steps = llamagen(), list[Any]()
    call: dict[str, Any] = {"class_labels": [1] * 17, "seed": 0, "output_type": "latent", "recipe": "scd:window=4"}
    out = pipe(**call, on_step=steps.append)
    assert {len(step.tokens) for step in steps} == {17} and len(out.stats.rows) == 17
    assert [step.target_calls for step in steps] == list(range(1, len(steps) + 1))
    assert torch.equal(out.tokens[16:], pipe(**call | {"class_labels": 1, "seed": 16}).tokens)

"""Cosmos: the results of the original implementation, windows, samples, texts, frames and published sizes."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batch_runs import run
from golden import GOLDEN, expected
from PIL import Image
from torch import Tensor, nn

import mmspec
from mmspec.cli.app import main
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.target import EarlyExit
from mmspec.decoding.to_end import Decoded
from mmspec.drafters.neighbors import NeighborDrafter
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.adapters import check_windows, joint_probs, stack_logits
from mmspec.testing.exactness import compare_with_joint
from mmspec.vision.cosmos_ar import CosmosPipeline
from mmspec.vision.cosmos_ar.frames import for_tokenizer
from mmspec.vision.cosmos_ar.target import CosmosTarget
from mmspec.vision.cosmos_ar.transformer import CosmosTransformer
from mmspec.vision.video_files import last_frames

SHAPE = (3, 2, 4)
KINDS = ["base", "text"]


def load(kind: str, **options: Any) -> Any:
    """The tiny model of a kind: a file as of the 12B, with stretched frequencies, or one with a text."""
    config = {"video_latent_shape": list(SHAPE), "apply_yarn": kind == "base"}
    pipe = mmspec.load(GOLDEN / f"cosmos_{kind}", config=config, **options)
    assert type(pipe) is CosmosPipeline
    pipe.set_progress_bar_config(disable=True)
    return pipe


def given(kind: str, rows: int = 3) -> dict[str, Tensor]:
    e = expected(GOLDEN / f"cosmos_{kind}")
    return {"tokens": e["codes"][:rows]} | ({"prompt_embeds": e["context"][:rows]} if kind == "text" else {})


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_the_originals(kind: str) -> None:
    pipe, e = load(kind), expected(GOLDEN / f"cosmos_{kind}")
    mark = torch.full((3, pipe.transformer.marks), 32)
    with torch.no_grad():
        target = CosmosTarget(pipe.transformer, torch.cat([mark, e["codes"].flatten(1)], 1), e.get("context"), 16, 4)
        found = stack_logits([target.prefill()])[0, :, 0]
    assert float((found - e["logits"]).abs().max()) < 1e-4


@pytest.mark.releases
@pytest.mark.parametrize("recipe", ["plain", "scd:window=5", "table:window=4", "layer-skip:layers=1,window=3"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_the_originals(kind: str, recipe: str) -> None:
    """Three videos in one batch, whose rows drop out at different times; each with its text."""
    out = load(kind)(**given(kind), recipe=recipe, temperature=0, output_type="latent")
    assert torch.equal(out.tokens.flatten(1), expected(GOLDEN / f"cosmos_{kind}")["greedy"])
    assert out.frames is out.tokens and out.tokens.shape == (3, *SHAPE)


@pytest.mark.releases
@pytest.mark.parametrize("kind", KINDS)
def test_windows_give_the_logits_of_single_steps(kind: str) -> None:
    transformer, e = load(kind).transformer, given(kind)

    def make(rows: int, window: int) -> CosmosTarget:
        mark, codes = torch.full((rows, transformer.marks), 32), e["tokens"][:1].flatten(1).expand(rows, -1)
        context = e["prompt_embeds"][:1].expand(rows, -1, -1) if kind == "text" else None
        return CosmosTarget(transformer, torch.cat([mark, codes], 1), context, 16, window)

    with torch.no_grad():
        assert check_windows(make, 16) < 1e-4


@pytest.mark.parametrize("context_dim", [None, 8])
def test_a_skipped_layer_leaves_the_others_their_keys_and_texts(
    context_dim: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first layer that changes nothing: without it the logits are the same."""
    model = tiny(5, (2, 2, 2), context_dim)
    monkeypatch.setattr(model, "added", lambda: None)  # every layer adds it
    with torch.no_grad():
        for name, parameter in model.layers[0].named_parameters():
            if name.endswith(("wo.weight", "w2.weight")):
                parameter.zero_()
        text = None if context_dim is None else torch.randn(2, 3, context_dim)
        target = CosmosTarget(model, torch.tensor([[1, 2], [3, 4]]), text, 6, 3)
        target.prefill()
        window, at = torch.tensor([[0, 1, 2], [4, 3, 2]]), np.zeros(2, dtype=np.int64)
        skipped = target.forward(window, at, EarlyExit(2, guided=False, skip=(0,))).cond
        assert torch.allclose(skipped, target.forward(window, at).cond, atol=1e-5)


def tiny(vocab_size: int, shape: tuple[int, int, int], context_dim: int | None, layers: int = 2) -> CosmosTransformer:
    torch.manual_seed(3)
    sizes: Any = {"dim": 24, "n_layers": layers, "n_heads": 2, "n_kv_heads": 1, "head_dim": 12, "hidden_dim": 16}
    ids = vocab_size + (context_dim is not None)
    model = CosmosTransformer(vocab_size, ids, **sizes, latent_shape=shape, context_dim=context_dim)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.4)
    return model.eval()


@pytest.mark.parametrize("recipe", ["scd:window=3", "table:window=3", "draft:window=3"])
def test_samples_follow_the_enumerated_distribution(recipe: str) -> None:
    """81 sequences of 4 tokens after 2 given ones, with a text and top-p: a bias of 0.04 is found."""
    model, sampling, rows = tiny(3, (3, 1, 2), 8), SamplingParams(temperature=0.9, top_p=0.95), 10_000
    small = tiny(3, (3, 1, 2), 8, layers=1)
    text, codes, layout = torch.randn(1, 5, 8), torch.tensor([[3, 1, 2]]), Layout(length=4, width=2)

    def make(rows: int, window: int) -> CosmosTarget:
        return CosmosTarget(model, codes.expand(rows, -1), text.expand(rows, -1, -1), 4, window)

    def decode(seeds: Any) -> Decoded:
        count = len(seeds)
        resources = DraftResources(
            continuation=partial(NeighborDrafter, codes[:, 1:].expand(count, -1), 2, 2),
            draft_model=lambda: CosmosTarget(small, codes.expand(count, -1), text.expand(count, -1, -1), 4, 3),
            draft_sampling=[sampling] * count,
        )
        return run(make(count, 3), parse(recipe), layout, [sampling] * count, seeds, resources)

    place = 3 ** torch.arange(3, -1, -1)
    with torch.no_grad():
        joint = joint_probs(make, layout, sampling)
        result = compare_with_joint(joint, decode, lambda tokens: (tokens * place).sum(1), range(rows), 5000)
    assert result.ok and result.tokens_per_call > 1, result


def test_one_beginning_serves_several_texts() -> None:
    pipe, options = load("text"), given("text")
    both = pipe(**options, seed=[5, 6, 7], output_type="latent").tokens
    options["tokens"] = options["tokens"][:1]
    several = pipe(**options, seed=[5, 6, 7], num_videos_per_prompt=1, output_type="latent").tokens
    assert several.shape == (3, *SHAPE) and torch.equal(several[0], both[0])


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_gives_the_videos_of_calls(kind: str) -> None:
    """Requests join and leave a batch; one begins with two latent frames, and is decoded apart."""
    pipe, options = load(kind), given(kind)
    pipe.draft_transformer = tiny(32, SHAPE, 8 if kind == "text" else None, layers=1)
    rows: list[dict[str, Any]] = [{name: value[row : row + 1] for name, value in options.items()} for row in range(3)]
    rows[1]["tokens"] = torch.cat([rows[1]["tokens"], rows[1]["tokens"]], 1)
    for recipe in ("draft:window=3", "scd:window=4"):
        engine = mmspec.Engine(pipe, recipe, max_rows=2)
        requests = [engine.add(None, seed=row, output_type="latent", **rows[row]) for row in range(3)]
        outputs: list[Any] = []
        while engine.has_unfinished:
            outputs += engine.step()
        assert not [output.error for output in outputs if output.error]
        found = {output.request_id: output.result for output in outputs if output.finished}
        for row, request in enumerate(requests):
            alone = pipe(**rows[row], recipe=recipe, seed=row, output_type="latent")
            assert torch.equal(found[request.id].tokens, alone.tokens)
    with pytest.raises(ArgumentError, match="guidance_scale is not an option of this request"):
        engine.add(None, guidance_scale=3.0, **rows[0])


@pytest.mark.parametrize("only", [{"min_p": 1.0}, {"typical_p": 1e-4}], ids=str)
def test_min_p_and_typical_p_reach_the_sampler(only: dict[str, Any]) -> None:
    """Either leaves a single token, whatever the seed; without them seeds differ."""
    pipe, options = load("base"), given("base")
    first, other, free = (
        pipe(**options, seed=seed, recipe="scd", output_type="latent", **more).tokens
        for seed, more in ((1, only), (9, only), (1, {}))
    )
    assert torch.equal(first, other) and not torch.equal(first, free)
    row = pipe.read_request(
        None, {name: value[:1] for name, value in options.items()} | {**only, "output_type": "latent"}, parse("scd")
    )
    assert {name: getattr(row.rows[0].sampling, name) for name in only} == only


def test_callbacks_get_whole_videos_and_interrupt() -> None:
    seen: list[Tensor] = []

    def stop(pipe: Any, step: int, committed: int, tensors: dict[str, Tensor]) -> None:
        seen.append(tensors["tokens"])
        pipe._interrupt = committed >= 20

    out = load("base")(**given("base"), seed=0, callback_on_step_end=stop, output_type="latent")
    assert torch.equal(seen[0][:, :8], given("base")["tokens"].flatten(1)) and bool((seen[0] == -1).any())
    assert out.tokens.shape == (3, *SHAPE) and bool((out.tokens == -1).any())


# --- Frames and texts -----------------------------------------------------------------------------------------------


class Encode(nn.Module):
    """Codes by brightness of 16 x 16 pixels in every eighth frame, with two more values as published."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(31.0))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shade = nn.functional.avg_pool2d(pixels[:, 0, ::8].float(), 16)
        return ((shade + 1) / 2 * self.scale).round().to(torch.int32), pixels, pixels


class Decode(nn.Module):
    """17 frames whose brightness is their code."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1 / 15.5))

    def forward(self, codes: Tensor) -> Tensor:
        shade = codes.to(self.scale.dtype) * self.scale - 1
        frames = torch.cat([shade[:, :1], shade[:, 1:].repeat_interleave(8, 1)], 1)
        pixels = frames.repeat_interleave(16, 2).repeat_interleave(16, 3)
        return torch.stack([pixels, pixels, pixels], dim=1)


@pytest.fixture
def video_tokenizer(tmp_path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.script(Encode()).save(str(tmp_path / "encoder.jit"))
        torch.jit.script(Decode()).save(str(tmp_path / "decoder.jit"))
    return tmp_path


def test_images_and_videos_are_continued(video_tokenizer: Path) -> None:
    pipe = load("base", tokenizer=str(video_tokenizer))
    pipe.video_tokenizer.frames = 17  # the published ones have 33
    white = Image.new("RGB", (100, 60), "white")
    out = pipe(video=white, seed=0)
    assert len(out.frames) == 1 and len(out.frames[0]) == 17 and out.frames[0][0].size == (64, 32)
    assert out.tokens[0, 0].tolist() == [[31] * 4] * 2
    assert out.frames[0][0].getpixel((5, 5)) == (255, 255, 255)
    black = [Image.new("RGB", (64, 32), "black")] * 9
    both = pipe(video=[[*black, white.resize((64, 32))], black], seed=0, output_type="np")
    assert both.frames.shape == (2, 17, 32, 64, 3)
    assert both.tokens[:, :2].flatten(1).unique(dim=1).flatten().tolist() != [] and both.tokens[1, :2].max() == 0
    one = pipe(video=black, num_input_frames=1, seed=0, output_type="pt")
    assert one.frames.shape == (1, 17, 3, 32, 64) and float(one.frames.max()) <= 1
    with pytest.raises(ArgumentError, match="tokens has code -1; they must be from 0 to "):
        pipe(tokens=torch.full((1, 1, *pipe.transformer.shape[1:]), -1))
    with pytest.raises(ArgumentError, match="num_input_frames=9 is not allowed; use 1, or 9"):
        pipe(video=white, num_input_frames=9)
    with pytest.raises(ArgumentError, match="video='dog.mp4' is not allowed; give an image"):
        pipe(video="dog.mp4")


def test_a_saved_pipeline_loads_as_it_was(
    video_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its draft model; its tokenizer, which is a program, runs only if it is named."""
    pipe = load("base", tokenizer=str(video_tokenizer))
    pipe.register_modules(draft_transformer=tiny(32, SHAPE, None, layers=1))
    own_save, meanwhile = CosmosTransformer.save_pretrained, list[bool]()

    def save(self: CosmosTransformer, *args: Any, **options: Any) -> None:
        meanwhile.append(pipe.video_tokenizer is not None)  # what other threads would see
        own_save(self, *args, **options)

    monkeypatch.setattr(CosmosTransformer, "save_pretrained", save)
    pipe.save_pretrained(tmp_path / "saved")
    assert meanwhile == [True, True] and pipe.video_tokenizer is not None
    call: dict[str, Any] = {**given("base"), "seed": 0, "recipe": "draft:window=3", "output_type": "latent"}
    own = pipe(**call).tokens
    saved = mmspec.load(str(tmp_path / "saved"))
    assert torch.equal(saved(**call).tokens, own) and saved.video_tokenizer is None
    with pytest.raises(ArgumentError, match="requires a video tokenizer"):
        saved(**{**call, "output_type": "pil"})
    again = mmspec.load(tmp_path / "saved", tokenizer=str(tmp_path / "saved" / "video_tokenizer"))
    again.video_tokenizer.frames = 17
    assert torch.equal(again(video=Image.new("RGB", (8, 8), "white"), seed=0, output_type="pt").frames[0, 0].round(),
                       torch.ones(3, 32, 64))  # fmt: skip
    monkeypatch.setattr("mmspec.vision.cosmos_ar.tokenizer.VideoTokenizer.vocab_size", 16)
    with pytest.raises(ModelError, match="tokenizer has 16 codes, the model 32; they do not belong together"):
        mmspec.load(tmp_path / "saved", tokenizer=str(tmp_path / "saved" / "video_tokenizer"))
    with pytest.raises(ArgumentError, match="tokenizer was given, but a saved LlamaGenPipeline comes with its own"):
        shapes = mmspec.load("shapes")
        shapes.save_pretrained(tmp_path / "shapes")
        mmspec.load(tmp_path / "shapes", tokenizer=str(video_tokenizer))


def test_a_draft_model_of_other_videos_is_refused() -> None:
    config = {"video_latent_shape": list(SHAPE), "apply_yarn": True}
    pipe = mmspec.load(GOLDEN / "cosmos_base", config=config | {"draft_model": str(GOLDEN / "cosmos_base")})
    assert pipe.draft_transformer is not None
    with pytest.raises(ArgumentError, match="draft_transformer has context_dim 8, the transformer None"):
        mmspec.load(GOLDEN / "cosmos_base", config=config | {"draft_model": str(GOLDEN / "cosmos_text")})
    with pytest.raises(ArgumentError, match="'none' is neither a path nor a Hub id"):
        mmspec.load(GOLDEN / "cosmos_base", config=config | {"draft_model": "none"})


@pytest.mark.parametrize("name", ["out.webp", "out.gif", "out.mp4"])
def test_the_command_reads_frames_and_writes_a_video(
    name: str,
    video_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("mmspec.vision.cosmos_ar.tokenizer.VIDEO_FRAMES", 17)
    first = tmp_path / "first.png"
    Image.new("RGB", (100, 60), "white").save(first)
    words = ["video", str(first), "-m", str(GOLDEN / "cosmos_base"), "--tokenizer", str(video_tokenizer)]
    words += ["--config", "video_latent_shape=[3, 2, 4]", "--config", "apply_yarn=true", "--temperature", "0"]
    assert main([*words, "-o", str(tmp_path / name)]) == 0, capsys.readouterr().err
    frames = last_frames(tmp_path / name, 99)
    assert len(frames) == 17 and frames[0].size == (64, 32) and np.asarray(frames[0]).min() > 250
    words[1] = str(tmp_path / name)  # the video that was written is continued, from its last nine frames
    assert main([*words, "-o", str(tmp_path / "more.webp"), "--input-frames", "9", "--json"]) == 0
    assert main([*words[:2], "-m", "shapes"]) == 2
    assert "does not generate videos; see `mmspec image`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("durations", "shades"),
    [
        ([33, 34, 33], [10, 20, 30]),
        ([30, 40, 30], [10, 20, 30]),
        ([40, 120, 40], [10, 20, 20, 20, 30]),
        ([0, 40, 40], [10, 20, 30]),
    ],
)
def test_stored_frames_are_repeated_where_they_stay_longer(
    durations: list[int], shades: list[int], tmp_path: Path
) -> None:
    frames = [Image.new("RGB", (8, 8), (shade, shade, shade)) for shade in (10, 20, 30)]
    path = tmp_path / "a.webp"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, lossless=True)
    assert [int(np.asarray(frame)[0, 0, 0]) for frame in last_frames(path, 99)] == shades


def test_the_command_refuses_before_it_loads_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    words = ["video", str(tmp_path / "one.png"), "-m", str(tmp_path)]
    for options, message in (
        (["--input-frames", "5"], "--input-frames 5 is not allowed; use 1 or 9"),
        (["--input-frames", "9"], "one.png' has 1"),
        (["--fps", "200", "-o", "out.gif"], "fps=200 is not possible for .gif; use at most 100, or .webp"),
    ):
        assert main([*words, *options]) == 2
        assert message in capsys.readouterr().err


def test_frames_are_scaled_to_cover_and_cropped_in_the_middle() -> None:
    frames = torch.zeros(3, 3, 40, 40)
    frames[-1, :, 10:30] = 1
    pixels = for_tokenizer(frames, 1, 5, (16, 32))
    assert pixels.shape == (3, 5, 16, 32)
    assert torch.equal(pixels[:, 0], pixels[:, 4])
    assert float(pixels[:, :, 1:-1].min()) > 0.99 and float(pixels[:, :, 0].min()) < 0.99  # the middle is white


def test_texts_are_read_as_the_original_reads_them() -> None:
    """512 tokens of T5, zero where they are padded, all of which are attended to."""
    from transformers import T5Config, T5EncoderModel

    class Tokenizer:
        def __call__(self, texts: list[str], max_length: int, **options: Any) -> Any:
            from transformers import BatchEncoding

            assert options == {"padding": "max_length", "truncation": True, "return_tensors": "pt"}
            ids, mask = torch.zeros(len(texts), max_length, dtype=torch.int64), torch.zeros(len(texts), max_length)
            for row, text in enumerate(texts):
                ids[row, : len(text)] = torch.tensor([ord(letter) % 32 for letter in text])
                mask[row, : len(text)] = 1
            return BatchEncoding({"input_ids": ids, "attention_mask": mask.long()})

    pipe = load("text")
    with pytest.raises(ArgumentError, match="has no text_encoder with its tokenizer"):
        pipe("a dog", tokens=given("text")["tokens"][:1], output_type="latent")
    torch.manual_seed(0)
    config = T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    pipe.text_encoder = T5EncoderModel(config).eval()
    pipe.tokenizer = Tokenizer()
    features = pipe._encode(["a dog", "a"])
    assert features.shape == (2, 512, 8) and not features[0, 5:].any() and features[1, 0].any()
    call: dict[str, Any] = {"tokens": given("text")["tokens"][:1], "seed": 0, "output_type": "latent"}
    assert torch.equal(pipe("a dog", **call).tokens, pipe(prompt_embeds=features[:1].detach(), **call).tokens)
    with pytest.raises(PromptError, match="is empty"):
        pipe(" ", **call)


# --- Files ----------------------------------------------------------------------------------------------------------

# Parameters of the published models in billions.
PUBLISHED = [
    ({"n_layers": 16, "dim": 4096}, 4.0),  # 4B
    ({"n_layers": 16, "dim": 4096, "input_ids": 64064, "context_dim": 1024}, 4.6),  # 5B
    ({"n_layers": 40, "dim": 5120, "yarn": True}, 11.6),  # 12B
    ({"n_layers": 40, "dim": 5120, "yarn": True, "input_ids": 64064, "context_dim": 1024}, 13.3),  # 13B
]


@pytest.mark.parametrize(("sizes", "billions"), PUBLISHED)
def test_published_sizes(sizes: dict[str, Any], billions: float) -> None:
    """`COSMOS_ARCHITECTURES` of nvidia-cosmos/cosmos-predict1, on the device "meta"."""
    with torch.device("meta"):
        model = CosmosTransformer(**sizes)
    count = sum(parameter.numel() for parameter in model.parameters()) / 1e9
    assert count == pytest.approx(billions, abs=0.06)
    assert model.shape == (5, 40, 64) and model.angles().shape == (12_800 + model.marks, 128)


def test_wrong_files_and_arguments_are_one_line(tmp_path: Path) -> None:
    tensors = torch.load(GOLDEN / "cosmos_base" / "model.pt", weights_only=True)
    (tmp_path / "model").mkdir()
    torch.save({name: value for name, value in tensors.items() if "norm.weight" not in name or "q_norm" in name},
               tmp_path / "model" / "model.pt")  # fmt: skip
    with pytest.raises(ModelError, match="does not fit a CosmosTransformer; missing: "):
        mmspec.load(tmp_path / "model")
    with pytest.raises(ArgumentError, match="config has 'size', which Cosmos does not have"):
        mmspec.load(GOLDEN / "cosmos_base", config={"size": 3})
    with pytest.raises(ArgumentError, match=r"video_latent_shape=\[3\] is not allowed"):
        mmspec.load(GOLDEN / "cosmos_base", config={"video_latent_shape": [3]})
    pipe, text = load("base"), load("text")
    calls: list[tuple[dict[str, Any], str]] = [
        ({}, "video and tokens: give one of them"),
        ({"tokens": torch.zeros(1, 3, 2, 4, dtype=torch.int64)}, r"give codes int64 \[B, n, 2, 4\] with n from 1 to 2"),
        ({"video": Image.new("RGB", (8, 8))}, "this pipeline has no video tokenizer"),
        ({**given("base"), "prompt": "a dog"}, "this model continues videos without a text"),
        ({**given("base"), "output_type": "pil"}, "requires a video tokenizer"),
    ]
    for call, message in calls:
        with pytest.raises(ArgumentError, match=message):
            pipe(**{"output_type": "latent", **call})
    with pytest.raises(ArgumentError, match=r"give features \[B, S, 8\]"):
        text(tokens=given("text")["tokens"], prompt_embeds=torch.zeros(3, 5, 7), output_type="latent")
    with pytest.raises(ArgumentError, match="there are 2 texts for 3 videos"):
        text(tokens=given("text")["tokens"], prompt_embeds=torch.zeros(2, 5, 8), output_type="latent")

"""HeartMuLa from its published layout: the codes and distributions of the original code, with guidance."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_heartmula as tiny
import torch
from tiny_chatterbox import Levels
from torch import Tensor

import mmspec
from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.depth.frame_windows import FrameTarget
from mmspec.audio.models.heartmula import model as heartmula
from mmspec.audio.models.heartmula.decoding import HeartMuLaFrames, SongPrompt
from mmspec.audio.models.heartmula.model import FLAVORS, Flavor, HeartMuLa, read_config, read_model
from mmspec.errors import ArgumentError, ModelError, PromptError, UnknownNameError
from mmspec.methods.frame.head import FrameHead
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import noise_floor

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "heartmula.json").read_text(encoding="utf-8"))
GUIDED = SamplingParams(1.2, top_p=0.95, guidance_scale=2.0)


class Codes(Levels):
    codebooks = 4

    def decode(self, codes: Tensor) -> Tensor:
        return super().decode(codes.float().mean(1, keepdim=True))


@pytest.fixture(autouse=True)
def _tiny_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartmula, "FLAVORS", {**FLAVORS, **{name: Flavor(*s) for name, s in tiny.SIZES.items()}})


def load(folder: Path, case: dict[str, Any] | None = None, **options: Any) -> Any:
    path = tiny.write(folder)
    given = {"codec": Codes(40), "frames": 10, "tags": "night" if case is None else case["tags"], **options}
    return mmspec.load(str(path), config=given)


@pytest.mark.parametrize("recipe", ["plain", "scd:window=4", "ahead", "frame"])
def test_codes_of_the_original(recipe: str, tmp_path: Path) -> None:
    """Prompt ids too; guidance of 1.5 and 3, and none; rows that end early."""
    for i, case in enumerate(GOLDEN):
        pipe = load(tmp_path / str(i), case, ahead=2 * (recipe == "ahead"))
        pipe.adapter.heads["frame"] = head(case["scale"] != 1)
        (prompt,) = pipe.read(case["lyrics"], None).parts
        assert [*prompt.tags.tolist(), 0, *prompt.lyrics.tolist()] == case["ids"]
        chosen = "scd" if recipe == "ahead" else recipe
        made = pipe(case["lyrics"], recipe=chosen, temperature=0, guidance_scale=case["scale"], seed=0)
        assert pipe.adapter.codes(made.tokens[0]).T.tolist() == case["frames"]
        assert made.truncated == (len(case["frames"]) == 10)


def head(guided: bool) -> FrameHead:
    """A random head; with guidance it reads the features of both rows."""
    made, generator = FrameHead(41, 32 * (1 + guided), 4, 16, 32), torch.Generator().manual_seed(0)
    for p in made.parameters():
        p.data = torch.randn(p.shape, generator=generator) * 0.5
    return made.eval()


def test_distributions_of_the_original(tmp_path: Path) -> None:
    """Of the codes of two frames, after guidance, temperature and top-k."""
    model = read_model(tiny.write(tmp_path), "cpu", torch.float32)
    for case in GOLDEN:
        ids = torch.tensor(case["ids"])
        cut = int((ids == 2).nonzero()[0]) + 1
        prompt, guided = SongPrompt(ids[:cut], ids[cut + 1 :]), case["scale"] != 1
        made = HeartMuLaFrames(model, [prompt], 4, 0, guided)
        sampler = TokenSampler([SamplingParams(0.8, top_k=5, guidance_scale=case["scale"])], None, made.device)

        def probs(logits: Logits, sampler: TokenSampler = sampler) -> Tensor:
            return sampler.probs(logits, np.zeros(logits.cond.shape[:2], dtype=np.int64))[0]

        found, logits = list[Tensor](), made.start()
        for at, frame in enumerate(torch.tensor(case["frames"][:2])[:, None]):
            found += [probs(logits), probs(made.rest(made.hidden()[:, -1:], frame[:, None], np.array([at])))]
            logits = made.step(frame)
        ours = torch.cat(found)
        assert torch.allclose(ours, torch.tensor(case["probs"])[: len(ours)], atol=1e-4)


def joint(model: HeartMuLa, prompt: SongPrompt) -> Tensor:
    """Probabilities of all sequences of 2 frames of 2 codes of 3, from whole passes, float64 [81]."""
    every = torch.cartesian_prod(*[torch.arange(3)] * 4).view(81, 2, 2)
    made = HeartMuLaFrames(model, [prompt] * 81, 2, 1)
    target = FrameTarget(made, FrameSpec(2, None, 0, GUIDED, GUIDED), 81, 2)
    first = target.prefill().cond.exp()[:, -1:]
    rest = target.forward(every.flatten(1)[:, :-1], np.zeros(81, dtype=np.int64)).cond.exp()
    return torch.cat([first, rest], dim=1).gather(2, every.flatten(1)[..., None]).double().prod(1)[:, 0]


@pytest.mark.parametrize(("recipe", "ahead"), [("scd:window=2", 0), ("scd:start=up", 2), ("recycle", 1)])
def test_samples_follow_the_guided_distribution(recipe: str, ahead: int, tmp_path: Path) -> None:
    """The limit is five standard deviations above the noise floor of 5000 samples, near 0.05.

    Without guidance along the depth the distance is more than twice the limit, which the test checks too.
    """
    model, rows = read_model(tiny.write(tmp_path, 3, 3, 2), "cpu", torch.float32), 5_000
    prompt, spec = SongPrompt(torch.tensor([1, 5, 2]), torch.tensor([1, 9, 2])), FrameSpec(2, None, 0, GUIDED, GUIDED)
    with torch.inference_mode():
        expected = joint(model, prompt)
    floor, spread = noise_floor(expected, rows)
    place = 3 ** torch.arange(3, -1, -1)
    for depth, broken in ((GUIDED, False), (SamplingParams(1.2, top_p=0.95), True)):
        spec = FrameSpec(2, None, 0, GUIDED, depth)
        prompted = HeartMuLaFrames(model, [prompt] * rows, 2, ahead)
        frames = decode_frames(prompted, parse(recipe), spec, range(rows), ahead=ahead).frames
        made = torch.bincount((frames.flatten(1) * place).sum(1), minlength=81).double() / rows
        distance, limit = float((made - expected).abs().sum() / 2), floor + 5 * spread
        assert distance > 2 * limit if broken else distance < limit


def test_the_published_size() -> None:
    """The shapes of the 3B model: names as in torchtune, sizes as the original's flavors name them."""
    config = read_config({"backbone_flavor": "llama-3B", "decoder_flavor": "llama-300M"}, "model")
    with torch.device("meta"):
        model = HeartMuLa(config)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["audio_embeddings.weight"] == (8197 * 8, 3072) and shapes["audio_head"] == (7, 3072, 8197)
    assert shapes["backbone.layers.27.self_attn.k_proj.weight"] == (1024, 3072)
    assert shapes["decoder.layers.2.self_attn.k_proj.weight"] == (1536, 3072)
    assert 3.8e9 < sum(p.numel() for p in model.parameters()) < 4.2e9


def test_what_is_not_possible_is_refused(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "a")
    with pytest.raises(ArgumentError, match="HeartMuLa has no codec here"):
        mmspec.load(str(path))
    for options, message in (({"draft_model": str(path)}, "draft_model is not possible"),):
        with pytest.raises(ArgumentError, match=re.escape(message)):
            mmspec.load(str(path), config={"codec": Codes(40), **options})
    pipe = mmspec.load(str(path), config={"codec": Codes(40), "frames": 100})
    with pytest.raises(PromptError, match="is too long"):
        pipe("la " * 40)
    guided_only = mmspec.load(str(path), config={"codec": Codes(40), "frames": 10})
    guided_only.adapter.heads["frame"] = head(False)
    with pytest.raises(ModelError, match="trained with another guidance, on or off"):
        guided_only("la", recipe="frame")
    with pytest.raises(ArgumentError, match="which has no draft model"):
        pipe("la", recipe="draft")
    with pytest.raises(ArgumentError, match="processor=.* is not allowed; pass a tokenizers.Tokenizer, or its file"):
        mmspec.load(str(path), processor=object(), config={"codec": Codes(40)})
    for name in ("text_bos_id", "text_eos_id", "audio_eos_id"):
        (path / "gen_config.json").write_text(json.dumps({name: 40}), encoding="utf-8")
        with pytest.raises(ModelError, match="the model has ids below"):
            mmspec.load(str(path), config={"codec": Codes(40)})
    (path / "gen_config.json").unlink()
    (tmp_path / "a" / "gen_config.json").unlink()
    with pytest.raises(ModelError, match="has no gen_config.json, neither in the folder nor in the one around it"):
        mmspec.load(str(path), config={"codec": Codes(40)})
    with pytest.raises(UnknownNameError, match="unknown backbone_flavor 'llama-3b'"):
        read_config({"backbone_flavor": "llama-3b"}, "model")

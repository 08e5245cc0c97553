"""`mmspec check -m`: a tiny folder or model of each kind, and what the checks find in broken ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tiny_chatterbox
import tiny_codecs
import tiny_latents
import tiny_llamagen
import tiny_mar
import tiny_models as tiny
import tiny_music
import tiny_processors
import tiny_speech
import torch
from torch import Tensor

import mmspec
from mmspec.audio.codecs import codec_of
from mmspec.audio.models.flat.style import Style
from mmspec.cli.app import main
from mmspec.cli.model_check.checks import ModelReport, check_kernels, check_model, compare_greedy
from mmspec.cli.model_check.page import as_json, page
from mmspec.cli.model_check.samples import compare_samples, detectable
from mmspec.cli.model_check.subject import Made, subject_of
from mmspec.hf.causal_target import CausalTarget
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.vision.llamagen.pipeline import LlamaGenPipeline
from mmspec.vision.mar import MARPipeline

RECIPES = ("scd:window=4", "recycle:window=3")


def run(pipe: Any, prompt: str = "one two", rows: int = 16, recipes: Sequence[str] = RECIPES) -> ModelReport:
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    chosen = [parse(recipe) for recipe in recipes]
    subject = subject_of(pipe, prompt, 12)
    return check_model(
        subject, "tiny | <b>", prompt, {"device": "cpu"}, chosen, rows, 1, "cpu", torch.float32, lambda name: None
    )


def flat() -> Any:
    style = Style(
        tiny_speech.STREAM, lambda tokens, text, voice: list(tokens(text)["input_ids"]), SamplingParams(0.9), (), 12
    )
    codec = codec_of(tiny_codecs.mimi(codebooks=2, codebook_size=8))
    return mmspec.load(tiny_speech.flat(), processor=tiny_speech.tokenizer(), config={"codec": codec, "style": style})


class Words:
    """A BarkProcessor in miniature."""

    def __call__(self, text: str) -> dict[str, Tensor]:
        ids = torch.nn.functional.pad(torch.tensor([[len(word) for word in text.split()]]), (0, 6))[:, :6]
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}


class Chat:
    """A HiggsAudioV2Processor in miniature: the user's words, and the token that begins audio."""

    def apply_chat_template(self, turns: list[Any], **settings: Any) -> dict[str, Tensor]:
        rows = [tiny_music.tokenizer()(turn[-1]["content"][0]["text"])["input_ids"] + [31] for turn in turns]
        return {"input_ids": torch.tensor(rows), "attention_mask": torch.ones(len(rows), len(rows[0])).long()}


def chatterbox() -> Any:
    with TemporaryDirectory() as folder:
        tiny_chatterbox.chatterbox(Path(folder))
        return mmspec.load(folder, config={"codec": tiny_chatterbox.Levels(6561)})


PIPELINES: dict[str, Callable[[], Any]] = {
    "janus": lambda: mmspec.load(tiny.janus(), processor=tiny_processors.janus()),
    "emu3": lambda: mmspec.load(tiny.emu3(), processor=tiny_processors.emu3()),
    "chameleon": lambda: mmspec.load(tiny.chameleon(), processor=tiny_processors.chameleon()),
    "imagegpt": lambda: mmspec.load(tiny.imagegpt()),
    "glm": lambda: mmspec.load(tiny.glm(), processor=tiny_processors.glm()),
    "flat": flat,
    "csm": lambda: mmspec.load(tiny_speech.csm(codes=8), processor=tiny_speech.tokenizer(), config={"frames": 10}),
    "bark": lambda: mmspec.load(tiny_speech.bark(), processor=Words()),
    "musicgen": lambda: mmspec.load(tiny_music.long_musicgen(), processor=tiny_music.tokenizer()),
    "dia": lambda: mmspec.load(
        tiny_music.dia(2), processor=tiny_music.tokenizer(), config={"codec": codec_of(tiny_codecs.dac())}
    ),
    "higgs": lambda: mmspec.load(tiny_music.higgs(3), processor=Chat(), config={"codec": codec_of(tiny_codecs.dac())}),
    "llamagen": lambda: LlamaGenPipeline(tiny_llamagen.tiny(model_type="c2i", num_classes=9, cls_token_num=1)),
    "spoken": lambda: mmspec.load("spoken"),
    "pocket": lambda: mmspec.load(tiny_latents.tiny("pocket"), processor=tiny_latents.pocket_processor()),
    "vibevoice": lambda: mmspec.load(
        tiny_latents.vibevoice(), processor=tiny_latents.vibevoice_processor(), config={"frames": 4}
    ),
    "mar": lambda: MARPipeline(tiny_mar.tiny(), head_steps=4),
    "chatterbox": chatterbox,
}
# Kinds that are compared with their own generate.
OWN = {"janus", "emu3", "imagegpt", "glm", "flat", "csm", "bark", "musicgen", "dia", "higgs"}
QUICK = {"emu3", "flat", "llamagen", "vibevoice"}
LATENTS = {"pocket", "vibevoice", "mar"}
LATENT = ("layer-skip+smoothed:layers=1,sigma=0.3,window=4", "scd+smoothed:window=3,sigma=0.3")
PROMPTS = {
    "imagegpt": "", "musicgen": "slow piano", "dia": "slow piano", "higgs": "loud drums", "llamagen": "7",
    "spoken": "hello", "mar": "3",
}  # fmt: skip


# diffusers hands tensors to NumPy in its solver.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    "kind", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PIPELINES]
)
def test_a_tiny_model_of_each_kind_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.audio.models.codec_lm.chatterbox.MAX_CODES", 12)
    report = run(PIPELINES[kind](), PROMPTS.get(kind, "one two"), recipes=LATENT if kind in LATENTS else RECIPES)
    assert report.passed, [check for check in report.checks if check.status == "FAILED"]
    done = [check.name for check in report.checks if check.status == "passed"]
    assert len(done) >= 2 and any("own generate" in name for name in done) == (kind in OWN)
    assert report.speeds[0].name == "plain" and {"own generate"} <= {s.name for s in report.speeds} or kind not in OWN
    shown = page(report)
    assert "tiny &#124; &lt;b&gt;: passed" in shown and "over plain" in shown
    assert json.loads(json.dumps(as_json(report)))["passed"]


def test_a_wrong_model_fails_and_shows_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CausalTarget.forward

    def shifted(self: CausalTarget, tokens: Tensor, at: Any, *more: Any) -> Any:
        return real(self, tokens, at + (tokens.shape[1] > 1), *more)  # windows are read one position too late

    monkeypatch.setattr(CausalTarget, "forward", shifted)
    report = run(PIPELINES["emu3"]())
    failed = {check.name for check in report.checks if check.status == "FAILED"}
    assert not report.passed and not report.speeds
    assert "logits of windows after roll-back = logits of plain steps" in failed
    assert any(name.startswith("greedy tokens of scd") for name in failed)
    assert "Not measured: a check failed" in page(report) and ": FAILED" in page(report)


def test_kernels_are_compared_with_eager_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a CUDA device both calls are eager; the settings are those of the second.
    subject, seen = subject_of(PIPELINES["emu3"](), "one two", 12), []
    real = type(subject).ours

    def ours(self: Any, *given: Any, **named: Any) -> Any:
        seen.append((os.environ.get("MMSPEC_KERNELS"), os.environ.get("MMSPEC_CUDA_GRAPHS")))
        return real(self, *given, **named)

    monkeypatch.delenv("MMSPEC_KERNELS", raising=False)
    monkeypatch.setattr(type(subject), "ours", ours)
    (check,) = check_kernels(subject, [parse("scd:window=4")], "cuda", torch.float32)
    assert check.status == "passed" and seen == [(None, None), ("torch", "off")]
    assert "MMSPEC_KERNELS" not in os.environ
    (check,) = check_kernels(subject, [parse("scd:window=4")], "cpu", torch.float32)
    assert check.status == "not checked"


@pytest.mark.parametrize("kind", ["imagegpt", "flat"])
def test_on_a_device_every_cell_of_the_page_is_filled(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The weights stay on the CPU, where the kernels of the other call are the same.
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: None)
    pipe = PIPELINES[kind]()
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    report = check_model(
        subject_of(pipe, PROMPTS.get(kind, "one two"), 12), "tiny", "one two", {"device": "cuda (A Card)"},
        [parse(recipe) for recipe in RECIPES], 16, 1, "cuda", torch.float32, lambda name: None,
    )  # fmt: skip
    assert {check.status for check in report.checks} == {"passed"} and not report.refused
    assert sum("eager torch" in check.name for check in report.checks) == 1 + len(RECIPES)
    assert all(speed.target_calls for speed in report.speeds) and "| - |" not in page(report)


def test_a_near_tie_of_a_pipeline_is_told_from_a_mistake() -> None:
    """Rounding may exchange tokens that are nearly as likely; the check says how near they are."""
    subject = subject_of(PIPELINES["llamagen"](), "7", 12)
    made = subject.ours(parse("plain"), greedy=True, rows=1, seed=0)
    prompted = subject.target(1, 1)
    assert prompted is not None
    z = prompted.target.prefill().cond[0, 0].detach()
    second = Made(made.tokens.clone())
    second.tokens[0, 0] = z.topk(2).indices[1]
    found = compare_greedy(subject, "x", second, made, torch.float32)
    gap = float(z.topk(2).values.diff().abs())
    assert found.status == "FAILED" and f"differ by {gap:.2g}," in found.detail


def test_the_command_checks_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.janus().save_pretrained(tmp_path / "janus")
    tiny_processors.janus().save_pretrained(tmp_path / "janus")
    options = ["check", "scd:window=4", "-m", str(tmp_path / "janus"), "--rows", "8", "--prompt", "cat <script>|"]
    assert main([*options, "-o", str(tmp_path / "page.md")]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(tmp_path / "page.md") and "checking speed" in captured.err
    shown = (tmp_path / "page.md").read_text()
    assert "cat &lt;script&gt;&#124;" in shown and "<script>" not in shown and "prompt ids" in shown
    assert main([*options, "--dtype", "bf16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["dtype"] == "bfloat16" and found["prompt_ids"] and found["kind"].startswith("Janus")
    assert main(["check", "--rows", "16"]) == 2
    assert "--rows requires -m/--model" in capsys.readouterr().err
    assert main(["check", "-m", "shapes", "--columns"]) == 2


def test_two_samples_are_told_apart_as_often_as_stated() -> None:
    """Equal distributions give p <= 0.001 once in a thousand; the stated difference is found in 9 of 10 runs."""
    generator = torch.Generator().manual_seed(0)
    rows, positions = 64, 16
    distance = detectable(rows, positions)
    assert 0.1 < distance < 0.35
    ids = torch.arange(4096)
    bins = (ids * 2654435761 % 2**32) * 8 // 2**32
    shift = 1 + 2 * distance * torch.where(bins % 2 == 0, 1.0, -1.0)
    equal = different = 0

    def found(first: Tensor, second: Tensor, seed: int) -> bool:
        result = compare_samples(first, second, seed)
        assert result is not None
        return result.p <= 0.001

    for seed in range(20):
        first, second = torch.randint(4096, (2, rows, positions), generator=generator)
        other = shift.multinomial(rows * positions, replacement=True, generator=generator).view(rows, positions)
        equal += found(first, second, seed)
        different += found(first, other, seed)
    assert equal <= 1 and different >= 14
    assert compare_samples(first[:, :1] * 0, second[:, :1] * 0) is None

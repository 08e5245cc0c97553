"""Qwen3-TTS against the package `qwen-tts`: prompts, greedy codes, the distribution of samples."""

from __future__ import annotations

import golden_qwen3_tts as golden
import pytest
import torch
from torch import Tensor

from mmspec.audio.depth.depth_decoding import FrameSpec
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.depth.frame_windows import FrameTarget
from mmspec.audio.models.qwen3_tts.decoding import Qwen3TTSFrames, frame_ends
from mmspec.audio.models.qwen3_tts.prompt import Qwen3TTSPrompt, embed_prompt, spoken_text
from mmspec.hf.causal_target import CausalTarget
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.testing.adapters import check_windows
from mmspec.testing.exactness import noise_floor

GREEDY = SamplingParams(0.0)
# The original leaves out the frame of the last token that `max_new_tokens` allows.
FRAMES = golden.recorded()["length"] - 1


@pytest.mark.parametrize("case", golden.CASES, ids=lambda case: case.name)
def test_prompts_are_the_originals(case: golden.Case) -> None:
    found, expected = case.prompts(), golden.expected()
    for i, prompt in enumerate(found):
        assert torch.equal(prompt.ids, expected[f"{case.name}.ids.{i}"])
    mask = expected[f"{case.name}.attention_mask"].bool()
    embeds, text = expected[f"{case.name}.inputs_embeds"], expected[f"{case.name}.trailing_text_hidden"]
    for row, (own_embeds, rest) in enumerate(case.embedded()):
        torch.testing.assert_close(own_embeds, embeds[row][mask[row]])
        own = torch.cat([rest, rest[-1:].expand(max(text.shape[1] - len(rest), 0), -1)])[: text.shape[1]]
        torch.testing.assert_close(own, text[row])


@pytest.mark.releases
@pytest.mark.parametrize("case", golden.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(
    "recipe,ahead", [("scd:window=3", 0), ("scd", 2), pytest.param("recycle", 2, marks=pytest.mark.slow)]
)
def test_greedy_codes_are_the_originals(case: golden.Case, recipe: str, ahead: int) -> None:
    """Rows of different prompts, which end at different frames; with the repetition penalty."""
    spec = FrameSpec(FRAMES, frame_ends(golden.model()), golden.model().config.codes, GREEDY, GREEDY)
    model, seeds = case.frames(FRAMES, ahead), list(range(case.count))
    made = decode_frames(model, parse(recipe), spec, seeds, ahead=ahead).frames
    for row in range(case.count):
        assert torch.equal(until_end(made[row]), golden.expected()[f"{case.name}.codes.{row}"])


def test_recorded_rows_end_at_different_frames() -> None:
    lengths = [len(value) for name, value in golden.expected().items() if ".codes." in name and "codec" not in name]
    assert min(lengths) == 2 and max(lengths) == FRAMES and len(set(lengths)) > 5


def until_end(frames: Tensor) -> Tensor:
    ends = frame_ends(golden.model())(frames).nonzero()
    return frames[: int(ends[0])] if len(ends) else frames


def frames_of(batch_size: int, window: int) -> FrameTarget:
    """Five frames, with the text added to them."""
    spec = FrameSpec(5, None, 0, SamplingParams(), SamplingParams())
    prompts = [golden.CASES[1].embedded()[1]] * batch_size
    return FrameTarget(Qwen3TTSFrames(golden.model(), prompts, 5, 4, 1.5), spec, batch_size, window)


def test_a_penalty_that_counts_later_frames_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken variant in which every logit of a window is penalized for all tokens of the window."""
    own = Qwen3TTSFrames._prefixes

    def broken(self: Qwen3TTSFrames, numbers: Tensor) -> Tensor:
        return own(self, numbers.amax(1, keepdim=True).expand_as(numbers))

    monkeypatch.setattr(Qwen3TTSFrames, "_prefixes", broken)
    assert check_windows(frames_of, 20, 9) > 0.1


def test_text_of_another_frame_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken variant that adds the text of a window's first frame to all of its frames."""
    own = CausalTarget._with_added

    def broken(self: CausalTarget, embeds: Tensor, slots: Tensor) -> Tensor:
        return own(self, embeds, slots[:, :1].expand_as(slots))

    monkeypatch.setattr(CausalTarget, "_with_added", broken)
    assert check_windows(frames_of, 20, 9) > 0.1


def joint_frames(batch_size: int, slack: int, penalty: float) -> Qwen3TTSFrames:
    """The tiny model with two codes, as `record_qwen3_tts.record_joint` called the original."""
    model, folder = golden.model(golden.JOINT), golden.JOINT
    text = golden.ids(spoken_text(golden.recorded(folder)["text"]), folder)
    config = model.config
    prompt = Qwen3TTSPrompt(
        text, None, config.language("english", "ann"), config.speakers["ann"], None, whole_text=False
    )
    return Qwen3TTSFrames(model, [embed_prompt(model, prompt, None)] * batch_size, 3, slack, penalty)


def samples(recipe: str, ahead: int, batch_size: int, penalty: float | None = None) -> Tensor:
    """Frequencies of the recorded sequences among samples."""
    folder = golden.JOINT
    settings, model = golden.recorded(folder)["settings"], golden.model(folder)
    first, rest = (
        SamplingParams(settings[f"{stage}temperature"], settings[f"{stage}top_k"], settings[f"{stage}top_p"])
        for stage in ("", "subtalker_")
    )
    spec = FrameSpec(3, frame_ends(model), model.config.codes, first, rest)
    frames = joint_frames(batch_size, ahead, settings["repetition_penalty"] if penalty is None else penalty)
    made = decode_frames(frames, parse(recipe), spec, range(batch_size), ahead=ahead).frames
    ended = made[:, 2, 0] == model.config.codes
    made[:, 2] = torch.where(ended[:, None], torch.tensor([model.config.eos, 0]), made[:, 2])
    own = golden.expected(folder)["sequences"]
    same = (made.flatten(1)[:, None] == own).all(-1)
    assert bool(same.any(1).all()), "a sequence that the original cannot generate"
    return same.double().mean(0)


def distance(recipe: str, ahead: int, penalty: float | None = None) -> tuple[float, float]:
    """The total variation between samples and the original's distribution, and its limit for samples of it."""
    rows, joint = 6_000, golden.expected(golden.JOINT)["probs"]
    floor, spread = noise_floor(joint, rows)
    return float((samples(recipe, ahead, rows, penalty) - joint).abs().sum() / 2), floor + 5 * spread


@pytest.mark.parametrize(
    "recipe,ahead",
    [
        ("scd:window=2", 0),
        ("scd:start=up", 2),
        pytest.param("plain", 0, marks=pytest.mark.slow),
        pytest.param("recycle", 2, marks=pytest.mark.slow),
    ],
)
def test_samples_follow_the_originals_distribution(recipe: str, ahead: int) -> None:
    """80 sequences of 3 frames with temperature, top-p, repetition penalty; some end with the third."""
    found, limit = distance(recipe, ahead)
    assert found < limit


def test_a_missing_repetition_penalty_is_detected() -> None:
    found, limit = distance("scd:window=2", 0, penalty=1.0)
    assert found > 1.5 * limit

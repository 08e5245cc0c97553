"""Kyutai TTS from its published layout, against words, codes and probabilities of the package moshi."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_codecs
import torch
import torch.nn.functional as F
from frame_models import random_head
from tiny_kyutai import BOOKS, CODES, CONTROL, VOICE, Codec, Words, config, kyutai, prefix, prefix_config, voice, write
from torch import Tensor

import mmspec
from mmspec.audio.codecs.mimi import Mimi
from mmspec.audio.depth.frame_rows import decode_frames
from mmspec.audio.depth.frame_windows import FrameTarget
from mmspec.audio.models.kyutai_tts import decoding
from mmspec.audio.models.kyutai_tts.decoding import KyutaiFrames, frame_spec
from mmspec.audio.models.kyutai_tts.machine import LAST, Machine, State
from mmspec.audio.models.kyutai_tts.model import KyutaiTTS, read_config, read_model
from mmspec.audio.models.kyutai_tts.prefix import Prefixes
from mmspec.audio.models.kyutai_tts.script import entries
from mmspec.audio.multi_codebook.delay_pattern import undelay
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.hub.files import needed_files
from mmspec.loading import check_layout
from mmspec.methods.frame.head import FrameHead
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.sampler import TokenSampler
from mmspec.testing.exactness import noise_floor

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "kyutai_tts.json").read_text())
PREFIX = GOLDEN["prefix"]
WORDS = {"control": "ok", "cfg": "1.5"}
STEPS = 70


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kyutai(tmp_path_factory.mktemp("kyutai"))


@pytest.fixture(scope="module")
def model(folder: Path) -> KyutaiTTS:
    return read_model(folder, "cpu", torch.float32)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose voice is the beginning of the audio."""
    return write(tmp_path_factory.mktemp("kyutai"), prefix_config())


def load(folder: Path, **options: Any) -> Any:
    given = {"codec": Codec(), "voice": folder / "voice.safetensors", "cfg": 1.5, "frames": 20, **options}
    return mmspec.load(str(folder), processor=Words(), config=given)


def machine(model: KyutaiTTS, text: str) -> Machine:
    config = model.config
    words = entries(text, Words().encode, speakers=config.voice is not None)
    return Machine(words, config.text_card + 1, config.look_ahead, config.delay_steps + 4)


def voices_of(model: KyutaiTTS, lengths: list[int]) -> Any:
    """The voice of each row, of this length if it is a beginning."""
    if model.config.voice is None:
        return [prefix(length, length) for length in lengths]
    return model.voice_states([voice()[0].T]).expand(len(lengths), -1, -1)


def prompted(model: KyutaiTTS, texts: list[str], sampling: SamplingParams, ahead: int = 0) -> KyutaiFrames:
    voices = voices_of(model, [*PREFIX["lengths"], *[5] * len(texts)][: len(texts)])
    words = {name: word for name, word in WORDS.items() if name in model.config.tables}
    return KyutaiFrames(model, [machine(model, text) for text in texts], voices, words, STEPS, sampling, BOOKS, ahead)


def head_of(model: KyutaiTTS) -> FrameHead:
    """A frame head whose drafts are arbitrary."""
    config = model.config
    guided = config.voice is None
    return random_head(config.card, config.main.dim * (1 + guided), 1 + len(config.delays))


def decoded(model: KyutaiTTS, recipe: str, sampling: SamplingParams, ahead: int) -> Tensor:
    """The frames of the three texts; `ahead` is the frames in a window, 0 for windows inside a frame."""
    begun, spec = prompted(model, GOLDEN["texts"], sampling, ahead), frame_spec(model, STEPS, sampling)
    if not ahead:
        return decode_frames(begun, parse(recipe), spec, [0, 1, 2]).frames
    heads = {"frame": head_of(model)}
    made = decode_frames(begun, parse(recipe), spec, [0, 1, 2], ahead=ahead, heads=heads)
    return made.frames


def test_words_are_those_of_the_package(model: KyutaiTTS) -> None:
    for text, own in zip(GOLDEN["texts"], GOLDEN["entries"], strict=True):
        assert [[list(each.ids), each.padding] for each in entries(text, Words().encode)] == own


def are_golden(model: KyutaiTTS, frames: Tensor) -> bool:
    """Whether greedy frames of the three texts, of which two end, are those of the package."""
    same = []
    for row, end, own in zip(frames, GOLDEN["ends"], GOLDEN["frames"], strict=True):
        steps = STEPS if end is None else end + model.config.delay_steps + 4
        last = (row[:, 0] == LAST).nonzero()
        codes = undelay(row[None, :steps, 1:], model.config.delays)[0]
        codes = torch.where(codes == CODES, -1, codes)
        same += [(int(last[0]) + 1 if len(last) else STEPS) == steps, codes.tolist() == own[: len(codes)]]
    return all(same)


@pytest.mark.releases
@pytest.mark.parametrize(
    ("recipe", "ahead"),
    [
        ("plain", 0),
        ("scd:window=3", 0),
        ("sjd:window=4", 0),
        ("recycle:window=2", 0),
        ("scd", 2),
        ("frame", 2),
        ("scd:start=frame", 3),
    ],
)
def test_greedy_codes_are_those_of_the_package(model: KyutaiTTS, recipe: str, ahead: int) -> None:
    """Three texts in a batch; two end, one is cut."""
    assert are_golden(model, decoded(model, recipe, SamplingParams(0.0), ahead))


def test_words_of_rejected_frames_that_are_kept_are_detected(model: KyutaiTTS, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken variant whose machine keeps the states after decisions that were rejected."""

    def kept(self: KyutaiFrames, decisions: Tensor, at: Any) -> Tensor:
        texts = []
        for row, (begin, choices) in enumerate(zip(at.tolist(), decisions.tolist(), strict=True)):
            states = list(self._states[row])
            steps = []
            for i, choice in enumerate(choices):
                steps.append(self._machines[row].step(states[begin + i], choice))
                states += [steps[-1][0]] if len(states) == begin + i + 1 else []
            self._states[row] = states
            texts.append([text for _, text in steps])
        return torch.tensor(texts)

    monkeypatch.setattr(KyutaiFrames, "_advance", kept)
    assert are_golden(model, decoded(model, "plain", SamplingParams(0.0), 1))  # rejects nothing
    assert not are_golden(model, decoded(model, "frame", SamplingParams(0.0), 2))


@pytest.mark.releases
@pytest.mark.parametrize(
    ("recipe", "conditioned", "ahead"),
    [
        ("plain", False, 0),
        ("scd:window=3", False, 0),
        ("recycle:window=2", False, 0),
        ("plain", True, 0),
        ("scd", False, 2),
        ("frame", False, 2),
    ],
)
def test_greedy_codes_after_a_voice_are_those_of_the_package(
    public: Path, recipe: str, conditioned: bool, ahead: int, tmp_path: Path
) -> None:
    """With guidance; the voices are longer and shorter than the delay of the audio."""
    model = read_model(write(tmp_path, prefix_config(**CONTROL)) if conditioned else public, "cpu", torch.float32)
    own = PREFIX["conditioned"] if conditioned else PREFIX
    sampling = SamplingParams(0.0, guidance_scale=PREFIX["guidance"])
    for text, recorded in zip(GOLDEN["texts"], PREFIX["entries"], strict=True):
        assert [[list(each.ids), each.padding] for each in entries(text, Words().encode, 1, False)] == recorded
    made = decoded(model, recipe, sampling, ahead)
    for row, end, frames, begun in zip(made, own["ends"], own["frames"], PREFIX["lengths"], strict=True):
        steps = STEPS if end is None else end + model.config.delay_steps + 4 - begun
        last = (row[:, 0] == LAST).nonzero()
        assert (int(last[0]) + 1 if len(last) else STEPS) == steps
        after = undelay(row[None, :steps, 1:], model.config.delays)[0]
        after = torch.where(after == CODES, -1, after)
        assert after[: len(frames) - begun].tolist() == frames[begun : begun + len(after)]


def test_guided_distributions_are_those_of_the_package(public: Path) -> None:
    """Of decisions and codes after a voice, and of twins: without guidance, and with guidance that hears the voice."""
    model, s = read_model(public, "cpu", torch.float32), GOLDEN["sampling"]
    sampling = SamplingParams(s["temperature"], s["top_k"], guidance_scale=PREFIX["guidance"])
    greedy = SamplingParams(0.0, guidance_scale=PREFIX["guidance"])
    made = decode_frames(
        prompted(model, GOLDEN["texts"][:1], greedy), parse("plain"), frame_spec(model, STEPS, greedy), [0]
    )

    def farthest(sampling: SamplingParams) -> float:
        recorded, frames, found = iter(PREFIX["probs"]), prompted(model, GOLDEN["texts"][:1], sampling), [0.0]
        logits = frames.start()
        for step in range(12):
            words = torch.tensor(next(recorded))
            if frames._machines[0].forced(frames._states[0][step]) is None:
                wanted = torch.stack([1 - words[0], words[0]])
                found.append(float((logits.cond[0, -1, :2].exp() - wanted).abs().max()))
            depth = frames.depth(made.frames[:, step, :1], 0, 0)
            for book in range(BOOKS):
                at, before = np.array([book - 1]), made.frames[:, step, book : book + 1]
                p = probs(depth.forward(before, at) if book else depth.prefill(), sampling)[0, 0]
                own = torch.tensor(next(recorded))
                if frames._prefixes.given(np.array([[PREFIX["lengths"][0] + step]]))[0, 0, book] < 0:
                    found.append(float((p[:CODES] - own).abs().max()))
            logits = frames.step(made.frames[:, step])
        return max(found)

    assert farthest(sampling) < 1e-4
    assert farthest(SamplingParams(s["temperature"], s["top_k"])) > 0.1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "without_voice", lambda columns, *_: columns)
        assert farthest(sampling) > 0.1


def probs(logits: Logits, sampling: SamplingParams) -> Tensor:
    """Probabilities [B, W, V]."""
    sampler = TokenSampler([sampling] * len(logits.cond), None, logits.cond.device)
    return sampler.probs(logits, np.zeros(logits.cond.shape[:2], dtype=np.int64))


def test_distributions_are_those_of_the_package(model: KyutaiTTS) -> None:
    """Of decisions and codes of 12 steps with audio, along its most likely tokens; what it overwrites is left out."""
    s, recorded = GOLDEN["sampling"], iter(GOLDEN["probs"])
    sampling, config = SamplingParams(s["temperature"], s["top_k"]), model.config
    greedy = frame_spec(model, STEPS, SamplingParams(0.0))
    made = decode_frames(prompted(model, GOLDEN["texts"][:1], SamplingParams(0.0)), parse("plain"), greedy, [0])
    frames, model_frames = made.frames, prompted(model, GOLDEN["texts"][:1], sampling)
    logits, seen = model_frames.start(), 0
    for step in range(config.delay_steps + 12):
        words = torch.tensor(next(recorded))
        if model_frames._machines[0].forced(model_frames._states[0][step]) is None:
            assert torch.allclose(logits.cond[0, -1, :2].exp(), torch.stack([1 - words[0], words[0]]), atol=1e-4)
            seen += 1
        if step >= config.delay_steps:
            depth = model_frames.depth(frames[:, step, :1], 0, 0)
            codes = [probs(depth.prefill(), sampling)]
            codes += [
                probs(depth.forward(frames[:, step, i + 1 : i + 2], np.array([i])), sampling) for i in range(BOOKS - 1)
            ]
            for book, p in enumerate(codes):
                own = torch.tensor(next(recorded))
                if step >= config.delay_steps + config.delays[book]:
                    assert torch.allclose(p[0, 0, :CODES], own, atol=1e-4)
                else:
                    assert p[0, 0, CODES] == 1
        logits = model_frames.step(frames[:, step])
    assert seen >= 4


LENGTH, SAMPLES = 3, 4_000


def small(folder: Path, public: bool) -> KyutaiTTS:
    """A model of 2 codebooks of 2 codes, whose audio begins with the text, and its second codebook a step later."""
    tts = {"audio_delay": 0, "second_stream_ahead": 2}
    schedule = {"depformer_weights_per_step_schedule": [0, 1], "delays": [0, 0, 1]}
    settings = (prefix_config if public else config)(card=2, n_q=2, dep_q=2, tts_config=tts, **schedule)
    return read_model(write(folder, settings), "cpu", torch.float32)


def frames_of(model: KyutaiTTS, rows: int, ahead: int = 0) -> KyutaiFrames:
    """Rows of one word, whose machine leaves all decisions to the model, so that some rows end before `LENGTH`."""
    public = model.config.voice is None
    voices = [torch.tensor([[1, 0, 0], [0, 0, 1]])] * rows if public else voices_of(model, [0] * rows)
    sampling = SamplingParams(1.3, 0, 0.95, guidance_scale=1.5 if public else 1.0)
    words = Machine(entries("ab", Words().encode, 0), model.config.text_card + 1, 2, 1, 9, 0)
    made = KyutaiFrames(model, [words] * rows, voices, {} if public else WORDS, LENGTH, sampling, 2, ahead)
    made._states = [[State(0, 0, 9, 0)]] * rows
    return made


def joint(model: KyutaiTTS) -> Tensor:
    """Probabilities of all sequences of 3 frames of a decision and 2 codes, each 0 to 2, [3 ** 9].

    Codes that the model does not generate, and frames after the end, are 2.
    """
    frame = torch.cartesian_prod(*[torch.arange(3)] * 3)
    frames = frame[torch.cartesian_prod(*[torch.arange(27)] * LENGTH)]
    made = frames_of(model, len(frames))
    sampling, logits = made._sampling, made.start()
    total, ended = torch.ones(len(frames), dtype=torch.float64), torch.zeros(len(frames), dtype=torch.bool)
    for own in frames.unbind(1):
        p = logits.cond[:, -1].exp().gather(1, own[:, :1])
        depth = made.depth(own[:, :1], 0, 0)
        p = p * probs(depth.prefill(), sampling)[:, 0].gather(1, own[:, 1:2])
        second = depth.forward(own[:, 1:2], np.zeros(len(own), dtype=np.int64))
        p = p * probs(second, sampling)[:, 0].gather(1, own[:, 2:])
        total *= torch.where(ended, (own == 2).all(-1).double(), p[:, 0].double())
        ended |= own[:, 0] == LAST
        logits = made.step(own)
    return total


def distance(model: KyutaiTTS, recipe: str, ahead: int, expected: Tensor) -> float:
    """The total variation between samples and the probabilities of sequences."""
    begun = frames_of(model, SAMPLES, ahead)
    spec, seeds = frame_spec(model, LENGTH, begun._sampling), range(SAMPLES)
    if ahead:
        made = decode_frames(begun, parse(recipe), spec, seeds, ahead=ahead, heads={"frame": head_of(model)})
        assert made.stats.tokens_per_call > 1
    else:
        made = decode_frames(begun, parse(recipe), spec, seeds)
    frames = F.pad(made.frames, (0, 0, 0, LENGTH - made.frames.shape[1]), value=2)
    numbers = (frames.flatten(1) * 3 ** torch.arange(3 * LENGTH - 1, -1, -1)).sum(1)
    return float((torch.bincount(numbers, minlength=len(expected)).double() / SAMPLES - expected).abs().sum() / 2)


@pytest.mark.parametrize(
    ("recipe", "ahead", "public"),
    [
        ("scd:window=2", 0, False),
        ("sjd:window=2,start=up", 0, False),
        ("scd:window=2", 0, True),
        ("frame", 2, False),
        ("scd:start=frame", 2, False),
        ("frame", 2, True),
    ],
)
def test_samples_follow_the_distribution(
    recipe: str, ahead: int, public: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temperature and top-p, a delay, rows that end; the limit is five standard deviations above the noise floor.

    A twin whose decisions know no temperature is more than twice as far.
    """
    model = small(tmp_path, public)
    with torch.inference_mode():
        expected = joint(model)
    assert abs(float(expected.sum()) - 1) < 1e-5 and int((expected > 0).sum()) > 25
    floor, spread = noise_floor(expected, SAMPLES)
    limit = floor + 5 * spread

    assert distance(model, recipe, ahead, expected) < limit
    real = decoding.decision
    monkeypatch.setattr(decoding, "decision", lambda logits, s: real(logits, SamplingParams(0.1)))
    assert distance(model, recipe, ahead, expected) > 2 * limit


def test_delays_of_another_step_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken variant that gives all frames of a window the codes that its first one is given.

    The layout says what each frame is given, so that nothing is left to sample.
    """
    real = Prefixes.given

    def first(self: Prefixes, steps: Any) -> Any:
        given = real(self, steps)
        return np.broadcast_to(given[:, :1], given.shape).copy()

    model = small(tmp_path, False)
    with torch.inference_mode():
        expected = joint(model)
    monkeypatch.setattr(Prefixes, "given", first)
    with pytest.raises(ModelError, match="forbade every token"):
        distance(model, "frame", 2, expected)


@pytest.mark.releases
@pytest.mark.parametrize("length", [1, 2, 4])
def test_windows_reach_past_an_end_at_given_codes(length: int, public: Path) -> None:
    """The last frame has codes that are given; what follows it must not be forced to them."""
    model, sampling = read_model(public, "cpu", torch.float32), SamplingParams(0.0, guidance_scale=2.0)
    found = []
    for recipe, ahead in (("plain", 0), ("scd", 2), ("frame", 2)):
        begun, spec = prompted(model, GOLDEN["texts"], sampling, ahead), frame_spec(model, length, sampling)
        seeds, heads = [0, 1, 2], {"frame": head_of(model)}
        if ahead:
            found.append(decode_frames(begun, parse(recipe), spec, seeds, ahead=ahead, heads=heads))
        else:
            found.append(decode_frames(begun, parse(recipe), spec, seeds))
    assert (begun.given_codes(np.full((3, 1), length - 1)) >= 0).any()
    for made in found[1:]:
        assert torch.equal(made.frames, found[0].frames)
        assert [row.truncated for row in made.stats.rows] == [row.truncated for row in found[0].stats.rows]


@pytest.mark.parametrize("after_voice", [False, True])
def test_drafts_have_what_is_forced(
    after_voice: bool, model: KyutaiTTS, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions without a choice, codes of the voice, and those of codebooks whose delay is not over.

    A twin that does not know the decisions is rejected there, and takes more calls.
    """
    model = read_model(public, "cpu", torch.float32) if after_voice else model
    seen, sampling = [0, 0], SamplingParams(1.0, guidance_scale=2.0 if after_voice else 1.0)
    real = FrameTarget.forward

    def spy(self: FrameTarget, tokens: Tensor, at: Any) -> Logits:
        made = real(self, tokens, at)
        p = made.cond[:, :-1].softmax(-1)
        own = p.gather(-1, tokens[:, 1:, None])[..., 0]
        forced = p[..., :-1].max(-1).values > 1 - 1e-6  # the end token, after the last frame, is not drafted
        # What follows a draft that is impossible is forced by another prefix.
        possible = F.pad((own > 0).long().cumprod(1)[:, :-1], (1, 0), value=1).bool()
        seen[0] += int(forced.sum())
        seen[1] += int((forced & possible & (own < 0.5)).sum())
        return made

    monkeypatch.setattr(FrameTarget, "forward", spy)

    def calls() -> int:
        seen[:] = [0, 0]
        begun, spec = prompted(model, GOLDEN["texts"], sampling, 2), frame_spec(model, 20, sampling)
        made = decode_frames(begun, parse("frame"), spec, [0, 1, 2], ahead=2, heads={"frame": head_of(model)})
        return made.stats.nfe

    aware = calls()
    assert seen[0] > 50 and seen[1] == 0
    monkeypatch.setattr(FrameTarget, "forces_firsts", False)
    assert calls() > aware and seen[1] > 0


def test_speech_in_frames_inside_and_ahead(folder: Path) -> None:
    pipe = load(folder)
    texts = ["one two.", "Hello!", "it is late now and I must really go home"]
    whole = pipe(texts, seed=3)
    frames = pipe.adapter.codes(whole[2].tokens[0])
    assert frames.shape[0] == BOOKS and 0 < frames.shape[1] <= 20 and int(frames.max()) < CODES
    few = load(folder, codebooks=2)("one two.", seed=3)
    assert pipe.adapter.codes(whole[0].tokens[0]).shape[1] > 0 and few.tokens[0].shape[1] == 3
    for i, text in enumerate(texts):
        assert load(folder, ahead=2)(text, recipe="scd", seed=3 + i).stats.tokens_per_call > 1


def test_speech_with_the_voice_of_a_recording(public: Path) -> None:
    """Audio is without the voice."""
    voice = ReferenceCodes("", prefix(5).T)
    pipe = load(public, voice=voice, cfg=2.0)
    assert pipe.adapter.sampling.guidance_scale == 2
    texts = ["one two.", "Hello!"]
    whole = pipe(texts, seed=3)
    frames = pipe.adapter.codes(whole[0].tokens[0])
    after = Codec().decode(torch.cat([prefix(5), frames], dim=1)[None])[0, :, 5 * Codec().hop :]
    np.testing.assert_allclose(whole[0].audio, after.numpy(), atol=1e-5)
    assert len(pipe("one two.", guidance_scale=1.0, seed=3).tokens[0])
    mimi = Mimi(tiny_codecs.mimi(BOOKS, CODES))
    wave = np.sin(np.arange(6 * mimi.hop, dtype=np.float32))[None]
    cloned = load(public, voice=None, cfg=2.0, codec=mimi).with_reference_audio(wave, mimi.sampling_rate)
    codes = mimi.encode(torch.from_numpy(wave[0]))
    assert torch.equal(cloned.adapter.options.voice.codes, codes[:-2]) and len(codes) >= 6
    assert cloned("one two.", seed=3).audio.shape[-1] % mimi.hop == 0
    with pytest.raises(ArgumentError, match=r"a voice is missing; call pipe.with_reference_audio"):
        load(public, voice=None, cfg=2.0)("one")
    with pytest.raises(ArgumentError, match=r"cfg=1.5 is not possible: .*; pass guidance_scale to a call"):
        load(public, voice=voice)
    with pytest.raises(ArgumentError, match="voice='a.safetensors' is not possible for this model; pass its codes"):
        load(public, voice="a.safetensors", cfg=2.0)
    with pytest.raises(ArgumentError, match="this codec cannot encode reference audio"):
        pipe.with_reference_audio(np.zeros((1, 24_000), dtype=np.float32), 24_000)
    with pytest.raises(ArgumentError, match="voice has codes of shape"):
        load(public, voice=ReferenceCodes("", prefix(5)), cfg=2.0)


def test_the_published_layout(folder: Path) -> None:
    """A repository with its codec beside the model is read; the config is otherwise of the real size."""
    check_layout("kyutai/tts", folder, ["config.json", "a.safetensors", "b.safetensors"])
    files = ["config.json", "dsm_tts_tiny.safetensors", "mimi.safetensors", "text.model", "voice.safetensors"]
    assert needed_files(files, folder) == ["config.json", "dsm_tts_tiny.safetensors", "text.model"]
    schedule = [*range(8), *[8] * 8, *[9] * 8, *[10] * 8]
    sizes = {"dim": 2048, "num_heads": 16, "num_layers": 2, "card": 2048, "n_q": 32, "dep_q": 32, "text_card": 8000,
             "delays": [0, 0, *[2] * 31], "depformer_dim": 1024, "depformer_num_heads": 16,
             "depformer_low_rank_embeddings": 128, "depformer_weights_per_step_schedule": schedule}  # fmt: skip
    with torch.device("meta"):
        model = KyutaiTTS(read_config(config(**sizes, tts_config={"audio_delay": 1.28}), "published"))
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["emb.31.weight"] == (2049, 2048) and shapes["depformer_emb.30.low_rank.weight"] == (1024, 128)
    assert shapes["depformer.layers.1.self_attn.in_projs.10.weight"] == (3072, 1024)
    assert model.config.delay_steps == 16


def test_errors(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="Kyutai TTS needs Mimi in the layout of transformers"):
        mmspec.load(str(folder), processor=Words())
    with pytest.raises(ArgumentError, match="a voice is missing"):
        load(folder, voice=None)("one")
    with pytest.raises(ArgumentError, match="reference audio is not possible for this model"):
        load(folder).with_reference_audio(np.zeros((1, 24_000), dtype=np.float32), 24_000)
    with pytest.raises(ModelError, match=f"it must be \\[1, {VOICE}, frames\\]"):
        load(folder, voice=folder / "dsm_tts_tiny.safetensors")
    with pytest.raises(PromptError, match="the text has no words"):
        load(folder)('<break time="1s"/>')
    for seconds in ("0,5", "0x5", "9" * 400):  # words, as they are not pauses
        assert load(folder).read(f'one <break time="{seconds}s"/> two', None).parts
    with pytest.raises((ArgumentError, ModelError), match="sentencepiece|words.model"):
        mmspec.load(str(folder), processor="words.model", config={"codec": Codec()})
    with pytest.raises(ArgumentError, match="recipe 'draft' is not possible for Kyutai TTS"):
        load(folder)("one", recipe="draft")
    with pytest.raises(ArgumentError, match="processor=.* is not allowed; it needs a method encode"):
        mmspec.load(str(folder), processor=object(), config={"codec": Codec()})
    wrong_configs: list[dict[str, Any]] = [
        {"gating": "gelu"}, {"delays": [0, 1]}, {"dep_q": 2}, {"dim": 30}, {"conditioners": {}}, {"card": "x"},
        {"max_period": 0}, {"tts_config": {"audio_delay": 1e9}},
    ]  # fmt: skip
    for changed in wrong_configs:
        with pytest.raises(ModelError, match="model 'x' "):
            read_config(config(**changed), "model 'x'")

"""MusicGen, Dia and Higgs Audio: tiny random models of the real classes, against their own `generate`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tiny_music as tiny
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.generation import GenerationMixin

import mmspec
import mmspec.audio.models.dia.decoding
import mmspec.audio.models.higgs.decoding
import mmspec.audio.models.musicgen.decoding
from mmspec.audio.multi_codebook.decoding import ColumnDecodingPlan
from mmspec.decoding.batch import BatchState
from mmspec.decoding.loop import RunningBatch
from mmspec.decoding.stats import Meter
from mmspec.decoding.to_end import decode_to_end
from mmspec.decoding.window_policy import FixedWindow
from mmspec.errors import ArgumentError, MMSpecError, ModelError
from mmspec.hf.request import GenerateRequest
from mmspec.recipes import parse
from mmspec.sampling.rejection import Draft, Verdict, ratio
from mmspec.sampling.rng import WindowRNG
from mmspec.sampling.sampler import ColumnSampler
from mmspec.testing.adapters import check_windows
from mmspec.testing.exactness import noise_floor

TEXT = torch.tensor([[5, 6, 7, 0], [8, 9, 3, 4]])
SPOKEN = torch.tensor([[0, 0, 5, 6, 7, 31], [8, 9, 3, 4, 5, 31]])
RECIPES = ["plain", "scd:window=5", "recycle:window=3", "draft:window=4", "layer-skip:layers=1,window=3"]


def voice(codes: int, delays: tuple[int, ...], frames: int = 0) -> dict[str, Tensor]:
    """The outputs of `DiaProcessor` for audio of some frames, or none: delayed columns, padded at the end."""
    begin, pad, last = codes + 2, codes + 1, max(delays)
    audio = torch.full((2, 1 + frames, len(delays)), begin)
    audio[:, 1:] = torch.randint(codes, audio[:, 1:].shape, generator=torch.Generator().manual_seed(1))
    columns = torch.full((2, 1 + frames + last, len(delays)), pad)
    for k, d in enumerate(delays):
        columns[:, :d, k], columns[:, d : d + 1 + frames, k] = begin, audio[..., k]
    return {"decoder_input_ids": columns.int(), "decoder_attention_mask": torch.ones(columns.shape[:2]).long()}


def higgs_voice() -> dict[str, Tensor]:
    """Two rows of text that contain four frames of audio."""
    ids = torch.tensor([[0, 3, 32, 32, 32, 32, 33, 33, 4, 5, 31], [3, 4, 32, 32, 32, 32, 33, 33, 4, 5, 31]])
    audio = torch.randint(16, (2, 6, 3), generator=torch.Generator().manual_seed(1))
    for k in range(3):
        audio[:, : k + 1, k], audio[:, k + 4 :, k] = 16, 17
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "audio_input_ids": audio,
        "audio_input_ids_mask": torch.ones(2, 6, dtype=torch.bool),
    }


def text(**more: Any) -> dict[str, Any]:
    return {"input_ids": TEXT, "attention_mask": (TEXT > 0).long(), **more}


@dataclass(frozen=True)
class Case:
    """A model made from a seed, a call of its `generate`, and its decoding module."""

    model: Callable[..., Any]
    call: dict[str, Any]
    module: Any


def music(**kind: Any) -> Callable[..., Any]:
    return lambda seed=0, **more: tiny.musicgen(seed, **(kind | more))


CASES = {
    "musicgen": Case(music(), text(max_new_tokens=14), mmspec.audio.models.musicgen.decoding),
    "musicgen guided": Case(
        music(), text(max_new_tokens=14, guidance_scale=3.0), mmspec.audio.models.musicgen.decoding
    ),
    "stereo": Case(
        music(channels=2), text(max_new_tokens=14, guidance_scale=2.0), mmspec.audio.models.musicgen.decoding
    ),
    "melody": Case(
        music(melody=True),
        text(max_new_tokens=12, guidance_scale=2.0, input_features=torch.rand(2, 3, 12)),
        mmspec.audio.models.musicgen.decoding,
    ),
    "melody without one": Case(
        music(melody=True, channels=2), text(max_new_tokens=12), mmspec.audio.models.musicgen.decoding
    ),
    "dia": Case(tiny.dia, text(max_new_tokens=20, **voice(16, (0, 2, 3))), mmspec.audio.models.dia.decoding),
    "dia guided": Case(
        tiny.dia,
        text(max_new_tokens=20, guidance_scale=3.0, top_k=5, **voice(16, (0, 2, 3), 3)),
        mmspec.audio.models.dia.decoding,
    ),
    "higgs": Case(
        tiny.higgs,
        {"input_ids": SPOKEN, "attention_mask": (SPOKEN > 0).long(), "max_new_tokens": 18},
        mmspec.audio.models.higgs.decoding,
    ),
    "higgs with a voice": Case(tiny.higgs, {**higgs_voice(), "max_new_tokens": 18}, mmspec.audio.models.higgs.decoding),
}


def copied(call: dict[str, Any]) -> dict[str, Any]:
    """The call with its tensors cloned: Dia modifies them in place."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in call.items()}


def ours(model: Any, call: dict[str, Any], **more: Any) -> Any:
    more = {"do_sample": False, "seed": 0, "return_dict_in_generate": True} | more
    return GenerationMixin.generate(model, **copied(call), **more, custom_generate=mmspec.generate)


@pytest.mark.releases
@pytest.mark.parametrize("name", CASES)
def test_greedy_matches_the_models_own_generate(name: str) -> None:
    case = CASES[name]
    model = case.model(0)
    own = model.generate(**copied(case.call), do_sample=False, return_dict_in_generate=True)
    for recipe in RECIPES:
        found = ours(model, case.call, recipe=recipe, draft_model=case.model(0, layers=1))
        for field in {"sequences", "audio_sequences"} & {*own}:
            assert torch.equal(found[field], own[field]), recipe


@pytest.mark.parametrize("channels", [1, 2])
def test_musicgen_with_a_rule_that_uses_code_similarity(channels: int) -> None:
    model, call = tiny.musicgen(channels=channels), text(max_new_tokens=14)
    options = {"do_sample": True, "draft_model": tiny.musicgen(1, channels=channels)}
    exact, same, more = (
        ours(model, call, recipe=f"draft{rule}window=3", **options)
        for rule in (":", "+lantern:delta=0,", "+lantern:delta=0.9,k=8,")
    )
    assert torch.equal(same.columns, exact.columns) and same.stats.tv_bound == 0
    assert more.stats.tokens_per_call > exact.stats.tokens_per_call and more.stats.tv_bound > 0


@pytest.mark.parametrize("channels", [1, 2])
def test_musicgen_continues_audio(channels: int) -> None:
    """From codes, and from a waveform that the codec encodes."""
    model = tiny.musicgen(codes=1024, channels=channels)
    codes = torch.randint(1024, (8, 5), generator=torch.Generator().manual_seed(1))
    wave = torch.randn(2, channels, 40, generator=torch.Generator().manual_seed(2))
    for prompt in ({"decoder_input_ids": codes}, {"input_values": wave}):
        call = text(max_new_tokens=8, guidance_scale=2.0, **prompt)
        own = model.generate(**copied(call), do_sample=False)
        assert torch.equal(ours(model, call, recipe="scd:window=4").sequences, own)


def test_num_return_sequences() -> None:
    model = tiny.musicgen()
    several = ours(model, text(max_new_tokens=9, num_return_sequences=2), recipe="sjd:window=3", do_sample=True, seed=3)
    repeated = {"input_ids": TEXT.repeat_interleave(2, 0), "attention_mask": (TEXT > 0).long().repeat_interleave(2, 0)}
    single = ours(model, repeated | {"max_new_tokens": 9}, recipe="sjd:window=3", do_sample=True, seed=[3, 4, 5, 6])
    assert torch.equal(several.sequences, single.sequences) and len(several.sequences) == 4


INVALID: list[tuple[str, dict[str, Any], type[MMSpecError], str]] = [
    (
        "musicgen",
        {"max_new_tokens": 3},
        ArgumentError,
        "max_new_tokens=3 is not allowed; 4 columns make one frame of 4",
    ),
    (
        "musicgen",
        {"repetition_penalty": 1.2},
        ArgumentError,
        "depends on earlier ids, and MusicgenForConditionalGeneration",
    ),
    ("musicgen", {"num_beams": 2}, ArgumentError, "num_beams=2 is not supported"),
    (
        "musicgen",
        {"recipe": "tree"},
        ArgumentError,
        "recipe 'tree' is not possible here: this model generates columns of codes",
    ),
    ("musicgen", {"recipe": "draft"}, ArgumentError, "recipe 'draft' needs a draft model"),
    ("musicgen", {"draft_model": tiny.dia()}, ModelError, "draft_model is a DiaForConditionalGeneration"),
    ("musicgen", {"draft_model": tiny.musicgen(codes=8)}, ModelError, "draft_model makes 8 codes, the model 16"),
    (
        "dia",
        {"repetition_penalty": 1.2},
        ArgumentError,
        "depends on earlier ids, and DiaForConditionalGeneration generates",
    ),
    (
        "higgs",
        {"input_ids": SPOKEN.where(SPOKEN != 5, 33)},
        ArgumentError,
        "input_ids has the end of an audio segment among its last 3 ids",
    ),
]


@pytest.mark.parametrize(("name", "call", "error", "message"), INVALID)
def test_errors(name: str, call: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        ours(CASES[name].model(), CASES[name].call | call)


def plan_of(case: Case, model: Any, call: dict[str, Any], **settings: Any) -> ColumnDecodingPlan:
    """The plan of a call, captured inside transformers' `generate`."""

    def capture(
        model: Any, input_ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **i: Any
    ) -> Any:
        asked = (input_ids, logits_processor, stopping_criteria, generation_config, i)
        return case.module.plan(model, case.module.read(GenerateRequest(model, *asked, parse("plain"), 0, None, None)))

    found: ColumnDecodingPlan = GenerationMixin.generate(model, **copied(call), **settings, custom_generate=capture)
    return found


@pytest.mark.releases
@pytest.mark.parametrize("name", CASES)
def test_windows_match_single_columns(name: str) -> None:
    case = CASES[name]
    model = case.model(3)
    plan = plan_of(case, model, case.call, do_sample=False)
    with torch.no_grad():
        # One row of each prompt; their lengths differ.
        found = check_windows(
            lambda rows, window: plan.target(window, plan.guided), plan.layout.length, 4, 2, cell=plan.layout.cell
        )
    assert found < 1e-4


class Oracle:
    """Drafts the columns of greedy decoding, some of them with a wrong code."""

    calls = 0

    def __init__(self, columns: Tensor, wrong: NDArray[np.bool_], vocab_size: int) -> None:
        self._columns, self._wrong, self._vocab_size = columns, wrong, vocab_size

    def propose(self, state: BatchState, count: int, draws: WindowRNG) -> Draft:
        slots = state.positions(count).clip(max=len(self._columns) - 1)
        tokens = self._columns[slots].clone()
        wrong = torch.from_numpy(self._wrong[slots])
        tokens[..., -1] = torch.where(wrong, (tokens[..., -1] + 1) % self._vocab_size, tokens[..., -1])
        q = torch.nn.functional.one_hot(tokens.clamp(max=self._vocab_size - 1), self._vocab_size).float()
        return Draft(tokens, q)

    def observe(self, verdict: Verdict, state: BatchState, draws: WindowRNG) -> None: ...


@pytest.mark.parametrize("name", ["musicgen guided", "melody"])
@pytest.mark.parametrize("window", [2, 4, 6])
def test_target_calls_of_a_draft_of_known_quality(name: str, window: int) -> None:
    """Every third draft column is wrong: a call emits the accepted columns before it and the resampled one."""
    case = CASES[name]
    model = case.model(0)
    call = {k: v[:1] if isinstance(v, Tensor) else v for k, v in case.call.items()} | {"max_new_tokens": 40}
    plan = plan_of(case, model, call, do_sample=False)
    made = ours(model, call, recipe="plain").columns
    length = plan.layout.length
    assert plan.layout.forced is not None
    free = plan.layout.forced.tokens[0, :, -1] < 0
    wrong = free & (np.arange(length) % 3 == 0)
    position, calls = 1, 1
    while position < length:
        accepted = 0
        while accepted < window - 1 and position + accepted < length and not wrong[position + accepted]:
            accepted += 1
        position, calls = position + accepted + 1, calls + 1
    rows, meter = BatchState([0], plan.layout, window, model.device), Meter(model.device, 1)
    sampler = ColumnSampler([plan.sampling], plan.layout.forced, model.device)
    oracle = Oracle(made[0], wrong, plan.vocab_size)
    with torch.inference_mode():
        target = plan.target(window, plan.guided)
        decode_to_end(RunningBatch(target, oracle, ratio, sampler, rows, FixedWindow(window), meter))
    assert torch.equal(rows.result(), made) and meter.target_calls == calls


# --- Sampling -------------------------------------------------------------------------------------------------------


def own_probs(
    model: Any, call: dict[str, Any], columns: Tensor, free: Tensor, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Tensor:
    """Probabilities float64 [S, N, K] of the cells of S sequences in the model's own `generate`.

    Its sampling is replaced: each of S rows is forced along its sequence, and the probabilities are recorded. Cells
    that are not free have probability 1.
    """
    count, length, codebooks = columns.shape
    found = torch.ones(count, length, codebooks, dtype=torch.float64)
    step = iter(range(length))

    def forced(probabilities: Tensor, num_samples: int, **more: Any) -> Tensor:
        n = next(step)
        wanted = columns[:, n].clamp(max=probabilities.shape[-1] - 1)
        p = probabilities.unflatten(0, (count, codebooks)).double()
        found[:, n] = torch.where(free[:, n], p.gather(-1, wanted[..., None])[..., 0], 1.0)
        return wanted.reshape(-1, 1)

    monkeypatch.setattr(torch, "multinomial", forced)
    model.generate(**copied(call), **settings, do_sample=True)
    monkeypatch.undo()
    return found


def sampled(case: Case, models: list[Any], call: dict[str, Any], joint: Tensor, columns: Tensor, recipe: str) -> None:
    """Tests a recipe's columns, one sample per row, against the joint distribution; the second model is the draft."""
    rows = len(call["input_ids"])
    plan, draft = (plan_of(case, model, call, do_sample=True) for model in models)
    out = plan.decode(models[0], parse(recipe), range(rows), draft, None)
    base = int(max(columns.max(), out.tokens.max())) + 1
    place = base ** torch.arange(columns[0].numel())
    numbers, order = (columns.flatten(1) * place).sum(1).sort()
    samples = (out.tokens.flatten(1) * place).sum(1)
    index = torch.searchsorted(numbers, samples).clamp(max=len(numbers) - 1)
    assert torch.equal(numbers[index], samples), "a sequence of probability 0"
    counts = torch.zeros(len(numbers), dtype=torch.float64).index_add_(0, order[index], torch.ones(rows).double())
    floor, spread = noise_floor(joint, rows)
    tv = float((counts / rows - joint).abs().sum() / 2)
    print(f"{type(models[0]).__name__} {recipe}: TV {tv:.4f}, floor {floor:.4f}, limit {floor + 5 * spread:.4f}")
    assert tv < floor + 5 * spread, recipe
    assert out.stats.tokens_per_call > 1


def whole(joint: Tensor) -> Tensor:
    assert joint.sum().item() == pytest.approx(1, abs=1e-4)
    assert joint.max() < 0.5  # otherwise a wrong distribution would hardly be detected
    return joint / joint.sum()


SAMPLES = 4000


@pytest.mark.parametrize(
    ("melody", "recipe"), [(False, "draft:window=3"), (True, "scd:window=4"), (False, "layer-skip:layers=1,window=3")]
)
def test_musicgen_samples_follow_the_target_distribution(
    melody: bool, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three frames of two codebooks with two codes: 64 sequences.

    With 4000 samples the noise floor is near 0.05, the limit 0.02 above it. The draft model is not guided.
    """
    kind: dict[str, Any] = {"codebooks": 2, "codes": 2, "melody": melody, "spread": 0.25}
    model, draft = tiny.musicgen(2, **kind), tiny.musicgen(3, **kind)
    every = torch.cartesian_prod(*[torch.arange(2)] * 6).view(-1, 3, 2)
    columns = torch.full((64, 4, 2), 2)
    columns[:, :3, 0], columns[:, 1:, 1] = every[..., 0], every[..., 1]

    def call(batch_size: int) -> dict[str, Any]:
        ids = TEXT[1:].expand(batch_size, -1)
        settings = {"guidance_scale": 2.0, "temperature": 0.9, "top_k": 0, "top_p": 0.95}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 4, **settings}

    joint = whole(own_probs(model, call(64), columns, columns < 2, monkeypatch).prod(-1).prod(-1))
    sampled(CASES["musicgen"], [model, draft], call(SAMPLES), joint, columns, recipe)


def test_dia_samples_follow_the_target_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two codebooks with two codes, delays 0 and 1; a stream ends where the end is likeliest, at column 3 at last."""
    end, pad, begin, delays, length = 2, 3, 4, (0, 1), 5
    model, draft = (tiny.dia(seed, 2, delays, spread=0.2) for seed in (76, 77))
    streams: list[list[tuple[int, int]]] = []
    for stop in range(length - 1):
        for codes in (
            torch.cartesian_prod(*[torch.arange(2)] * (2 * stop)).view(-1, 2, stop).tolist() if stop else [[[], []]]
        ):
            first = [*codes[0], end, *[pad] * (length - stop - 1)]
            second = [begin, *codes[1], end, *[pad] * (length - stop - 2)]
            streams.append(list(zip(first, second, strict=True)))
    columns = torch.tensor(streams)

    def call(batch_size: int) -> dict[str, Any]:
        ids = TEXT[1:].expand(batch_size, -1)
        prompt = {
            name: value[:1].expand(batch_size, *value.shape[1:]).clone() for name, value in voice(2, delays).items()
        }
        settings = {"guidance_scale": 2.0, "temperature": 1.3, "top_k": 5, "top_p": 0.95}
        return {
            "input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": length, **settings, **prompt,
        }  # fmt: skip

    # Codes after the end of their codebook are overwritten; the first cell of the delayed codebook is given.
    begun = columns != begin
    before = torch.cat([torch.zeros_like(begun[:, :1]), (columns == end).cumsum(1).bool()[:, :-1]], dim=1)
    joint = whole(own_probs(model, call(len(columns)), columns, begun & ~before, monkeypatch).prod(-1).prod(-1))
    sampled(CASES["dia"], [model, draft], call(SAMPLES), joint, columns, "draft:window=3")


@pytest.mark.parametrize("repetition", [False, True])
def test_higgs_samples_follow_the_target_distribution(repetition: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two codebooks with two codes, which may begin and end anywhere: 4 ids in 5 free cells.

    Repetition-aware sampling is added to the recorded distributions by hand: a code that occurs in its codebook in the
    last two columns is sampled again.
    """
    begin, end, length = 2, 3, 4
    model, draft = (tiny.higgs(seed, 2, 2, spread=0.2) for seed in (42, 43))
    columns = torch.full((4**5, length, 2), begin)
    every = torch.cartesian_prod(*[torch.arange(4)] * 5)
    columns[:, 1:, 0], columns[:, 2:, 1] = every[:, :3], every[:, 3:]
    raw: list[Tensor] = []
    model.audio_lm_head.register_forward_hook(lambda module, inputs, out: raw.append(out[:, -1].double()))

    def call(batch_size: int) -> dict[str, Any]:
        ids = SPOKEN[1:].expand(batch_size, -1)
        settings = {"temperature": 0.8, "top_k": 0, "top_p": 0.9}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": length, **settings}

    free = columns >= 0
    free[:, 0], free[:, 1, 1] = False, False
    if repetition:
        # Forced along each sequence; the recorded distributions are those of the first sample.
        probs: list[Tensor] = []
        steps = iter(range(length))

        def forced(probabilities: Tensor, num_samples: int, **more: Any) -> Tensor:
            probs.append(probabilities.unflatten(0, (-1, 2)).double())
            return columns[:, next(steps)].reshape(-1, 1)

        monkeypatch.setattr(torch, "multinomial", forced)
        model.generate(**call(len(columns)), do_sample=True)
        monkeypatch.undo()
        found = torch.ones(columns.shape, dtype=torch.float64)
        for n in range(1, length):
            for k in range(2):
                p = probs[n][:, k].clone()
                again = raw[n].unflatten(-1, (2, 4))[:, k].softmax(-1)
                counts = torch.stack(
                    [((columns[:, max(n - 2, 0) : n, k] == x) & (x < begin)).sum(1) for x in range(4)], 1
                )
                repetitive = counts >= 1
                mixed = torch.where(repetitive, 0.0, p) + (p * repetitive).sum(1, keepdim=True) * again
                found[:, n, k] = mixed.gather(1, columns[:, n, k, None])[:, 0]
        model.generation_config.ras_win_len, model.generation_config.ras_win_max_num_repeat = 2, 1
    else:
        found = own_probs(model, call(len(columns)), columns, free, monkeypatch)
    ended = (columns == end).all(-1).cumsum(1)
    over = torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], dim=1).bool()[..., None]
    found = torch.where(over, (columns == end).double(), found)
    joint = found.prod(-1).prod(-1)
    model.audio_lm_head._forward_hooks.clear()
    joint = whole(joint)
    sampled(
        CASES["higgs"],
        [model, draft],
        call(SAMPLES),
        joint,
        columns,
        "draft:window=3" if repetition else "scd:window=4",
    )

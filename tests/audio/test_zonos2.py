"""ZONOS2 from its published folder, against prompts, columns, logits, router states and probabilities of its own."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_zonos2
import torch
from tiny_chatterbox import MeanLevels
from tiny_zonos2 import BOOKS, CODES, EXPERTS, PROMPTS, VOICE, Codec, config, zonos2
from torch import Tensor
from two_samples import chi_square

import mmspec
from mmspec.audio.models.zonos2.config import read_config
from mmspec.audio.models.zonos2.decoding import Repetition, Zonos2Request, plan, row_end
from mmspec.audio.models.zonos2.model import Experts, Router, Zonos2, renamed
from mmspec.errors import ArgumentError, MMSpecError, ModelError, PromptError
from mmspec.recipes import parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.numbers import Numbers
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.probs import dense
from mmspec.sampling.sampler import ColumnSampler

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "zonos2.json").read_text())
LENGTH = 40
RECIPES = ["plain", "scd:window=4", "sjd:window=3", "recycle:window=3", "layer-skip:layers=2", "draft:window=3"]


def load(folder: Path, **options: Any) -> Any:
    return mmspec.load(str(folder), config={"codec": Codec(), **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zonos2(tmp_path_factory.mktemp("zonos2"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Zonos2:
    found: Zonos2 = load(folder).adapter.model
    return found


def request(numbers: list[int], sampling: SamplingParams, length: int = LENGTH, **repetition: Any) -> Zonos2Request:
    """Recorded prompts as a batch, which all have a voice or none."""
    prompts = [torch.tensor(GOLDEN["prompts"][number]) for number in numbers]
    longest = max(map(len, prompts))
    columns = torch.stack([torch.nn.functional.pad(each, (0, 0, longest - len(each), 0)) for each in prompts])
    mask = torch.arange(longest) >= longest - torch.tensor([len(each) for each in prompts])[:, None]
    voice = tiny_zonos2.voice() if PROMPTS[numbers[0]][2] else None
    return Zonos2Request(columns, mask, voice, length, sampling, Repetition(**repetition))


def test_the_original_s_defaults(folder: Path) -> None:
    adapter, own = load(folder).adapter, GOLDEN["defaults"]
    names = ("temperature", "topk", "min_p", "repetition_window", "repetition_penalty", "repetition_codebooks")
    ours = adapter.sampling
    options = [getattr(adapter.options, name) for name in names[3:]]
    assert [ours.temperature, ours.top_k, ours.min_p, *options] == [own[name] for name in names]
    assert own["top_p"] == 0 and ours.top_p == 1, "both are off"
    assert adapter.options.frames + 8 == own["max_tokens"], "columns of 9 codebooks"


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_prompts_and_frames_are_the_original_s(folder: Path, number: int) -> None:
    text, options, voiced = PROMPTS[number]
    adapter = load(folder, **options, **({"voice": tiny_zonos2.voice()} if voiced else {})).adapter
    assert adapter.prompt(text).tolist() == GOLDEN["prompts"][number]
    own = GOLDEN["greedy"][number]
    assert own["end"] >= 0 and adapter.codes(torch.tensor(own["columns"])).T.tolist() == own["frames"]


@pytest.mark.releases
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("numbers", [[0, 1], [2, 3]])
def test_greedy_columns_are_the_original_s(model: Zonos2, numbers: list[int], recipe: str) -> None:
    """Of two prompts in a batch, with a voice or without, up to the end, which any codebook begins."""
    made = plan(model, request(numbers, SamplingParams(0.0)))
    draft = made if recipe.startswith("draft") else None
    tokens = made.decode(model, parse(recipe), [1, 2], draft, None).tokens
    for row, number in zip(tokens.tolist(), numbers, strict=True):
        own = GOLDEN["greedy"][number]["columns"]
        end = len(own) - 2  # the original goes on for two columns more
        assert row[: end - 1] == own[: end - 1] and [column[0] for column in row[end:]] == [row_end(model.config)] * (
            LENGTH - end
        ), number


@pytest.mark.parametrize("number", range(len(PROMPTS)))
def test_logits_and_states_of_routers_are_the_original_s(model: Zonos2, number: int) -> None:
    states = list[Tensor]()
    hooks = [
        module.register_forward_hook(lambda module, inputs, out: states.append(out[2][-1]))
        for module in model.modules()
        if isinstance(module, Router)
    ]
    own = GOLDEN["greedy"][number]
    path = torch.tensor(own["columns"][: len(own["logits"]) - 1])
    with torch.no_grad():
        target = plan(model, request([number], SamplingParams(), penalty=1)).target(16, False)
        first = target.prefill().cond
        for hook in hooks:
            hook.remove()
        found = torch.cat([first, target.forward(path[None], np.array([0])).cond], dim=1)[0, ..., : CODES + 2]
    torch.testing.assert_close(torch.stack(states), torch.tensor(own["states"]), atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(found[..., :: GOLDEN["every"]], torch.tensor(own["logits"]), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("case", range(len(GOLDEN["sampled"])))
def test_probabilities_are_the_original_s(model: Zonos2, case: int) -> None:
    """Along sampled columns, at its defaults and with top-p; another penalty, window or min-p must be told apart."""
    own = GOLDEN["sampled"][case]
    given = {**GOLDEN["defaults"], **own["settings"]}
    sampling = SamplingParams(given["temperature"], given["topk"], given["top_p"] or 1.0, min_p=given["min_p"])
    theirs = torch.zeros(len(own["probs"]), BOOKS, CODES + 3)
    for column, cells in enumerate(own["probs"]):
        for book, cell in enumerate(cells):
            for code, p in cell.items():
                theirs[column, book, int(code)] = p
    path = torch.tensor(own["columns"])[None, :-1]

    def distance(sampling: SamplingParams, **repetition: Any) -> float:
        target = plan(model, request([0], sampling, **repetition)).target(16, False)
        with torch.no_grad():
            raw = torch.cat([target.prefill().cond, target.forward(path, np.array([0])).cond], dim=1)
        probs = dense(ColumnSampler([sampling], None, raw.device)(Logits(raw, None), Numbers(np.arange(8)[None])))
        return float((probs[0] - theirs).abs().sum(-1).max())

    assert distance(sampling) < 1e-3
    assert min(distance(sampling, penalty=1), distance(sampling, window=1), distance(sampling, codebooks=1)) > 0.01
    assert distance(replace(sampling, min_p=sampling.min_p / 2)) > 0.01


def test_samples_of_windows_follow_plain_decoding(model: Zonos2) -> None:
    """With min-p and top-p, in cells whose distribution the columns before change; a twin must be told apart."""

    def sampled(recipe: str, first: int, temperature: float = 0.3) -> Tensor:
        made = plan(model, request([0] * 500, SamplingParams(temperature, top_p=0.8, min_p=0.1), 3))
        tokens = made.decode(model, parse(recipe), list(range(first, first + 500)), None, None).tokens
        return torch.stack([tokens[:, 1, 1], tokens[:, 2, 0]])

    def shown(tokens: Tensor) -> Tensor:
        """Which of the two cells have the code that most rows of plain decoding have."""
        return 2 * (tokens[0] == usual[0]).long() + (tokens[1] == usual[1])

    plain = sampled("plain", 0)
    usual = plain.mode(-1).values
    found, limit = chi_square(shown(plain), shown(sampled("scd:window=2", 1000)))
    assert found < limit
    found, limit = chi_square(shown(plain), shown(sampled("scd:window=2", 1000, 1.0)))
    assert found > 1.5 * limit, "a weak test"


def test_experts_are_the_same_by_either_way() -> None:
    """Those of few tokens, whose weights are gathered, and of many."""
    torch.manual_seed(0)
    made = read_config(config(), "tiny")
    experts = Experts(made)
    for each in experts.parameters():
        torch.nn.init.normal_(each)
    x, chosen = torch.randn(6, made.dim), torch.randn(6, EXPERTS).topk(2).indices
    weights = torch.rand(6, 2)
    together = experts(x, weights, chosen)
    alone = torch.cat([experts(*(part[n : n + 1] for part in (x, weights, chosen))) for n in range(6)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_published_layouts(tmp_path: Path) -> None:
    """Weights flat or under "model", in bfloat16, with the experts of either form merged; biases stay float32."""
    forms = tiny_zonos2.state()
    names = renamed(dict(forms))
    one = "layers.1.feed_forward.experts."
    assert torch.equal(names[one + "gate_up_proj"][:, : tiny_zonos2.INNER], forms[one + "w1.weight"])
    made = zonos2(tmp_path)
    torch.save({name: value.bfloat16() for name, value in names.items()}, made / "model.pth")
    (made / "params.json").write_text(json.dumps(config()))
    model = mmspec.load(str(made), config={"codec": Codec()}, dtype="auto").adapter.model
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {b.dtype for name, b in model.named_buffers() if "biases" in name} == {torch.float32}


def test_speech_and_its_limits(folder: Path) -> None:
    pipe = load(folder, frames=12)
    out = pipe(["one two", "three"], seed=3)
    frames = pipe.adapter.codes(out[0].tokens[0])
    assert frames.shape[0] == BOOKS and out[0].audio.shape == (1, 4 * frames.shape[1]) and int(frames.max()) < CODES
    ended = pipe("one two three", temperature=0, seed=0, recipe="plain")
    assert pipe.adapter.codes(ended.tokens[0]).shape == (BOOKS, 6) and not ended.truncated
    cut = load(folder, frames=4)("one two three", temperature=0, seed=0)
    assert cut.truncated and pipe.adapter.codes(cut.tokens[0]).shape == (BOOKS, 4)
    assert len(pipe.read(". ".join(["one two three four"] * 12) + ".", None).parts) > 1
    with pytest.raises(PromptError, match="is too long; of the model's 1024 positions, 1002 are for"):
        load(folder, frames=1000)("one two three")


def test_voices(folder: Path, tmp_path: Path) -> None:
    voice = tiny_zonos2.voice()
    np.save(tmp_path / "voice.npy", voice.numpy().astype(np.float64)[None])
    found = [load(folder, voice=each).adapter for each in (voice, voice.numpy(), str(tmp_path / "voice.npy"))]
    assert all(torch.equal(each._voice, voice) for each in found)
    tokens = [load(folder, frames=4, **each)("one", seed=0, temperature=0).tokens[0] for each in ({}, {"voice": voice})]
    assert not torch.equal(*tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"voice": torch.zeros(5)}, f"voice=.* is not allowed; it must be an embedding of {VOICE} floats"),
        ({"voice": torch.full((VOICE,), torch.nan)}, "voice has a value that is not finite"),
        ({"voice": np.full(VOICE, 1e300)}, "voice has a value that is not finite"),
        ({"voice": "missing.npy"}, "voice='missing.npy' cannot be read"),
        ({"clean_speaker_background": True}, "clean_speaker_background=True is not possible; it needs a voice"),
        ({"accurate_mode": False}, "accurate_mode=False is not possible; it needs a voice"),
        ({"speaking_rate_bucket": 4}, "speaking_rate_bucket=4 is not allowed; the model has 4 rates"),
        ({"quality_buckets": {"loud": 1}}, "quality_buckets has 'loud', .* it has noise, trailing_silence_s"),
        ({"quality_buckets": {"noise": 2}}, "quality_buckets has noise=2; it must be an integer, 0 to 1"),
        ({"language": "de"}, "config has 'language'"),
        ({"codec": None}, "ZONOS2 comes without a codec; pass a DAC's folder or Hub id as tokenizer="),
    ],
)
def test_wrong_options(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as found:
        load(folder, **options)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"speaker_enabled": False}, {"voice": torch.zeros(VOICE)}, "voice is not possible: this model has no voices"),
        (
            {"accurate_mode_token_enabled": False, "text_vocab": 460},
            {"voice": torch.zeros(VOICE), "accurate_mode": False},
            "accurate_mode=False is not possible; it needs a model with such a mark",
        ),
        ({"text_vocab": 450}, {}, "has text_vocab=450, .* which contradict each other"),
        ({"text_vocab": None}, {}, "has text_vocab=None in its params.json"),
        ({"moe_balancing_strategy": "new"}, {}, "moe_balancing_strategy='new', which are not possible"),
        ({"moe_router_topk": 5}, {}, "experts, which is not possible"),
        ({"special_topk_layers": {"1": True}}, {}, "special_topk_layers of .* has 1=True in its params.json"),
        ({"special_topk_layers": {"2": 0}}, {}, "special_topk_layers of .* has 2=0 in its params.json"),
        ({"loss_softcap": "x"}, {}, "has loss_softcap='x' in its params.json"),
        ({"max_seqlen": 0}, {}, "has max_seqlen=0 in its params.json"),
        ({"n_layers": 400}, {}, "config has n_layers=400, which is not a number of layers"),
        ({"n_codebooks": 2}, {}, "does not fit a Zonos2; unknown: multi_embedder.embedders.3.weight"),
    ],
)
def test_models_that_differ(tmp_path: Path, changed: dict[str, Any], options: Any, message: str) -> None:
    made = zonos2(tmp_path / "model")
    (made / "params.json").write_text(json.dumps({**config(), **changed}))
    state = tiny_zonos2.state()
    if not changed.get("speaker_enabled", True):
        state = {name: value for name, value in state.items() if not name.startswith("speaker_")}
    if changed.get("text_vocab") == 460:
        state["multi_embedder.embedders.3.weight"] = state["multi_embedder.embedders.3.weight"][:-1].clone()
    torch.save(state, made / "model.pth")
    with pytest.raises(MMSpecError, match=message) as found:
        load(made, **options)
    assert not re.search("\n", str(found.value))


def test_other_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="processor='x' is not possible; ZONOS2 reads bytes"):
        mmspec.load(str(folder), processor="x", config={"codec": Codec()})
    with pytest.raises(ModelError, match="the codec has 2 codebooks of 1024, the model 3 of 1024"):
        load(folder, codec=MeanLevels(2, CODES))
    (tmp_path / "params.json").write_text(json.dumps(config()))
    with pytest.raises(ModelError, match="model.pth"):
        load(tmp_path)
    other = zonos2(tmp_path / "draft")
    (other / "params.json").write_text(json.dumps({**config(), "speaking_rate_num_buckets": 3}))
    with pytest.raises(ModelError, match="draft_model has rates=3, the model 4"):
        load(folder, draft_model=str(other))


def test_a_config_beside_the_params(tmp_path: Path) -> None:
    """A `config.json` of no class, and a `params.json` without a type, do not hide the model."""
    made = zonos2(tmp_path)
    (made / "config.json").write_text(json.dumps({"model_type": "zonos2"}))
    (made / "params.json").write_text(json.dumps({**config(), "model_type": None}))
    assert isinstance(load(made).adapter.model, Zonos2)


def test_a_window_longer_than_a_row_takes_no_more_memory(folder: Path) -> None:
    pipes = [load(folder, frames=20, repetition_window=window) for window in (22, 2**20)]
    targets = [pipe.adapter.prepare_rows(["one"], parse("plain"), [SamplingParams()]).target for pipe in pipes]
    assert targets[0]._repetition == targets[1]._repetition

"""`mmspec.accelerate` on every kind of model of transformers: the calls and results of the untouched object."""

from __future__ import annotations

import copy
import inspect
import io
import logging
import pickle
import re
from collections.abc import Callable
from typing import Any, cast

import pytest
import tiny_models
import tiny_music
import tiny_speech
import torch
from accelerated_cases import CASES, FLAT, flat
from recording_streamer import Recorder
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    TextGenerationPipeline,
    TextToAudioPipeline,
)

import mmspec
from mmspec.drop_in.kinds import replaceable
from mmspec.errors import ArgumentError, ModelError, UnknownNameError
from mmspec.hf.adapters import GENERATE_ADAPTERS, adapted_class

pytestmark = [
    pytest.mark.releases,
    pytest.mark.filterwarnings("ignore:Passing `repetition_penalty` with `inputs_embeds`"),
]


def call(model: Any, seed: int = 0, **more: Any) -> Any:
    torch.manual_seed(seed)
    return model.generate(**FLAT | more)


def notes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("name", CASES)
def test_greedy_equals_the_untouched_object(name: str, caplog: pytest.LogCaptureFixture) -> None:
    case = CASES[name]
    model = case.model()
    own = flat(model.generate(**case.arguments(model)))
    for recipe in ("scd:window=4", "recycle:window=3"):
        assert mmspec.accelerate(model, recipe) is model
        ours = flat(model.generate(**case.arguments(model)))
        stats = mmspec.last_stats(model)
        assert stats is not None and stats.tokens > stats.target_calls, caplog.text
        assert len(ours) == len(own)
        for one, other in zip(ours, own, strict=True):
            if one.is_floating_point():
                torch.testing.assert_close(one, other)
            else:
                assert torch.equal(one, other)
    mmspec.accelerate(model, enabled=False)
    again = flat(model.generate(**case.arguments(model)))
    assert all(torch.equal(one, other) for one, other in zip(again, own, strict=True))


def test_every_class_with_an_adapter_has_a_case() -> None:
    """XTTS has a file of its own; X-Omni is a class of mmspec, which a pipeline of mmspec calls."""
    owners = (owner for case in CASES.values() for owner, _ in replaceable(case.model()))
    found = {adapted_class(owner) for owner in owners}
    assert {*GENERATE_ADAPTERS} - found == {"GPT2InferenceModel", "XOmniForCausalLM"}


@pytest.mark.parametrize("name", [name for name in CASES if name != "csm audio"])
def test_a_seed_of_torch_gives_the_same_samples_twice(name: str) -> None:
    case = CASES[name]
    model = mmspec.accelerate(case.model(), "scd:window=4")

    def sample(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return flat(model.generate(**case.arguments(model, **case.sampled)))

    first, again, other = sample(0), sample(0), sample(1)
    assert mmspec.last_stats(model) is not None
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    "name", ["flat", "janus", "emu3", "musicgen", "melody", "dia", "higgs", "csm audio", "moshi", "bark"]
)
def test_a_dict_holds_what_that_of_the_untouched_object_holds(name: str) -> None:
    case = CASES[name]
    model = case.model()
    own = model.generate(**case.arguments(model, return_dict_in_generate=True))
    mmspec.accelerate(model, "scd:window=4")
    ours = model.generate(**case.arguments(model, return_dict_in_generate=True))
    assert mmspec.last_stats(model) is not None
    for field in ("sequences", "audio_sequences", "audio_codes", "audio"):
        if isinstance(own, dict) and own.get(field) is not None:
            for one, other in zip(flat(ours[field]), flat(own[field]), strict=True):
                torch.testing.assert_close(one, other)


class Counting(LogitsProcessor):
    """Keeps state: raises id 5 at every second call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        scores = scores.clone()
        scores[:, 5] += 9.0 * (self.calls % 2)
        return scores


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (lambda: {"num_beams": 2}, "num_beams=2 is not supported"),
        (lambda: {"output_scores": True, "return_dict_in_generate": True}, "output_scores=True is not supported"),
        (lambda: {"logits_processor": [Counting()]}, "logits_processor Counting treats a row by its place"),
        (lambda: {"prompt_lookup_num_tokens": 3, "input_ids": FLAT["input_ids"][1:]}, "prompt_lookup_num_tokens=3"),
        (lambda: {"use_cache": False}, "use_cache=False is not supported"),
        (lambda: {"generation_config": GenerationConfig(num_beams=2, pad_token_id=0)}, "num_beams=2 is not supported"),
        (lambda: {"custom_generate": own_loop}, "custom_generate is not possible with drafts: it names another loop"),
        (lambda: {"stop_strings": ["c"], "tokenizer": letters()}, "stop_strings is not possible"),
        (lambda: {"prefix_allowed_tokens_fn": lambda row, ids: [4, 6] if ids[-1] == 5 else [4, 5]}, "prefix_allowed"),
        (
            lambda: {
                "assistant_model": tiny_speech.flat(1), "num_assistant_tokens": 3, "input_ids": FLAT["input_ids"][1:],
            },
            "num_assistant_tokens=3 is not supported",
        ),
    ],
)  # fmt: skip
def test_what_speculation_cannot_do_runs_as_before_with_a_note(
    more: Callable[[], dict[str, Any]], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_speech.flat()
    own = call(model, do_sample=True, **more()), call(model, 1, **more())
    mmspec.accelerate(model, "scd")
    caplog.clear()
    for seed, expected in enumerate(own):
        found = call(model, seed, **{"do_sample": True} if seed == 0 else {}, **more())
        assert type(found) is type(expected)
        assert all(torch.equal(a, b) for a, b in zip(flat(found), flat(expected), strict=True))
        assert mmspec.last_stats(model) is None
    (note,) = notes(caplog)  # once
    assert note.startswith("LlamaForCausalLM.generate runs without mmspec: ") and reason in note


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer whose ids are letters."""
    made = Tokenizer(BPE({letter: i for i, letter in enumerate("abcdefghijklmnopqrstu")}, []))
    made.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def own_loop(model: Any, input_ids: Tensor, *others: Any, **more: Any) -> Tensor:
    return input_ids


class EndAtNine(StoppingCriteria):
    """Ends a row after nine ids."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 9)


class Fresh(LogitsProcessor):
    """Excludes the last two ids."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.scatter(1, input_ids[:, -2:], -torch.inf)


@pytest.mark.parametrize(
    "more",
    [
        {"return_dict_in_generate": True},
        {"stopping_criteria": [EndAtNine()]},
        {"logits_processor": [Fresh()]},
        {"repetition_penalty": 1.4, "eos_token_id": 5},
        {"generation_config": GenerationConfig(max_new_tokens=5, pad_token_id=0)},
        {"assistant_model": tiny_speech.flat(1), "input_ids": torch.tensor([[1, 2]])},
        {"tokenizer": tiny_speech.tokenizer(), "labels": torch.tensor([[1]])},
        {"num_return_sequences": 2, "do_sample": True, "top_k": 1},
    ],
)
def test_arguments_and_results_are_those_of_the_class(more: dict[str, Any]) -> None:
    model = tiny_speech.flat()
    own = call(model, **{**more, "labels": None} if "labels" in more else more)
    ours = call(mmspec.accelerate(model, "scd"), **more)
    assert isinstance(ours, type(own))
    assert torch.equal(ours["sequences"], own["sequences"]) if isinstance(own, dict) else torch.equal(ours, own)
    assert mmspec.last_stats(model) is not None
    assert torch.equal(model.generate(FLAT["input_ids"], GenerationConfig(max_new_tokens=4, pad_token_id=0)),
                       call(model, max_new_tokens=4))  # by position  # fmt: skip


@pytest.mark.parametrize(
    ("make", "more", "decoded"),
    [
        (tiny_speech.flat, {}, True),
        (tiny_speech.flat, {"output_logits": True, "return_dict_in_generate": True}, False),
        (lambda: tiny_speech.csm(codes=8), {"do_sample": False, "depth_decoder_do_sample": False}, False),
    ],
)
def test_a_streamer_is_given_the_same_and_ended_once(make: Any, more: dict[str, Any], decoded: bool) -> None:
    model, own, ours = make(), Recorder(), Recorder()
    arguments: dict[str, Any] = {"max_new_tokens": 5, "pad_token_id": 0, **more}
    model.generate(FLAT["input_ids"][1:] % 8, streamer=own, **arguments)
    mmspec.accelerate(model).generate(FLAT["input_ids"][1:] % 8, streamer=ours, **arguments)
    assert (ours.puts, ours.ends) == (own.puts, 1)
    assert (mmspec.last_stats(model) is not None) == decoded


def test_a_streamer_ends_after_an_error() -> None:
    class Broken(Recorder):
        def put(self, value: Tensor) -> None:
            super().put(value)
            if len(self.puts) == 3:
                raise BrokenPipeError("the reader is gone")

    streamer = Broken()
    with pytest.raises(BrokenPipeError):
        mmspec.accelerate(tiny_speech.flat()).generate(torch.tensor([[1, 2]]), max_new_tokens=6, streamer=streamer)
    assert streamer.ends == 1


def test_it_is_undone_exactly() -> None:
    model = tiny_speech.flat()
    before = dict(vars(model))
    own = call(model, do_sample=True)
    assert mmspec.accelerate(mmspec.accelerate(model, "scd"), "plain") is model  # twice
    call(model)
    assert (stats := mmspec.last_stats(model)) is not None and stats.tokens_per_call == 1.0
    assert mmspec.accelerate(model, enabled=False) is model
    assert vars(model).keys() == before.keys() and torch.equal(call(model, do_sample=True), own)
    mmspec.accelerate(model, enabled=False)  # no matter

    def theirs(*arguments: Any, **named: Any) -> str:
        return "another package's"

    model.generate = theirs
    mmspec.accelerate(mmspec.accelerate(model), enabled=False)
    assert model.generate is theirs


def test_within_a_with_statement() -> None:
    model = tiny_speech.flat()
    with pytest.raises(ZeroDivisionError), mmspec.accelerated(model, "scd", window=3) as same:
        assert same is model
        call(model)
        assert mmspec.last_stats(model) is not None
        raise ZeroDivisionError
    assert "generate" not in vars(model)
    outer = vars(mmspec.accelerate(model, "plain"))["generate"]
    with mmspec.accelerated(model, "scd"):
        assert vars(model)["generate"] is not outer
    assert vars(model)["generate"] is outer


def test_copies_and_pickles_are_accelerated_too() -> None:
    model = mmspec.accelerate(tiny_speech.flat(), "scd", window=3)
    own = call(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    for other in (
        copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(saved, weights_only=False),
        model.to(torch.float64).to(torch.float32),
    ):  # fmt: skip
        assert other.generate.owner is other and torch.equal(call(other), own)
        assert mmspec.last_stats(other) is not None
        mmspec.accelerate(other, enabled=False)
        assert "generate" not in vars(other)


def test_the_method_shows_the_signature_of_the_class() -> None:
    model = tiny_speech.flat()
    own = inspect.signature(model.generate)
    assert inspect.signature(mmspec.accelerate(model).generate) == own
    with pytest.raises(TypeError, match="multiple values"):
        model.generate(FLAT["input_ids"], inputs=FLAT["input_ids"])


def test_a_line_of_the_log_says_tokens_per_call(caplog: pytest.LogCaptureFixture) -> None:
    model = mmspec.accelerate(tiny_speech.flat(), "scd:window=4")
    with caplog.at_level(logging.INFO, logger="mmspec"):
        call(model)
    (line,) = (text for text in caplog.messages if "tokens per call" in text)
    assert re.fullmatch(
        r"LlamaForCausalLM\.generate: 24 tokens in \d+ calls, \d\.\d\d tokens per call, \d+\.\d\d s \(scd:window=4\)",
        line,
    )


def test_pipelines_of_transformers() -> None:
    text = TextGenerationPipeline(model=tiny_speech.flat(), tokenizer=tiny_speech.tokenizer())
    music = TextToAudioPipeline(model=tiny_music.musicgen(), tokenizer=tiny_music.tokenizer())
    ask: dict[str, Any] = {"do_sample": False, "max_new_tokens": 14}
    own = text("one two", **ask), music("a b", forward_params=ask)["audio"]
    assert mmspec.accelerate(text, "scd") is text
    mmspec.accelerate(music.model, "scd")
    assert text("one two", **ask) == own[0]
    assert (music("a b", forward_params=ask)["audio"] == own[1]).all()
    assert mmspec.last_stats(text) is not None and mmspec.last_stats(music) is not None


def test_a_model_that_is_offloaded_between_calls_is_loaded() -> None:
    hooks = pytest.importorskip("accelerate")
    model = tiny_speech.flat()
    loaded: list[Any] = []
    hooks.cpu_offload_with_hook(model, "cpu")
    load = model._hf_hook.pre_forward
    model._hf_hook.pre_forward = lambda *arguments, **named: loaded.append(load(*arguments, **named))
    call(mmspec.accelerate(model))
    assert loaded


def test_janus_answers_in_text_without_mmspec(caplog: pytest.LogCaptureFixture) -> None:
    model = mmspec.accelerate(tiny_models.janus())
    ids = torch.tensor([[1, 10, 11]])
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3)
    assert "generation_mode='text' asks Janus for text" in notes(caplog)[0]


def of_package(package: str, name: str) -> Any:
    """An object of a class of another package."""
    return type(name, (), {"__module__": f"{package}.models"})()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: mmspec.accelerate(None),
            "obj is a NoneType, which mmspec.accelerate does not know; it knows models of",
        ),
        (lambda: mmspec.accelerate("text"), "obj is a str, which mmspec.accelerate does not know; it knows models of"),
        (lambda: mmspec.accelerate(nn.Linear), "obj=<class Linear> is not allowed; it must be an object of the class"),
        (lambda: mmspec.last_stats(nn.Linear), "obj=<class Linear> is not allowed; it must be an object of the class"),
        (lambda: mmspec.accelerate(3), "obj is a int, which mmspec.accelerate does not know; it knows models of"),
        (
            lambda: mmspec.accelerate(of_package("pocket_tts", "TTSModel")),
            "an exact rule accepts no draft; mmspec.load",
        ),
        (lambda: mmspec.accelerate(of_package("qwen_tts", "Qwen3TTSModel")), "does not run beside transformers 5"),
        (lambda: mmspec.accelerate(of_package("chatterbox", "ChatterboxVC")), "it converts a voice"),
        (lambda: mmspec.accelerate(of_package("chatterbox", "ChatterboxTTS")), "a ChatterboxTTS without t3"),
        (lambda: mmspec.accelerate(nn.Linear(2, 2)), "obj is a Linear, which mmspec.accelerate does not know"),
        (
            lambda: mmspec.accelerate(mmspec.load("shapes")),
            "decodes with mmspec already; set its recipe, or that of a call",
        ),
        (lambda: mmspec.accelerate(tiny_speech.flat(), "draft"), "recipe 'draft' drafts with draft_model, which is"),
        (lambda: mmspec.accelerate(tiny_speech.flat(), "eagle"), "recipe 'eagle' drafts with heads, which is missing"),
        (lambda: mmspec.accelerate(tiny_speech.flat(), "table"), "recipe 'table' drafts with table, which is missing"),
        (lambda: mmspec.accelerate(tiny_speech.flat(), "scd", windows=3), "has no knob 'windows'"),
        (lambda: mmspec.accelerate(tiny_speech.flat(), cast(Any, 3)), "recipe=3 is not allowed"),
        (lambda: mmspec.accelerate(tiny_speech.flat(), enabled=cast(Any, "no")), "enabled='no' is not allowed"),
        (lambda: mmspec.accelerate(tiny_speech.flat(), draft_model=3), "draft_model=3 is not allowed"),
        (lambda: mmspec.last_stats(tiny_speech.flat()), "obj is a LlamaForCausalLM that is not accelerated; call"),
        (lambda: call(mmspec.accelerate(tiny_speech.flat()), recipe="scd"), "recipe is not an argument of LlamaForCau"),
    ],
)
def test_what_is_refused(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        wrong()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_other_errors() -> None:
    with pytest.raises(UnknownNameError):
        mmspec.accelerate(tiny_speech.flat(), "scdd")
    model = mmspec.accelerate(tiny_speech.flat(), "draft", draft_model=tiny_speech.flat(vocab_size=30))
    with pytest.raises(ModelError, match="draft_model"):
        call(model)
    model.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(ModelError):
        call(mmspec.accelerate(model), do_sample=True)


def test_what_another_package_has_set_is_not_passed_by(caplog: pytest.LogCaptureFixture) -> None:
    """Greedy tokens are those of the object as it was given."""
    model = tiny_speech.flat()

    def suppressing(*positional: Any, **named: Any) -> Any:
        return type(model).generate(model, *positional, **named, suppress_tokens=[1, 12])

    own = call(model)
    model.generate = suppressing
    theirs = call(model)
    assert not torch.equal(own, theirs), "a weak test"
    mmspec.accelerate(model, "scd")
    assert torch.equal(call(model), theirs) and "another package has set generate" in notes(caplog)[0]
    mmspec.accelerate(model, enabled=False)
    assert model.generate is suppressing


def test_a_class_whose_generate_has_arguments_of_its_own_runs_as_before(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_speech.flat()

    class Own(type(model)):  # type: ignore[misc]
        def generate(self, length: int = 4) -> Tensor:
            return torch.arange(length)

    model.__class__ = Own
    mmspec.accelerate(model, "scd")
    assert model.generate(length=3).tolist() == [0, 1, 2] and "arguments of its own" in notes(caplog)[0]


def test_a_shallow_copy_is_taken_off_alone() -> None:
    model = mmspec.accelerate(tiny_speech.flat(), "scd")
    copied = copy.copy(model)
    mmspec.accelerate(copied, enabled=False)
    assert "generate" not in vars(copied) and "generate" in vars(model)
    call(model)
    assert mmspec.last_stats(model) is not None


def test_a_call_that_names_our_loop_keeps_its_arguments(caplog: pytest.LogCaptureFixture) -> None:
    model = mmspec.accelerate(tiny_speech.flat(), "scd")
    ours = call(model)
    assert torch.equal(call(model, custom_generate=mmspec.generate, recipe="recycle"), ours) and not notes(caplog)


def test_a_draft_model_without_effect_is_refused() -> None:
    model, draft = tiny_speech.flat(), tiny_speech.flat()
    for recipe in ("scd", "plain"):
        with pytest.raises(ArgumentError, match=f"draft_model has no effect: recipe '{recipe}' does not draft with it"):
            mmspec.accelerate(model, recipe, draft_model=draft)
    mmspec.accelerate(model, draft_model=draft, window=4)
    ids = call(model)
    stats = mmspec.last_stats(model)
    assert stats is not None and stats.draft_calls > 0 and torch.equal(ids, call(tiny_speech.flat()))

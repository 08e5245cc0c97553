"""`mmspec.generate`: the arguments it reads, the output, and the errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tiny_models as tiny
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LogitsProcessorList, StaticCache, TemperatureLogitsWarper
from transformers.generation import GenerationMixin

from mmspec.decoding.layout import Layout
from mmspec.decoding.step import Step
from mmspec.errors import ArgumentError, MMSpecError, ModelError, PromptError, UnknownNameError
from mmspec.hf.allowed_tokens import line_width, tabulate
from mmspec.hf.cache_name import RELEASE, cache_input
from mmspec.hf.causal_target import slice_head
from mmspec.hf.generate import GenerateJob, generate, prepare
from mmspec.hf.ngram import count_table
from mmspec.recipes import parse
from mmspec.sampling.params import SamplingParams
from mmspec.vision.hf.decoding.chameleon import ImageConstraint

pytestmark = pytest.mark.releases

IDS = torch.tensor([[0, 0, 1, 31, 32, 3], [1, 31, 33, 34, 30, 3]])
CALL: dict[str, Any] = {"input_ids": IDS, "attention_mask": (IDS != 0).long(), "max_new_tokens": 12}


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.emu3()


def read(model: Any, **call: Any) -> GenerateJob:
    """The job that `mmspec.generate` would decode."""

    def stop(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **inputs: Any,
    ) -> GenerateJob:
        return prepare(model, input_ids, logits_processor, stopping_criteria, generation_config, inputs)

    return GenerationMixin.generate(model, **(CALL | call), custom_generate=stop)


def test_sampling_arguments_are_read_as_in_transformers(model: Any) -> None:
    assert read(model).sampling == SamplingParams(temperature=0)
    assert read(model, do_sample=True).sampling == SamplingParams(top_k=50)  # the default of every model
    settings: dict[str, Any] = {"temperature": 0.7, "top_k": 5, "top_p": 0.8}
    assert read(model, do_sample=True, **settings).sampling == SamplingParams(**settings)
    assert read(model, do_sample=False, guidance_scale=3.0).sampling == SamplingParams(0, guidance_scale=3.0)
    own = LogitsProcessorList([TemperatureLogitsWarper(0.5)])
    assert read(model, do_sample=True, top_k=0, logits_processor=own).sampling == SamplingParams(temperature=0.5)


def test_seeds_determine_tokens_row_by_row(model: Any) -> None:
    call = CALL | {"do_sample": True, "custom_generate": generate, "recipe": "scd:window=4"}
    first = model.generate(**call, seed=5)
    assert torch.equal(first, model.generate(**call, seed=[5, 6]))
    assert not torch.equal(first, model.generate(**call, seed=6))
    torch.manual_seed(0)
    free = model.generate(**call)
    torch.manual_seed(0)
    assert torch.equal(free, model.generate(**call))
    alone = model.generate(**(call | {"input_ids": IDS[1:], "attention_mask": None}), seed=6)
    width = min(alone.shape[1], first.shape[1])
    assert torch.equal(alone[0, :width], first[1, :width])
    several = model.generate(**call, seed=5, num_return_sequences=2)
    assert several.shape[0] == 4 and torch.equal(several[:, :6], IDS.repeat_interleave(2, 0))


def test_rows_end_at_end_of_sequence_tokens(model: Any) -> None:
    plain = model.generate(**CALL, do_sample=False)
    end = int(plain[0, 9])
    expected = model.generate(**CALL, do_sample=False, eos_token_id=end, pad_token_id=0)
    ours = model.generate(
        **CALL, do_sample=False, eos_token_id=end, pad_token_id=0, custom_generate=generate, recipe="sjd:window=5"
    )
    assert torch.equal(ours, expected) and not torch.equal(ours, plain)


@pytest.mark.parametrize("cache", ["static", "dynamic", "empty DynamicCache", "empty StaticCache"])
def test_cache_arguments_are_accepted(model: Any, cache: str) -> None:
    config = model.config.get_text_config()
    call: dict[str, Any] = {
        "static": {"cache_implementation": "static"},
        "dynamic": {"cache_implementation": "dynamic"},
        "empty DynamicCache": {RELEASE: DynamicCache(config=config)},
        "empty StaticCache": {RELEASE: StaticCache(config=config, max_cache_len=20)},
    }[cache]
    ours = model.generate(**CALL, **call, do_sample=False, custom_generate=generate, recipe="scd:window=4")
    assert torch.equal(ours, model.generate(**CALL, do_sample=False))


def test_output_and_callbacks_agree(model: Any) -> None:
    seen: list[Step] = []
    out = model.generate(
        **CALL, do_sample=False, custom_generate=generate, return_dict_in_generate=True, on_step=seen.append
    )
    assert out.stats.target_calls == seen[-1].target_calls and out.stats.tokens == seen[-1].committed
    for row, step in zip(out.sequences, seen[-1].tokens, strict=True):
        assert torch.equal(row[6 : 6 + len(step)], step)


def test_bfloat16_runs(model: Any) -> None:
    half = tiny.emu3().to(torch.bfloat16)
    out = half.generate(**CALL, do_sample=True, guidance_scale=2.0, custom_generate=generate, seed=0)
    assert out.dtype == torch.int64 and out.shape[1] > 6


def test_janus_equals_its_own_generate() -> None:
    janus = tiny.janus()
    ids = torch.tensor([[1, 12, 13, 3]])
    call: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "do_sample": False, "guidance_scale": 3.0}
    expected = janus.generate(ids, **call, generation_mode="image")
    call |= {"custom_generate": generate, "recipe": "scd", "max_new_tokens": 16}
    assert torch.equal(GenerationMixin.generate(janus, ids, **call), expected)
    with pytest.raises(ArgumentError, match="guidance_scale is not set, or Janus's own generate has dropped it"):
        read(janus, input_ids=ids, attention_mask=torch.ones_like(ids))


def test_slice_head_slices_after_layers_of_other_classes() -> None:
    # In float64, so that the order of sums, which differs between slice and whole, decides no comparison.
    plain = nn.Linear(4, 9, dtype=torch.float64)
    hidden = torch.randn(2, 3, 4, dtype=torch.float64)

    class Packed(nn.Linear):
        pass

    packed = Packed(4, 9, dtype=torch.float64)
    packed.load_state_dict(plain.state_dict())
    hooked = nn.Linear(4, 9, dtype=torch.float64)
    hooked.load_state_dict(plain.state_dict())
    hooked.register_forward_hook(lambda module, inputs, output: output + 1)
    expected = plain(hidden)[..., 2:7]
    assert torch.allclose(slice_head(plain, 2, 7)(hidden), expected)
    assert torch.allclose(slice_head(packed, 2, 7)(hidden), expected)
    assert torch.allclose(slice_head(hooked, 2, 7)(hidden), expected + 1)


def test_allowed_tokens_are_tabulated_by_position() -> None:
    prompts = torch.tensor([[1, 2], [3, 4]])
    found = tabulate(lambda row, ids: [7] if len(ids) % 3 == 1 else [3, 5], prompts, 6, 9)
    allowed = [found.ids[k].nonzero()[:, 0].tolist() for k in found.kind]
    assert allowed == [[3, 5], [3, 5], [7], [3, 5], [3, 5], [7]]
    assert found.width == 3
    assert line_width([None, None]) is None and line_width([4, None, 4, None, 4]) == 2
    with pytest.raises(ArgumentError, match="depends on generated tokens"):
        tabulate(lambda row, ids: [3, 5] if ids[-1] != 3 else [3], prompts, 6, 9)
    with pytest.raises(ArgumentError, match="allows no id for new token 0 of row 0"):
        tabulate(lambda row, ids: [], prompts, 6, 9)


def lines(row: int, ids: Tensor) -> list[int]:
    return [4] if len(ids) % 5 == 0 else [10, 11, 12, 13]


@pytest.mark.parametrize("allowed", [lines, None])
def test_a_table_is_counted_from_images(model: Any, allowed: Any) -> None:
    call = CALL | {"do_sample": False, "prefix_allowed_tokens_fn": allowed}
    made = model.generate(**call)
    call |= {"custom_generate": generate, "return_dict_in_generate": True}
    for recipe in ("table:window=4", "scd:window=4,start=table", "scd:window=4"):
        out = model.generate(**call, recipe=recipe, table=made[:, 6:])
        assert torch.equal(out.sequences, made) and out.stats.tokens_per_call > 1, recipe
    table = count_table(torch.tensor([[4, 10, 11, 4, 10, 13, 7]]), parse("scd"), Layout(6, width=3), 4, 10, IDS.device)
    # 4 is followed by 10, and 10 below 10 by 13. The seventh token begins an incomplete line and is left out.
    assert table is not None
    assert table.candidates(torch.tensor([0, 6]), torch.tensor([-1, 7]), 1).tolist() == [[6], [9]]


class Unknown(nn.Module):
    device = torch.device("cpu")


NEGATIVE = torch.tensor([[1, 30]])
REFUSED: list[tuple[dict[str, Any], type[MMSpecError], str]] = [
    (
        {"do_sample": True, "epsilon_cutoff": 0.1},
        ArgumentError,
        "EpsilonLogitsWarper, which is not supported with drafts",
    ),
    ({"num_beams": 2}, ArgumentError, "num_beams=2 is not supported"),
    ({"output_scores": True}, ArgumentError, "output_scores=True is not supported"),
    ({"recipe": "scdd"}, UnknownNameError, "unknown recipe 'scdd' (did you mean 'scd'?)"),
    ({"recipe": "draft"}, ArgumentError, "recipe 'draft' needs a draft model"),
    ({"recipe": "scd:refresh=model"}, ArgumentError, "recipe 'scd:window=16,refresh=model' needs a draft model"),
    ({"recipe": "table"}, ArgumentError, "recipe 'table' needs a table; pass table=, the new ids of images from"),
    ({"recipe": "scd:start=table"}, ArgumentError, "recipe 'scd:start=table' needs a table; pass table="),
    ({"table": IDS[0]}, ArgumentError, "table=<Tensor> is not allowed; it must be ids of images, an int64"),
    ({"table": IDS + 9}, ArgumentError, "table has the id 40, which this call cannot generate; its ids are 0 to 39"),
    ({"attention_mask": (IDS != 3).long()}, PromptError, "attention_mask hides the last token of a prompt; pad on the"),
    ({"seed": [1]}, ArgumentError, "seed has 1 values for 2 rows"),
    ({"guidance_scale": 2.0, "negative_prompt_ids": NEGATIVE}, ArgumentError, "negative_prompt_ids has 1 rows"),
    (
        {"guidance_scale": 2.0, "negative_prompt_ids": IDS, "negative_prompt_attention_mask": NEGATIVE},
        ArgumentError,
        "negative_prompt_attention_mask has shape (1, 2), negative_prompt_ids (2, 6)",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_calls_are_refused(model: Any, call: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        model.generate(**(CALL | call), custom_generate=generate)


def generate_from_image(glm: Any) -> Tensor:
    encoded = {"image": torch.zeros(1, 2)}  # without the grids that say where it lies
    return glm.generate(**CALL, mm_encoder_outputs=encoded, custom_generate=generate)


def test_arguments_that_do_not_fit_the_model_are_refused(model: Any) -> None:
    call = CALL | {"custom_generate": generate, "recipe": "draft"}
    with pytest.raises(ModelError, match="draft_model is a ImageGPTForCausalImageModeling, the model a Emu3"):
        model.generate(**call, draft_model=tiny.imagegpt())
    small = tiny.imagegpt()
    start = {"input_ids": torch.tensor([[20]]), "custom_generate": generate}
    with pytest.raises(ArgumentError, match=re.escape("max_length=18 is not allowed; this model has 16 positions")):
        small.generate(**start, max_new_tokens=17)
    with pytest.raises(ModelError, match="draft_model has a vocabulary of 9 ids, the model one of 20"):
        small.generate(**start, max_new_tokens=16, recipe="draft", draft_model=tiny.imagegpt(colours=9))
    with pytest.raises(ArgumentError, match="mmspec has no adapter for Unknown; it has them for JanusFor"):
        generate(Unknown(), IDS, [], [], small.generation_config)
    with pytest.raises(ArgumentError, match="pixel_values is not supported by mmspec for GlmImageForCond"):
        generate_from_image(tiny.glm())
    janus = tiny.janus()
    janus.generation_config.generation_kwargs = None
    with pytest.raises(ArgumentError, match=re.escape('generation_config.generation_kwargs["boi_token_id"] is None')):
        GenerationMixin.generate(
            janus, IDS.clamp(max=9), custom_generate=generate, max_new_tokens=1, guidance_scale=5.0
        )
    glm = tiny.glm()
    with pytest.raises(ArgumentError, match="guidance_scale=2.0 is not allowed for GlmImage"):
        glm.generate(**CALL, guidance_scale=2.0, custom_generate=generate)
    grid: dict[str, Any] = {"image_grid_thw": torch.tensor([[1, 2, 2]]), "images_per_sample": torch.tensor([1])}
    with pytest.raises(ArgumentError, match="num_return_sequences is not supported for GLM-Image"):
        glm.generate(
            IDS[1:], **grid, num_return_sequences=2, do_sample=True, max_new_tokens=4, custom_generate=generate
        )
    chameleon = tiny.chameleon()
    with pytest.raises(ArgumentError, match="height=3, width=4 is not allowed; they must be even"):
        ImageConstraint.lumina(chameleon, 3, 4)
    with pytest.raises(ArgumentError, match="the prompt has no begin-of-image token"):
        chameleon.generate(
            **CALL, prefix_allowed_tokens_fn=ImageConstraint.anole(chameleon, 2), custom_generate=generate
        )


def test_a_filled_cache_is_refused(model: Any) -> None:
    cache = DynamicCache()
    model(input_ids=IDS[:, :3], use_cache=True, **cache_input(model, cache))
    with pytest.raises(ArgumentError, match=f"{RELEASE} already holds tokens"):
        model.generate(**CALL, **{RELEASE: cache}, custom_generate=generate)

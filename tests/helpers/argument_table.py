"""What every argument of transformers' `generate` does beside `custom_generate=mmspec.generate`, found by calling it.

`python tests/helpers/argument_table.py` writes docs/arguments.md; `tests/hf/test_arguments.py` fails when it is stale.
"""

from __future__ import annotations

import inspect
import logging
import re
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_speech
import torch
import transformers
from torch import Tensor
from transformers import (
    CompileConfig,
    ContinuousBatchingConfig,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    WatermarkingConfig,
)
from transformers.generation import GenerationMixin
from transformers.generation.streamers import BaseStreamer

from mmspec.errors import MMSpecError
from mmspec.hf.cache_name import RELEASE
from mmspec.hf.call import call_generate
from mmspec.versions import tested_range

DOC = Path(__file__).parents[2] / "docs" / "arguments.md"
IDS = torch.tensor([[0, 0, 1, 5, 6, 7], [1, 5, 8, 9, 10, 3]])
CALL: dict[str, Any] = {
    "input_ids": IDS, "attention_mask": (IDS != 0).long(), "max_new_tokens": 10, "pad_token_id": 0, "do_sample": False
}  # fmt: skip
SAME, OWN, THEIRS = "as transformers", "refused", "refused by transformers"


class EndAtTwelve(StoppingCriteria):
    """Ends a row after twelve ids."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 12)


class Fresh(LogitsProcessor):
    """Excludes the last three ids."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.scatter(1, input_ids[:, -3:], -torch.inf)


class Silent(BaseStreamer):
    """Drops what it is given."""

    def put(self, value: Tensor) -> None:
        pass

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class Case:
    """One way of passing an argument.

    Attributes:
        value: The value, or a function of the model.
        outcome: `SAME`: the tokens of the model's own generate; `OWN`: a one-line error of mmspec; `THEIRS`: an error
            of transformers, before mmspec is called.
        note: What the table adds.
        more: Further arguments that give the value a meaning.
        compare: Whether the model's own generate can be called with the argument.
        shown: The value in the table; None for its `repr`.
    """

    value: Any
    outcome: str = SAME
    note: str = ""
    more: dict[str, Any] | None = None
    compare: bool = True
    shown: str | None = None


SAMPLE = {"do_sample": True, "top_k": 0}
EOS = {"eos_token_id": 3}
# Values of sampling arguments that leave one id, so that samples can be compared id by id.
CASES: dict[str, list[Case]] = {
    "inputs": [Case(IDS, more={"input_ids": None}, shown="ids")],
    "generation_config": [Case(GenerationConfig(max_new_tokens=6), shown="GenerationConfig")],
    "logits_processor": [
        Case(LogitsProcessorList([Fresh()]), note="functions of one row's ids and logits; others are refused",
             shown="a class of the caller's"),
    ],
    "stopping_criteria": [
        Case(StoppingCriteriaList([EndAtTwelve()]), note="functions of one row's ids, called once per token; a row "
             "that has ended is padded, also without `eos_token_id`", shown="a class of the caller's"),
    ],
    "prefix_allowed_tokens_fn": [
        Case(lambda row, ids: [1, 2, 3] if len(ids) % 2 else [4, 5], note="a function of position, row and prompt",
             shown="a function"),
    ],
    "synced_gpus": [Case(False), Case(True, OWN, compare=False)],
    "assistant_model": [
        Case(lambda model: tiny_speech.flat(layers=1), note="the same as `draft_model=`; the recipe is then `draft`",
             more={"input_ids": IDS[1:], "attention_mask": None}, shown="a smaller model"),
        Case(lambda model: tiny_speech.flat(layers=1), OWN, more={"recipe": "scd"}, compare=False,
             shown="a smaller model"),
    ],
    "streamer": [Case(Silent(), note="is given each position when all rows have committed it; `end()` is called even "
                      "after an error; refused for models whose tokens are columns of codes", shown="a streamer")],
    "negative_prompt_ids": [Case(IDS.flip(1)[:, :3], more={"guidance_scale": 2.0}, shown="ids")],
    "negative_prompt_attention_mask": [
        Case(torch.tensor([[0, 1, 1], [1, 1, 1]]), shown="a mask",
             more={"guidance_scale": 2.0, "negative_prompt_ids": IDS.flip(1)[:, :3]}),
    ],
    "custom_generate": [],
    "max_length": [Case(14, more={"max_new_tokens": None})],
    "max_new_tokens": [Case(7)],
    "min_length": [Case(12, more=EOS)],
    "min_new_tokens": [Case(6, more=EOS)],
    "early_stopping": [Case(True, note="of beam search; no effect in sampling and greedy search")],
    "max_time": [Case(100.0, note="checked for every committed token")],
    "stop_strings": [Case(["x"], THEIRS, "transformers does not hand the tokenizer on; pass "
                          "`stopping_criteria=[StopStringCriteria(tokenizer, [...])]`", compare=False)],
    "do_sample": [Case(True, more={"top_k": 1})],
    "num_beams": [Case(2, OWN)],
    "use_mtp": [Case(True, OWN, compare=False)],
    "use_cache": [Case(True), Case(False, OWN)],
    "cache_implementation": [
        Case("static", note="the KV cache is always mmspec's, which is static"), Case("dynamic"),
    ],
    "cache_config": [Case({"nbits": 4}, OWN, compare=False)],
    "max_cache_len": [Case(64, OWN, more={"cache_implementation": "static"})],
    "temperature": [Case(0.0002, more=SAMPLE)],
    "top_k": [Case(1, more={"do_sample": True})],
    "top_p": [Case(1e-6, more=SAMPLE)],
    "min_p": [Case(1.0, more=SAMPLE)],
    "typical_p": [Case(1e-6, more=SAMPLE)],
    "top_h": [Case(0.5, OWN, more=SAMPLE)],
    "epsilon_cutoff": [Case(0.1, OWN, more=SAMPLE)],
    "eta_cutoff": [Case(0.1, OWN, more=SAMPLE)],
    "repetition_penalty": [Case(1.5)],
    "encoder_repetition_penalty": [Case(1.5, OWN)],
    "length_penalty": [Case(2.0, note="of beam search; no effect in sampling and greedy search")],
    "no_repeat_ngram_size": [Case(2)],
    "bad_words_ids": [Case([[4], [7, 8]], more=EOS)],
    "renormalize_logits": [Case(True)],
    "forced_bos_token_id": [Case(4)],
    "forced_eos_token_id": [Case(5)],
    "remove_invalid_values": [Case(True)],
    "exponential_decay_length_penalty": [Case((2, 1.5), more=EOS)],
    "suppress_tokens": [Case([7, 8])],
    "begin_suppress_tokens": [Case([7, 8])],
    "sequence_bias": [Case([[[4], 5.0]])],
    "token_healing": [Case(True, THEIRS, "transformers does not hand the tokenizer on", compare=False)],
    "guidance_scale": [Case(2.0, note="Janus' own `generate` drops it, and is refused")],
    "watermarking_config": [Case(WatermarkingConfig(), OWN, shown="WatermarkingConfig()")],
    "num_return_sequences": [Case(2, more={"do_sample": True, "top_k": 1})],
    "output_attentions": [Case(True, OWN, compare=False)],
    "output_hidden_states": [Case(True, OWN)],
    "output_scores": [Case(True, OWN)],
    "output_logits": [Case(True, OWN)],
    "return_dict_in_generate": [
        Case(True, note="`sequences` and `stats`; `scores` and the cache are None"),
    ],
    "pad_token_id": [Case(2, more=EOS)],
    "bos_token_id": [Case(1)],
    "eos_token_id": [Case(3), Case([3, 4])],
    "encoder_no_repeat_ngram_size": [Case(2, OWN)],
    "decoder_start_token_id": [Case(1, note="of encoder-decoder models")],
    "is_assistant": [Case(True, THEIRS, compare=False)],
    "num_assistant_tokens": [
        Case(5, note="no effect without `assistant_model`"),
        Case(5, OWN, more={"assistant_model": True}, compare=False, shown="5, with `assistant_model`"),
    ],
    "num_assistant_tokens_schedule": [
        Case("heuristic", note="no effect without `assistant_model`"),
        Case("heuristic", OWN, more={"assistant_model": True}, compare=False,
             shown="'heuristic', with `assistant_model`"),
    ],
    "assistant_confidence_threshold": [
        Case(0.9, note="no effect without `assistant_model`"),
        Case(0.9, OWN, more={"assistant_model": True}, compare=False, shown="0.9, with `assistant_model`"),
    ],
    "assistant_ensemble_weight": [
        Case(0.5, note="no effect without `assistant_model`", compare=False),
        Case(0.5, OWN, more={"assistant_model": True}, compare=False, shown="0.5, with `assistant_model`"),
    ],
    "prompt_lookup_num_tokens": [Case(5, OWN, compare=False)],
    "max_matching_ngram_size": [Case(3, note="no effect without `prompt_lookup_num_tokens`")],
    "assistant_early_exit": [Case(1, OWN, compare=False)],
    "assistant_lookbehind": [Case(5, note="of draft models with another tokenizer, which are refused")],
    "target_lookbehind": [Case(5, note="of draft models with another tokenizer, which are refused")],
    "speculation_type": [Case("dflash", OWN, compare=False)],
    "compile_config": [Case(CompileConfig(), OWN, compare=False, shown="CompileConfig()")],
    "disable_compile": [Case(True, note="`generate` compiles nothing by itself")],
    "continuous_batching_config": [
        Case(ContinuousBatchingConfig(), OWN, compare=False, shown="ContinuousBatchingConfig()"),
    ],
    "low_memory": [Case(True, note="no effect in sampling and greedy search")],
    "penalty_alpha": [Case(0.6, OWN, compare=False, more={"top_k": 4})],
    "dola_layers": [Case("low", OWN, compare=False)],
    "diversity_penalty": [Case(0.5, OWN, compare=False)],
    "num_beam_groups": [Case(2, OWN, compare=False)],
    "constraints": [Case(["x"], OWN, compare=False)],
    "force_words_ids": [Case([[4]], OWN, compare=False)],
    "prefill_chunk_size": [Case(2, OWN, compare=False)],
    RELEASE: [
        Case(lambda model: transformers.DynamicCache(), shown="an empty cache",
             note="before transformers 5.24 it is `past_key_values`"),
    ],
    "attention_mask": [
        Case(None, more={"input_ids": IDS[1:]}),
        Case((IDS != 3).long(), OWN, compare=False, shown="padding on the right"),
    ],
    "position_ids": [Case((IDS != 0).long().cumsum(1), shown="ids")],
    "inputs_embeds": [Case(lambda model: model.get_input_embeddings()(IDS), OWN, compare=False, shown="a prompt")],
    "trust_remote_code": [Case(True, note="no effect on a callable")],
    "foo": [Case(1, THEIRS, "any unknown name", compare=False)],
}  # fmt: skip
# Attributes of a `GenerationConfig` that are no arguments.
NOT_ARGUMENTS = {"_from_model_config", "transformers_version"}


def arguments_of_transformers() -> set[str]:
    """The parameters of `generate`, and all settings of a `GenerationConfig`."""
    named = set(inspect.signature(GenerationMixin.generate).parameters) - {"self", "kwargs"}
    return (named | set(vars(GenerationConfig()))) - NOT_ARGUMENTS


def outcome_of(model: Any, name: str, case: Case) -> tuple[str, str]:
    """Calls both generates with an argument.

    Returns:
        One of `SAME`, `OWN` and `THEIRS`, and the message of an error of mmspec; or the two results where they differ.
    """
    given = {**CALL, **(case.more or {})}
    given[name] = case.value(model) if callable(case.value) and name not in FUNCTIONS else case.value
    if given.get("assistant_model") is True:
        given["assistant_model"] = tiny_speech.flat(layers=1)
    recipe: dict[str, Any] = (
        {} if "recipe" in given or given.get("assistant_model") is not None else {"recipe": "scd:window=4"}
    )
    given = {key: value for key, value in given.items() if value is not None or key == "attention_mask"}
    try:
        ours = call_generate(model.generate, **given, **recipe)
    except MMSpecError as error:
        return OWN, str(error)
    except (ValueError, TypeError, NotImplementedError, AttributeError, ImportError, RuntimeError):
        return THEIRS, ""
    if case.compare:
        expected = model.generate(**given)
        sequences = [getattr(out, "sequences", out) for out in (ours, expected)]
        if not torch.equal(*sequences):
            return f"{sequences[0].tolist()} instead of {sequences[1].tolist()}", ""
    return SAME, ""


FUNCTIONS = ("prefix_allowed_tokens_fn", "logits_processor", "stopping_criteria")


def walk() -> list[tuple[str, Case, str, str]]:
    """Every case: the argument, the case, and the result of `outcome_of`."""
    model = tiny_speech.flat()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, cases in CASES.items():
            for case in cases:
                model.generation_config = GenerationConfig(pad_token_id=0)
                found.append((name, case, *outcome_of(model, name, case)))
    return found


INTRODUCTION = """# Arguments of `generate`

<!-- Written by tests/helpers/argument_table.py; do not edit. -->

Every argument of transformers' `model.generate(..., custom_generate=mmspec.generate)`, as tried on a tiny Llama with
transformers {releases}. `mmspec.generate` also takes `recipe`, `seed`, `draft_model`, `table`, `heads`, `on_step`,
`on_stats`, `measure_entropy` and `token_streamer`.

- transformers does not hand `streamer`, `assistant_model` and `synced_gpus` to a callable. Use `token_streamer` and
  `draft_model`, or `mmspec.hf.call.call_generate(model.generate, ...)`, which takes all by their names, as tried below;
  so do `mmspec.accelerate` and the repository in examples/hub.
- `call_generate` refuses every input of the model that mmspec does not read. Beside `custom_generate`, a flag, a mask
  or positions are ignored, as transformers prepares them itself.
- Models whose tokens are not single ids (MusicGen, Dia, Higgs Audio, CSM, Moshi) refuse more: `streamer`,
  `stopping_criteria`, and logits processors that depend on the prefix.
- `cache_implementation="offloaded"` and `"quantized"` are refused. With `"paged"` transformers generates by continuous
  batching and ignores `custom_generate`.

"""

SECTIONS = """## As transformers

Greedy tokens, or samples from a single allowed id, equal those of the model's own `generate` with the same argument.

{plain}

These too, with a remark:

| arguments | remark |
|---|---|
{remarked}
## Refused

One line, before any work:

| argument | reason |
|---|---|
{refused}
## Refused by transformers

| argument | tried | remark |
|---|---|---|
{theirs}"""


def document(found: list[tuple[str, Case, str, str]]) -> str:
    """The page docs/arguments.md."""
    theirs = ""
    remarks: dict[str, list[str]] = {}
    reasons: dict[str, list[str]] = {}
    names = [("cache" if name == RELEASE else name, case, outcome, message) for name, case, outcome, message in found]
    for name, case, outcome, message in names:
        shown = f"`{case.value!r}`" if case.shown is None else case.shown
        row = f"| `{name}` | {shown} | {case.note} |\n".replace("|  |", "| |")
        if outcome == OWN:
            tried = f"`{name}={case.value!r}`" if case.shown is None else f"`{name}`: {case.shown}"
            reasons.setdefault(reason_of(message), []).append(tried)
        elif outcome != SAME:
            theirs += row
        elif case.note:
            remarks.setdefault(case.note, []).append(f"`{name}`")
    same = [f"`{name}`" for name, case, outcome, _ in names if outcome == SAME and not case.note]
    plain = ", ".join(dict.fromkeys(same))
    remarked, refused = (
        "".join(f"| {', '.join(first)} | {then} |\n" for then, first in rows.items()) for rows in (remarks, reasons)
    )
    sections = SECTIONS.format(
        plain="\n".join(textwrap.wrap(plain, 118, break_on_hyphens=False)),
        remarked=remarked,
        refused=refused,
        theirs=theirs,
    )
    return INTRODUCTION.format(releases=tested_range("transformers")) + sections


def reason_of(message: str) -> str:
    """What an error of mmspec says after the name and the value."""
    processor = re.sub(
        r"^logits_processor has \w+, which is (not supported with drafts); .*", r"its logits processor is \1", message
    )
    return re.sub(r"^.*? is not supported; ", "", processor)


if __name__ == "__main__":
    DOC.write_text(document(walk()), encoding="utf-8")

"""Names that other packages do not promise to keep, each with a test that fails when a release drops it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from private_names import foreign_attributes, sources
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BarkProcessor,
    CsmForConditionalGeneration,
    DiaProcessor,
    EosTokenCriteria,
    Gemma3TextConfig,
    GenerationConfig,
    GlmImageModel,
    HiggsAudioV2Processor,
    LlamaConfig,
    LlamaForCausalLM,
    MaxLengthCriteria,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
    VibeVoiceForConditionalGeneration,
)
from transformers.generation import GenerationMixin, logits_process
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.chameleon import modeling_chameleon
from transformers.models.higgs_audio_v2 import generation_higgs_audio_v2
from transformers.models.llama import modeling_llama
from transformers.models.mimi import modeling_mimi

from mmspec.hf.arguments import ORDER, read_padding
from mmspec.hf.logits_processors import KNOWN

pytestmark = pytest.mark.releases

SMALL: dict[str, Any] = {
    "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2
}  # fmt: skip


def hooked_by_accelerate() -> nn.Module:
    hooks = import_module("accelerate.hooks")
    hooked: nn.Module = hooks.add_hook_to_module(nn.Linear(1, 1), hooks.ModelHook())
    return hooked


def hooked_by_diffusers() -> nn.Module:
    from diffusers.hooks import HookRegistry

    module = nn.Linear(1, 1)
    HookRegistry.check_if_exists_or_initialize(module)
    return module


def prepared_padding() -> bool:
    """The id that a prepared config has where the caller gave that of the end only."""
    config, model = GenerationConfig(eos_token_id=[5, 3]), LlamaForCausalLM(LlamaConfig(**SMALL))
    model._prepare_special_tokens(config, device="cpu")
    return int(config._pad_token_tensor) == 5 == read_padding(config)


def diffusers_pipeline() -> Any:
    from mmspec.vision.llamagen.pipeline import LlamaGenPipeline

    return LlamaGenPipeline


def source_of(method: Any) -> str:
    return inspect.getsource(method)


def without_peft() -> bool:
    return find_spec("peft") is None


# Each attribute of another package whose name begins with an underscore -> whether it still means what it did.
PRIVATE: dict[str, Callable[[], bool]] = {
    # of transformers
    "_attn_implementation": lambda: LlamaConfig(**SMALL, attn_implementation="eager")._attn_implementation == "eager",
    "_build_default_noise_scheduler": lambda: hasattr(
        VibeVoiceForConditionalGeneration, "_build_default_noise_scheduler"
    ),
    "_cached_decode_position_ids": lambda: "self._cached_decode_position_ids" in source_of(GlmImageModel),
    "_from_config": lambda: hasattr(PreTrainedModel, "_from_config"),
    "_get_logits_processor": lambda: (
        {"generation_config", "input_ids_seq_length", "logits_processor", "device"}
        <= set(inspect.signature(GenerationMixin._get_logits_processor).parameters)
    ),
    "_hf_peft_config_loaded": lambda: hasattr(PreTrainedModel, "_hf_peft_config_loaded"),
    "_merge_input_ids_with_input_values": lambda: hasattr(
        CsmForConditionalGeneration, "_merge_input_ids_with_input_values"
    ),
    "_pad_token_tensor": prepared_padding,
    "_prefix_allowed_tokens_fn": lambda: (
        logits_process.PrefixConstrainedLogitsProcessor(bool, 1)._prefix_allowed_tokens_fn is bool
    ),
    "_prepare_generation_config": lambda: hasattr(GenerationMixin, "_prepare_generation_config"),
    # of PEFT, whose own tests need the extra of that name
    "_disable_adapters": lambda: without_peft() or "_disable_adapters" in source_of(_peft_layers()),
    # of accelerate and diffusers
    "_hf_hook": lambda: hasattr(hooked_by_accelerate(), "_hf_hook"),
    "_diffusers_hook": lambda: hasattr(hooked_by_diffusers(), "_diffusers_hook"),
    "_execution_device": lambda: isinstance(vars(diffusers.DiffusionPipeline)["_execution_device"], property),
    "_get_signature_keys": lambda: len(diffusers_pipeline()._get_signature_keys(diffusers_pipeline())) == 2,
    "_interrupt": lambda: "_interrupt" in source_of(diffusers.StableDiffusionPipeline),
    # of torch
    "_cdata": lambda: isinstance(torch.empty(1).untyped_storage()._cdata, int),
    "_compiled_call_impl": lambda: nn.Linear(1, 1)._compiled_call_impl is None,
    "_forward_hooks": lambda: len(nn.Linear(1, 1)._forward_hooks) == 0,
    "_forward_pre_hooks": lambda: len(nn.Linear(1, 1)._forward_pre_hooks) == 0,
    "_forward_pre_hooks_with_kwargs": lambda: len(nn.Linear(1, 1)._forward_pre_hooks_with_kwargs) == 0,
    "_fused_sdp_choice": lambda: callable(torch._fused_sdp_choice),
    "_len_torch_dispatch_stack": lambda: callable(torch._C._len_torch_dispatch_stack),
    "_orig_mod": lambda: "_orig_mod" in vars(torch.compile(nn.Linear(1, 1), backend="eager"))["_modules"],
}


def _peft_layers() -> Any:
    from peft.tuners import tuners_utils

    return tuners_utils


def test_every_private_name_has_a_test() -> None:
    assert set(foreign_attributes(sources())) == set(PRIVATE), "add it to the table above"


@pytest.mark.parametrize("name", PRIVATE)
def test_private_names_mean_what_they_did(name: str) -> None:
    assert PRIVATE[name]()


# Attributes that are read only where an object has them -> whether those that should have them do.
OPTIONAL: dict[str, Callable[[], bool]] = {
    "settings of a GenerationConfig": lambda: (
        {"do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "guidance_scale"}
        <= vars(GenerationConfig()).keys()
    ),
    "layer_types, sliding_window": lambda: (
        "sliding_attention" in Gemma3TextConfig(sliding_window=3).layer_types
        and MistralConfig(sliding_window=3).sliding_window == 3
    ),
    "use_sliding_window": lambda: Qwen2Config(use_sliding_window=True).use_sliding_window is True,
    "final_logit_softcapping": lambda: Gemma3TextConfig(final_logit_softcapping=3.0).final_logit_softcapping == 3,
    "causal, pad_mode": lambda: {"self.causal", "self.pad_mode"} <= names_in(modeling_mimi.MimiConv1d),
    "trim_right_ratio": lambda: "self.trim_right_ratio" in names_in(modeling_mimi.MimiConvTranspose1d),
    "num_key_value_groups": lambda: "self.num_key_value_groups" in names_in(modeling_llama.LlamaAttention),
    "available_voice_presets": lambda: hasattr(BarkProcessor, "available_voice_presets"),
    "audio_tokenizer": lambda: all(
        "audio_tokenizer" in inspect.signature(kind.__init__).parameters
        for kind in (DiaProcessor, HiggsAudioV2Processor)
    ),
    "ras_win_len": lambda: {"ras_win_len", "ras_win_max_num_repeat"} <= names_in(generation_higgs_audio_v2),
    "bpe2img, vqmodel": lambda: {"def bpe2img", "self.vqmodel"} <= names_in(modeling_chameleon),
}


def names_in(part: Any) -> set[str]:
    """The words of a part of a package, each also with the one before it."""
    return set(re.findall(r"(?:self\.|def )?\w+", inspect.getsource(part)))


@pytest.mark.parametrize("name", OPTIONAL)
def test_optional_attributes_are_there(name: str) -> None:
    assert OPTIONAL[name]()


# --- Lists of names --------------------------------------------------------------------------------------------------

# Logits processors of transformers that `mmspec.generate` refuses, or that adapters of a model read themselves.
OTHERS = {
    "ClassifierFreeGuidanceLogitsProcessor", "DiaClassifierFreeGuidanceLogitsProcessor",
    "DiaEOSChannelFilterLogitsProcessor", "DiaEOSDelayPatternLogitsProcessor", "EncoderNoRepeatNGramLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor", "EpsilonLogitsWarper", "EtaLogitsWarper", "LogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor", "SynthIDTextWatermarkState", "TopHLogitsWarper", "TopNSigmaLogitsWarper",
    "WatermarkLogitsProcessor", "WhisperNoSpeechDetection", "WhisperTimeStampLogitsProcessor",
}  # fmt: skip


def test_no_logits_processor_is_new() -> None:
    """A new class is refused by its name; this test asks whether it can be supported."""
    kinds = inspect.getmembers(logits_process, lambda each: inspect.isclass(each))
    found = {name for name, kind in kinds if issubclass(kind, logits_process.LogitsProcessor)}
    assert found - {kind.__name__ for kind in (*KNOWN, *ORDER)} <= OTHERS


def test_attributes_of_processors_and_criteria_are_read() -> None:
    """What `read_sampling`, `read_stopping`, `read_request` and `convert_processor` read."""
    warpers: list[tuple[Any, str, Any]] = [
        (logits_process.TemperatureLogitsWarper(0.5), "temperature", 0.5),
        (logits_process.TopKLogitsWarper(3), "top_k", 3),
        (logits_process.TopPLogitsWarper(0.5), "top_p", 0.5),
        (logits_process.MinPLogitsWarper(0.5), "min_p", 0.5),
        (logits_process.MinPLogitsWarper(0.5), "min_tokens_to_keep", 1),
        (logits_process.TypicalLogitsWarper(0.5), "mass", 0.5),
        (logits_process.TypicalLogitsWarper(0.5), "min_tokens_to_keep", 1),
        (logits_process.RepetitionPenaltyLogitsProcessor(1.5), "penalty", 1.5),
        (logits_process.RepetitionPenaltyLogitsProcessor(1.5), "prompt_ignore_length", None),
        (logits_process.AlternatingCodebooksLogitsProcessor(1, 2, 3), "semantic_vocab_size", 2),
        (MaxLengthCriteria(7), "max_length", 7),
    ]
    assert all(getattr(each, name) == value for each, name, value in warpers)
    assert EosTokenCriteria(3).eos_token_id.tolist() == [3]
    guidance = UnbatchedClassifierFreeGuidanceLogitsProcessor(2.0, LlamaForCausalLM(LlamaConfig(**SMALL)))
    assert guidance.guidance_scale == 2.0 and {"input_ids", "attention_mask"} <= guidance.unconditional_context.keys()


def test_attention_reads_no_more_than_folding_knows() -> None:
    """A new argument of "sdpa" turns folding off where it is given; this test asks whether it has to."""
    own = inspect.signature(sdpa_attention_forward).parameters
    known = {"module", "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal", "position_bias"}
    assert set(own) - known <= {"kwargs", "cache"}  # `cache`: of continuous batching, until 5.23
    assert set(re.findall(r'kwargs\.get\("(\w+)"', source_of(sdpa_attention_forward))) <= {
        "softcap",
        "output_attentions",
    }


def test_loading_reports_what_was_missing(tmp_path: Path) -> None:
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(tmp_path)
    _, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == report["unexpected_keys"] == set()

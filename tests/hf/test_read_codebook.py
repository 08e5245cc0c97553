"""Rules that compare tokens, on transformers models: the codebook is that of the model's VQ model."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models as tiny
import torch
from torch import Tensor
from transformers.generation import GenerationMixin

import mmspec
from mmspec.hf.codebook import read_codebook
from mmspec.hf.generate import GenerateJob, prepare
from mmspec.vision.hf.decoding.chameleon import ImageConstraint

pytestmark = pytest.mark.releases

PROMPT = torch.tensor([[1, 31, 33, 34, 30, 3], [1, 31, 31, 32, 34, 3]])


def calls() -> dict[str, tuple[Any, dict[str, Any]]]:
    chameleon = tiny.chameleon()
    constraint = ImageConstraint.anole(chameleon, 2, tiny.CHAMELEON_IDS)
    image = {"prefix_allowed_tokens_fn": constraint, "max_new_tokens": constraint.length}
    ids = torch.cat([PROMPT, torch.full((2, 1), tiny.CHAMELEON_IDS.begin)], dim=1)
    return {
        "janus": (tiny.janus(), {"input_ids": PROMPT % 12, "guidance_scale": 2.0, "max_new_tokens": 16}),
        "emu3": (tiny.emu3(), {"input_ids": PROMPT, "max_new_tokens": 8}),
        "chameleon": (chameleon, {"input_ids": ids, **image}),
    }


def generate(model: Any, call: dict[str, Any], **options: Any) -> Any:
    call = {"attention_mask": torch.ones_like(call["input_ids"]), "do_sample": True, **call}
    return GenerationMixin.generate(model, **call, custom_generate=mmspec.generate, seed=3, **options)


@pytest.mark.parametrize("name", ["janus", "emu3", "chameleon"])
def test_lantern_uses_the_models_codes(name: str) -> None:
    model, call = calls()[name]
    exact = generate(model, call, recipe="scd:window=4")
    assert torch.equal(generate(model, call, recipe="lantern:delta=0,window=4"), exact)
    relaxed = generate(model, call, recipe="lantern:delta=1,k=30,window=4,start=random", return_dict_in_generate=True)
    assert relaxed.stats.tv_bound > 0.05

    def stop(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **inputs: Any,
    ) -> GenerateJob:
        return prepare(model, input_ids, logits_processor, stopping_criteria, generation_config, inputs)

    call = {"attention_mask": torch.ones_like(call["input_ids"]), **call}
    job = GenerationMixin.generate(model, **call, custom_generate=stop)
    codebook = read_codebook(model, job.plan)
    assert codebook is not None
    entries = model.model.vqmodel.quantize.embedding.weight
    assert int(codebook.known.sum()) == len(entries)
    mapping = getattr(model.model, "vocabulary_mapping", None)
    for token in codebook.known.nonzero()[:, 0].tolist():
        code = token if mapping is None else mapping.bpe2img[token + job.plan.first_id]
        assert torch.equal(codebook.vectors[token], entries[code])


def test_a_model_without_a_codebook_is_refused() -> None:
    model = tiny.imagegpt()
    with pytest.raises(mmspec.errors.ArgumentError, match="codebook"):
        generate(model, {"input_ids": torch.full((1, 1), 20), "max_new_tokens": 4}, recipe="lantern")

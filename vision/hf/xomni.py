"""X-Omni: a Qwen2 whose first and last layers are for images only, with embeddings and heads for texts and for codes.

The published class is code of the repositories; `mmspec.vision.hf.original_xomni` reads their files as this one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, GenerationMixin, PreTrainedModel, Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm, Qwen2RotaryEmbedding

from mmspec.errors import ModelError
from mmspec.hf.cache_name import cache_input
from mmspec.hf.decoder_layers import DecoderLayers, RunLayer


class XOmniConfig(Qwen2Config):
    """The config of Qwen2, and what X-Omni adds.

    Attributes:
        num_mm_adap_layers: Layers at the beginning that change positions of images only.
        num_mm_head_layers: As many at the end.
        mm_vocab_size: Ids of images, after the `vocab_size` ids of texts: codes, and then marks.
        image_vocab_size: Codes.
        mm_special_tokens: The marks that begin an image, end it, and follow its size.
    """

    model_type = "x-omni"
    num_mm_adap_layers: int = 4
    num_mm_head_layers: int = 4
    mm_vocab_size: int = 16448
    image_vocab_size: int = 16384
    mm_special_tokens: tuple[str, ...] | list[str] = ("<SOM>", "<EOM>", "<IMAGE>")


# transformers reads the config of a folder before its tokenizer, and warns of types that it does not know.
AutoConfig.register(XOmniConfig.model_type, XOmniConfig, exist_ok=True)


class XOmniModel(nn.Module):
    """The layers, under the published names."""

    def __init__(self, config: XOmniConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.lm_embed_tokens = nn.Embedding(config.vocab_size, width)
        self.mm_embed_tokens = nn.Embedding(config.mm_vocab_size, width)
        self.layers = nn.ModuleList(Qwen2DecoderLayer(config, n) for n in range(config.num_hidden_layers))
        self.lm_norm = Qwen2RMSNorm(width, eps=config.rms_norm_eps)
        self.mm_norm = Qwen2RMSNorm(width, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen2RotaryEmbedding(config=config)


class XOmniForCausalLM(PreTrainedModel, GenerationMixin):
    """The model. It generates images with `custom_generate=mmspec.generate`, and has no `forward` of its own."""

    config_class = XOmniConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _no_split_modules = ("Qwen2DecoderLayer",)

    def __init__(self, config: XOmniConfig) -> None:
        super().__init__(config)
        self.model = XOmniModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.mm_head = nn.Linear(config.hidden_size, config.mm_vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.lm_embed_tokens

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings [R, W, D + 1] of ids int64 [R, W]; the last feature is 1 for ids of images, else 0."""
        texts = self.config.vocab_size
        of_image = (ids >= texts)[..., None]
        embeds = torch.where(
            of_image,
            self.model.mm_embed_tokens((ids - texts).clamp(min=0)),
            self.model.lm_embed_tokens(ids.clamp(max=texts - 1)),
        )
        return torch.cat([embeds, of_image.to(embeds.dtype)], dim=-1)

    def forward(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **inputs: Any) -> Any:
        """Raises an error.

        Raises:
            ModelError: Always.
        """
        raise ModelError("an XOmniForCausalLM is decoded by mmspec only; pass custom_generate=mmspec.generate")


class XOmniDecoder(DecoderLayers):
    """The layers of a model, called with the embeddings of `XOmniForCausalLM.embed`.

    The feature that tells images from texts goes from layer to layer after the hidden states.
    """

    plain_states = False

    def __init__(self, model: XOmniForCausalLM) -> None:
        core, config = model.model, model.config
        super().__init__(core.layers, self._final_norm)
        self._core = core
        self._shared = range(config.num_mm_adap_layers, config.num_hidden_layers - config.num_mm_head_layers)

    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, RunLayer]:
        rotary = self._core.rotary_emb(embeds[..., :-1], positions)

        def run(layer: Any, hidden: Tensor) -> Tensor:
            states, of_image = hidden[..., :-1], hidden[..., -1:]
            found = layer(
                states, attention_mask=mask, position_ids=positions, use_cache=True,
                position_embeddings=rotary, **cache_input(layer, cache),
            )  # fmt: skip
            if layer.self_attn.layer_idx not in self._shared:
                found = torch.where(of_image > 0, found, states)
            return torch.cat([found, of_image], dim=-1)

        return embeds, run

    def _final_norm(self, hidden: Tensor) -> Tensor:
        states = hidden[..., :-1]
        return torch.where(hidden[..., -1:] > 0, self._core.mm_norm(states), self._core.lm_norm(states))

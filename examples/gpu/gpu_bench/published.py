"""The published models whose calls are counted, predicted and timed, with random weights.

Sizes are those of the models' configurations on the Hub; `PUBLISHED` names the repository of each. A model has its real
layers and heads in the order in which mmspec calls them, without the parts that a step does not run (text encoders,
image tokenizers, codecs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from mmspec.decoding.kept_graphs import ReusableTarget
from mmspec.errors import unknown_name
from mmspec.hf.cache_name import cache_input
from mmspec.hf.causal_target import Backbone, CausalTarget, Prompt
from mmspec.hf.decoder_layers import DecoderLayers, RunLayer
from mmspec.hf.plan import position_ids_of
from mmspec.vision.llamagen.target import LlamaGenTarget
from mmspec.vision.llamagen.transformer import LlamaGenTransformer

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class StepModel:
    """A model on some device, whose steps can be read.

    Attributes:
        target: Makes a target of so many rows, whose windows reach at most so far past the end.
        heads: The layers that its logits come from, one per codebook.
        module: The module that CUDA graphs live with.
        calls: What else a step calls.
        depth: The depth decoder, which decodes the codes of a frame after the first one; None if there is none.
    """

    target: Callable[[int, int], ReusableTarget]
    heads: Sequence[nn.Linear]
    module: nn.Module
    calls: Sequence[object] = ()
    depth: StepModel | None = None

    def step(self, rows: int, width: int, end: int) -> Callable[[], object]:
        """A call that reads `width` tokens of each row after the prompt; its cache is read up to slot `end`."""
        target = self.target(rows, width)
        rows *= target.cfg_factor
        tokens = torch.zeros(rows, width, *target.cell, dtype=torch.int64, device=target.device)
        end = min(end, target.capacity)
        slots = torch.arange(end - width, end, device=target.device).repeat(rows, 1)
        return lambda: target.read(tokens, slots, end)


@dataclass(frozen=True)
class PublishedModel:
    """A published size.

    Attributes:
        repository: Where its configuration stands.
        build: Makes the model with so many layers.
        arguments: Of the configuration; passed to `build`.
        layers: Layers of the published model.
        length: Tokens (columns, frames) of a usual output.
        prompt: Tokens of a usual prompt.
        guided: Whether steps read unconditional rows too.
        depth_steps: Codes of a frame that a depth decoder decodes.
    """

    repository: str
    build: Callable[[PublishedModel, int, torch.device, torch.dtype], StepModel]
    layers: int
    length: int
    prompt: int
    guided: bool
    arguments: Arguments = field(default_factory=dict)
    depth_steps: int = 0

    def on(self, device: torch.device, dtype: torch.dtype, layers: int | None = None) -> StepModel:
        """The model with random weights on a device, with all of its layers or with the first ones."""
        return self.build(self, self.layers if layers is None else layers, device, dtype)


def published(name: str) -> PublishedModel:
    """The published model of a name.

    Raises:
        UnknownNameError: If there is none.
    """
    if name not in PUBLISHED:
        raise unknown_name("model", name, PUBLISHED)
    return PUBLISHED[name]


@contextmanager
def random_weights(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """A context in which modules get small random weights on a device, without the models' own initialization."""
    with unset_fake_temporarily():
        from transformers import PreTrainedModel

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        # The initialization of a model of transformers takes minutes for a large one.
        with torch.device(device), patch.object(PreTrainedModel, "init_weights", lambda self: None):
            yield
    finally:
        torch.set_default_dtype(before)


def _llamagen(model: PublishedModel, layers: int, device: torch.device, dtype: torch.dtype) -> StepModel:
    with random_weights(device, dtype):
        gpt = LlamaGenTransformer(n_layer=layers, **model.arguments).eval()

    def target(rows: int, slack: int) -> ReusableTarget:
        condition = torch.zeros(rows, dtype=torch.int64, device=device)
        return LlamaGenTarget(gpt, condition, gpt.unconditional(rows) if model.guided else None, None, slack)

    return StepModel(target, [gpt.output], gpt)


def _causal(
    model: PublishedModel, decoder: Any, embed: Callable[[Tensor], Tensor], head: Callable[[Tensor], Tensor],
    vocab_size: int, width: int, device: torch.device, dtype: torch.dtype, cell: tuple[int, ...] = (),
) -> Callable[[int, int], ReusableTarget]:  # fmt: skip
    """Targets of a decoder of transformers; its prompts are zeros."""
    if isinstance(decoder, nn.Module):
        decoder.eval()
    backbone = Backbone(decoder, embed, head, vocab_size, device, cell)

    def target(rows: int, slack: int) -> ReusableTarget:
        mask = torch.ones(rows, model.prompt, dtype=torch.bool, device=device)
        embeds = torch.zeros(rows, model.prompt, width, dtype=dtype, device=device)
        prompt = Prompt(embeds, mask, position_ids_of(mask))
        return CausalTarget(backbone, prompt, prompt if model.guided else None, model.length, slack)

    return target


def _flat(model: PublishedModel, layers: int, device: torch.device, dtype: torch.dtype) -> StepModel:
    """A decoder of transformers with an embedding and a head of its own over `codes` ids."""
    arguments = dict(model.arguments)
    family, name, codes = arguments.pop("family"), arguments.pop("decoder"), arguments.pop("codes")
    config = _class(family, "configuration", arguments.pop("config"))(num_hidden_layers=layers, **arguments)
    kind = _class(family, "modeling", name)
    with random_weights(device, dtype):
        decoder = kind._from_config(config, attn_implementation="sdpa", dtype=dtype)
        embed = nn.Embedding(codes, config.hidden_size)
        head = nn.Linear(config.hidden_size, codes, bias=False)
    target = _causal(model, decoder, embed, head, codes, config.hidden_size, device, dtype)
    return StepModel(target, [head], decoder, [embed, head])


def _musicgen(model: PublishedModel, layers: int, device: torch.device, dtype: torch.dtype) -> StepModel:
    from mmspec.audio.models.musicgen.decoding import MusicgenLayers
    from mmspec.audio.multi_codebook.column_target import ColumnTarget
    from mmspec.audio.multi_codebook.cross_attention import CrossAttention

    config = _class("musicgen", "configuration", "MusicgenDecoderConfig")(num_hidden_layers=layers, **model.arguments)
    kind = _class("musicgen", "modeling", "MusicgenDecoder")
    books, width = config.num_codebooks, config.hidden_size
    with random_weights(device, dtype):
        decoder = kind._from_config(config, attn_implementation="sdpa", dtype=dtype).eval()
        heads = [nn.Linear(width, config.vocab_size, bias=False) for _ in range(books)]

    def embed(ids: Tensor) -> Tensor:
        return sum(table(ids[..., k]) for k, table in enumerate(decoder.embed_tokens))

    def head(hidden: Tensor) -> Tensor:
        return torch.stack([one(hidden) for one in heads], dim=2)

    def target(rows: int, slack: int) -> ReusableTarget:
        text = torch.zeros((1 + model.guided) * rows, model.prompt, width, dtype=dtype, device=device)
        crossed = CrossAttention(text, torch.ones(text.shape[:2], dtype=torch.bool, device=device))
        prompt = Prompt(text[:rows, :1], torch.ones(rows, 1, dtype=torch.bool, device=device), _first(rows, device))
        layers = MusicgenLayers(decoder, crossed, 1 + model.length + slack)
        size, guided, length = config.vocab_size, model.guided, model.length
        return ColumnTarget(layers, embed, head, books, size, prompt, guided, length, slack, crossed)

    return StepModel(target, heads, decoder, [embed, head])


def _cosmos(model: PublishedModel, layers: int, device: torch.device, dtype: torch.dtype) -> StepModel:
    from mmspec.vision.cosmos_ar.target import CosmosTarget
    from mmspec.vision.cosmos_ar.transformer import CosmosTransformer

    with random_weights(device, dtype):
        transformer = CosmosTransformer(n_layers=layers, **model.arguments).eval()

    def target(rows: int, slack: int) -> ReusableTarget:
        given = torch.zeros(rows, model.prompt, dtype=torch.int64, device=device)
        return CosmosTarget(transformer, given, None, model.length, slack)

    return StepModel(target, [transformer.output], transformer)


def _first(rows: int, device: torch.device) -> Tensor:
    return torch.zeros(1, rows, 1, dtype=torch.int64, device=device)


class _DepthLayers(DecoderLayers):
    """The depth decoder of CSM, called as `mmspec.audio.models.csm.decoding.CsmDepth` calls it."""

    def __init__(self, model: Any) -> None:
        super().__init__(model.layers, model.norm)
        self._model = model

    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, RunLayer]:
        hidden = self._model.inputs_embeds_projector(embeds)
        rotary = self._model.rotary_emb(hidden, position_ids=positions)

        def run(layer: Any, hidden: Tensor) -> Tensor:
            return layer(
                hidden, attention_mask=mask, position_ids=positions, use_cache=True,
                position_embeddings=rotary, **cache_input(layer, cache),
            )  # fmt: skip

        return hidden, run


def _csm(model: PublishedModel, layers: int, device: torch.device, dtype: torch.dtype) -> StepModel:
    config = _class("csm", "configuration", "CsmConfig")(num_hidden_layers=layers)
    deep = config.depth_decoder_config
    backbones, depths = (_class("csm", "modeling", name) for name in ("CsmBackboneModel", "CsmDepthDecoderModel"))
    with random_weights(device, dtype):
        backbone = backbones._from_config(config, attn_implementation="sdpa", dtype=dtype)
        head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        depth = depths._from_config(deep, attn_implementation="sdpa", dtype=dtype).eval()
        depth_head = nn.Linear(deep.hidden_size, config.vocab_size, bias=False)

    size, cell = config.vocab_size, (config.num_codebooks,)
    target = _causal(model, backbone, backbone.embed_tokens, head, size, config.hidden_size, device, dtype, cell)
    frame = replace(model, prompt=2, length=model.depth_steps)
    within = _causal(
        frame, _DepthLayers(depth), depth.embed_tokens, depth_head, size, deep.backbone_hidden_size, device, dtype
    )
    return StepModel(target, [head], backbone, [head], StepModel(within, [depth_head], depth, [depth_head]))


def _class(family: str, part: str, name: str) -> Any:
    """A class of transformers, imported without the fake tensors that may be on: modules make tensors on import."""
    with unset_fake_temporarily():
        return getattr(import_module(f"transformers.models.{family}.{part}_{family}"), name)


# Every vocabulary is that of the tokens that are generated; embeddings of text are not read by a step.
_LLAMA = {"family": "llama", "config": "LlamaConfig", "decoder": "LlamaModel", "vocab_size": 16}
_JANUS = _LLAMA | {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "codes": 16384,
}
_JANUS_1B = _LLAMA | {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "codes": 16384,
}
_QWEN3_TTS = {  # the first codes of frames
    "family": "qwen3",
    "config": "Qwen3Config",
    "decoder": "Qwen3Model",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 16,
    "codes": 3072,
}
_LLASA = _LLAMA | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "codes": 65539,
}
_EMU3 = {
    "family": "emu3",
    "config": "Emu3TextConfig",
    "decoder": "Emu3TextModel",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "codes": 32768,
}
_LUMINA = {
    "family": "chameleon",
    "config": "ChameleonConfig",
    "decoder": "ChameleonModel",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "vocab_size": 16,
    "pad_token_id": 0,
    "vocabulary_map": {"<image>": 3},
    "vq_config": {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "latent_channels": 32},
    "codes": 8192,
}
_LUMINA2 = _LUMINA | {"codes": 16384}  # its class's defaults: its config was not at hand
_SIMPLEAR = {
    "family": "qwen2",
    "config": "Qwen2Config",
    "decoder": "Qwen2Model",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 16,
    "codes": 64000,
}
# Its layers are Gemma's, which do the same products as Llama's.
_LIQUID = _LLAMA | {
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_attention_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "codes": 8192,
}
_EMU3_5 = {  # of Qwen3-32B; with its embeddings that makes the 34.1 billion parameters of its paper
    "family": "qwen3",
    "config": "Qwen3Config",
    "decoder": "Qwen3Model",
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 16,
    "codes": 131072,
}
_COSYVOICE2 = {
    "family": "qwen2",
    "config": "Qwen2Config",
    "decoder": "Qwen2Model",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 16,
    "codes": 6564,
}
_MUSICGEN_LARGE = {"hidden_size": 2048, "ffn_dim": 8192, "num_attention_heads": 32}
# Width, layers, heads and tokens per side.
_LLAMAGEN = {
    "llamagen-b": (768, 12, 12, 16),
    "llamagen-l": (1024, 24, 16, 16),
    "llamagen-xl": (1280, 36, 20, 24),
    "llamagen-xxl": (1536, 48, 24, 24),
}
PUBLISHED: dict[str, PublishedModel] = {
    name: PublishedModel(
        "FoundationVision/LlamaGen, class-conditional", _llamagen, layers, side * side, 1, True,
        {"dim": dim, "n_head": heads, "grid_size": side},
    )
    for name, (dim, layers, heads, side) in _LLAMAGEN.items()
}  # fmt: skip
PUBLISHED |= {
    "janus-7b": PublishedModel("deepseek-community/Janus-Pro-7B", _flat, 30, 576, 32, True, _JANUS),
    "janus-1b": PublishedModel("deepseek-community/Janus-Pro-1B", _flat, 24, 576, 32, True, _JANUS_1B),
    "qwen3-tts": PublishedModel("Qwen/Qwen3-TTS-12Hz-1.7B-Base", _flat, 28, 250, 96, False, _QWEN3_TTS),
    "emu3": PublishedModel("BAAI/Emu3-Gen-hf", _flat, 32, 8190, 64, True, _EMU3),
    "lumina-7b": PublishedModel("Alpha-VLLM/Lumina-mGPT-7B-768", _flat, 32, 2357, 64, True, _LUMINA),
    "lumina2-7b": PublishedModel("Alpha-VLLM/Lumina-mGPT-2.0", _flat, 32, 9311, 64, True, _LUMINA2),
    "simplear-1.5b": PublishedModel("Daniel0724/SimpleAR-1.5B-RL", _flat, 28, 4096, 64, True, _SIMPLEAR),
    "liquid-7b": PublishedModel("Junfeng5/Liquid_V1_7B", _flat, 28, 1024, 64, True, _LIQUID),
    "emu3.5": PublishedModel("BAAI/Emu3.5-Image", _flat, 64, 4069, 64, True, _EMU3_5),
    # From one latent frame of 40 x 64 tokens to all five.
    "cosmos-4b": PublishedModel("nvidia/Cosmos-Predict1-4B", _cosmos, 16, 10240, 2560, False, {"dim": 4096}),
    "cosmos-12b": PublishedModel(
        "nvidia/Cosmos-Predict1-12B", _cosmos, 40, 10240, 2560, False, {"dim": 5120, "yarn": True}
    ),
    "cosyvoice2": PublishedModel("FunAudioLLM/CosyVoice2-0.5B", _flat, 24, 250, 96, False, _COSYVOICE2),
    "llasa-1b": PublishedModel("HKUSTAudio/Llasa-1B", _flat, 16, 500, 64, False, _LLASA),
    "musicgen-large": PublishedModel("facebook/musicgen-large", _musicgen, 48, 503, 24, True, _MUSICGEN_LARGE),
    "csm": PublishedModel("sesame/csm-1b", _csm, 16, 125, 96, False, depth_steps=31),
}

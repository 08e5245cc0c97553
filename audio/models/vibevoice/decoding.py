"""VibeVoice: a language model that reads its latents together with semantic features of the audio they decode to.

A token is a latent and a kind: a frame of audio, the start or the end of an audio segment, or the end of the sequence.
The kind is the argmax of the language model's logits; for a frame of audio, the diffusion head computes the latent from
the position's noise with a deterministic solver. The unconditional rows read the same audio after a start token and no
text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mmspec.audio.latents.backbone_runner import BackboneRunner, early_exit
from mmspec.audio.latents.codecs import VibeVoiceCodec
from mmspec.audio.latents.convolutions import RollbackPaddingCache
from mmspec.batching.call import decode_rows
from mmspec.continuous.prepared import PreparedLatents
from mmspec.continuous.sampler import Gaussian, LatentModel
from mmspec.continuous.stats import LatentStats
from mmspec.decoding.layout import Layout
from mmspec.decoding.resources import DraftResources
from mmspec.decoding.step import OnStep, Watch
from mmspec.decoding.window_policy import adaptive_windows_of
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.seeds import row_seeds


class VibeVoiceHead:
    """The diffusion head and its solver. The mark of a token is its kind, an id of the vocabulary.

    Args:
        model: The model; its generation config names the solver.
        steps: Steps of the solver.
        guidance: Guidance scale.
    """

    marks = 1

    def __init__(self, model: Any, steps: int, guidance: float) -> None:
        config = model.config
        self.dim = self.normals = config.audio_config.hidden_size
        self._model = model
        self.steps = steps
        self._guidance = guidance
        self._audio = config.audio_token_id
        self._kinds = torch.tensor(
            [config.audio_bos_token_id, config.audio_eos_token_id, config.audio_token_id, config.eos_token_id],
            device=model.device,
        )

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        cond, uncond = logits
        assert uncond is not None
        kind_logits = F.linear(cond, self._model.lm_head.weight[self._kinds]).float()
        kind = self._kinds[kind_logits.argmax(-1)]
        mean = self._solve(cond.flatten(0, 1), uncond.flatten(0, 1), noise.flatten(0, 1)).unflatten(0, cond.shape[:2])
        # The other kinds have no latent; the zeros are never read.
        mean = torch.where((kind == self._audio)[..., None], mean, 0.0)
        return Gaussian.deterministic(mean, kind[..., None].float())

    def _solve(self, cond: Tensor, uncond: Tensor, noise: Tensor) -> Tensor:
        """Latents float32 [n, D] from conditions [n, H] and noise [n, D]."""
        solver = self._model._build_default_noise_scheduler(self._model.generation_config)
        solver.set_timesteps(num_inference_steps=self.steps)
        condition, x = torch.cat([cond, uncond]), noise.to(cond.dtype)
        for t in solver.timesteps:
            both = x.repeat(2, 1)
            velocity = self._model.model.diffusion_head(both, t.repeat(len(both)).to(both), condition=condition)
            v, v_uncond = velocity.chunk(2)
            x = solver.step(v_uncond + self._guidance * (v - v_uncond), t, x).prev_sample
        return x.float()


class VibeVoiceTarget:
    """A model with its prompts given.

    In the unconditional rows, slot 0 of the KV cache holds the start token and slot n + 1 holds token n. As in the
    model's own loop for one row, they see a token only if a frame of audio follows it, and they begin anew at each
    start token.

    Args:
        model: A `VibeVoiceForConditionalGeneration`.
        embeds: Prompts [B, T, H], padded on the left.
        mask: bool [B, T], False on padding.
        room: Slots of the KV cache after the prompt.
        depth: Windows by which the padding caches of the audio tokenizers can be rolled back.
        layers: Run only the first `layers` layers of the language model; None runs all.
    """

    ROWS = (
        "_runner", "_uncond_runner", "_decoder_cache", "_encoder_cache", "_visible", "_positions", "_kinds", "_embeds",
    )  # fmt: skip

    vocab_size = 0

    def __init__(
        self, model: Any, embeds: Tensor, mask: Tensor, room: int, depth: int, layers: int | None = None
    ) -> None:
        self.device = model.device
        self._model = model
        self._config = model.config
        self._embeds: Tensor | None = embeds
        self._length = embeds.shape[1]
        self._visible = F.pad(mask, (0, room), value=True)
        self._positions = (self._visible.long().cumsum(1) - 1).clamp(min=0)
        decoder = early_exit(model.model.language_model, layers)
        self._runner, self._uncond_runner = (
            BackboneRunner(decoder, self._length + room),
            BackboneRunner(decoder, 1 + room),
        )
        self._kinds = np.full((len(embeds), room), -1, dtype=np.int64)
        self._decoder_cache, self._encoder_cache = RollbackPaddingCache(depth), RollbackPaddingCache(depth)

    def prefill(self) -> Logits:
        embeds, self._embeds = self._embeds, None
        assert embeds is not None, "prompts are read once"
        rows = len(embeds)
        cond = self._read(embeds, torch.zeros(rows, dtype=torch.int64, device=self.device))[:, -1:]
        start = torch.zeros(rows, 1, dtype=torch.int64, device=self.device)
        start_token = self._embed_kinds(torch.full((rows, 1), self._config.audio_bos_token_id, device=self.device))
        visible = torch.ones(rows, 1, 1, dtype=torch.bool, device=self.device)
        return Logits(cond, self._uncond_runner.read(start_token, start, start, visible))

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        width = tokens.shape[1]
        kinds = tokens[..., -1].long()
        self._kinds[np.arange(len(at))[:, None], at[:, None] + np.arange(width)] = kinds.cpu().numpy()
        embeds = self._embed(tokens[..., :-1], kinds, at)
        cond = self._read(embeds, self._length + torch.from_numpy(at).to(self.device))
        slots, positions, visible = self._unconditional(at, width)
        return Logits(cond, self._uncond_runner.read(embeds, slots, positions, visible))

    def _read(self, embeds: Tensor, start: Tensor) -> Tensor:
        slots = start[:, None] + torch.arange(embeds.shape[1], device=self.device)
        end = int(slots.max()) + 1
        visible = self._visible[:, None, :end] & (torch.arange(end, device=self.device) <= slots[..., None])
        return self._runner.read(embeds, slots, self._positions.gather(1, slots), visible)

    def _unconditional(self, at: NDArray[np.int64], width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Slots and positions [B, W] of a window in the unconditional rows, and the slots it attends to [B, W, end]."""
        end, audio, begin = int(at.max()) + width + 1, self._config.audio_token_id, self._config.audio_bos_token_id
        slots = at[:, None] + 1 + np.arange(width)
        positions, visible = np.zeros_like(slots), np.zeros((*slots.shape, end), dtype=bool)
        for row, kinds in enumerate(self._kinds):
            # Slot s, which holds token s - 1, counts as read if token s is a frame of audio.
            read = kinds[:end] == audio
            for i, slot in enumerate(slots[row]):
                starts = np.flatnonzero(kinds[:slot] == begin)
                since = 1 + int(starts[-1]) if len(starts) else 0
                mine = np.flatnonzero(read[since:slot]) + since
                visible[row, i, mine] = True
                positions[row, i] = len(mine)
        found = [torch.from_numpy(array).to(self.device) for array in (slots, positions, visible)]
        return found[0], found[1], found[2]

    def _embed_kinds(self, kinds: Tensor) -> Tensor:
        return self._model.get_input_embeddings()(kinds)

    def _embed(self, latents: Tensor, kinds: Tensor, at: NDArray[np.int64]) -> Tensor:
        """The embeddings of tokens, [B, W, H]: of a frame of audio, those of its latent and its semantic features."""
        embeds, is_audio = self._embed_kinds(kinds), kinds == self._config.audio_token_id
        if not bool(is_audio.any()):
            return embeds
        model = self._model.model
        # Frames of audio are moved to the front, because the padding caches count frames of audio only.
        order = (~is_audio).int().argsort(dim=1, stable=True)
        latents = latents.to(embeds.dtype)
        frames = latents.gather(1, order[..., None].expand_as(latents))
        earlier = np.arange(self._kinds.shape[1]) < at[:, None]
        before = ((self._kinds == self._config.audio_token_id) & earlier).sum(1)
        scaled = frames / model.latent_scaling_factor - model.latent_bias_factor
        for cache in (self._decoder_cache, self._encoder_cache):
            cache.begin(before, kinds.shape[1])
        audio = model.audio_tower.decode(scaled, padding_cache=self._decoder_cache, use_cache=True).audio
        semantic = model.semantic_tokenizer_encoder(audio, padding_cache=self._encoder_cache, use_cache=True).latents
        for cache in (self._decoder_cache, self._encoder_cache):
            cache.end()
        audio_embeds = model.multi_modal_projector(frames) + model.semantic_connector(semantic)
        audio_embeds = audio_embeds.gather(1, order.argsort(dim=1)[..., None].expand_as(audio_embeds))
        return torch.where(is_audio[..., None], audio_embeds, embeds)


def embed_prompt(model: Any, inputs: dict[str, Any], sample: bool) -> tuple[Tensor, Tensor]:
    """The embeddings [B, T, H] and the mask bool [B, T] of the processor's outputs.

    Args:
        inputs: `input_ids`, `attention_mask`, and voices as `input_values` and `padding_mask`.
        sample: Add noise to the latents of the voices.
    """
    ids = inputs["input_ids"]
    embeds, mask = model.get_input_embeddings()(ids), inputs.get("attention_mask")
    if inputs.get("input_values") is not None:
        features = model.model.get_audio_features(inputs["input_values"], inputs["padding_mask"], sample=sample)
        audio_embeds = features.pooler_output
        placeholders = model.model.get_placeholder_mask(ids, inputs_embeds=embeds, audio_features=audio_embeds)
        embeds = embeds.masked_scatter(placeholders, audio_embeds.to(embeds))
    return embeds, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()


@dataclass
class VibeVoiceOutput:
    """The output of `converse`.

    Attributes:
        audio: float32 [channels, samples] of each row at 24 kHz, decoded from all of its frames at once.
        tokens: float32 [n, D + 1] of each row, latents and kinds.
        stats: Statistics of the call.
    """

    audio: list[Tensor]
    tokens: list[Tensor]
    seeds: list[int]
    stats: LatentStats


@torch.no_grad()
def converse(
    model: Any,
    inputs: dict[str, Any],
    recipe: str | Recipe = "plain",
    *,
    draft_model: Any = None,
    seed: int | Sequence[int] | None = None,
    max_tokens: int = 512,
    guidance_scale: float = 1.3,
    num_diffusion_steps: int = 10,
    sample_voice: bool = False,
    on_step: OnStep | None = None,
) -> VibeVoiceOutput:
    """Generates the audio of scripts.

    In the model's own loop, a guidance scale other than 1 also changes the kinds, by a third pass over ids that the
    model was not trained on; here the kinds are those of the conditional rows.

    Args:
        model: `VibeVoiceForConditionalGeneration`, with the deterministic solver of its generation config.
        inputs: The processor's outputs: `input_ids`, `attention_mask`, and voices as `input_values`, `padding_mask`.
        recipe: `plain`, or a drafter with a rule for latents, such as `few-steps+tolerance`.
        draft_model: A smaller model with the same audio tokenizers, for the drafter `draft`.
        seed: Row i uses `seed + i`; or one seed per row.
        max_tokens: Tokens per row, at most: frames (7.5 per second), starts and ends.
        guidance_scale: 1 is off.
        num_diffusion_steps: Steps of the solver.
        sample_voice: Add noise to the latents of the voices, as the model's own loop does.
        on_step: Called after every target call.

    Raises:
        ArgumentError: For an argument whose value is not allowed.
        UnknownNameError: For an unknown recipe, rule or drafter.
    """
    rows, chosen = len(inputs["input_ids"]), parse(recipe)
    seeds = row_seeds(seed, rows)
    prepared = prepare_tokens(
        model, inputs, chosen, [max_tokens] * rows, draft_model, guidance_scale, num_diffusion_steps, sample_voice
    )
    found, stats = decode_rows(prepared, chosen, seeds, Watch(on_step))
    assert isinstance(stats, LatentStats)
    tokens = [row.to(model.device) for row in found]
    codec = VibeVoiceCodec(model)
    audio = [codec.decode(latents_of(model, row)[None])[0].cpu() for row in tokens]
    return VibeVoiceOutput(audio, tokens, seeds, stats)


def prepare_tokens(
    model: Any,
    inputs: dict[str, Any],
    recipe: Recipe,
    limits: Sequence[int],
    draft_model: Any = None,
    guidance_scale: float = 1.3,
    num_diffusion_steps: int = 10,
    sample_voice: bool = False,
) -> PreparedLatents:
    """Scripts that are ready to be decoded to tokens [n, D + 1], latents and kinds.

    Args:
        limits: Tokens of each row, at most.

    Raises:
        ArgumentError: For an argument whose value is not allowed.
    """
    max_tokens = max(limits)
    if min(limits) < 1 or num_diffusion_steps < 1:
        raise ArgumentError(
            f"max_tokens={min(limits)} and num_diffusion_steps={num_diffusion_steps} must both be 1 or more"
        )
    if draft_model is not None and draft_model.config.audio_config != model.config.audio_config:
        raise ArgumentError("draft_model has another acoustic tokenizer than the model; they do not belong together")
    prompts = {id(each): embed_prompt(each, inputs, sample_voice) for each in (model, draft_model) if each is not None}

    def target(each: Any, layers: int | None = None) -> VibeVoiceTarget:
        # A drafter reads frames one by one, and is rolled back by as many as a window has.
        return VibeVoiceTarget(each, *prompts[id(each)], max_tokens + recipe.window, recipe.window + 1, layers)

    def head(each: Any, steps: int = num_diffusion_steps) -> VibeVoiceHead:
        return VibeVoiceHead(each, steps, guidance_scale)

    models: dict[str, Callable[[int], LatentModel]] = {
        "layer-skip": lambda layers: LatentModel(target(model, layers), head(model)),
        "few-steps": lambda steps: LatentModel(target(model), head(model, steps)),
    }
    if draft_model is not None:
        models = {"draft": lambda _: LatentModel(target(draft_model), head(draft_model)), **models}
    resources = DraftResources(latent_models=models, adaptive_windows=adaptive_windows_of(model))
    config, dim = model.config, model.config.audio_config.hidden_size
    layout = Layout(
        max_tokens,
        cell=(dim + 1,),
        dtype=torch.float32,
        ends=lambda tokens: tokens[..., -1] == config.eos_token_id,
    )
    return PreparedLatents(target(model), head(model), layout, resources, limits)


def latents_of(model: Any, tokens: Tensor) -> Tensor:
    """The latents [D, F] of the audio frames among a row's tokens [n, D + 1], up to the end of the sequence."""
    ends = (tokens[:, -1] == model.config.eos_token_id).nonzero()
    tokens = tokens[: int(ends[0])] if len(ends) else tokens
    return tokens[tokens[:, -1] == model.config.audio_token_id, :-1].T

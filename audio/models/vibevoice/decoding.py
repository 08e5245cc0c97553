"""VibeVoice: a language model whose next input is its last latent and what a semantic encoder hears of its sound.

A token is a latent and a kind: a frame of sound, the start or the end of a stretch of it, or the end of all. Kinds are
the language model's favourites; where it says "sound", the diffusion head makes the latent by a deterministic solver
from the noise of the position. The unconditional side reads the same sound after a start mark and no text.
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

from mmspec.audio.latents.backbone_runner import BackboneRunner, shallow
from mmspec.audio.latents.codecs import VibeVoiceCodec
from mmspec.audio.latents.convolutions import Rewinding
from mmspec.continuous.run import Latents, LatentStats, run_latents
from mmspec.continuous.sampler import Gaussian, LatentModel
from mmspec.decoding.adaptive_window import adaptive_windows_of
from mmspec.decoding.layout import Layout
from mmspec.decoding.loop import OnStep
from mmspec.decoding.resources import DraftResources
from mmspec.errors import ArgumentError
from mmspec.recipes import Recipe, parse
from mmspec.sampling.logits import Logits
from mmspec.sampling.seeds import row_seeds


class VibeVoiceHead:
    """The diffusion head and its solver. A token's mark is its kind, an id of the vocabulary.

    Args:
        model: Whose generation config names the solver.
        steps: Of it.
        guidance: Scale.
    """

    marks = 1

    def __init__(self, model: Any, steps: int, guidance: float) -> None:
        config = model.config
        self.dim = self.normals = config.audio_config.hidden_size
        self._model = model
        self._steps = steps
        self._guidance = guidance
        self._audio = config.audio_token_id
        self._kinds = torch.tensor(
            [config.audio_bos_token_id, config.audio_eos_token_id, config.audio_token_id, config.eos_token_id],
            device=model.device,
        )

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        cond, uncond = logits
        assert uncond is not None
        said = F.linear(cond, self._model.lm_head.weight[self._kinds]).float()
        kind = self._kinds[said.argmax(-1)]
        mean = self._solve(cond.flatten(0, 1), uncond.flatten(0, 1), noise.flatten(0, 1)).unflatten(0, cond.shape[:2])
        # Marks carry no latent; the zeros are never read.
        mean = torch.where((kind == self._audio)[..., None], mean, 0.0)
        return Gaussian.certain(mean, kind[..., None].float())

    def _solve(self, cond: Tensor, uncond: Tensor, noise: Tensor) -> Tensor:
        """Latents float32 [n, D] from conditions [n, H] and noise [n, D]."""
        solver = self._model._build_default_noise_scheduler(self._model.generation_config)
        solver.set_timesteps(num_inference_steps=self._steps)
        condition, x = torch.cat([cond, uncond]), noise.to(cond.dtype)
        for t in solver.timesteps:
            both = x.repeat(2, 1)
            said = self._model.model.diffusion_head(both, t.repeat(len(both)).to(both), condition=condition)
            v, v_uncond = said.chunk(2)
            x = solver.step(v_uncond + self._guidance * (v - v_uncond), t, x).prev_sample
        return x.float()


class VibeVoiceTarget:
    """A model with its prompts given.

    Slot 0 of the unconditional side holds the start mark, slot n + 1 token n. It has read a token only where sound
    follows, and a start mark among the tokens lets it begin anew, as in the model's own loop for one row.

    Args:
        embeds: [B, T, H], `mask`: bool [B, T], padded on the left.
        room: Slots after the prompt.
        depth: Windows that the codec's memory can go back.
        layers: Only the first so many of the language model.
    """

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
        decoder = shallow(model.model.language_model, layers)
        self._runner, self._negative = BackboneRunner(decoder, self._length + room), BackboneRunner(decoder, 1 + room)
        self._kinds = np.full((len(embeds), room), -1, dtype=np.int64)
        self._decoder, self._encoder = Rewinding(depth), Rewinding(depth)

    def prefill(self) -> Logits:
        embeds, self._embeds = self._embeds, None
        assert embeds is not None, "prompts are read once"
        rows = len(embeds)
        cond = self._read(embeds, torch.zeros(rows, dtype=torch.int64, device=self.device))[:, -1:]
        start = torch.zeros(rows, 1, dtype=torch.int64, device=self.device)
        mark = self._embed_kinds(torch.full((rows, 1), self._config.audio_bos_token_id, device=self.device))
        seen = torch.ones(rows, 1, 1, dtype=torch.bool, device=self.device)
        return Logits(cond, self._negative.read(mark, start, start, seen))

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        width = tokens.shape[1]
        kinds = tokens[..., -1].long()
        self._kinds[np.arange(len(at))[:, None], at[:, None] + np.arange(width)] = kinds.cpu().numpy()
        embeds = self._embed(tokens[..., :-1], kinds, at)
        cond = self._read(embeds, self._length + torch.from_numpy(at).to(self.device))
        slots, positions, seen = self._unconditional(at, width)
        return Logits(cond, self._negative.read(embeds, slots, positions, seen))

    def select_rows(self, row_ids: list[int]) -> None:
        for reader in (self._runner, self._negative):
            reader.select_rows(row_ids, self.device)
        for memory in (self._decoder, self._encoder):
            memory.select_rows(row_ids)
        self._visible, self._positions, self._kinds = (
            self._visible[row_ids],
            self._positions[row_ids],
            self._kinds[row_ids],
        )
        if self._embeds is not None:
            self._embeds = self._embeds[row_ids]

    def _read(self, embeds: Tensor, start: Tensor) -> Tensor:
        slots = start[:, None] + torch.arange(embeds.shape[1], device=self.device)
        end = int(slots.max()) + 1
        seen = self._visible[:, None, :end] & (torch.arange(end, device=self.device) <= slots[..., None])
        return self._runner.read(embeds, slots, self._positions.gather(1, slots), seen)

    def _unconditional(self, at: NDArray[np.int64], width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where a window's tokens go on the unconditional side: slots and positions [B, W], and the slots they see."""
        end, audio, begin = int(at.max()) + width + 1, self._config.audio_token_id, self._config.audio_bos_token_id
        slots = at[:, None] + 1 + np.arange(width)
        positions, seen = np.zeros_like(slots), np.zeros((*slots.shape, end), dtype=bool)
        for row, kinds in enumerate(self._kinds):
            # Slot s was read when the token after it turned out to be sound.
            read = kinds[:end] == audio
            for i, slot in enumerate(slots[row]):
                starts = np.flatnonzero(kinds[:slot] == begin)
                since = 1 + int(starts[-1]) if len(starts) else 0
                mine = np.flatnonzero(read[since:slot]) + since
                seen[row, i, mine] = True
                positions[row, i] = len(mine)
        found = [torch.from_numpy(part).to(self.device) for part in (slots, positions, seen)]
        return found[0], found[1], found[2]

    def _embed_kinds(self, kinds: Tensor) -> Tensor:
        return self._model.get_input_embeddings()(kinds)

    def _embed(self, latents: Tensor, kinds: Tensor, at: NDArray[np.int64]) -> Tensor:
        """What the language model reads of tokens, [B, W, H]: of sound the latent and what is heard of it."""
        embeds, sound = self._embed_kinds(kinds), kinds == self._config.audio_token_id
        if not bool(sound.any()):
            return embeds
        model = self._model.model
        # Frames of sound come first; a codec's memory counts them and nothing else.
        order = (~sound).int().argsort(dim=1, stable=True)
        latents = latents.to(embeds.dtype)
        frames = latents.gather(1, order[..., None].expand_as(latents))
        earlier = np.arange(self._kinds.shape[1]) < at[:, None]
        before = ((self._kinds == self._config.audio_token_id) & earlier).sum(1)
        scaled = frames / model.latent_scaling_factor - model.latent_bias_factor
        for memory in (self._decoder, self._encoder):
            memory.begin(before, kinds.shape[1])
        heard = model.audio_tower.decode(scaled, padding_cache=self._decoder, use_cache=True).audio
        semantic = model.semantic_tokenizer_encoder(heard, padding_cache=self._encoder, use_cache=True).latents
        for memory in (self._decoder, self._encoder):
            memory.end()
        audio = model.multi_modal_projector(frames) + model.semantic_connector(semantic)
        audio = audio.gather(1, order.argsort(dim=1)[..., None].expand_as(audio))
        return torch.where(sound[..., None], audio, embeds)


def embed_prompt(model: Any, inputs: dict[str, Any], sample: bool) -> tuple[Tensor, Tensor]:
    """Embeddings [B, T, H] and mask bool [B, T] of what the processor gives: ids, and voices to speak with."""
    ids = inputs["input_ids"]
    embeds, mask = model.get_input_embeddings()(ids), inputs.get("attention_mask")
    if inputs.get("input_values") is not None:
        heard = model.model.get_audio_features(inputs["input_values"], inputs["padding_mask"], sample=sample)
        there = model.model.get_placeholder_mask(ids, inputs_embeds=embeds, audio_features=heard.pooler_output)
        embeds = embeds.masked_scatter(there, heard.pooler_output.to(embeds))
    return embeds, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()


@dataclass
class Conversation:
    """What a call gives.

    Attributes:
        audio: float32 [channels, samples] of each row at 24 kHz, as the codec's sound comes of all its frames.
        tokens: float32 [n, D + 1] of each row, latents and kinds.
        seeds: Of the rows.
        stats: What it cost.
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
) -> Conversation:
    """Speaks scripts.

    The model's own loop lets a guidance other than 1 also change which kinds are said, by a third pass over ids that
    no model was trained on; here kinds are the conditional side's.

    Args:
        model: `VibeVoiceForConditionalGeneration`, with the deterministic solver of its generation config.
        inputs: What its processor gives: `input_ids`, `attention_mask`, and voices as `input_values`, `padding_mask`.
        recipe: `plain`, or a way of drafting with a rule for vectors, such as `few-steps+tolerance`.
        draft_model: A smaller model of the same tokenizers, for `draft`.
        seed: Row i uses `seed + i`; or one seed per row.
        max_tokens: At most so many, frames (7.5 a second) and marks.
        guidance_scale: 1 is off.
        num_diffusion_steps: Of the solver.
        sample_voice: Add the noise to the voices that the model's own loop adds.

    Raises:
        ArgumentError: When an argument has a value that is not allowed.
        UnknownNameError: When a model, recipe, rule or drafter of that name does not exist.
    """
    seeds = row_seeds(seed, len(inputs["input_ids"]))
    found = draw_tokens(
        model, inputs, parse(recipe), seeds, draft_model, max_tokens, guidance_scale, num_diffusion_steps,
        sample_voice, on_step,
    )  # fmt: skip
    tokens = [row[: stats.tokens] for row, stats in zip(found.tokens, found.stats.rows, strict=True)]
    codec = VibeVoiceCodec(model)
    sounds = [codec.decode(latents_of(model, row)[None])[0].cpu() for row in tokens]
    return Conversation(sounds, tokens, seeds, found.stats)


def draw_tokens(
    model: Any,
    inputs: dict[str, Any],
    recipe: Recipe,
    seeds: Sequence[int],
    draft_model: Any = None,
    max_tokens: int = 512,
    guidance_scale: float = 1.3,
    num_diffusion_steps: int = 10,
    sample_voice: bool = False,
    on_step: OnStep | None = None,
) -> Latents:
    """Tokens of scripts, [B, n, D + 1], latents and kinds; see `converse`."""
    given = dict(inputs)
    if max_tokens < 1 or num_diffusion_steps < 1:
        raise ArgumentError(
            f"max_tokens={max_tokens} and num_diffusion_steps={num_diffusion_steps} must both be 1 or more"
        )
    if draft_model is not None and draft_model.config.audio_config != model.config.audio_config:
        raise ArgumentError("draft_model has another acoustic tokenizer than the model; they do not belong together")
    read = {id(each): embed_prompt(each, given, sample_voice) for each in (model, draft_model) if each is not None}

    def target(each: Any, layers: int | None = None) -> VibeVoiceTarget:
        # A drafter reads single frames, and goes back a window of them.
        return VibeVoiceTarget(each, *read[id(each)], max_tokens + recipe.window, recipe.window + 1, layers)

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
    return run_latents(target(model), head(model), recipe, layout, seeds, resources, on_step)


def latents_of(model: Any, tokens: Tensor) -> Tensor:
    """The frames of sound among a row's tokens [n, D + 1], as the codec wants them, [D, F]."""
    ends = (tokens[:, -1] == model.config.eos_token_id).nonzero()
    tokens = tokens[: int(ends[0])] if len(ends) else tokens
    return tokens[tokens[:, -1] == model.config.audio_token_id, :-1].T

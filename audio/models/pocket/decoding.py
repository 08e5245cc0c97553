"""Pocket TTS and Gradium Phonon TTS: a causal backbone and a flow head that makes a latent in few steps.

The backbone reads latents, not decoded audio, so that a window of drafted latents is one forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmspec.audio.latents.backbone_runner import BackboneRunner, early_exit
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
from mmspec.sampling.rows import PerRow
from mmspec.sampling.seeds import row_seeds

# What is read of a processor's outputs.
INPUTS = ("input_ids", "attention_mask", "audio_prompt_latents", "audio_prompt_latents_mask")
FRAMES_AFTER_EOS = "frames_after_eos"  # that key of the outputs
NO_END = -1.0  # the mark of frames before the end is predicted


class PocketHead:
    """The flow head, which integrates a latent from noise in few steps.

    The mark of a frame is the number of frames that follow it, 0 for the last; `NO_END` before the end is predicted.

    Args:
        model: `PocketTTSForConditionalGeneration` or `GradiumPhononTTSForConditionalGeneration`.
        steps: Steps of the flow; a "drifting" head has one.
        eos_threshold: An end is predicted if its logit is above it.
        min_frames: The first frame that may predict an end.
    """

    marks = 1

    def __init__(self, model: Any, steps: int, eos_threshold: float, min_frames: int) -> None:
        self.dim = self.normals = model.config.latent_dim
        self._model = model
        self.steps = 1 if model.config.flow_head_config.flow_type == "drifting" else steps
        self._threshold = eos_threshold
        self._min_frames = min_frames

    def __call__(self, logits: Logits, noise: Tensor, positions: NDArray[np.int64]) -> Gaussian:
        # The "logits" of the target: hidden state, mark of the previous frame, number of frames after a predicted end,
        # scale of the noise.
        hidden, (before, after, scale) = logits.cond[..., :-3], logits.cond[..., -3:].unbind(-1)
        start = (noise * scale[..., None]).to(hidden.dtype).flatten(0, 1)
        mean = self._model.sample_latent(hidden.flatten(0, 1), start, self.steps).unflatten(0, positions.shape).float()
        late = torch.from_numpy(positions >= self._min_frames).to(hidden.device)
        ends = (self._model.eos_head(hidden)[..., 0].float() > self._threshold) & late
        mark = torch.where(before > 0, before - 1, torch.where(ends, after, NO_END))
        return Gaussian.deterministic(mean, mark[..., None].float())


class PocketTarget:
    """A model with its prompts given.

    Args:
        model: `PocketTTSForConditionalGeneration` or `GradiumPhononTTSForConditionalGeneration`.
        prompt: The processor's outputs: `input_ids` int64 [B, T] and `attention_mask` [B, T], padded on the left; with
            a voice, its latents and their mask.
        after: float [B], frames to generate after the one that predicts the end.
        scale: float [B], standard deviation of the noise; 0 is no noise.
        room: Slots of the KV cache after the prompt.
        layers: Run only the first `layers` layers; None runs all.
    """

    ROWS = (
        "_runner", "_length", PerRow("_visible", fill=True), "_positions", "_after", "_scale", "_prompt",
    )  # fmt: skip
    SAME = ("_model", "_layers")

    vocab_size = 0

    def __init__(
        self,
        model: Any,
        prompt: dict[str, Tensor | None],
        after: Tensor,
        scale: Tensor,
        room: int,
        layers: int | None = None,
    ) -> None:
        ids = prompt["input_ids"]
        assert ids is not None
        self.device = model.device
        self._model = model
        self._prompt: dict[str, Tensor | None] | None = prompt
        mask = prompt.get("attention_mask")
        visible = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
        length = ids.shape[1]
        self._length = torch.full((len(ids),), length, device=self.device)  # slots of the prompt, by row
        self._visible = F.pad(visible, (0, room), value=True)
        # Padding has positions too; nothing attends to it.
        self._positions = (self._visible.long().cumsum(1) - 1).clamp(min=0)
        self._after, self._scale = after.to(self.device), scale.to(self.device)
        self._layers = layers
        self._runner = BackboneRunner(early_exit(model.model, layers), length + room)

    def prefill(self) -> Logits:
        prompt, self._prompt = self._prompt, None
        assert prompt is not None, "prompts are read once"
        embeds = embed_prompt(self._model, prompt)
        hidden = self._read(embeds, torch.zeros(len(embeds), dtype=torch.int64, device=self.device))[:, -1:]
        return self._logits(hidden, torch.full(hidden.shape[:2], NO_END, device=self.device))

    def forward(self, tokens: Tensor, at: NDArray[np.int64]) -> Logits:
        latents, marks = tokens[..., :-1], tokens[..., -1]
        embeds = self._model.model.embed_audio_latents(latents)
        return self._logits(self._read(embeds, self._length + torch.from_numpy(at).to(self.device)), marks)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache."""
        return self._runner.cache_bytes

    def _read(self, embeds: Tensor, start: Tensor) -> Tensor:
        slots = start[:, None] + torch.arange(embeds.shape[1], device=self.device)
        end = int(slots.max()) + 1
        visible = self._visible[:, None, :end] & (torch.arange(end, device=self.device) <= slots[..., None])
        return self._runner.read(embeds, slots, self._positions.gather(1, slots), visible)

    def _logits(self, hidden: Tensor, before: Tensor) -> Logits:
        """The input of `PocketHead`: hidden states, previous marks, frames after an end, and scales, [B, W, H + 3]."""
        after, scale = (each[:, None].expand_as(before) for each in (self._after, self._scale))
        return Logits(torch.cat([hidden.float(), torch.stack([before, after, scale], dim=-1)], dim=-1), None)


def embed_prompt(model: Any, prompt: Mapping[str, Tensor | None]) -> Tensor:
    """The prompt's embeddings [B, T, H]: those of its ids, of the start latent, and of the voices' latents.

    The model inserts them in its own forward pass and returns none of them. A hook that catches them would catch those
    of other threads, too.
    """
    ids, config, inner = prompt["input_ids"], model.config, model.model
    assert ids is not None
    embeds = inner.embed_tokens(ids)
    start = inner.embed_audio_latents(inner.bos_latent).to(embeds)
    embeds = torch.where((ids == config.audio_bos_token_id)[..., None], start, embeds)
    if (voices := prompt.get("audio_prompt_latents")) is not None:
        mask = prompt.get("audio_prompt_latents_mask")
        frames = voices.flatten(0, 1) if mask is None else voices[mask.bool()]
        project = inner.audio_prompt_proj
        places = (ids == config.audio_prompt_token_id)[..., None].expand_as(embeds)
        embeds = embeds.masked_scatter(places, project(frames.to(project.weight)).to(embeds))
    return embeds


@dataclass
class PocketOutput:
    """The output of `speak`; the processor's `decode` decodes the first two fields into audio.

    Attributes:
        audio_latents: [B, F, D], in the codec's space, zeros after a row's end.
        audio_latents_mask: int64 [B, F], 1 up to a row's end.
        stats: Statistics of the call.
    """

    audio_latents: Tensor
    audio_latents_mask: Tensor
    seeds: list[int]
    stats: LatentStats


@torch.no_grad()
def speak(
    model: Any,
    inputs: dict[str, Any],
    recipe: str | Recipe = "plain",
    *,
    draft_model: Any = None,
    seed: int | Sequence[int] | None = None,
    max_frames: int = 512,
    temperature: float = 0.7,
    num_flow_steps: int = 1,
    eos_threshold: float = -4.0,
    min_frames_before_eos: int = 6,
    on_step: OnStep | None = None,
) -> PocketOutput:
    """Generates the latents of prompts.

    Args:
        model: `PocketTTSForConditionalGeneration` or `GradiumPhononTTSForConditionalGeneration`.
        inputs: The processor's outputs: `input_ids`, `attention_mask`, `frames_after_eos`, and a voice as
            `audio_prompt_latents` with its mask.
        recipe: `plain`, or a drafter with a rule for latents, such as `draft+smoothed:sigma=0.1`.
        draft_model: A smaller model of the same latents (same codec, mean and deviation), for the drafter `draft`.
        seed: Row i uses `seed + i`; or one seed per row.
        max_frames: Latents per row, at most; 12.5 per second.
        temperature: Of the model's `generate`, like the next three; 0 is `do_sample=False`.
        on_step: Called after every target call.

    Raises:
        ArgumentError: For an argument whose value is not allowed.
        UnknownNameError: For an unknown recipe, rule or drafter.
    """
    seeds, chosen = row_seeds(seed, len(inputs["input_ids"])), parse(recipe)
    rows = len(seeds)
    prepared = prepare_frames(
        model, inputs, chosen, [temperature] * rows, draft_model, [max_frames] * rows, num_flow_steps, eos_threshold,
        min_frames_before_eos,
    )  # fmt: skip
    found, stats = decode_rows(prepared, chosen, seeds, Watch(on_step))
    assert isinstance(stats, LatentStats)
    lengths = torch.tensor([len(row) for row in found], device=model.device)
    mask = torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]
    tokens = pad_sequence(found, batch_first=True).to(model.device)
    latents = model.denormalize_latents(tokens[..., :-1]) * mask[..., None]
    return PocketOutput(latents, mask.long(), seeds, stats)


def prepare_frames(
    model: Any,
    inputs: dict[str, Any],
    recipe: Recipe,
    temperatures: Sequence[float],
    draft_model: Any,
    limits: Sequence[int],
    num_flow_steps: int = 1,
    eos_threshold: float = -4.0,
    min_frames_before_eos: int = 6,
) -> PreparedLatents:
    """Prompts that are ready to be decoded; see `speak`.

    Args:
        model: As there, like the arguments that are not described here.
        temperatures: One per row.
        limits: Latents of each row, at most.

    Raises:
        ArgumentError: For an argument whose value is not allowed.
    """
    prompt = dict(inputs)
    after = prompt.pop(FRAMES_AFTER_EOS, 1)
    if unknown := [name for name in prompt if name not in INPUTS]:
        raise ArgumentError(f"inputs has {', '.join(unknown)}, which is not allowed; use {', '.join(INPUTS)}")
    for temperature in temperatures:
        if not temperature >= 0:
            raise ArgumentError(f"temperature={temperature} is not allowed; it must be 0 or more")
    if min(limits) < 1:
        raise ArgumentError(f"max_frames={min(limits)} is not allowed; it must be 1 or more")
    if draft_model is not None:
        check_sibling(model, draft_model)
    rows, longest = len(prompt["input_ids"]), max(limits)
    frames_after = torch.as_tensor(after, dtype=torch.float32).expand(rows)
    scale = torch.tensor(list(temperatures), dtype=torch.float64).sqrt().float()

    def target(model: Any, layers: int | None = None) -> PocketTarget:
        return PocketTarget(model, dict(prompt), frames_after, scale, longest + recipe.window, layers)

    def head(model: Any, steps: int = num_flow_steps) -> PocketHead:
        return PocketHead(model, steps, eos_threshold, min_frames_before_eos)

    models: dict[str, Callable[[int], LatentModel]] = {
        "layer-skip": lambda layers: LatentModel(target(model, layers), head(model)),
        "few-steps": lambda steps: LatentModel(target(model), head(model, steps)),
    }
    if draft_model is not None:
        models = {"draft": lambda _: LatentModel(target(draft_model), head(draft_model)), **models}
    resources = DraftResources(latent_models=models, adaptive_windows=adaptive_windows_of(model))
    dim = model.config.latent_dim
    layout = Layout(longest, cell=(dim + 1,), dtype=torch.float32, ends=lambda tokens: tokens[..., -1] == 0)
    return PreparedLatents(target(model), head(model), layout, resources, limits)


def check_sibling(model: Any, draft: Any) -> None:
    """Checks that a draft model has the same latents as the model.

    Raises:
        ArgumentError: If their size, mean or deviation differs.
    """
    if draft.config.latent_dim != model.config.latent_dim:
        raise ArgumentError(
            f"draft_model has latents of {draft.config.latent_dim} numbers, the model of {model.config.latent_dim}; "
            "they belong to different families"
        )
    for name in ("latent_mean", "latent_std"):
        if not torch.allclose(getattr(draft, name).to(model.device), getattr(model, name), atol=1e-4):
            raise ArgumentError(f"draft_model has another {name} than the model; they belong to different codecs")

"""MusicGen and MusicGen-melody, mono and stereo: columns of 4 or 8 EnCodec codes, each codebook a column later.

Call `GenerationMixin.generate(model, **inputs, custom_generate=mmspec.generate)`: the models' own `generate` has no
such argument. It returns the audio that their own `generate` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import UnbatchedClassifierFreeGuidanceLogitsProcessor

from mmspec.audio.codec import Codec, CodecStream
from mmspec.audio.codecs import codec_of
from mmspec.audio.multi_codebook.column_target import ColumnTarget
from mmspec.audio.multi_codebook.cross_attention import CrossAttention
from mmspec.audio.multi_codebook.decoding import (
    ColumnDecodingPlan,
    ColumnOutput,
    decode_columns,
    refuse_logits_processors,
)
from mmspec.audio.multi_codebook.delay_pattern import delay, linear_delays, triangles, undelay
from mmspec.decoding.cuda_graphs import CUDAGraphTarget
from mmspec.decoding.kept_graphs import ROUND
from mmspec.decoding.layout import Layout
from mmspec.errors import ArgumentError
from mmspec.hf.arguments import read_length, read_processors, read_sampling, refuse_modes
from mmspec.hf.cache_name import cache_input
from mmspec.hf.causal_target import CausalTarget, Prompt, with_cuda_graphs
from mmspec.hf.decoder_layers import DecoderLayers, RunLayer
from mmspec.hf.plan import position_ids_of
from mmspec.hf.prepared_inputs import refuse_unknown_inputs
from mmspec.hf.request import GenerateRequest
from mmspec.sampling.constraints import ForcedCells
from mmspec.sampling.params import SamplingParams, guidance_of_call

INPUTS = ("encoder_outputs", "input_values", "padding_mask", "input_features")  # that are read
MELODY = "MusicgenMelodyForConditionalGeneration"
_growing = Lock()  # threads may need longer tables of positions at a time


@dataclass(frozen=True)
class MusicgenRequest:
    """The arguments of a `generate` call, as transformers prepared them.

    Attributes:
        codes: int64 [B, P, K], frames to continue; P may be 0.
        columns: Columns in all, including those of these frames.
        sampling: Sampling parameters, with the guidance scale.
        inputs: `encoder_outputs` and `attention_mask` of the text, and `input_features` of the melody.
    """

    codes: Tensor
    columns: int
    sampling: SamplingParams
    inputs: Mapping[str, Any]


def vocab_size(model: Any) -> int:
    """Size of the vocabulary that logits are over."""
    return int(model.decoder.config.vocab_size)


def generate(call: GenerateRequest) -> Tensor | ColumnOutput:
    """`mmspec.generate` for MusicGen: audio float32 [B, channels, samples], as its own `generate` returns it."""
    model, request = call.model, read(call)
    tables = musicgen_codec(model).tables
    decoded = decode_columns(call, len(request.codes), lambda model: plan(model, request), tables)
    frames = frames_of(model, request, decoded.tokens)
    audio = musicgen_codec(model).decode(frames.transpose(1, 2))
    if call.config.return_dict_in_generate:
        return ColumnOutput(sequences=audio, columns=decoded.tokens, stats=decoded.stats)
    return audio


def read(call: GenerateRequest) -> MusicgenRequest:
    """Reads the arguments of a `generate` call.

    Raises:
        ArgumentError: For arguments that are not supported for columns, and for a length below one frame.
    """
    model, config, inputs = call.model, call.config, call.inputs
    refuse_modes(config, inputs, embeds=True)
    refuse_unknown_inputs(model, inputs, INPUTS, call.given)
    found, others = read_processors(call.processors)
    refuse_logits_processors(model, others)
    guidance = found.get(UnbatchedClassifierFreeGuidanceLogitsProcessor)
    scale = config.guidance_scale if guidance is None else guidance.guidance_scale
    scale = guidance_of_call(1.0 if scale is None else scale)
    sampling = read_sampling(found, bool(config.do_sample))
    codebooks, copies = model.decoder.num_codebooks, int(config.num_return_sequences or 1)
    # transformers repeats each row of [B * K, T] separately, which scrambles the codebooks of a prompt.
    ids = call.input_ids[::copies].unflatten(0, (-1, codebooks)).repeat_interleave(copies, 0)
    codes = ids[..., 1:].transpose(1, 2)
    length, _ = read_length(call.criteria, 1)
    if inputs.get("input_values") is not None and not codes.shape[1]:
        codes = encode(model, inputs)
        length += codes.shape[1]
    last = max(delays_of(model))
    if length - last < codes.shape[1] + 1:
        raise ArgumentError(
            f"max_new_tokens={length - codes.shape[1]} is not allowed; {last + 1} columns make one frame of "
            f"{codebooks} codebooks"
        )
    sampling = replace(sampling, guidance_scale=scale)
    return MusicgenRequest(codes, length, sampling, inputs)


def encode(model: Any, inputs: Mapping[str, Any]) -> Tensor:
    """The codes int64 [B, P, K] of the audio to continue, `input_values` [B, channels, samples]."""
    audio, mask = inputs["input_values"], inputs.get("padding_mask")
    with torch.no_grad():
        if model.decoder.config.audio_channels == 1:
            books = model.audio_encoder.encode(audio, mask).audio_codes[0]
        else:
            channels = [model.audio_encoder.encode(audio[:, i : i + 1], mask).audio_codes[0] for i in (0, 1)]
            books = torch.stack(channels, dim=2).flatten(1, 2)
    return books.transpose(1, 2)


def delays_of(model: Any) -> list[int]:
    """The delay of each codebook, in columns."""
    return linear_delays(model.decoder.num_codebooks, model.decoder.config.audio_channels)


def known_cells(model: Any, request: MusicgenRequest) -> NDArray[np.int64]:
    """The given cells, host int64 [B, columns, K]: padding at both ends and the prompt's codes; -1 elsewhere."""
    delays, pad = delays_of(model), int(model.decoder.config.pad_token_id)
    known = triangles(request.columns, delays, pad, pad)[None].repeat(len(request.codes), axis=0)
    if request.codes.shape[1]:
        prompt = delay(request.codes, delays, -1, -1)[:, : request.columns].cpu().numpy()
        known[:, : prompt.shape[1]] = np.where(prompt >= 0, prompt, known[:, : prompt.shape[1]])
    return known


def frames_of(model: Any, request: MusicgenRequest, tokens: Tensor) -> Tensor:
    """The frames int64 [B, F, K] of the prompt's columns followed by the generated columns `tokens`."""
    first = torch.from_numpy(known_cells(model, request)[:, : request.codes.shape[1]]).to(tokens.device)
    return undelay(torch.cat([first, tokens], dim=1), delays_of(model))


def plan(model: Any, request: MusicgenRequest) -> ColumnDecodingPlan:
    """The plan of a request with a model, which is the target's or the draft model."""
    decoder, known, start = model.decoder, known_cells(model, request), request.codes.shape[1]
    device, pad = request.codes.device, int(decoder.config.pad_token_id)
    length, rows, codebooks = request.columns - start, len(known), decoder.num_codebooks
    prompt = torch.full((rows, 1, codebooks), pad, device=device)
    prompt = torch.cat([prompt, torch.from_numpy(known[:, :start]).to(device)], dim=1)
    tables = decoder.model.decoder.embed_tokens

    def embed(ids: Tensor) -> Tensor:
        return sum(table(ids[..., k]) for k, table in enumerate(tables))

    def heads(hidden: Tensor) -> Tensor:
        return torch.stack([head(hidden) for head in decoder.lm_heads], dim=2)

    def target(window: int, guided: bool) -> CausalTarget | CUDAGraphTarget:
        melody, cross_attention = conditions(model, request.inputs, guided)
        embeds, prefixes = embed(prompt), [None, None] if melody is None else list(melody.split(rows))
        prompts = [embeds if prefix is None else torch.cat([prefix, embeds], dim=1) for prefix in prefixes]
        mask = torch.ones(prompts[0].shape[:2], dtype=torch.bool, device=device)
        cond, uncond = (Prompt(p, mask, position_ids_of(mask)) for p in (prompts[0], prompts[-1]))
        slots = -(-(mask.shape[1] + length + window) // ROUND) * ROUND
        layers = MusicgenLayers(decoder.model.decoder, cross_attention, slots)
        found = ColumnTarget(
            layers, embed, heads, codebooks, vocab_size(model), cond, guided, length, window, cross_attention, uncond
        )
        return with_cuda_graphs(found)

    layout = Layout(length, cell=(codebooks,), forced=ForcedCells(known[:, start:]), pad=pad)
    guided = request.sampling.guidance_scale != 1
    return ColumnDecodingPlan(target, layout, vocab_size(model), request.sampling, guided)


def conditions(model: Any, inputs: Mapping[str, Any], guided: bool) -> tuple[Tensor | None, CrossAttention | None]:
    """The text, and the melody, as the decoder reads them.

    MusicGen-melody prepends both to the prompt; MusicGen attends to the text. If guided, the unconditional rows follow
    the conditional ones.

    Returns:
        The prefix [R, S, D] of MusicGen-melody's prompts, or None; the cross-attention of MusicGen, or None.
    """
    states, mask = inputs["encoder_outputs"][0], inputs.get("attention_mask")
    mask = torch.ones(states.shape[:2], device=states.device) if mask is None else mask
    if guided:
        states, mask = torch.cat([states, states]), torch.cat([mask, torch.zeros_like(mask)])
    if model.text_encoder.config.hidden_size != model.decoder.config.hidden_size:
        states = model.enc_to_dec_proj(states)
    states = states * mask[..., None]
    if type(model).__name__ != MELODY:
        return None, CrossAttention(states, mask)
    return torch.cat([chroma(model, inputs, states, guided), states], dim=1), None


def chroma(model: Any, inputs: Mapping[str, Any], states: Tensor, guided: bool) -> Tensor:
    """The melody's features [R, chroma_length, D] in the decoder's width; without a melody, constant features."""
    rows, features = len(states) // (1 + guided), inputs.get("input_features")
    length = 1 if features is None else features.shape[1]
    none = torch.zeros(rows, length, model.config.num_chroma, dtype=states.dtype, device=states.device)
    none[:, :, 0] = 1
    features = none if features is None else features.to(states.dtype)
    if guided:
        features = torch.cat([features, none])
    if model.config.num_chroma != model.decoder.config.hidden_size:
        features = model.audio_enc_to_dec_proj(features)
    wanted = model.config.chroma_length
    return features.repeat(1, -(-wanted // features.shape[1]), 1)[:, :wanted]


class MusicgenLayers(DecoderLayers):
    """The layers of a MusicGen decoder, whose own forward gives all rows the same positions.

    Args:
        decoder: A `MusicgenDecoder` or `MusicgenMelodyDecoder`.
        cross_attention: The text, for the former.
        slots: Slots of the KV cache, which the table of positions covers.
    """

    def __init__(self, decoder: Any, cross_attention: CrossAttention | None, slots: int) -> None:
        super().__init__(decoder.layers, decoder.layer_norm)
        self.module = decoder
        self._cross_attention = cross_attention
        # A longer call replaces the table of the module, which captured calls of others read.
        self._table = self._covering(slots)

    def _covering(self, slots: int) -> Tensor:
        """The module's table of positions, [n, D] with n >= `slots`; computed anew if it is too short."""
        assert self.module is not None
        positions: Any = self.module.embed_positions
        with _growing:
            if slots > len(positions.weights):
                positions.make_weights(slots, positions.embedding_dim)
            table: Tensor = positions.weights
        return table

    def enter(self, embeds: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, RunLayer]:
        rows = len(embeds)
        # By capacity, since reading the largest position would wait for the device; rows that join may raise it.
        if cache.capacity > len(self._table):
            self._table = self._covering(cache.capacity)
        text = {}
        if self._cross_attention is not None:
            cache, bias = self._cross_attention.with_self_attention(cache, rows), self._cross_attention.bias[:rows]
            text = {"encoder_hidden_states": self._cross_attention.states[:rows], "encoder_attention_mask": bias}

        def run(layer: Any, hidden: Tensor) -> Tensor:
            out = layer(hidden, mask, **text, **cache_input(layer, cache), use_cache=True)
            return out[0] if isinstance(out, tuple) else out

        return embeds + self._table[positions].to(embeds.device), run


def musicgen_codec(model: Any) -> Codec:
    """The codec of a model's frames."""
    codec = codec_of(model.audio_encoder)
    return codec if model.decoder.config.audio_channels == 1 else StereoCodec(codec)


class StereoCodec:
    """A stereo codec made of a mono codec: the codebooks of left and right alternate."""

    channels = 2

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.sampling_rate = codec.sampling_rate
        self.hop = codec.hop
        self.codebooks = 2 * codec.codebooks
        self.codebook_size = codec.codebook_size

    def decode(self, codes: Tensor) -> Tensor:
        return torch.cat([self._codec.decode(codes[:, channel::2]) for channel in (0, 1)], dim=1)

    def stream(self) -> CodecStream:
        return StereoStream([self._codec.stream(), self._codec.stream()])

    def tables(self) -> list[Tensor]:
        return [table for table in self._codec.tables() for _ in (0, 1)]


class StereoStream:
    """A stream of two channels, each decoded by the stream of a mono codec."""

    def __init__(self, channels: Sequence[CodecStream]) -> None:
        self._channels = channels

    def push(self, codes: Tensor) -> Tensor:
        return torch.cat([stream.push(codes[:, channel::2]) for channel, stream in enumerate(self._channels)], dim=1)

    def finish(self) -> Tensor:
        return torch.cat([stream.finish() for stream in self._channels], dim=1)

"""The 12.5 Hz codec of Qwen3-TTS (arXiv 2601.15621): Mimi's encoder, and a causal decoder of its own.

transformers has no class for it; the files are those of the folder `speech_tokenizer` of a published checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MimiConfig, MimiModel
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeCode2WavConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCode2WavTransformerModel,
    Qwen3OmniMoeConvNeXtBlock,
    Qwen3OmniMoeSnakeBeta,
)

from mmspec.audio.codecs.stepped_stream import SteppedStream
from mmspec.audio.codecs.streamed_layers import SlidingKeys, StreamState, streamed
from mmspec.errors import ArgumentError, ModelError
from mmspec.files.checkpoint import building, check_depths, check_tensors, read_tensors
from mmspec.hf.folder import BUFFERS, read_json

MODEL_TYPE = "qwen3_tts_tokenizer_12hz"
CHUNK = 300  # frames that are decoded at a time
EPSILON = 1e-5
_TRANSFORMER = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "attention_bias", "sliding_window", "hidden_act", "layer_scale_initial_scale", "rms_norm_eps",
    "max_position_embeddings",
)  # fmt: skip


class Qwen3TTSCodec:
    """The codec. Everything in its decoder is causal, so that a stream has no delay.

    The original decodes more than 300 frames in pieces, each of which sees 25 frames before it; here no piece is cut
    off from what precedes it. Up to 300 frames both are the same.

    Args:
        model: Its modules.
    """

    channels = 1

    def __init__(self, model: Qwen3TTSCodecModel) -> None:
        self._model = model
        self.sampling_rate, self.hop = model.sampling_rate, model.hop
        self.codebooks, self.codebook_size = model.codebooks, model.codebook_size

    def decode(self, codes: Tensor) -> Tensor:
        return self.stream().whole(codes, CHUNK)

    def stream(self) -> SteppedStream:
        return Qwen3TTSCodecStream(self._model.decoder)

    def tables(self) -> list[Tensor]:
        quantizer = self._model.decoder.quantizer
        return [
            (book.table() @ group.output_proj.weight[..., 0].T).detach().float()
            for group in (quantizer.rvq_first, quantizer.rvq_rest)
            for book in group.codebooks()
        ]

    @torch.inference_mode()
    def encode(self, wave: Tensor) -> Tensor:
        """The codes int64 [F, K] of a waveform float [samples], at the codec's sampling rate.

        Raises:
            ArgumentError: If the codec was published without its encoder.
        """
        model = self._model
        if model.encoder is None:
            raise ArgumentError("the codec cannot encode reference audio: its file has no encoder")
        weight = model.decoder.pre_conv.conv.weight
        codes = model.encoder.encode(wave.to(weight.device, weight.dtype)[None, None]).audio_codes[0]
        return codes[: self.codebooks, : -(-len(wave) // model.encoder_hop)].T


class Qwen3TTSCodecStream(SteppedStream):
    """Streams the decoder: every layer keeps what it needs of the frames before."""

    def __init__(self, decoder: CodecDecoder) -> None:
        def build(state: StreamState) -> Callable[[Tensor], Tensor]:
            layers: CodecDecoder = streamed(decoder, state)
            keys = SlidingKeys(decoder.pre_transformer, state)

            def decode(codes: Tensor) -> Tensor:
                hidden = layers.features(codes).transpose(1, 2)
                return layers.wave(layers.pre_transformer.read(hidden, keys).transpose(1, 2))

            return decode

        super().__init__(decoder, build, 1, decoder.pre_conv.conv.weight.device)


class Codebook(nn.Module):
    """The vectors of a codebook, stored as sums and counts, as they were trained."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.empty(size))
        self.embedding_sum = nn.Parameter(torch.empty(size, width))

    def table(self) -> Tensor:
        """The vectors, float [V, D]."""
        return self.embedding_sum / self.cluster_usage.clamp(min=EPSILON)[:, None]


class CodebookGroup(nn.Module):
    """Codebooks whose vectors are added and projected."""

    def __init__(self, count: int, size: int, width: int, outer: int) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(outer, width, 1, bias=False)
        self.output_proj = nn.Conv1d(width, outer, 1, bias=False)
        self.vq = nn.Module()
        self.vq.layers = nn.ModuleList(nn.Module() for _ in range(count))
        for layer in self.vq.layers:
            layer._codebook = Codebook(size, width)

    def codebooks(self) -> list[Any]:
        """The codebooks, coarse to fine."""
        layers: Any = self.vq.layers
        return [layer._codebook for layer in layers]

    def forward(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, K, F] to features [B, outer, F]."""
        vectors = [F.embedding(codes[:, k], book.table()) for k, book in enumerate(self.codebooks())]
        features: Tensor = self.output_proj(torch.stack(vectors).sum(0).transpose(1, 2))
        return features


class Quantizer(nn.Module):
    """The first codebook, and the others."""

    def __init__(self, count: int, size: int, width: int) -> None:
        super().__init__()
        self.rvq_first = CodebookGroup(1, size, width // 2, width)
        self.rvq_rest = CodebookGroup(count - 1, size, width // 2, width)

    def forward(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, K, F] to features [B, width, F]."""
        features: Tensor = self.rvq_first(codes[:, :1]) + self.rvq_rest(codes[:, 1:])
        return features


class TransposedConvolution(nn.Module):
    """A causal transposed convolution."""

    def __init__(self, inner: int, outer: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inner, outer, kernel, stride=stride)
        self._late = kernel - stride

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y[..., : y.shape[-1] - self._late].contiguous()


class ResidualUnit(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.act1 = Qwen3OmniMoeSnakeBeta(width)
        self.conv1 = Qwen3OmniMoeCausalConvNet(width, width, kernel_size=7, dilation=dilation)
        self.act2 = Qwen3OmniMoeSnakeBeta(width)
        self.conv2 = Qwen3OmniMoeCausalConvNet(width, width, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.conv2(self.act2(self.conv1(self.act1(x))))
        return y


class UpsamplingBlock(nn.Module):
    """Raises the rate, then refines."""

    def __init__(self, inner: int, outer: int, rate: int) -> None:
        super().__init__()
        units = [ResidualUnit(outer, dilation) for dilation in (1, 3, 9)]
        raise_rate = TransposedConvolution(inner, outer, 2 * rate, rate)
        self.block = nn.ModuleList([Qwen3OmniMoeSnakeBeta(inner), raise_rate, *units])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.block:
            x = layer(x)
        return x


class PreTransformer(Qwen3OmniMoeCode2WavTransformerModel):
    """Qwen3-Omni's transformer of its decoder, between two projections."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        own = {name: sizes[name] for name in _TRANSFORMER if name in sizes}
        rope = {"rope_type": "default", "rope_theta": float(sizes.get("rope_theta", 10000))}
        super().__init__(Qwen3OmniMoeCode2WavConfig(**own, rope_parameters=rope))
        self.input_proj = nn.Linear(sizes["latent_dim"], self.config.hidden_size)
        self.output_proj = nn.Linear(self.config.hidden_size, sizes["latent_dim"])

    def read(self, latents: Tensor, keys: SlidingKeys) -> Tensor:
        """Reads the next frames, latents [B, F, D], and returns latents of the same shape."""
        hidden = self.input_proj(latents)
        out = self(inputs_embeds=hidden, **keys.next(hidden))
        projected: Tensor = self.output_proj(out.last_hidden_state)
        return projected


class CodecDecoder(nn.Module):
    """Codes to audio."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        width, latent = int(sizes["codebook_dim"]), int(sizes["latent_dim"])
        rates = [int(rate) for rate in sizes.get("upsample_rates", (8, 5, 4, 3))]
        self.quantizer = Quantizer(int(sizes.get("num_quantizers", 16)), int(sizes.get("codebook_size", 2048)), width)
        self.pre_conv = Qwen3OmniMoeCausalConvNet(width, latent, kernel_size=3)
        self.pre_transformer = PreTransformer(sizes)
        self.upsample = nn.ModuleList(
            nn.ModuleList([TransposedConvolution(latent, latent, rate, rate), Qwen3OmniMoeConvNeXtBlock(latent)])
            for rate in sizes.get("upsampling_ratios", (2, 2))
        )
        widths = [int(sizes.get("decoder_dim", 1536)) // 2**i for i in range(len(rates) + 1)]
        blocks = [UpsamplingBlock(widths[i], widths[i + 1], rate) for i, rate in enumerate(rates)]
        self.decoder = nn.ModuleList(
            [
                Qwen3OmniMoeCausalConvNet(latent, widths[0], 7),
                *blocks,
                Qwen3OmniMoeSnakeBeta(widths[-1]),
                Qwen3OmniMoeCausalConvNet(widths[-1], 1, 7),
            ]
        )

    def features(self, codes: Tensor) -> Tensor:
        """Codes int64 [B, K, F] to what the transformer reads, [B, latent, F]."""
        features: Tensor = self.pre_conv(self.quantizer(codes))
        return features

    def wave(self, latents: Tensor) -> Tensor:
        """What the transformer returns, [B, latent, F], to audio [B, 1, F * hop] in -1..1."""
        for stage in self.upsample:
            for layer in stage:  # type: ignore[attr-defined]
                latents = layer(latents)
        for layer in self.decoder:
            latents = layer(latents)
        return latents.clamp(-1, 1)


class Qwen3TTSCodecModel(nn.Module):
    """Encoder and decoder, with the parameter names of the published files.

    Args:
        config: The content of `speech_tokenizer/config.json`.
        encodes: Whether it has an encoder.
    """

    def __init__(self, config: Mapping[str, Any], encodes: bool = True) -> None:
        super().__init__()
        sizes = config["decoder_config"]
        self.sampling_rate = int(config.get("output_sample_rate", 24000))
        self.codebooks = int(sizes.get("num_quantizers", 16))
        self.codebook_size = int(sizes.get("codebook_size", 2048))
        self.hop = math.prod((*sizes.get("upsample_rates", (8, 5, 4, 3)), *sizes.get("upsampling_ratios", (2, 2))))
        self.encoder_hop = int(config.get("encode_downsample_rate", 1920))
        self.decoder = CodecDecoder(sizes)
        self.encoder = MimiModel(_mimi_config(config.get("encoder_config") or {})) if encodes else None


def _mimi_config(sizes: Mapping[str, Any]) -> MimiConfig:
    """The configuration of the encoder, without what another version of transformers wrote beside it."""
    beside = ("transformers_version", "model_type", "dtype", "torch_dtype", "architectures")
    own = {name: value for name, value in sizes.items() if not name.startswith("_") and name not in beside}
    # The original's encoder sees all of the audio before a frame: the version of transformers that it pins leaves out
    # the sliding window that the file states, which would show in audio of more than ten seconds.
    own["sliding_window"] = int(own.get("max_position_embeddings", 8000))
    return MimiConfig(**own, frame_rate=sizes.get("_frame_rate"), decoder_config=None)


def own_name(name: str) -> str:
    """The name of a published parameter in `Qwen3TTSCodecModel`: the parts of Mimi's encoder lie one level deeper."""
    for part in ("encoder", "encoder_transformer", "downsample"):
        if name.startswith(before := f"encoder.{part}."):
            where = "encoder_seanet" if part == "encoder" else part
            return f"encoder.encoder.{where}.{name.removeprefix(before)}"
    return name


def is_codec(folder: Path) -> bool:
    """Whether a folder contains this codec."""
    return bool(read_json(folder / "config.json").get("model_type") == MODEL_TYPE)


def read_codec(folder: Path, device: str) -> Qwen3TTSCodec:
    """The codec in a folder, in float32.

    Raises:
        ModelError: If files are missing, damaged or of another codec.
    """
    what, found = f"codec {str(folder)!r}", read_json(folder / "config.json")
    if found.get("model_type") != MODEL_TYPE:
        raise ModelError(f"{what} is not the 12.5 Hz codec of Qwen3-TTS: config.json has no model_type={MODEL_TYPE!r}")
    state = read_tensors(folder / "model.safetensors", "codec")
    check_depths(what, found, len(state))
    encodes = any(name.startswith("encoder.") for name in state)
    with building(what, "a codec of Qwen3-TTS"):
        model = Qwen3TTSCodecModel(found, encodes)
    used = {own_name(name): value for name, value in state.items() if not BUFFERS.search(name)}
    check_tensors(what, used, model)
    # Once more, on the CPU: the convolutions of the encoder have sizes in buffers that the files do not contain.
    model = Qwen3TTSCodecModel(found, encodes)
    model.load_state_dict(used)
    return Qwen3TTSCodec(model.requires_grad_(False).eval().to(device))

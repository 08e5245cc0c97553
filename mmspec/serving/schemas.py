"""The bodies of requests, with the names of OpenAI's API and its extensions by other servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mmspec.arguments import shown
from mmspec.errors import shorten
from mmspec.serving.stand_ins import SIZE

# -1 is a random seed, as in other servers.
Seed = Annotated[int, Field(ge=-1, lt=2**63), AfterValidator(lambda seed: None if seed == -1 else seed)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class GenerationRequest(BaseModel):
    """What requests of both kinds have. None stands for the default, as in OpenAI's API.

    Attributes:
        model: A name of `GET /v1/models`; None is the first model of the kind.
        user: Requests with the same value share one place in the queue.
        seed: 0 to 2**63 - 1; the same seed gives the same output. None and -1 are a random one.
        recipe: "plain", or the recipe of the server.
        temperature: 0 takes the most likely token.
        top_k: Keeps the k most likely tokens, 0 all.
        top_p: Keeps the most likely tokens of this total probability.
        min_p: Keeps the tokens at least this much as likely as the most likely one.
        typical_p: Keeps the tokens with the most typical information up to this total probability.
        guidance_scale: Classifier-free guidance; 1 and below is off.
    """

    # Parameters that clients of other servers send, with the values that ask for nothing else than what is done.
    WITHOUT_EFFECT: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    user: str | None = None
    seed: Seed | None = None
    recipe: str | None = None
    temperature: Number | None = None
    top_k: int | None = None
    top_p: Number | None = None
    min_p: Number | None = None
    typical_p: Number | None = None
    guidance_scale: Number | None = None

    # The parameters that are arguments of a call of the pipeline.
    SETTINGS: ClassVar[tuple[str, ...]] = ("temperature", "top_k", "top_p", "min_p", "typical_p", "guidance_scale")

    def settings(self) -> dict[str, float | int]:
        """The arguments of a call of the pipeline that are set."""
        given = {name: getattr(self, name) for name in self.SETTINGS}
        return {name: value for name, value in given.items() if value is not None and value is not False}

    def notes(self) -> list[str]:
        """Remarks on parameters that have no effect."""
        given = {name: getattr(self, name) for name in self.WITHOUT_EFFECT}
        return [
            shorten(f"{name}={shown(value)} has no effect")
            for name, value in given.items()
            if value is not None and value not in self.WITHOUT_EFFECT[name]
        ]

    @classmethod
    def parameters(cls) -> list[str]:
        """The parameters that have an effect."""
        return [name for name in cls.model_fields if name not in cls.WITHOUT_EFFECT]


class ImageRequest(GenerationRequest):
    """The body of `POST /v1/images/generations`.

    Attributes:
        prompt: What the image shows.
        negative_prompt: The text of the unconditional prompt, for models that take one.
        n: Images; image i uses `seed + i`.
        size: "auto", or width and height in pixels: "512x512".
        response_format: "b64_json", or "url" for an address on this server; None is both.
        output_format: The format of the image.
        output_compression: The quality of JPEG and WebP files, 0 to 100.
        stream: Whether partial images are sent as events.
        partial_images: With `stream`, the number of partial images, evenly spread; None is one per row of tokens.
        steps: With `stream`, also send an event `generation.step` after each target call.
        quality: Without effect.
        style: Without effect.
        background: Without effect; images are opaque.
        moderation: Without effect.
        num_inference_steps: Without effect; such models have one step per token.
        true_cfg_scale: Without effect.
        step: Without effect.
        mode: Without effect.
        clip_skip: Without effect.
    """

    WITHOUT_EFFECT = {
        "quality": ("auto", "standard"), "style": (), "background": ("auto", "opaque"), "moderation": ("auto",),
        "num_inference_steps": (), "true_cfg_scale": (), "step": (), "mode": (), "clip_skip": (),
    }  # fmt: skip

    prompt: str
    negative_prompt: str | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    size: Annotated[str, Field(pattern=SIZE)] | None = None
    response_format: Literal["b64_json", "url"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    stream: bool | None = None
    partial_images: Annotated[int, Field(ge=0, le=1024)] | None = None
    steps: bool | None = None
    quality: str | None = None
    style: str | None = None
    background: str | None = None
    moderation: str | None = None
    num_inference_steps: Any = None
    true_cfg_scale: Any = None
    step: Any = None
    mode: Any = None
    clip_skip: Any = None


class VoiceId(BaseModel):
    """A voice as an object, as newer clients send it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str


class SpeechRequest(GenerationRequest):
    """The body of `POST /v1/audio/speech`.

    Attributes:
        input: The text to speak.
        voice: A voice of the model; None and "default" are its first.
        response_format: The format of the audio; pcm is 16-bit little-endian without a header.
        sample_rate: Samples per second; None is the model's.
        stream: Whether audio is sent while it is decoded.
        stream_format: With `stream`, "audio" for chunks of the file, "sse" for events with such chunks in base64.
            Setting it implies `stream`.
        initial_codec_chunk_frames: Frames of the codec in the first chunk of a stream: fewer give the first audio
            earlier.
        codec_chunk_frames: Frames in the later chunks.
        steps: With events, also send `generation.step` after each target call.
        ref_audio: A recording whose voice to follow, as base64 or a `data:` URL; or a `file:` URL.
        ref_text: The words spoken in it.
        condition_on_previous_chunks: Whether each part of a long text continues the one before it.
        speed: Without effect; models speak at one speed.
        instructions: Without effect.
        language: Without effect.
        lang_code: Without effect.
        task_type: Without effect.
        max_new_tokens: Without effect.
        x_vector_only_mode: Without effect.
        non_streaming_mode: Without effect.
        normalization_options: Without effect.
        volume_multiplier: Without effect.
        download_format: Without effect.
        return_download_link: Without effect.
        backend: Without effect.
    """

    WITHOUT_EFFECT = {
        "speed": (1,), "instructions": ("",), "language": ("", "auto", "Auto"), "lang_code": ("",), "task_type": (),
        "max_new_tokens": (), "x_vector_only_mode": (False,), "non_streaming_mode": (False,),
        "normalization_options": (), "volume_multiplier": (1,), "download_format": (), "return_download_link": (False,),
        "backend": ("",),
    }  # fmt: skip
    SETTINGS = (*GenerationRequest.SETTINGS, "condition_on_previous_chunks")

    input: str
    voice: str | VoiceId | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    sample_rate: Annotated[int, Field(ge=8000, le=192000)] | None = None
    stream: bool | None = None
    stream_format: Literal["audio", "sse"] | None = None
    initial_codec_chunk_frames: Annotated[int, Field(ge=1, le=2**20)] | None = None
    codec_chunk_frames: Annotated[int, Field(ge=1, le=2**20)] | None = None
    steps: bool | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    condition_on_previous_chunks: bool | None = None
    speed: Annotated[Number, Field(ge=0.25, le=4)] | None = None
    instructions: str | None = None
    language: Any = None
    lang_code: Any = None
    task_type: Any = None
    max_new_tokens: Any = None
    x_vector_only_mode: Any = None
    non_streaming_mode: Any = None
    normalization_options: Any = None
    volume_multiplier: Any = None
    download_format: Any = None
    return_download_link: Any = None
    backend: Any = None

"""The bodies of requests, with the names of OpenAI's API and its extensions by other servers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

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

    def settings(self) -> dict[str, float | int]:
        """The sampling parameters that are set."""
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "guidance_scale")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class ImageRequest(GenerationRequest):
    """The body of `POST /v1/images/generations`.

    Attributes:
        prompt: What the image shows.
        negative_prompt: The text of the unconditional prompt, for models that take one.
        n: Images; image i uses `seed + i`.
        size: "auto", or width and height in pixels: "512x512".
        response_format: "b64_json", or "url" for an address on this server.
        output_format: The format of the image.
        stream: Whether partial images are sent as events.
        partial_images: With `stream`, the number of partial images, evenly spread; None is one per row of tokens.
        steps: With `stream`, also send an event `generation.step` after each target call.
        quality: Only "auto".
        background: Only "auto" and "opaque".
        moderation: Has no effect.
    """

    prompt: str
    negative_prompt: str | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    size: Annotated[str, Field(pattern=r"^(auto|[1-9]\d{0,4}x[1-9]\d{0,4})$")] | None = None
    response_format: Literal["b64_json", "url"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    stream: bool | None = None
    partial_images: Annotated[int, Field(ge=0, le=1024)] | None = None
    steps: bool | None = None
    quality: Literal["auto"] | None = None
    background: Literal["auto", "opaque"] | None = None
    moderation: Literal["auto", "low"] | None = None


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
        speed: Only 1.
        stream: Whether audio is sent while it is decoded.
        stream_format: With `stream`, "audio" for chunks of the file, "sse" for events with such chunks in base64.
            Setting it implies `stream`.
        initial_codec_chunk_frames: Frames of the codec in the first chunk of a stream: fewer give the first audio
            earlier.
        codec_chunk_frames: Frames in the later chunks.
        steps: With events, also send `generation.step` after each target call.
        ref_audio: A recording whose voice to follow, as base64 or a `data:` URL; or a `file:` URL.
        ref_text: The words spoken in it.
        instructions: Not possible; refused unless empty.
    """

    input: str
    voice: str | VoiceId | None = None
    response_format: Literal["mp3", "opus", "flac", "wav", "pcm"] | None = None
    speed: Number | None = None
    stream: bool | None = None
    stream_format: Literal["audio", "sse"] | None = None
    initial_codec_chunk_frames: Annotated[int, Field(ge=1, le=2**20)] | None = None
    codec_chunk_frames: Annotated[int, Field(ge=1, le=2**20)] | None = None
    steps: bool | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    instructions: Annotated[str, Field(max_length=0)] | None = None

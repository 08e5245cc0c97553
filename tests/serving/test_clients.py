"""Scripts that were written for OpenAI or for other servers run as they are."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import openai
import pytest
import soundfile
from PIL import Image
from served import Served, new_models, served

from mmspec.cli.app import main
from mmspec.errors import ArgumentError, MMSpecError
from mmspec.serving.app import Application
from mmspec.serving.errors import ApiError, from_mmspec
from mmspec.serving.reference import read_reference
from mmspec.serving.schemas import ImageRequest, SpeechRequest
from mmspec.serving.settings import ServerSettings

IMAGES, SPEECH = "/v1/images/generations", "/v1/audio/speech"
PROMPT, TEXT = "a red circle", "hello"
SETTINGS = ServerSettings(
    aliases={"tts-1": "spoken", "dall-e-3": "shapes"},
    voices={"alloy": "high", "nova": "default", "*": "low"},
    sizes={"1024x1024": "64x64", "*": "auto"},
)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(new_models(), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def strict() -> Iterator[Served]:
    """A server without other names."""
    with served(new_models()) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_a_script_for_openais_images(client: openai.OpenAI, server: Served) -> None:
    found = client.images.generate(
        model="dall-e-3", prompt=PROMPT, size="1024x1024", quality="hd", style="vivid", n=1, user="me",
        background="transparent", moderation="low",
    )  # fmt: skip
    assert found.data is not None and found.data[0].b64_json is not None and found.data[0].url is not None
    data = server.request(found.data[0].url.removeprefix(server.address))[2]
    assert base64.b64decode(found.data[0].b64_json) == data and Image.open(io.BytesIO(data)).size == (64, 64)
    assert (found.model_extra or {})["notes"] == [
        "quality='hd' has no effect",
        "style='vivid' has no effect",
        "background='transparent' has no effect",
        "moderation='low' has no effect",
        "size='1024x1024' became '64x64'",
    ]


def test_a_script_for_openais_speech(client: openai.OpenAI, tmp_path: Path) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT, instructions="Be glad.", speed=1.25, extra_body={"seed": 0}
    ) as response:
        response.stream_to_file(tmp_path / "speech.mp3")
        notes = response.headers["x-notes"]
    assert notes == "speed=1.25 has no effect; instructions='Be glad.' has no effect"
    assert soundfile.info(tmp_path / "speech.mp3").format == "MP3"


def test_other_names_of_models(client: openai.OpenAI, server: Served) -> None:
    assert [model.id for model in client.models.list()] == ["shapes", "spoken", "tts-1", "dall-e-3"]
    found = client.models.retrieve("tts-1")
    assert (found.id, (found.model_extra or {})["root"]) == ("tts-1", "spoken")
    status, _, content = server.request(IMAGES, {"prompt": PROMPT, "model": "tts-1"})
    assert status == 404 and "'tts-1' generates speech, not image" in json.loads(content)["error"]["message"]
    status, _, content = server.request(IMAGES, {"prompt": PROMPT, "model": "dall-e-2"})
    assert status == 404 and "models for image: shapes, dall-e-3" in json.loads(content)["error"]["message"]


@pytest.mark.parametrize(
    ("voice", "same", "notes"),
    [
        ("alloy", "high", None),
        ("nova", "low", None),
        ("default", "low", None),
        (None, "low", None),
        ("", "low", None),
        ({"id": "alloy"}, "high", None),
        ("coral", "low", "voice='coral' is not a voice of this model; 'low' speaks"),
    ],
)
def test_other_names_of_voices(server: Served, voice: Any, same: str, notes: str | None) -> None:
    body = {"input": TEXT, "seed": 1, "response_format": "pcm"}
    _, headers, data = server.request(SPEECH, body | {"voice": voice, "model": ""})
    assert data == server.request(SPEECH, body | {"voice": same})[2]
    assert unquote(headers.get("x-notes", "")) == (notes or "")


def test_voices_are_listed(server: Served) -> None:
    for path in ("/v1/audio/voices", "/v1/audio/voices?model=tts-1"):
        assert server.json(path) == {"voices": ["low", "high", "alloy"]}
    assert server.request("/v1/audio/voices?model=shapes")[0] == 404


@pytest.mark.parametrize(
    ("path", "body", "notes"),
    [
        (IMAGES, {"quality": "standard", "background": "opaque", "moderation": "auto", "style": None}, []),
        (IMAGES, {"num_inference_steps": 50}, ["num_inference_steps=50 has no effect"]),
        (IMAGES, {"output_compression": 50}, ["output_compression=50 has no effect on png"]),
        (SPEECH, {"speed": 1.0, "instructions": "", "lang_code": "", "volume_multiplier": 1.0}, []),
        (SPEECH, {"normalization_options": {"normalize": True}, "return_download_link": False},
         ["normalization_options={'normalize': True} has no effect"]),
        (SPEECH, {"task_type": "Base", "max_new_tokens": 2048, "language": "English"},
         ["language='English' has no effect", "task_type='Base' has no effect", "max_new_tokens=2048 has no effect"]),
        (SPEECH, {"instructions": "x" * 5000}, ["instructions='xxx"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "events"])
def test_parameters_without_effect_are_noted(
    server: Served, path: str, body: dict[str, Any], notes: list[str], streamed: bool
) -> None:
    text = {"prompt": PROMPT} if path == IMAGES else {"input": TEXT, "response_format": "pcm"}
    events = {"stream": True, "partial_images": 0} if path == IMAGES else {"stream_format": "sse"}
    status, headers, content = server.request(path, text | body | (events if streamed else {}))
    assert status == 200, content
    if streamed:
        content = content.decode().strip().rpartition("data: ")[2].encode()
    in_header = unquote(headers.get("x-notes", "")).split("; ")
    found = json.loads(content)["notes"] if streamed or path == IMAGES else in_header
    for one, expected in zip(found, notes or ([] if streamed or path == IMAGES else [""]), strict=True):
        assert one.startswith(expected) and len(one) < 300


@pytest.mark.parametrize(("kind", "smaller"), [("jpeg", True), ("webp", True), ("png", False)])
def test_images_are_compressed_as_much_as_asked(server: Served, kind: str, smaller: bool) -> None:
    body = {"prompt": PROMPT, "seed": 0, "output_format": kind, "response_format": "b64_json"}
    sizes = [len(server.json(IMAGES, body | {"output_compression": q})["data"][0]["b64_json"]) for q in (0, 100)]
    assert (sizes[0] < sizes[1]) == smaller


def test_what_the_model_does_not_have_is_refused_without_other_names(strict: Served) -> None:
    for path, body, param, message in (
        (SPEECH, {"input": TEXT, "voice": "alloy"}, "voice", "use one of low, high, default"),
        (SPEECH, {"input": TEXT, "model": "tts-1"}, "model", "models for speech: spoken"),
        (IMAGES, {"prompt": PROMPT, "size": "1024x1024"}, "size", "this model has images of 64x64"),
        (IMAGES, {"prompt": PROMPT, "negative_prompt": "x"}, "negative_prompt",
         "it takes seed, temperature, top_k, top_p, min_p, typical_p, guidance_scale"),
    ):  # fmt: skip
        error = strict.json(path, body)["error"]
        assert error["param"] == param and error["message"].endswith(message)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("rate", [None, 44100])
def test_aac(client: openai.OpenAI, streamed: bool, rate: int | None) -> None:
    av = pytest.importorskip("av")
    extra = {"seed": 3, "stream": streamed, "initial_codec_chunk_frames": 8, "sample_rate": rate}
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="low", input=TEXT, response_format="aac", extra_body=extra
    ) as response:
        chunks = list(response.iter_bytes())
        headers = response.headers
    assert headers["content-type"] == "audio/aac" and headers["x-sampling-rate"] == str(rate or 16000)
    own = client.audio.speech.create(
        model="tts-1", voice="low", input=TEXT, response_format="pcm", extra_body={"seed": 3, "sample_rate": rate}
    )
    samples = np.frombuffer(own.content, "<i2") / 32768
    with av.open(io.BytesIO(b"".join(chunks))) as file:
        assert file.format.name == "aac" and file.streams.audio[0].rate == (rate or 16000)
        found = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    found = found[1024:][: len(samples)]  # without the delay of the codec
    assert len(found) == len(samples) and np.corrcoef(found, samples)[0, 1] > 0.98


@pytest.mark.parametrize("kind", ["mp3", "flac", "opus"])
def test_streamed_files_are_read_by_other_readers_too(server: Served, kind: str) -> None:
    """By FFmpeg's, which browsers have, and by libsndfile in blocks, to the end."""
    av = pytest.importorskip("av")
    body = {"input": TEXT, "seed": 3, "response_format": kind, "initial_codec_chunk_frames": 8}
    _, headers, data = server.request(SPEECH, body | {"stream": True})
    samples = len(server.request(SPEECH, body | {"response_format": "pcm"})[2]) // 2
    with av.open(io.BytesIO(data)) as file:
        rate = file.streams.audio[0].rate
        found = sum(frame.samples for frame in file.decode(audio=0)) * int(headers["x-sampling-rate"]) / rate
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        blocks = sum(len(block) for block in file.blocks(1000))
    for count in (found, blocks):
        assert samples - 100 <= count <= samples + (2304 if kind == "mp3" else 800)


def test_aac_without_pyav_is_refused_in_one_line(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "av" else find(name, *rest))
    status, _, content = server.request(SPEECH, {"input": TEXT, "response_format": "aac"})
    error = json.loads(content)["error"]
    assert (status, error["param"]) == (400, "response_format")
    assert "needs PyAV for aac, which is not installed; run pip install '.[aac]'" in error["message"]


def recording() -> str:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(1600), 16000, format="WAV")
    return base64.encodebytes(file.getvalue()).decode()


def test_recordings_come_in_every_form_of_base64() -> None:
    text, settings = recording(), ServerSettings(allow_reference_audio=True)
    assert text.count("\n") > 10
    plain = text.replace("\n", "")
    for form in (
        text, text.replace("\n", "\r\n"), f"  {text}", plain, f"data:audio/wav;base64,{text}",
        f"DATA:audio/wav;codecs=1;BASE64,{plain}", f"data:;base64,{plain.replace('+', '%2B').replace('=', '%3D')}",
    ):  # fmt: skip
        reference = read_reference(form, None, settings)
        assert reference is not None and reference[0].shape == (1, 1600)


@pytest.mark.parametrize(
    ("fields", "message", "param", "expected"),
    [
        (SpeechRequest, "transcript of the reference audio is missing; Dia continues from it: pass transcript=, or "
         "--voice-text on the command line", "ref_text", "ref_text is missing; Dia continues from it"),
        (SpeechRequest, "reference audio is missing; this model clones voices: call pipe.with_reference_audio, or pass "
         "--voice-file on the command line", "ref_audio", "ref_audio is missing; this model clones voices"),
        (SpeechRequest, "a voice is missing; call pipe.with_reference_audio, or pass --voice-file on the command line",
         "ref_audio", "ref_audio is missing"),
        (SpeechRequest, "this PersonaPlex has no voices; pass config={'voice': FILE}, a .pt file or a recording", None,
         "this PersonaPlex has no voices; who runs the server can choose one, a .pt file or a recording"),
        (SpeechRequest, "audio of 250 frames is too long for a voice", "ref_audio",
         "ref_audio of 250 frames is too long for a voice"),
        (SpeechRequest, "the reference audio is too short; it must have more than 2 frames", "ref_audio",
         "ref_audio is too short; it must have more than 2 frames"),
        (SpeechRequest, "reference audio is not possible for this model; its voices are files of kyutai/tts-voices: "
         "pass config={'voice': FILE}, or --config voice=FILE on the command line", "ref_audio",
         "ref_audio is not possible for this model; its voices are files of kyutai/tts-voices: who runs the server can "
         "choose one"),
        (SpeechRequest, "the codec cannot encode reference audio; leave out its transcript to use the speaker alone",
         None, "the codec cannot encode reference audio; leave out ref_text to use the speaker alone"),
        (SpeechRequest, "text of 9 tokens is too long", "input", "input of 9 tokens is too long"),
        (ImageRequest, "text='x' has surrogates", "prompt", "prompt='x' has surrogates"),
        (ImageRequest, "height=100 must be a multiple of 8", "size", "height=100 must be a multiple of 8"),
        (ImageRequest, "top_k is not an option of this request; it takes seed, output_type, height, width",
         "top_k", "top_k is not an option of this request; it takes seed, size"),
    ],
)  # fmt: skip
def test_errors_name_the_fields_of_the_request(fields: Any, message: str, param: str | None, expected: str) -> None:
    found = from_mmspec(MMSpecError(message), fields.parameters())
    assert (str(found), found.param) == (expected, param)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alias", "tts-1"], "--alias 'tts-1' is not allowed; write NAME=MODEL"),
        (["--alias", "a=spoken", "--alias", "a=shapes"], "--alias names 'a' twice: spoken, shapes"),
        (["--alias", "tts-1=speaker"], "--alias tts-1=speaker is not allowed; the models are shapes, spoken"),
        (["--alias", "spoken=shapes"], "--alias spoken=shapes is not allowed; spoken is itself a model"),
        (["--size-alias", "big=auto"], "--size-alias big=auto is not allowed; write SIZE=SIZE or *=SIZE"),
        (["--cors-origin", "not an origin"], "--cors-origin 'not an origin' is not allowed; write SCHEME://HOST"),
        (["--cors-origin", "https://app.example/x"], "--cors-origin 'https://app.example/x' is not allowed"),
        (["--allow-reference-audio", "--allowed-local-media-path", "/no/such"], "there is no folder '/no/such'"),
    ],
)
def test_options_are_checked_before_models_are_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmspec.cli.serve._load", lambda *_: pytest.fail("a model is loaded"))
    assert main(["serve", "shapes", "spoken", "--port", "0", *arguments]) == 2
    found = capsys.readouterr().err
    assert message in found and found.count("\n") == 1


@pytest.mark.parametrize(
    ("models", "names", "message"),
    [
        (slice(2), {"voices": {"alloy": "tall"}}, "alloy=tall is not allowed; the voices are low, high, def"),
        (slice(2), {"voices": {"low": "high"}}, "--voice-alias low=high is not allowed; low is itself a voice"),
        (slice(2), {"voices": {"default": "high"}}, "default=high is not allowed; default is itself a voice"),
        (slice(1), {"voices": {"alloy": "default"}}, "alloy=default is not allowed; no model here generates speech"),
        (slice(2), {"sizes": {"1024x1024": "512x512"}}, "this model has images of 64x64"),
        (slice(2), {"sizes": {"*": "99999x99999"}}, "*=99999x99999 is not allowed; size: 9,999,800,001 "),
        (slice(2), {"sizes": {"64x64": "auto"}}, "--size-alias 64x64=auto is not allowed; 64x64 is itself a size"),
        (slice(2), {"sizes": {"auto": "64x64"}}, "--size-alias auto=64x64 is not allowed; auto is itself a size"),
        (slice(1, 2), {"sizes": {"*": "auto"}}, "--size-alias *=auto is not allowed; no model here generates images"),
        (slice(2), {"aliases": {"*": "spoken"}}, "--alias *=spoken is not allowed; name each"),
        (slice(2), {"aliases": {"a": "b"}}, "--alias a=b is not allowed; the models are shapes, spoken"),
    ],
)  # fmt: skip
def test_other_names_stand_for_what_there_is(models: slice, names: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        Application(new_models()[models], ServerSettings(**names))
    assert message in str(error.value) and "\n" not in str(error.value)


def float_wav(samples: Any, rate: int = 8000) -> str:
    file = io.BytesIO()
    soundfile.write(file, np.asarray(samples, np.float32), rate, "FLOAT", format="WAV")
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("audio", "message"),
    [
        ("AAAA", "ref_audio is not a readable recording (Format not recognised)"),
        (float_wav(np.zeros(0)), "ref_audio is not a readable recording (it has no samples)"),
        (float_wav(np.zeros((9, 9))), "ref_audio has 9 channels; at most 8 are allowed"),
        (float_wav([np.nan] * 9), "ref_audio has samples that are not finite"),
        (float_wav(np.zeros(8000 * 700), 8000), "ref_audio: 700 seconds of a recording to follow exceed the limit of"),
        ("file:///no", "ref_audio is not a readable recording (Format not recognised)"),
        ("AAA!", "ref_audio is not base64"),
        ("http://x/y", "ref_audio is a URL of the scheme 'http'; send base64, or a data: URL"),
    ],
    ids=["bytes", "empty", "channels", "infinite", "long", "file", "letters", "url"],
)
def test_recordings_are_refused_by_the_name_of_their_field(audio: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "no").write_bytes(b"no sound")
    settings = ServerSettings(allow_reference_audio=True, media_folder=tmp_path)
    with pytest.raises(ApiError) as error:
        read_reference(audio.replace("///no", f"//{tmp_path}/no"), None, settings)
    assert str(error.value).startswith(message) and str(tmp_path) not in str(error.value)
    assert "/tmp" not in str(error.value) and error.value.param == "ref_audio"

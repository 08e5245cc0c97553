"""The endpoints, called with OpenAI's own client and with curl."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import wave
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from PIL import Image
from served import Served, new_models, served

from mmspec.audio.spoken.model import load as load_spoken
from mmspec.vision.shapes.model import load as load_shapes

PROMPT = "a red circle above a blue square"
TEXT = "please turn on the red light"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(new_models()) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0) as found:
        yield found


def pixels(encoded: str | None) -> np.ndarray[Any, Any]:
    assert encoded is not None
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB"))


@cache
def own_images(**settings: Any) -> list[np.ndarray[Any, Any]]:
    """What the pipeline itself generates."""
    pipe = load_shapes()
    pipe.set_progress_bar_config(disable=True)
    return [np.asarray(image) for image in pipe(PROMPT, **settings).images]


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["shapes", "spoken"]
    assert client.models.retrieve("spoken").owned_by == "mmspec"
    with pytest.raises(openai.NotFoundError, match="model 'shape' is not served here"):
        client.models.retrieve("shape")


def test_images_are_those_of_the_pipeline(client: openai.OpenAI) -> None:
    found = client.images.generate(
        model="shapes", prompt=PROMPT, n=2, size="auto", extra_body={"seed": 7, "guidance_scale": 2.0}
    )
    assert found.data is not None and found.usage is not None
    expected = own_images(recipe="scd", seed=7, guidance_scale=2.0, num_images_per_prompt=2)
    for image, own in zip(found.data, expected, strict=True):
        assert (pixels(image.b64_json) == own).all()
    assert found.usage.output_tokens == found.usage.total_tokens == 512
    extra = found.usage.model_extra or {}
    assert 2 * 16 <= extra["target_calls"] < 512 and extra["tokens_per_call"] > 2
    assert [image.model_extra["seed"] for image in found.data if image.model_extra] == [7, 8]


def test_an_image_is_fetched_from_its_address(client: openai.OpenAI, server: Served) -> None:
    found = client.images.generate(prompt=PROMPT, response_format="url", output_format="webp", extra_body={"seed": 1})
    assert found.data is not None and found.data[0].url is not None
    path = found.data[0].url.removeprefix(server.address)
    status, headers, content = server.request(path)
    assert (status, headers["content-type"]) == (200, "image/webp")
    assert Image.open(io.BytesIO(content)).size == (64, 64)
    assert server.request(path + "x")[0] == 404


@pytest.mark.parametrize("partial", [None, 0, 3])
def test_partial_images_are_streamed(client: openai.OpenAI, partial: int | None) -> None:
    extra: dict[str, Any] = {"seed": 7, "recipe": "plain"}  # has many calls, so that some images are drawn in time
    if partial is not None:
        extra["partial_images"] = partial
    events = list(client.images.generate(prompt=PROMPT, stream=True, extra_body=extra))
    *partials, last = events
    assert last.type == "image_generation.completed" and last.usage.output_tokens == 256
    final = pixels(last.b64_json)
    assert (final == own_images(recipe="plain", seed=7)[0]).all()
    assert len(partials) <= (15 if partial is None else partial)
    if partial != 0:
        assert partials
    before = 0
    for index, event in enumerate(partials):
        assert event.type == "image_generation.partial_image" and event.partial_image_index == index
        image = pixels(event.b64_json)
        known = int((image != 128).any(2).sum())  # missing pixels are grey
        assert before < known < 64 * 64
        before = known


def test_steps_are_events_on_request(server: Served) -> None:
    status, headers, body = server.request(
        "/v1/images/generations", {"prompt": PROMPT, "stream": True, "steps": True, "seed": 7, "partial_images": 0}
    )
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
    steps = [event for event in events if event["type"] == "generation.step"]
    assert sum(step["tokens"] for step in steps) == 256
    assert [step["target_calls"] for step in steps] == sorted(step["target_calls"] for step in steps)
    assert steps[-1]["target_calls"] == events[-1]["usage"]["target_calls"]
    seconds = [step["seconds"] for step in steps]
    assert seconds == sorted(seconds)


def test_plain_decoding_takes_one_call_per_token(client: openai.OpenAI) -> None:
    found = client.images.generate(prompt=PROMPT, extra_body={"seed": 7, "recipe": "plain"})
    assert found.usage is not None and found.data is not None
    assert (found.usage.model_extra or {})["target_calls"] == 256
    assert (pixels(found.data[0].b64_json) == own_images(recipe="plain", seed=7)[0]).all()


@cache
def own_audio(**settings: Any) -> np.ndarray[Any, Any]:
    return load_spoken()(TEXT, **settings).audio[0]


def test_speech_is_that_of_the_pipeline(client: openai.OpenAI) -> None:
    found = client.audio.speech.create(
        model="spoken", voice="high", input=TEXT, response_format="wav", extra_body={"seed": 3}
    )
    with wave.open(io.BytesIO(found.content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
    own = own_audio(seed=3, voice="high")
    assert len(samples) == len(own) and abs(samples - own).max() < 1e-3
    headers = found.response.headers
    assert int(headers["x-output-tokens"]) > 2 * int(headers["x-target-calls"]) > 0
    assert float(headers["x-audio-seconds"]) == pytest.approx(len(own) / 16000, abs=1e-3)


@pytest.mark.parametrize("format", ["mp3", "opus", "flac", "wav", "pcm"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_formats(client: openai.OpenAI, format: Any, streamed: bool) -> None:
    extra = {"seed": 3, "stream": streamed, "initial_codec_chunk_frames": 8}
    with client.audio.speech.with_streaming_response.create(
        model="spoken", voice="default", input=TEXT, response_format=format, extra_body=extra
    ) as response:
        chunks = list(response.iter_bytes())
    data, own = b"".join(chunks), own_audio(seed=3)
    assert ("content-length" in response.headers) != streamed
    if format == "pcm":
        samples = np.frombuffer(data, "<i2") / 32768
    else:
        samples, _ = soundfile.read(io.BytesIO(data))
    assert abs(len(samples) - len(own)) <= 2400
    if format in ("flac", "wav", "pcm"):
        assert len(samples) == len(own) and abs(samples - own).max() < 1e-3
    else:
        spectra = [abs(np.fft.rfft(one, 2**16))[:8000].reshape(-1, 100).mean(1) for one in (samples, own)]
        assert np.corrcoef(*spectra)[0, 1] > 0.98


def test_speech_events(client: openai.OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="spoken", voice="default", input=TEXT, response_format="pcm", stream_format="sse", extra_body={"seed": 3}
    ) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    *deltas, done = events
    assert {event["type"] for event in deltas} == {"speech.audio.delta"} and done["type"] == "speech.audio.done"
    assert len(deltas) >= 2
    data = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    samples, own = np.frombuffer(data, "<i2") / 32768, own_audio(seed=3)
    assert len(samples) == len(own) and abs(samples - own).max() < 1e-3
    assert done["usage"]["output_tokens"] > 0 and done["audio_seconds"] == pytest.approx(len(own) / 16000, abs=1e-3)


def test_a_text_of_several_sentences_streams_as_it_is_spoken(client: openai.OpenAI) -> None:
    text = "turn on the light. what time is it? good morning."
    own = load_spoken()(text, seed=5).audio[0]
    with client.audio.speech.with_streaming_response.create(
        model="spoken", voice="default", input=text, response_format="pcm", extra_body={"seed": 5, "stream": True}
    ) as response:
        samples = np.frombuffer(b"".join(response.iter_bytes()), "<i2") / 32768
    assert len(samples) == len(own) and abs(samples - own).max() < 1e-3


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "message"),
    [
        ("images", {}, 400, "prompt", "prompt is missing"),
        ("images", {"prompt": 3}, 400, "prompt", "prompt=3 is not allowed: input should be a valid string"),
        ("images", {"prompt": "a red circle", "n": 11}, 400, "n", "n: 11 images of one request exceed the limit of 10"),
        ("images", {"prompt": "a red circle", "sed": 1}, 400, "sed", "'sed' is not a parameter (did you mean 'seed'?)"),
        ("images", {"prompt": "a red circle", "size": "big"}, 400, "size", "size='big' is not allowed"),
        ("images", {"prompt": "a red circle", "size": "512x512"}, 400, "size", "this model has images of 64x64"),
        ("images", {"prompt": "a red circle", "model": "shape"}, 404, "model", "did you mean 'shapes'?"),
        ("images", {"prompt": "a red circle", "model": "spoken"}, 404, "model", "'spoken' generates speech"),
        ("images", {"prompt": "a red circle", "temperature": -1}, 400, "temperature", "temperature=-1.0 is not"),
        ("images", {"prompt": "a red circle", "seed": 2**63}, 400, "seed", "is not allowed"),
        ("images", {"prompt": "a red circle", "seed": "1"}, 400, "seed", "seed='1' is not allowed"),
        ("images", {"prompt": "a red circle", "recipe": "sjd"}, 400, "recipe", "this server runs 'scd' and 'plain'"),
        ("images", {"prompt": "a red circle", "stream": True, "n": 2}, 400, "n", "n=2 is not possible with stream"),
        ("images", {"prompt": "a blue whale"}, 400, "prompt", "prompt"),
        ("images", {"prompt": "a blue whale", "stream": True}, 400, "prompt", "prompt"),
        ("images", {"prompt": "x" * 5000}, 400, "prompt", "prompt: 5,000 characters"),
        ("images", {"prompt": "a red circle", "negative_prompt": "x"}, 400, "negative_prompt", "negative_prompt"),
        ("speech", {}, 400, "input", "input is missing"),
        ("speech", {"input": " "}, 400, "input", "input=' ' is empty"),
        ("speech", {"input": "hello", "voice": "alloy"}, 400, "voice", "voice='alloy' is not allowed; use one of low"),
        ("speech", {"input": "hello", "speed": 9}, 400, "speed", "speed=9 is not allowed"),
        ("speech", {"input": "hello", "response_format": "ogg"}, 400, "response_format", "response_format='ogg'"),
        ("speech", {"input": "hello", "ref_audio": "AAAA"}, 403, "ref_audio", "ref_audio is not allowed"),
        ("speech", {"input": "hello", "guidance_scale": 2.0}, 400, "guidance_scale", "this model has no guidance"),
        ("speech", {"input": "hello", "instructions": 1}, 400, "instructions", "instructions=1 is not allowed"),
        ("speech", {"input": "hello", "model": "tts-1"}, 404, "model", "is not served here; models for speech: spoken"),
    ],
)  # fmt: skip
def test_refusals_have_the_shape_of_openais(
    server: Served, path: str, body: Any, status: int, param: str, message: str
) -> None:
    where = {"images": "/v1/images/generations", "speech": "/v1/audio/speech"}[path]
    found, headers, content = server.request(where, body)
    error = json.loads(content)["error"]
    assert (found, headers["content-type"]) == (status, "application/json")
    assert set(error) == {"message", "type", "param", "code"}
    assert message in error["message"] and error["param"] == param and error["type"] == "invalid_request_error"
    assert error["code"] and "\n" not in error["message"] and len(error["message"]) < 700


def test_other_addresses_and_methods_are_told_what_there_is(server: Served) -> None:
    for path, body, status, message in (
        ("/v1/chat/completions", {}, 404, "nothing at '/v1/chat/completions'; images are made by POST /v1/images/gene"),
        ("/v1/images/generations", None, 405, "GET is not allowed for '/v1/images/generations'; use POST"),
    ):
        found, _, content = server.request(path, body)
        assert found == status and message in json.loads(content)["error"]["message"]


def test_the_client_raises_the_errors_of_openai(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="prompt") as found:
        client.images.generate(prompt="a blue whale")
    assert found.value.param == "prompt"
    with pytest.raises(openai.NotFoundError):
        client.audio.speech.create(model="tts-1", voice="alloy", input="hello")


def test_reference_audio_if_allowed(tmp_path: Path) -> None:
    from mmspec.serving.settings import ServerSettings

    (tmp_path / "media").mkdir()
    soundfile.write(tmp_path / "media" / "voice.wav", np.zeros(1600), 16000)
    (tmp_path / "secret.wav").write_bytes((tmp_path / "media" / "voice.wav").read_bytes())
    (tmp_path / "media" / "link.wav").symlink_to(tmp_path / "secret.wav")
    data = base64.b64encode((tmp_path / "secret.wav").read_bytes()).decode()
    settings = ServerSettings(allow_reference_audio=True, media_folder=tmp_path / "media")
    with served(new_models()[1:], settings) as running:

        def answer(audio: str) -> str:
            body = running.json("/v1/audio/speech", {"input": "hello", "ref_audio": audio})
            assert body["error"]["param"] in ("ref_audio", None)
            return str(body["error"]["message"])

        outside = "ref_audio: there is no such file in the folder that is allowed"
        media = (tmp_path / "media").as_uri()
        # The embedded voice follows no recording; that it is asked shows that the recording was read.
        for accepted in (data, f"data:audio/wav;base64,{data}", f"{media}/voice.wav"):
            assert answer(accepted) == "this model does not accept reference audio"
        for url in (f"{media}/../secret.wav", f"{media}/link.wav", f"{media}/none.wav", "file:///etc/passwd", media):
            assert answer(url) == outside
        assert "not base64" in answer("AAA!") and "not a readable recording" in answer("AAAA")
        assert "scheme 'http'" in answer("http://localhost/voice.wav")
        assert answer("//[") == "ref_audio is not a URL, nor base64"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curls_of_the_documentation(server: Served, root: Path, tmp_path: Path) -> None:
    text = (root / "docs" / "serving.md").read_text()
    commands = [block for block in text.split("```sh\n")[1:] if block.startswith("curl")]
    commands = [block.partition("```")[0].replace("http://127.0.0.1:8000", server.address) for block in commands]
    assert len(commands) >= 3
    for command in commands:
        done = subprocess.run(
            ["bash", "-ec", f"set -o pipefail\n{command}"], cwd=tmp_path, capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "out.png") as image:
        assert image.size == (64, 64)
    assert soundfile.info(tmp_path / "speech.mp3").format == "MP3"

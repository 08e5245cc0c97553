"""Reference audio of a request: a recording in it, or a file of the folder that the server allows."""

from __future__ import annotations

import base64
import binascii
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from mmspec.arguments import shown
from mmspec.errors import ArgumentError
from mmspec.limits import VOICE_SECONDS
from mmspec.media.audio import read_audio
from mmspec.serving.errors import ApiError
from mmspec.serving.settings import ServerSettings

Reference = tuple[NDArray[np.float32], int, str | None]


def read_reference(audio: str | None, text: str | None, settings: ServerSettings) -> Reference | None:
    """The samples, the sampling rate and the transcript of reference audio; None if a request has none.

    Args:
        audio: Base64, a `data:` URL with base64, or a `file:` URL.
        text: The transcript.
        settings: What the server allows.

    Raises:
        ApiError: If the server does not allow it, or it is not audio.
    """
    if audio is None:
        if text is not None:
            raise _refused("ref_text is given without ref_audio", "ref_text")
        return None
    if not settings.allow_reference_audio:
        raise ApiError(
            403, "ref_audio is not allowed by this server (--allow-reference-audio)", "not_allowed", "ref_audio"
        )
    try:
        scheme = urlsplit(audio[:4096]).scheme
    except ValueError:
        raise _refused("ref_audio is not a URL, nor base64") from None
    if scheme == "file":
        return *_read(_local_file(audio, settings.media_folder)), text
    if scheme not in ("", "data"):
        raise _refused(f"ref_audio is a URL of the scheme {scheme!r}; send base64, or a data: URL")
    kind, _, content = audio.rpartition(",")
    if scheme == "data" and not kind.lower().endswith(";base64"):
        raise _refused("ref_audio is a data: URL without base64")
    content = "".join(unquote(content).split())  # `base64` and MIME encoders wrap lines
    if not content:
        raise _refused("ref_audio is empty; leave it out to use a voice of the model")
    try:
        data = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise _refused("ref_audio is not base64") from None
    with tempfile.NamedTemporaryFile(prefix="mmspec-", suffix=".audio") as file:
        file.write(data)
        file.flush()
        return *_read(Path(file.name)), text


def _read(path: Path) -> tuple[NDArray[np.float32], int]:
    try:
        return read_audio(path, VOICE_SECONDS)
    except ArgumentError as error:
        raise _refused(str(error).replace(shown(str(path)), "ref_audio")) from None


def _local_file(url: str, folder: Path | None) -> Path:
    """The file of a `file:` URL in the folder, links followed; whether it exists elsewhere is not told."""
    if folder is None:
        raise ApiError(
            403, "ref_audio: files are not allowed by this server (--allowed-local-media-path)", "not_allowed",
            "ref_audio",
        )  # fmt: skip
    try:
        path = Path(unquote(urlsplit(url).path)).resolve(strict=True)
    except (OSError, ValueError):
        path = Path("/")
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise ApiError(
            403, "ref_audio: there is no such file in the folder that is allowed", "not_allowed", "ref_audio"
        )
    return path


def _refused(message: str, param: str = "ref_audio") -> ApiError:
    return ApiError(400, message, "invalid_value", param)

"""The settings of the server."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from mmspec.arguments import shown
from mmspec.errors import ArgumentError
from mmspec.files.inputs import read_text
from mmspec.media.text import lines_of
from mmspec.serving.stand_ins import check_size_names

KEYS = "MMSPEC_API_KEYS"  # the environment variable
SHORTEST_KEY = 8
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+")
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServerSettings:
    """What a server allows.

    Attributes:
        host: The address to listen on.
        port: The port; 0 takes a free one.
        api_keys: Requests need one of them; empty allows all.
        cors_origins: Web origins whose pages may call the server; "*" is all.
        allow_reference_audio: Whether requests may bring a recording whose voice to follow.
        media_folder: A folder whose files `ref_audio` may name as `file:` URLs; None allows no files.
        drain_seconds: After a signal, running requests have this long to finish.
        page: Whether `GET /` is a page to try the models with.
        docs: Whether `GET /docs` and `/openapi.json` describe the API; None is only without keys.
        aliases: Other names of models.
        voices: Other names of voices; the name "*" is any that a model does not have.
        sizes: Sizes of images in place of those that a model does not have; the name "*" is any.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allow_reference_audio: bool = False
    media_folder: Path | None = None
    drain_seconds: float = 30.0
    page: bool = True
    docs: bool | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    voices: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK

    @property
    def describes_itself(self) -> bool:
        """Whether `GET /docs` and `/openapi.json` describe the API."""
        return not self.api_keys if self.docs is None else self.docs


def check_settings(settings: ServerSettings) -> None:
    """Checks what does not depend on the models.

    Raises:
        ArgumentError: For an origin that is none, a folder that there is not, and a size that is none.
    """
    for origin in settings.cors_origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ArgumentError(
                f"--cors-origin {shown(origin)} is not allowed; write SCHEME://HOST[:PORT], such as "
                "https://app.example, or *"
            )
    folder = settings.media_folder
    if folder is not None and not folder.is_dir():
        raise ArgumentError(f"--allowed-local-media-path: there is no folder {shown(str(folder))}")
    check_size_names(settings.sizes)


def read_api_keys(file: Path | None) -> tuple[str, ...]:
    """The keys in a file, one per line, and those in the environment variable `MMSPEC_API_KEYS`, by commas.

    No message quotes a key.

    Raises:
        ArgumentError: If the file cannot be read or has no keys, or a key is too short or not printable ASCII.
    """
    keys = os.environ.get(KEYS, "").split(",")
    if file is not None:
        lines = [line for _, line in lines_of(StringIO(read_text(file, "--api-key-file")))]
        if not lines:
            raise ArgumentError(f"--api-key-file: '{file}' has no keys; write one per line")
        keys += lines
    found = tuple(dict.fromkeys(key.strip() for key in keys if key.strip()))
    for number, key in enumerate(found, 1):
        if len(key) < SHORTEST_KEY or not (key.isascii() and key.isprintable()) or " " in key:
            raise ArgumentError(
                f"API key {number} of {len(found)} is not allowed; keys have at least {SHORTEST_KEY} printable ASCII "
                "characters and no spaces"
            )
    return found

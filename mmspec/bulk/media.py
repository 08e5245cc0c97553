"""Images as PNG files and recordings as WAV files: from a pipeline's output to bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmspec.errors import ArgumentError
from mmspec.files.folders import open_inside, replacing_inside
from mmspec.media.audio import to_audio
from mmspec.media.images import to_rgb
from mmspec.vision.png import encode_png

_PNG_BEGIN, _PNG_END = b"\x89PNG\r\n\x1a\n", b"\0\0\0\0IEND\xaeB`\x82"


@dataclass(frozen=True)
class AudioClip:
    """Audio as a pipeline returns it.

    Attributes:
        wave: float32 [channels, samples] in -1..1.
        rate: Samples per second.
    """

    wave: NDArray[np.float32]
    rate: int

    @property
    def seconds(self) -> float:
        return self.wave.shape[1] / self.rate


Medium = Image.Image | AudioClip


def media_of(output: Any, count: int) -> list[Medium]:
    """The images or recordings in the output of a call with `count` prompts.

    Images are the output's `images`. A recording is a mapping with `audio`, float [channels, samples] or [samples],
    and `sampling_rate`; the output is a list of those or, for a single prompt, one of them.

    Raises:
        ArgumentError: If the output is neither, such as the tokens of a model without a tokenizer.
    """
    found: Any = getattr(output, "images", output)
    if isinstance(found, Mapping):
        found = [found]
    if not isinstance(found, (list, tuple)) or len(found) != count:
        raise ArgumentError(f"the model returned {type(found).__name__} for {count} prompts, not images or recordings")
    return [_medium(one) for one in found]


def notes_of(output: Any, count: int) -> list[list[str]]:
    """The remarks on each image or recording in the output of a call with `count` prompts; images have none."""
    found = [output] if isinstance(output, Mapping) else output
    recordings = found if isinstance(found, (list, tuple)) else []
    notes = [[str(note) for note in getattr(one, "notes", ())] for one in recordings]
    return notes if len(notes) == count else [[]] * count


def _medium(one: Any) -> Medium:
    if isinstance(one, Image.Image):
        return to_rgb(one)
    if isinstance(one, Mapping) and {"audio", "sampling_rate"} <= set(one):
        return AudioClip(to_audio(one["audio"], "audio"), int(one["sampling_rate"]))
    raise ArgumentError(f"the model returned {type(one).__name__}, neither image nor recording; it has no tokenizer")


def suffix_of(medium: Medium) -> str:
    return ".wav" if isinstance(medium, AudioClip) else ".png"


def encode_medium(medium: Medium, notes: Mapping[str, str]) -> bytes:
    """The bytes of a PNG file, which contains the notes, or of a WAV file of 16-bit samples."""
    if not isinstance(medium, AudioClip):
        return encode_png(medium, notes)
    import soundfile

    buffer = BytesIO()
    soundfile.write(buffer, medium.wave.T.clip(-1, 1), medium.rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def is_whole(path: Path) -> bool:
    """Whether a file of `encode_medium` has its end; a link is none."""
    try:
        with open_inside(path) as file:
            head, size = file.read(12), file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(_PNG_END)))
            end = file.read()
    except OSError:
        return False
    if head[:4] == b"RIFF":
        return size == 8 + int.from_bytes(head[4:8], "little")
    return head.startswith(_PNG_BEGIN) and end == _PNG_END


def write_durably(content: bytes, path: Path) -> None:
    """Writes a file atomically and waits until its content is on the disk; a link of its name is replaced.

    Raises:
        OutputError: If the file cannot be written.
    """
    with replacing_inside(path.parent, path.name) as partial, partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())

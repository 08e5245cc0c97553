"""Video files: the last frames of one, and frames written as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from fractions import Fraction
from io import BytesIO
from itertools import repeat
from math import inf
from pathlib import Path
from types import ModuleType

import numpy as np
from PIL import Image

from mmspec import limits
from mmspec.arguments import shown
from mmspec.environment.importing import install_extra
from mmspec.errors import ArgumentError
from mmspec.files import replacing
from mmspec.files.documents import one_line
from mmspec.media.images import MOVING_SUFFIXES, open_image, read_image, rgb_frames
from mmspec.media.listing import list_files

# What can be written; the first needs the extra.
VIDEOS = (".mp4", ".webp", ".gif")
FASTEST_GIF = 100  # frames per second
MOST_REPEATS = 1000  # frames that one stored frame stands for


def last_frames(path: Path, count: int) -> list[Image.Image]:
    """The last frames of a video, at most `count`, in order.

    Args:
        path: An image, moving or not; a folder of images, which are frames in the natural order of their names; or,
            with the extra `video`, a video file that FFmpeg reads.
        count: How many, at least 1.

    Raises:
        ArgumentError: If it cannot be read, has no frame, has frames of more than one size or of more pixels than
            `limits.PIXELS`, or the extra is missing.
    """
    if path.is_dir():
        files = list_files(path, MOVING_SUFFIXES)
        frames = [Image.fromarray(read_image(each)) for each in files[-count:]]
    elif not path.is_file():
        raise ArgumentError(f"{shown(str(path))} is not a readable video (no such file)")
    else:
        read = _pillow if path.suffix.lower() in MOVING_SUFFIXES else _ffmpeg
        frames = list(deque(read(path, count), maxlen=count))
    if not frames:
        raise ArgumentError(f"{shown(str(path))} has no frames")
    if len({frame.size for frame in frames}) > 1:
        raise ArgumentError(f"{shown(str(path))} has frames of more than one size")
    return frames


def write_video(frames: Sequence[Image.Image], path: Path, fps: float) -> None:
    """Writes frames to a file, by its ending: `.webp` and `.gif` with Pillow, `.mp4` (H.264) with the extra `video`.

    Args:
        frames: Of one size; H.264 requires even sides.
        path: The file; written atomically.
        fps: Frames per second.

    Raises:
        ArgumentError: If the file cannot be written, or the extra is missing.
    """
    buffer = BytesIO()
    if path.suffix.lower() == ".mp4":
        _write_mp4(frames, buffer, fps)
    else:
        kind = path.suffix.lower().removeprefix(".").upper()
        options = {"lossless": True} if kind == "WEBP" else {}
        frames[0].save(
            buffer, format=kind, save_all=True, append_images=list(frames[1:]), duration=round(1000 / fps), loop=0,
            **options,
        )  # fmt: skip
    with replacing(path) as partial:
        partial.write_bytes(buffer.getvalue())


def check_writable(path: Path, fps: float) -> None:
    """Checks that `write_video` can write such a file.

    Raises:
        ArgumentError: If the extra is missing, or frames of a `.gif` would last less than a hundredth of a second.
    """
    if path.suffix.lower() == ".mp4":
        require_video(path)
    elif path.suffix.lower() == ".gif" and fps > FASTEST_GIF:
        raise ArgumentError(f"fps={fps:g} is not possible for .gif; use at most {FASTEST_GIF}, or .webp")


def require_video(path: Path) -> ModuleType:
    """PyAV, the binding of FFmpeg.

    Raises:
        ArgumentError: If it is not installed; `path` is what needs it.
    """
    try:
        import av
    except ImportError:
        raise ArgumentError(
            f"{shown(str(path))} needs the extra `video` ({install_extra('video')}); without it "
            f"{', '.join(MOVING_SUFFIXES)} are read and {', '.join(VIDEOS[1:])} are written"
        ) from None
    return av


def _pillow(path: Path, count: int) -> Iterable[Image.Image]:
    """At least the last `count` frames, if there are as many; not more than these are in memory at a time."""
    frames, unit = deque[tuple[Image.Image, float]](maxlen=count), inf
    with open_image(path) as image:
        for frame, duration in rgb_frames(image, shown(str(path))):
            unit = min(unit, duration) if duration > 0 else unit
            frames.append((frame, duration))
    # Equal frames in a row are stored as one that stays longer. Those that stay about as long as the shortest are one
    # frame: of 30 per second, some stay for 33 and some for 34 milliseconds.
    for frame, duration in frames:
        yield from repeat(frame, min(max(int(duration // unit), 1), MOST_REPEATS))


def _ffmpeg(path: Path, count: int) -> Iterable[Image.Image]:
    """All frames, upright; their number is known at the end."""
    try:
        with require_video(path).open(str(path)) as container:
            if not container.streams.video:
                raise ArgumentError(f"{shown(str(path))} has no video stream")
            for frame in container.decode(video=0):
                limits.PIXELS.check(f"'{path}'", frame.width * frame.height)
                pixels = frame.to_ndarray(format="rgb24")
                yield Image.fromarray(np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90))))
    except ArgumentError:
        raise
    except (OSError, ValueError, EOFError) as error:  # errors of PyAV are OSErrors or ValueErrors
        raise ArgumentError(f"{shown(str(path))} is not a readable video ({one_line(error)})") from error


def _write_mp4(frames: Sequence[Image.Image], buffer: BytesIO, fps: float) -> None:
    av = require_video(Path("x.mp4"))
    width, height = frames[0].size
    if width % 2 or height % 2:
        raise ArgumentError(f"frames of {width} x {height} pixels cannot be written as .mp4; use .webp")
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "18"}
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(frame.convert("RGB")), format="rgb24")))
        container.mux(stream.encode())

"""Limits on the work and the memory that a small input can ask for.

Each is checked before any work, and the message names the environment variable that raises it:
`MMSPEC_MAX_OUTPUTS=50000 mmspec image ...`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from mmspec.errors import ArgumentError

_LARGEST = 10**15  # larger numbers are not written out in messages


@dataclass(frozen=True)
class Limit:
    """An upper bound that the user can raise.

    Attributes:
        variable: The environment variable that replaces the default.
        default: The bound, inclusive.
        unit: What is counted, in the plural.
    """

    variable: str
    default: int
    unit: str

    @property
    def value(self) -> int:
        """The bound in force.

        Raises:
            ArgumentError: If the environment variable is not a whole number of at least 1.
        """
        text = os.environ.get(self.variable)
        if text is None:
            return self.default
        if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) > 0):
            raise ArgumentError(f"{self.variable}={text[:40]!r} must be a whole number of at least 1")
        return int(text)

    def check(self, argument: str, amount: int) -> None:
        """Checks an amount before it is worked on.

        Args:
            argument: What the user named, for the message: an option, or a file.
            amount: How many or how much it asks for.

        Raises:
            ArgumentError: If the amount exceeds the limit.
        """
        if amount > self.value:
            shown = f"{amount:,}" if amount <= _LARGEST else f"more than {_LARGEST:,}"
            raise ArgumentError(
                f"{argument}: {shown} {self.unit} exceed the limit of {self.value:,}; {self.variable}=N raises it"
            )


OUTPUTS = Limit("MMSPEC_MAX_OUTPUTS", 10_000, "outputs of one command")
RECIPES = Limit("MMSPEC_MAX_RECIPES", 1_000, "recipes")
SEEDS = Limit("MMSPEC_MAX_SEEDS", 10_000, "seeds")
SAMPLES = Limit("MMSPEC_MAX_SAMPLES", 2_000_000, "samples (recipes x prompts x seeds)")
TEXT = Limit("MMSPEC_MAX_TEXT", 100_000, "characters of one text")
PIXELS = Limit("MMSPEC_MAX_PIXELS", 2**26, "pixels of one image")
VOICE_SECONDS = Limit("MMSPEC_MAX_VOICE_SECONDS", 600, "seconds of a recording to follow")
AUDIO_SECONDS = Limit("MMSPEC_MAX_AUDIO_SECONDS", 3_600, "seconds of one recording")
THREADS = Limit("MMSPEC_MAX_THREADS", 1_024, "threads")
LOGITS = Limit("MMSPEC_MAX_LOGITS", 2**27, "logits (rows x slots x vocabulary)")
FILE_BYTES = Limit("MMSPEC_MAX_FILE_BYTES", 2**28, "bytes of one JSON or YAML file")
DEPTH = Limit("MMSPEC_MAX_DEPTH", 64, "nested levels of JSON or YAML")

# Of `mmspec serve`.
CONNECTIONS = Limit("MMSPEC_MAX_CONNECTIONS", 256, "connections of the server")
BODY_BYTES = Limit("MMSPEC_MAX_BODY_BYTES", 2**22, "bytes of one request")
INPUT = Limit("MMSPEC_MAX_INPUT", 4_096, "characters of one prompt of a request")
IMAGES = Limit("MMSPEC_MAX_IMAGES", 10, "images of one request")
STORED_BYTES = Limit("MMSPEC_MAX_STORED_BYTES", 2**26, "bytes of images that the server keeps for their addresses")
RECEIVE_SECONDS = Limit("MMSPEC_MAX_RECEIVE_SECONDS", 30, "seconds until a request has arrived")
STALL_SECONDS = Limit("MMSPEC_MAX_STALL_SECONDS", 60, "seconds in which a client reads nothing of a response")
STEP_SECONDS = Limit("MMSPEC_MAX_STEP_SECONDS", 600, "seconds without a step of a busy model until `/health` is red")

LIMITS = (
    OUTPUTS, RECIPES, SEEDS, SAMPLES, TEXT, PIXELS, VOICE_SECONDS, AUDIO_SECONDS, THREADS, LOGITS, FILE_BYTES, DEPTH,
    CONNECTIONS, BODY_BYTES, INPUT, IMAGES, STORED_BYTES, RECEIVE_SECONDS, STALL_SECONDS,
    STEP_SECONDS,
)  # fmt: skip
"""All limits, for the documentation and its test."""

"""The positions of a model: whether a prompt fits into them with the audio after it."""

from __future__ import annotations

from mmspec.errors import ArgumentError, PromptError


def check_positions(prompt: int, columns: int, positions: int) -> None:
    """Checks that a prompt fits into a model's positions with the audio after it.

    Args:
        prompt: Positions of the prompt, of its text and its voice.
        columns: Positions for the audio, at most.
        positions: The positions of the model.

    Raises:
        PromptError: If it does not.
    """
    if prompt + columns > positions:
        raise PromptError(
            f"text of {prompt} tokens with its voice is too long; of the model's {positions} positions, {columns} are "
            "for the generated frames: use a shorter voice, or fewer frames"
        )


def check_voice(samples: int, hop: int, columns: int, positions: int) -> None:
    """Checks that the audio of a voice fits, before it is encoded.

    Args:
        samples: Samples of the audio.
        hop: Samples per position.
        columns: Positions for the generated audio, at most.
        positions: The positions of the model.

    Raises:
        ArgumentError: If it does not.
    """
    frames = -(-samples // hop)
    if frames + columns >= positions:
        raise ArgumentError(
            f"audio of {frames} frames is too long for a voice; of the model's {positions} positions, {columns} are "
            "for the generated frames"
        )

"""The words of a prompt that follows a small grammar."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmspec.errors import PromptError, did_you_mean


class PromptWords:
    """The words of a prompt, which are consumed from the front. Case and punctuation are ignored.

    Args:
        known: The words of the grammar.
        ignored: Words that may stand anywhere, such as articles.
        grammar: The grammar, for messages.
        example: A prompt, for messages.

    Attributes:
        prompt: The prompt on one line, for messages.
        words: What is left of it.

    Raises:
        PromptError: If there is no word, or one that the grammar does not have.
    """

    def __init__(self, prompt: str, known: Sequence[str], ignored: Sequence[str], grammar: str, example: str) -> None:
        self.words = [word for word in re.findall(r"[^\s,.;!?]+", prompt.lower()) if word not in ignored]
        self.prompt, self._grammar = " ".join(prompt.split()), grammar
        if not self.words:
            raise PromptError(f"the prompt is empty; try '{example}'")
        unknown = [word for word in dict.fromkeys(self.words) if word not in known]
        if unknown:
            named = ", ".join(f"{word!r}{did_you_mean(word, known)}" for word in unknown)
            raise PromptError(f"unknown words in {prompt!r}: {named}; prompts are: {grammar}")

    def take(self, known: Sequence[str]) -> str | None:
        """The next word if it is one of these, else None."""
        if self.words and self.words[0] in known:
            return self.words.pop(0)
        return None

    def need(self, known: Sequence[str], what: str) -> str:
        """The next word.

        Raises:
            PromptError: If it is none of these; the message calls them `what`.
        """
        word = self.take(known)
        if word is None:
            found = f"found '{self.words[0]}'" if self.words else "the prompt ends"
            raise PromptError(f"cannot read {self.prompt!r}: expected {what}, {found}; prompts are: {self._grammar}")
        return word

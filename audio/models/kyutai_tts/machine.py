"""When Kyutai TTS reads the next word of its text: a state machine over the model's decisions.

In each step the model decides whether the next word begins. The machine feeds the words, holds the model back while a
word is not yet read to its end, and makes it go on where it has paused for too long. Everything is a function of the
decisions so far, so that a state is a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

PAD, WORD, LAST = 0, 1, 2  # decisions: go on, begin the next word, end with this step
NEW_WORD_ID, PAD_ID = 0, 3  # text ids


@dataclass(frozen=True)
class Entry:
    """A word, or a pause.

    Attributes:
        ids: The text ids of the word; none for a pause.
        padding: Steps for which the next word may not begin.
    """

    ids: tuple[int, ...]
    padding: int = 0


@dataclass(frozen=True)
class State:
    """The state before a step.

    Attributes:
        step: The number of the step.
        entry: The number of the next entry.
        may_pad: How many steps the model may still go without a word.
        must_pad: How many it must.
        queued: Text ids of the current word that are not yet read.
        ahead: Text ids of a later word, read along in a second stream.
        end: The step in which the model wanted a word after the last; None before.
    """

    step: int
    entry: int
    may_pad: int
    must_pad: int
    queued: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()
    end: int | None = None


@dataclass(frozen=True)
class Machine:
    """The words of a text, and how they are fed.

    Attributes:
        entries: The words and pauses.
        card: Ids of the text's stream; the id of the second stream, plus one, is multiplied by it.
        look_ahead: How many words the second stream is ahead of the first; 0 for models without one.
        after_end: Steps after `State.end` until the last.
        most_padding: Steps that the model may go without a word.
        first_padding: Steps before the first word.
    """

    entries: Sequence[Entry]
    card: int
    look_ahead: int
    after_end: int
    most_padding: int = 8
    first_padding: int = 2

    def start(self) -> State:
        """The state before the first step."""
        return State(0, 0, self.first_padding, self.first_padding)

    def forced(self, state: State) -> int | None:
        """The only decision that counts in a state; None where the model decides."""
        if state.end is not None:
            return LAST if state.step >= state.end + self.after_end - 1 else PAD
        if state.queued or state.must_pad > 0:
            return PAD
        return WORD if state.may_pad <= 0 else None

    def step(self, state: State, decision: int) -> tuple[State, int]:
        """The next state, and the text id that the model reads after this step.

        Args:
            state: The state before the step.
            decision: `PAD`, `WORD` or `LAST`; what is forced counts instead.
        """
        forced = self.forced(state)
        wants_word = (decision if forced is None else forced) == WORD
        queued, ahead, may_pad, must_pad = state.queued, state.ahead, state.may_pad, state.must_pad
        entry, end, reads_word = state.entry, state.end, False
        if wants_word and entry < len(self.entries):
            word = self.entries[entry]
            entry += 1
            if word.ids:
                queued, may_pad, reads_word = word.ids, self.most_padding, True
                ahead += self._later_word(entry)
            must_pad = word.padding
        elif wants_word:
            end, reads_word = state.step, bool(self.look_ahead)
        out = NEW_WORD_ID
        if not reads_word:
            may_pad, must_pad = max(may_pad - 1, 0), max(must_pad - 1, 0)
            out, queued = (queued[0], queued[1:]) if queued else (PAD_ID, ())
        if self.look_ahead:
            second = -1
            if reads_word:
                # The mark of a word is read in the second stream, and its first id at once in the first.
                second = NEW_WORD_ID
                out, queued = (queued[0], queued[1:]) if queued else (PAD_ID, ())
            elif ahead:
                second, ahead = ahead[0], ahead[1:]
            out += (second + 1) * self.card
        after = replace(
            state,
            step=state.step + 1,
            entry=entry,
            may_pad=may_pad,
            must_pad=must_pad,
            queued=queued,
            ahead=ahead,
            end=end,
        )
        return after, out

    def _later_word(self, entry: int) -> tuple[int, ...]:
        """The ids of the word that is `look_ahead` words after those before `entry`."""
        words = [each.ids for each in self.entries[entry:] if each.ids]
        return words[self.look_ahead - 1] if 0 < self.look_ahead <= len(words) else ()

"""Random sentences for training and measuring the voice."""

from __future__ import annotations

import random
import zlib

from mmspec.audio.spoken.words import (
    COLOURS,
    DAYS,
    DEVICES,
    DIRECTIONS,
    LETTERS,
    MONTHS,
    ONES,
    ORDINALS,
    PEOPLE,
    PLACES,
    ROOMS,
    TENS,
    WEATHER,
    WORDS,
    cardinal,
    digits,
)  # fmt: skip

_TEMPLATES = (
    "{power} the {colour} {device} in the {room}",
    "{power} the {device}",
    "please {power} all the lights in the {room}",
    "{access} the {room} {way}",
    "{access} the {colour} {way} please",
    "set the {gauge} to {number} percent",
    "{change} the {gauge} by {number}",
    "set the temperature in the {room} to {number} degrees",
    "set a timer for {number} minutes",
    "set an alarm for {time} on {day}",
    "wake me at {time} {daypart}",
    "remind me {when} to call {person}",
    "call {person} at {digits}",
    "call extension {digits}",
    "the code is {digits}",
    "your number is {letter} {letter} {digits}",
    "the time is {time}",
    "it is {half} past {hour}",
    "it is {day}, {month} {ordinal}",
    "today is {day}, {number} degrees and {weather}",
    "the weather {when} will be {weather}",
    "it is {weather} and {weather} in the {place_dir}",
    "the train to {place} leaves from platform {hour} at {time}",
    "the {carrier} from gate {letter} {hour} is {number} minutes late",
    "{carrier} {letter} {digits} arrives at {time}",
    "turn {direction} after {big} meters",
    "go {direction} for {big} meters, then turn {direction}",
    "take the {ordinal} street on the {side}",
    "walk to the {place}, then wait for the {carrier}",
    "you have {number} new messages from {person}",
    "the battery level is {number} percent",
    "the battery is {state}",
    "{big} plus {number} equals {big}",
    "{number} times {number} is {big}",
    "minus {number} point {digit}",
    "{number} point {digit} {digit} kilometers",
    "good {daypart}, {person}",
    "hello {person}, welcome to {place}",
    "thank you {person}, goodbye",
    "is the {room} {way} open?",
    "what is the temperature in the {room}?",
    "when does the {carrier} to the {place} leave?",
    "it leaves at {time}",
    "how many messages do you have?",
    "where is the {place}?",
    "sorry, that is not the right {thing}",
    "{yes}, the {device} is {onoff}",
    "play the {ordinal} message again",
    "{letter} {letter} {letter} {letter}",
    "{letter} {letter} {letter}, {digits}",
    "{digits}",
    "{big}",
    "{number}, {number}, {number}",
    "this model is very fast",
    "draft and verify, {number} tokens {when}",
)


def _fill(slot: str, rng: random.Random) -> str:
    pick = rng.choice
    plain = {
        "colour": COLOURS, "device": DEVICES, "room": ROOMS, "day": DAYS, "month": MONTHS, "ordinal": ORDINALS,
        "person": PEOPLE, "direction": DIRECTIONS, "weather": WEATHER, "letter": LETTERS, "place": PLACES,
        "hour": ONES[1:13], "digit": ONES[:10], "way": ("door", "window", "lights"), "side": ("left", "right"),
        "power": ("turn on", "turn off", "switch on", "switch off", "start", "stop"),
        "access": ("open", "close", "lock", "unlock"), "gauge": ("volume", "speed", "level", "temperature", "power"),
        "change": ("increase", "decrease", "raise", "lower"), "half": ("half", "quarter"),
        "daypart": ("morning", "afternoon", "evening", "night"), "carrier": ("train", "bus", "flight"),
        "when": ("today", "tomorrow", "now", "tomorrow morning", "this evening", "in an hour", "after midnight"),
        "place_dir": ("north", "south", "east", "west"), "state": ("low", "full", "empty", "high"),
        "thing": ("answer", "number", "code", "room", "time", "name"), "yes": ("yes", "no", "okay"),
        "onoff": ("on", "off", "ready", "open", "done"),
    }  # fmt: skip
    if slot in plain:
        return pick(plain[slot])
    if slot == "number":
        return " ".join(cardinal(rng.randrange(100)))
    if slot == "big":
        return " ".join(cardinal(rng.randrange(10 ** rng.randint(2, 7))))
    if slot == "digits":
        return " ".join(digits("".join(str(rng.randrange(10)) for _ in range(rng.randint(2, 6)))))
    minutes = rng.choice(["o'clock", pick(TENS[:4]), f"{pick(TENS[:4])} {pick(ONES[1:10])}", pick(ONES[10:])])
    return f"{pick(ONES[1:13])} {minutes}"  # time


def sentence(rng: random.Random) -> str:
    """A random sentence of words in the vocabulary: lower case, single letters in upper case, with punctuation.

    Three in ten sentences are words in random order, so that all pairs of words occur.
    """
    if rng.random() < 0.3:
        words = [rng.choice(WORDS) for _ in range(rng.randint(1, 9))]
        for i in range(len(words) - 1):
            words[i] += "," if rng.random() < 0.08 else ""
        return " ".join(words) + ("?" if rng.random() < 0.1 else "")
    parts = rng.choice(_TEMPLATES).split("{")
    filled = parts[0]
    for part in parts[1:]:
        slot, _, rest = part.partition("}")
        filled += _fill(slot, rng) + rest
    return filled


def is_held_out(text: str) -> bool:
    """Whether a sentence is among the tenth that is never trained on."""
    return zlib.crc32(text.encode()) % 10 == 0


def sentences(n: int, seed: int, held_out: bool) -> list[str]:
    """`n` random sentences of the training set, or of the held-out set without repetitions."""
    rng = random.Random(seed)
    texts: list[str] = []
    while len(texts) < n:
        text = sentence(rng)
        if is_held_out(text) == held_out and not (held_out and text in texts):
            texts.append(text)
    return texts

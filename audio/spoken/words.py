"""The vocabulary of the voice, and the words of numbers."""

from __future__ import annotations


def _list(words: str) -> list[str]:
    return words.split()


ONES = _list(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = _list("twenty thirty forty fifty sixty seventy eighty ninety")
SCALES = ("thousand", "million")
ORDINALS = _list("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")
DAYS = _list("monday tuesday wednesday thursday friday saturday sunday")
MONTHS = _list("january february march april may june july august september october november december")
COLOURS = _list("red green blue yellow white black orange purple")
DEVICES = _list("light lights lamp fan door window heater radio television alarm timer camera oven music screen")
ROOMS = _list("kitchen bedroom bathroom garage garden hall office")
PLACES = _list("station street corner bridge airport hotel market school museum park")
DIRECTIONS = _list("left right north south east west straight")
WEATHER = _list("sunny cloudy rainy windy warm cold hot dry snow fog")
PEOPLE = _list("anna ben clara david emma frank grace henry")
LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
OTHERS = _list("""
    hundred point minus percent be leave and plus
    times equals a an the to in on off at of or for from with by up down please
    now then after before until not all is are was will it this that there here you your my me i we turn switch set
    open close lock unlock start stop play pause call send show find tell remind wake increase decrease raise lower go
    take walk wait welcome hello good goodbye thank thanks yes no okay ready done error morning afternoon evening night
    noon midnight today tomorrow yesterday half past quarter hour hours minute minutes day days week month year o'clock
    degrees temperature volume level battery power speed number code extension message messages new next last low high
    full empty train bus flight gate platform leaves arrives late meters kilometers miles between room living weather
    sorry what when where how many much can could do does have has more less very too only again long time name
    question answer correct wrong speaking speech draft verify token tokens model fast slow faster voice sound
""")

WORDS: tuple[str, ...] = tuple(
    dict.fromkeys(
        [*ONES, *TENS, *SCALES, *ORDINALS, *DAYS, *MONTHS, *COLOURS, *DEVICES, *ROOMS, *PLACES, *DIRECTIONS, *WEATHER,
         *PEOPLE, *OTHERS, *LETTERS]
    )
)  # fmt: skip


def cardinal(number: int) -> list[str]:
    """The words of a number from 0 to 999 999 999."""
    if number < 20:
        return [ONES[number]]
    if number < 100:
        return [TENS[number // 10 - 2], *([ONES[number % 10]] if number % 10 else [])]
    if number < 1000:
        return [ONES[number // 100], "hundred", *(["and", *cardinal(number % 100)] if number % 100 else [])]
    for power, scale in ((2, SCALES[1]), (1, SCALES[0])):
        high, low = divmod(number, 1000**power)
        if high:
            linked = ["and"] if 0 < low < 100 else []
            return [*cardinal(high), scale, *linked, *(cardinal(low) if low else [])]
    raise AssertionError(number)


def digits(text: str) -> list[str]:
    """The words of a string of digits, one by one."""
    return [ONES[int(digit)] for digit in text]

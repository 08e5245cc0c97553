"""NeuTTS Air, Nano and 2E: a voice's codes of NeuCodec, continued; Air and Nano read phonemes, 2E reads letters.

Source: the package `neutts` 1.4.1.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from mmspec.arguments import check_integer, shown
from mmspec.audio.models.flat.decoding import StreamFormat
from mmspec.audio.models.flat.style import Style
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.sampling.params import SamplingParams

_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})


def neutts_style(
    tokenizer: Any,
    phonemize: Callable[[str], str] | None = None,
    codes: int = 65536,
    language: str | None = None,
    config: Any = None,
    emotion: str | None = None,
) -> Style:
    """A NeuTTS, whose codes have ids that depend on the tokenizer.

    Args:
        tokenizer: The tokenizer of the model.
        phonemize: A text to phonemes; None is espeak by the package `phonemizer`, as in the original.
        codes: Codes of the codec.
        language: The language of texts, as espeak names it; None is American English.
        config: The model's configuration, which says whether it reads letters; without one it reads phonemes.
        emotion: How a model that reads letters speaks, such as "happy"; None and "neutral" are the same.

    Raises:
        ModelError: If the tokenizer or the configuration is not that of a NeuTTS.
        ArgumentError: For an emotion that the model does not have, and phonemes of one that reads letters.
    """

    check_integer("codes", codes, 1, 2**24)

    def known(mark: str) -> int:
        found = tokenizer.convert_tokens_to_ids(mark)
        if found is None or found == tokenizer.unk_token_id:
            raise ModelError(f"the tokenizer does not have {mark!r}; it is not that of a NeuTTS")
        return int(found)

    first = known("<|speech_0|>")
    if known(f"<|speech_{codes - 1}|>") != first + codes - 1:
        raise ModelError("the tokenizer does not number the codes of NeuTTS one after the other")
    stream = StreamFormat(codes, first, known("<|SPEECH_GENERATION_END|>"))
    letters = reads_letters(config)
    for name, value in (("language", language), ("emotion", emotion)):
        if not isinstance(value, (str, type(None))):
            raise ArgumentError(f"{name}={shown(value)} is not allowed; it must be a text")
    if phonemize is not None and not callable(phonemize):
        raise ArgumentError(f"phonemize={shown(phonemize)} is not allowed; it must be a function of a text, or None")
    for name, own in (("phonemize", phonemize), ("language", language)):
        if own is not None and (letters or name == "language" and phonemize is not None):
            reads = "this model reads letters" if letters else "phonemize makes the phonemes"
            raise ArgumentError(f"{name}={shown(own)} is not possible: {reads}; leave it out")
    emotion = None if emotion == "neutral" else emotion
    if emotion is not None and (
        not letters or tokenizer.convert_tokens_to_ids(f"<|{emotion.upper()}|>") in (None, tokenizer.unk_token_id)
    ):
        raise ArgumentError(f"emotion={shown(emotion)} is not one that this model has")
    speak = phonemize or espeak_phonemes(language or "en-us")

    def prompt(tokenizer: Any, text: str, voice: str | None) -> list[int]:
        raise PromptError(
            "NeuTTS speaks with the voice of its codes; pass config={'voice': ReferenceCodes(transcript, codes)} "
            "(mmspec.audio.reference_audio)"
        )

    def spoken(*texts: str) -> list[int]:
        if not letters:
            texts = (" ".join(" ".join(speak(each).split()) for each in texts),)
        else:
            texts = tuple(unicodedata.normalize("NFKC", each.translate(_QUOTES)) for each in texts)
            # Without an emotion between them, the texts are one, whose ids may span its middle.
            texts = (" ".join(texts),) if emotion is None else texts
        ids = [list(tokenizer.encode(each, add_special_tokens=False)) for each in texts]
        return ids[0] if emotion is None else [*ids[0], known(f"<|{emotion.upper()}|>"), *ids[1]]

    def voice_prompt(tokenizer: Any, text: str, voice: ReferenceCodes) -> list[int]:
        chat = "user: Convert the text to speech:<|TEXT_REPLACE|>\nassistant:<|SPEECH_REPLACE|>"
        ids = tokenizer.encode("<|TEXT_REPLACE|><|SPEECH_REPLACE|>" if letters else chat)
        at, end = ids.index(known("<|TEXT_REPLACE|>")), ids.index(known("<|SPEECH_REPLACE|>"))
        asked = [known("<|TEXT_PROMPT_START|>"), *spoken(voice.transcript, text), known("<|TEXT_PROMPT_END|>")]
        own = [first + code for code in voice.codes.flatten().tolist()]
        return [*ids[:at], *asked, *ids[at + 1 : end], known("<|SPEECH_GENERATION_START|>"), *own]

    return Style(
        stream,
        prompt,
        SamplingParams(1.0, 50),
        (),
        tokens=1024,
        letters=200,
        voice_prompt=voice_prompt,
        positions=2048,
        least=50,
    )


def reads_letters(config: Any) -> bool:
    """Whether a NeuTTS reads letters instead of phonemes, by its configuration.

    Raises:
        ModelError: If the configuration names another input.
    """
    own = getattr(config, "neuphonic", None)
    form = own.get("input_format", "phonemes") if isinstance(own, Mapping) else "phonemes"
    if form not in ("phonemes", "BPE"):
        raise ModelError(f"the model's config has input_format={shown(form)}; it must be 'phonemes' or 'BPE'")
    return bool(form == "BPE")


def espeak_phonemes(language: str) -> Callable[[str], str]:
    """Texts to phonemes by espeak, with stress and punctuation, through the package `phonemizer`.

    Raises:
        ArgumentError: When it is called and the package or espeak-ng is missing, or the language unknown.
    """

    def phonemes(text: str) -> str:
        try:
            from phonemizer.backend import EspeakBackend

            backend = EspeakBackend(
                language, preserve_punctuation=True, with_stress=True, language_switch="remove-flags"
            )
        except (ImportError, RuntimeError):  # the latter without espeak-ng itself
            raise ArgumentError(
                f"NeuTTS reads phonemes of {language!r}: install phonemizer and espeak-ng, or pass "
                "config={'style': neutts_style(tokenizer, phonemize)} (mmspec.audio.models.flat.neutts)"
            ) from None
        return str(backend.phonemize([text])[0])

    return phonemes

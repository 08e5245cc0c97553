"""CosyVoice 2 and 3 as published: a folder with `llm.pt` and, in `CosyVoice-BlankEN`, the Qwen2 that embeds texts.

A prompt is: a start token, the text, the token that begins speech, then the codes of the voice to continue. The text
before `<|endofprompt|>`, in a text or in the transcript of the voice, is an instruction; CosyVoice 3 always has one.
Text is used as it is; normalizing it is left to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2Model

from mmspec.audio.models.codec_lm.cosyvoice_tokens import END_OF_PROMPT, VERSION_2, VERSION_3
from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings
from mmspec.audio.models.codec_lm.speech import MAX_LETTERS, TextPrompt, fill, read_state
from mmspec.audio.positions import check_positions
from mmspec.audio.reference_audio import ReferenceCodes, joined, refuse_unread
from mmspec.audio.text import ending_like, split_text
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.files.checkpoint import check_depths, sizes_of
from mmspec.heads.merged_vocabulary import MergedVocabulary
from mmspec.hf.folder import read_config, read_json, read_processor
from mmspec.sampling.logits_processors import RepetitionAware
from mmspec.sampling.params import SamplingParams

TEXT_MODEL = "CosyVoice-BlankEN"
MIN_CODES, MAX_CODES = 2, 20  # per id of text
INSTRUCTION = f"You are a helpful assistant.{END_OF_PROMPT}"  # of CosyVoice 3, where a prompt has none


class CosyVoice:
    """The `mmspec.audio.models.codec_lm.speech.TextFrontend` of CosyVoice 2 and 3.

    Args:
        codec_lm: The part that generates codes.
        texts: The embedding of text ids.
        start_embeds: Embeddings [2, D] of the start token and of the token that begins speech.
        tokenizer: The tokenizer of texts.
        voice: The voice to continue, its codes int64 [n]; or None.
        codes: Number of codes.
        ends: The ids that end a stream.
        third: Whether the model is a CosyVoice 3.

    Raises:
        ArgumentError: For a CosyVoice 3 whose tokenizer does not have `<|endofprompt|>`.
    """

    options: tuple[str, ...] = ("exclude_repeated",)
    start: int | None = None
    sampling = SamplingParams(1.0, 25, 0.8)
    guided = False
    takes_min_p = False

    def __init__(
        self,
        codec_lm: CodecLM,
        texts: nn.Embedding,
        start_embeds: Tensor,
        tokenizer: Any,
        voice: ReferenceCodes | None,
        codes: int,
        ends: Sequence[int],
        third: bool = False,
        exclude_repeated: bool = True,
    ) -> None:
        self.codec_lm, self.codes, self.ends = codec_lm, codes, ends
        self._texts, self._start_embeds, self._tokenizer, self._voice = texts, start_embeds, tokenizer, voice
        self._third, self._exclude_repeated = third, exclude_repeated
        if third and END_OF_PROMPT not in tokenizer.get_vocab():
            raise ArgumentError(
                f"processor does not have the token {END_OF_PROMPT}, which CosyVoice 3 needs; leave processor= out to "
                "take the tokenizer in the folder, with the model's tokens added"
            )

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text; an instruction precedes each of them."""
        instruction, mark, words = text.rpartition(END_OF_PROMPT)
        if not words.strip():
            raise PromptError(f"text={text!r} has no words after {END_OF_PROMPT}; give words to say")
        return [ending_like(piece, f"{instruction}{mark}{piece}") for piece in split_text(words, MAX_LETTERS)]

    def prompt(self, text: str) -> TextPrompt:
        return self.prompt_after(text, ())

    def prompt_after(self, text: str, context: Sequence[ReferenceCodes]) -> TextPrompt:
        instruction, mark, words = text.rpartition(END_OF_PROMPT)
        spoken = [replace(each, transcript=each.transcript.rpartition(END_OF_PROMPT)[2]) for each in context]
        before = joined([*([] if self._voice is None else [self._voice]), *spoken]) if spoken else self._voice
        said = "" if before is None else before.transcript
        if self._third and not mark and END_OF_PROMPT not in said:
            said = f"{INSTRUCTION}{said}"
        # The bounds count the words alone, as the package does where the instruction is an argument of its own.
        prefix, ids = self._ids(f"{instruction}{mark}{said}" if mark or said else ""), self._ids(words)
        after = self.codec_lm.embed.weight[:0]
        if before is not None:
            after = self.codec_lm.embed(before.codes.flatten().to(self._start_embeds.device))
        words = self._texts(torch.tensor(prefix + ids, dtype=torch.int64, device=self._start_embeds.device))
        cond = torch.cat([self._start_embeds[:1], words, self._start_embeds[1:], after])
        most = MAX_CODES * max(len(ids), 1)
        check_positions(len(cond), most, int(self.codec_lm.decoder.config.max_position_embeddings))
        return TextPrompt(cond, None, MIN_CODES * len(ids), most)

    def settings(self, sampling: SamplingParams) -> CodecLMSettings:
        if not sampling.temperature:
            return CodecLMSettings((), sampling)
        processor = RepetitionAware(
            sampling.top_p,
            sampling.top_k or self.codec_lm.head.out_features,
            temperature=sampling.temperature,
            exclude=self._exclude_repeated,
        )
        return CodecLMSettings((processor,), SamplingParams())

    def merged_vocabulary(self) -> MergedVocabulary:
        """The codes follow all tokens of the tokenizer, as in the folders that the package converts for vLLM.

        `examples/grpo/cosyvoice2/pretrained_to_huggingface.py` and
        `runtime/triton_trtllm/scripts/convert_cosyvoice3_to_hf.py` of github.com/FunAudioLLM/CosyVoice (March 2026).
        """
        return MergedVocabulary(len(self._tokenizer), self._texts.weight.detach())

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"]) if text else []


def is_cosyvoice(folder: Path) -> bool:
    """Whether a folder holds a published CosyVoice 2 or 3."""
    return (folder / "llm.pt").is_file() and (folder / TEXT_MODEL / "config.json").is_file()


def read(
    folder: Path, tokenizer: Any, voice: Any, device: str, dtype: torch.dtype, options: dict[str, Any]
) -> CosyVoice:
    """Reads a CosyVoice 2 or 3 from its published folder.

    Args:
        tokenizer: A tokenizer, which must have the model's tokens, or its path; None is the one in the folder. The
            model's tokens are added to a tokenizer that is read from files.
        voice: A `mmspec.audio.reference_audio.ReferenceCodes` to continue, or None.
        device: Where to load the model.
        options: `exclude_repeated` is taken from it: False samples as the package did before February 2026.

    Raises:
        ModelError: For missing, broken or unsupported files.
        ArgumentError: For a voice of another type, and an option that is not allowed.
    """
    exclude_repeated = options.pop("exclude_repeated", True)
    if not isinstance(exclude_repeated, bool):
        raise ArgumentError(f"exclude_repeated={exclude_repeated!r} is not allowed; it must be True or False")
    if voice is not None and not isinstance(voice, ReferenceCodes):
        raise ArgumentError(f"voice={voice!r} is not allowed; pass a mmspec.audio.reference_audio.ReferenceCodes")
    if voice is not None:
        refuse_unread(voice, "CosyVoice", "transcript")
    file, state = folder / "llm.pt", read_state(folder / "llm.pt")
    if any(getattr(state.get(f"{name}.weight"), "ndim", 0) != 2 for name in ("llm_decoder", "speech_embedding")):
        raise ModelError(f"model '{file}' is not a CosyVoice 2 or 3; it lacks llm_decoder or speech_embedding")
    ids, width = state["llm_decoder.weight"].shape
    second = "llm_embedding.weight" in state  # CosyVoice 3 has these tokens in the embedding of codes
    codes = ids - (3 if second else 200)
    if not 0 < codes <= len(state["speech_embedding.weight"]) - (0 if second else 3):
        raise ModelError(f"model '{file}' is not a CosyVoice 2 or 3; it has {ids} ids of codes")
    head = fill(file, nn.Linear(width, ids, bias="llm_decoder.bias" in state), state, "llm_decoder.")
    table = state["speech_embedding.weight"]
    embed = fill(file, nn.Embedding(*table.shape), state, "speech_embedding.")
    check_depths(f"model '{folder / TEXT_MODEL}'", read_json(folder / TEXT_MODEL / "config.json"), len(state))
    config = read_config(Qwen2Model, folder / TEXT_MODEL, f"model '{folder / TEXT_MODEL}'")
    with sizes_of(f"model '{folder / TEXT_MODEL}'", "a Qwen2"):
        decoder = Qwen2Model(config)
    fill(file, decoder, state, "llm.model.model.")
    for part in (head, embed, decoder):
        part.to(device, dtype).eval()
    start_embeds = state["llm_embedding.weight"] if second else table[[codes, codes + 2]]
    if tokenizer is None or isinstance(tokenizer, (str, Path)):
        tokenizer = read_processor(tokenizer or folder / TEXT_MODEL, "Qwen2ForCausalLM")
        tokenizer.add_tokens(list(VERSION_2 if second else VERSION_3), special_tokens=True)
    return CosyVoice(
        CodecLM(decoder, embed, head),
        decoder.embed_tokens,
        start_embeds.to(device, dtype),
        tokenizer,
        voice,
        codes,
        # Any of the special tokens ends a stream.
        range(codes, ids),
        not second,
        exclude_repeated,
    )

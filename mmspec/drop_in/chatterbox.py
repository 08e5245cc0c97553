"""The loops of `chatterbox-tts` that generate the codes of speech: `inference` of its T3, and `inference_turbo`.

Prompts are made by T3 itself, so that voices, exaggeration and guidance are those of the package.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.audio.models.codec_lm.chatterbox_turbo import PenaltyAfterTruncation
from mmspec.audio.models.codec_lm.decoding import CodecLM, CodecLMSettings, chatterbox
from mmspec.batching.call import decode_rows
from mmspec.decoding.layout import Layout
from mmspec.decoding.stats import Stats
from mmspec.decoding.step import Watch
from mmspec.drop_in.codec_loop import CodecLoop
from mmspec.drop_in.replacement import Replacement
from mmspec.errors import ArgumentError
from mmspec.sampling.params import SamplingParams
from mmspec.sampling.seeds import row_seeds


class T3Loop(CodecLoop):
    """A loop of one T3; see `mmspec.accelerate`."""

    PACKAGE = "chatterbox"
    ARGUMENTS: ClassVar[frozenset[str]]

    def __call__(self, *positional: Any, **named: Any) -> Any:
        """Decodes a call with the arguments of the package's own method, and returns what that returns."""
        call = inspect.signature(self.__wrapped__).bind(*positional, **named)
        call.apply_defaults()
        random = torch.get_rng_state()
        try:
            self._check(call.arguments)
            with torch.inference_mode():
                return self._decode(**call.arguments)
        except ArgumentError as error:
            self.note(str(error))
        torch.set_rng_state(random)
        return self.__wrapped__(*positional, **named)

    def _check(self, arguments: dict[str, Any]) -> None:
        """Refuses what no loop may be given, and arguments that would have no effect."""
        self.check_method()
        if unknown := sorted({*arguments} - self.ARGUMENTS):
            raise ArgumentError(f"this release of chatterbox-tts has arguments that mmspec does not know: {unknown}")

    def _decode(self, **arguments: Any) -> Tensor:
        raise NotImplementedError

    def _run(
        self, cond: Tensor, uncond: Tensor | None, layout: Layout, settings: CodecLMSettings, before: Tensor
    ) -> Tensor:
        """The codes of one prompt [T, D], int64 [1, n]."""
        t3 = self.owner
        places = None if t3.speech_pos_emb is None else t3.speech_pos_emb.emb.weight
        model = CodecLM(t3.tfmr, t3.speech_emb, t3.speech_head, places)
        prepared, recipe = self.rows(model, cond, uncond, layout, settings, before)
        stats: list[Stats] = []
        (codes,), _ = decode_rows(prepared, recipe, row_seeds(None, 1), Watch(on_stats=stats.append))
        self.keep(stats, recipe)
        return codes[None].to(t3.device)


class Inference(T3Loop):
    """`inference` of a T3 with a Llama: Chatterbox, and its multilingual model, which runs without mmspec."""

    NAME = "inference"
    ARGUMENTS = frozenset(
        {
            "t3_cond", "text_tokens", "initial_speech_tokens", "prepend_prompt_speech_tokens", "num_return_sequences",
            "max_new_tokens", "stop_on_eos", "do_sample", "temperature", "top_p", "min_p", "length_penalty",
            "repetition_penalty", "cfg_weight",
        }
    )  # fmt: skip

    def _decode(self, **arguments: Any) -> Tensor:
        t3, given = self.owner, arguments
        if t3.hp.is_multilingual:
            raise ArgumentError("the multilingual model ends a text by what each single call attends to")
        if given["prepend_prompt_speech_tokens"] is not None or not given["max_new_tokens"]:
            raise ArgumentError("prepend_prompt_speech_tokens, and a call without max_new_tokens, are not possible")
        if not given["temperature"] > 0:
            raise ArgumentError(f"temperature={given['temperature']} is not possible; it must be above 0")
        texts = torch.atleast_2d(given["text_tokens"]).to(t3.device, torch.long)
        start = given["initial_speech_tokens"]
        if start is None:
            start = torch.full_like(texts[:, :1], t3.hp.start_speech_token)
        rows, _ = t3.prepare_input_embeds(
            t3_cond=given["t3_cond"], text_tokens=texts, speech_tokens=start, cfg_weight=given["cfg_weight"]
        )
        if len(rows) != 2:
            raise ArgumentError(f"text_tokens has {len(rows)} rows; with guidance it has 2")
        first = t3.speech_emb.weight[t3.hp.start_speech_token] + t3.speech_pos_emb.emb.weight[0]
        cond, uncond = (torch.cat([row, first[None]]) for row in rows)
        settings = chatterbox(
            *(given[name] for name in ("temperature", "min_p", "top_p", "repetition_penalty", "cfg_weight"))
        )
        end = t3.hp.stop_speech_token
        layout = Layout(given["max_new_tokens"], eos=frozenset({end}), pad=end)
        before = torch.tensor([[t3.hp.start_speech_token]])
        return self._run(cond, uncond if settings.guidance != 1 else None, layout, settings, before)


class InferenceTurbo(T3Loop):
    """`inference_turbo` of a T3 with a GPT-2: Chatterbox Turbo."""

    NAME = "inference_turbo"
    ARGUMENTS = frozenset(
        {"t3_cond", "text_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "max_gen_len"}
    )

    def _decode(self, **arguments: Any) -> Tensor:
        t3, given = self.owner, arguments
        texts, end = given["text_tokens"], t3.hp.stop_speech_token
        start = torch.full_like(texts[:, :1], t3.hp.start_speech_token)
        rows, _ = t3.prepare_input_embeds(t3_cond=given["t3_cond"], text_tokens=texts, speech_tokens=start)
        if len(rows) != 1:
            raise ArgumentError(f"text_tokens has {len(rows)} rows; a call decodes 1")
        length = given["max_gen_len"] + 1  # the first code is counted apart
        if rows.shape[1] + length > t3.cfg.n_positions:
            raise ArgumentError(f"a prompt of {rows.shape[1]} and {length} codes exceed {t3.cfg.n_positions} positions")
        truncated = PenaltyAfterTruncation(
            given["temperature"] or 1.0, given["top_k"], given["top_p"], given["repetition_penalty"]
        )
        # An end that comes first of all does not end a text.
        layout = Layout(length, pad=end, stops=lambda row, codes: len(codes) > 1 and int(codes[-1]) == end)
        settings = CodecLMSettings((truncated,), SamplingParams())
        codes = self._run(rows[0], None, layout, settings, start.cpu())
        return codes[:, :-1] if codes[0, -1] == end else codes


def loop_of_t3(t3: Any) -> type[Replacement]:
    """The loop that generates codes of a T3, by its decoder."""
    return InferenceTurbo if t3.is_gpt else Inference

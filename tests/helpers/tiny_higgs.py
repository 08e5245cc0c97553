"""A tiny Higgs Audio with the real processor."""

from __future__ import annotations

from typing import Any

import published
import tiny_codecs
import tiny_music
from transformers import DacFeatureExtractor, HiggsAudioV2Processor

SPECIAL = {
    "<|end_of_text|>": 256, "<|begin_of_text|>": 257, "<|start_header_id|>": 258, "<|end_header_id|>": 259,
    "<|eot_id|>": 260, "<|scene_desc_start|>": 261, "<|scene_desc_end|>": 262, "<|audio_out_bos|>": 263,
    "<|AUDIO_OUT|>": 264, "<|audio_eos|>": 265, "<|reserved_special_token_6|>": 266,
}  # fmt: skip
# What the published template writes: a system message with the scene inside, then turns.
TEMPLATE = """\
{{ bos_token }}{% for m in messages %}{% if m.role == 'scene' %}\
{{ '\\n\\n<|scene_desc_start|>\\n' + m.content[0].text + '\\n<|scene_desc_end|>' }}\
{% else %}{% if not loop.first %}{{ '<|eot_id|>' }}{% endif %}\
{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}\
{% if m.content[0].type == 'audio' %}{{ '<|audio_out_bos|><|AUDIO_OUT|><|audio_eos|>' }}\
{% else %}{{ m.content[0].text | trim }}{% endif %}{% endif %}{% endfor %}\
{{ '<|eot_id|>' }}{% if add_generation_prompt %}\
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n<|audio_out_bos|>' }}{% endif %}"""


def model(seed: int = 0, **kind: Any) -> Any:
    """A Higgs Audio with ids for `processor`."""
    made = tiny_music.higgs(seed, words=280, **kind)
    config = made.config
    config.audio_bos_token_id, config.audio_token_id, config.audio_delay_token_id = 263, 264, 266
    config.eos_token_id = made.generation_config.eos_token_id = 260
    config.pad_token_id = made.generation_config.pad_token_id = 256
    return made


def processor(codec: Any = None) -> Any:
    """Its processor, whose words are bytes, with a codec of 3 codebooks of 16 codes; None is a new one."""
    words = published.llama_tokenizer(
        SPECIAL, published.read("csm-1b", "tokenizer")["split"], ["<|begin_of_text|>", "$A"],
        bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>", pad_token="<|end_of_text|>",
    )  # fmt: skip
    extract = DacFeatureExtractor(sampling_rate=24000, hop_length=1)
    made = HiggsAudioV2Processor(
        extract, words, codec or tiny_codecs.higgs(real=True), TEMPLATE, audio_stream_bos_id=16, audio_stream_eos_id=17
    )
    return made

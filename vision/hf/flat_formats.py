"""Flat image formats: how decoders without parts of their own for images write prompts and codes as ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmspec.errors import ArgumentError, ModelError, did_you_mean
from mmspec.sampling.params import SamplingParams

# The negative prompt of Emu3's original code and of transformers' documentation.
EMU3_NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)


@dataclass(frozen=True)
class FlatImageFormat:
    """How a family writes a prompt and an image as ids of one vocabulary, in which the codes are consecutive.

    Attributes:
        prompt: The text before an image; `{prompt}` is filled in, and the names of `size`.
        unconditional: The text before the image without the prompt; `{negative}` is filled in.
        negative: The default negative prompt; None if the family has none.
        codes: The number of codes.
        first: The token of code 0, or its id; None if the codes follow the tokenizer's last id.
        sampling: The sampling parameters of the original code.
        factor: Pixels per code.
        grid: Rows and columns of codes by default.
        any_size: Whether images may have other sizes.
        unit: Codes per side that a size is a multiple of.
        size_mark: The number of the token that stands for a size of 0 units.
        line_end: The token between two lines; None without.
        special_tokens: Whether the tokenizer adds its special tokens, such as one that begins a text.
        decoder: Where the decoder of the codes is published.
        rounded: Whether pixels are rounded to 8 bits; else they are cut off.
    """

    prompt: str
    unconditional: str
    codes: int
    sampling: SamplingParams
    factor: int
    grid: tuple[int, int]
    decoder: str
    negative: str | None = None
    first: str | int | None = None
    any_size: bool = True
    unit: int = 1
    size_mark: int = 0
    line_end: str | None = None
    special_tokens: bool = True
    rounded: bool = False

    def first_id(self, tokenizer: Any) -> int:
        """The id of code 0.

        Raises:
            ModelError: If the tokenizer lacks its token.
        """
        if isinstance(self.first, str):
            return token_id(tokenizer, self.first)
        return len(tokenizer) if self.first is None else self.first

    def size(self, height: int, width: int) -> dict[str, int]:
        """What texts say of a size: in codes, in pixels, and the numbers of the tokens that stand for it.

        Args:
            height: In codes.
            width: In codes.
        """
        sides = {"height": height, "width": width}
        pixels = {f"pixel_{name}": codes * self.factor for name, codes in sides.items()}
        return {**sides, **pixels, **{f"{name}_mark": self.size_mark + n // self.unit for name, n in sides.items()}}


FORMATS = {
    # generate.py of wdrink/SimpleAR (MIT), commit d56b6e5.
    "simplear": FlatImageFormat(
        prompt="<|t2i|>A highly realistic image of {prompt}<|soi|>",
        unconditional="<|t2i|>{negative}<|soi|>",
        negative=(
            "An image of aerial view, overexposed, low quality, deformation, a poor composition, bad hands, bad teeth, "
            "bad eyes, bad limbs, distortion"
        ),
        codes=64000,
        sampling=SamplingParams(guidance_scale=6.0),
        factor=16,
        grid=(64, 64),
        decoder="decoder.jit of nvidia/Cosmos-1.0-Tokenizer-DV8x16x16",
    ),
    # evaluation/inference_t2i.py of FoundationVision/Liquid (MIT), commit 4609c47.
    "liquid": FlatImageFormat(
        prompt="{prompt} Generate an image based on this description.<boi>",
        unconditional="<unconditional><boi>",
        codes=8192,
        sampling=SamplingParams(temperature=0.99, top_k=4096, top_p=0.96, guidance_scale=7.0),
        factor=16,
        grid=(32, 32),
        any_size=False,
        decoder="vqgan.ckpt of Meta's Chameleon",
    ),
    # image_generation.py and emu3/mllm/processing_emu3.py of baaivision/Emu3 (Apache 2.0).
    "emu3": FlatImageFormat(
        prompt="<|extra_203|>{prompt}<|image start|>{height}*{width}<|image token|>",
        unconditional="<|extra_203|>{negative}<|image start|>{height}*{width}<|image token|>",
        negative=EMU3_NEGATIVE,
        codes=32768,
        first="<|visual token 000000|>",
        sampling=SamplingParams(top_k=2048, guidance_scale=3.0),
        factor=8,
        grid=(90, 90),
        line_end="<|extra_200|>",
        special_tokens=False,
        decoder="the repository BAAI/Emu3-VisionTokenizer",
    ),
    # configs/example_config_t2i.py and src/utils/logits_processor.py of baaivision/Emu3.5 (Apache 2.0).
    "emu3.5": FlatImageFormat(
        prompt=(
            "<|extra_203|>You are a helpful assistant for t2i task. USER: {prompt} ASSISTANT: <|extra_100|>"
            "<|image start|>{height}*{width}<|image token|>"
        ),
        unconditional=(
            "<|extra_203|>You are a helpful assistant. USER:  ASSISTANT: <|extra_100|>"
            "<|image start|>{height}*{width}<|image token|>"
        ),
        codes=131072,
        first="<|visual token 000000|>",
        sampling=SamplingParams(top_k=5120, guidance_scale=5.0),
        factor=16,
        grid=(55, 73),
        line_end="<|extra_200|>",
        special_tokens=False,
        decoder="model.ckpt of BAAI/Emu3.5-VisionTokenizer",
    ),
    # generate_examples/generate.py, inference_solver.py and scripts/sample.sh of Alpha-VLLM/Lumina-mGPT-2.0
    # (Apache 2.0), commit 978feb3. Its guidance falls to 4 from any higher scale, and is never lower.
    "lumina2": FlatImageFormat(
        prompt=(
            "{begin}Generate an image of {pixel_width}x{pixel_height} according to the following prompt:\n{prompt}"
            "<reserved08706><racm3:break><reserved{height_mark:05d}><reserved{width_mark:05d}>"
        ),
        unconditional="<racm3:break><reserved{height_mark:05d}><reserved{width_mark:05d}>",
        codes=16384,
        first=155000,
        sampling=SamplingParams(top_k=4096, guidance_scale=4.0),
        factor=8,
        grid=(96, 96),
        unit=4,
        size_mark=8800,
        line_end="<reserved08799>",
        special_tokens=False,
        decoder="movqgan_270M.ckpt of ai-forever/MoVQGAN",
        rounded=True,
    ),
}


def format_of(layout: str | None, model: Any) -> FlatImageFormat:
    """The format of a layout.

    Raises:
        ArgumentError: If no layout is given, or there is none of that name.
    """
    if layout not in FORMATS:
        near = "" if layout is None else did_you_mean(layout, FORMATS)
        raise ArgumentError(
            f"layout={layout!r} is not allowed for a {type(model).__name__}{near}; say how it writes images: "
            f"config={{'layout': ...}} with one of {', '.join(FORMATS)}"
        )
    return FORMATS[layout]


def token_id(tokenizer: Any, token: str) -> int:
    """The id of a token.

    Raises:
        ModelError: If the tokenizer does not have it.
    """
    found = tokenizer.convert_tokens_to_ids(token)
    if found is None or found == tokenizer.unk_token_id:
        raise ModelError(f"processor has no token {token!r}, which images of this layout require")
    return int(found)

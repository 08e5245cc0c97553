"""The kinds of objects that `mmspec.accelerate` knows: what of each is replaced, and what of others is said.

Classes are named by package and class, so that nothing is imported for objects that a script does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from mmspec.arguments import shown
from mmspec.drop_in.chatterbox import loop_of_t3
from mmspec.drop_in.cosyvoice import InferenceWrapper
from mmspec.drop_in.generate_method import GenerateMethod
from mmspec.drop_in.liquid_audio import GENERATORS
from mmspec.drop_in.replacement import Replacement
from mmspec.errors import ArgumentError
from mmspec.hf.adapters import adapted_class, adapter_of
from mmspec.hf.request import unwrap

# Objects whose autoregressive parts are accelerated: the attributes of these parts, or of the parts of these.
INSIDE: Mapping[str, tuple[str, ...]] = {
    "transformers.Pipeline": ("model",),
    "transformers.BarkModel": ("semantic", "coarse_acoustics"),
    "transformers.Qwen2_5OmniForConditionalGeneration": ("talker",),
    "transformers.Qwen3OmniMoeForConditionalGeneration": ("talker",),
    "diffusers.GlmImagePipeline": ("vision_language_encoder",),
    "chatterbox.ChatterboxTTS": ("t3",),
    "chatterbox.ChatterboxTurboTTS": ("t3",),
    "chatterbox.ChatterboxMultilingualTTS": ("t3",),
    "cosyvoice.CosyVoice2": ("model.llm",),
    "cosyvoice.CosyVoice2Model": ("llm",),
    "TTS.TTS": ("synthesizer.tts_model",),
    "TTS.Synthesizer": ("tts_model",),
    "TTS.Xtts": ("gpt.gpt_inference",),
}
# Models of other packages with a loop of their own: what stands for its methods.
LOOPS: Mapping[str, Callable[[Any], Sequence[type[Replacement]]]] = {
    "chatterbox.T3": lambda t3: (loop_of_t3(t3),),
    "cosyvoice.Qwen2LM": lambda lm: (InferenceWrapper,),
    "liquid_audio.LFM2AudioModel": lambda model: GENERATORS,
}
# Objects that are not accelerated, and why.
NOT: Mapping[str, str] = {
    "diffusers.LLaDA2Pipeline": "it unmasks blocks of text in parallel, many tokens per call, and samples none after "
    "the other, which an exact draft needs",
    "diffusers.AmusedPipeline": "it draws all tokens in 12 calls; mmspec.load decodes its folder, in as many calls",
    "diffusers.AmusedImg2ImgPipeline": "it draws all tokens in about 12 calls, each with all of them",
    "diffusers.AmusedInpaintPipeline": "it draws all tokens in about 12 calls, each with all of them",
    "diffusers.DiffusionPipeline": "it draws by diffusion, which has no tokens to draft",
    "pocket_tts.TTSModel": "its flow makes each latent without randomness of its own, so that an exact rule accepts no "
    "draft; mmspec.load decodes the folder of transformers' class by rules that give something up",
    "qwen_tts.Qwen3TTSModel": "the package does not run beside transformers 5; import it from mmspec.compat.qwen_tts",
    "outetts.InterfaceHF": "the package's repetition penalty does not run beside transformers 5, and its other engines "
    "are outside of PyTorch; mmspec.load decodes its folder",
    "TTS.BaseTTS": "of coqui-tts, XTTS is the model whose codes are drafted",
    "moshi.LMGen": "each of its steps returns one frame; mmspec.load decodes the folder of a Kyutai TTS or PersonaPlex",
    "moshi.TTSModel": "each step of its loop returns one frame; mmspec.load decodes its folder",
    "audiocraft.MusicGen": "its layers keep keys that no rejected draft is cut from; MusicgenForConditionalGeneration "
    "of transformers, which is accelerated, reads the same facebook/musicgen-* folders",
    "audiocraft.MAGNeT": "it draws many tokens of a codebook in each call; mmspec.load decodes its folder",
    "audiocraft.BaseGenModel": "its layers keep keys that no rejected draft is cut from; mmspec knows the folders of "
    "MusicGen and MAGNeT",
    "dia.Dia": "each of its steps takes one frame; DiaForConditionalGeneration of transformers, which is "
    "accelerated, reads nari-labs/Dia-1.6B-0626",
    "cosyvoice.CosyVoice": "the language model of CosyVoice 1 is no decoder of transformers; CosyVoice 2 and 3 are "
    "accelerated",
    "chatterbox.ChatterboxVC": "it converts a voice without codes that are drawn one after the other",
}
KNOWN = (
    "models of transformers with an adapter (docs/models.md), pipelines of transformers with one, BarkModel, the Omni "
    "models of Qwen, GlmImagePipeline of diffusers, ChatterboxTTS, CosyVoice2, CosyVoice3, LFM2AudioModel of "
    "liquid-audio, and XTTS of coqui-tts"
)


def replaceable(obj: Any) -> list[tuple[Any, type[Replacement]]]:
    """The objects whose methods are replaced to accelerate an object, each with what replaces its method.

    Raises:
        ArgumentError: If there is nothing to accelerate, or the kind of object is not known.
    """
    if isinstance(obj, type):
        raise ArgumentError(f"obj={shown(obj)} is not allowed; it must be an object of the class")
    inner = unwrap(obj)
    names = list(_names(inner))
    for name in names:
        if name in INSIDE:
            return [found for part in INSIDE[name] for found in replaceable(_part(inner, name, part))]
        if name in LOOPS:
            return [(inner, kind) for kind in LOOPS[name](inner)]
    if isinstance(inner, nn.Module) and adapted_class(inner) is not None:
        return [(inner, GenerateMethod)]
    kind = type(inner).__name__
    if any(name.startswith("mmspec.") for name in names):
        raise ArgumentError(f"obj is a {kind}, which decodes with mmspec already; set its recipe, or that of a call")
    for name in names:
        if name in NOT:
            raise ArgumentError(f"obj is a {kind}, which mmspec.accelerate leaves as it is: {NOT[name]}")
    if isinstance(inner, nn.Module) and hasattr(inner, "generate"):
        adapter_of(inner)  # says which classes have one
    raise ArgumentError(f"obj is a {kind}, which mmspec.accelerate does not know; it knows {KNOWN}")


def _names(obj: Any) -> Iterator[str]:
    """Package and name of an object's class, and of those it derives from."""
    return (f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(obj).__mro__)


def _part(obj: Any, name: str, attribute: str) -> Any:
    """A part of an object, refused if the object was loaded without it."""
    part = obj
    for each in attribute.split("."):
        part = getattr(part, each, None)
    if part is None:
        raise ArgumentError(f"obj is a {name.partition('.')[2]} without {attribute}, which is what is accelerated")
    return part

"""The LlamaGen pipeline of diffusers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffusers import ModelMixin

from mmspec.vision.component_dtypes import component_dtypes
from mmspec.vision.folder_pipeline import FolderPipeline
from mmspec.vision.llamagen.components import check_codes
from mmspec.vision.llamagen.generation import LlamaGenGenerator
from mmspec.vision.llamagen.gpt import LlamaGenBlockGPT, LlamaGenGPT
from mmspec.vision.llamagen.model_heads import ModelHeads
from mmspec.vision.llamagen.ngram import NGramTokenTable
from mmspec.vision.llamagen.transformer import LlamaGenTransformer


class LlamaGenPipeline(FolderPipeline, LlamaGenGenerator):
    """Generates images with a LlamaGen transformer.

    A call is that of `LlamaGenGenerator`. Draft heads, which read the transformer's features, are not components: add
    them with `add_drafter`. They are saved and loaded with the pipeline.

    Args:
        transformer: The target.
        vqvae: The decoder of tokens: a `VQModel`, or a module with `decode(tokens int64 [B, N]) -> [B, 3, H, W]` in
            -1..1. Without one a call returns tokens only (`output_type="latent"`).
        text_encoder: A T5 encoder, which also requires `tokenizer`, or a module with
            `encode(prompts) -> (features [B, T, C], mask [B, T])`.
        tokenizer: The tokenizer of the T5 encoder.
        draft_transformer: A smaller LlamaGen with the same conditions, for the recipe `draft`; optional.
        table: An n-gram table, for the recipe `table` and for initial draft tokens; optional.
        temperature: The default of a call.
        top_k: The default of a call.
        top_p: The default of a call.
        guidance_scale: The default of a call.
        recipe: The default of a call.

    Attributes:
        heads: Draft heads by kind; see `add_drafter`.

    Raises:
        ArgumentError: If a component and the transformer have different numbers of codes.
    """

    model_cpu_offload_seq = "text_encoder->draft_transformer->transformer->vqvae"
    _optional_components = ["vqvae", "text_encoder", "tokenizer", "draft_transformer", "table"]
    transformer: LlamaGenGPT | LlamaGenBlockGPT
    draft_transformer: LlamaGenGPT | LlamaGenBlockGPT | None

    def __init__(
        self,
        transformer: LlamaGenGPT | LlamaGenBlockGPT,
        vqvae: ModelMixin | None = None,
        text_encoder: Any = None,
        tokenizer: Any = None,
        draft_transformer: LlamaGenGPT | LlamaGenBlockGPT | None = None,
        table: NGramTokenTable | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        guidance_scale: float = 1.0,
        recipe: str = "scd",
    ) -> None:
        FolderPipeline.__init__(self)
        check_codes(transformer, vqvae, draft_transformer, table)
        self.register_modules(
            transformer=transformer,
            vqvae=vqvae,
            text_encoder=text_encoder,
            tokenizer=tokenizer,
            draft_transformer=draft_transformer,
            table=table,
        )
        self.register_to_config(
            temperature=temperature, top_k=top_k, top_p=top_p, guidance_scale=guidance_scale, recipe=recipe
        )
        self.heads = ModelHeads(transformer)

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        from mmspec.heads.checkpoint import save_heads

        super().save_pretrained(save_directory, *args, **kwargs)
        save_heads(self.heads, Path(save_directory))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> LlamaGenPipeline:
        folder = Path(pretrained_model_name_or_path)
        kwargs["dtype"] = component_dtypes(folder, kwargs.get("dtype"), "transformer", "vqvae")
        pipe: LlamaGenPipeline = super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        if (folder / "drafters").is_dir():
            from mmspec.heads.checkpoint import load_heads  # all kinds of heads

            pipe.heads.update(load_heads(folder))
        return pipe

    def _set_draft_transformer(self, small: LlamaGenTransformer) -> None:
        self.register_modules(draft_transformer=small)

    def _finish_call(self) -> None:
        self.maybe_free_model_hooks()

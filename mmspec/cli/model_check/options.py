"""The options of `mmspec check -m`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelOptions:
    """The options of `mmspec check -m`; None takes the default of the model."""

    prompt: str | None
    device: str
    dtype: str | None
    tokenizer: str | None
    style: str | None
    tokens: int
    rows: int

    def load(self, model: str, dtype: str | None) -> Any:
        """The pipeline of a model, without progress bars.

        Args:
            model: As `mmspec.load` reads it.
            dtype: Of the weights.
        """
        import mmspec
        from mmspec.cli.pipelines import show_no_loading_bars, without_bars
        from mmspec.cli.threads import suit_threads

        show_no_loading_bars(model)
        suit_threads(model)
        config = None if self.style is None else {"style": self.style}
        return without_bars(
            mmspec.load(model, device=self.device, dtype=dtype, tokenizer=self.tokenizer, config=config), None
        )

"""The base of what pipelines return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(eq=False)
class Output(Mapping[str, Any]):
    """A data class that is also a mapping and a tuple: `output.seeds`, `output["seeds"]` and `output[2]` are the same.

    diffusers' `BaseOutput` and transformers' `ModelOutput` are used in the same ways.
    """

    def __getitem__(self, key: str | int | slice) -> Any:
        if not isinstance(key, str):
            return self.to_tuple()[key]
        if key not in list(self):
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return (field.name for field in fields(self))

    def __len__(self) -> int:
        return len(fields(self))

    def to_tuple(self) -> tuple[Any, ...]:
        """The values, in the order of the attributes."""
        return tuple(getattr(self, name) for name in self)

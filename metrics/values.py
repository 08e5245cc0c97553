"""Types of the numbers in results and journals, with the bounds that files of unknown origin are checked against."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A whole number of at least 0."""

Real = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False)]
"""A finite number; the bound leaves room for sums and differences."""

Quantity = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
"""A finite number of at least 0, such as seconds."""

Share = Annotated[float, Field(ge=0, le=1)]
"""A number from 0 to 1."""

Gain = Annotated[int, Field(ge=0, le=100_000)]
"""Tokens that one target call emitted."""

Width = Annotated[int, Field(ge=1, lt=2**31)]
"""Tokens per row of an image."""

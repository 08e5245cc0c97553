"""What results.json must look like: the dataclasses that write it check it when it is read, and are its JSON Schema.

`python -m mmspec.metrics.evaluation.schema` prints the schema, which is published as docs/results.schema.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from mmspec import limits
from mmspec.errors import ArgumentError
from mmspec.files.documents import first_error
from mmspec.metrics.evaluation.config import EvalConfig
from mmspec.metrics.evaluation.evaluate import RecipeResult
from mmspec.metrics.values import Count

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Results:
    """The results of `mmspec eval`: results.json.

    Attributes:
        schema_version: Changes when a key changes its meaning or disappears.
        config: What was evaluated.
        environment: Versions and devices.
        skipped: Why files were left out, one line each.
        rows: One per recipe, plain first.
        planned_prompts: If the run was stopped, the number of prompts that it was to have; `config` has the first ones
            alone, which every recipe has finished, and the results are theirs. None if it has ended.
    """

    schema_version: Literal[2]  # SCHEMA_VERSION
    config: EvalConfig
    environment: dict[str, str | int | None]
    skipped: list[str]
    rows: Annotated[list[RecipeResult], Field(min_length=1)]
    planned_prompts: Count | None = None


@cache
def _results() -> TypeAdapter[Results]:
    return TypeAdapter(Results)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of results.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_results().json_schema()}


def read_record(content: bytes, name: str) -> dict[str, Any]:
    """The object in a results.json, with the keys and types of `Results`; keys that are not in it are left out.

    Args:
        content: The bytes of the file.
        name: What it is called, for messages.

    Raises:
        ArgumentError: If it is anything else, is of another version, or recipes have different metrics.
    """
    limits.FILE_BYTES.check(name, len(content))
    version = _version(content, name)
    if version != SCHEMA_VERSION:
        raise ArgumentError(f"{name} has schema version {version!r}; this mmspec reads {SCHEMA_VERSION}")
    try:
        found = _results().validate_json(content, strict=True)
    except ValidationError as error:
        raise ArgumentError(f"{name} holds no results of `mmspec eval`: {first_error(error)}") from None
    if not found.config.prompts or not found.config.seeds:
        raise ArgumentError(f"{name} holds no results of `mmspec eval`: config has no prompts, or no seeds")
    metrics = list(found.rows[0].quality)
    for row in found.rows:
        if list(row.quality) != metrics:
            raise ArgumentError(f"{name}: recipe {row.recipe!r} has other metrics than {found.rows[0].recipe!r}")
    record: dict[str, Any] = _results().dump_python(found, mode="json")
    return record


def _version(content: bytes, name: str) -> Any:
    """The schema version, before the rest is checked: results of another version have other keys."""
    try:
        found = _any_object().validate_json(content)
    except ValidationError as error:
        raise ArgumentError(f"{name} holds no results of `mmspec eval`: {first_error(error)}") from None
    return found.get("schema_version")


@cache
def _any_object() -> TypeAdapter[dict[str, Any]]:
    return TypeAdapter(dict[str, Any])


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))

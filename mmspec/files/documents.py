"""Reading JSON and YAML of unknown origin: size and depth are bounded, and every fault is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec import limits
from mmspec.errors import ArgumentError, ModelError
from mmspec.files.code_settings import without_code
from mmspec.files.inputs import read_bytes

if TYPE_CHECKING:
    from pydantic import ValidationError


def read_json(path: Path, argument: str) -> Any:
    """The value of a JSON file.

    Args:
        path: The file.
        argument: What the user named, for messages.

    Raises:
        ArgumentError: If the file cannot be read, is no JSON, or exceeds `limits.FILE_BYTES` or `limits.DEPTH`.
    """
    return parse_json(read_bytes(path, argument), f"{argument}: '{path}'")


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file of a model, without what would choose code; see `mmspec.files.code_settings`.

    Raises:
        ModelError: If there is no file, or it contains something else, or exceeds a limit.
    """
    try:
        found = parse_json(read_bytes(file, "file"), f"'{file}'")
    except ArgumentError as error:
        raise ModelError(str(error).removeprefix("file: ")) from None
    if not isinstance(found, dict):
        raise ModelError(f"'{file}' must contain a JSON object, not a {type(found).__name__}")
    return without_code(found)


def parse_json(text: str | bytes, name: str) -> Any:
    """The value of a JSON text.

    Args:
        text: The text, in UTF-8 if it is bytes.
        name: What it is called, for messages.

    Raises:
        ArgumentError: If it is no JSON, or is nested too deeply.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ArgumentError(_too_deep(name)) from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of too many digits
        raise ArgumentError(f"{name} is not valid JSON: {one_line(error)}") from None
    check_depth(found, name)
    return found


def check_depth(value: Any, name: str) -> None:
    """Checks how deeply lists and mappings are nested, without recursion.

    Raises:
        ArgumentError: If they exceed `limits.DEPTH`.
    """
    level, depth = [value], 0
    while level := [
        inner
        for outer in level
        if isinstance(outer, (dict, list))
        for inner in (outer.values() if isinstance(outer, dict) else outer)
        if isinstance(inner, (dict, list))
    ]:
        depth += 1
        if depth >= limits.DEPTH.value:
            raise ArgumentError(_too_deep(name))


def read_yaml(path: Path, argument: str) -> Any:
    """The value of a YAML file; see `parse_yaml`.

    Args:
        path: The file.
        argument: What the user named, for messages.

    Raises:
        ArgumentError: If the file cannot be read, is no YAML of plain values, or exceeds `limits.FILE_BYTES` or
            `limits.DEPTH`.
    """
    return parse_yaml(read_bytes(path, argument), f"{argument}: '{path}'", f"{argument}: cannot read '{path}'")


def parse_yaml(text: str | bytes, name: str, unreadable: str) -> Any:
    """The value of a YAML text; anchors and aliases are refused, which a few lines can multiply into gigabytes.

    Args:
        text: The text, in UTF-8 if it is bytes.
        name: What it is called, for messages.
        unreadable: The beginning of the message about a text that is no YAML.

    Raises:
        ArgumentError: If the text is no YAML of plain values, or is nested too deeply.
    """
    import yaml

    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        # The parser of events does not recurse; the composer of values does.
        depth, most = 0, limits.DEPTH.value
        for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > most:
                raise ArgumentError(_too_deep(name))
            if isinstance(event, yaml.AliasEvent):
                raise ArgumentError(f"{name}: aliases (*{event.anchor[:40]}) are not allowed; write the value out")
        return yaml.safe_load(text)
    except ArgumentError:
        raise
    # The constructor of values raises Python's own errors: for the date 2020-99-99, numbers of 5,000 digits, !!bool x.
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        # libyaml has a limit of its own, and reads ahead of the events.
        deep = "exceeded maximum nesting depth" in str(error)
        raise ArgumentError(_too_deep(name) if deep else f"{unreadable}: {one_line(error)}") from None


def one_line(error: object) -> str:
    """A message of another library on one line."""
    return " ".join(str(error).split())


def first_error(error: ValidationError) -> str:
    """The first of the errors, such as `rows.0.speed.nfe: Input should be a valid number (and 2 more)`."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where + ': ' if where else ''}{first['msg']}{more}"


def _too_deep(name: str) -> str:
    limit = limits.DEPTH
    return f"{name} is nested deeper than the limit of {limit.value} levels; {limit.variable}=N raises it"

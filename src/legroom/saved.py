"""Reads frozen values back from JSON and says which field is wrong.

In go a dataclass and what `json.load` gave; out comes the value, or an error that names the place.
Whatever `--json FILE` writes is read by the same rules.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from legroom.errors import OutputError, UsageError

_T = TypeVar("_T")


def load_json(path: str | Path, error: type[UsageError], *, remedy: str) -> Any:
    """What the JSON file holds.

    Args:
        error: What to raise if it cannot be read.
        remedy: What makes such a file: a command.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as cause:
        raise error(f"cannot read {str(path)!r}: {cause.strerror or cause}") from cause
    except (UnicodeDecodeError, json.JSONDecodeError) as cause:
        raise error(
            f"{str(path)!r} is not JSON ({cause}); was it cut off? make it again with `{remedy}`"
        ) from cause


def save_json(data: dict[str, Any], path: str | Path) -> None:
    """Write the data as one line of JSON.

    Raises:
        OutputError: The file cannot be written.
    """
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(data, file, separators=(",", ":"), allow_nan=False)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def schema_of(data: Any) -> Any:
    """What the file says it is; None if it says nothing."""
    return data.get("schema") if isinstance(data, dict) else None


def read_record(cls: type[_T], data: Any, where: str, error: type[UsageError]) -> _T:
    """Build a dataclass from dictionaries, saying which field is wrong."""
    if not isinstance(data, dict):
        raise error(f"{where} should be an object, got {type(data).__name__}")
    hints = typing.get_type_hints(cls)
    values = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        if item.name not in data:
            if _has_default(item):
                continue
            raise error(f"{where} lacks the field {item.name!r}")
        hint = hints[item.name]
        values[item.name] = _read_value(hint, data[item.name], f"{where}.{item.name}", error)
    return cls(**values)


def _has_default(item: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return item.default is not missing or item.default_factory is not missing


def _read_value(hint: Any, value: Any, where: str, error: type[UsageError]) -> Any:
    if dataclasses.is_dataclass(hint):
        return read_record(typing.cast("type[Any]", hint), value, where, error)
    if typing.get_origin(hint) is dict:
        return _read_dict(typing.get_args(hint)[1], value, where, error)
    if typing.get_origin(hint) is tuple:
        return _read_tuple(typing.get_args(hint), value, where, error)
    if isinstance(hint, types.UnionType):
        if value is None and type(None) in typing.get_args(hint):
            return None
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return _read_value(kinds[0], value, where, error) if len(kinds) == 1 else value
    if hint in _JSON_TYPES and (
        not isinstance(value, _JSON_TYPES[hint]) or (isinstance(value, bool) and hint is not bool)
    ):
        raise error(f"{where} should be of type {hint.__name__}, got {type(value).__name__}")
    return value


def _read_dict(member: Any, value: Any, where: str, error: type[UsageError]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise error(f"{where} should be an object, got {type(value).__name__}")
    return {key: _read_value(member, item, f"{where}.{key}", error) for key, item in value.items()}


def _read_tuple(
    members: tuple[Any, ...], value: Any, where: str, error: type[UsageError]
) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise error(f"{where} should be a list, got {type(value).__name__}")
    if len(members) == 2 and members[1] is Ellipsis:
        members = (members[0],) * len(value)
    if len(members) != len(value):
        raise error(f"{where} should have {len(members)} members, got {len(value)}")
    return tuple(
        _read_value(member, item, f"{where}[{i}]", error)
        for i, (member, item) in enumerate(zip(members, value, strict=True))
    )


_JSON_TYPES: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (int, float),
    str: (str,),
    bool: (bool,),
}

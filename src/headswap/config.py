"""Frozen dataclasses to TOML and back; unknown keys and wrong types are refused.

A configuration is a tree of frozen dataclasses whose leaves are str, int, float, bool,
tuples of those, or None (left out of the file, since TOML has no null).
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from headswap.errors import StorageError, UsageError, did_you_mean
from headswap.types import Table

KINDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}

C = TypeVar("C")


def build(cls: type[C], table: Mapping[str, Any], where: str = "") -> C:
    """Make ``cls`` from a table, checking names and types on the way."""
    assert dataclasses.is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}
    values = {}
    for key, value in table.items():
        path = f"{where}.{key}" if where else key
        if key not in fields:
            raise UsageError(f"unknown setting {path!r}", fix=did_you_mean(key, fields))
        values[key] = _convert(fields[key], value, path)
    return cls(**values)


def to_table(settings: object) -> Table:
    """The settings as nested plain tables, without the keys that are None."""
    assert dataclasses.is_dataclass(settings)
    table: Table = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is None or not field.init:
            continue
        if dataclasses.is_dataclass(value):
            table[field.name] = to_table(value)
        else:
            table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def dumps(table: Table) -> str:
    return tomli_w.dumps(table)


def read(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"cannot read it ({error.strerror})", where=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"not valid TOML ({error})", where=path) from error


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """``over`` laid on ``base``, table by table; neither is changed."""
    result = dict(base)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merge(result[key], value)
        else:
            result[key] = value
    return result


def parse_assignment(text: str) -> Table:
    """``train.lr=3e-4`` as the nested table ``{"train": {"lr": 3e-4}}``."""
    path, equals, raw = text.partition("=")
    if not equals or not path.strip():
        raise UsageError(f"cannot read {text!r}", fix="write it as --set section.name=value")
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    for key in reversed(path.strip().split(".")):
        value = {key: value}
    return typing.cast(Table, value)


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UsageError(f"{path} must be a table, not {value!r}")
        return build(typing.cast(type, hint), value, path)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        inner = [option for option in arguments if option is not type(None)]
        return _convert(inner[0], value, path)
    if origin is typing.Literal:
        if value not in arguments:
            raise UsageError(
                f"{path} cannot be {value!r}",
                fix=did_you_mean(str(value), [str(option) for option in arguments]),
            )
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(
                f"{path} must be a list, not {value!r}", fix=f"write {path}={json.dumps([value])}"
            )
        return tuple(_convert(arguments[0], item, path) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{path} must be a number, not {value}")
    if hint is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if type(value) is not hint:
        raise UsageError(f"{path} must be {KINDS.get(hint, hint.__name__)}, not {value!r}")
    return value
